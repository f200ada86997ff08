"""A peer's decisions, one at a time: an event in, its effects out. Whole histories are `tests/simulation`'s.

`Desk` is the engine of peer "bob" on a hand-driven clock, with short words for what the coordinator, the trainer and other peers do
to it. A quota is 4 samples of 10 tokens; an entry has 3 parts, of which ada reduces the first, bob the second, cyd the third.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from shoal.peer.engine import (
    EXIT_DISMISSED,
    EXIT_DONE,
    EXIT_REFUSED,
    FINISH_ROUND_S,
    HAVE_PAUSE_S,
    LEAVE_S,
    LOCATE_PAUSE_S,
    OLD_SELF_S,
    STALL_S,
    STALLED,
    Engine,
    Introduction,
    Kept,
)
from shoal.peer.events import (
    Add,
    Apply,
    Bar,
    BeginReduce,
    BuildState,
    ClosePart,
    Collect,
    ContributionArrived,
    ContributionRefused,
    Discard,
    DropPart,
    DropPending,
    DropRound,
    Effect,
    EntryApplied,
    EvaluateState,
    EvaluationDone,
    Event,
    Exit,
    Export,
    Exported,
    FetchPart,
    FetchState,
    HangUp,
    Hashed,
    HashState,
    Heard,
    KeepSession,
    LeaveAsked,
    LinkMeasured,
    MeasureLink,
    Offline,
    Online,
    OriginReady,
    PartFetchFailed,
    PartReduced,
    Progressed,
    Published,
    PushTo,
    Relabel,
    ResultArrived,
    ReturnPart,
    Say,
    SendPart,
    Serve,
    StartTrainer,
    StateFetched,
    StateFetchFailed,
    StreamFailed,
    Tell,
    TimePassed,
    Train,
    TrainerAttached,
    TrainerLost,
    WrapUp,
)
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Abandoned,
    Applied,
    Barred,
    BuildOrigin,
    CatchUp,
    Commit,
    Complaint,
    Contact,
    Contribution,
    ContributorLost,
    Decision,
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
    Goodbye,
    Have,
    Heartbeat,
    Held,
    Hello,
    Layout,
    Leave,
    Locate,
    Measure,
    Notice,
    Open,
    PartClosed,
    PartKey,
    Plan,
    Push,
    Reachability,
    Ready,
    Refused,
    Replan,
    Resync,
    Section,
    Share,
    Span,
    StateReady,
    StopRule,
    Welcome,
    Wrap,
)
from shoal.protocol.spec import RunSpec

PARAMETERS = Section.PARAMETERS
SPEC = RunSpec.of(
    run={"name": "run", "total_tokens": 10**6},
    data={"sequence_length": 10},
    train={"batch": 2, "steps": 2},
    evaluation={"every": 0},
)
LAYOUT, DATA = Layout(b"L" * 32, 30, (FragmentShape(3),)), b"d" * 32
ADA, BOB, CYD = (Contact(peer, f"{peer}:1") for peer in ("ada", "bob", "cyd"))
NOTHING = Kept()
T = TypeVar("T")


def root(version: int, other: int = 0) -> bytes:
    return bytes([version + 1, other]) * 16


def digest(round_id: int, part: int) -> bytes:
    return bytes([round_id + 1, part]) * 16


def key(round_id: int, part: int, attempt: int = 0) -> PartKey:
    return PartKey(round_id, PARAMETERS, part, attempt)


def opened(round_id: int, base: int, *lease: Span, tokens: int = 0) -> Open:
    return Open(round_id, 0, 0, base, lease or (Span(0, 4),), 4, tokens, 120, 3)


def plan(round_id: int, base: int, term: int = 1) -> Plan:
    contributions = (Contribution("ada", 40), Contribution("bob", 40), Contribution("cyd", 20))
    shares = tuple(Share(contact, PARAMETERS, part, part + 1) for part, contact in enumerate((ADA, BOB, CYD)))
    return Plan(round_id, term, 0, 0, base, contributions, ("ada", "bob", "cyd"), shares, 30.0)


def commit(version: int, round_id: int, *without_me: int) -> Commit:
    """Everybody is in it; bob is left out of the parts `without_me`."""
    parts = []
    for part in range(3):
        contributors = ("ada", "cyd") if part in without_me else ("ada", "bob", "cyd")
        parts.append(Decision(PARAMETERS, part, 0, digest(round_id, part), contributors, 60.0 if part in without_me else 100.0))
    return Commit(version, round_id, 0, 0, version - 1, tuple(parts), 100 * version, 0.7, 0.9, (ADA, BOB))


class Desk:
    """Bob's engine, and everything that it wanted done."""

    def __init__(self, kept: Kept = NOTHING) -> None:
        self.engine = Engine(Introduction("run", "instance", "bob", "bob:1", "Bob", "cpu", "shoal 1"), kept)
        self.now = 500.0
        self.session, self.term = 1, 1
        self.done: list[Effect] = []
        """What came of the last thing that happened."""

    # --- what happens to it -----------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> list[Effect]:
        self.done = self.engine.on(event, self.now)
        return self.done

    def hears(self, body: FromCoordinator, session: int | None = None, term: int | None = None) -> list[Effect]:
        ids = (self.session if session is None else session, self.term if term is None else term)
        return self.feed(Heard(Envelope(*ids, body)))

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes; the engine is woken whenever it asked to be."""
        end = self.now + seconds
        done: list[Effect] = []
        for _ in range(100):
            due = self.engine.wake_at
            if due is None or due > end:
                self.now, self.done = end, done
                return done
            self.now = max(self.now, due)
            done += self.engine.on(TimePassed(), self.now)
        raise AssertionError(f"the engine spins: at {self.now} it wants to wake at {self.engine.wake_at}")

    def dials(self) -> list[Effect]:
        return self.feed(Online())

    def is_welcomed(self, version: int = NO_VERSION, resumed: bool = False, session: int = 1, term: int = 1) -> list[Effect]:
        self.session, self.term = session, term
        welcome = Welcome(session, term, resumed, version, SPEC.to_json(), 2.0, 10.0)
        return self.hears(welcome, session, term)

    def publishes(self, round_id: int, trained: int = 4) -> list[Effect]:
        return self.feed(Published(round_id, trained, 10 * trained, 2, 3.5, 1.5))

    def reduces(self, round_id: int) -> list[Effect]:
        """Everybody's contribution to bob's part comes, and the part is reduced."""
        for peer in ("ada", "bob", "cyd"):
            self.feed(ContributionArrived(key(round_id, 1), peer))
        return self.feed(PartReduced(key(round_id, 1), digest(round_id, 1)))

    def collects(self, round_id: int, *parts: int) -> list[Effect]:
        """The others' parts come back."""
        done = []
        for part in parts or (0, 2):
            done += self.feed(ResultArrived(key(round_id, part), digest(round_id, part)))
        self.done = done
        return done

    # --- short stories ----------------------------------------------------------------------------------------------------------

    @classmethod
    def member(cls, version: int = 0, trained: int = 0) -> Desk:
        """A peer that came back to its session with this version, has said so and idles."""
        desk = cls(Kept(1, version, trained, root(version)))
        desk.dials()
        desk.is_welcomed(version, resumed=True)
        desk.feed(TrainerAttached(LAYOUT, DATA))
        return desk

    @classmethod
    def reducing(cls, round_id: int = 0) -> Desk:
        """A member whose work for the round is published and planned."""
        desk = cls.member()
        desk.hears(opened(round_id, 0))
        desk.publishes(round_id)
        desk.hears(plan(round_id, 0))
        return desk

    @classmethod
    def holding(cls, round_id: int = 0) -> Desk:
        """A member that holds the whole result of the round."""
        desk = cls.reducing(round_id)
        desk.reduces(round_id)
        desk.collects(round_id)
        return desk

    # --- what came of it --------------------------------------------------------------------------------------------------------

    def did(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.done if isinstance(effect, kind)]

    def said(self, kind: type[T]) -> list[T]:
        return [effect.body for effect in self.did(Say) if isinstance(effect.body, kind)]


def kinds(effects: Iterable[Effect]) -> list[str]:
    return [type(effect.body if isinstance(effect, Say) else effect).__name__ for effect in effects]


# --- the stream -----------------------------------------------------------------------------------------------------------------


def test_a_new_stream_starts_with_hello_and_what_is_held() -> None:
    desk = Desk(Kept(7, 3, 0, root(3)))
    hello = Hello("run", PROTOCOL_MAJOR, PROTOCOL_MINOR, "instance", 7, 3, root(3), None, "bob:1", "Bob", "cpu", "shoal 1")
    assert desk.dials() == [Say(NO_SESSION, 0, hello)]


def test_the_first_welcome_starts_the_trainer_and_keeps_the_session() -> None:
    desk = Desk()
    desk.dials()
    assert kinds(desk.is_welcomed()) == ["StartTrainer", "DropPending", "KeepSession", "Heartbeat"]
    assert desk.did(StartTrainer) == [StartTrainer(SPEC.to_json())]
    assert desk.did(KeepSession) == [KeepSession(1)]
    desk.feed(Offline("broken"))
    desk.dials()
    assert desk.is_welcomed(resumed=True, term=2) == [Say(1, 2, Heartbeat("starting the trainer"))]


def test_nothing_is_said_before_the_welcome_or_after_the_stream_broke() -> None:
    desk = Desk(Kept(1, 0, 0, root(0)))
    desk.feed(TrainerAttached(LAYOUT))
    assert not desk.did(Say)
    desk.dials()
    desk.is_welcomed(0, resumed=True)
    assert desk.said(StateReady)
    desk.feed(Offline("broken"))
    assert not [effect for effect in desk.wait(100) if isinstance(effect, Say)]


def test_heartbeats_come_at_the_runs_pace_with_the_trainers_progress() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.feed(Progressed(5, 3.25, 1000.0, samples=3))
    desk.wait(6.0)
    assert desk.said(Heartbeat) == [Heartbeat("training", 5, 3.25, 1000.0, round=0, samples=3)] * 3


@pytest.mark.parametrize(("session", "term"), [(2, 1), (1, 0), (1, 2), (NO_SESSION, 0)])
def test_a_message_of_another_session_or_term_is_dropped(session: int, term: int) -> None:
    desk = Desk.member()
    assert desk.hears(opened(0, 0), session, term) == []
    assert desk.engine.stale == 1
    assert desk.engine.opened is None


def test_what_was_said_on_the_old_stream_is_said_again_on_the_new_one() -> None:
    desk = Desk.reducing()
    desk.reduces(0)
    desk.collects(0, 0)
    desk.feed(Offline("broken"))
    desk.dials()
    assert kinds(desk.is_welcomed(0, resumed=True)) == ["Heartbeat", "StateReady", "Ready", "PartClosed", "Have"]
    assert desk.said(PartClosed) == [PartClosed(key(0, 1), ("ada", "bob", "cyd"), 100.0, digest(0, 1))]
    assert desk.said(Have) == [Have(0, (Held(PARAMETERS, 1, 0, digest(0, 1)), Held(PARAMETERS, 0, 0, digest(0, 0))))]


def test_a_notice_is_told_whole_and_forgotten_when_the_run_goes_on() -> None:
    desk = Desk.member()
    desk.hears(Notice("1 more peer", 2, 3, "invite one"))
    assert desk.done == [Tell("waiting for 1 more peer (have 2, need 3): invite one")]
    assert desk.hears(Notice("")) == []
    assert desk.engine.waiting_for == ""


# --- refused and dismissed ------------------------------------------------------------------------------------------------------


def test_a_new_stream_says_where_the_peer_is_now_and_without_news_where_it_was() -> None:
    desk = Desk()
    told = []
    for address in (None, "10.0.0.9:7", None, ""):
        [said] = desk.feed(Online(address))
        assert isinstance(said, Say)
        assert isinstance(said.body, Hello)
        told.append(said.body.address)
        desk.feed(Offline("away"))
    assert told == ["bob:1", "10.0.0.9:7", "10.0.0.9:7", ""]


def test_what_the_coordinator_found_out_about_the_address_is_said_to_the_volunteer() -> None:
    desk = Desk()
    desk.dials()
    desk.is_welcomed()
    desk.hears(Reachability("", "the coordinator could not dial this peer at bob:1", "let firewalls pass port 1"))
    assert desk.done == [Tell("the coordinator could not dial this peer at bob:1 — let firewalls pass port 1", "warning")]


def test_a_link_is_measured_when_asked_for_unless_it_is_known() -> None:
    desk = Desk()
    desk.dials()
    desk.is_welcomed()
    desk.hears(Measure(ADA))
    assert desk.done == [MeasureLink(ADA)]
    desk.feed(LinkMeasured(1e6, 2e6))
    desk.hears(Measure(ADA))
    assert desk.done == []


def test_a_refusal_ends_the_daemon_with_reason_and_fix() -> None:
    desk = Desk()
    desk.dials()
    desk.hears(Refused("VERSION", "too old", "update"), NO_SESSION, 0)
    assert desk.done == [Exit(EXIT_REFUSED, "the coordinator refused this peer: too old", "update")]
    assert desk.feed(Online()) == []


def test_a_restarted_daemon_is_patient_with_its_own_old_stream_for_a_while() -> None:
    desk = Desk(Kept(1, 0, 0, root(0)))
    refused = Refused("ALREADY_EXISTS", "a daemon with this identity is a member already")
    for _ in range(3):
        desk.dials()
        desk.hears(refused, NO_SESSION, 1)
        assert desk.did(HangUp)
        desk.feed(Offline("hung up"))
        desk.wait(OLD_SELF_S / 4)
    desk.wait(OLD_SELF_S / 4)
    desk.dials()
    desk.hears(refused, NO_SESSION, 1)
    assert [effect.code for effect in desk.did(Exit)] == [EXIT_REFUSED]


def test_a_daemon_without_a_session_does_not_wait_for_another_with_its_identity() -> None:
    desk = Desk()
    desk.dials()
    desk.hears(Refused("ALREADY_EXISTS", "member already"), NO_SESSION, 1)
    assert desk.did(Exit)


def test_a_dismissed_peer_that_may_return_joins_again_as_somebody_new() -> None:
    desk = Desk.member()
    desk.hears(Dismissed("was lost: silent for 10 s", may_return=True))
    assert kinds(desk.done) == ["Tell", "HangUp"]
    desk.feed(Offline("hung up"))
    desk.dials()
    hello = desk.said(Hello)[0]
    assert (hello.session, hello.version) == (NO_SESSION, 0)


def test_a_dismissed_peer_that_may_not_return_ends() -> None:
    desk = Desk.member()
    desk.hears(Dismissed("did not get version 4", may_return=False))
    assert desk.done == [Exit(EXIT_DISMISSED, "dismissed: did not get version 4")]


# --- a new membership -----------------------------------------------------------------------------------------------------------


def rejoins(desk: Desk, version: int = 0) -> None:
    """The stream breaks, and the coordinator knows another membership only."""
    desk.feed(Offline("broken"))
    desk.dials()
    desk.is_welcomed(version, resumed=False, session=5)


def test_a_new_membership_drops_pending_work_that_others_were_leased() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.publishes(0)
    rejoins(desk)
    assert kinds(desk.done) == ["DropPending", "KeepSession", "Heartbeat", "StateReady"]
    assert desk.engine.trained == 0
    desk.hears(opened(1, 0, Span(8, 12)))
    assert desk.did(Train) == [Train(1, 0, (Span(8, 12),), 0, 4, 0, 120)]


def test_what_is_trained_for_an_old_membership_is_dropped_when_it_is_published() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    rejoins(desk)
    assert desk.did(WrapUp)
    desk.hears(opened(1, 0, Span(8, 12)))
    assert not desk.did(Train)
    desk.publishes(0, trained=2)
    assert kinds(desk.done) == ["DropPending", "Train"]
    assert desk.did(Train)[0].trained == 0


def test_a_resumed_membership_keeps_pending_work() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.publishes(0)
    desk.feed(Offline("broken"))
    desk.dials()
    desk.is_welcomed(0, resumed=True)
    assert not desk.did(DropPending)
    assert desk.said(Ready) == [Ready(0, 40, 4, 2, 3.5, 1.5)]


def test_a_restarted_daemon_contributes_the_work_that_it_finds() -> None:
    desk = Desk.member(version=3, trained=4)
    desk.hears(opened(9, 3))
    assert desk.said(Ready) == [Ready(9, 40, 4)]
    assert not desk.did(Train)


# --- getting the state ----------------------------------------------------------------------------------------------------------


def newcomer(version: int = NO_VERSION) -> Desk:
    desk = Desk()
    desk.dials()
    desk.is_welcomed(version)
    desk.feed(TrainerAttached(LAYOUT, DATA))
    return desk


def test_a_newcomer_asks_builds_version_0_and_says_what_it_is() -> None:
    desk = newcomer()
    assert desk.done == [Say(1, 1, Locate(NO_VERSION))]
    assert desk.hears(BuildOrigin()) == [BuildState()]
    assert desk.hears(BuildOrigin()) == []
    assert desk.feed(OriginReady(root(0))) == [Say(1, 1, StateReady(0, root(0), LAYOUT, DATA))]


def test_a_newcomer_fetches_the_state_and_says_that_it_is_there() -> None:
    desk = newcomer(version=6)
    assert desk.hears(Donors(6, (ADA, CYD))) == [FetchState(6, (ADA, CYD))]
    assert desk.feed(StateFetched(7, root(7), "ada")) == [Serve(True), Say(1, 1, StateReady(7, root(7), LAYOUT, DATA))]


def test_failed_donors_are_named_and_asking_again_takes_longer_and_longer() -> None:
    desk = newcomer(version=6)
    pauses = []
    for _ in range(len(LOCATE_PAUSE_S) + 1):
        desk.hears(Donors(6, (ADA, CYD)))
        before = desk.now
        asked = desk.feed(StateFetchFailed("version 6", ("ada",)))
        while not desk.said(Locate):
            assert desk.engine.wake_at is not None
            asked = desk.wait(desk.engine.wake_at - desk.now)
        assert Say(1, 1, Locate(NO_VERSION, ("ada",))) in asked
        pauses.append(desk.now - before)
    assert pauses == pytest.approx([*LOCATE_PAUSE_S, LOCATE_PAUSE_S[-1]])


def test_an_offer_of_what_is_here_already_is_answered_with_state_ready() -> None:
    desk = Desk.member(version=6)
    assert desk.hears(Donors(6, (ADA,))) == [Say(1, 1, StateReady(6, root(6), LAYOUT, DATA))]


def test_a_state_whose_fingerprint_is_unknown_is_hashed_before_it_is_announced() -> None:
    desk = Desk(Kept(1, 2))
    desk.dials()
    desk.is_welcomed(2, resumed=True)
    assert desk.feed(TrainerAttached(LAYOUT)) == [HashState(2)]
    assert not desk.wait(1.0)
    desk.feed(Hashed(2, root(2)))
    assert desk.said(StateReady) == [StateReady(2, root(2), LAYOUT)]


def test_a_member_that_is_behind_applies_the_entries_in_order_part_by_digest() -> None:
    desk = Desk(Kept(1, 0, 0, root(0)))
    desk.dials()
    desk.is_welcomed(2, resumed=True)
    assert desk.said(Locate) == [Locate(0)]
    desk.feed(TrainerAttached(LAYOUT, DATA))
    desk.hears(CatchUp((commit(1, 10), commit(2, 11)), (ADA,)))
    assert desk.did(FetchPart) == [FetchPart(key(10, part), digest(10, part), (ADA,)) for part in range(3)]
    for part in (2, 0):
        assert not desk.feed(ResultArrived(key(10, part), digest(10, part)))
    desk.feed(ResultArrived(key(10, 1), digest(10, 1)))
    assert desk.did(Apply) == [Apply(commit(1, 10), (False, False, False), 0)]
    desk.feed(EntryApplied(1))
    assert [effect.key.round for effect in desk.did(FetchPart)] == [11, 11, 11]
    for part in range(3):
        desk.feed(ResultArrived(key(11, part), digest(11, part)))
    desk.feed(EntryApplied(2))
    assert desk.engine.version == 2
    assert not desk.said(StateReady)
    desk.feed(Hashed(2, root(2)))
    assert desk.said(StateReady) == [StateReady(2, root(2), LAYOUT, DATA)]


def test_an_empty_catch_up_is_answered_with_state_ready() -> None:
    desk = Desk.member()
    assert desk.hears(CatchUp((), ())) == [Say(1, 1, StateReady(0, root(0), LAYOUT, DATA))]


def test_a_part_that_nobody_serves_is_asked_for_anew_and_now_and_then_the_whole_state() -> None:
    desk = Desk(Kept(1, 0, 0, root(0)))
    desk.dials()
    desk.is_welcomed(1, resumed=True)
    asked: list[Locate] = []
    for pause in LOCATE_PAUSE_S[:4]:
        desk.hears(CatchUp((commit(1, 10),), (ADA,)))
        for part in range(2):
            desk.feed(ResultArrived(key(10, part), digest(10, part)))
        desk.feed(PartFetchFailed(key(10, 2), "nobody has it"))
        asked += desk.said(Locate)
        desk.wait(pause)
        asked += desk.said(Locate)
    assert asked == [Locate(0), Locate(0), Locate(NO_VERSION), Locate(0)]


# --- resync ---------------------------------------------------------------------------------------------------------------------


def test_a_copy_that_differs_is_not_served_and_fetched_anew() -> None:
    desk = Desk.member(version=3)
    desk.hears(Resync(3, root(3, 9), "your copy differs"))
    assert kinds(desk.done) == ["Tell", "Serve", "Locate"]
    assert desk.did(Serve) == [Serve(False)]
    assert desk.said(Locate) == [Locate(NO_VERSION)]
    desk.hears(Donors(3, (ADA,)))
    assert kinds(desk.done) == ["DropPending", "FetchState"]
    desk.feed(StateFetched(3, root(3, 9), "ada"))
    assert desk.done == [Serve(True), Say(1, 1, StateReady(3, root(3, 9), LAYOUT, DATA))]


def test_a_suspect_member_takes_part_in_nothing_and_wraps_up_before_it_fetches() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.hears(Resync(0, root(0, 9), "your copy differs"))
    assert kinds(desk.done) == ["Tell", "Serve", "WrapUp"]
    desk.hears(Donors(0, (ADA,)))
    assert desk.done == []
    desk.hears(plan(0, 0))
    assert not desk.did(BeginReduce)
    desk.publishes(0)
    assert kinds(desk.done)[-2:] == ["DropPending", "FetchState"]


def test_a_resync_to_what_is_here_already_is_nothing_to_do() -> None:
    assert Desk.member(version=3).hears(Resync(3, root(3), "late")) == []


# --- training -------------------------------------------------------------------------------------------------------------------


def test_a_member_trains_publishes_and_says_that_it_is_ready() -> None:
    desk = Desk.member()
    assert desk.hears(opened(0, 0, Span(0, 4), tokens=80)) == [Train(0, 0, (Span(0, 4),), 0, 4, 80, 120)]
    assert desk.publishes(0) == [Say(1, 1, Ready(0, 40, 4, 2, 3.5, 1.5))]


def test_an_open_round_waits_for_its_version_and_for_the_trainer() -> None:
    desk = Desk.member()
    desk.feed(TrainerLost("killed"))
    assert not desk.hears(opened(0, 0))
    desk.feed(TrainerAttached(LAYOUT, DATA))
    assert desk.did(Train)
    other = Desk.member()
    other.hears(opened(3, 1))
    assert not other.did(Train)


def test_a_lost_trainers_round_is_trained_again_by_the_next() -> None:
    desk = Desk.member()
    first = desk.hears(opened(0, 0))
    desk.feed(TrainerLost("out of memory"))
    assert desk.done == [Tell("the trainer stopped: out of memory; starting another", "warning")]
    assert desk.feed(TrainerAttached(LAYOUT, DATA)) == first


def test_the_same_open_again_is_answered_with_the_same_ready() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    assert desk.hears(opened(0, 0)) == []
    first = desk.publishes(0)
    assert desk.hears(opened(0, 0)) == first


def test_an_open_of_an_earlier_round_is_dropped() -> None:
    desk = Desk.member()
    desk.hears(opened(4, 0))
    assert desk.hears(opened(3, 0)) == []
    assert desk.engine.stale == 1


def test_work_for_an_abandoned_round_is_kept_and_offered_again() -> None:
    desk = Desk.reducing()
    desk.hears(Abandoned(0, "cyd was lost"))
    assert desk.done == [Tell("round 0 was abandoned: cyd was lost; nothing is lost"), DropRound(0)]
    desk.hears(opened(1, 0))
    assert desk.done == [Say(1, 1, Ready(1, 40, 4))]
    desk.hears(plan(1, 0))
    assert len(desk.did(SendPart)) == 3


@pytest.mark.parametrize("label", [0, 1], ids=["before the new label reached the trainer", "after it did"])
def test_training_that_outlives_its_round_belongs_to_the_next(label: int) -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.hears(Abandoned(0, "no data"))
    assert desk.hears(opened(1, 0, tokens=40)) == [Relabel(1, 40, 120)]
    assert desk.publishes(label) == [Say(1, 1, Ready(1, 40, 4, 2, 3.5, 1.5))]


def test_a_training_that_wraps_up_is_not_relabelled() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    assert desk.hears(Wrap(0)) == [WrapUp()]
    assert desk.hears(Wrap(0)) == []
    assert not [effect for effect in desk.hears(opened(1, 0)) if isinstance(effect, Relabel)]


def test_a_wrap_that_finds_no_training_publishes_what_is_pending() -> None:
    desk = Desk.member(trained=2)
    desk.feed(TrainerLost("killed"))
    desk.hears(opened(0, 0))
    assert desk.hears(Wrap(0)) == [Say(1, 1, Ready(0, 20, 2))]
    assert desk.hears(Wrap(0)) == []


def test_a_wrap_that_comes_before_its_version_is_answered_when_the_version_is_there() -> None:
    desk = Desk.holding()
    desk.hears(commit(1, 0))
    desk.hears(opened(1, 1, Span(4, 8)))
    assert desk.hears(Wrap(1)) == [], "what is pending may be in the entry that is being applied"
    assert Say(1, 1, Ready(1, 0, 0)) in desk.feed(EntryApplied(1))


def test_a_lost_trainers_work_is_not_relabelled() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.feed(TrainerLost("killed"))
    desk.hears(Abandoned(0, "no data"))
    assert desk.hears(opened(1, 0)) == []
    assert [order.round for order in desk.feed(TrainerAttached(LAYOUT, DATA)) if isinstance(order, Train)] == [1]


def test_what_the_work_amounts_to_is_told_with_ready_and_how_it_compares_when_it_is_applied() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.feed(Published(0, 4, 40, 2, 3.5, 1.5, norm=2.25))
    assert desk.said(Ready)[0].norm == 2.25
    desk.hears(plan(0, 0))
    desk.reduces(0)
    desk.collects(0)
    desk.hears(commit(1, 0))
    desk.feed(EntryApplied(1, 7, 8, 2.0, -0.5))
    assert desk.said(Applied) == [Applied(1, 7, 8, 1.5, 0.0, 2.0, -0.5)]


def test_an_order_to_train_carries_the_rounds_stop_rule() -> None:
    desk = Desk.member()
    desk.hears(replace(opened(0, 0, Span(0, 9)), stop=StopRule.TIME, seconds=30.0))
    (order,) = desk.did(Train)
    assert (order.stop, order.seconds, order.limit) == (StopRule.TIME, 30.0, 9)
    assert replace(order, stop=StopRule.STEPS).limit == 4


def test_a_fetched_state_leaves_work_that_was_never_sent_and_takes_what_was() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.publishes(0, trained=3)
    assert kinds(desk.hears(Donors(5, (ADA,)))) == ["FetchState"]
    desk.feed(StateFetched(5, root(5), "ada"))
    assert desk.hears(opened(6, 5, Span(0, 3))) == [Say(1, 1, Ready(6, 30, 3))]
    desk.hears(plan(6, 5))
    assert len(desk.did(SendPart)) == 3
    assert kinds(desk.hears(Donors(9, (ADA,)))) == ["DropPending", "FetchState"]


def test_a_wrap_for_another_round_is_nothing_to_do() -> None:
    desk = Desk.member()
    desk.hears(opened(1, 0))
    assert desk.hears(Wrap(0)) == []


# --- reducing -------------------------------------------------------------------------------------------------------------------


def test_a_plan_opens_the_streams_and_sends_every_part_beginning_at_the_own_place() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.publishes(0)
    desk.hears(plan(0, 0))
    assert desk.done == [
        BeginReduce(plan(0, 0)),
        Collect(0, ADA),
        Collect(0, CYD),
        SendPart(key(0, 1), "bob"),
        SendPart(key(0, 2), "cyd"),
        SendPart(key(0, 0), "ada"),
    ]
    assert desk.hears(plan(0, 0)) == []


def test_who_has_published_nothing_reduces_and_collects_but_sends_nothing() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.hears(plan(0, 0))
    assert kinds(desk.done) == ["BeginReduce", "Collect", "Collect"]


@pytest.mark.parametrize(
    "wrong", [plan(0, 0, term=2), replace(plan(0, 0), members=("ada", "cyd"))], ids=["another term", "without bob"]
)
def test_a_plan_that_is_not_for_this_peer_now_is_dropped(wrong: Plan) -> None:
    desk = Desk.member()
    assert desk.hears(wrong) == []
    assert desk.engine.stale == 1


def test_a_plan_on_a_version_that_is_past_is_dropped() -> None:
    desk = Desk.member(version=3)
    assert desk.hears(plan(0, 2)) == []
    assert desk.engine.stale == 1


def test_a_plan_that_comes_before_its_version_waits_for_it() -> None:
    desk = Desk.holding()
    desk.hears(commit(1, 0))
    assert not desk.hears(opened(1, 1))
    assert not desk.hears(plan(1, 1))
    desk.feed(EntryApplied(1))
    assert desk.did(BeginReduce) == [BeginReduce(plan(1, 1))]
    assert not desk.did(SendPart)


def test_an_early_plan_of_an_abandoned_round_is_forgotten() -> None:
    desk = Desk.holding()
    desk.hears(commit(1, 0))
    desk.hears(plan(1, 1))
    desk.hears(Abandoned(1, "why"))
    desk.feed(EntryApplied(1))
    assert not desk.did(BeginReduce)


@pytest.mark.parametrize("arrivals", list(itertools.permutations(("ada", "bob", "cyd"))), ids="-".join)
def test_contributions_are_added_in_plan_order_whatever_the_order_of_arrival(arrivals: tuple[str, ...]) -> None:
    desk = Desk.reducing()
    effects = [effect for peer in arrivals for effect in desk.feed(ContributionArrived(key(0, 1), peer))]
    assert effects == [
        Add(key(0, 1), "ada", 40),
        Add(key(0, 1), "bob", 40),
        Add(key(0, 1), "cyd", 20),
        ClosePart(key(0, 1), 100.0),
    ]


def test_a_refused_contribution_is_left_out_of_sum_divisor_and_report() -> None:
    desk = Desk.reducing()
    desk.feed(ContributionArrived(key(0, 1), "ada"))
    desk.feed(ContributionArrived(key(0, 1), "cyd"))
    desk.feed(ContributionRefused(key(0, 1), "bob", "not finite"))
    assert desk.done == [Add(key(0, 1), "cyd", 20), ClosePart(key(0, 1), 60.0)]
    desk.feed(PartReduced(key(0, 1), digest(0, 1)))
    assert desk.said(PartClosed) == [PartClosed(key(0, 1), ("ada", "cyd"), 60.0, digest(0, 1), ("bob",))]


def test_a_lost_contributor_is_not_waited_for_and_its_late_bytes_are_dropped() -> None:
    desk = Desk.reducing()
    desk.feed(ContributionArrived(key(0, 1), "bob"))
    assert desk.hears(ContributorLost(0, "ada")) == [Add(key(0, 1), "bob", 40)]
    assert desk.feed(ContributionArrived(key(0, 1), "ada")) == [Discard(key(0, 1), "ada")]
    desk.feed(ContributionArrived(key(0, 1), "cyd"))
    assert desk.done == [Add(key(0, 1), "cyd", 20), ClosePart(key(0, 1), 60.0)]


def test_after_the_deadline_a_part_closes_with_what_came() -> None:
    desk = Desk.reducing()
    desk.feed(ContributionArrived(key(0, 1), "ada"))
    desk.feed(ContributionArrived(key(0, 1), "cyd"))
    desk.wait(29.9)
    assert not desk.did(ClosePart)
    desk.wait(0.1)
    assert desk.did(Add) == [Add(key(0, 1), "cyd", 20)]
    assert desk.did(ClosePart) == [ClosePart(key(0, 1), 60.0)]


@pytest.mark.parametrize(
    ("which", "peer"),
    [(key(9, 1), "ada"), (key(0, 0), "ada"), (key(0, 1), "dot"), (key(0, 1, attempt=1), "dot"), (key(0, 9, attempt=1), "ada")],
    ids=["another round", "another's part", "a stranger", "a stranger's next attempt", "no part"],
)
def test_a_contribution_that_cannot_count_is_discarded(which: PartKey, peer: str) -> None:
    desk = Desk.reducing()
    assert desk.feed(ContributionArrived(which, peer)) == [Discard(which, peer)]
    assert desk.engine.stale == 1


def test_a_second_copy_of_a_contribution_that_waits_does_not_discard_the_first() -> None:
    desk = Desk.reducing()
    desk.feed(ContributionArrived(key(0, 1), "cyd"))
    assert desk.feed(ContributionArrived(key(0, 1), "cyd")) == []
    assert desk.engine.stale == 1


def test_a_reduced_part_is_reported_and_returned_to_the_other_members() -> None:
    desk = Desk.reducing()
    desk.reduces(0)
    assert desk.said(PartClosed) == [PartClosed(key(0, 1), ("ada", "bob", "cyd"), 100.0, digest(0, 1))]
    assert desk.did(ReturnPart) == [ReturnPart(key(0, 1), ("ada", "cyd"))]


def test_results_are_reported_together_and_the_last_one_at_once() -> None:
    desk = Desk.reducing()
    desk.reduces(0)
    desk.collects(0, 0)
    assert not desk.said(Have)
    desk.wait(HAVE_PAUSE_S)
    assert desk.said(Have) == [Have(0, (Held(PARAMETERS, 1, 0, digest(0, 1)), Held(PARAMETERS, 0, 0, digest(0, 0))))]
    desk.collects(0, 2)
    assert desk.said(Have) == [Have(0, (Held(PARAMETERS, 2, 0, digest(0, 2)),))]


def test_a_result_of_an_attempt_that_is_over_or_of_another_round_is_dropped() -> None:
    desk = Desk.reducing()
    desk.hears(Replan(0, (Share(CYD, PARAMETERS, 0, 1, 1),)))
    for which in (key(0, 0), key(9, 0), key(0, 7)):
        assert desk.feed(ResultArrived(which, digest(0, 0))) == []
    assert desk.engine.stale == 3


def test_a_broken_stream_to_a_reducer_is_complained_about_and_another_is_not() -> None:
    desk = Desk.reducing()
    assert desk.feed(StreamFailed(0, "ada", "x" * 600)) == [Say(1, 1, Complaint(0, "ada", "x" * 500))]
    assert desk.feed(StreamFailed(0, "ada", "no progress", dialled=False)) == []
    assert desk.feed(StreamFailed(1, "ada", "refused")) == []
    assert desk.feed(StreamFailed(0, "dot", "refused")) == []


# --- repair ---------------------------------------------------------------------------------------------------------------------


def test_parts_that_are_reduced_again_are_sent_again_and_no_others() -> None:
    desk = Desk.reducing()
    desk.hears(Replan(0, (Share(CYD, PARAMETERS, 0, 1, 1),)))
    (begun,) = desk.did(BeginReduce)
    assert begun.plan.shares == (Share(CYD, PARAMETERS, 0, 1, 1),)
    assert desk.did(SendPart) == [SendPart(key(0, 0, attempt=1), "cyd")]
    assert desk.did(Collect) == [Collect(0, CYD)]  # the stream to it may have failed after its own parts had come


def test_a_peer_that_reduces_a_part_now_adds_its_own_work_and_does_not_wait_for_the_lost() -> None:
    desk = Desk.reducing()
    desk.hears(ContributorLost(0, "ada"))
    desk.hears(Replan(0, (Share(BOB, PARAMETERS, 0, 1, 1),)))
    assert desk.did(SendPart) == [SendPart(key(0, 0, attempt=1), "bob")]
    for peer in ("cyd", "bob"):
        desk.feed(ContributionArrived(key(0, 0, attempt=1), peer))
    assert desk.done == [
        Add(key(0, 0, attempt=1), "bob", 40),
        Add(key(0, 0, attempt=1), "cyd", 20),
        ClosePart(key(0, 0, attempt=1), 60.0),
    ]


def test_a_repaired_part_has_its_own_deadline() -> None:
    desk = Desk.reducing()
    desk.reduces(0)
    desk.wait(20.0)
    desk.hears(Replan(0, (Share(BOB, PARAMETERS, 0, 1, 1),)))
    desk.feed(ContributionArrived(key(0, 0, attempt=1), "bob"))
    desk.wait(29.9)
    assert not desk.did(ClosePart)
    desk.wait(0.1)
    assert desk.did(ClosePart) == [ClosePart(key(0, 0, attempt=1), 40.0)]


def test_a_reducer_whose_part_went_to_another_lets_go_of_it() -> None:
    desk = Desk.reducing()
    desk.feed(ContributionArrived(key(0, 1), "ada"))
    desk.hears(Replan(0, (Share(CYD, PARAMETERS, 1, 2, 1),)))
    assert desk.did(DropPart) == [DropPart(key(0, 1))]
    assert desk.feed(ContributionArrived(key(0, 1), "bob")) == [Discard(key(0, 1), "bob")]
    assert desk.feed(PartReduced(key(0, 1), digest(0, 1))) == []


def test_what_comes_before_word_of_its_attempt_counts_when_the_word_comes() -> None:
    desk = Desk.reducing()
    assert desk.feed(ContributionArrived(key(0, 0, attempt=1), "ada")) == []
    assert desk.feed(ResultArrived(key(0, 2, attempt=1), b"2" * 32)) == []
    assert desk.engine.stale == 0
    desk.hears(Replan(0, (Share(BOB, PARAMETERS, 0, 1, 1), Share(ADA, PARAMETERS, 2, 3, 1))))
    assert desk.did(Add) == [Add(key(0, 0, attempt=1), "ada", 40)]
    desk.wait(HAVE_PAUSE_S)
    assert desk.said(Have) == [Have(0, (Held(PARAMETERS, 2, 1, b"2" * 32),))]


def test_a_repair_that_comes_before_the_plans_base_waits_with_the_plan() -> None:
    desk = Desk.holding()
    desk.hears(commit(1, 0))
    desk.hears(opened(1, 1))
    early = plan(1, 1)
    desk.hears(early)
    desk.hears(Replan(1, (Share(BOB, PARAMETERS, 0, 1, 1),)))
    desk.hears(ContributorLost(1, "ada"))
    assert desk.engine.reduction is None or desk.engine.reduction.round == 0
    desk.feed(EntryApplied(1))
    reduction = desk.engine.reduction
    assert reduction is not None
    assert (reduction.round, reduction.lost) == (1, {"ada"})
    assert reduction.reducer_of[PARAMETERS, 0] == Share(BOB, PARAMETERS, 0, 1, 1)


def test_a_repair_of_another_round_or_one_that_was_heard_before_is_stale() -> None:
    desk = Desk.reducing()
    desk.hears(Replan(0, (Share(CYD, PARAMETERS, 0, 1, 1),)))
    for said in (Replan(0, (Share(CYD, PARAMETERS, 0, 1, 1),)), Replan(9, (Share(CYD, PARAMETERS, 0, 1, 2),)), Fetch(9, (), ())):
        assert desk.hears(said) == []
    assert desk.engine.stale == 3


def test_what_a_lost_reducer_does_not_return_is_fetched_and_reported() -> None:
    desk = Desk.reducing()
    parts = tuple(Held(PARAMETERS, part, 0, digest(0, part)) for part in range(3))
    desk.collects(0, 0)
    assert desk.hears(Fetch(0, parts, (CYD,))) == [FetchPart(key(0, part), digest(0, part), (CYD,)) for part in (1, 2)]
    assert desk.hears(Fetch(0, parts, (CYD,))) == []  # under way
    desk.feed(ResultArrived(key(0, 2), digest(0, 2)))
    desk.wait(HAVE_PAUSE_S)
    held = {item.part for have in desk.said(Have) for item in have.items}
    assert held == {0, 2}


def test_a_fetch_that_fails_in_a_round_disturbs_nothing_and_may_be_asked_for_again() -> None:
    desk = Desk.reducing()
    wanted = Fetch(0, (Held(PARAMETERS, 2, 0, digest(0, 2)),), (CYD,))
    desk.hears(wanted)
    assert desk.feed(PartFetchFailed(key(0, 2), "nobody answered")) == []
    assert desk.hears(wanted) == [FetchPart(key(0, 2), digest(0, 2), (CYD,))]


def test_a_contribution_that_is_refused_before_word_of_its_attempt_is_not_waited_for() -> None:
    desk = Desk.reducing()
    desk.feed(ContributionRefused(key(0, 0, attempt=1), "ada", "not finite"))
    desk.hears(Replan(0, (Share(BOB, PARAMETERS, 0, 1, 1),)))
    for peer in ("bob", "cyd"):
        desk.feed(ContributionArrived(key(0, 0, attempt=1), peer))
    assert desk.did(ClosePart) == [ClosePart(key(0, 0, attempt=1), 60.0)]


def test_who_reduces_no_more_is_complained_about_still() -> None:
    desk = Desk.reducing()
    desk.hears(Replan(0, (Share(CYD, PARAMETERS, 0, 1, 1),)))
    assert desk.feed(StreamFailed(0, "ada", "refused")) == [Say(1, 1, Complaint(0, "ada", "refused"))]


# --- the commit -----------------------------------------------------------------------------------------------------------------


def test_no_result_is_applied_before_its_commit() -> None:
    assert not Desk.holding().did(Apply)


def test_a_commit_is_applied_when_every_part_is_here_by_digest() -> None:
    desk = Desk.holding()
    assert desk.hears(commit(1, 0)) == [Apply(commit(1, 0), (True, True, True), 0)]
    desk.feed(EntryApplied(1, 300, 200))
    assert kinds(desk.done) == ["DropRound", "Applied", "HashState"]
    assert desk.said(Applied) == [Applied(1, 300, 200, 1.5, 0.0)]
    assert desk.feed(Hashed(1, root(1))) == [Say(1, 1, Fingerprint(1, root(1)))]
    assert desk.hears(opened(1, 1, Span(8, 12))) == [Train(1, 1, (Span(8, 12),), 0, 4, 0, 120)]


def test_a_part_with_other_bytes_than_committed_is_fetched_before_anything_is_applied() -> None:
    desk = Desk.reducing()
    desk.reduces(0)
    desk.collects(0, 0)
    desk.feed(ResultArrived(key(0, 2), b"?" * 32))
    desk.hears(commit(1, 0))
    assert desk.done == [FetchPart(key(0, 2), digest(0, 2), (ADA,))]
    assert desk.feed(ResultArrived(key(0, 2), digest(0, 2))) == [Apply(commit(1, 0), (True, True, True), 0)]


def test_how_long_a_peer_waited_counts_from_its_publishing() -> None:
    desk = Desk.holding()
    desk.now += 7.5
    desk.hears(commit(1, 0))
    desk.feed(EntryApplied(1))
    assert desk.said(Applied) == [Applied(1, 0, 0, 1.5, 7.5)]


def test_how_long_a_peer_waited_counts_from_its_wrapping_up_too() -> None:
    desk = Desk.member(trained=2)
    desk.feed(TrainerLost("killed"))
    desk.hears(opened(0, 0))
    desk.hears(Wrap(0))
    desk.now += 2.0
    desk.hears(commit(1, 0))
    for part in range(3):
        desk.feed(ResultArrived(key(0, part), digest(0, part)))
    desk.feed(EntryApplied(1))
    assert desk.said(Applied) == [Applied(1, 0, 0, 0.0, 2.0)]


def test_a_straggler_wraps_up_before_the_entry_is_applied_and_keeps_its_work() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.hears(plan(0, 0))
    desk.reduces(0)
    desk.collects(0)
    assert desk.hears(commit(1, 0, 0, 1, 2)) == [WrapUp()]
    desk.publishes(0, trained=3)
    assert desk.done == [Say(1, 1, Ready(0, 30, 3, 2, 3.5, 1.5)), Apply(commit(1, 0, 0, 1, 2), (False, False, False), 3)]
    desk.feed(EntryApplied(1))
    desk.feed(Hashed(1, root(1)))
    assert desk.hears(opened(1, 1, Span(0, 4), Span(8, 12))) == [Train(1, 1, (Span(0, 4), Span(8, 12)), 3, 4, 0, 120)]


def test_a_peer_whose_steps_take_longer_than_rounds_offers_its_work_before_it_adds_to_it() -> None:
    desk = Desk.member()
    lease = (Span(0, 8),)
    for round_id in range(2):
        assert desk.hears(opened(round_id, round_id, *lease)) == [Train(round_id, round_id, lease, round_id, 4, 0, 120)]
        desk.hears(plan(round_id, round_id))
        desk.reduces(round_id)
        desk.collects(round_id)
        desk.hears(commit(round_id + 1, round_id, 0, 1, 2))
        desk.publishes(round_id, trained=round_id + 1)
        desk.feed(EntryApplied(round_id + 1))
        desk.feed(Hashed(round_id + 1, root(round_id + 1)))
    assert desk.hears(opened(2, 2, *lease)) == [Say(1, 1, Ready(2, 20, 2))]
    desk.hears(plan(2, 2))
    desk.reduces(2)
    desk.collects(2)
    desk.hears(commit(3, 2))
    desk.feed(EntryApplied(3))
    desk.feed(Hashed(3, root(3)))
    assert desk.hears(opened(3, 3, Span(2, 10))) == [Train(3, 3, (Span(2, 10),), 0, 4, 0, 120)]


def test_a_member_that_was_left_out_keeps_its_pending_work() -> None:
    desk = Desk.holding()
    assert desk.hears(commit(1, 0, 0, 1, 2)) == [Apply(commit(1, 0, 0, 1, 2), (False, False, False), 4)]
    desk.feed(EntryApplied(1))
    desk.feed(Hashed(1, root(1)))
    assert desk.hears(opened(1, 1, Span(0, 4))) == [Say(1, 1, Ready(1, 40, 4))]


def test_a_member_in_some_parts_only_clears_those_and_has_spent_its_samples() -> None:
    desk = Desk.holding()
    assert desk.hears(commit(1, 0, 1)) == [Apply(commit(1, 0, 1), (True, False, True), 0)]


def test_entries_are_applied_one_after_another() -> None:
    desk = Desk.holding()
    desk.hears(commit(1, 0))
    assert desk.hears(commit(2, 1)) == []
    desk.feed(EntryApplied(1))
    assert [fetch.key.round for fetch in desk.did(FetchPart)] == [1, 1, 1]
    assert not desk.did(Apply)


def test_a_commit_that_was_applied_already_is_nothing_to_do() -> None:
    desk = Desk.holding()
    desk.hears(commit(1, 0))
    assert desk.hears(commit(1, 0)) == []
    desk.feed(EntryApplied(1))
    assert desk.hears(commit(1, 0)) == []


def test_parts_of_an_undecided_round_outlive_the_stream() -> None:
    desk = Desk.holding()
    desk.feed(Offline("broken"))
    assert not desk.did(DropRound)
    desk.dials()
    desk.is_welcomed(0, resumed=True)
    assert desk.hears(commit(1, 0)) == [Apply(commit(1, 0), (True, True, True), 0)]


# --- evaluation -----------------------------------------------------------------------------------------------------------------


def test_evaluation_waits_until_the_trainer_has_nothing_else_to_do() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    assert desk.hears(Evaluate(0)) == []
    desk.publishes(0)
    assert desk.did(EvaluateState) == [EvaluateState(0)]
    assert desk.feed(EvaluationDone(0, 2.5, 100)) == [Say(1, 1, Evaluated(0, 2.5, 100))]


def test_an_evaluation_that_comes_too_late_is_declined_at_once() -> None:
    desk = Desk.member(version=3)
    assert desk.hears(Evaluate(2)) == [Say(1, 1, Evaluated(2, 0.0, 0))]


def test_an_evaluation_of_a_version_to_come_waits_for_it() -> None:
    desk = Desk.holding()
    assert desk.hears(Evaluate(1)) == []
    desk.hears(commit(1, 0))
    assert not desk.did(EvaluateState)
    desk.feed(EntryApplied(1))
    desk.feed(Hashed(1, root(1)))
    assert not desk.did(EvaluateState)
    desk.hears(opened(1, 1, Span(8, 12)))
    desk.publishes(1)
    assert desk.did(EvaluateState) == [EvaluateState(1)]


# --- the end --------------------------------------------------------------------------------------------------------------------


def test_at_the_end_the_model_is_written_before_goodbye() -> None:
    desk = Desk.member(version=3)
    assert desk.hears(Finish(3, "all tokens are trained")) == [Tell("writing the model of version 3"), Export(3)]
    assert desk.engine.waiting_for == "the trainer to write the model"
    desk.feed(Exported("/models/x"))
    assert desk.engine.waiting_for == ""
    assert desk.done == [Tell("the model is in /models/x"), Say(1, 1, Goodbye("the run is over"))]
    assert desk.hears(Dismissed("left: the run is over", may_return=False)) == [Exit(EXIT_DONE, "left the run")]


def test_the_model_is_written_from_the_last_version_only() -> None:
    desk = Desk.holding()
    assert desk.hears(Finish(1, "over")) == [Say(1, 1, Locate(0))]
    desk.hears(commit(1, 0))
    assert not desk.did(Export)
    desk.feed(EntryApplied(1))
    assert desk.did(Export) == [Export(1)]


def test_training_is_wrapped_up_at_the_end() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    assert desk.hears(Finish(0, "stopped")) == [WrapUp()]
    desk.publishes(0)
    assert desk.did(Export) == [Export(0)]


def test_a_run_that_ends_without_a_state_is_left_without_a_model() -> None:
    desk = newcomer()
    assert desk.hears(Finish(NO_VERSION, "stopped")) == [Say(1, 1, Goodbye("the run is over"))]


def test_a_goodbye_that_may_be_lost_is_said_again_on_the_next_stream() -> None:
    desk = Desk.member(version=3)
    desk.hears(Finish(3, "over"))
    desk.feed(Exported("/models/x"))
    desk.feed(Offline("broken"))
    desk.dials()
    desk.is_welcomed(3, resumed=True, term=2)
    assert desk.said(Goodbye) == [Goodbye("the run is over")]
    assert desk.hears(Finish(3, "over")) == []
    assert desk.hears(Dismissed("left: the run is over", may_return=False)) == [Exit(EXIT_DONE, "left the run")]


def test_a_peer_that_is_let_go_while_it_writes_the_model_finishes_writing() -> None:
    desk = Desk.member(version=3)
    desk.hears(Finish(3, "over"))
    assert desk.hears(Dismissed("left: the run is over", may_return=False)) == []
    desk.feed(Offline("closed"))
    desk.feed(Exported("/models/x"))
    assert [effect.code for effect in desk.did(Exit)] == [EXIT_DONE]


def test_a_peer_that_is_let_go_ends_when_the_model_is_there_even_while_it_dials_again() -> None:
    desk = Desk.member(version=3)
    desk.hears(Finish(3, "over"))
    desk.hears(Dismissed("left: the run is over", may_return=False))
    desk.feed(Offline("closed"))
    desk.dials()
    desk.feed(Exported("/models/x"))
    assert [effect.code for effect in desk.did(Exit)] == [EXIT_DONE]


def test_a_model_written_while_the_coordinator_is_away_is_enough() -> None:
    desk = Desk.member(version=3)
    desk.hears(Finish(3, "over"))
    desk.feed(Offline("broken"))
    desk.feed(Exported("/models/x"))
    assert desk.did(Exit) == [Exit(EXIT_DONE, "left the run; the model is on disk")]


def test_a_lost_trainers_export_is_done_by_the_next() -> None:
    desk = Desk.member(version=3)
    desk.hears(Finish(3, "over"))
    desk.feed(TrainerLost("killed"))
    desk.feed(TrainerAttached(LAYOUT, DATA))
    assert desk.did(Export) == [Export(3)]


def test_a_trainer_that_hangs_in_a_round_is_spoken_of_until_it_moves() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.wait(1.0)
    desk.feed(Progressed(1, 2.0, 10.0))
    assert not [said for said in desk.wait(STALL_S - 0.1) if isinstance(said, Tell)]
    said = [said.text for said in desk.wait(0.2) if isinstance(said, Tell)]
    assert len(said) == 1
    assert said[0].startswith("the trainer finished no step for 60 s")
    assert not [said for said in desk.wait(3 * STALL_S) if isinstance(said, Tell)]
    assert desk.engine.waiting_for == STALLED
    desk.feed(Progressed(2, 2.0, 10.0))
    assert desk.engine.waiting_for == ""
    assert not [said for said in desk.wait(3 * STALL_S) if isinstance(said, Tell)]  # such steps are usual for it
    desk.publishes(0)
    assert desk.engine.waiting_for == ""
    assert not [said for said in desk.wait(3 * STALL_S) if isinstance(said, Tell)]


# --- leaving --------------------------------------------------------------------------------------------------------------------


def test_a_coordinator_that_went_back_in_time_is_not_followed_silently() -> None:
    desk = Desk.member()
    desk.feed(Offline("broken"))
    desk.dials()
    desk.is_welcomed(resumed=True, term=3)
    desk.feed(Offline("broken"))
    desk.dials()
    desk.is_welcomed(resumed=True, term=2)
    assert [(left.code, left.reason) for left in desk.did(Exit)] == [
        (EXIT_REFUSED, "the coordinator went back from term 3 to 2: its journal is an older copy")
    ]
    assert desk.engine.copy_is_needed


def test_who_leaves_says_goodbye_and_goes_when_it_is_let_go() -> None:
    desk = Desk.member()
    desk.feed(LeaveAsked())
    assert kinds(desk.done) == ["Tell", "Goodbye"]
    assert desk.hears(Dismissed("left", may_return=False)) == [Exit(EXIT_DONE, "left the run")]


def test_who_leaves_while_training_wraps_up_and_starts_nothing_new() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.feed(LeaveAsked())
    assert kinds(desk.done) == ["Tell", "WrapUp", "Goodbye"]
    desk.publishes(0, trained=1)
    assert not desk.hears(opened(1, 0))


def test_who_leaves_in_a_reduction_finishes_it_first_but_not_for_ever() -> None:
    desk = Desk.holding()
    desk.feed(LeaveAsked())
    assert not desk.said(Goodbye)
    desk.wait(FINISH_ROUND_S - 0.1)
    assert not desk.said(Goodbye)
    desk.wait(0.1)
    assert desk.said(Goodbye) == [Goodbye("the volunteer left")]
    other = Desk.holding()
    other.feed(LeaveAsked())
    other.hears(commit(1, 0))
    other.feed(EntryApplied(1))
    assert other.said(Goodbye) == [Goodbye("the volunteer left")]


def test_a_coordinator_that_does_not_answer_a_goodbye_is_not_waited_for() -> None:
    desk = Desk.member()
    desk.feed(LeaveAsked())
    desk.wait(LEAVE_S - 0.1)
    assert not desk.did(Exit)
    desk.wait(0.1)
    assert desk.did(Exit) == [Exit(EXIT_DONE, "left the run")]


def test_a_second_leave_leaves_at_once() -> None:
    desk = Desk.holding()
    desk.feed(LeaveAsked())
    assert desk.feed(LeaveAsked()) == [Exit(EXIT_DONE, "left at once")]


RESTS = LeaveAsked("its hours are over", 60.0, for_now=True)


def test_who_rests_left_for_now_and_who_leaves_did_not() -> None:
    for asked, for_now in ((RESTS, True), (LeaveAsked(), False)):
        desk = Desk.member()
        desk.feed(asked)
        assert not desk.engine.left_for_now
        desk.hears(Dismissed("left", may_return=False))
        assert desk.engine.left_for_now == for_now
    away = Desk()
    away.feed(RESTS)
    assert away.engine.left_for_now


def test_a_run_that_ends_before_the_rest_is_over_for_good() -> None:
    desk = Desk.member(version=3)
    desk.hears(opened(0, 3))
    desk.feed(RESTS)
    desk.publishes(0)
    desk.hears(Finish(3, "all tokens are trained"))
    desk.feed(Exported("/m"))
    desk.hears(Dismissed("the run is over", may_return=False))
    desk.wait(70.0)
    assert desk.engine._exited
    assert not desk.engine.left_for_now


def test_whom_an_operator_sends_off_before_the_rest_does_not_come_back() -> None:
    drained = Desk.member()
    drained.hears(opened(0, 0))
    drained.feed(RESTS)
    drained.hears(Leave("an operator drains it"))
    drained.publishes(0)
    drained.wait(70.0)
    assert drained.engine._exited
    assert not drained.engine.left_for_now
    kicked = Desk.member()
    kicked.hears(opened(0, 0))
    kicked.feed(RESTS)
    kicked.hears(Dismissed("banned", may_return=False))
    assert kicked.engine._exited
    assert not kicked.engine.left_for_now


def test_who_leaves_with_patience_publishes_what_it_has_and_sees_its_round_through() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.feed(RESTS)
    assert kinds(desk.done) == ["Tell", "WrapUp"]
    desk.publishes(0, trained=1)
    assert [ready.samples for ready in desk.said(Ready)] == [1]
    desk.wait(LEAVE_S + 1)
    assert not desk.said(Goodbye)
    desk.hears(plan(0, 0))
    desk.reduces(0)
    desk.collects(0)
    assert not desk.said(Goodbye)
    desk.hears(commit(1, 0))
    desk.feed(EntryApplied(1))
    assert desk.said(Goodbye) == [Goodbye("its hours are over")]
    assert not [effect for effect in desk.hears(opened(1, 1)) if isinstance(effect, Train)]
    assert desk.hears(Dismissed("left", may_return=False)) == [Exit(EXIT_DONE, "left the run")]


def test_patience_with_a_round_ends() -> None:
    desk = Desk.member()
    desk.hears(opened(0, 0))
    desk.feed(RESTS)
    desk.wait(59.9)
    assert not desk.said(Goodbye)
    desk.wait(0.1)
    assert desk.said(Goodbye) == [Goodbye("its hours are over")]
    desk.wait(LEAVE_S)
    assert desk.did(Exit) == [Exit(EXIT_DONE, "left the run")]


def test_ctrl_c_ends_the_patience_but_still_in_good_order() -> None:
    desk = Desk.holding()
    desk.feed(RESTS)
    desk.wait(1.0)
    desk.feed(LeaveAsked())
    desk.wait(FINISH_ROUND_S)
    assert desk.said(Goodbye) == [Goodbye("the volunteer left")]
    assert desk.feed(LeaveAsked()) == [Exit(EXIT_DONE, "left at once")]


def test_who_has_nothing_in_hand_rests_at_once() -> None:
    desk = Desk.member()
    desk.feed(RESTS)
    assert desk.said(Goodbye) == [Goodbye("its hours are over")]
    assert "Goodbye" not in kinds([*desk.feed(LeaveAsked()), *desk.wait(FINISH_ROUND_S)])  # one is enough


def test_who_is_not_connected_just_leaves() -> None:
    desk = Desk()
    assert desk.feed(LeaveAsked()) == [Exit(EXIT_DONE, "left the run")]


def last_to_leave() -> Desk:
    desk = Desk.member(version=3)
    desk.feed(LeaveAsked())
    desk.hears(Finish(3, "you are the last member to leave", run_is_over=False))
    assert desk.did(Export) == [Export(3)]
    assert desk.hears(Dismissed("left", may_return=False)) == []
    return desk


def test_the_last_to_leave_writes_the_model_first() -> None:
    desk = last_to_leave()
    desk.feed(Exported("/models/x"))
    assert [effect.code for effect in desk.did(Exit)] == [EXIT_DONE]
    assert desk.engine.copy_is_needed


def test_the_last_to_leave_does_not_wait_for_ever_for_a_trainer_that_does_not_write() -> None:
    desk = last_to_leave()
    desk.wait(LEAVE_S)
    assert [effect.reason for effect in desk.did(Exit)] == ["left the run; the model was not written, the trainer took too long"]
    assert desk.engine.copy_is_needed


@pytest.mark.parametrize("asked_first", [True, False])
def test_leaving_at_the_end_waits_a_little_for_the_model(asked_first: bool) -> None:
    def member() -> Desk:
        desk = Desk.member(version=3)
        events = [lambda: desk.feed(LeaveAsked()), lambda: desk.hears(Finish(3, "all tokens are trained"))]
        for happens in events if asked_first else reversed(events):
            happens()
        assert not [effect for effect in desk.wait(LEAVE_S - 0.1) if isinstance(effect, Exit)]
        return desk

    written = member()
    written.feed(Exported("/models/x"))
    assert [effect.reason for effect in written.did(Exit)] == ["left the run; the model is on disk"]
    frozen = member()
    frozen.wait(0.1)
    assert [effect.reason for effect in frozen.did(Exit)] == ["left the run; the model was not written, the trainer took too long"]


def phase_of(story: str) -> str:
    desk = {
        "connecting": Desk,
        "starting the trainer": lambda: Desk(Kept(1, 0, 0, root(0))),
        "waiting": Desk.member,
        "training": Desk.member,
        "reducing": Desk.reducing,
        "applying": Desk.holding,
        "leaving": Desk.reducing,
        "finishing": Desk.member,
    }[story]()
    events: dict[str, list[Any]] = {
        "training": [opened(0, 0)],
        "applying": [commit(1, 0)],
        "leaving": [LeaveAsked()],
        "finishing": [Finish(0, "over")],
    }
    if story == "starting the trainer":
        desk.dials()
        desk.is_welcomed(0, resumed=True)
    for event in events.get(story, []):
        desk.feed(event) if isinstance(event, LeaveAsked) else desk.hears(event)
    return desk.engine.phase


@pytest.mark.parametrize(
    "phase", ["connecting", "starting the trainer", "waiting", "training", "reducing", "applying", "leaving", "finishing"]
)
def test_a_peer_says_what_it_is_doing(phase: str) -> None:
    assert phase_of(phase) == phase


# --- what operators do ----------------------------------------------------------------------------------------------------------


def test_a_drained_peer_leaves_like_one_whose_volunteer_asked_for_it() -> None:
    desk = Desk.member()
    effects = desk.hears(Leave("an operator drains it"))
    assert Tell("asked to leave: an operator drains it") in effects
    assert any(isinstance(effect, Say) and isinstance(effect.body, Goodbye) for effect in effects)
    assert desk.hears(Leave("again")) == []
    assert desk.hears(Dismissed("left: the volunteer left", may_return=False)) == [Exit(EXIT_DONE, "left the run")]


def test_who_is_banned_is_told_to_the_bulk_plane() -> None:
    desk = Desk.member()
    assert desk.hears(Barred(("eve", "mallory"))) == [Bar(frozenset({"eve", "mallory"}))]


# --- helpers and pushes ---------------------------------------------------------------------------------------------------------


def test_a_helper_says_so_collects_like_others_and_leaves_without_a_model() -> None:
    desk = Desk(Kept(1, 0, 0, root(0)))
    desk.engine = Engine(replace(desk.engine.me, helper=True), Kept(1, 0, 0, root(0)))
    desk.dials()
    (hello,) = desk.said(Hello)
    assert hello.helper
    desk.is_welcomed(0, resumed=True)
    desk.feed(TrainerAttached(LAYOUT, b""))
    assert desk.said(StateReady)
    assert desk.engine.phase == "helping"
    desk.hears(plan(0, 0))
    assert desk.did(BeginReduce)
    assert not desk.did(SendPart)
    desk.hears(Finish(0, "it is over"))
    assert desk.said(Goodbye)
    assert not desk.did(Export)
    assert not desk.engine.copy_is_needed


def test_a_holder_dials_whom_it_is_told_to_push_to() -> None:
    desk = Desk.member()
    desk.hears(Push(Contact("ada", "ada:1")))
    assert desk.done == [PushTo(Contact("ada", "ada:1"))]
