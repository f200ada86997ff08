"""The coordinator process: one run's directory, two ports, one core.

A table of contents: lock and replay the journal, open the ports, run the performer, leave in order. The port for sessions,
operators and renewals wants a certificate of the run's authority; the enrolment port shows one and asks for none, and serves
one method. Both say so when somebody comes to the wrong one. Rule: the first thing that fails ends the process, with one
sentence; the journal makes the next start go on where this one ended. Neighbours: `setup` makes the directory, `sessions`,
`operators` and `enrolment` serve the methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from shoal.coordinator.core import Core
from shoal.coordinator.dialback import DialBacks
from shoal.coordinator.enrolment import CERTIFICATE_LIFETIME, Registry
from shoal.coordinator.journal import Journal, JournalError, journal_url
from shoal.coordinator.operators import Operators
from shoal.coordinator.performer import Machine, Performer
from shoal.coordinator.records import RunCreated
from shoal.coordinator.sessions import Sessions, host_of
from shoal.coordinator.setup import RunDirectory, Settings, SetupError, with_overrides, write_admin_credential
from shoal.protocol import channels
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply
from shoal.protocol.authority import Authority, coordinator_name
from shoal.protocol.channels import Kind, new_server, split_address
from shoal.protocol.enrolment import Enrol, Enrolled, Look, Looked, Renew
from shoal.protocol.errors import IdentityError, InviteError, ListenError, RefusedError, ShoalError
from shoal.protocol.identity import Identity
from shoal.protocol.services import ADMIN, ENROL, LOOK, RENEW, SESSION, Served, handlers
from shoal.protocol.signals import interrupted
from shoal.protocol.spec import RunSpec
from shoal.protocol.tls import Caller, Credential, caller_of, server_credentials, utc

LEAVE_S = 1.0
"""How long calls in flight may take to end when the coordinator stops."""
SERVER_LIFETIME = datetime.timedelta(days=365)
"""Of the coordinator's own certificate; a start makes a new one, and so does half of this time."""

LOG = logging.getLogger("shoal.coordinator")
Say = Callable[[str, str], None]
Ask = Callable[[AdminCommand], Awaitable[AdminReply | AdminError]]
Beside = Callable[[Ask], contextlib.AbstractAsyncContextManager[object]]
"""Something that runs for as long as the coordinator serves and may ask its core what an operator may ask: metrics, say."""
Reply = TypeVar("Reply")


async def serve(
    directory: Path | str,
    *,
    listen: str = "",
    enrol_listen: str = "",
    advertise: str = "",
    say: Say | None = None,
    stop: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
    core: Callable[[RunSpec], Machine] = Core,
    certificate_lifetime: datetime.timedelta = CERTIFICATE_LIFETIME,
    beside: Beside | None = None,
) -> None:
    """Serve the run in `directory` until SIGINT, SIGTERM or `stop`. Raises ShoalError with one clear sentence when it cannot.

    Addresses that are given replace the kept ones, and are kept. `say(text, level)` gets what is worth telling (default: the log);
    `ready` is set when peers can come; `beside` runs meanwhile.
    """
    say = say or _log
    place = RunDirectory(Path(directory))
    settings = with_overrides(place.load_settings(), listen, enrol_listen, advertise)
    stop = stop or asyncio.Event()
    with interrupted(stop), contextlib.closing(Journal.open(journal_url(place.journal))) as journal:
        machine = _replayed(journal, core, place)
        authority = Authority.load(place.authority)
        addresses = settings.addresses()
        registry = Registry(authority, journal, addresses, certificate_lifetime)
        own = _OwnCertificate(authority)
        tests = DialBacks(authority.run, own.current, lambda found: performer.dialled_back(found))
        performer = Performer(machine, journal, say, registry.bar, tests)
        sessions = Sessions(performer, registry.valid_until, performer.tell)
        owner = Identity.load_or_create(place.admin).peer_id
        operators = Operators(performer, journal, registry, sessions.certificate_until, owner)
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        company = beside(lambda command: performer.ask("", command)) if beside is not None else contextlib.nullcontext()
        async with _ports(settings, own, sessions, operators, registry, broken, performer.begin), company:
            place.save_settings(settings)
            write_admin_credential(place, authority, addresses)
            say(
                f"run {authority.run!r}: sessions at {', '.join(addresses.session)}, enrolment at {', '.join(addresses.enrolment)}",
                "info",
            )
            running = asyncio.create_task(performer.run())
            stopping = asyncio.create_task(stop.wait())
            if ready is not None:
                ready.set()
            try:
                ends: set[asyncio.Future[Any]] = {running, broken, stopping}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for ended in (running, broken):
                    if ended.done():
                        ended.result()
                say("the coordinator stops; peers wait for it and come back when it is served again", "info")
            finally:
                sessions.close_all("the coordinator stops")
                await tests.close()
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)


def _replayed(journal: Journal, core: Callable[[RunSpec], Machine], place: RunDirectory) -> Machine:
    """A core that knows everything the journal holds."""
    machine: Machine | None = None
    for record in journal.records():
        if machine is None:
            if not isinstance(record, RunCreated):
                raise SetupError(f"{place.journal} does not begin with its run", "it is damaged: restore it from a copy")
            machine = core(RunSpec.from_json(record.spec))
        machine.replay(record)
    if machine is None:
        raise SetupError(f"{place.journal} is empty", f"make a run with `shoal coordinator init {place.root}`")
    return machine


# --- ports ----------------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _ports(
    settings: Settings,
    own: _OwnCertificate,
    sessions: Sessions,
    operators: Operators,
    registry: Registry,
    broken: asyncio.Future[None],
    begin: Callable[[], Awaitable[None]],
) -> AsyncIterator[None]:
    """Both servers, listening. Their calls end with the block. `broken` gets the JournalError of a call that met one; `begin` is
    awaited when the ports are ours and before anybody is answered."""
    members = new_server(Kind.SESSION)
    members.add_generic_rpc_handlers(
        handlers(
            SESSION.serve(_session(sessions)),
            ADMIN.serve(_admin(operators, broken)),
            RENEW.serve(_renew(registry, broken)),
            _wrong_port_for(ENROL.path),
        )
    )
    newcomers = new_server(Kind.ENROLMENT)
    newcomers.add_generic_rpc_handlers(
        handlers(
            ENROL.serve(_enrol(registry, broken)),
            LOOK.serve(_look(registry, broken)),
            *(_wrong_port_for(method.path) for method in (ADMIN, RENEW)),
            _wrong_port_for_sessions(),
        )
    )
    _listen(members, settings.listen, server_credentials(own.current))
    _listen(newcomers, settings.enrol_listen, server_credentials(own.current, ask_for_certificate=False))
    try:
        await begin()
        await members.start()
        await newcomers.start()
        yield
    finally:
        await asyncio.gather(members.stop(LEAVE_S), newcomers.stop(LEAVE_S))


class _OwnCertificate:
    """The coordinator's TLS key and certificate, made in memory and replaced long before it ends."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._identity = Identity.generate()
        self._made_at = 0.0
        self._credential = self.current()

    def current(self) -> Credential:
        """A valid one. Called by gRPC's threads for every connection."""
        now = time.time()
        if not 0 <= now - self._made_at < SERVER_LIFETIME.total_seconds() / 2:
            name = coordinator_name(self._authority.run)
            certificate = self._authority.issue(self._identity.tls_public_key, name, {"coordinator"}, SERVER_LIFETIME)
            self._credential = Credential(self._identity.tls_key_pem, certificate, self._authority.ca_pem)
            self._made_at = now
        return self._credential


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials) -> None:
    try:
        channels.listen(server, address, credentials)
    except ListenError as error:
        fix = "stop it (is this run served already?), or serve with other ports (--listen, --enrol-listen)"
        if _in_use(address):
            raise ListenError(f"cannot listen on {address}: another program has port {split_address(address)[1]}", fix) from error
        raise


def _in_use(address: str) -> bool:
    """Whether a port is taken, rather than its address not ours: gRPC does not say which."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


# --- methods --------------------------------------------------------------------------------------------------------------------


def _session(sessions: Sessions) -> Callable[[Any, Any], Any]:
    async def session(_requests: Any, context: Any) -> None:
        await sessions.serve(context)

    return session


def _admin(operators: Operators, broken: asyncio.Future[None]) -> Callable[[AdminCommand, Any], Any]:
    async def admin(command: AdminCommand, context: Any) -> AdminReply | AdminError:
        caller = await _valid(context)
        return await _or_end(operators.carry_out(caller.peer, caller.rights, command), context, broken)

    return admin


def _renew(registry: Registry, broken: asyncio.Future[None]) -> Callable[[Renew, Any], Any]:
    async def renew(request: Renew, context: Any) -> Enrolled:
        caller = await _valid(context)
        try:
            return await _or_end(asyncio.to_thread(registry.renew, request, caller.peer), context, broken)
        except (InviteError, IdentityError, RefusedError) as error:
            await _refuse(context, error)

    return renew


def _enrol(registry: Registry, broken: asyncio.Future[None]) -> Callable[[Enrol, Any], Any]:
    async def enrol(request: Enrol, context: Any) -> Enrolled:
        try:
            return await _or_end(asyncio.to_thread(registry.enrol, request), context, broken)
        except (InviteError, IdentityError, RefusedError) as error:
            await _refuse(context, error)

    return enrol


def _look(registry: Registry, broken: asyncio.Future[None]) -> Callable[[Look, Any], Any]:
    async def look(request: Look, context: Any) -> Looked:
        return await _or_end(asyncio.to_thread(registry.look, request, host_of(context.peer())), context, broken)

    return look


async def _valid(context: Any) -> Caller:
    """Who calls, if its certificate is good now: gRPC looked at its dates when the connection was made, which may be days ago."""
    caller = caller_of(context)
    ends = caller.expires_at.timestamp()
    if ends <= time.time():
        reason = f"the certificate of {caller.peer} expired at {utc(ends)}; the coordinator's clock says {utc()}"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
    return caller


async def _or_end(work: Awaitable[Reply], context: Any, broken: asyncio.Future[None]) -> Reply:
    """What a call comes to. A journal that fails ends this process, and is nothing that the caller did wrong."""
    try:
        return await work
    except JournalError as error:
        if not broken.done():
            broken.set_exception(error)
        await context.abort(grpc.StatusCode.INTERNAL, "the coordinator cannot use its journal, and ends")
        raise AssertionError("abort raises") from error


async def _refuse(context: Any, error: ShoalError) -> NoReturn:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
    raise AssertionError("abort raises")


def _wrong_port_for(path: str) -> Served:
    async def answer(_data: bytes, context: Any) -> bytes:
        await _point_out(context)
        return b""

    return Served(path, grpc.unary_unary_rpc_method_handler(answer))


def _wrong_port_for_sessions() -> Served:
    async def answer(_requests: Any, context: Any) -> None:
        await _point_out(context)

    return SESSION.serve(answer)


async def _point_out(context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this is the other port of the coordinator")


# --- the process ----------------------------------------------------------------------------------------------------------------


def _log(text: str, level: str) -> None:
    LOG.log(logging.getLevelNamesMapping()[level.upper()], text)
