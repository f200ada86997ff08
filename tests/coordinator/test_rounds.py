"""One round's bookkeeping: what is legal, which reports decide a part, who holds what, and when that is enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.records import RoundOpened
from shoal.coordinator.rounds import SETTLE_S, SPREAD_AGAIN_S, TRANSITIONS, Round, RoundState, plan_order, regrouped
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import Contact, Contribution, Decision, Have, Held, PartClosed, PartKey, Plan, Section, Share

PARAMETERS = Section.PARAMETERS
ADA, BOB, CYD = Contact("ada", "ada:1"), Contact("bob", "bob:1"), Contact("cyd", "cyd:1")
SESSIONS = {"ada": 1, "bob": 2, "cyd": 3}
WEIGHTS = {"ada": 40, "bob": 20}
PLANNED_AT, DECIDED_AT, DELIVERY_S = 10.0, 20.0, 60.0


def digest(part: int) -> bytes:
    return bytes([part + 1]) * 32


def reducing() -> Round:
    """Ada and bob contribute 40 and 20 tokens; ada reduces parts 0 and 1, bob part 2; cyd only collects."""
    round_ = Round(RoundOpened(7, 0, 0, 0, (1, 2, 3), ()), opened_at=0.0)
    contributions = tuple(Contribution(peer, weight) for peer, weight in WEIGHTS.items())
    shares = (Share(ADA, PARAMETERS, 0, 2, attempt=1), Share(BOB, PARAMETERS, 2, 3))
    plan = Plan(7, 1, 0, 0, 0, contributions, ("ada", "bob", "cyd"), shares, 30.0)
    round_.begin_reducing(plan, dict(SESSIONS), dict(SESSIONS), PLANNED_AT)
    return round_


def closed(part: int, *contributors: str, attempt: int | None = None, divisor: float | None = None) -> PartClosed:
    key = PartKey(7, PARAMETERS, part, (1 if part < 2 else 0) if attempt is None else attempt)
    right = float(sum(WEIGHTS.get(peer, 0) for peer in contributors))
    return PartClosed(key, contributors, right if divisor is None else divisor, digest(part))


def decided() -> Round:
    round_ = reducing()
    for part, reducer in ((0, "ada"), (1, "ada"), (2, "bob")):
        assert round_.close_part(reducer, closed(part, "ada", "bob")) == ""
    round_.decided_at = DECIDED_AT
    return round_


def held(part: int, attempt: int | None = None, other: bytes = b"") -> Held:
    return Held(PARAMETERS, part, (1 if part < 2 else 0) if attempt is None else attempt, other or digest(part))


def holds(round_: Round, peer: str, *parts: int) -> None:
    round_.hold(SESSIONS[peer], Have(7, tuple(held(part) for part in parts)))


def lose(round_: Round, peer: str, settle_at: float) -> None:
    round_.lose(peer, settle_at - SETTLE_S)


# --- states ---------------------------------------------------------------------------------------------------------------------

EVERY_MOVE = [(start, end) for start in RoundState for end in RoundState]


@pytest.mark.parametrize(("start", "end"), EVERY_MOVE, ids=[f"{start.value}-{end.value}" for start, end in EVERY_MOVE])
def test_a_round_moves_along_the_table_and_nowhere_else(start: RoundState, end: RoundState) -> None:
    round_ = Round(RoundOpened(7, 0, 0, 0, (1,), ()), 0.0, state=start)
    if end in TRANSITIONS[start]:
        round_.move(end)
        assert round_.state is end
    else:
        with pytest.raises(LocalProtocolError, match=f"round 7 cannot go from {start.value} to {end.value}"):
            round_.move(end)
        assert round_.state is start


def test_the_table_is_the_diagram() -> None:
    moves = {(start.value, end.value) for start, ends in TRANSITIONS.items() for end in ends}
    assert moves == {
        ("gathering", "reducing"),
        ("gathering", "abandoned"),
        ("reducing", "committed"),
        ("reducing", "abandoned"),
    }


def test_a_round_is_planned_once() -> None:
    round_ = reducing()
    assert round_.plan is not None
    with pytest.raises(LocalProtocolError):
        round_.begin_reducing(round_.plan, {}, {}, 11.0)


# --- decisions ------------------------------------------------------------------------------------------------------------------


def test_the_first_report_of_its_reducer_decides_a_part() -> None:
    round_ = reducing()
    assert round_.close_part("ada", closed(0, "bob", "ada")) == ""
    assert round_.decisions == {(PARAMETERS, 0): Decision(PARAMETERS, 0, 1, digest(0), ("bob", "ada"), 60.0)}
    assert not round_.decided()


def test_a_part_may_close_without_a_contributor_that_did_not_come() -> None:
    round_ = reducing()
    assert round_.close_part("bob", closed(2, "bob")) == ""
    assert round_.decisions[PARAMETERS, 2].divisor == 20.0


REFUSALS: dict[str, tuple[str, PartClosed, str]] = {
    "another reducer's part": ("bob", closed(0, "ada"), "belongs to reducer ada"),
    "a collector that reduces nothing": ("cyd", closed(2, "ada"), "belongs to reducer bob"),
    "an attempt that is over": ("ada", closed(0, "ada", attempt=0), "attempt 0 of part 0 is over"),
    "an attempt that was never planned": ("ada", closed(0, "ada", attempt=2), "attempt 2 of part 0 is over"),
    "a part beyond the plan": ("bob", closed(3, "ada"), "not in the plan"),
    "a section that is not in the plan": (
        "ada",
        PartClosed(PartKey(7, Section.BUFFERS, 0, 1), ("ada",), 40.0, digest(0)),
        "part 0 of buffers is not in the plan",
    ),
    "a divisor that leaves a contributor out": ("ada", closed(0, "ada", "bob", divisor=40.0), "was divided by 40.0"),
    "a divisor of the whole plan": ("ada", closed(0, "ada", divisor=60.0), "was divided by 60.0"),
    "a contributor twice": ("ada", closed(0, "ada", "ada"), "or one twice"),
    "no contributors": ("ada", closed(0), "has no contributors"),
    "a contributor that is not in the plan": ("ada", closed(0, "ada", "cyd"), "not in the plan"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_report_is_refused_for(name: str) -> None:
    sender, report, reason = REFUSALS[name]
    round_ = reducing()
    assert reason in round_.close_part(sender, report)
    assert round_.decisions == {}


def test_a_decided_part_stays_as_it_is() -> None:
    round_ = reducing()
    round_.close_part("ada", closed(0, "ada", "bob"))
    before = dict(round_.decisions)
    assert "is decided" in round_.close_part("ada", closed(0, "ada"))
    assert round_.decisions == before


def test_the_entrys_contributors_are_those_of_any_part_in_plan_order() -> None:
    round_ = reducing()
    round_.close_part("bob", closed(2, "bob"))
    assert [c.peer for c in round_.contributors()] == ["bob"]
    round_.close_part("ada", closed(0, "ada"))
    assert round_.contributors() == [Contribution("ada", 40), Contribution("bob", 20)]


# --- holders --------------------------------------------------------------------------------------------------------------------


def test_a_report_counts_when_it_equals_the_decision() -> None:
    round_ = decided()
    holds(round_, "ada", 0)
    assert round_.holders((PARAMETERS, 0)) == {1}


@pytest.mark.parametrize("wrong", [held(0, attempt=0), held(0, other=digest(1))], ids=["another attempt", "other bytes"])
def test_a_report_of_something_else_does_not_count(wrong: Held) -> None:
    round_ = decided()
    round_.hold(1, Have(7, (wrong,)))
    assert round_.holders((PARAMETERS, 0)) == set()


def test_a_report_before_the_decision_counts_when_it_is_made() -> None:
    round_ = reducing()
    holds(round_, "cyd", 0)
    assert round_.holders((PARAMETERS, 0)) == set()
    round_.close_part("ada", closed(0, "ada"))
    assert round_.holders((PARAMETERS, 0)) == {3}


def test_who_is_no_collector_any_more_holds_nothing_that_counts() -> None:
    round_ = decided()
    holds(round_, "ada", 0, 1, 2)
    lose(round_, "ada", 25.0)
    assert round_.holders((PARAMETERS, 0)) == set()


def test_parts_that_are_not_in_the_plan_are_not_remembered() -> None:
    round_ = decided()
    round_.hold(1, Have(7, (held(2), held(99))))
    assert list(round_.holds) == [(PARAMETERS, 2)]


def test_complete_is_who_holds_every_part() -> None:
    round_ = decided()
    holds(round_, "ada", 0, 1, 2)
    holds(round_, "bob", 0, 2)
    assert round_.complete() == {1}
    holds(round_, "bob", 1)
    assert round_.complete() == {1, 2}


# --- when a round may commit ----------------------------------------------------------------------------------------------------


def everybody_holds_everything(round_: Round) -> Round:
    for peer in SESSIONS:
        holds(round_, peer, 0, 1, 2)
    return round_


def test_a_round_commits_at_once_when_all_live_members_hold_everything() -> None:
    assert everybody_holds_everything(decided()).may_commit(DECIDED_AT, DELIVERY_S)


def test_a_round_does_not_commit_before_every_part_is_decided() -> None:
    round_ = reducing()
    round_.close_part("ada", closed(0, "ada"))
    round_.close_part("ada", closed(1, "ada"))
    assert not everybody_holds_everything(round_).may_commit(DECIDED_AT + 1000, DELIVERY_S)


def test_members_are_compared_not_counted() -> None:
    round_ = decided()
    for peer in ("ada", "bob"):
        holds(round_, peer, 0, 1, 2)
    round_.hold(99, Have(7, (held(0), held(1), held(2))))
    assert not round_.may_commit(DECIDED_AT, DELIVERY_S)


def test_two_holders_of_each_part_are_enough_after_the_delivery_deadline() -> None:
    round_ = decided()
    holds(round_, "ada", 0, 1, 2)
    holds(round_, "bob", 0, 1)
    holds(round_, "cyd", 2)
    assert not round_.may_commit(DECIDED_AT + DELIVERY_S - 0.1, DELIVERY_S)
    assert round_.may_commit(DECIDED_AT + DELIVERY_S, DELIVERY_S)


def test_one_holder_is_not_enough_however_late_it_is() -> None:
    round_ = decided()
    holds(round_, "ada", 0, 1, 2)
    holds(round_, "bob", 0, 1)
    assert not round_.may_commit(DECIDED_AT + 1000, DELIVERY_S)


def test_the_last_live_member_may_hold_everything_alone() -> None:
    round_ = decided()
    holds(round_, "cyd", 0, 1, 2)
    lose(round_, "ada", 25.0)
    lose(round_, "bob", 25.0)
    assert round_.may_commit(DECIDED_AT, DELIVERY_S)


def test_after_a_loss_two_holders_are_enough_once_it_has_settled() -> None:
    round_ = decided()
    holds(round_, "bob", 0, 1, 2)
    lose(round_, "ada", 25.0)
    assert not round_.may_commit(25.0, DELIVERY_S)
    round_.collectors["dot"] = 4
    round_.hold(4, Have(7, (held(0), held(1), held(2))))
    assert not round_.may_commit(25.0, DELIVERY_S)  # bob may be about to bring cyd his part
    holds(round_, "cyd", 2)
    assert not round_.may_commit(24.9, DELIVERY_S)
    assert round_.may_commit(25.0, DELIVERY_S)


def test_nobody_left_commits_nothing() -> None:
    round_ = everybody_holds_everything(decided())
    for peer in SESSIONS:
        lose(round_, peer, 25.0)
    assert not round_.may_commit(DECIDED_AT + 1000, DELIVERY_S)


def test_a_gathering_or_finished_round_does_not_commit() -> None:
    assert not Round(RoundOpened(7, 0, 0, 0, (1,), ()), 0.0).may_commit(1000.0, 0.0)
    round_ = everybody_holds_everything(decided())
    round_.move(RoundState.COMMITTED)
    assert not round_.may_commit(DECIDED_AT + 1000, DELIVERY_S)


# --- repair -----------------------------------------------------------------------------------------------------------------------


def redone(round_: Round, now: float) -> list[int]:
    return [part for _, part in round_.to_redo(now)]


def spread(round_: Round, now: float) -> dict[frozenset[int], list[int]]:
    return {holders: [part for _, part in slots] for holders, slots in round_.to_spread(now).items()}


def test_a_round_with_its_reducers_needs_no_repair() -> None:
    for round_ in (reducing(), decided()):
        assert redone(round_, 1000.0) == []
        assert spread(round_, 1000.0) == {}
        assert round_.repair_times() == []


def test_what_a_lost_reducer_had_not_closed_is_redone_at_once_and_what_it_had_when_nobody_holds_it() -> None:
    round_ = reducing()
    round_.close_part("ada", closed(0, "ada"))
    lose(round_, "ada", 25.0)
    assert redone(round_, 15.0) == [1]
    assert redone(round_, 25.0) == [0, 1]
    holds(round_, "bob", 0)
    assert redone(round_, 25.0) == [1]


def test_a_lost_contributor_that_reduces_nothing_leaves_nothing_to_redo() -> None:
    round_ = reducing()
    lose(round_, "cyd", 25.0)
    assert redone(round_, 30.0) == []


def test_a_reducer_that_cannot_be_reached_keeps_what_it_had_closed() -> None:
    round_ = reducing()
    round_.close_part("ada", closed(0, "ada"))
    holds(round_, "ada", 0)
    assert round_.cannot_reach("bob", "ada", 20.0)
    assert redone(round_, 100.0) == [1]


def test_a_lost_reducers_decided_part_is_spread_by_the_only_one_who_holds_it() -> None:
    round_ = decided()
    holds(round_, "bob", 0, 1, 2)
    holds(round_, "cyd", 1, 2)
    lose(round_, "ada", 25.0)
    assert spread(round_, 24.9) == {}
    assert spread(round_, 25.0) == {frozenset({SESSIONS["bob"]}): [0]}
    round_.spread_at[PARAMETERS, 0] = 25.0
    assert spread(round_, 24.9 + SPREAD_AGAIN_S) == {}
    assert spread(round_, 25.0 + SPREAD_AGAIN_S) == {frozenset({SESSIONS["bob"]}): [0]}
    round_.looked(25.0)
    assert round_.repair_times() == [25.0 + SPREAD_AGAIN_S, 25.0]
    holds(round_, "cyd", 0)
    assert spread(round_, 60.0) == {}


def test_a_part_that_is_redone_has_no_decision_and_only_its_new_attempt_counts() -> None:
    round_ = everybody_holds_everything(decided())
    lose(round_, "ada", 25.0)
    round_.redo([Share(BOB, PARAMETERS, 1, 2, 2)], 26.0)
    assert not round_.may_commit(1000.0, DELIVERY_S)
    assert round_.hurried_at == 26.0
    assert round_.close_part("bob", closed(1, "bob", attempt=1)) == "attempt 1 of part 1 is over"
    assert round_.close_part("bob", closed(1, "bob", attempt=2)) == ""
    round_.decided_at = 30.0
    assert not round_.may_commit(30.0 + SETTLE_S, DELIVERY_S)
    for peer in ("bob", "cyd"):
        holds(round_, peer, 0, 2)
        round_.hold(SESSIONS[peer], Have(7, (held(1, attempt=2),)))
    assert round_.may_commit(30.0, DELIVERY_S)
    assert round_.replanned() == (Share(ADA, PARAMETERS, 0, 1, 1), Share(BOB, PARAMETERS, 1, 2, 2))


def test_shares_of_neighbours_are_told_as_one() -> None:
    slots = {(PARAMETERS, part): Share(ADA if part < 3 else BOB, PARAMETERS, 0, 9, 1) for part in (0, 1, 2, 3, 5)}
    assert regrouped(slots) == [Share(ADA, PARAMETERS, 0, 3, 1), Share(BOB, PARAMETERS, 3, 4, 1), Share(BOB, PARAMETERS, 5, 6, 1)]


# --- order -----------------------------------------------------------------------------------------------------------------------


@given(st.permutations([Contribution("ada", 3), Contribution("bob", 1), Contribution("cyd", 2)]))
def test_the_plan_order_does_not_depend_on_who_was_ready_first(contributions: list[Contribution]) -> None:
    assert [contribution.peer for contribution in plan_order(contributions, {})] == ["ada", "bob", "cyd"]
    rates = {"cyd": 2e6, "ada": 1e6, "bob": 1e6}
    assert [contribution.peer for contribution in plan_order(contributions, rates)] == ["cyd", "ada", "bob"]


def test_a_reducer_whose_fellows_mostly_hold_other_bytes_than_it_reported_is_named() -> None:
    round_ = decided()
    lied = Held(PARAMETERS, 2, 0, b"x" * 32)
    holds(round_, "bob", 0, 1, 2)
    assert round_.contradiction() is None
    round_.hold(SESSIONS["ada"], Have(7, (lied,)))
    assert round_.contradiction() is None  # one of two is not most
    round_.hold(SESSIONS["cyd"], Have(7, (lied,)))
    found = round_.contradiction()
    assert found is not None
    assert (found[0].part, found[1]) == (2, {SESSIONS["ada"], SESSIONS["cyd"]})


def test_bytes_of_another_attempt_contradict_nobody() -> None:
    round_ = decided()
    for peer in ("bob", "cyd"):
        round_.hold(SESSIONS[peer], Have(7, (Held(PARAMETERS, 0, 0, b"x" * 32),)))
    assert round_.contradiction() is None


SAID = st.tuples(
    st.sampled_from([1, 2, 2, 2, 3]), st.integers(0, 2), st.sampled_from(["right", "right", "right", "garbled", "old"])
)
"""Who says that it holds which part, and how true that is."""


@given(st.lists(SAID, max_size=40), st.integers(0, 8))
def test_who_is_complete_and_what_is_doubted_is_what_a_look_at_all_parts_says(
    reports: list[tuple[int, int, str]], before: int
) -> None:
    """Whatever is said and changed, before and after the decisions."""
    round_ = reducing()
    for at in range(max(before, len(reports)) + 1):
        if at == before:
            for part in range(3):
                assert round_.close_part("ada" if part < 2 else "bob", closed(part, "ada", "bob")) == ""
        if at < len(reports):
            session, part, kind = reports[at]
            attempt = (1 if part < 2 else 0) + (kind == "old")
            round_.hold(session, Have(7, (held(part, attempt, b"x" * 32 if kind == "garbled" else b""),)))
    everyone = set(SESSIONS.values())
    assert round_.complete() == {s for s in everyone if all(s in round_.holders(slot) for slot in round_.reducer_of)}
    assert round_.undecided_reducers() == []
    round_.decided_at = DECIDED_AT
    contradicted = {}
    for slot, decision in round_.decisions.items():
        others = everyone - {SESSIONS[round_.reducer_of[slot].reducer.peer]}
        garbled = {s for s in others if round_.holds.get(slot, {}).get(s) == (decision.attempt, b"x" * 32)}
        if 2 * len(garbled) > len(others):
            contradicted[decision.part] = garbled
    found = round_.contradiction()
    assert (found is None) == (not contradicted)
    assert found is None or contradicted[found[0].part] == found[1]


def test_reducers_that_closed_all_their_parts_are_not_waited_for() -> None:
    round_ = reducing()
    for part, reducer, left in ((0, "ada", ["ada", "bob"]), (2, "bob", ["ada"]), (1, "ada", [])):
        assert round_.close_part(reducer, closed(part, "ada", "bob")) == ""
        assert round_.undecided_reducers() == left
