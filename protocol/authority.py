"""The run's certificate authority: says which TLS key speaks under which name, with which rights, until when.

Rule: one authority per run, so that the certificates of one swarm mean nothing in another. Its key never leaves the coordinator's
directory. Certificates begin some time in the past, because volunteers' clocks are wrong: an hour, but no more than an eighth of
their life, so that two thirds of it are always still to come. Neighbours: `identity` proves who asks,
`tls` reads names and rights back out of certificates.

Names (the only DNS entry of the certificate): the id of a peer or an operator; `coordinator.<run>` for the coordinator. Rights:
"peer", "reducer", "admin", "observer", "coordinator".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.protocol.errors import IdentityError
from shoal.protocol.files import read_private, write_whole
from shoal.protocol.identity import load_tls_public_key, new_tls_key
from shoal.protocol.names import is_run_name

KEY_FILE = "ca-key.pem"
CERTIFICATE_FILE = "ca.pem"
RIGHTS = frozenset({"peer", "reducer", "admin", "observer", "coordinator"})
RIGHT_PREFIX = "right:"
CLOCK_SKEW = datetime.timedelta(hours=1)
CA_LIFETIME = datetime.timedelta(days=3650)

_SUBJECT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def coordinator_name(run: str) -> str:
    """The name in the certificate of a run's coordinator."""
    return f"coordinator.{run}"


def head_start(lifetime: datetime.timedelta) -> datetime.timedelta:
    """How long before its issue a certificate begins, for those whose clocks are behind; short ones begin less early."""
    return min(CLOCK_SKEW, lifetime / 8)


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, key: EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self.ca_pem: bytes = certificate.public_bytes(Encoding.PEM)
        """The authority's own certificate: what everybody in the run trusts."""

    @property
    def run(self) -> str:
        """The run that this authority was made for."""
        return str(self._certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)[0].value)

    @classmethod
    def create(cls, directory: Path, run: str) -> Authority:
        """A new authority for `run`, kept in `directory`. Raises IdentityError if there is one already."""
        if not is_run_name(run):
            raise IdentityError(f"{run!r:.80} cannot be the name of a run")
        if (directory / CERTIFICATE_FILE).exists() or (directory / KEY_FILE).exists():
            raise IdentityError(f"{directory} holds a certificate authority already")
        authority = cls.generate(run)
        key = authority._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            write_whole(directory / KEY_FILE, key, exclusive=True)
            write_whole(directory / CERTIFICATE_FILE, authority.ca_pem)
        except OSError as error:
            raise IdentityError(f"no certificate authority can be kept in {directory}: {error.strerror or error}") from error
        return authority

    @classmethod
    def generate(cls, run: str) -> Authority:
        """A new authority, in memory only."""
        key = new_tls_key()
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "shoal"),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, run),
                x509.NameAttribute(NameOID.COMMON_NAME, f"shoal authority {x509.random_serial_number():040x}"),
            ]
        )
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """The authority in `directory`. Raises IdentityError that names the file at fault."""
        content = read_private(directory / KEY_FILE)
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IdentityError(f"{directory / KEY_FILE} is not a usable private key") from error
        try:
            certificate = x509.load_pem_x509_certificate(read_private(directory / CERTIFICATE_FILE))
        except ValueError as error:
            raise IdentityError(f"{directory / CERTIFICATE_FILE} is not a certificate") from error
        if not isinstance(key, EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
            raise IdentityError(f"{KEY_FILE} and {CERTIFICATE_FILE} in {directory} do not belong together")
        return cls(key, certificate)

    def issue(
        self,
        public_key: bytes | EllipticCurvePublicKey,
        name: str,
        rights: Iterable[str],
        lifetime: datetime.timedelta,
        not_before: datetime.datetime | None = None,
    ) -> bytes:
        """A certificate (PEM) that says: this TLS key (object, or DER SubjectPublicKeyInfo) is `name` and may do `rights`.

        It ends `lifetime` from now, or with the authority. `not_before` (default: see above) moves the whole validity, for tests.
        """
        rights = sorted(set(rights))
        if not set(rights) <= RIGHTS:
            raise IdentityError(f"unknown rights {sorted(set(rights) - RIGHTS)}", f"there are {', '.join(sorted(RIGHTS))}")
        if len(name) > 253 or not _SUBJECT.fullmatch(name):
            raise IdentityError(f"{name!r:.80} cannot be a name in a certificate")
        key = load_tls_public_key(public_key) if isinstance(public_key, bytes) else public_key
        skew = datetime.timedelta() if not_before else head_start(lifetime)
        begin = not_before or datetime.datetime.now(datetime.UTC) - skew
        end = min(begin + skew + lifetime, self._certificate.not_valid_after_utc)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if set(rights) & {"peer", "reducer", "coordinator"}:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        subject = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, RIGHT_PREFIX + right) for right in rights]
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64]), *subject]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
            .public_bytes(Encoding.PEM)
        )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
