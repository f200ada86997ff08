"""Who somebody is: an Ed25519 key. The peer id is the hash of its public half, so that an id cannot be taken, only made.

Rule: the identity's key signs and never leaves its file. gRPC's TLS rejects Ed25519 leaf certificates, so TLS uses a second key
(P-256), which the identity's owner binds to it by a signature when a certificate is asked for. Neighbours: `authority`
certifies TLS keys, `tls` uses the certificates.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from shoal.protocol.errors import IdentityError
from shoal.protocol.files import read_private, write_whole
from shoal.protocol.messages import PeerId

KEY_FILE = "identity.pem"
TLS_KEY_FILE = "tls-key.pem"
PUBLIC_KEY_BYTES = 32
_TLS_KEY_LIMIT_BYTES = 1024
_BINDING_CONTEXT = b"shoal-tls-binding-1"


def peer_id_of(public_key: bytes) -> PeerId:
    """The first 16 bytes of the SHA-256 of a raw Ed25519 public key, in hex."""
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise IdentityError(f"an identity's public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
    return hashlib.sha256(public_key).hexdigest()[:32]


class Identity:
    """An Ed25519 key and the P-256 key that speaks for it in TLS."""

    def __init__(self, key: Ed25519PrivateKey, tls_key: EllipticCurvePrivateKey) -> None:
        self._key = key
        self._tls_key = tls_key
        self.public_key: bytes = key.public_key().public_bytes_raw()
        """Raw Ed25519 public key, 32 bytes."""
        self.peer_id: PeerId = peer_id_of(self.public_key)
        self.tls_public_key: bytes = tls_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        """DER SubjectPublicKeyInfo of the TLS key."""

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    @classmethod
    def generate(cls) -> Identity:
        """A new identity, in memory only."""
        return cls(Ed25519PrivateKey.generate(), new_tls_key())

    @classmethod
    def create(cls, directory: Path) -> Identity:
        """A new identity in `directory`. Raises IdentityError if there is one already, also one made at the same moment."""
        identity = cls.generate()
        if (directory / KEY_FILE).exists():
            raise IdentityError(f"{directory} holds an identity already")
        try:
            # The identity's key comes last: when it is there, all is there. TLS keys may be replaced, identities may not.
            write_whole(directory / TLS_KEY_FILE, identity.tls_key_pem)
            write_whole(directory / KEY_FILE, _private_pem(identity._key), exclusive=True)
        except FileExistsError as error:
            raise IdentityError(f"{directory} holds an identity already") from error
        except OSError as error:
            raise IdentityError(f"no identity can be kept in {directory}: {error.strerror or error}") from error
        return identity

    @classmethod
    def load(cls, directory: Path) -> Identity:
        """The identity in `directory`. Raises IdentityError that names the file at fault."""
        key = _load_private(directory / KEY_FILE)
        if not isinstance(key, Ed25519PrivateKey):
            raise IdentityError(f"{directory / KEY_FILE} is not an Ed25519 key")
        tls_key = _load_private(directory / TLS_KEY_FILE)
        if not isinstance(tls_key, EllipticCurvePrivateKey) or not isinstance(tls_key.curve, SECP256R1):
            raise IdentityError(f"{directory / TLS_KEY_FILE} is not a P-256 key")
        return cls(key, tls_key)

    @classmethod
    def load_or_create(cls, directory: Path) -> Identity:
        """The identity in `directory`, made if there is none."""
        return cls.load(directory) if (directory / KEY_FILE).exists() else cls.create(directory)

    @property
    def tls_key_pem(self) -> bytes:
        """The private TLS key (PKCS 8, PEM). A secret."""
        return _private_pem(self._tls_key)

    def binding(self, run: str) -> bytes:
        """The signature by which this identity says, to one run, that the TLS key is its own."""
        return self._key.sign(_bound(run, self.tls_public_key))


def verify_binding(run: str, public_key: bytes, tls_key: bytes, binding: bytes) -> PeerId:
    """The id of the identity that bound `tls_key` (DER) to itself for `run`. Raises IdentityError."""
    peer = peer_id_of(public_key)
    load_tls_public_key(tls_key)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(binding, _bound(run, tls_key))
    except (InvalidSignature, ValueError) as error:
        raise IdentityError(f"the TLS key is not signed by identity {peer} for run {run!r:.80}") from error
    return peer


def new_tls_key() -> EllipticCurvePrivateKey:
    """A key that gRPC's TLS accepts."""
    return generate_private_key(SECP256R1())


def load_tls_public_key(der: bytes) -> EllipticCurvePublicKey:
    """A P-256 public key from DER SubjectPublicKeyInfo. Raises IdentityError."""
    if len(der) > _TLS_KEY_LIMIT_BYTES:
        raise IdentityError(f"a TLS key of {len(der)} bytes")
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityError("the TLS key is not a public key") from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise IdentityError("the TLS key is not a P-256 key")
    return key


def _bound(run: str, tls_key: bytes) -> bytes:
    """What is signed. Lengths keep two different pairs from giving the same bytes."""
    name = run.encode()
    return b"|".join((_BINDING_CONTEXT, len(name).to_bytes(4, "little") + name, hashlib.sha256(tls_key).digest()))


def _private_pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_private(path: Path) -> object:
    content = read_private(path)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"{path} is not a usable private key") from error
