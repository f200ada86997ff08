"""What a lane learns from the bytes that pass, and how a cap holds them back."""

from __future__ import annotations

import asyncio

import pytest

from shoal.peer.lanes import FALL, RISE, RUN_BYTES, RUN_S, Lane, rate

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def carry(lane: Lane, clock: Clock, mib: int, seconds_per_mib: float) -> None:
    for _ in range(mib):
        clock.now += seconds_per_mib
        lane.moved(MIB)


def test_too_few_bytes_tell_nothing() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    carry(lane, clock, RUN_BYTES // MIB, 0.1)
    lane.settle()
    assert lane.bytes_s == 0.0


def test_the_fastest_run_counts_and_not_the_wait_for_others() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    carry(lane, clock, 12, 0.08)
    carry(lane, clock, 12, 1.0)
    lane.settle()
    assert lane.bytes_s == pytest.approx(MIB / 0.08)


def test_a_probe_is_where_the_estimate_begins_and_no_more() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    lane.suppose(2.0 * MIB)
    assert lane.bytes_s == 2.0 * MIB
    carry(lane, clock, 12, 0.25)
    lane.settle()
    assert lane.bytes_s == pytest.approx((2 + RISE * 2) * MIB)
    lane.suppose(100.0 * MIB)
    assert lane.bytes_s == pytest.approx((2 + RISE * 2) * MIB)


def test_a_pause_between_two_transfers_is_not_part_of_either() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    carry(lane, clock, 12, 0.1)
    lane.settle()
    clock.now += 1000
    carry(lane, clock, 12, 0.1)
    lane.settle()
    assert lane.bytes_s == pytest.approx(MIB / 0.1)


def test_an_estimate_follows_what_is_faster_half_the_way_and_what_is_slower_less() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    for seconds in (0.25, 0.125):
        carry(lane, clock, 12, seconds)
        lane.settle()
    assert lane.bytes_s == pytest.approx((4 + RISE * 4) * MIB)
    carry(lane, clock, 12, 0.5)
    lane.settle()
    assert lane.bytes_s == pytest.approx((6 - FALL * 4) * MIB)


def test_what_the_system_takes_in_at_once_does_not_pass_for_speed() -> None:
    """Four streams whose send buffers swallow 4 MiB each, and a link that then crawls at 1 MiB/s."""
    clock = Clock()
    lane = Lane(clock=clock)
    for _ in range(16):
        lane.moved(MIB, 1e-4)
    for _ in range(30):
        clock.now += 1.0
        lane.moved(MIB, 1.0)
    lane.settle()
    assert lane.bytes_s == pytest.approx(MIB)


def test_small_transfers_add_up_without_the_time_between_them() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    for _ in range(6):
        carry(lane, clock, 3, 0.1)
        lane.settle()
        clock.now += 1000
    assert lane.bytes_s == pytest.approx(MIB / 0.1)


def test_a_burst_is_no_run() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    carry(lane, clock, 20, 1e-3)
    lane.settle()
    assert lane.bytes_s == 0.0


def test_memory_does_not_grow_with_what_is_carried() -> None:
    clock = Clock()
    lane = Lane(clock=clock)
    carry(lane, clock, 5000, 0.01)
    assert len(lane._marks) <= RUN_S / 0.01 + 3


async def test_a_cap_holds_back_what_comes_too_early() -> None:
    lane = Lane(cap_bytes_s=4 * MIB)
    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.gather(*(lane.admit(MIB // 2) for _ in range(4)))
    assert 0.37 <= loop.time() - start < 2.0


async def test_without_a_cap_nothing_waits_and_a_cap_bounds_the_rate() -> None:
    clock = Clock()
    free, capped = Lane(clock=clock), Lane(5 * MIB, clock)
    for lane in (free, capped):
        carry(lane, clock, 12, 0.1)
        lane.settle()
    await free.admit(1 << 40)
    await free.admit(1)
    assert capped.bytes_s == 5 * MIB


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("10Mbit", 1.25e6),
        ("10Mbit/s", 1.25e6),
        ("1MiB/s", 1 << 20),
        ("1.5 MB/s", 1.5e6),
        ("500kbit", 62_500),
        ("1Gbit", 125e6),
        ("100000B", 1e5),
    ],
)
def test_a_rate_says_bits_or_bytes(text: str, bytes_s: float) -> None:
    assert rate(text) == bytes_s


@pytest.mark.parametrize("text", ["", "10", "10M", "fast", "-1Mbit", "1e3Mbit", "10mbit", "499kbit", "0Mbit"])
def test_what_is_no_rate_or_too_slow_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no rate|too slow"):
        rate(text)
