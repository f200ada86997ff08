"""What `shoal admin` and programs use to ask a coordinator: one command, one answer.

Rule: a refusal and a failure are exceptions with one clear sentence, so that whoever forgets to look at the answer still fails.
Neighbours: `coordinator.operators` is the other end; the credential is the `admin` directory that `coordinator init` made, or
one like it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from shoal.peer.diagnosis import explain
from shoal.peer.enrol import Credentials, enrolled_in, load
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply, GetPeers, Grant, Granted, Peers, PeerView
from shoal.protocol.channels import Kind, open_channel
from shoal.protocol.errors import IdentityError, RefusedError, ShoalError, UnreachableError
from shoal.protocol.identity import Identity
from shoal.protocol.services import ADMIN
from shoal.protocol.tls import Credential, client_credentials

ANSWER_S = 10.0
Answer = TypeVar("Answer", bound=AdminReply | AdminError)


def call(directory: Path | str, command: AdminCommand, timeout_s: float = ANSWER_S) -> AdminReply:
    """The coordinator's answer. `directory` is a run's directory or a credential's. Raises ShoalError."""
    return asyncio.run(ask(directory, command, timeout_s))


def run_of(directory: Path | str) -> str:
    """The name of the run that `call` asks about. Raises ShoalError."""
    return _credentials(Path(directory)).run


def grant(directory: Path | str, role: str, to: Path, name: str, days: float) -> Granted:
    """Make a credential for another operator in `to`, with what the one in `directory` may do. Raises ShoalError; then `to` is
    left as it was."""
    mine = _credentials(Path(directory))
    existed = to.exists()
    if existed and (not to.is_dir() or any(to.iterdir())):
        raise IdentityError(f"{to} exists and is not empty", "name a new directory")
    try:
        identity = Identity.create(to)
        request = Grant(role, name, identity.public_key, identity.tls_public_key, identity.binding(mine.run), days)
        granted = call(directory, request)
        assert isinstance(granted, Granted)
        credential = Credential(identity.tls_key_pem, granted.certificate.encode(), mine.credential.ca)
        Credentials(mine.run, identity, credential, mine.enrol_addresses, mine.session_addresses, to).save()
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        if existed:
            to.mkdir()
        raise
    return granted


async def ask(directory: Path | str, command: AdminCommand, timeout_s: float = ANSWER_S) -> AdminReply:
    """Like `call`, inside an event loop."""
    if command == GetPeers():
        return await everybody(lambda piece: _ask(directory, piece, timeout_s))
    return await _ask(directory, command, timeout_s)


async def everybody(ask: Callable[[AdminCommand], Awaitable[Answer]]) -> Answer | Peers:
    """All members, whose list comes in pieces; or what else was answered."""
    members: tuple[PeerView, ...] = ()
    while True:
        reply = await ask(GetPeers(members[-1].session if members else 0))
        if not isinstance(reply, Peers):
            return reply
        members += reply.peers
        if not reply.more or not reply.peers:
            return Peers(members)


async def _ask(directory: Path | str, command: AdminCommand, timeout_s: float) -> AdminReply:
    mine = _credentials(Path(directory))
    mine.check()
    failure: ShoalError = UnreachableError("the credential names no address", "serve the run once")
    for address in mine.session_addresses:
        try:
            channel = open_channel(Kind.SESSION, address, client_credentials(mine.credential), mine.server_name)
            async with channel:
                reply = await ADMIN.call(channel, command, timeout_s)
        except grpc.aio.AioRpcError as error:
            failure = await explain(error, address, mine.ca, mine.server_name, "ask the coordinator")
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                break  # the command may have arrived: asking again elsewhere could carry it out twice
            continue
        if isinstance(reply, AdminError):
            raise RefusedError("refused", reply.reason, reply.fix)
        return reply
    raise failure


def _credentials(directory: Path) -> Credentials:
    for place in (directory, directory / "admin"):
        if enrolled_in(place):
            return load(place)
    raise IdentityError(f"{directory} holds no credential", "name the coordinator's directory")
