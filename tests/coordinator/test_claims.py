"""One peer's words hurt nobody else: they are cut, bounded, counted once, and have a budget. Peers as in `test_core`."""

from __future__ import annotations

from dataclasses import replace

from shoal.coordinator.claims import (
    ADDRESS_LIMIT,
    BYTES_LIMIT,
    FAILED_LIMIT,
    LINE_LIMIT,
    LINES,
    NAME_LIMIT,
    SUM_LIMIT,
    TEXT_LIMIT,
    WINDOW_S,
    Budget,
    believable,
)
from shoal.coordinator.events import Log, Send
from shoal.coordinator.records import WorkReported
from shoal.coordinator.views import ABSENT_LISTED, LINES_LIMIT
from shoal.coordinator.waits import Waiting
from shoal.protocol import wire
from shoal.protocol.admin import Ban, Drain, GetLeaderboard, GetPeers, GetRounds, Leaderboard, Rounds
from shoal.protocol.messages import (
    Abandoned,
    Applied,
    Barred,
    Complaint,
    Dismissed,
    Goodbye,
    Heartbeat,
    Leave,
    Locate,
    Notice,
    PartClosed,
    PartKey,
    Ready,
    Section,
)
from tests.coordinator.test_core import Stage, digest, spec

LONGEST = "x" * 16_384
"""The longest text that a message may bring."""


def everything_packs(stage: Stage) -> None:
    """Whatever was sent, and whatever operators ask, fits into messages."""
    for step in stage.steps:
        if isinstance(step, Send):
            wire.pack(step.envelope)
        elif isinstance(step, Log):
            assert len(step.text) <= LINE_LIMIT
    for command in (GetRounds(1000), GetPeers(), GetLeaderboard(1000)):
        wire.pack_reply(stage.ask(command))


def test_a_complaint_of_any_length_ends_a_round_and_no_stream() -> None:
    stage = Stage()
    ada, bob, cyd = stage.reducing("ada", "bob", "cyd")
    for peer, other in ((ada, "bob"), (bob, "cyd"), (cyd, "ada")):
        peer.says(Complaint(0, other, LONGEST))
    assert all(len(peer.last(Abandoned).reason) < 2 * TEXT_LIMIT for peer in (ada, bob, cyd))
    stage.wait(1)
    everything_packs(stage)


def test_notes_goodbyes_and_names_of_any_length_fit_too() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.says(Heartbeat(LONGEST, tokens_per_s=1e-320))
    ada.says(Ready(stage.round, 0, 0, note=LONGEST))
    bob.says(Ready(stage.round, 1 << 62, 1 << 62, train_s=1e308))
    bob.says(Goodbye(LONGEST))
    cyd = stage.peer("cyd", LONGEST)
    cyd.dial(name=LONGEST, device=LONGEST, software=LONGEST, instance=LONGEST)
    cyd.is_at(0)
    dan = stage.peer("dan")
    dan.dial(run=LONGEST)
    stage.wait(20)
    everything_packs(stage)


def test_a_complaint_about_who_was_never_here_counts_for_nothing() -> None:
    stage = Stage()
    ada, _bob = stage.reducing("ada", "bob")
    stage.steps.clear()
    ada.says(Complaint(stage.round, "somebody else", "unreachable"))
    assert not stage.logged("somebody else")
    assert stage.core.round is not None


def test_costs_beyond_belief_are_bounded_and_their_sums_stay_numbers() -> None:
    stage = Stage()
    peers = stage.members("ada", "bob")
    for version in (1, 2):
        stage.commit_round(peers)
        for peer in peers:
            peer.says(Applied(version, (1 << 63) - 1, (1 << 63) - 1, 1e308, 1e308))
    everything_packs(stage)
    board = stage.ask(GetLeaderboard(1))
    assert isinstance(board, Leaderboard)
    assert board.contributors[0].sent_bytes == 2 * BYTES_LIMIT
    stage.core.ledger.contributions["ada"].sent_bytes = SUM_LIMIT
    stage.commit_round(peers)
    for peer in peers:
        peer.says(Applied(3, 1, 1))
    everything_packs(stage)


def test_what_a_version_cost_counts_once_however_often_it_is_said() -> None:
    stage = Stage()
    peers = ada, bob = stage.members("ada", "bob")
    stage.commit_round(peers)
    for _ in range(3):
        for peer in peers:
            peer.says(Applied(1, 50, 40))
        stage.commit_round(peers)
    board = stage.ask(GetLeaderboard(2))
    assert isinstance(board, Leaderboard)
    assert [row.sent_bytes for row in board.contributors] == [50, 50]
    assert [record.version for record in stage.journaled(WorkReported)] == [1]
    assert ada.name != bob.name


def test_only_contributors_are_said_to_be_refused_and_each_once_in_a_round() -> None:
    stage = Stage()
    ada, bob, _cyd = stage.reducing("ada", "bob", "cyd")
    for peer in (ada, bob):
        for share in stage.plan.shares:
            if share.reducer.peer == peer.name:
                key = PartKey(stage.round, Section.PARAMETERS, share.start)
                peer.says(PartClosed(key, ("ada", "bob"), 80.0, digest(share.start), ("cyd", "innocent", "ada")))
    lines = [step.text for step in stage.steps if isinstance(step, Log) and "was refused in part" in step.text]
    assert len(lines) == 1
    assert lines[0].startswith("cyd ")


def test_what_a_peer_says_at_will_is_marked_as_its_own_line() -> None:
    stage = Stage()
    ada, _bob = stage.members("ada", "bob")
    stage.steps.clear()
    ada.says(Complaint(99, "bob", "unreachable"))
    ada.says(Ready(stage.round, 99, 1, note="w: 1/8 non-finite"))
    stage.peer("eve").dial(frozenset())
    assert [step.about for step in stage.steps if isinstance(step, Log)] == ["ada", "ada", "ada", "eve"]


def test_budgets_are_each_peers_own_and_begin_anew() -> None:
    budget = Budget()
    assert [budget.spend("ada", 0.0)[0] for _ in range(LINES + 2)] == [True] * LINES + [False] * 2
    assert budget.spend("bob", 0.0) == (True, 0)
    assert budget.spend("ada", WINDOW_S) == (True, 2)
    assert budget.spend("ada", 3 * WINDOW_S) == (True, 0)


def test_what_is_waited_for_is_cut_whoever_is_named_in_it() -> None:
    waiting = Waiting("x" * 20_000, 1, 2, "y" * 20_000)
    assert len(waiting.notice().waiting_for) == len(waiting.notice().fix) == LINE_LIMIT
    assert len(str(waiting)) < 3 * LINE_LIMIT


def test_a_list_of_donors_is_bounded_too() -> None:
    failed = believable(Locate(3, (LONGEST,) * 1000)).failed
    assert len(failed) == FAILED_LIMIT
    assert max(map(len, failed)) == NAME_LIMIT


def test_an_address_that_is_none_makes_a_peer_that_cannot_be_dialled() -> None:
    stage = Stage()
    ada = stage.peer("ada", "a" * (ADDRESS_LIMIT + 1))
    ada.dial()
    assert stage.core.ledger.members[ada.session].address == ""


def test_the_rounds_of_a_large_swarm_fit_into_one_answer() -> None:
    stage = Stage()
    stage.members("ada", "bob")
    newest = stage.core.ledger.history[-1]
    crowd = tuple(f"{number:032x}" for number in range(2000))
    stage.core.ledger.history.extend(replace(newest, round=number, who=crowd, version=1) for number in range(1, 1000))
    rounds = stage.ask(GetRounds(1000))
    assert isinstance(rounds, Rounds)
    wire.pack_reply(rounds)
    assert len(rounds.rounds) == 1000
    assert all(len(entry.absent) <= ABSENT_LISTED for entry in rounds.rounds)
    assert sum(len(entry.peers) for entry in rounds.rounds) <= LINES_LIMIT


def test_all_members_hear_of_a_ban_with_one_and_the_same_message() -> None:
    stage = Stage()
    ada, bob, cyd = stage.members("ada", "bob", "cyd")
    stage.ask(Ban("cyd"))
    assert ada.last(Barred) is bob.last(Barred)
    assert cyd.last(Dismissed).reason == "was banned by an operator"


def test_a_drained_member_that_does_not_leave_is_let_go() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.ask(Drain("bob"))
    for peer in (ada, bob):
        peer.is_ready()
    stage.commit_round([ada, bob])
    assert bob.all(Leave)
    stage.wait(29)
    assert not bob.all(Dismissed)
    stage.wait(2)
    assert bob.last(Dismissed).reason == "was drained by an operator, and did not leave by itself"
    assert not bob.last(Dismissed).may_return
    assert ada.last(Notice).waiting_for == "1 more peer"
