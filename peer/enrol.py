"""How a machine becomes a member of a run and stays one: identity, certificate, renewal.

Rule: the identity (an Ed25519 key, made here, never sent) is what a peer is; certificates come and go. An invite is needed
once. After that the identity itself asks for certificates, with the same line again, used up or not, or with none: the
signature over the TLS key is the proof. A certificate is renewed when two thirds of its life are over, and enrolled anew when
it is past that, without a restart.

One directory holds one identity for one run:

    identity.pem tls-key.pem   the keys (protocol.identity)
    certificate.pem ca.pem     who the run's authority says we are, and the authority
    run.json                   the run's name and where its coordinator is

Neighbours: `slots` chooses the directory, `session` dials with what is `current`, `coordinator.enrolment` is the other end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
from cryptography import x509

from shoal.peer.diagnosis import explain, wrong_time
from shoal.protocol.authority import coordinator_name
from shoal.protocol.channels import Kind, open_channel
from shoal.protocol.enrolment import Enrol, Enrolled, Renew
from shoal.protocol.errors import IdentityError, InviteError, RefusedError, ShoalError, UnreachableError
from shoal.protocol.files import read_private, write_whole
from shoal.protocol.identity import Identity
from shoal.protocol.invites import Invite
from shoal.protocol.messages import PeerId
from shoal.protocol.names import is_run_name
from shoal.protocol.services import ENROL, RENEW
from shoal.protocol.tls import Credential, client_credentials, enrolment_credentials, utc

LOG = logging.getLogger("shoal.peer")
CERTIFICATE_FILE = "certificate.pem"
CA_FILE = "ca.pem"
RUN_FILE = "run.json"
ANSWER_S = 10.0
RENEW_AT = 2 / 3
"""Fraction of a certificate's life after which it is renewed."""
RETRY_S = (5.0, 60.0)
"""Limits of the random pause between attempts to renew, and after one that brought a certificate which is due again at once."""
CLOCK_TOLERANCE_S = 60.0
"""A clock that differs from the coordinator's by more is worth a word, before it matters."""
LONGEST_SLEEP_S = 60.0
"""The wall clock is looked at this often at least, because it may be set."""


@dataclass(frozen=True)
class Credentials:
    """What one identity needs to speak with one run's coordinator and peers."""

    run: str
    identity: Identity
    credential: Credential
    enrol_addresses: tuple[str, ...]
    session_addresses: tuple[str, ...]
    directory: Path

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self.identity.peer_id

    @property
    def server_name(self) -> str:
        """The name in the coordinator's certificate."""
        return coordinator_name(self.run)

    @property
    def ca(self) -> str:
        """The run's authority, PEM."""
        return self.credential.ca.decode()

    def check(self) -> None:
        """Raise IdentityError, with both times, when our certificate is not valid now."""
        certificate = x509.load_pem_x509_certificate(self.credential.certificate)
        if wrong := wrong_time(certificate, "this machine's certificate"):
            raise wrong

    @property
    def renew_at(self) -> float:
        """Wall-clock time at which two thirds of the certificate's life are over."""
        owner = self.credential.owner
        start, end = owner.not_before.timestamp(), owner.expires_at.timestamp()
        return start + RENEW_AT * (end - start)

    def save(self) -> None:
        """Keep everything but the keys, which are there already. `run.json` comes last: when it is there, all is there. Raises
        IdentityError."""
        known = {"run": self.run, "enrol_addresses": self.enrol_addresses, "session_addresses": self.session_addresses}
        try:
            write_whole(self.directory / CA_FILE, self.credential.ca)
            write_whole(self.directory / CERTIFICATE_FILE, self.credential.certificate)
            write_whole(self.directory / RUN_FILE, json.dumps(known, indent=2).encode())
        except OSError as error:
            reason = f"the certificate cannot be kept in {self.directory}: {error.strerror or error}"
            raise IdentityError(reason, "make room there, or make it writable") from error


_ANEW = "remove the directory and join with an invite"


def enrolled_in(directory: Path) -> bool:
    """Whether this directory holds credentials."""
    return (directory / RUN_FILE).is_file()


def load(directory: Path) -> Credentials:
    """The credentials in `directory`. Raises IdentityError."""
    try:
        known = json.loads(read_private(directory / RUN_FILE))
        run, addresses = known["run"], {key: tuple(known[key]) for key in ("enrol_addresses", "session_addresses")}
    except (ValueError, KeyError, TypeError) as error:
        raise IdentityError(f"{directory / RUN_FILE} is damaged", _ANEW) from error
    if not is_run_name(run):
        raise IdentityError(f"{directory / RUN_FILE} names no run", _ANEW)
    try:
        identity = Identity.load(directory)
        certificate, ca = (_read_certificate(directory / name) for name in (CERTIFICATE_FILE, CA_FILE))
    except IdentityError as error:
        raise IdentityError(error.message, error.fix or _ANEW) from error
    return Credentials(run, identity, Credential(identity.tls_key_pem, certificate, ca), **addresses, directory=directory)


def _read_certificate(path: Path) -> bytes:
    content = read_private(path)
    try:
        x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise IdentityError(f"{path} is not a certificate") from error
    return content


async def come_in(directory: Path, invite: Invite | None) -> Credentials:
    """Credentials that are valid now: those in `directory`, or new ones from the coordinator. Raises ShoalError.

    Without an invite the directory must hold an identity that enrolled before. Addresses in an invite replace the known ones.
    """
    known = load(directory) if enrolled_in(directory) else None
    if invite is None:
        if known is None:
            raise InviteError("this machine is in no run yet", "join with the line that the run's operator gave you")
        invite = _again(known)
    if known is None:
        return await enrol(invite, directory)
    if known.run != invite.run:
        raise IdentityError(f"{directory} holds an identity of run {known.run!r}, the invite is for {invite.run!r}", "name another")
    if known.credential.ca != invite.ca_pem:
        return await enrol(invite, directory)
    moved = replace(known, enrol_addresses=invite.enrol_addresses, session_addresses=invite.session_addresses)
    if moved != known:
        moved.save()
    owner = moved.credential.owner
    if owner.not_before.timestamp() <= time.time() < moved.renew_at:
        return moved
    try:
        return await enrol(invite, directory)
    except UnreachableError:
        if owner.not_before.timestamp() <= time.time() < owner.expires_at.timestamp():
            return moved  # losing the coordinator is normal; the keeper asks again
        raise


async def enrol(invite: Invite, directory: Path) -> Credentials:
    """Ask the coordinator for a certificate for the identity in `directory` (made when missing). Raises ShoalError."""
    return await _enrol(Identity.load_or_create(directory), directory, invite)


async def renew(current: Credentials) -> Credentials:
    """A newer certificate for the same identity, asked for with the one that is still valid. Raises ShoalError."""
    identity = current.identity
    request = Renew(current.run, identity.public_key, identity.tls_public_key, identity.binding(current.run))
    credentials = client_credentials(current.credential)

    async def ask(address: str) -> Enrolled:
        async with open_channel(Kind.SESSION, address, credentials, current.server_name) as channel:
            return await RENEW.call(channel, request, ANSWER_S)

    reply = await _first_answer(current.session_addresses, ask, current.ca, current.server_name, "renew the certificate")
    renewed = _accepted(reply, identity, current.credential.ca, current.run, current.enrol_addresses, current.directory)
    renewed.save()
    return renewed


def _again(known: Credentials) -> Invite:
    """What an enrolled identity asks with: its signature is enough, so the token is a placeholder."""
    return Invite(known.run, known.enrol_addresses, known.session_addresses, known.credential.ca, "again")


async def _enrol(identity: Identity, directory: Path, invite: Invite) -> Credentials:
    server_name = coordinator_name(invite.run)
    ca = invite.ca_pem.decode()
    binding = identity.binding(invite.run)
    request = Enrol(invite.run, invite.token, identity.public_key, identity.tls_public_key, binding)
    credentials = enrolment_credentials(invite.ca_pem)

    async def ask(address: str) -> Enrolled:
        async with open_channel(Kind.ENROLMENT, address, credentials, server_name) as channel:
            return await ENROL.call(channel, request, ANSWER_S)

    try:
        reply = await _first_answer(invite.enrol_addresses, ask, ca, server_name, "enrol")
    except RefusedError as error:
        if error.code == "permission-denied":
            raise InviteError(error.reason, error.fix) from error
        raise
    new = _accepted(reply, identity, invite.ca_pem, invite.run, invite.enrol_addresses, directory)
    if not new.session_addresses:
        new = replace(new, session_addresses=invite.session_addresses)
    try:
        new.check()
    except IdentityError as error:
        raise IdentityError(f"{error.message}{_clocks(reply)}", error.fix) from error
    new.save()
    return new


def _accepted(
    reply: Enrolled, identity: Identity, ca: bytes, run: str, enrol_addresses: tuple[str, ...], directory: Path
) -> Credentials:
    """Check an answer against what was asked for."""
    credential = Credential(identity.tls_key_pem, reply.certificate.encode(), ca)
    if reply.peer != identity.peer_id or credential.owner.peer != identity.peer_id:
        raise IdentityError(f"the coordinator certified {reply.peer[:40]!r} instead of {identity.peer_id}")
    if remark := clock_remark(reply):
        LOG.warning(remark)
    return Credentials(run, identity, credential, enrol_addresses, reply.session_addresses, directory)


def clock_remark(reply: Enrolled) -> str:
    """A sentence about this machine's clock, when it is far from the coordinator's; "" when it is not, or is not known."""
    ahead_s = time.time() - reply.now
    if not reply.now or abs(ahead_s) <= CLOCK_TOLERANCE_S:
        return ""
    way = "ahead of" if ahead_s > 0 else "behind"
    distance = f"{abs(ahead_s):.0f} s {way} the coordinator's"
    return f"this machine's clock says {utc()}, {distance}, which says {utc(reply.now)}: set it right"


def _clocks(reply: Enrolled) -> str:
    """What to add to a complaint about times: the coordinator's own, where it said so."""
    return f"; the coordinator's clock says {utc(reply.now)}" if reply.now else ""


async def _first_answer(addresses: Sequence[str], ask: Callable[[str], Any], ca: str, server_name: str, errand: str) -> Enrolled:
    """The answer of the first address that answers; the error of the last one that did not. A refusal is an answer."""
    failure: ShoalError = UnreachableError(f"no address to {errand} at")
    for address in addresses:
        try:
            reply: Enrolled = await ask(address)
            return reply
        except grpc.aio.AioRpcError as error:
            failure = await explain(error, address, ca, server_name, errand)
            if isinstance(failure, RefusedError) and failure.code == "permission-denied":
                break
    raise failure


class Keeper:
    """Holds the credentials that are valid now and keeps them so. `current` may be read from any thread."""

    def __init__(self, credentials: Credentials, tell: Callable[[str], None], rng: random.Random | None = None) -> None:
        self._current = credentials
        self._tell = tell
        self._rng = rng or random.Random()

    def current(self) -> Credentials:
        """The newest credentials."""
        return self._current

    def credential(self) -> Credential:
        """Their TLS half, as `tls.server_credentials` wants it."""
        return self._current.credential

    async def run(self) -> None:
        """Renew in time, for ever. A failure is told once, and tried again until it works."""
        told = ""
        while True:
            left = self._current.renew_at - time.time()
            if left > 0:
                await asyncio.sleep(min(left, LONGEST_SLEEP_S))
                continue
            try:
                self._current = await self._newer()
                if told:
                    self._tell("the certificate is renewed")
                told = ""
                if self._current.renew_at <= time.time():  # this clock is far ahead: asking again at once would change nothing
                    await asyncio.sleep(self._rng.uniform(*RETRY_S))
            except ShoalError as error:
                if str(error) != told:
                    told = str(error)
                    self._tell(f"cannot renew the certificate yet: {told}; it is tried again by itself")
                await asyncio.sleep(self._rng.uniform(*RETRY_S))

    async def _newer(self) -> Credentials:
        current = self._current
        if current.credential.owner.expires_at.timestamp() > time.time():
            return await renew(current)
        return await _enrol(current.identity, current.directory, _again(current))
