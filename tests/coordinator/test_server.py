"""A real coordinator on loopback with real mutual TLS, a small core inside, and scripted peers outside."""

from __future__ import annotations

import asyncio
import datetime
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from shoal.adminclient import ask, grant
from shoal.coordinator.claims import LINES
from shoal.coordinator.core import Core
from shoal.coordinator.events import (
    Answer,
    Asked,
    Close,
    Connected,
    DialledBack,
    Disconnected,
    Effect,
    Event,
    Journal,
    Said,
    Send,
    TimePassed,
)
from shoal.coordinator.journal import Journal as JournalFile
from shoal.coordinator.journal import JournalError, journal_url
from shoal.coordinator.performer import Machine
from shoal.coordinator.records import PauseSet, Record, TermRaised
from shoal.coordinator.server import serve
from shoal.coordinator.sessions import OUTBOX, host_of
from shoal.coordinator.setup import SetupError, init
from shoal.peer import diagnosis
from shoal.peer.enrol import Credentials, Keeper, come_in, enrol, load, renew
from shoal.peer.events import Heard, Offline, Online
from shoal.peer.session import GrpcDial, SessionLink
from shoal.protocol.admin import (
    AdminCommand,
    Ban,
    Done,
    Events,
    GetEvents,
    GetPeers,
    GetStatus,
    Invitation,
    MakeInvite,
    Pause,
    Peers,
    Resume,
    Status,
    Unban,
)
from shoal.protocol.channels import Kind, open_channel
from shoal.protocol.enrolment import Renew
from shoal.protocol.errors import (
    IdentityError,
    InviteError,
    ListenError,
    RefusedError,
    RemoteProtocolError,
    ShoalError,
    UnreachableError,
)
from shoal.protocol.identity import Identity
from shoal.protocol.invites import Invite, parse
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Barred,
    Dismissed,
    Envelope,
    Heartbeat,
    Hello,
    Notice,
    Refused,
    Welcome,
)
from shoal.protocol.services import ADMIN, RENEW, SESSION
from shoal.protocol.spec import RunSpec
from shoal.protocol.tls import client_credentials, enrolment_credentials
from shoal.protocol.wire import pack

SPEC = RunSpec.of(run={"name": "demo", "total_tokens": 1_000_000, "min_peers": 2})


class SmallCore:
    """Answers a heartbeat with a notice, "kick" with a dismissal and a close, and remembers all it was told."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.wake_at: float | None = None
        self.replayed: list[Record] = []
        self.heard: list[Event] = []
        self.flood = 0

    def replay(self, record: Record) -> None:
        self.replayed.append(record)

    def start(self, now: float) -> list[Effect]:
        terms = [record.term for record in self.replayed if isinstance(record, TermRaised)]
        return [Journal(TermRaised(max(terms, default=0) + 1))]

    def on(self, event: Event, now: float) -> list[Effect]:
        self.heard.append(event)
        match event:
            case Said(connection, Envelope(_, _, Heartbeat("kick"))):
                return [Send(connection, Envelope(1, 1, Dismissed("kicked", False))), Close(connection)]
            case Said(connection, Envelope(_, _, Heartbeat("flood"))):
                return [Send(connection, Envelope(1, 1, Notice("x" * 16_000))) for _ in range(self.flood)]
            case Said(connection, Envelope(_, _, Heartbeat(_, steps))):
                return [Send(connection, Envelope(1, 1, Notice("echo", steps)))]
            case Asked(request, by, command):
                return [Journal(PauseSet(True, by)), Answer(request, Done(type(command).__name__))]
            case Connected() | Disconnected() | TimePassed() | Said() | DialledBack():
                return []

    def connected(self) -> list[Connected]:
        return [event for event in self.heard if isinstance(event, Connected)]


@dataclass
class Running:
    """A coordinator that serves."""

    directory: Path
    core: Any
    task: asyncio.Task[None]
    stop: asyncio.Event
    said: list[str] = field(default_factory=list)


@asynccontextmanager
async def serving(directory: Path, core: Callable[[RunSpec], Machine] = SmallCore, **more: Any) -> AsyncIterator[Running]:
    made: list[Machine] = []
    said: list[str] = []

    def make(spec: RunSpec) -> Machine:
        made.append(core(spec))
        return made[0]

    ready, stop = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        serve(directory, say=lambda text, level: said.append(text), stop=stop, ready=ready, core=make, **more)
    )
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    try:
        yield Running(directory, made[0], task, stop, said)
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Invite]:
    directory = tmp_path / "run"
    return directory, init(directory, SPEC, listen="127.0.0.1:0", enrol_listen="127.0.0.1:0")


class Peer:
    """A scripted peer: the real link, and what it emitted and told."""

    def __init__(self, credentials: Credentials) -> None:
        self.events: list[Online | Heard | Offline] = []
        self.told: list[str] = []
        self.link = SessionLink(credentials.session_addresses, GrpcDial(lambda: credentials), self.events.append, self.told.append)
        self.task = asyncio.create_task(self.link.run())

    @property
    def heard(self) -> list[object]:
        return [event.envelope.body for event in self.events if isinstance(event, Heard)]

    async def online(self) -> None:
        await until(lambda: self.link.online)

    async def leave(self) -> None:
        self.link.close()
        await asyncio.wait_for(self.task, 5)


@asynccontextmanager
async def peer(credentials: Credentials) -> AsyncIterator[Peer]:
    one = Peer(credentials)
    await one.online()
    try:
        yield one
    finally:
        await one.leave()


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


def beat(phase: str, steps: int = 0) -> Envelope:
    return Envelope(1, 1, Heartbeat(phase, steps))


async def test_a_peer_enrols_opens_a_session_and_is_known_by_its_certificate(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory) as coordinator:
        credentials = await come_in(tmp_path / "p", parse(invite.line()))
        async with peer(credentials) as one:
            for steps in range(5):
                one.link.say(beat("training", steps))
            await until(lambda: len(one.heard) == 5)
            assert one.heard == [Notice("echo", steps) for steps in range(5)]
        await until(lambda: isinstance(coordinator.core.heard[-1], Disconnected))
    assert coordinator.core.heard[0] == Connected(1, credentials.peer, frozenset({"peer", "reducer"}), "127.0.0.1")
    assert coordinator.core.heard[-1] == Disconnected(1)


async def test_what_the_core_says_last_arrives_before_the_stream_ends(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory) as coordinator, peer(await come_in(tmp_path / "p", invite)) as one:
        one.link.say(beat("kick"))
        await until(lambda: any(isinstance(event, Offline) for event in one.events))
        assert one.events[:3] == [
            Online(),
            Heard(Envelope(1, 1, Dismissed("kicked", False))),
            Offline("the coordinator ended the stream"),
        ]
        await until(lambda: Disconnected(1) in coordinator.core.heard)


async def test_a_restart_takes_the_same_ports_and_replays_what_was_journaled(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    credentials = await come_in_at(directory, invite, tmp_path / "p")
    one = Peer(credentials)
    try:
        for term in (2, 3):
            async with serving(directory) as coordinator:
                await one.online()
                one.link.say(beat("training", term))
                await until(lambda: Notice("echo", term) in one.heard)  # noqa: B023 - awaited at once
                records = coordinator.core.replayed
                assert [record.term for record in records if isinstance(record, TermRaised)] == list(range(1, term))
            await until(lambda: not one.link.online)
    finally:
        await one.leave()


async def come_in_at(directory: Path, invite: Invite, place: Path) -> Credentials:
    """Enrol with a coordinator that lives only for that."""
    async with serving(directory):
        return await come_in(place, invite)


async def test_stopping_with_open_streams_is_quick_and_tells_the_peers(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory) as coordinator:
        one = Peer(await come_in(tmp_path / "p", invite))
        await one.online()
        began = time.monotonic()
        coordinator.stop.set()
        await coordinator.task
        assert time.monotonic() - began < 3
        await until(lambda: Offline("the coordinator stops") in one.events)
        await one.leave()


async def test_a_peer_that_does_not_read_is_cut_off_and_others_are_served_meanwhile(
    run: tuple[Path, Invite], tmp_path: Path
) -> None:
    directory, invite = run
    async with serving(directory) as coordinator:
        coordinator.core.flood = OUTBOX + 500
        stuck, lively = await come_in(tmp_path / "stuck", invite), await come_in(tmp_path / "lively", invite)
        async with (
            open_channel(
                Kind.SESSION, stuck.session_addresses[0], client_credentials(stuck.credential), stuck.server_name
            ) as channel,
            peer(lively) as other,
        ):
            call = SESSION.stub(channel)()
            await call.wait_for_connection()
            await call.write(pack(beat("flood")))
            other.link.say(beat("training", 7))
            await until(lambda: Notice("echo", 7) in other.heard)
            await until(lambda: any("takes no messages" in line for line in coordinator.said))
            number = next(event.connection for event in coordinator.core.connected() if event.peer == stuck.peer)
            await until(lambda: Disconnected(number) in coordinator.core.heard)
            call.cancel()


async def test_garbage_on_a_stream_closes_that_stream_with_the_reason(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    welcome = pack(Envelope(1, 1, Welcome(1, 1, False, 0, b"", 1.0, 2.0)))
    async with serving(directory) as coordinator:
        one = await come_in(tmp_path / "p", invite)
        async with open_channel(
            Kind.SESSION, one.session_addresses[0], client_credentials(one.credential), one.server_name
        ) as channel:
            for message, words in ((b"\xff\xff\xff", "malformed"), (welcome, "may not say Welcome")):
                call = SESSION.stub(channel)()
                await call.write(message)
                with pytest.raises(grpc.aio.AioRpcError, match=words) as ended:
                    await asyncio.wait_for(call.read(), 5)
                assert ended.value.code() is grpc.StatusCode.ABORTED
        assert not any(isinstance(event, Said) for event in coordinator.core.heard)


# --- enrolment ------------------------------------------------------------------------------------------------------------------


async def test_an_invite_for_one_admits_one_and_lets_that_one_come_back(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, _ = run
    async with serving(directory):
        made = await ask(directory, MakeInvite(uses=1, hours=1))
        assert isinstance(made, Invitation)
        invite = parse(made.line)
        first = await enrol(invite, tmp_path / "a")
        with pytest.raises(InviteError, match="used up"):
            await enrol(invite, tmp_path / "b")
        again = await enrol(invite, tmp_path / "a")
        assert again.peer == first.peer
        assert again.credential.certificate != first.credential.certificate
        expire(tmp_path / "a", directory)
        plain = await come_in(tmp_path / "a", None)
        plain.check()
        assert plain.peer == first.peer


def expire(place: Path, directory: Path) -> None:
    """Give the identity in `place` a certificate that ended yesterday."""
    from shoal.protocol.authority import Authority

    known = load(place)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    old = Authority.load(directory / "authority").issue(
        known.identity.tls_public_key, known.peer, {"peer"}, datetime.timedelta(hours=1), yesterday - datetime.timedelta(hours=1)
    )
    replace(known, credential=replace(known.credential, certificate=old)).save()


async def test_a_wrong_token_and_another_run_are_refused_in_words(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory):
        with pytest.raises(InviteError, match="does not know this invite"):
            await enrol(replace(invite, token="guess"), tmp_path / "a")
        with pytest.raises(IdentityError, match=r"127\.0\.0\.1:\d+ is coordinator\.demo, not coordinator\.other"):
            await enrol(replace(invite, run="other"), tmp_path / "b")
        with pytest.raises(InviteError, match="in no run yet"):
            await come_in(tmp_path / "c", None)


async def test_a_coordinator_that_was_made_anew_is_told_apart_from_one_that_is_down(
    run: tuple[Path, Invite], tmp_path: Path
) -> None:
    _, invite = run
    with pytest.raises(UnreachableError, match=r"nobody listens at 127\.0\.0\.1:\d+ \(connection refused\)"):
        await enrol(invite, tmp_path / "a")
    other = init(tmp_path / "anew", SPEC, listen=invite.session_addresses[0], enrol_listen=invite.enrol_addresses[0])
    assert other.enrol_addresses == invite.enrol_addresses
    async with serving(tmp_path / "anew"):
        with pytest.raises(IdentityError, match="another authority signed its certificate"):
            await enrol(invite, tmp_path / "a")


async def test_a_certificate_for_somebody_elses_identity_cannot_be_asked_for(run: tuple[Path, Invite], tmp_path: Path) -> None:
    from shoal.protocol.enrolment import Enrol
    from shoal.protocol.services import ENROL

    directory, invite = run
    async with serving(directory):
        victim = await enrol(invite, tmp_path / "victim")
        thief = Identity.generate()
        request = Enrol("demo", "x", victim.identity.public_key, thief.tls_public_key, thief.binding("demo"))
        async with open_channel(
            Kind.ENROLMENT, invite.enrol_addresses[0], enrolment_credentials(invite.ca_pem), "coordinator.demo"
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ENROL.call(channel, request, 5)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_whoever_only_looks_learns_the_time_and_gets_bytes_only_with_a_good_invite(run: tuple[Path, Invite]) -> None:
    from shoal.protocol.enrolment import LOOK_LIMIT_BYTES, Look
    from shoal.protocol.services import LOOK

    directory, invite = run
    async with (
        serving(directory),
        open_channel(
            Kind.ENROLMENT, invite.enrol_addresses[0], enrolment_credentials(invite.ca_pem), "coordinator.demo"
        ) as channel,
    ):
        for _ in range(20):  # more often than the invite has uses
            good = await LOOK.call(channel, Look("demo", invite.token, b"x" * LOOK_LIMIT_BYTES, 1 << 40), 5)
        assert (good.seen_from, good.trouble, len(good.payload)) == ("127.0.0.1", "", LOOK_LIMIT_BYTES)
        assert abs(good.now - time.time()) < 5
        for question, words in (
            (Look("demo", "guessed", want_bytes=99), "this run does not know this invite"),
            (Look("other", invite.token, want_bytes=99), "this coordinator serves run 'demo', not 'other'"),
        ):
            answer = await LOOK.call(channel, question, 5)
            assert words in answer.trouble
            assert answer.payload == b""


# --- wrong doors ----------------------------------------------------------------------------------------------------------------


async def test_the_two_ports_mixed_up_give_sentences_that_say_so(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory):
        credentials = await come_in(tmp_path / "p", invite)
        with pytest.raises(RefusedError, match="other port of the coordinator.*sessions and enrolment have different ones"):
            await GrpcDial(lambda: credentials)(invite.enrol_addresses[0])
        with pytest.raises(ShoalError, match="certificate"):
            await enrol(replace(invite, enrol_addresses=invite.session_addresses), tmp_path / "q")


async def test_an_operators_credential_does_not_let_anybody_take_part(run: tuple[Path, Invite]) -> None:
    directory, _ = run
    async with serving(directory) as coordinator:
        operator = load(directory / "admin")
        link = SessionLink(operator.session_addresses, GrpcDial(lambda: operator), lambda event: None, lambda text: None)
        with pytest.raises(RefusedError, match=f"the certificate of {operator.peer} does not allow to take part"):
            await asyncio.wait_for(link.run(), 10)
        assert coordinator.core.heard == []


async def test_something_that_does_not_speak_tls_and_something_silent_are_told_apart(
    run: tuple[Path, Invite], tmp_path: Path
) -> None:
    _, invite = run

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(RefusedError, match=f"{address} answers but does not speak TLS"):
            await enrol(replace(invite, enrol_addresses=(address,)), tmp_path / "p")
    with pytest.raises(UnreachableError, match="the name 'no-such-host.invalid' .* does not resolve"):
        await enrol(replace(invite, enrol_addresses=("no-such-host.invalid:7601",)), tmp_path / "p")


async def test_a_coordinator_that_is_frozen_or_just_dying_is_not_called_something_else(
    run: tuple[Path, Invite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, invite = run
    monkeypatch.setattr(diagnosis, "PROBE_S", 0.3)

    async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts, nobody answers
        port = frozen.getsockname()[1]
        found = await asyncio.to_thread(diagnosis.probe, f"127.0.0.1:{port}", invite.ca_pem.decode(), "any")
        assert isinstance(found, UnreachableError)
        assert f"somebody listens at 127.0.0.1:{port}, but did not answer" in str(found)
    server = await asyncio.start_server(dying, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"{address} closed the connection at once"):
            await enrol(replace(invite, enrol_addresses=(address,)), tmp_path / "p")


async def test_the_first_address_that_works_is_used(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{closed.getsockname()[1]}"
            await enrol(replace(invite, enrol_addresses=(dead, *invite.enrol_addresses)), tmp_path / "p")


async def test_peers_with_an_old_or_too_new_certificate_are_told_both_times(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory):
        await come_in(tmp_path / "p", invite)
        expire(tmp_path / "p", directory)
        old = load(tmp_path / "p")
        with pytest.raises(IdentityError, match=r"certificate expired at \d{4}-.* UTC; this machine's clock says \d{4}-"):
            await GrpcDial(lambda: old)(old.session_addresses[0])


async def test_a_peer_whose_clock_is_behind_the_certificates_is_told_both_times(
    run: tuple[Path, Invite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, invite = run
    from shoal.peer import diagnosis

    async with serving(directory):
        credentials = await come_in(tmp_path / "p", invite)
        yesterday = time.time() - 86_400
        monkeypatch.setattr(diagnosis.time, "time", lambda: yesterday)
        with pytest.raises(IdentityError, match=r"is valid from \d{4}-.* UTC, but this machine's clock says \d{4}-.*set the clock"):
            await GrpcDial(lambda: credentials)(credentials.session_addresses[0])


# --- certificates that end --------------------------------------------------------------------------------------------------------


async def test_an_open_stream_ends_with_its_certificate_and_a_renewed_one_goes_on(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory, certificate_lifetime=datetime.timedelta(seconds=6)) as coordinator:
        lapsed, kept = await come_in(tmp_path / "lapsed", invite), await come_in(tmp_path / "kept", invite)
        ends = kept.credential.owner.expires_at.timestamp()
        keeper = Keeper(SoonRenewed(**vars(kept)), lambda text: None)
        renewing = asyncio.create_task(keeper.run())
        async with peer(lapsed) as one, peer(kept) as two:
            await until(lambda: any(isinstance(event, Offline) for event in one.events))
            assert time.time() >= ends - 1.1
            [offline] = [event for event in one.events if isinstance(event, Offline)]
            assert "expired" in offline.reason
            await asyncio.sleep(max(0.0, ends + 0.5 - time.time()))
            two.link.say(beat("training", 9))
            await until(lambda: Notice("echo", 9) in two.heard)
            assert two.events.count(Online()) == 1
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        assert load(tmp_path / "kept").credential.owner.expires_at.timestamp() > ends
        assert coordinator.core.connected()


async def test_operators_see_when_a_certificate_ends_and_are_warned_when_its_renewal_is_overdue(
    run: tuple[Path, Invite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, invite = run
    monkeypatch.setattr("shoal.coordinator.enrolment.WARN_AT", 0.5)
    async with serving(directory, Core, certificate_lifetime=datetime.timedelta(seconds=8)):
        credentials = await come_in(tmp_path / "p", invite)
        ends = credentials.credential.owner.expires_at.timestamp()
        async with peer(credentials) as one:
            one.link.say(hello())
            await until(lambda: bool(one.heard))
            fresh = await ask(directory, GetPeers())
            await asyncio.sleep(max(0.0, ends - 3.0 - time.time()))
            overdue = await ask(directory, GetPeers())
            assert isinstance(fresh, Peers)
            assert isinstance(overdue, Peers)
            assert [(view.certificate_until, view.warning) for view in fresh.peers] == [(ends, "")]
            assert re.match(r"its certificate ends at \d{4}-.* UTC, in [0-3] s, and was not renewed", overdue.peers[0].warning)
            renewed = await renew(credentials)
            again = await ask(directory, GetPeers())
            assert isinstance(again, Peers)
            assert again.peers[0].certificate_until == renewed.credential.owner.expires_at.timestamp()
            assert not again.peers[0].warning


class SoonRenewed(Credentials):
    """Wants to be renewed a second and a half before it ends."""

    @property
    def renew_at(self) -> float:
        return self.credential.owner.expires_at.timestamp() - 1.5


# --- operators ------------------------------------------------------------------------------------------------------------------


async def test_changes_and_refusals_are_written_down_and_looking_is_not(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory):
        assert await ask(directory, Pause()) == Done("Pause")
        assert await ask(directory / "admin", Resume()) == Done("Resume")
        assert await ask(directory, GetStatus()) == Done("GetStatus")
        volunteer = await come_in(tmp_path / "p", invite)
        commands: list[AdminCommand] = [Pause(), *(GetStatus() for _ in range(LINES + 5))]
        for command in commands:
            with pytest.raises(RefusedError, match=f"certificate of {volunteer.peer} has no admin or observer right"):
                await ask(tmp_path / "p", command)
        with pytest.raises(RefusedError, match="cannot make an invite for 0 uses"):
            await ask(directory, MakeInvite(0, 1.0))
        seen = await ask(directory, GetEvents(100))
        assert isinstance(seen, Events)
    journal = JournalFile.open(journal_url(directory / "journal.db"))
    operator = load(directory / "admin").peer
    lines = [(line.who, line.what, line.result) for line in journal.audited()]
    pauses = [record.by for record in journal.records() if isinstance(record, PauseSet)]
    journal.close()
    assert lines == [
        (operator, "pause", "Pause"),
        (operator, "resume", "Resume"),
        (operator, "invite for 0 uses within 1 h", "refused: cannot make an invite for 0 uses within 1 hours"),
    ]
    assert pauses == [operator] * 3  # the small core writes this down whatever it is asked
    told = [event.text for event in seen.events]
    assert [text for text in told if "asked: " in text] == [
        f"operator {who[:8]} asked: {what}: {result}" for who, what, result in lines
    ]
    assert told.count(f"{volunteer.peer} asked what operators ask, and is none") == LINES, "and no more, however often it asks"


async def test_a_connection_outlives_no_right_to_it_for_operators_and_renewals(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory, certificate_lifetime=datetime.timedelta(seconds=8)):
        observer = await asyncio.to_thread(grant, directory, "observer", tmp_path / "eva", "eva", 8.0 / 86400)
        eva, bob = load(tmp_path / "eva"), await come_in(tmp_path / "bob", invite)
        renewal = Renew("demo", bob.identity.public_key, bob.identity.tls_public_key, bob.identity.binding("demo"))
        asked: list[tuple[Credentials, Any, Any]] = [(eva, ADMIN, GetStatus()), (bob, RENEW, renewal)]

        async def outlive(mine: Credentials, method: Any, request: Any) -> None:
            credentials = client_credentials(mine.credential)
            async with open_channel(Kind.SESSION, mine.session_addresses[0], credentials, mine.server_name) as channel:
                await method.call(channel, request, 5)
                await asyncio.sleep(mine.credential.owner.expires_at.timestamp() + 0.1 - time.time())
                with pytest.raises(grpc.aio.AioRpcError, match=r"expired at .* UTC; the coordinator's clock says") as refused:
                    await method.call(channel, request, 5)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

        await asyncio.gather(*(outlive(*one) for one in asked))
        assert observer.role == "observer"


async def test_events_go_on_from_a_number_and_outlive_the_coordinator(run: tuple[Path, Invite]) -> None:
    directory, _ = run
    async with serving(directory):
        await ask(directory, Pause())
        first = await ask(directory, GetEvents(10))
    async with serving(directory):
        await ask(directory, Resume())
        again = await ask(directory, GetEvents(10))
        assert isinstance(first, Events)
        newest = first.events[-1].number
        later = await ask(directory, GetEvents(10, after=newest))
    assert isinstance(again, Events)
    assert isinstance(later, Events)
    assert again.events[:1] == first.events
    assert again.events[1:] == later.events
    assert [event.text.split(": ", 1)[1] for event in again.events] == ["pause: Pause", "resume: Resume"]
    assert all(abs(event.at - time.time()) < 60 for event in again.events)


async def test_an_observer_may_look_and_not_act_until_it_is_banned(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, _ = run
    async with serving(directory, Core):
        granted = await asyncio.to_thread(grant, directory, "observer", tmp_path / "eva", "eva", 1.0)
        place = tmp_path / "eva"
        assert isinstance(await ask(place, GetStatus()), Status)
        with pytest.raises(RefusedError, match=f"certificate of {granted.peer} has no admin right"):
            await ask(place, Pause())
        with pytest.raises(RefusedError, match="no admin right"):
            await asyncio.to_thread(grant, place, "admin", tmp_path / "more", "eva too", 1.0)
        assert not (tmp_path / "more").exists()
        events = await ask(place, GetEvents(10))
        assert isinstance(events, Events)
        asked = [event.text for event in events.events if "asked: " in event.text]
        assert asked[0].endswith(f"asked: grant observer to eva: {granted.peer} is observer now")
        assert asked[1].startswith(f"observer eva ({granted.peer[:8]}) asked: pause: refused")
        await ask(directory, Ban(granted.peer, "left the project"))
        with pytest.raises(RefusedError, match="banned from this run"):
            await ask(place, GetStatus())
        with pytest.raises(RefusedError, match="your own credential"):
            await ask(directory, Ban(load(directory / "admin").peer))
    async with serving(directory, Core):  # a ban outlives the coordinator
        with pytest.raises(RefusedError, match="banned from this run"):
            await ask(place, GetStatus())


async def test_a_granted_admin_may_act(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, _ = run
    async with serving(directory):
        await asyncio.to_thread(grant, directory, "admin", tmp_path / "dan", "dan", 1.0)
        assert await ask(tmp_path / "dan", Pause()) == Done("Pause")
        with pytest.raises(RefusedError, match="cannot grant for 400 days"):
            await asyncio.to_thread(grant, directory, "admin", tmp_path / "late", "late", 400.0)


async def test_a_banned_peer_gets_no_certificate_and_its_stream_ends_at_once(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory, Core):
        mallory, bob = await come_in(tmp_path / "mallory", invite), await come_in(tmp_path / "bob", invite)
        async with peer(mallory) as one, peer(bob) as other:
            for each in (one, other):
                each.link.say(hello())
            await until(lambda: all(any(isinstance(body, Welcome) for body in each.heard) for each in (one, other)))
            await ask(directory, Ban(mallory.peer[:10], "sent noise"))
            await until(lambda: any(isinstance(event, Offline) for event in one.events))
            dismissed = [body for body in one.heard if isinstance(body, Dismissed)]
            assert [(body.reason, body.may_return) for body in dismissed] == [("was banned by an operator (sent noise)", False)]
            await until(lambda: Barred((mallory.peer,)) in other.heard)
        for again in (enrol(invite, tmp_path / "mallory"), renew(mallory)):
            with pytest.raises(ShoalError, match=f"{mallory.peer[:8]} is banned from run 'demo'"):
                await again
        async with peer(mallory) as one:
            one.link.say(hello())
            await until(lambda: any(isinstance(body, Refused) for body in one.heard))
            assert [body.code for body in one.heard if isinstance(body, Refused)] == ["BANNED"]
        await ask(directory, Unban(mallory.peer[:10]))
        (await renew(mallory)).check()
        async with peer(mallory) as one:
            one.link.say(hello())
            await until(lambda: any(isinstance(body, Welcome) for body in one.heard))


async def test_an_operator_of_a_stopped_coordinator_gets_one_sentence(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, _ = run
    with pytest.raises(UnreachableError, match=r"nobody listens at 127\.0\.0\.1:\d+ \(connection refused\) — check that"):
        await ask(directory, GetStatus())
    with pytest.raises(IdentityError, match="holds no credential"):
        await ask(tmp_path, GetStatus())


# --- the process ----------------------------------------------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_named(run: tuple[Path, Invite]) -> None:
    directory, invite = run
    host, port = invite.session_addresses[0].split(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: another program has port {port} — stop it"):
            await serve(directory, core=SmallCore)
    async with serving(directory):
        pass


async def test_a_second_coordinator_on_one_directory_is_refused(run: tuple[Path, Invite]) -> None:
    directory, _ = run
    async with serving(directory):
        with pytest.raises(JournalError, match="another coordinator"):
            await serve(directory, core=SmallCore)


async def test_a_directory_without_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="holds no run — make one with `shoal coordinator init"):
        await serve(tmp_path, core=SmallCore)


async def test_a_fault_in_the_core_ends_the_coordinator(run: tuple[Path, Invite], tmp_path: Path) -> None:
    class Faulty(SmallCore):
        def on(self, event: Event, now: float) -> list[Effect]:
            raise ZeroDivisionError("a fault")

    directory, invite = run
    credentials = await come_in_at(directory, invite, tmp_path / "p")
    ready = asyncio.Event()
    task = asyncio.create_task(serve(directory, core=Faulty, ready=ready))
    await asyncio.wait_for(ready.wait(), 5)
    one = Peer(credentials)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, 10)
    await one.leave()


@pytest.mark.parametrize("errand", ["enrol", "renew", "admin"])
async def test_a_full_disk_ends_the_coordinator_and_is_not_the_callers_fault(
    run: tuple[Path, Invite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errand: str
) -> None:
    def full(*_: object) -> None:
        raise JournalError("cannot write the journal: database or disk is full", "free some space")

    directory, invite = run
    credentials = await come_in_at(directory, invite, tmp_path / "p")
    monkeypatch.setattr(JournalFile, {"enrol": "enrol", "renew": "enrolled", "admin": "audit"}[errand], full)
    ready = asyncio.Event()
    task = asyncio.create_task(serve(directory, core=SmallCore, ready=ready, say=lambda text, level: None))
    await asyncio.wait_for(ready.wait(), 5)
    calls = {
        "enrol": lambda: enrol(invite, tmp_path / "q"),
        "renew": lambda: renew(credentials),
        "admin": lambda: ask(directory, Pause()),
    }
    with pytest.raises(RemoteProtocolError, match="the coordinator cannot use its journal, and ends — look into"):
        await calls[errand]()
    with pytest.raises(JournalError, match="disk is full — free some space"):
        await asyncio.wait_for(task, 5)


async def test_proxy_variables_do_not_matter(run: tuple[Path, Invite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    directory, invite = run
    async with serving(directory), peer(await come_in(tmp_path / "p", invite)) as one:
        one.link.say(beat("training", 3))
        await until(lambda: Notice("echo", 3) in one.heard)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6_works_from_end_to_end(tmp_path: Path) -> None:
    try:
        invite = init(tmp_path / "run", SPEC, listen="[::1]:0", enrol_listen="[::1]:0")
    except UnreachableError:
        pytest.skip("no IPv6 loopback here")
    assert all(address.startswith("[::1]:") for address in (*invite.session_addresses, *invite.enrol_addresses))
    async with serving(tmp_path / "run") as coordinator:
        async with peer(await come_in(tmp_path / "p", invite)) as one:
            one.link.say(beat("training", 3))
            await until(lambda: Notice("echo", 3) in one.heard)
        assert coordinator.core.connected()[0].seen_from == "::1"
        assert await ask(tmp_path / "run", Pause()) == Done("Pause")


def test_the_host_of_a_caller_is_read_from_grpcs_name_for_it() -> None:
    assert host_of("ipv4:10.1.2.3:456") == "10.1.2.3"
    assert host_of("ipv6:%5B2001:db8::7%5D:456") == "2001:db8::7"
    assert host_of("unix:/tmp/socket") == ""
    assert host_of("") == ""


# --- with the real core --------------------------------------------------------------------------------------------------------


def hello(run_name: str = "demo", major: int = PROTOCOL_MAJOR) -> Envelope:
    body = Hello(run_name, major, PROTOCOL_MINOR, "instance", NO_SESSION, NO_VERSION, b"", None, "127.0.0.1:9")
    return Envelope(0, 0, body)


async def test_the_real_core_welcomes_a_peer_and_shows_it_to_the_operator(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    async with serving(directory, Core), peer(await come_in(tmp_path / "p", invite)) as one:
        one.link.say(hello())
        await until(lambda: bool(one.heard))
        welcome = one.heard[0]
        assert isinstance(welcome, Welcome)
        assert RunSpec.from_json(welcome.spec) == SPEC


async def test_the_real_core_names_both_versions_and_both_runs_when_they_differ(run: tuple[Path, Invite], tmp_path: Path) -> None:
    directory, invite = run
    credentials = await come_in_at(directory, invite, tmp_path / "p")
    async with serving(directory, Core):
        for wrong, words in (
            (hello(major=PROTOCOL_MAJOR + 1), (str(PROTOCOL_MAJOR), str(PROTOCOL_MAJOR + 1))),
            (hello("other"), ("demo", "other")),
        ):
            async with peer(credentials) as one:
                one.link.say(wrong)
                await until(lambda: bool(one.heard))
                refused = one.heard[0]
                assert isinstance(refused, Refused)
                assert all(word in refused.reason for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_within_seconds_and_kill_9_does_not_stop_the_next_start(
    run: tuple[Path, Invite], number: signal.Signals
) -> None:
    directory, invite = run
    program = (
        "import asyncio, sys\nfrom shoal.coordinator.server import serve\n"
        "asyncio.run(serve(sys.argv[1], say=lambda text, level: print(text, flush=True)))\n"
        "assert 'torch' not in sys.modules\n"
    )

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = next(line for line in process.stdout if "sessions at" in line)
        assert invite.session_addresses[0] in said
        return process

    for ending in (signal.SIGKILL, number):
        process = start()
        process.send_signal(ending)
        began = time.monotonic()
        process.communicate(timeout=10)
        assert time.monotonic() - began < 5
        assert process.returncode == (-signal.SIGKILL if ending is signal.SIGKILL else 0)
