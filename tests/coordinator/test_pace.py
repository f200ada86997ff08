"""How long things may take, from how long they took."""

from __future__ import annotations

import pytest

from shoal.coordinator.pace import KEPT, PEERS_KEPT, Pace, Recent


def recent(*values: float) -> Recent:
    found = Recent()
    for value in values:
        found.add(value)
    return found


def test_nothing_measured_leaves_the_limit() -> None:
    assert recent().allowance(600.0, 2.0) == 600.0
    assert recent().median == 0.0
    assert recent().spread == 0.0


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ((10.0,), 15.0),  # nothing is so regular that half as much again would be suspicious
        ((10.0, 10.0, 10.0, 500.0), 15.0),  # one wild value moves neither median nor spread
        ((8.0, 10.0, 12.0, 6.0, 14.0), 10.0 + 4 * 1.4826 * 2.0),
        ((100.0, 300.0), 600.0),  # bounded by the limit
        ((0.01,), 2.0),  # and never below the least
    ],
)
def test_a_deadline_is_the_median_and_four_spreads(values: tuple[float, ...], allowed: float) -> None:
    assert recent(*values).allowance(600.0, 2.0) == pytest.approx(allowed)


def test_a_machine_may_change_its_speed() -> None:
    found = recent(*[100.0] * KEPT, *[5.0] * (KEPT // 2 + 1))
    assert found.median == 5.0
    assert len(found) == KEPT


def test_parts_are_waited_for_as_long_as_the_slowest_contributor_may_need() -> None:
    pace = Pace()
    pace["fast"].reduce.add(4.0)
    pace["slow"].reduce.add(20.0)
    assert pace.part_limit(["fast"], 300.0, 2.0, 0) == 6.0
    assert pace.part_limit(["fast", "slow"], 300.0, 2.0, 0) == 30.0
    assert pace.part_limit(["fast", "newcomer"], 300.0, 2.0, 0) == 300.0


def test_patience_that_was_too_short_doubles_until_the_limit() -> None:
    pace = Pace()
    pace["peer"].reduce.add(4.0)
    pace["peer"].missed = 2
    assert pace.part_limit(["peer"], 300.0, 2.0, 0) == 24.0
    assert pace.part_limit(["peer"], 300.0, 2.0, 1) == 48.0  # a round was abandoned before this one
    assert pace.part_limit(["peer"], 300.0, 2.0, 5000) == 300.0


def test_a_decided_round_waits_for_its_slowest_member_or_with_a_quorum_for_the_middle_one() -> None:
    pace = Pace()
    for name, seconds in (("ada", 2.0), ("bob", 4.0), ("cyd", 30.0)):
        pace[name].delivery.add(seconds)
    assert pace.delivery_limit(["ada", "bob", "cyd"], 60.0, 2.0, quorum=False) == 45.0
    assert pace.delivery_limit(["ada", "bob", "cyd"], 60.0, 2.0, quorum=True) == 6.0
    assert pace.delivery_limit(["ada", "dan"], 60.0, 2.0, quorum=False) == 60.0


def test_who_was_measured_longest_ago_is_forgotten() -> None:
    pace = Pace()
    for number in range(PEERS_KEPT + 1):
        pace[f"peer {number}"].turn.add(1.0)
    assert len(pace["peer 1"].turn) == 1
    assert len(pace["peer 0"].turn) == 0
