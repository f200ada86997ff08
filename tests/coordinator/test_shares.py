"""Shares of a reduction: as fast as the links allow, fair where they are equal, none for who cannot be dialled."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.coordinator.shares import REDUCERS_LIMIT, Link, counts, fractions, planned_shares, slowest_s
from shoal.protocol.messages import Contact, Section

MBIT = 125_000.0


def link(number: int, up: float = 0.0, down: float = 0.0, contributes: bool = True, reduces: bool = True) -> Link:
    return Link(Contact(f"peer{number:03d}", f"10.0.0.{number}:1"), up, down, contributes, reduces=reduces)


def links(*rates: float) -> list[Link]:
    return [link(number, rate, rate) for number, rate in enumerate(rates)]


rates = st.sampled_from((0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0))
members = st.builds(link, st.just(0), rates, rates, st.booleans(), st.booleans())
swarms = st.lists(members, min_size=3, max_size=6).filter(
    lambda swarm: any(one.reduces for one in swarm) and sum(one.contributes for one in swarm) > 1
)


@settings(max_examples=50)
@given(swarms, st.integers(1, 7))
def test_no_other_division_into_whole_parts_is_faster(swarm: list[Link], parts: int) -> None:
    def seconds(division: tuple[int, ...]) -> float:
        return slowest_s(swarm, [count / parts for count in division])

    able = [range(parts + 1) if one.reduces else (0,) for one in swarm]
    best = min(seconds(division) for division in itertools.product(*able) if sum(division) == parts)
    found = counts(parts, swarm)
    assert sum(found) == parts
    assert all(one.reduces for one, count in zip(swarm, found, strict=True) if count)
    assert seconds(tuple(found)) == pytest.approx(best, rel=1e-6)


@settings(max_examples=30)
@given(swarms, st.sampled_from((0.25, 1.0, 2.0)))
def test_no_grid_of_fractions_is_faster(swarm: list[Link], returned: float) -> None:
    found = fractions(swarm, 1.0, returned)
    assert math.fsum(found) == pytest.approx(1.0)
    assert min(found) >= 0
    able = [range(9) if one.reduces else (0,) for one in swarm]
    grid = (division for division in itertools.product(*able) if sum(division) == 8)
    best = min(slowest_s(swarm, [count / 8 for count in division], 1.0, returned) for division in grid)
    assert slowest_s(swarm, found, 1.0, returned) <= best * (1 + 1e-9)


@given(st.integers(1, 80), st.integers(1, 300), st.sampled_from((0.0, 1.0, 12.5e6)))
def test_equal_rates_give_equal_shares(peers: int, parts: int, rate: float) -> None:
    found = counts(parts, links(*[rate] * peers))
    assert sum(found) == parts
    assert sum(count > 0 for count in found) <= REDUCERS_LIMIT
    used = [count for count in found if count]
    assert max(used) - min(found[:REDUCERS_LIMIT]) <= 1


def test_beside_a_slow_link_the_fast_ones_take_all_and_share_alike() -> None:
    """The slow peer's own contributions alone take its link longer than all else takes: it gets no part to reduce."""
    swarm = links(10 * MBIT, 100 * MBIT, 100 * MBIT, 100 * MBIT)
    assert fractions(swarm) == pytest.approx([0.0, 1 / 3, 1 / 3, 1 / 3])
    assert slowest_s(swarm, fractions(swarm), 25e6, 25e6) == pytest.approx(20.0)
    assert slowest_s(swarm, [0.25] * 4, 25e6, 25e6) == pytest.approx(30.0)


def test_a_home_uplink_counts_and_not_its_downlink() -> None:
    """Three at home, 20 up and 100 down, and one with 100 both ways: a share costs an uplink more than it saves."""
    swarm = [*(link(number, 20 * MBIT, 100 * MBIT) for number in range(3)), link(3, 100 * MBIT, 100 * MBIT)]
    home, other = fractions(swarm)[0], fractions(swarm)[3]
    assert home == pytest.approx(0.0)
    assert other == pytest.approx(1.0)
    assert slowest_s(swarm, fractions(swarm)) == pytest.approx(1 / (20 * MBIT))


def test_a_helper_that_contributes_nothing_takes_the_larger_share() -> None:
    """Its uplink carries nothing but what it returns."""
    swarm = [*links(10.0, 10.0), link(2, 10.0, 20.0, contributes=False)]
    found = fractions(swarm)
    assert found == pytest.approx([0.2, 0.2, 0.6])


def test_whoever_cannot_be_dialled_reduces_nothing() -> None:
    swarm = [link(0, 100.0, 100.0, reduces=False), link(1, 1.0, 1.0), link(2, 1.0, 1.0)]
    assert counts(10, swarm) == [0, 5, 5]
    assert counts(10, [link(0, reduces=False), link(1, reduces=False)]) == [0, 0]


def test_what_was_not_measured_counts_as_the_mean_of_what_was() -> None:
    assert fractions(links(10.0, 30.0, 0.0, 20.0)) == pytest.approx(fractions(links(10.0, 30.0, 20.0, 20.0)))


def test_the_fastest_sixty_four_reduce() -> None:
    swarm = links(*[float(1 + number % 100) for number in range(100)])
    found = counts(1000, swarm)
    assert sum(found) == 1000
    assert not any(found[:36])
    assert sum(count > 0 for count in found) <= REDUCERS_LIMIT


def test_who_reduces_alone_reduces_all() -> None:
    assert counts(5, links(7.0)) == [5]


def test_shares_are_consecutive_and_leave_out_who_has_none() -> None:
    swarm = links(10 * MBIT, 100 * MBIT, 100 * MBIT, 100 * MBIT)
    shares = planned_shares(9, swarm, Section.PARAMETERS, attempt=2)
    assert [(share.reducer.peer, share.start, share.stop, share.attempt) for share in shares] == [
        ("peer001", 0, 3, 2),
        ("peer002", 3, 6, 2),
        ("peer003", 6, 9, 2),
    ]


def test_a_peer_that_calls_itself_infinitely_fast_gets_no_more_than_four_times_the_others() -> None:
    liar = links(1e12, 1e6, 1e6, 1e6)
    honest = links(4e6, 1e6, 1e6, 1e6)
    assert fractions(liar) == pytest.approx(fractions(honest))
    assert fractions([*links(0.0, 1e6, 1e6), link(3, 1e12, 1e12)])[0] < 0.5


def test_the_sizes_of_what_is_sent_and_returned_matter() -> None:
    """A result that is four times as large as a contribution weighs on the uplink of who reduces."""
    home = [link(0, 10.0, 100.0), link(1, 40.0, 100.0), link(2, 40.0, 100.0)]
    assert fractions(home, 1.0, 4.0)[0] < fractions(home, 4.0, 1.0)[0]
