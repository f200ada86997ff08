"""Mutual TLS: from certificates to gRPC credentials, and from a connection back to who is at its other end.

Rule: identity comes from the certificate only. A server asks for a certificate of the run's authority (the enrolment port alone
does not); a client checks the server's name in its certificate, never its address: open channels with `channels.open_channel`,
which wants the name (a peer's id, or `coordinator.<run>`).

gRPC checks a certificate's dates when a connection is made, not while it lasts: whoever serves long streams compares
`Caller.expires_at` with the clock.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from shoal.protocol.authority import RIGHT_PREFIX
from shoal.protocol.errors import IdentityError
from shoal.protocol.messages import PeerId

CERTIFICATE_LIMIT_BYTES = 64 << 10


@dataclass(frozen=True)
class Caller:
    """What a verified certificate says of its owner. `peer` is its name: an id, or `coordinator.<run>`."""

    peer: PeerId
    rights: frozenset[str]
    not_before: datetime.datetime
    expires_at: datetime.datetime
    """Both in UTC."""
    serial: int


@dataclass(frozen=True)
class Credential:
    """What one side needs for mutual TLS, all PEM: its private key, its certificate, and the authority that it trusts."""

    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    ca: bytes = field(repr=False)

    @property
    def owner(self) -> Caller:
        """What the certificate says. Raises IdentityError."""
        return read_certificate(self.certificate)


@lru_cache(maxsize=256)  # every stream of every round asks, and most of them show the same few
def read_certificate(pem: bytes) -> Caller:
    """Name, rights and dates in a certificate, which this does not verify. Raises IdentityError."""
    if len(pem) > CERTIFICATE_LIMIT_BYTES:
        raise IdentityError(f"a certificate of {len(pem)} bytes")
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise IdentityError(f"not a certificate of a run's authority: {error}") from error
    if len(names) != 1:
        raise IdentityError(f"a certificate with {len(names)} names; those of a run's authority have one")
    rights = [str(unit.value) for unit in units]
    return Caller(
        names[0],
        frozenset(right.removeprefix(RIGHT_PREFIX) for right in rights if right.startswith(RIGHT_PREFIX)),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate.serial_number,
    )


def utc(at: float | None = None) -> str:
    """A wall-clock time (default: now) as people compare it across machines."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def server_credentials(source: Credential | Callable[[], Credential], ask_for_certificate: bool = True) -> grpc.ServerCredentials:
    """Credentials of a server port. A function is asked anew for every connection, so that a renewed certificate needs no restart.

    `ask_for_certificate=False` is for the enrolment port alone. The function runs in gRPC's threads and must return at once.
    """
    renewal = Renewal(source if callable(source) else lambda: source, ask_for_certificate)
    changed: Any = renewal.changed  # the stubs do not know that None means "unchanged"
    return grpc.dynamic_ssl_server_credentials(renewal.configuration(), changed, ask_for_certificate)


class Renewal:
    """Tells gRPC of a server's new certificate when there is one, and nothing otherwise.

    gRPC replaces its server handshaker factory whenever it is given a configuration, without a lock: another connection that
    begins at that moment uses freed memory (grpcio 1.85: eight clients at once crash a server within seconds). So it is given one
    only when the certificate really changed.
    """

    def __init__(self, source: Callable[[], Credential], ask_for_certificate: bool) -> None:
        self._source = source
        self._ask_for_certificate = ask_for_certificate
        self._served = source()
        self._lock = threading.Lock()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """What the port is served with now."""
        served = self._served
        root = served.ca if self._ask_for_certificate else None
        return grpc.ssl_server_certificate_configuration([(served.key, served.certificate)], root)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, once; None while nothing changed."""
        credential = self._source()
        with self._lock:
            if credential == self._served:
                return None
            self._served = credential
            return self.configuration()


def client_credentials(credential: Credential) -> grpc.ChannelCredentials:
    """Credentials of a channel on which both sides show certificates."""
    return grpc.ssl_channel_credentials(credential.ca, credential.key, credential.certificate)


def enrolment_credentials(ca: bytes) -> grpc.ChannelCredentials:
    """Credentials of a channel to an enrolment port, by one who has no certificate yet."""
    return grpc.ssl_channel_credentials(ca)


def caller_of(context: Any) -> Caller:
    """Who is at the other end, from the verified certificate of a call's connection. Raises IdentityError if it showed none."""
    certificates = context.auth_context().get("x509_pem_cert", ())
    if len(certificates) != 1:
        raise IdentityError("the caller shows no certificate")
    return read_certificate(certificates[0])
