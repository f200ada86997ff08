"""For whom a round waits, for how long, and what becomes of who is late. `Stage` and `Peer` are test_core's: a quota is 4 samples
of 10 tokens in 2 inner steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from shoal.coordinator import gathering
from shoal.coordinator.events import Log
from shoal.coordinator.gathering import quorum_size, share_out
from shoal.coordinator.pace import Pace
from shoal.coordinator.records import RoundCommitted, SessionEnded
from shoal.protocol.admin import GetRounds, Rounds, RoundView
from shoal.protocol.messages import Abandoned, Applied, Heartbeat, Notice, Open, Plan, Ready, StopRule, Wrap
from shoal.protocol.spec import RunSpec
from shoal.protocol.wire import pack_reply, unpack_reply
from tests.coordinator.test_core import GATHER_S, GRACE_S, Peer, Stage, spec

HEARTBEAT_S = 2.0


def turn(stage: Stage, peer: Peer, seconds: float, samples: int = 4, norm: float = 0.0) -> None:
    """A member trained this many samples for so long and says so."""
    peer.says(Ready(stage.round, 10 * samples, samples, -(-samples // 2), 2.0, seconds, norm=norm))


def commit(stage: Stage, peers: Iterable[Peer]) -> None:
    peers = list(peers)
    for peer in peers:
        peer.closes_its_parts()
    for peer in peers:
        peer.has()
    for peer in peers:
        peer.version += 1
        peer.says(Applied(peer.version))


def rounds_of(stage: Stage, peers: list[Peer], seconds: list[float], count: int) -> None:
    """This many rounds in which each peer takes its own time, and everybody is waited for."""
    for _ in range(count):
        start = stage.now
        for peer, took in sorted(zip(peers, seconds, strict=True), key=lambda item: item[1]):
            stage.wait(start + took - stage.now)
            turn(stage, peer, took)
        commit(stage, peers)
        for peer in peers:
            peer.forget()


def shown(stage: Stage, limit: int = 1) -> RoundView:
    reply = stage.ask(GetRounds(limit))
    assert isinstance(reply, Rounds)
    return reply.rounds[0]


def outcomes(stage: Stage, limit: int = 1) -> dict[str, str]:
    return {peer.peer: peer.outcome for peer in shown(stage, limit).peers}


# --- deadlines ------------------------------------------------------------------------------------------------------------------


def test_a_member_that_hangs_is_waited_for_by_its_own_measure_and_not_to_the_limit() -> None:
    stage = Stage()
    ada, bob = peers = stage.members("ada", "bob")
    rounds_of(stage, peers, [10.0, 10.0], 3)
    stage.wait(10.0)
    turn(stage, ada, 10.0)
    stage.wait(4.9)
    assert not bob.all(Wrap)
    stage.wait(0.2)
    assert bob.all(Wrap) == [Wrap(stage.round)], "median 10 s, spread an eighth of it: 15 s"
    assert not ada.all(Plan)
    stage.wait(HEARTBEAT_S)
    assert [c.peer for c in ada.last(Plan).contributions] == ["ada"]
    assert stage.logged("goes on without bob (bob)")


def test_a_slow_member_is_given_the_time_that_it_always_needed() -> None:
    stage = Stage()
    gpu, cpu = peers = stage.members("gpu", "cpu")
    rounds_of(stage, peers, [5.0, 100.0], 3)
    stage.wait(5.0)
    turn(stage, gpu, 5.0)
    stage.wait(140.0)
    assert not cpu.all(Wrap)
    turn(stage, cpu, 145.0)
    assert [c.peer for c in gpu.last(Plan).contributions] == ["cpu", "gpu"]


def test_who_is_asked_for_what_it_has_counts_with_that() -> None:
    stage = Stage()
    ada, bob = peers = stage.members("ada", "bob")
    rounds_of(stage, peers, [10.0, 10.0], 3)
    stage.wait(10.0)
    turn(stage, ada, 10.0)
    stage.wait(5.1)
    turn(stage, bob, 15.1, samples=2)
    assert [(c.peer, c.weight) for c in ada.last(Plan).contributions] == [("ada", 40), ("bob", 20)]


def test_the_run_specs_limit_is_the_end_whatever_was_measured() -> None:
    stage = Stage(spec(timing={"gather_s": 60.0}))
    ada, bob = peers = stage.members("ada", "bob")
    rounds_of(stage, peers, [10.0, 55.0], 3)
    stage.wait(10.0)
    turn(stage, ada, 10.0)
    stage.wait(49.9)
    assert bob.all(Wrap)
    assert not ada.all(Plan)
    stage.wait(0.2)
    assert ada.all(Plan)


def test_a_late_member_is_neither_ended_nor_waited_for_while_it_catches_up() -> None:
    """field-reports NET-10: late three times, not kicked; what it trained is in the round in which it is there."""
    stage = Stage()
    ada, bob = peers = stage.members("ada", "bob")
    rounds_of(stage, peers, [10.0, 10.0], 3)
    for late in range(3):
        stage.wait(10.0)
        turn(stage, ada, 10.0)
        if late == 0:
            assert not ada.all(Plan)
            stage.wait(7.1)
        assert [c.peer for c in ada.last(Plan).contributions] == ["ada"], f"it is waited for again the {late + 1}. time"
        ada.closes_its_parts()
        if late == 0:
            bob.closes_its_parts("ada")
            bob.has()  # its daemon reduces and collects, its trainer is in an endless step
        ada.has()
        ada.version += 1
        ada.says(Applied(ada.version))
        ada.forget()
        assert outcomes(stage, 2)["bob"] == "late"
    assert not stage.journaled(SessionEnded)
    stage.wait(1.0)
    bob.says(Applied(ada.version))
    turn(stage, bob, 47.0, samples=3)
    turn(stage, ada, 10.0)
    assert [(c.peer, c.weight) for c in ada.last(Plan).contributions] == [("ada", 40), ("bob", 30)]


def test_a_wrap_that_may_be_lost_with_its_stream_is_said_again() -> None:
    stage = Stage()
    ada, bob = peers = stage.members("ada", "bob")
    rounds_of(stage, peers, [10.0, 10.0], 3)
    stage.wait(15.1)
    assert bob.all(Wrap)
    bob.breaks()
    bob.forget()
    bob.returns()
    assert [type(body) for body in bob.heard if isinstance(body, Open | Wrap)] == [Open, Wrap]
    turn(stage, bob, 15.0)
    turn(stage, ada, 15.0)
    assert ada.all(Plan)


def test_reducers_wait_for_contributions_as_long_as_was_measured() -> None:
    stage = Stage()
    ada, bob = peers = stage.members("ada", "bob")
    assert stage.core.round is not None
    for seconds in (8.0, 8.0):
        turn(stage, ada, 1.0)
        turn(stage, bob, 1.0)
        assert ada.last(Plan).deadline_s == (300.0 if stage.round == 0 else 12.0)
        stage.wait(seconds)
        commit(stage, peers)
    assert stage.journaled(RoundCommitted)[-1].limits.part_s == 12.0


def test_a_round_is_given_up_after_what_was_measured_and_the_next_gets_twice_as_long() -> None:
    stage = Stage(spec(timing={"lost_after_s": 30.0}))
    ada, bob = peers = stage.members("ada", "bob")
    for _ in range(2):
        turn(stage, ada, 1.0)
        turn(stage, bob, 1.0)
        stage.wait(8.0)
        commit(stage, peers)
    for patience in (12.0, 24.0):
        turn(stage, ada, 1.0)
        turn(stage, bob, 1.0)
        ada.forget()
        for _ in range(10):
            stage.wait((3 * patience + HEARTBEAT_S - 0.1) / 10)
            ada.says(Heartbeat())
            bob.says(Heartbeat())
        assert not ada.all(Abandoned)
        stage.wait(0.2)
        assert ada.last(Abandoned).reason == f"no commit within {3 * patience + HEARTBEAT_S:g} s of its plan"
        stage.wait(1.0)


def test_a_commit_waits_for_deliveries_as_long_as_was_measured() -> None:
    stage = Stage()
    ada, bob, cyd = peers = stage.members("ada", "bob", "cyd")
    for _ in range(2):
        for peer in peers:
            turn(stage, peer, 1.0)
        for peer in peers:
            peer.closes_its_parts()
        ada.has()
        bob.has()
        stage.wait(10.0)
        cyd.has()
        for peer in peers:
            peer.version += 1
            peer.says(Applied(peer.version))
    for peer in peers:
        turn(stage, peer, 1.0)
    for peer in peers:
        peer.closes_its_parts()
    ada.has()
    bob.has()
    stage.wait(14.9)
    assert len(stage.journaled(RoundCommitted)) == 2
    stage.wait(0.2)
    assert len(stage.journaled(RoundCommitted)) == 3
    assert stage.journaled(RoundCommitted)[-1].limits.delivery_s == 15.0


def test_a_reducer_that_stands_still_is_forgiven_as_long_as_elsewhere() -> None:
    stage = Stage(spec(timing={"lost_after_s": 30.0}))
    peers = stage.members("ada", "bob")
    for _ in range(2):
        for peer in peers:
            turn(stage, peer, 1.0)
        stage.wait(0.1)
        commit(stage, peers)
    assert stage.journaled(RoundCommitted)[-1].limits.part_s == 2.0
    assert stage.journaled(RoundCommitted)[-1].limits.reduce_s == 30.0 + GRACE_S


def test_a_ready_that_is_said_again_is_neither_measured_nor_remarked_upon_again() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.wait(10.0)
    for _ in range(50):
        ada.says(Ready(0, 7, 4, 2, note="not finite"))
        stage.wait(1.0)
    assert sum(isinstance(effect, Log) for effect in stage.steps if "ada (ada) claims" in getattr(effect, "text", "")) == 1
    turn(stage, bob, 60.0)
    commit(stage, [ada, bob])
    assert stage.core.round is not None
    assert stage.core.round.limits[ada.session] == 15.0


def test_a_round_in_which_nobody_gets_ready_is_explained_too() -> None:
    stage = Stage(spec(timing={"gather_s": 60.0}))
    (ada,) = stage.members("ada")
    stage.wait(61.0)
    assert ada.last(Notice).waiting_for == "ada (ada) to finish training in round 0"


def test_a_notice_to_everybody_is_short_however_many_are_missing() -> None:
    stage = Stage()
    peers = stage.members(*[f"peer{number:04}" for number in range(300)])
    turn(stage, peers[0], 1.0)
    stage.wait(6.0)
    told = peers[0].last(Notice)
    assert told.waiting_for.endswith("peer0005 (peer0005) and 294 more to finish training in round 0")
    assert (told.have, told.need) == (1, 300)


# --- quorum ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "overhead_s", "least", "size"),
    [
        ((5.0, 5.0, 50.0), 2.0, 2, 2),  # the third would add 1 to 2.1, and cost seven times the time
        ((5.0, 5.0, 5.1), 20.0, 1, 3),  # exchanging costs so much that everybody should be in it
        ((5.0, 5.0, None), 2.0, 1, 2),  # who was never measured is not counted on
        ((None, None, None), 0.0, 2, 2),
        ((1.0, 2.0, 3.0), 0.0, 3, 3),
        ((), 0.0, 1, 0),
    ],
)
def test_as_many_are_waited_for_as_pays(turns: tuple[float | None, ...], overhead_s: float, least: int, size: int) -> None:
    assert quorum_size(turns, overhead_s, least) == size


def quorum_spec(**tables: Any) -> RunSpec:
    return spec(round={"gather": "quorum", "quorum": 0.6}, **tables)


def test_a_quorum_goes_on_without_the_slow_one_and_takes_what_it_has() -> None:
    stage = Stage(quorum_spec())
    ada, bob, cpu = stage.members("ada", "bob", "cpu")
    stage.wait(10.0)
    turn(stage, ada, 10.0)
    stage.wait(1.0)
    turn(stage, bob, 11.0)
    stage.wait(4.7)
    assert not cpu.all(Wrap)
    stage.wait(0.1)
    assert cpu.all(Wrap), "the two took 10.5 s in the middle: half as much again is enough"
    assert not ada.all(Plan)
    turn(stage, cpu, 15.8, samples=2)
    assert [(c.peer, c.weight) for c in ada.last(Plan).contributions] == [("ada", 40), ("bob", 40), ("cpu", 20)]
    commit(stage, [ada, bob, cpu])
    assert stage.core.round is not None
    assert stage.core.round.limits[cpu.session] == pytest.approx(1.5 * 2 * 15.8), "half a quota took 15.8 s"


def test_a_quorum_below_min_peers_is_none() -> None:
    stage = Stage(quorum_spec(min_peers=3))
    ada, bob, _cyd = stage.members("ada", "bob", "cyd")
    turn(stage, ada, 1.0)
    turn(stage, bob, 1.0)
    stage.wait(GATHER_S - 10.0)
    assert not ada.all(Plan)


# --- stop rules -----------------------------------------------------------------------------------------------------------------


def test_with_time_the_quota_is_what_a_members_speed_promises() -> None:
    stage = Stage(spec(round={"stop": "time", "seconds": 20.0}))
    ada, bob = stage.members("ada", "bob")
    first = ada.last(Open)
    assert (first.stop, first.seconds, first.quota, sum(map(len, first.lease))) == (StopRule.TIME, 20.0, 4, 6)
    stage.wait(20.0)
    turn(stage, ada, 20.0, samples=4)
    turn(stage, bob, 10.0, samples=6)  # so fast that its lease was not enough
    commit(stage, [ada, bob])
    assert (ada.last(Open).quota, bob.last(Open).quota) == (4, 12)
    assert sum(map(len, bob.last(Open).lease)) == 18
    assert ada.last(Open).expected_tokens == 160


def test_a_claimed_speed_is_believed_within_limits() -> None:
    stage = Stage(spec(round={"stop": "time", "seconds": 20.0}))
    (ada,) = stage.members("ada")
    stage.wait(20.0)
    turn(stage, ada, 1e-6, samples=4)
    commit(stage, [ada])
    assert ada.last(Open).quota == 16


def test_with_samples_all_are_asked_for_what_they_have_when_it_is_enough_together() -> None:
    stage = Stage(spec(round={"stop": "samples", "samples": 40}))
    ada, bob = stage.members("ada", "bob")
    assert (ada.last(Open).quota, sum(map(len, ada.last(Open).lease))) == (20, 40), "one could reach it alone"
    ada.says(Heartbeat("training", 4, 2.0, 20.0, round=0, samples=8))
    bob.says(Heartbeat("training", 1, 2.0, 10.0, round=0, samples=8))
    stage.wait(3.0)
    ada.says(Heartbeat("training", 8, 2.0, 20.0, round=0, samples=14))
    bob.says(Heartbeat("training", 3, 2.0, 10.0, round=0, samples=17))
    assert not ada.all(Wrap)
    stage.wait(2.9)
    assert not ada.all(Wrap)
    stage.wait(0.2)
    assert ada.all(Wrap) == bob.all(Wrap) == [Wrap(0)], "31 samples and three a second"
    turn(stage, ada, 7.0, samples=21)
    turn(stage, bob, 7.0, samples=20)
    assert [(c.peer, c.weight) for c in ada.last(Plan).contributions] == [("ada", 210), ("bob", 200)]


@pytest.mark.parametrize(
    "lie",
    [
        {"samples": 1 << 62, "tokens_per_s": 20.0},
        {"samples": 0, "tokens_per_s": 1e308},
        {"samples": 1 << 62, "tokens_per_s": -100.0},
        {"samples": 0, "tokens_per_s": 1e-320},
    ],
)
def test_nobody_ends_the_round_for_all_or_delays_it_by_a_claim(lie: dict[str, Any]) -> None:
    stage = Stage(spec(round={"stop": "samples", "samples": 60}))
    ada, bob, _liar = peers = stage.members("ada", "bob", "liar")
    for honest in range(0, 10, 2):
        for peer in (ada, bob):
            peer.says(Heartbeat("training", 1, 2.0, 10.0, round=0, samples=honest))
        peers[2].says(Heartbeat("training", 1, 2.0, round=0, **lie))
        stage.wait(2.0)
    assert not ada.all(Wrap), "the two have 20 of 60, and one that only claims counts for 30 at most"
    for peer in (ada, bob):
        peer.says(Heartbeat("training", 1, 2.0, 10.0, round=0, samples=29))
    stage.wait(1.1)
    assert ada.all(Wrap)
    for peer in peers:
        turn(stage, peer, 11.0, samples=30)
    assert isinstance(unpack_reply(pack_reply(stage.ask(GetRounds(5)))), Rounds)


def test_many_heartbeats_are_added_up_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(spec(round={"stop": "samples", "samples": 60}))
    ada, _bob = stage.members("ada", "bob")
    looks: list[float] = []
    look = gathering.look

    def counted(*args: Any) -> Any:
        looks.append(stage.now)
        return look(*args)

    monkeypatch.setattr(gathering, "look", counted)
    for _ in range(200):
        ada.says(Heartbeat("training", 1, 2.0, 10.0, round=0, samples=3))
        stage.wait(0.005)
    assert 2 <= len(looks) <= 6


def test_heartbeats_about_another_round_do_not_count() -> None:
    stage = Stage(spec(round={"stop": "samples", "samples": 10}))
    (ada,) = stage.members("ada")
    ada.says(Heartbeat("training", 4, 2.0, 20.0, round=7, samples=100))
    ada.says(Heartbeat("ready", 4, 2.0, 20.0))
    assert not ada.all(Wrap)


def test_the_survivor_of_a_lost_member_trains_its_share_too() -> None:
    stage = Stage(spec(round={"stop": "samples", "samples": 30}))
    ada, bob = stage.members("ada", "bob")
    ada.says(Heartbeat("training", 8, 2.0, 20.0, round=0, samples=16))
    bob.says(Heartbeat("training", 8, 2.0, 20.0, round=0, samples=13))
    bob.breaks()
    stage.wait(GRACE_S)
    assert not ada.all(Wrap)
    ada.says(Heartbeat("training", 15, 2.0, 20.0, round=0, samples=30))
    stage.wait(0.3)
    assert ada.all(Wrap)


def test_shares_of_a_target_follow_speed_and_who_was_never_measured_is_average() -> None:
    pace = Pace()
    pace["gpu"].speed.add(30.0)
    pace["cpu"].speed.add(10.0)
    rations = share_out(spec(round={"stop": "samples", "samples": 60}), ["cpu", "gpu", "new"], pace)
    assert {peer: ration.quota for peer, ration in rations.items()} == {"cpu": 10, "gpu": 30, "new": 20}


# --- what operators see ---------------------------------------------------------------------------------------------------------


def test_a_rounds_view_shows_deadlines_and_each_peers_claims() -> None:
    stage = Stage()
    ada, bob = peers = stage.members("ada", "bob")
    rounds_of(stage, peers, [10.0, 10.0], 3)
    stage.wait(10.0)
    turn(stage, ada, 10.0, norm=2.5)
    turn(stage, bob, 10.0, norm=-1e308)
    for peer in peers:
        peer.closes_its_parts()
    for peer in peers:
        peer.has()
    ada.says(Applied(4, norm=2.25, cosine=0.75))
    bob.says(Applied(4, norm=98.0, cosine=-7.0))
    view = shown(stage, 2)
    assert (view.version, view.gather_limit_s, view.part_limit_s, view.delivery_limit_s) == (4, 17.0, 2.0, 2.0)
    assert (view.usual_gather_s, view.usual_reduce_s, view.usual_commit_s) == (10.0, 0.0, 0.0)
    assert [(p.peer, p.name, p.outcome, p.weight, p.ready_s, p.limit_s, p.norm, p.cosine) for p in view.peers] == [
        ("ada", "ada", "in", 40, 10.0, 15.0, 2.25, 0.75),
        ("bob", "bob", "in", 40, 10.0, 15.0, 98.0, -1.0),
    ]


def test_what_became_of_each_member_is_in_a_word() -> None:
    stage = Stage()
    ada, bob, cyd, dan = stage.members("ada", "bob", "cyd", "dan")
    dan.breaks()
    stage.wait(GRACE_S)
    turn(stage, ada, 1.0)
    turn(stage, bob, 1.0)
    cyd.says(Ready(0, 0, 0, note="w: 1/8 non-finite"))
    ada.closes(0, "ada")
    bob.closes(1)
    cyd.closes(2)
    for peer in (ada, bob, cyd):
        peer.has()
    assert outcomes(stage, 2) == {"ada": "in", "bob": "in part", "cyd": "nothing", "dan": "lost"}
