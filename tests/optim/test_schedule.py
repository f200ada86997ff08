"""The learning rate as a function of progress."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.optim.schedule import DECAY_SHAPES, SHAPES, Schedule, learning_rate

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


@pytest.mark.parametrize(
    ("progress", "linear", "root"),
    [(50, 0.5, 0.5), (100, 1.0, 1.0), (600, 1.0, 1.0), (650, 0.775, 0.55), (800, 0.1, 0.1), (9000, 0.1, 0.1)],
)
def test_wsd_warms_up_stays_and_falls_at_the_end(progress: int, linear: float, root: float) -> None:
    for shape, rate in (("linear", linear), ("sqrt", root)):
        schedule = Schedule(1.0, 800, 0.125, 0.1, "wsd", 0.25, shape)
        assert schedule.at(progress) == pytest.approx(rate)


@pytest.mark.parametrize(("progress", "rate"), [(50, 0.5), (100, 1.0), (600, 0.55), (1100, 0.1), (5000, 0.1)])
def test_linear_falls_from_the_warm_up_to_the_end(progress: int, rate: float) -> None:
    assert Schedule(1.0, 1100, 100 / 1100, 0.1, "linear").at(progress) == pytest.approx(rate)


@pytest.mark.parametrize(("progress", "rate"), [(50, 0.5), (100, 1.0), (400, 0.5), (2500, 0.2), (10_000, 0.1), (10**9, 0.1)])
def test_rsqrt_falls_with_the_root_of_progress_and_knows_no_end(progress: int, rate: float) -> None:
    assert Schedule(1.0, 1000, 0.1, 0.1, "rsqrt").at(progress) == pytest.approx(rate)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    shape = draw(st.sampled_from(SHAPES))
    warmup = draw(st.floats(1e-3 if shape == "rsqrt" else 0, 1))
    decay = draw(st.floats(0, 1 - warmup)) if shape == "wsd" else 0.2
    assume(warmup + decay <= 1)
    return Schedule(3.0, 1000, warmup, draw(st.floats(0, 1)), shape, decay, draw(st.sampled_from(DECAY_SHAPES)))


@given(schedule=schedules(), progress=st.floats(0, 1e12))
def test_the_rate_is_always_between_zero_and_the_peak(schedule: Schedule, progress: float) -> None:
    rate = schedule.at(progress)
    assert 0.0 <= rate <= 3.0
    assert progress < 1000 * schedule.warmup_fraction or rate >= 3.0 * schedule.final_fraction * (1 - 1e-9)


@given(schedule=schedules(), progress=st.floats(0, 2000), others=st.lists(st.floats(0, 2000), max_size=4))
def test_the_rate_depends_on_progress_alone(schedule: Schedule, progress: float, others: list[float]) -> None:
    rate = schedule.at(progress)
    for other in others:
        schedule.at(other)
    assert schedule.at(progress) == replace(schedule).at(progress) == rate


@given(schedule=schedules(), progress=st.floats(0, 2000), step=st.floats(0, 1))
def test_a_small_step_changes_the_rate_a_little(schedule: Schedule, progress: float, step: float) -> None:
    """Continuous everywhere: no jump where one phase ends and the next begins. The steepest falls are as short as they are."""
    warmup = schedule.warmup_fraction * 1000
    phases = (warmup, schedule.decay_fraction * 1000 if schedule.shape == "wsd" else 1000 - warmup)
    assume(all(phase == 0 or phase > 10 for phase in phases))
    length = min((phase for phase in phases if phase), default=1000)
    change = abs(schedule.at(progress + step) - schedule.at(progress))
    assert change <= 3.0 * (math.sqrt(step / length) if schedule.decay_shape == "sqrt" else math.pi / 2 * step / length) + 1e-9


@given(schedule=schedules(), steps=st.lists(st.floats(0, 2000), min_size=2, max_size=10))
def test_after_the_warm_up_the_rate_never_rises(schedule: Schedule, steps: list[float]) -> None:
    warmup = 1000 * schedule.warmup_fraction
    rates = [schedule.at(progress) for progress in sorted(steps) if progress >= warmup]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(rates))


def test_impossible_settings_are_refused() -> None:
    for wrong in (
        {"shape": "sinus"},
        {"decay_shape": "cosine"},
        {"shape": "wsd", "warmup_fraction": 0.6, "decay_fraction": 0.5},
        {"decay_fraction": -0.1},
        {"shape": "rsqrt", "warmup_fraction": 0.0},
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
