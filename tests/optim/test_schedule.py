"""The learning rate as a function of progress."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.optim.schedule import Schedule, learning_rate

HAND = Schedule(peak=1.0, total_tokens=1100, warmup_fraction=100 / 1100, final_fraction=0.1)


@pytest.mark.parametrize(("progress", "rate"), [(0, 0.0), (1, 0.01), (50, 0.5), (100, 1.0), (600, 0.55), (1100, 0.1), (5000, 0.1)])
def test_warms_up_linearly_and_falls_by_half_a_cosine(progress: int, rate: float) -> None:
    assert HAND.at(progress) == pytest.approx(rate)


def test_constant_stays_at_its_peak() -> None:
    constant = Schedule(peak=0.5, total_tokens=1000, warmup_fraction=0.1, shape="constant")
    assert [constant.at(progress) for progress in (50, 100, 1000, 2000)] == [0.25, 0.5, 0.5, 0.5]


def test_without_warm_up_the_first_step_is_near_the_peak() -> None:
    assert Schedule(peak=1.0, total_tokens=10**9, warmup_fraction=0.0).at(1) == pytest.approx(1.0)


def test_all_warm_up_ends_at_the_peak() -> None:
    assert Schedule(peak=1.0, total_tokens=100, warmup_fraction=1.0).at(100) == 1.0


def test_progress_is_what_the_swarm_did_and_the_peers_share_of_the_round() -> None:
    # P = 400, E = 400; half of the own quota done: progress 600.
    assert learning_rate(HAND, committed=400, expected=400, own=50, quota=100) == pytest.approx(0.55)
    assert learning_rate(HAND, committed=400, expected=200, own=500, quota=100) == pytest.approx(0.55)


def test_the_first_step_of_a_run_is_not_lost() -> None:
    assert learning_rate(HAND, committed=0, expected=100, own=1, quota=100) == pytest.approx(0.01)


def test_a_slow_and_a_fast_peer_end_the_round_at_the_same_rate() -> None:
    assert learning_rate(HAND, 200, 300, own=30, quota=30) == learning_rate(HAND, 200, 300, own=7, quota=7) == HAND.at(500)


@given(progress=st.floats(0, 1e12), warmup=st.floats(0, 1), final=st.floats(0, 1), shape=st.sampled_from(("cosine", "constant")))
def test_the_rate_is_always_between_zero_and_the_peak(progress: float, warmup: float, final: float, shape: str) -> None:
    rate = Schedule(3.0, 1000, warmup, final, shape).at(progress)
    assert 0.0 <= rate <= 3.0
    assert progress < 1000 * warmup or rate >= 3.0 * final * (1 - 1e-9)


def test_impossible_settings_are_refused() -> None:
    for wrong in (
        {"shape": "linear"},
        {"peak": -1.0},
        {"peak": math.nan},
        {"total_tokens": 0},
        {"warmup_fraction": 1.5},
        {"final_fraction": -0.1},
    ):
        with pytest.raises(ValueError):
            Schedule(**{"peak": 1.0, "total_tokens": 100, **wrong})  # type: ignore[arg-type]
    for arguments in ((-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, -1, 1), (0, 0, 1, 0)):
        with pytest.raises(ValueError, match="impossible progress"):
            learning_rate(HAND, *arguments)
    with pytest.raises(ValueError, match="progress"):
        HAND.at(math.nan)
