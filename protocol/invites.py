"""An invitation: all that a volunteer needs to come in, as one line of text that survives mail and chat.

Rule: a line that was copied badly is refused with the reason, before anything is dialled. The token in it is a secret until it
is used up; it stays out of `repr`.

    "shoal-invite-1." + base64url(CRC-32, little endian | length of the JSON, 4 bytes LE | JSON | CA certificate, DER)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from shoal.protocol.channels import split_address
from shoal.protocol.errors import InviteError, ShoalError
from shoal.protocol.names import is_run_name

PREFIX = "shoal-invite-"
VERSION = "1"
ID_LENGTH = 12
"""Characters of the token's digest that name an invite."""
LINE_LIMIT = 16 << 10
TOKEN_LIMIT = 256
ADDRESSES_LIMIT = 16
_ASK = "ask for a new invite"
_COPY = "copy the whole line again"


@dataclass(frozen=True)
class Invite:
    """Where to enrol, whom to trust there, and the token that opens the door."""

    run: str
    enrol_addresses: tuple[str, ...]
    session_addresses: tuple[str, ...]
    ca_pem: bytes = field(repr=False)
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not is_run_name(self.run):
            raise InviteError(f"the invite's run {self.run!r:.80} is not the name of a run", _ASK)
        if not 1 <= len(self.token) <= TOKEN_LIMIT or not self.token.isascii() or not self.token.isprintable():
            raise InviteError("the invite has no usable token", _ASK)
        for what, addresses in (("enrolment", self.enrol_addresses), ("session", self.session_addresses)):
            if not 1 <= len(addresses) <= ADDRESSES_LIMIT:
                raise InviteError(f"the invite has {len(addresses)} {what} addresses; 1 to {ADDRESSES_LIMIT} are allowed", _ASK)
            for address in addresses:
                try:
                    split_address(address)
                except ShoalError as error:
                    raise InviteError(f"the invite's {what} address is not usable: {error}", _ASK) from error
        try:
            x509.load_pem_x509_certificate(self.ca_pem)
        except ValueError as error:
            raise InviteError("the invite's CA certificate is not a certificate", _ASK) from error

    @property
    def id(self) -> str:
        """Names the invite, and says nothing of its token."""
        return token_digest(self.token)[:ID_LENGTH]

    def line(self) -> str:
        """The invite as one line."""
        known = {"run": self.run, "enrol": self.enrol_addresses, "session": self.session_addresses, "token": self.token}
        text = json.dumps(known, separators=(",", ":"), sort_keys=True).encode()
        ca = x509.load_pem_x509_certificate(self.ca_pem).public_bytes(Encoding.DER)
        content = len(text).to_bytes(4, "little") + text + ca
        line = base64.urlsafe_b64encode(zlib.crc32(content).to_bytes(4, "little") + content).decode().rstrip("=")
        return f"{PREFIX}{VERSION}.{line}"


def token_digest(token: str) -> str:
    """What a coordinator keeps of a token, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def parse(line: str) -> Invite:
    """The invite that `Invite.line` wrote; spaces and line breaks that mail put in are ignored. Raises InviteError."""
    if len(line) > LINE_LIMIT:
        raise InviteError(f"an invite has at most {LINE_LIMIT} characters, this has {len(line)}", _COPY)
    line = "".join(line.split()).strip("\"'`<>")
    if not line.startswith(PREFIX):
        raise InviteError(f'this is not an invite: it does not start with "{PREFIX}"', _COPY)
    version, dot, body = line.removeprefix(PREFIX).partition(".")
    if not dot:
        raise InviteError("the invite is cut off", _COPY)
    if version != VERSION:
        raise InviteError(f"the invite has version {version!r:.20}; this program knows {VERSION}", "update shoal")
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InviteError("the invite holds characters that do not belong there, or is cut off", _COPY) from error
    if len(data) < 8 or zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
        raise InviteError("the invite is damaged or cut off (its checksum differs)", _COPY)
    size = int.from_bytes(data[4:8], "little")
    if size > len(data) - 8:
        raise InviteError("the invite is damaged (its lengths differ)", _ASK)
    return _from_parts(data[8 : 8 + size], data[8 + size :])


def _from_parts(text: bytes, ca: bytes) -> Invite:
    try:
        known = json.loads(text)
        pem = x509.load_der_x509_certificate(ca).public_bytes(Encoding.PEM)
    except (ValueError, RecursionError) as error:
        raise InviteError("the invite's content is not readable", _ASK) from error
    if not isinstance(known, dict):
        raise InviteError("the invite's content is not readable", _ASK)
    return Invite(_text(known, "run"), _texts(known, "enrol"), _texts(known, "session"), pem, _text(known, "token"))


def _text(known: dict[str, Any], key: str) -> str:
    value = known.get(key)
    if not isinstance(value, str):
        raise InviteError(f"the invite lacks its {key}", _ASK)
    return value


def _texts(known: dict[str, Any], key: str) -> tuple[str, ...]:
    value = known.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InviteError(f"the invite lacks its {key} addresses", _ASK)
    return tuple(value)
