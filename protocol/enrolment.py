"""How an identity becomes a certificate, and stays one. Same rules as `messages`: frozen, plain, a sentence each.

`Enrol` travels on the enrolment port, where only the server shows a certificate; `Renew` on the session port, where the caller's
certificate says who it is. In both the `binding` proves that the owner of the Ed25519 identity chose the TLS key. `Look` comes to
the enrolment port from somebody who only wonders whether joining would work, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.messages import PeerId


@dataclass(frozen=True)
class Enrol:
    """ "I am the owner of this identity and was invited: certify this TLS key as mine." An enrolled identity needs no token."""

    run: str
    token: str
    public_key: bytes
    """Raw Ed25519 public key (32 bytes); the peer id is its hash."""
    tls_key: bytes
    """Public P-256 key of the TLS certificate to be, as DER SubjectPublicKeyInfo."""
    binding: bytes
    """Ed25519 signature over the run's name and `tls_key` (64 bytes)."""


@dataclass(frozen=True)
class Renew:
    """ "My certificate grows old: certify this TLS key." `run` is the run whose coordinator is asked."""

    run: str
    public_key: bytes
    tls_key: bytes
    binding: bytes


@dataclass(frozen=True)
class Enrolled:
    """Answer to both: the certificate (PEM), the run's CA (PEM), and where sessions are served."""

    peer: PeerId
    certificate: str
    ca: str
    session_addresses: tuple[str, ...] = ()
    now: float = 0.0
    """The coordinator's clock (Unix time) when it answered, so that a wrong clock is noticed; 0: not said."""


LOOK_LIMIT_BYTES = 192 << 10
"""Of the payload of a look, each way: an enrolment port takes no larger messages than a little more."""


@dataclass(frozen=True)
class Look:
    """ "Would I get in, what time is it, where do you see me, and how fast is the way?" Costs no use of the invite."""

    run: str
    token: str
    payload: bytes = b""
    """Anything, to measure the way there."""
    want_bytes: int = 0
    """Bytes to send back, to measure the way here; only for whoever has a valid invite."""


@dataclass(frozen=True)
class Looked:
    """Answer to `Look`."""

    now: float
    """The coordinator's clock: Unix time in seconds."""
    seen_from: str
    """The address that the question came from, as the coordinator sees it."""
    trouble: str = ""
    """Why this invite would not let anybody in; empty: it would."""
    payload: bytes = b""
    certificate_s: float = 0.0
    """How long a certificate lasts that this coordinator gives; 0: not said."""
