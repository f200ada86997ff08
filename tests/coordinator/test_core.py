"""The coordinator's decisions, one at a time: an event in, its effects out. Whole histories are `tests/simulation`'s.

`Stage` is a coordinator on a hand-driven clock; `Peer` is one peer's stream to it, which only says what a test tells it to say.
In the runs of this file a member's quota is 4 samples of 10 tokens, and an entry has 3 parts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from shoal.coordinator.core import FAREWELL_S, FEW, Core
from shoal.coordinator.events import (
    Answer,
    Asked,
    Close,
    Connected,
    Disconnected,
    Effect,
    Event,
    Journal,
    Log,
    Said,
    Send,
    TimePassed,
)
from shoal.coordinator.records import (
    FingerprintAgreed,
    Grant,
    OriginBuilt,
    PauseSet,
    PeerEvaluated,
    Record,
    RoundAbandoned,
    RoundCommitted,
    RoundOpened,
    RunCreated,
    RunEnded,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    Spent,
    TermRaised,
)
from shoal.coordinator.rounds import SETTLE_S, SPREAD_AGAIN_S
from shoal.coordinator.waits import ABANDON_PAUSE_S, SILENCE_S
from shoal.protocol.admin import (
    AdminCommand,
    AdminError,
    AdminReply,
    Done,
    GetPeers,
    GetRounds,
    GetStatus,
    Pause,
    Peers,
    Resume,
    Rounds,
    Status,
    Stop,
)
from shoal.protocol.entries import whole_commit
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Abandoned,
    Applied,
    BuildOrigin,
    CatchUp,
    Commit,
    Complaint,
    Contact,
    Contribution,
    ContributorLost,
    Dismissed,
    Donors,
    Envelope,
    Evaluate,
    Evaluated,
    Fetch,
    Fingerprint,
    Finish,
    FragmentShape,
    FromCoordinator,
    FromPeer,
    Goodbye,
    Have,
    Heartbeat,
    Held,
    Hello,
    Layout,
    Locate,
    Notice,
    Open,
    PartClosed,
    PartKey,
    Plan,
    Push,
    Ready,
    Refused,
    Replan,
    Resync,
    Section,
    Share,
    Span,
    StateReady,
    Welcome,
    Wrap,
)
from shoal.protocol.spec import RunSpec

PARTS = 3
LAYOUT = Layout(b"L" * 32, 30, (FragmentShape(PARTS),))
PEER = frozenset({"peer", "reducer"})
JOIN_WAIT_S, GRACE_S, GATHER_S, DELIVERY_S, REDUCE_S = 0.5, 2.0, 600.0, 60.0, 3000.0
T = TypeVar("T")


def root(version: int, other: int = 0) -> bytes:
    return bytes([version + 1, other]) * 16


def digest(part: int) -> bytes:
    return bytes([100 + part]) * 32


def spec(min_peers: int = 1, total_tokens: int = 1 << 40, **tables: dict[str, Any]) -> RunSpec:
    patient = {"lost_after_s": 100_000.0, "grace_s": GRACE_S, "reduce_s": REDUCE_S}
    return RunSpec.of(
        run={"name": "run", "min_peers": min_peers, "total_tokens": total_tokens},
        data={"sequence_length": 10},
        train={"batch": 2, "steps": 2},
        evaluation=tables.pop("evaluation", {"every": 0}),
        timing=patient | tables.pop("timing", {}),
        **tables,
    )


class Peer:
    """One peer's side of its session stream."""

    def __init__(self, stage: Stage, name: str, address: str) -> None:
        self.stage, self.name, self.address = stage, name, address
        self.instance = f"{name}'s first daemon"
        self.connection = 0
        self.session = NO_SESSION
        self.term = 0
        self.version = NO_VERSION
        self.heard: list[FromCoordinator] = []
        """Everything since the last `forget`."""

    # --- what it says -----------------------------------------------------------------------------------------------------------

    def dial(self, rights: frozenset[str] = PEER, **hello: Any) -> None:
        """Open a stream and say Hello, with what the test says of itself."""
        self.stage.connections += 1
        self.connection = self.stage.connections
        self.stage.streams[self.connection] = self
        self.stage.on(Connected(self.connection, self.name, rights))
        me = Hello(
            "run", PROTOCOL_MAJOR, PROTOCOL_MINOR, self.instance, self.session, self.version, b"", LAYOUT, self.address, self.name
        )
        self.stage.on(Said(self.connection, Envelope(NO_SESSION, 0, replace(me, **hello))))

    def says(self, body: FromPeer, session: int | None = None, term: int | None = None) -> None:
        ids = (self.session if session is None else session, self.term if term is None else term)
        self.stage.on(Said(self.connection, Envelope(*ids, body)))

    def breaks(self) -> None:
        """Its stream breaks."""
        self.stage.streams.pop(self.connection, None)
        self.stage.on(Disconnected(self.connection))

    def returns(self, **hello: Any) -> None:
        """The same daemon dials again and says what it holds."""
        self.dial(**hello)
        self.is_at(self.version)

    def is_at(self, version: int, other: int = 0) -> None:
        self.version = version
        self.says(StateReady(version, root(version, other), LAYOUT))

    def is_ready(self, samples: int = 4) -> None:
        self.says(Ready(self.stage.round, 10 * samples, samples))

    def closes(self, part: int, *contributors: str) -> None:
        plan = self.stage.plan
        peers = contributors or tuple(contribution.peer for contribution in plan.contributions)
        divisor = sum(contribution.weight for contribution in plan.contributions if contribution.peer in peers)
        key = PartKey(plan.round, Section.PARAMETERS, part, self.stage.attempt(part))
        self.says(PartClosed(key, peers, float(divisor), digest(part)))

    def closes_its_parts(self, *contributors: str) -> None:
        """Those that it has not closed, in their newest attempt."""
        round_ = self.stage.core.round
        assert round_ is not None
        for slot, share in round_.reducer_of.items():
            if share.reducer.peer == self.name and slot not in round_.decisions:
                self.closes(slot[1], *contributors)

    def has(self, *parts: int) -> None:
        held = (Held(Section.PARAMETERS, part, self.stage.attempt(part), digest(part)) for part in parts or range(PARTS))
        self.says(Have(self.stage.round, tuple(held)))

    # --- what it hears ----------------------------------------------------------------------------------------------------------

    def all(self, kind: type[T]) -> list[T]:
        return [body for body in self.heard if isinstance(body, kind)]

    def last(self, kind: type[T]) -> T:
        return self.all(kind)[-1]

    def forget(self) -> None:
        self.heard.clear()


class Stage:
    """A coordinator, its journal and its streams."""

    def __init__(self, run: RunSpec | None = None) -> None:
        self.spec = run or spec()
        self.records: list[Record] = [RunCreated("run", self.spec.to_json())]
        self.steps: list[Effect] = []
        """Every effect, in order."""
        self.streams: dict[int, Peer] = {}
        self.connections = 0
        self.now = 1000.0
        self.start()

    def start(self) -> None:
        """A coordinator process takes the journal over; streams of an earlier one are gone."""
        self.streams.clear()
        self.core = Core(self.spec)
        for record in self.records:
            self.core.replay(record)
        self._perform(self.core.start(self.now))

    def on(self, event: Event) -> list[Effect]:
        effects = self.core.on(event, self.now)
        self._perform(effects)
        return effects

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.steps.append(effect)
            match effect:
                case Journal(record):
                    self.records.append(record)
                case Send(connection, Envelope(session, term, body)) if connection in self.streams:
                    peer = self.streams[connection]
                    assert not isinstance(body, FromPeer)
                    peer.heard.append(body)
                    if isinstance(body, Welcome):
                        peer.session, peer.term = session, term
                case Close(connection):
                    self.streams.pop(connection, None)
                case _:
                    pass

    def wait(self, seconds: float) -> None:
        """Time passes; the core is woken whenever it asked to be."""
        end = self.now + seconds
        for _ in range(100):
            due = self.core.wake_at
            if due is None or due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self.on(TimePassed())
        raise AssertionError(f"the core spins: at {self.now} it wants to wake at {self.core.wake_at}")

    def ask(self, command: AdminCommand) -> AdminReply | AdminError:
        answers = [effect for effect in self.on(Asked(7, "operator", command)) if isinstance(effect, Answer)]
        assert [answer.request for answer in answers] == [7]
        return answers[0].reply

    # --- short stories ----------------------------------------------------------------------------------------------------------

    def peer(self, name: str, address: str | None = None) -> Peer:
        return Peer(self, name, f"{name}:1" if address is None else address)

    def members(self, *names: str, undialable: str = "") -> list[Peer]:
        """These join, one after another; the first builds version 0; all hold it, and a round is open. `undialable`: names of those
        that others cannot dial."""
        peers = [self.peer(name, address="" if name in undialable.split() else None) for name in names]
        for peer in peers:
            peer.dial()
            peer.is_at(0)
        self.wait(JOIN_WAIT_S)
        return peers

    def reducing(self, *names: str, undialable: str = "") -> list[Peer]:
        """The same, and everybody's work for the first round is planned."""
        peers = self.members(*names, undialable=undialable)
        for peer in peers:
            peer.is_ready()
        return peers

    def commit_round(self, peers: Iterable[Peer]) -> None:
        """Everybody who is here trains, reduces, holds and applies."""
        peers = list(peers)
        for peer in peers:
            peer.is_ready()
        for peer in peers:
            peer.closes_its_parts()
        for peer in peers:
            peer.has()
        for peer in peers:
            peer.version += 1

    # --- questions --------------------------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round in flight."""
        assert self.core.round is not None
        return self.core.round.id

    @property
    def plan(self) -> Plan:
        assert self.core.round is not None
        assert self.core.round.plan is not None
        return self.core.round.plan

    def attempt(self, part: int) -> int:
        """The attempt at a part that counts; 0 where there is no plan."""
        assert self.core.round is not None
        share = self.core.round.reducer_of.get((Section.PARAMETERS, part))
        return share.attempt if share is not None else 0

    def journaled(self, kind: type[T]) -> list[T]:
        return [record for record in self.records if isinstance(record, kind)]

    def logged(self, text: str) -> bool:
        return any(isinstance(effect, Log) and text in effect.text for effect in self.steps)


# --- joining --------------------------------------------------------------------------------------------------------------------


def test_the_first_peer_builds_version_0_and_the_round_opens_a_little_later() -> None:
    stage = Stage()
    ada = stage.peer("ada")
    ada.dial()
    assert ada.last(Welcome) == Welcome(1, 1, False, NO_VERSION, stage.spec.to_json(), 2.0, 100_000.0)
    ada.says(Locate(NO_VERSION))
    assert ada.last(BuildOrigin) == BuildOrigin()
    ada.is_at(0)
    assert stage.journaled(OriginBuilt) == [OriginBuilt(1, LAYOUT, root(0))]
    assert not ada.all(Open)
    stage.wait(JOIN_WAIT_S - 0.01)
    assert not ada.all(Open)
    stage.wait(0.01)
    assert ada.last(Open) == Open(0, 0, 0, 0, (Span(0, 4),), 4, 0, 40, 1)


def test_only_one_peer_builds_and_the_next_takes_over_when_it_is_lost() -> None:
    stage = Stage()
    ada, bob = stage.peer("ada"), stage.peer("bob")
    for peer in (ada, bob):
        peer.dial()
        peer.says(Locate(NO_VERSION))
    assert not bob.all(BuildOrigin)
    assert bob.last(Notice).waiting_for == "ada (ada) to build version 0"
    ada.breaks()
    stage.wait(GRACE_S)
    bob.says(Locate(NO_VERSION))
    assert bob.all(BuildOrigin)


def test_who_waited_for_version_0_is_told_where_it_is_as_soon_as_it_is_there() -> None:
    stage = Stage()
    ada, bob = stage.peer("ada"), stage.peer("bob")
    for peer in (ada, bob):
        peer.dial()
        peer.says(Locate(NO_VERSION))
    ada.is_at(0)
    assert bob.last(Donors) == Donors(0, (Contact("ada", "ada:1"),))


def test_a_version_0_of_its_own_does_not_make_a_member() -> None:
    stage = Stage(spec(min_peers=2))
    _ada, _bob = stage.members("ada", "bob")
    cyd = stage.peer("cyd")
    cyd.dial(version=0, root=root(0, 1))
    cyd.is_at(0, other=1)
    assert cyd.last(Resync).root == root(0)
    cyd.says(Locate(0))
    assert cyd.last(Donors).version == 0
    assert not cyd.all(CatchUp)
    assert not cyd.all(Open)


def test_a_version_0_nobody_can_hand_over_is_replaced_until_a_round_binds_it() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.peer("ada"), stage.peer("bob")
    ada.dial()
    ada.is_at(0)
    ada.breaks()
    stage.wait(GRACE_S)
    bob.dial()
    bob.is_at(0, other=1)
    assert [record.root for record in stage.journaled(OriginBuilt)] == [root(0), root(0, 1)]
    ada.dial()
    ada.is_at(0)
    assert ada.last(Resync).root == root(0, 1)


def test_a_peer_that_says_it_is_ready_with_nothing_is_helped_to_the_state() -> None:
    stage = Stage()
    ada = stage.peer("ada")
    ada.dial()
    ada.is_at(NO_VERSION)
    stage.wait(JOIN_WAIT_S)
    assert ada.all(BuildOrigin)
    assert not ada.all(Open)


@pytest.mark.parametrize("fragments", [(), (FragmentShape(0),), (FragmentShape(1 << 40),)], ids=["none", "empty", "huge"])
def test_a_layout_that_no_round_can_carry_is_refused(fragments: tuple[FragmentShape, ...]) -> None:
    stage = Stage()
    ada = stage.peer("ada")
    ada.dial()
    ada.says(StateReady(0, root(0), Layout(b"M" * 32, 30, fragments)))
    stage.wait(JOIN_WAIT_S)
    assert ada.last(Refused).code == "LAYOUT"
    assert not stage.journaled(OriginBuilt)


def test_a_joiner_with_another_model_is_refused_and_its_session_ends() -> None:
    stage = Stage()
    stage.members("ada")
    bob = stage.peer("bob")
    bob.dial()
    bob.says(StateReady(0, root(0), replace(LAYOUT, hash=b"M" * 32)))
    assert bob.last(Refused).code == "LAYOUT"
    assert stage.journaled(SessionEnded)[-1].session == bob.session
    assert bob.connection not in stage.streams


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"run": "reef"}, "WRONG_RUN"),
        ({"major": 2}, "VERSION"),
        ({"version": 5}, "AHEAD"),
        ({"rights": frozenset({"admin"})}, "NO_RIGHT"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hello_is_refused_with_its_code_and_the_stream_is_closed(wrong: dict[str, Any], code: str) -> None:
    stage = Stage()
    stage.members("ada")
    bob = stage.peer("bob")
    bob.dial(**wrong)
    assert bob.last(Refused).code == code
    assert bob.connection not in stage.streams
    assert len(stage.journaled(SessionOpened)) == 1


def test_the_first_round_waits_for_min_peers_and_says_so() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob = stage.members("ada", "bob")
    assert not ada.all(Open)
    assert ada.last(Notice) == Notice("1 more peer", 2, 3, "invite more with `shoal admin invite`, or wait")
    cyd = stage.peer("cyd")
    cyd.dial()
    cyd.is_at(0)
    assert ada.last(Notice) == Notice("")
    stage.wait(JOIN_WAIT_S)
    assert [peer.last(Open).members for peer in (ada, bob, cyd)] == [3, 3, 3]


def test_a_joiner_takes_part_from_the_next_round_on() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    cyd = stage.peer("cyd")
    cyd.dial()
    cyd.is_at(0)
    assert not cyd.all(Open)
    ada.is_ready()
    bob.is_ready()
    assert cyd.last(Plan).members == ("ada", "bob", "cyd")
    assert [c.peer for c in cyd.last(Plan).contributions] == ["ada", "bob"]
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    for peer in (ada, bob, cyd):
        peer.has()
    assert cyd.last(Open).round == 1
    assert [peer.last(Open).lease for peer in (ada, bob, cyd)] == [(Span(8, 12),), (Span(12, 16),), (Span(16, 20),)]


# --- sessions -------------------------------------------------------------------------------------------------------------------


def test_within_grace_the_same_membership_goes_on() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    ada.breaks()
    stage.wait(GRACE_S - 0.1)
    ada.forget()
    ada.returns(address="ada:2")
    assert ada.last(Welcome).resumed
    assert stage.journaled(SessionResumed) == [SessionResumed(ada.session, ada.instance, "ada:2")]
    assert ada.last(Open).lease == (Span(0, 4),)


def test_after_grace_the_membership_is_over_and_the_lease_is_free_with_the_rounds_outcome() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.breaks()
    stage.wait(GRACE_S)
    assert stage.journaled(SessionEnded) == [SessionEnded(1, "was lost: its connection broke")]
    ada.returns()
    assert not ada.last(Welcome).resumed
    assert ada.session == 3
    bob.is_ready()
    for peer in (ada, bob):
        peer.closes_its_parts()
    for peer in (ada, bob):
        peer.has()
    assert ada.session in stage.journaled(RoundOpened)[-1].members
    assert stage.core.ledger.members[ada.session].lease == [Span(0, 4)]


@pytest.mark.parametrize("min_peers", [1, 1000], ids=["while a round gathers", "while members are waited for"])
def test_a_heartbeat_costs_as_little_among_hundreds_as_among_few(min_peers: int) -> None:
    """Counted in Python calls, and not in seconds."""

    def calls(members: int) -> int:
        stage = Stage(spec(min_peers, timing={"lost_after_s": 10.0}))
        peers = stage.members(*(f"peer{number}" for number in range(members)))
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            for peer in peers[:10]:
                stage.core.on(Said(peer.connection, Envelope(peer.session, peer.term, Heartbeat("waiting"))), stage.now)
                assert stage.core.wake_at
        finally:
            sys.setprofile(None)
        return counted

    assert calls(200) == calls(10)


def test_who_is_heard_at_other_times_than_others_is_lost_after_its_own_silence() -> None:
    stage = Stage(spec(3, timing={"lost_after_s": 10.0}))
    ada, bob, cyd = stage.members("ada", "bob", "cyd")
    stage.wait(4 - JOIN_WAIT_S)
    bob.says(Heartbeat())
    stage.wait(4)
    cyd.says(Heartbeat())
    for peer, silent_s in ((ada, 2.0), (bob, 4.0), (cyd, 4.0)):
        stage.wait(silent_s - 0.01)
        assert [record.session for record in stage.journaled(SessionEnded)] == list(range(1, peer.session))
        stage.wait(0.01)
        assert [record.session for record in stage.journaled(SessionEnded)] == list(range(1, peer.session + 1))


def test_thousands_that_come_back_are_not_all_told_of_each() -> None:
    stage = Stage(spec(1000))
    count = 10 * FEW
    peers = [stage.peer(f"peer{number}") for number in range(count)]
    for peer in peers:
        peer.dial()
    told = sum(len(peer.all(Notice)) for peer in peers)
    while_few, when_welcomed = FEW**2 // 2, count
    assert told < while_few + 5 * when_welcomed < count**2 // 4
    stage.wait(3)
    assert {peer.last(Notice).waiting_for for peer in peers} == {f"{1000 - count} more peers"}


def test_a_silent_member_is_lost_and_a_heartbeat_keeps_it() -> None:
    stage = Stage(spec(timing={"lost_after_s": 10.0, "heartbeat_s": 2.0}))
    ada, bob = stage.members("ada", "bob")
    for _ in range(4):
        stage.wait(3.0)
        bob.says(Heartbeat("training"))
    assert stage.journaled(SessionEnded) == [SessionEnded(ada.session, "was lost: silent for 10 s")]
    assert ada.last(Dismissed).may_return


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    stage = Stage(spec(timing={"lost_after_s": 10.0, "heartbeat_s": 2.0}))
    _ada, _bob = stage.members("ada", "bob")
    stage.now += 300
    stage.on(TimePassed())
    assert not stage.journaled(SessionEnded)
    stage.wait(10.0)
    assert len(stage.journaled(SessionEnded)) == 2


def test_a_peer_that_does_not_know_its_session_gets_a_new_one() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    ada.breaks()
    ada.dial(session=NO_SESSION)
    assert not ada.last(Welcome).resumed
    assert stage.journaled(SessionEnded) == [SessionEnded(1, "replaced by a new daemon of the same peer")]


def test_a_second_daemon_with_a_members_identity_is_refused_while_the_first_is_heard() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    thief = stage.peer("ada", "elsewhere:1")
    thief.instance, thief.session = "another daemon", ada.session
    thief.dial()
    assert thief.last(Refused).code == "ALREADY_EXISTS"
    assert "ada:1" in thief.last(Refused).reason
    ada.is_ready()
    assert stage.core.round is not None
    assert ada.session in stage.core.round.ready


def test_the_same_daemon_replaces_its_own_stream() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    old = ada.connection
    ada.returns()
    assert ada.last(Welcome).resumed
    assert old not in stage.streams
    stage.on(Disconnected(old))
    stage.wait(GRACE_S + 1)
    assert not stage.journaled(SessionEnded)


@pytest.mark.parametrize(("session", "term"), [(2, 1), (1, 0), (1, 2), (NO_SESSION, 0)])
def test_a_message_of_another_session_or_term_is_dropped(session: int, term: int) -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    ada.says(Ready(0, 40, 4), session=session, term=term)
    assert stage.core.stale == 1
    assert stage.core.round is not None
    assert stage.core.round.ready == {}


def test_the_identity_comes_from_the_stream_whatever_a_message_says() -> None:
    stage = Stage()
    _ada, bob = stage.reducing("ada", "bob")
    bob.closes(0)
    assert stage.core.round is not None
    assert stage.core.round.decisions == {}
    assert stage.core.stale == 1


# --- leases and the opening -----------------------------------------------------------------------------------------------------


def test_members_get_consecutive_leases_by_peer_id() -> None:
    stage = Stage(spec(min_peers=3))
    cyd, ada, bob = stage.members("cyd", "ada", "bob")
    grants = (Grant(ada.session, (Span(0, 4),)), Grant(bob.session, (Span(4, 8),)), Grant(cyd.session, (Span(8, 12),)))
    assert stage.journaled(RoundOpened) == [RoundOpened(0, 0, 0, 0, (ada.session, bob.session, cyd.session), grants, 120)]
    assert cyd.last(Open).lease == (Span(8, 12),)


def test_grants_are_journaled_before_they_are_told() -> None:
    stage = Stage()
    stage.members("ada", "bob")
    kinds = [
        effect.record if isinstance(effect, Journal) else effect.envelope.body
        for effect in stage.steps
        if isinstance(effect, Journal | Send)
    ]
    opening = next(index for index, kind in enumerate(kinds) if isinstance(kind, RoundOpened))
    assert not any(isinstance(kind, Open) for kind in kinds[:opening])
    assert isinstance(kinds[opening + 1], Open)


def test_a_commit_spends_the_leases_and_the_next_round_grants_new_ones() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    record = stage.journaled(RoundCommitted)[0]
    assert record.spent == (Spent(ada.session, 4, 40), Spent(bob.session, 4, 40))
    assert record.committed_tokens == 80
    assert ada.last(Open).lease == (Span(8, 12),)
    assert ada.last(Open).committed_tokens == 80


def test_a_member_that_trained_less_keeps_the_rest_of_its_lease() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready(1)
    bob.is_ready()
    for peer in (ada, bob):
        peer.closes_its_parts()
    for peer in (ada, bob):
        peer.has()
    assert ada.last(Open).lease == (Span(1, 4), Span(8, 9))


def test_a_member_that_was_left_out_gets_as_many_new_samples_on_top() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    for peer in (ada, bob):
        peer.closes_its_parts("ada")
    for peer in (ada, bob):
        peer.has()
    record = stage.journaled(RoundCommitted)[0]
    assert [c.peer for c in record.contributions] == ["ada"]
    assert [spent.session for spent in record.spent] == [ada.session]
    assert bob.last(Open).lease == (Span(4, 8), Span(12, 16))


def test_a_contributor_of_one_part_only_has_spent_its_lease() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    ada.closes(0, "ada")
    ada.closes(1, "ada")
    bob.closes(2, "ada", "bob")
    for peer in (ada, bob):
        peer.has()
    assert [spent.session for spent in stage.journaled(RoundCommitted)[0].spent] == [ada.session, bob.session]


def test_a_claim_beyond_the_lease_counts_as_the_lease_and_is_noted() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.says(Ready(0, 10**12, 10**11))
    bob.says(Ready(0, 1000, 4))
    assert stage.plan.contributions == (Contribution("ada", 40), Contribution("bob", 40))
    assert stage.logged("ada (ada) claims 1000000000000 tokens, its lease allows 40")
    assert stage.logged("bob (bob) claims 1000 tokens, its lease allows 40")


# --- gathering ------------------------------------------------------------------------------------------------------------------


def test_gathering_waits_for_these_members_not_for_so_many() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    cyd = stage.peer("cyd")
    cyd.dial()
    cyd.is_at(0)
    ada.is_ready()
    cyd.is_ready()
    ada.is_ready()
    assert not ada.all(Plan)
    bob.is_ready()
    assert ada.all(Plan)


def test_a_plan_lists_contributors_by_id_and_shares_the_parts() -> None:
    stage = Stage(spec(min_peers=3))
    cyd, bob, ada = stage.members("cyd", "bob", "ada")
    cyd.is_ready()
    bob.is_ready(0)
    ada.is_ready(2)
    plan = ada.last(Plan)
    assert plan.contributions == (Contribution("ada", 20), Contribution("cyd", 40))
    assert plan.members == ("ada", "bob", "cyd")
    assert [(share.reducer, share.start, share.stop) for share in plan.shares] == [
        (Contact("ada", "ada:1"), 0, 1),
        (Contact("bob", "bob:1"), 1, 2),
        (Contact("cyd", "cyd:1"), 2, 3),
    ]
    assert plan == bob.last(Plan) == cyd.last(Plan)


def test_who_cannot_be_dialled_reduces_nothing_but_contributes() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.peer("ada"), stage.peer("bob", address="")
    for peer in (ada, bob):
        peer.dial()
        peer.is_at(0)
    stage.wait(JOIN_WAIT_S)
    ada.is_ready()
    bob.is_ready()
    assert [share.reducer.peer for share in stage.plan.shares] == ["ada"]
    assert [c.peer for c in stage.plan.contributions] == ["ada", "bob"]


def test_two_members_that_cannot_be_dialled_wait_and_are_told_what_helps() -> None:
    stage = Stage()
    ada = stage.peer("ada", address="")
    ada.dial()
    ada.is_at(0)
    bob = stage.peer("bob", address="")
    bob.dial()
    bob.says(Locate(NO_VERSION))
    assert bob.last(Notice).waiting_for == "a peer that can hand over version 0"
    assert "--helper" in bob.last(Notice).fix


def test_late_gathering_goes_on_with_who_is_ready_if_they_are_enough() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    ada.is_ready()
    stage.wait(GATHER_S - 1)
    assert not ada.all(Plan)
    stage.wait(1)
    assert [c.peer for c in ada.last(Plan).contributions] == ["ada"]
    assert ada.last(Plan).members == ("ada", "bob")


def test_late_gathering_below_min_peers_goes_on_waiting() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    stage.wait(GATHER_S + 1000)
    assert not ada.all(Plan)
    bob.is_ready()
    assert ada.all(Plan)


def test_a_lost_member_is_not_waited_for() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    bob.breaks()
    assert not ada.all(Plan)
    stage.wait(GRACE_S)
    assert ada.last(Plan).members == ("ada",)


def test_a_ready_member_that_reconnects_is_expected_back_before_the_plan() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    ada.breaks()
    bob.is_ready()
    assert not bob.all(Plan)
    ada.dial()
    assert not bob.all(Plan), "it has not yet said what it holds: it would be planned to contribute without hearing the plan"
    ada.is_at(0)
    assert bob.last(Plan).members == ("ada", "bob")
    assert [c.peer for c in bob.last(Plan).contributions] == ["ada", "bob"]


def test_a_ready_member_whose_trainer_never_comes_back_is_left_out_when_it_is_late() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    ada.breaks()
    ada.dial()
    bob.is_ready()
    stage.wait(GATHER_S)
    assert [c.peer for c in bob.last(Plan).contributions] == ["bob"]
    assert bob.last(Plan).members == ("bob",)


def test_a_ready_member_that_is_a_new_process_must_say_again_that_it_is_ready() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    ada.breaks()
    ada.instance = "ada's second daemon"
    ada.returns()
    bob.is_ready()
    assert not bob.all(Plan)
    ada.is_ready()
    assert bob.all(Plan)


def test_a_round_without_data_is_abandoned() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready(0)
    bob.says(Ready(0, 0, 0, note="w: 1/8 non-finite"))
    assert ada.last(Abandoned) == Abandoned(0, "no data: every member's weight is 0")
    assert stage.logged("bob (bob) contributes nothing to round 0: w: 1/8 non-finite")


def test_a_message_about_another_round_is_dropped() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    for body in (Ready(0, 40, 4), Have(0, ()), Complaint(0, "bob", "why")):
        stale = stage.core.stale
        ada.says(body)
        assert stage.core.stale == stale + 1
    assert stage.core.round is not None
    assert stage.core.round.ready == {}


# --- reducing and the commit ----------------------------------------------------------------------------------------------------


def test_a_round_commits_when_everybody_holds_every_part() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    for peer in (ada, bob):
        peer.closes_its_parts()
    ada.has()
    bob.has(0, 1)
    assert not stage.journaled(RoundCommitted)
    bob.has(2)
    commit = bob.last(Commit)
    assert commit == ada.last(Commit)
    assert (commit.version, commit.round, commit.base, commit.committed_tokens) == (1, 0, 0, 80)
    assert (commit.outer_lr, commit.outer_momentum) == (0.7, 0.9)
    assert [(part.part, part.digest, part.contributors, part.divisor) for part in whole_commit(commit).parts] == [
        (part, digest(part), ("ada", "bob"), 80.0) for part in range(PARTS)
    ]
    assert commit.contacts == (Contact("ada", "ada:1"), Contact("bob", "bob:1"))


def test_a_peer_that_came_with_another_version_0_hears_of_no_entry_before_it_has_the_runs() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    eve = stage.peer("eve")
    eve.dial(version=0, root=root(0, other=9))
    stage.commit_round([ada, bob])
    assert not eve.all(Commit)
    eve.is_at(1)
    stage.commit_round([ada, bob, eve])
    assert eve.last(Commit).version == 2


def test_a_commit_is_journaled_before_it_is_announced() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    for peer in (ada, bob):
        peer.closes_its_parts()
    ada.has()
    stage.steps.clear()
    bob.has()
    kinds = [
        type(effect.record if isinstance(effect, Journal) else effect.envelope.body)
        for effect in stage.steps
        if isinstance(effect, Journal | Send)
    ]
    assert kinds[:3] == [RoundCommitted, Commit, Commit]
    assert kinds.count(RoundCommitted) == 1


def test_after_the_delivery_deadline_two_holders_are_enough_and_only_they_are_named() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    ada.has()
    bob.has()
    stage.wait(DELIVERY_S - 1)
    assert not stage.journaled(RoundCommitted)
    stage.wait(1)
    assert cyd.last(Commit).contacts == (Contact("ada", "ada:1"), Contact("bob", "bob:1"))


def test_a_round_without_a_commit_is_abandoned_in_time() -> None:
    stage = Stage()
    ada, _bob = stage.reducing("ada", "bob")
    ada.closes_its_parts()
    stage.wait(REDUCE_S)
    assert ada.last(Abandoned).reason == "no commit within 3000 s of its plan"


def test_losing_a_contributor_that_reduces_nothing_lets_the_others_finish() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd", undialable="cyd")
    cyd.breaks()
    stage.wait(GRACE_S)
    assert ada.last(ContributorLost) == bob.last(ContributorLost) == ContributorLost(0, "cyd")
    for peer in (ada, bob):
        peer.closes_its_parts("ada", "bob")
    for peer in (ada, bob):
        peer.has()
    assert [c.peer for c in stage.journaled(RoundCommitted)[0].contributions] == ["ada", "bob"]


def test_a_contributor_that_died_after_its_parts_were_closed_counts() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd", undialable="cyd")
    for peer in (ada, bob):
        peer.closes_its_parts()
    cyd.breaks()
    stage.wait(GRACE_S)
    ada.has()
    bob.has()
    record = stage.journaled(RoundCommitted)[0]
    assert record.spent == (Spent(1, 4, 40), Spent(2, 4, 40), Spent(3, 4, 40))
    assert stage.core.ledger.free == []


def test_what_a_lost_reducer_had_not_closed_is_reduced_again_by_the_others_and_nothing_else() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    ada.closes_its_parts()
    cyd.breaks()
    stage.wait(GRACE_S)
    again = Replan(0, (Share(Contact("ada", "ada:1"), Section.PARAMETERS, 2, 3, 1),))
    assert ada.all(Replan) == bob.all(Replan) == [again]
    assert stage.logged("round 0: 1 parts of cyd are reduced again by 1 others")
    for peer in (ada, bob):
        peer.closes_its_parts("ada", "bob")
    for peer in (ada, bob):
        peer.has()
    (record,) = stage.journaled(RoundCommitted)
    assert [(part.part, part.attempt, part.contributors) for part in record.decisions] == [
        (0, 0, ("ada", "bob", "cyd")),  # cyd's work had come whole
        (1, 0, ("ada", "bob")),
        (2, 1, ("ada", "bob")),
    ]
    assert record.spent == (Spent(1, 4, 40), Spent(2, 4, 40), Spent(3, 4, 40))
    assert not stage.journaled(RoundAbandoned)


def test_reducers_that_are_lost_one_after_the_other_leave_all_parts_to_the_last_member() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    cyd.breaks()
    stage.wait(GRACE_S)
    ada.breaks()
    stage.wait(GRACE_S)
    assert [(share.start, share.stop, share.attempt) for share in bob.last(Replan).shares] == [(0, 1, 1), (2, 3, 2)]
    bob.closes_its_parts("bob")
    bob.has()
    (record,) = stage.journaled(RoundCommitted)
    assert {part.contributors for part in record.decisions} == {("bob",)}


def test_a_round_whose_every_contributor_is_lost_has_no_data() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.members("ada", "bob", "cyd")
    for peer, samples in ((ada, 0), (bob, 4), (cyd, 0)):
        peer.is_ready(samples)
    bob.breaks()
    stage.wait(GRACE_S)
    assert ada.last(Abandoned) == Abandoned(0, "no data: every contributor was lost")
    (abandoned,) = stage.journaled(RoundAbandoned)
    assert [(showing.peer, showing.outcome) for showing in abandoned.showings] == [
        ("ada", "nothing"),
        ("bob", "lost"),
        ("cyd", "nothing"),
    ]


def test_a_round_without_a_reducer_that_others_can_dial_is_abandoned() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, _cyd = stage.reducing("ada", "bob", "cyd", undialable="bob cyd")
    ada.breaks()
    stage.wait(GRACE_S)
    assert bob.last(Abandoned) == Abandoned(0, "no member that is left can be dialled by the others")


def test_losing_a_reducer_whose_parts_two_others_hold_does_no_harm() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    ada.has()
    bob.has()
    cyd.breaks()
    stage.wait(GRACE_S)
    assert ada.last(Commit).contacts == (Contact("ada", "ada:1"), Contact("bob", "bob:1"))


def test_a_lost_reducers_part_that_one_member_holds_is_fetched_by_the_others_and_keeps_its_contributors() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    ada.has()
    bob.has(0, 1)
    cyd.breaks()
    stage.wait(GRACE_S + SETTLE_S - 0.1)
    assert not bob.all(Fetch)
    stage.wait(0.1)
    wanted = Fetch(0, (Held(Section.PARAMETERS, 2, 0, digest(2)),), (Contact("ada", "ada:1"),))
    assert (bob.all(Fetch), ada.all(Fetch)) == ([wanted], [])
    bob.has()
    (record,) = stage.journaled(RoundCommitted)
    assert [part.contributors for part in record.decisions] == [("ada", "bob", "cyd")] * PARTS
    assert not ada.all(Replan)


def test_a_part_that_was_asked_for_in_vain_is_reduced_again() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    ada.has()
    bob.has(0, 1)
    cyd.breaks()
    stage.wait(GRACE_S + SETTLE_S + SPREAD_AGAIN_S - 0.1)
    assert not bob.all(Replan)
    stage.wait(0.1)
    assert [(share.start, share.attempt) for share in bob.last(Replan).shares] == [(2, 1)]
    assert len(bob.all(Fetch)) == 1


def test_a_lone_survivor_finishes_whatever_the_dead_said_of_it() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    bob.says(Complaint(0, "ada", "timed out"))
    bob.breaks()
    stage.wait(GRACE_S)
    ada.closes_its_parts("ada")
    ada.has()
    assert stage.journaled(RoundCommitted)


def test_a_lost_reducers_decided_part_that_nobody_holds_is_reduced_again_once_that_is_sure() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    ada.has(0, 1)
    bob.has(0, 1)
    cyd.breaks()
    stage.wait(GRACE_S + SETTLE_S - 0.1)
    assert not ada.all(Replan)
    stage.wait(0.1)
    assert [(share.start, share.stop, share.attempt) for share in ada.last(Replan).shares] == [(2, 3, 1)]
    for peer in (ada, bob):
        peer.says(Have(0, (Held(Section.PARAMETERS, 2, 0, digest(2)),)))  # too late: that attempt is over
    assert not stage.journaled(RoundCommitted)
    ada.closes(2, "ada", "bob")
    for peer in (ada, bob):
        peer.has()
    assert [part.attempt for part in stage.journaled(RoundCommitted)[0].decisions] == [0, 0, 1]


def test_a_member_that_returns_within_grace_hears_the_plan_again() -> None:
    stage = Stage()
    ada, _bob = stage.reducing("ada", "bob")
    plan = ada.last(Plan)
    ada.breaks()
    ada.forget()
    ada.returns()
    assert ada.all(Plan) == [plan]


def test_a_member_that_returns_within_grace_hears_of_every_repair() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    cyd.breaks()
    stage.wait(GRACE_S)
    bob.breaks()
    bob.forget()
    bob.returns()
    assert bob.all(Replan) == ada.all(Replan)
    assert bob.all(ContributorLost) == ada.all(ContributorLost) == [ContributorLost(0, "cyd")]


def test_a_member_that_restarts_in_the_middle_of_a_reduction_counts_where_its_work_had_come_and_still_gets_the_result() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    bob.closes_its_parts()
    ada.has(2)
    ada.breaks()
    ada.instance = "ada's second daemon"
    ada.dial()
    assert bob.last(ContributorLost) == ContributorLost(0, "ada")
    assert [(share.start, share.stop, share.attempt) for share in bob.last(Replan).shares] == [(0, 2, 1)]
    bob.closes_its_parts("bob")
    bob.has()
    ada.is_at(0)
    assert (len(ada.all(Plan)), ada.last(Replan)) == (2, bob.last(Replan))
    stage.wait(SETTLE_S)
    assert not stage.journaled(RoundCommitted)  # what the new daemon said before it restarted does not count
    ada.has()
    (record,) = stage.journaled(RoundCommitted)
    assert [part.contributors for part in record.decisions] == [("bob",), ("bob",), ("ada", "bob")]


def test_a_complaint_about_a_reducer_makes_others_reduce_its_parts_in_this_round_and_the_next() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    ada.says(Complaint(0, "bob", "connection refused"))
    assert [(share.reducer.peer, share.start, share.attempt) for share in bob.last(Replan).shares] == [("ada", 2, 1)]
    stale = stage.core.stale
    bob.says(PartClosed(PartKey(0, Section.PARAMETERS, 2, 0), ("ada", "bob"), 80.0, digest(2)))
    assert stage.core.stale == stale + 1
    ada.closes_its_parts()
    for peer in (ada, bob):
        peer.has()
    assert [part.contributors for part in stage.journaled(RoundCommitted)[0].decisions] == [("ada", "bob")] * PARTS
    for peer in (ada, bob):
        peer.is_ready()
    assert [share.reducer.peer for share in stage.plan.shares] == ["ada"]


def test_who_cannot_reach_two_reducers_is_taken_to_be_cut_off_itself_and_still_counts_as_a_member() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    ada.says(Complaint(0, "bob", "timed out"))
    ada.says(Complaint(0, "bob", "timed out"))
    assert not bob.all(ContributorLost)
    ada.says(Complaint(0, "cyd", "timed out"))
    assert bob.last(ContributorLost) == cyd.last(ContributorLost) == ContributorLost(0, "ada")
    assert {share.reducer.peer for share in cyd.last(Replan).shares} == {"bob", "cyd"}
    assert stage.logged("round 0 goes on without ada, which alone could not reach bob, cyd")
    for peer in (bob, cyd):
        peer.closes_its_parts("bob", "cyd")
    cyd.has()
    stage.wait(SETTLE_S)
    assert not stage.journaled(RoundCommitted)  # one of three live members is not enough
    bob.has()
    stage.wait(SETTLE_S)
    assert stage.journaled(RoundCommitted)
    assert ada.all(Commit)


def test_two_reducers_that_two_others_cannot_reach_reduce_no_more_and_nobody_is_cut_off() -> None:
    stage = Stage(spec(min_peers=4))
    ann, bea, yan, zoe = stage.reducing("ann", "bea", "yan", "zoe")
    for other in ("ann", "bea"):
        for complainer in (yan, zoe):
            complainer.says(Complaint(0, other, "timed out"))
    assert not ann.all(ContributorLost)
    for peer in (ann, bea, yan, zoe):
        peer.closes_its_parts()
    for peer in (ann, bea, yan, zoe):
        peer.has()
    assert {part.contributors for part in stage.journaled(RoundCommitted)[0].decisions} == {("ann", "bea", "yan", "zoe")}
    for peer in (ann, bea, yan, zoe):
        peer.is_ready()
    assert {share.reducer.peer for share in stage.plan.shares} == {"yan", "zoe"}


def test_a_member_is_not_cut_off_for_what_somebody_else_says_later_too() -> None:
    stage = Stage(spec(min_peers=4))
    ann, bea, yan, zoe = stage.reducing("ann", "bea", "yan", "zoe")
    yan.says(Complaint(0, "ann", "timed out"))
    yan.says(Complaint(0, "bea", "timed out"))
    assert ann.last(ContributorLost) == ContributorLost(0, "yan")  # for all that is known now
    zoe.says(Complaint(0, "bea", "timed out"))
    zoe.says(Complaint(0, "ann", "timed out"))
    assert not ann.all(Abandoned)
    assert len(ann.all(ContributorLost)) == 1
    zoe.closes_its_parts("ann", "bea", "zoe")
    for peer in (ann, bea, yan, zoe):
        peer.has()
    assert stage.journaled(RoundCommitted)
    for peer in (ann, bea, yan, zoe):
        peer.is_ready()
    assert {share.reducer.peer for share in stage.plan.shares} == {"yan", "zoe"}


def test_a_part_that_only_a_member_holds_that_cannot_be_dialled_is_pushed() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd", undialable="bob")
    for peer in (ada, cyd):
        peer.closes_its_parts()
    (lost,) = (set(range(share.start, share.stop)) for share in stage.plan.shares if share.reducer.peer == "cyd")
    bob.has()
    ada.has(*(set(range(PARTS)) - lost))
    cyd.breaks()
    stage.wait(GRACE_S + SETTLE_S)
    assert bob.all(Push) == [Push(Contact("ada", "ada:1"))]
    assert ada.last(Fetch).contacts == (Contact("bob", ""),)
    assert {held.part for held in ada.last(Fetch).parts} == lost


@pytest.mark.parametrize("contributors", [(), ("ada", "ada"), ("ada", "eve")])
def test_who_made_a_report_that_cannot_be_true_reduces_no_more_in_this_round_and_the_next(contributors: tuple[str, ...]) -> None:
    stage = Stage()
    ada, bob, _ = stage.reducing("ada", "bob", "cyd")
    stale = stage.core.stale
    round_ = stage.round
    bob.says(PartClosed(PartKey(round_, Section.PARAMETERS, 0), contributors, 40.0, digest(0)))
    assert stage.core.stale == stale + 1  # not his part: no harm is done
    assert stage.round == round_
    bob.says(PartClosed(PartKey(round_, Section.PARAMETERS, 1), contributors, 40.0, digest(1)))
    assert stage.logged("reducer bob reported what cannot be in round 0: part 1 ")
    assert {share.reducer.peer for share in ada.last(Replan).shares} == {"ada"}
    for peer in (ada, bob, _):
        peer.closes_its_parts()
    stage.commit_round([ada, bob, _])
    for peer in (ada, bob, _):
        peer.is_ready()
    assert {share.reducer.peer for share in stage.plan.shares} == {"ada", "cyd"}


def test_a_wait_for_reducers_names_them() -> None:
    stage = Stage()
    ada, bob, _ = stage.reducing("ada", "bob", "cyd")
    bob.closes(1)
    stage.wait(SILENCE_S)
    assert "round 0 to be reduced by ada (ada), cyd (cyd)" in ada.last(Notice).waiting_for


def test_a_complaint_about_who_has_closed_its_parts_does_not_end_the_round() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    bob.closes_its_parts()
    ada.says(Complaint(0, "bob", "timed out"))
    assert not bob.all(Abandoned)


def test_a_reducer_that_delivered_is_forgiven() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob, cyd):
        peer.closes_its_parts()
    ada.says(Complaint(0, "bob", "timed out"))
    for peer in (ada, bob, cyd):
        peer.has()
    for peer in (ada, bob, cyd):
        peer.is_ready()
    assert [share.reducer.peer for share in stage.plan.shares] == ["ada", "bob", "cyd"]


def test_when_everybody_was_complained_about_all_get_another_chance() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    ada.says(Complaint(0, "bob", "refused"))
    bob.says(Complaint(0, "ada", "refused"))
    assert ada.last(Abandoned) == Abandoned(0, "no member that is left can be dialled by the others")
    assert stage.logged("every member was complained about: all get another chance")
    stage.wait(ABANDON_PAUSE_S[0])
    for peer in (ada, bob):
        peer.is_ready()
    assert [share.reducer.peer for share in stage.plan.shares] == ["ada", "bob"]


def test_abandoned_rounds_back_off_and_a_commit_ends_the_backing_off() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    pauses = []
    for _ in range(len(ABANDON_PAUSE_S) + 1):
        before, number = stage.now, stage.round
        ada.is_ready(0)
        bob.is_ready(0)
        while stage.core.round is None:
            assert stage.core.wake_at is not None
            stage.wait(stage.core.wake_at - stage.now)
        pauses.append(stage.now - before)
        assert stage.round == number + 1
    assert pauses == pytest.approx([*ABANDON_PAUSE_S, ABANDON_PAUSE_S[-1]])
    stage.commit_round([ada, bob])
    ada.is_ready(0)
    bob.is_ready(0)
    assert stage.core.round is not None, "the first abandoned round after a commit is followed at once"


def test_an_abandoned_round_keeps_everybodys_lease() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    ada.says(Complaint(0, "bob", "refused"))
    bob.says(Complaint(0, "ada", "refused"))
    assert (ada.last(Open).round, ada.last(Open).lease) == (1, (Span(0, 4),))
    assert (bob.last(Open).round, bob.last(Open).lease) == (1, (Span(4, 8),))


def test_what_a_round_cost_is_summed_from_what_members_say() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    ada.says(Applied(1, 100, 90, 2.0, 0.5))
    bob.says(Applied(1, 50, 40, 3.0, 0.25))
    rounds = stage.ask(GetRounds(1))
    assert isinstance(rounds, Rounds)
    summary = stage.core.ledger.history[0]
    assert (summary.sent_bytes, summary.train_s, summary.wait_s) == (150, 5.0, 0.75)


# --- catching up ----------------------------------------------------------------------------------------------------------------


def test_a_member_that_is_behind_is_told_the_entries_it_lacks() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.commit_round([ada, bob])
    bob.says(Locate(0))
    caught = bob.last(CatchUp)
    assert [commit.version for commit in caught.commits] == [1, 2]
    assert caught.contacts == (Contact("ada", "ada:1"),)
    assert all(commit.contacts == caught.contacts for commit in caught.commits)


def test_a_member_too_far_behind_is_sent_to_the_donors() -> None:
    stage = Stage(spec(state={"keep_entries": 1}))
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.commit_round([ada, bob])
    bob.says(Locate(0))
    assert bob.last(Donors) == Donors(2, (Contact("ada", "ada:1"),))
    assert not bob.all(CatchUp)


def test_a_member_that_is_there_already_hears_so() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    ada.says(Locate(0))
    assert ada.last(CatchUp) == CatchUp((), ())


def test_a_member_that_fetches_is_not_waited_for() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    bob.says(Locate(NO_VERSION))
    assert [c.peer for c in ada.last(Plan).contributions] == ["ada"]


def test_nobody_that_can_hand_over_the_state_is_said_with_what_would_help() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    for peer in (ada, bob):
        peer.breaks()
    stage.wait(GRACE_S)
    cyd = stage.peer("cyd")
    cyd.dial()
    cyd.says(Locate(NO_VERSION))
    fix = "start a peer that still has its local copy (newest here: none)"
    assert cyd.all(Notice)[-2:] == [
        Notice("a peer that can hand over version 1", 0, 1, fix),
        Notice("a member that holds version 1", 0, 1, fix),
    ]
    assert not cyd.all(BuildOrigin)
    ada.session = NO_SESSION
    ada.returns()
    assert cyd.last(Donors).contacts == (Contact("ada", "ada:1"),)


# --- restart --------------------------------------------------------------------------------------------------------------------


def test_a_restart_raises_the_term_and_abandons_the_undecided_round() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    stage.start()
    assert stage.records[-2:] == [TermRaised(2), RoundAbandoned(0, "the coordinator was restarted")]
    for peer in (ada, bob):
        peer.forget()
        peer.returns()
        assert peer.last(Welcome).resumed
        assert peer.last(Welcome).term == 2
    assert (ada.last(Open).round, ada.last(Open).lease) == (1, (Span(0, 4),))


def test_after_a_restart_members_are_expected_back_and_then_given_up() -> None:
    stage = Stage(spec(timing={"lost_after_s": 10.0, "heartbeat_s": 2.0}))
    ada, bob = stage.members("ada", "bob")
    stage.start()
    ada.returns()
    assert ada.last(Notice).waiting_for == "1 member to come back"
    stage.wait(9.0)
    ada.says(Heartbeat())
    assert not ada.last(Open).round
    stage.wait(1.0)
    assert stage.journaled(SessionEnded) == [SessionEnded(bob.session, "was lost: its connection broke")]
    assert ada.last(Open).round == 1


def test_a_restart_after_a_commit_loses_nothing() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.start()
    ada.version = 0  # it had not heard the commit
    ada.dial(root=root(0))
    assert ada.last(Welcome).version == 1
    ada.says(Locate(0))
    assert [commit.version for commit in ada.last(CatchUp).commits] == [1]


def test_a_message_of_the_term_before_is_dropped() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.start()
    for peer in (ada, bob):
        peer.returns()
    ada.says(Ready(1, 40, 4), term=1)
    assert stage.core.stale == 1
    assert stage.core.round is not None
    assert stage.core.round.ready == {}


def test_a_journal_without_a_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="RunCreated"):
        Core(spec()).start(0.0)


# --- fingerprints ---------------------------------------------------------------------------------------------------------------


def test_a_member_that_differs_from_the_majority_resynchronises() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = peers = stage.members("ada", "bob", "cyd")
    stage.commit_round(peers)
    bob.says(Fingerprint(1, root(1, 9)))
    ada.says(Fingerprint(1, root(1)))
    assert not stage.journaled(FingerprintAgreed)
    cyd.says(Fingerprint(1, root(1)))
    assert stage.journaled(FingerprintAgreed) == [FingerprintAgreed(1, root(1), 2, 3)]
    assert bob.last(Resync) == Resync(1, root(1), "your copy differs from the strict majority's")
    assert not ada.all(Resync)
    ada.is_ready()
    cyd.is_ready()
    assert ada.last(Plan).members == ("ada", "cyd")


def test_a_late_fingerprint_is_compared_with_what_was_agreed() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob, cyd = peers = stage.members("ada", "bob", "cyd")
    stage.commit_round(peers)
    for peer in (ada, bob):
        peer.says(Fingerprint(1, root(1)))
    cyd.says(Fingerprint(1, root(1, 9)))
    assert cyd.last(Resync).root == root(1)
    cyd.is_at(1, other=9)
    assert len(cyd.all(Resync)) == 2
    cyd.is_at(1)
    assert len(cyd.all(Resync)) == 2
    assert cyd.session in {presence.session for presence in stage.core._roster.active()}


def test_without_a_majority_the_longest_standing_member_is_right_and_the_journal_says_so() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    bob.says(Fingerprint(1, root(1, 9)))
    assert not stage.journaled(FingerprintAgreed)
    ada.says(Fingerprint(1, root(1)))
    assert stage.journaled(FingerprintAgreed) == [FingerprintAgreed(1, root(1), 1, 2, flagged=True)]
    assert bob.all(Resync)


def test_a_vote_that_waited_for_a_lost_member_is_settled_without_it() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    ada.says(Fingerprint(1, root(1)))
    assert not stage.journaled(FingerprintAgreed)
    bob.breaks()
    stage.wait(GRACE_S)
    assert stage.journaled(FingerprintAgreed) == [FingerprintAgreed(1, root(1), 1, 1)]


# --- operators ------------------------------------------------------------------------------------------------------------------


def status(stage: Stage) -> Status:
    reply = stage.ask(GetStatus())
    assert isinstance(reply, Status)
    return reply


def test_a_pause_lets_the_round_in_flight_finish_and_opens_no_other() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    assert stage.ask(Pause()) == Done("paused: the round in flight finishes, no other opens")
    stage.ask(Pause())
    assert stage.journaled(PauseSet) == [PauseSet(True, "operator")]
    stage.commit_round([ada, bob])
    stage.wait(1000)
    assert stage.core.round is None
    assert status(stage).phase == "paused"
    assert ada.last(Notice) == Notice("an operator to resume the run", 0, 1, "shoal admin resume")
    assert stage.ask(Resume()) == Done("resumed")
    assert ada.last(Open).round == 1
    assert ada.last(Notice).waiting_for == ""


def test_a_stop_asks_everybody_to_wrap_up_and_ends_with_the_commit() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    stage.ask(Stop())
    assert bob.all(Wrap) == [Wrap(0)]
    assert not ada.all(Wrap)
    assert status(stage).phase == "stopping"
    bob.is_ready(1)
    for peer in (ada, bob):
        peer.closes_its_parts()
    for peer in (ada, bob):
        peer.has()
    assert stage.journaled(RunEnded) == [RunEnded(1, "stopped by an operator")]
    assert ada.last(Finish).version == bob.last(Finish).version == 1
    assert len(bob.all(Wrap)) == 1
    assert stage.core.round is None


def test_a_stop_between_rounds_ends_the_run_and_then_the_core_sleeps() -> None:
    stage = Stage()
    ada = stage.peer("ada")
    ada.dial()
    ada.is_at(0)
    stage.ask(Stop())
    assert ada.last(Finish).version == 0
    stage.wait(1000)
    assert status(stage).phase == "ended"


def test_a_run_ends_by_itself_when_its_tokens_are_trained() -> None:
    stage = Stage(spec(total_tokens=160))
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    assert not stage.journaled(RunEnded)
    stage.commit_round([ada, bob])
    assert stage.journaled(RunEnded) == [RunEnded(2, "all 160 tokens are trained")]


@pytest.mark.parametrize("command", [Pause(), Resume(), Stop()], ids=lambda command: type(command).__name__)
def test_nothing_can_be_changed_about_a_run_that_ended(command: AdminCommand) -> None:
    stage = Stage()
    stage.ask(Stop())
    reply = stage.ask(command)
    assert isinstance(reply, AdminError)
    assert "ended at version -1" in reply.reason


def test_operators_see_members_and_rounds_and_the_history_says_who_joined() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    bob.breaks()
    peers, rounds = stage.ask(GetPeers()), stage.ask(GetRounds(10))
    assert isinstance(peers, Peers)
    assert [(view.name, view.state, view.committed_tokens) for view in peers.peers] == [
        ("ada", "active", 40),
        ("bob", "reconnecting", 40),
    ]
    assert isinstance(rounds, Rounds)
    assert [(view.round, view.state) for view in rounds.rounds] == [(0, "committed"), (1, "open")]
    assert stage.logged("joined as session 2")
    assert (status(stage).phase, status(stage).version, status(stage).members) == ("training", 1, 1)


# --- waiting --------------------------------------------------------------------------------------------------------------------


def test_after_five_seconds_the_ready_ones_are_told_whom_they_wait_for() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    stage.wait(4.9)
    assert not ada.all(Notice)[-1].waiting_for
    stage.wait(0.1)
    assert ada.last(Notice) == Notice("bob (bob) to finish training in round 0", 1, 2, "nothing to do")
    bob.is_ready()
    assert ada.last(Notice) == Notice("")


def test_who_comes_while_the_run_waits_is_told_why() -> None:
    stage = Stage(spec(min_peers=3))
    ada = stage.members("ada")[0]
    assert ada.last(Notice) == Notice("2 more peers", 1, 3, "invite more with `shoal admin invite`, or wait")
    bob = stage.peer("bob")
    bob.dial()
    assert ada.last(Notice).waiting_for == bob.last(Notice).waiting_for == "1 more peer"
    stage.peer("cyd").dial()
    assert ada.last(Notice).waiting_for == bob.last(Notice).waiting_for == "enough members to get ready"


def test_a_pause_after_abandoned_rounds_is_explained_when_it_is_long() -> None:
    stage = Stage()
    ada = stage.members("ada")[0]
    for pause in ABANDON_PAUSE_S[:6]:
        assert not ada.all(Notice)[-1].waiting_for
        ada.is_ready(0)
        if stage.core.round is None and pause <= SILENCE_S:
            stage.wait(pause)
    assert ada.last(Notice).waiting_for == ("the next round, because round 5 was abandoned: no data: every member's weight is 0")
    stage.wait(ABANDON_PAUSE_S[5])
    assert ada.last(Notice).waiting_for == ""
    assert ada.last(Open).round == 6


def test_a_run_below_its_minimum_waits_and_goes_on_by_itself() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.members("ada", "bob")
    bob.breaks()
    stage.wait(GRACE_S)
    stage.commit_round([ada])
    assert stage.core.round is None
    assert ada.last(Notice).waiting_for == "1 more peer"
    bob.session = NO_SESSION
    bob.dial()
    bob.says(Locate(0))
    bob.is_at(1)
    assert ada.last(Open).round == bob.last(Open).round == 1


# --- evaluation -----------------------------------------------------------------------------------------------------------------


def test_evaluation_goes_round_and_only_the_one_asked_is_believed() -> None:
    stage = Stage(spec(evaluation={"every": 1}))
    ada, bob = stage.members("ada", "bob")
    assert ada.all(Evaluate) == [Evaluate(0)]
    bob.says(Evaluated(0, 1.0, 99))
    ada.says(Evaluated(0, 8.0, 100))
    ada.says(Evaluated(0, 7.0, 100))
    assert stage.journaled(PeerEvaluated) == [PeerEvaluated(0, "ada", 8.0, 100)]
    stage.commit_round([ada, bob])
    assert bob.all(Evaluate) == [Evaluate(1)]
    stage.commit_round([ada, bob])
    assert ada.last(Evaluate) == Evaluate(2)
    bob.says(Evaluated(1, 7.0, 100))
    assert len(stage.journaled(PeerEvaluated)) == 1


def test_evaluation_every_so_many_versions_and_again_when_it_came_too_late() -> None:
    stage = Stage(spec(evaluation={"every": 2}))
    ada = stage.members("ada")[0]
    ada.forget()
    stage.commit_round([ada])
    assert not ada.all(Evaluate)
    stage.commit_round([ada])
    stage.commit_round([ada])
    assert ada.all(Evaluate) == [Evaluate(2)]
    ada.says(Evaluated(2, 0.0, 0))
    assert ada.all(Evaluate) == [Evaluate(2), Evaluate(3)]


# --- leaving and the end --------------------------------------------------------------------------------------------------------


def test_who_leaves_is_let_go_and_the_others_go_on() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.is_ready()
    bob.says(Goodbye("the volunteer left"))
    assert bob.last(Dismissed).reason == "left: the volunteer left"
    assert not bob.last(Dismissed).may_return
    assert not bob.all(Finish)
    assert ada.last(Plan).members == ("ada",)


@pytest.mark.parametrize(("silent_s", "safe"), [(0.0, True), (2.9, True), (3.1, False)])
def test_a_leavers_copy_is_given_up_only_for_that_of_somebody_heard_just_now(silent_s: float, safe: bool) -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.wait(silent_s)
    bob.says(Goodbye("the volunteer left"))
    assert bob.last(Dismissed).copy_is_safe is safe


def test_the_last_to_leave_is_asked_for_the_model_first() -> None:
    stage = Stage()
    ada = stage.members("ada")[0]
    stage.commit_round([ada])
    ada.forget()
    ada.says(Goodbye("the volunteer left"))
    assert [type(body) for body in ada.heard] == [Finish, Dismissed]
    assert ada.last(Finish).version == 1


def ended(*names: str) -> tuple[Stage, list[Peer]]:
    """A run that ended at version 1 with these members."""
    stage = Stage(spec(total_tokens=1))
    peers = stage.members(*names)
    stage.commit_round(peers)
    assert stage.journaled(RunEnded)
    return stage, peers


def test_at_the_end_all_leave_together() -> None:
    stage, (ada, bob) = ended("ada", "bob")
    ada.says(Goodbye("the run is over"))
    assert not ada.all(Dismissed)
    bob.says(Goodbye("the run is over"))
    assert ada.last(Dismissed).reason == bob.last(Dismissed).reason == "left: the run is over"
    assert not ada.last(Dismissed).may_return
    assert stage.core.wake_at is None


def test_a_member_that_still_fetches_at_the_end_is_waited_for() -> None:
    stage, (ada, bob) = ended("ada", "bob")
    bob.says(Locate(0))
    ada.says(Goodbye("the run is over"))
    stage.wait(FAREWELL_S - 1)
    assert not ada.all(Dismissed)
    bob.is_at(1)
    assert bob.last(Finish).version == 1
    bob.says(Goodbye("the run is over"))
    assert ada.all(Dismissed)


def test_a_member_that_could_not_fetch_the_last_version_is_told_so() -> None:
    stage, (ada, bob) = ended("ada", "bob")
    bob.says(Locate(0))
    ada.says(Goodbye("the run is over"))
    stage.wait(FAREWELL_S)
    assert ada.last(Dismissed).reason == "left: the run is over"
    assert bob.last(Dismissed).reason == "did not get version 1: the run is over, and those who hold it have left"
    assert stage.logged("bob (bob) did not get version 1")
    assert stage.core.wake_at is None


def test_when_nobody_can_hand_over_the_last_version_any_more_who_lacks_it_is_let_go_at_once() -> None:
    stage = Stage(spec(total_tokens=100, state={"keep_entries": 1}))
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.commit_round([ada, bob])
    ada.breaks()
    bob.says(Locate(0))
    assert not bob.all(Dismissed), "ada is expected back"
    stage.wait(GRACE_S)
    assert bob.last(Dismissed).reason == "cannot take part any more: the run ended at version 2"


def test_a_member_that_still_writes_the_model_is_not_said_to_lack_it() -> None:
    stage, (ada, bob) = ended("ada", "bob")
    ada.says(Goodbye("the run is over"))
    stage.wait(FAREWELL_S)
    assert bob.last(Dismissed).reason == "left: the run is over"


def test_a_member_that_disconnects_after_its_goodbye_has_left() -> None:
    stage, (ada, _bob) = ended("ada", "bob")
    ada.says(Goodbye("the run is over"))
    ada.breaks()
    assert stage.journaled(SessionEnded) == [SessionEnded(ada.session, "left")]


def test_who_joins_after_the_end_can_still_fetch_the_model() -> None:
    stage, (_ada,) = ended("ada")
    bob = stage.peer("bob")
    bob.dial()
    bob.says(Locate(NO_VERSION))
    assert bob.last(Donors) == Donors(1, (Contact("ada", "ada:1"),))
    bob.is_at(1)
    assert bob.last(Finish).version == 1


def test_after_a_restart_at_the_end_who_is_behind_waits_for_the_others_to_come_back() -> None:
    stage, (ada, bob) = ended("ada", "bob")
    stage.start()
    bob.dial(version=0, root=root(0))
    assert bob.last(Welcome).resumed
    bob.says(Locate(0))
    ada.returns()
    assert [commit.version for commit in bob.last(CatchUp).commits] == [1]
    stage.start()
    bob.dial(version=0, root=root(0))
    ada.dial()
    bob.dial(version=0, root=root(0))
    assert not bob.all(Refused)


def test_a_restart_after_the_end_tells_everybody_again() -> None:
    stage, (ada,) = ended("ada")
    stage.start()
    ada.forget()
    ada.returns()
    assert ada.last(Finish).version == 1
    assert len(stage.journaled(RunEnded)) == 1


# --- links ----------------------------------------------------------------------------------------------------------------------


def test_a_plan_gives_the_parts_to_the_links_that_heartbeats_say_are_fast() -> None:
    stage = Stage()
    ada, bob, cyd = stage.members("ada", "bob", "cyd")
    for peer, rate in ((ada, 1e6), (bob, 12.5e6), (cyd, 12.5e6)):
        peer.says(Heartbeat("training", up_bytes_s=rate, down_bytes_s=rate))
        peer.is_ready()
    assert {share.reducer.peer for share in stage.plan.shares} == {"bob", "cyd"}


def helper(stage: Stage, name: str = "hal", address: str | None = None) -> Peer:
    """It joins, is given the state by whoever has it, and is there."""
    peer = stage.peer(name, address)
    peer.dial(helper=True)
    peer.is_at(0)
    return peer


def two_behind_nat(stage: Stage) -> list[Peer]:
    """Ada built version 0, bob holds it, too; neither can be dialled."""
    peers = [stage.peer(name, address="") for name in ("ada", "bob")]
    for peer in peers:
        peer.dial()
        peer.is_at(0)
    return peers


def test_two_behind_nat_wait_for_a_helper_by_name_and_one_lets_them_go_on() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = two_behind_nat(stage)
    stage.wait(60)
    assert stage.core.round is None
    assert ada.last(Notice).waiting_for == "a member that others can dial"
    assert "shoal peer join --helper" in ada.last(Notice).fix
    hal = helper(stage)
    stage.wait(JOIN_WAIT_S)
    assert ada.last(Open).members == 2
    assert not hal.all(Open)
    ada.is_ready()
    bob.is_ready()
    assert {share.reducer for share in hal.last(Plan).shares} == {Contact("hal", "hal:1")}
    assert [c.peer for c in hal.last(Plan).contributions] == ["ada", "bob"]
    assert hal.last(Plan).members == ("ada", "bob", "hal")
    hal.closes_its_parts()
    for peer in (ada, bob, hal):
        peer.has()
    (committed,) = stage.journaled(RoundCommitted)
    assert [c.peer for c in committed.contributions] == ["ada", "bob"]
    hal.breaks()
    stage.wait(GRACE_S + ABANDON_PAUSE_S[1])
    assert [record.reason for record in stage.journaled(RoundAbandoned)] == []
    ada.forget()
    ada.is_ready()
    bob.is_ready()
    assert "no member can be dialled" in stage.journaled(RoundAbandoned)[0].reason
    assert ada.last(Notice).waiting_for == "a member that others can dial"


def test_a_hidden_newcomer_that_only_hidden_members_could_serve_is_why_the_run_waits() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.peer("ada", address=""), stage.peer("bob", address="")
    ada.dial()
    ada.is_at(0)
    bob.dial()
    bob.says(Locate(NO_VERSION))
    stage.wait(60)
    status = stage.ask(GetStatus())
    assert isinstance(status, Status)
    assert "--helper" in status.waiting_for


def test_a_helper_counts_as_no_trainer_and_is_asked_for_nothing_that_trainers_do() -> None:
    stage = Stage(spec(min_peers=2, evaluation={"every": 1}))
    ada = stage.peer("ada")
    ada.dial()
    ada.is_at(0)
    hal = helper(stage)
    stage.wait(60)
    assert stage.core.round is None
    assert ada.last(Notice).waiting_for == "1 more peer"
    status = stage.ask(GetStatus())
    assert isinstance(status, Status)
    assert status.members == 1
    bob = stage.peer("bob")
    bob.dial()
    bob.is_at(0)
    stage.wait(JOIN_WAIT_S)
    for _ in range(3):
        for peer in (ada, bob):
            peer.is_ready()
        for peer in (ada, bob, hal):
            peer.closes_its_parts()
        for peer in (ada, bob, hal):
            peer.has()
    assert stage.core.ledger.version == 3
    assert len(ada.all(Evaluate) + bob.all(Evaluate)) == 4
    assert not hal.all(Evaluate)
    assert not any(grant.session == hal.session for opened in stage.journaled(RoundOpened) for grant in opened.grants)


def test_a_helper_builds_no_version_0_and_gets_it_from_whoever_does() -> None:
    stage = Stage()
    hal = stage.peer("hal")
    hal.dial(helper=True)
    hal.says(Locate(NO_VERSION))
    assert not hal.all(BuildOrigin)
    assert hal.last(Notice).waiting_for == "a peer that builds version 0"
    ada = stage.peer("ada", address="")
    ada.dial()
    ada.says(Locate(NO_VERSION))
    assert ada.all(BuildOrigin)
    ada.is_at(0)
    assert hal.last(Donors) == Donors(0, (Contact("ada", ""),))
    assert ada.last(Push) == Push(Contact("hal", "hal:1"))


def test_parts_and_states_that_only_hidden_members_hold_are_pushed() -> None:
    stage = Stage(spec(state={"keep_entries": 1}))
    ada = stage.peer("ada", address="")
    ada.dial()
    ada.is_at(0)
    stage.wait(JOIN_WAIT_S)
    stage.commit_round([ada])
    bob, cyd = stage.peer("bob"), stage.peer("cyd", address="")
    for peer in (bob, cyd):
        peer.dial()
        peer.says(Locate(0))
    assert bob.last(CatchUp).contacts == (Contact("ada", ""),)
    assert ada.last(Push) == Push(Contact("bob", "bob:1"))
    assert "ada" not in [contact.peer for contact in cyd.last(CatchUp).contacts], "neither can dial the other"
    stage.commit_round([ada])
    bob.says(Locate(0))
    assert bob.last(Donors).contacts == (Contact("ada", ""),)
    cyd.says(Locate(0))
    assert "--helper" in cyd.last(Notice).fix
    bob.is_at(2)
    assert cyd.last(Donors).contacts == (Contact("bob", "bob:1"),)


def test_donors_that_failed_may_dial_instead() -> None:
    stage = Stage()
    stage.members("ada", "bob")
    cyd = stage.peer("cyd")
    cyd.dial()
    cyd.says(Locate(NO_VERSION))
    assert "" not in [contact.address for contact in cyd.last(Donors).contacts]
    cyd.says(Locate(NO_VERSION, ("ada", "bob")))
    assert cyd.last(Donors).contacts[0].address == ""


def test_an_older_release_is_not_asked_to_push() -> None:
    stage = Stage()
    ada = stage.peer("ada", address="")
    ada.dial(minor=0)
    ada.is_at(0)
    hal = stage.peer("hal")
    hal.dial(helper=True)
    hal.says(Locate(NO_VERSION))
    assert not ada.all(Push)


def test_the_last_trainer_writes_the_model_though_a_helper_stays() -> None:
    stage = Stage()
    ada, hal = stage.peer("ada"), stage.peer("hal")
    ada.dial()
    ada.is_at(0)
    hal.dial(helper=True)
    hal.is_at(0)
    stage.wait(JOIN_WAIT_S)
    ada.is_ready()
    for peer in (ada, hal):
        peer.closes_its_parts()
    for peer in (ada, hal):
        peer.has()
    ada.says(Goodbye())
    assert not ada.last(Finish).run_is_over
    hal.says(Goodbye())
    assert not hal.all(Finish)


def test_plans_reckon_with_what_the_codecs_send_and_return() -> None:
    divided = []
    for codec in ({"send": "raw", "return": "int8"}, {"send": "int8", "return": "raw"}):
        stage = Stage(spec(codec=codec))
        peers = stage.members("ada", "bob", "cyd")
        for peer, up in zip(peers, (1e6, 4e6, 4e6), strict=True):
            peer.says(Heartbeat("training", up_bytes_s=up, down_bytes_s=1e7))
            peer.is_ready()
        divided.append([(share.reducer.peer, share.stop - share.start) for share in stage.plan.shares])
    assert divided[0] != divided[1]


def test_a_peer_that_comes_back_as_a_helper_is_somebody_new() -> None:
    stage = Stage()
    (ada,) = stage.members("ada")
    before = ada.session
    ada.breaks()
    ada.dial(helper=True)
    assert ada.session != before
    assert ada.last(Welcome).resumed is False
