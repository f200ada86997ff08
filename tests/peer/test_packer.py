"""Packing is used where it is faster, by what was measured, and nowhere else."""

from __future__ import annotations

import random

import pytest

from shoal.peer.packer import KNOWN_BYTES, LINKS_REMEMBERED, PROBE_EVERY, Packer

MB = 1_000_000
FIGURES = [
    # kind, gain, encode MB/s, pays at 100 Mb/s, 1 Gb/s and 10 Gb/s (measured: what packing does to payloads of each kind)
    ("int8", 1.24, 1000, True, True, False),
    ("int4", 1.70, 600, True, True, False),
    ("fp32", 1.09, 900, True, False, False),
    ("random", 1.0, 1000, False, False, False),
]


def packer_on(rate: float) -> Packer:
    """One that knows the link "there": bytes per second."""
    packer = Packer()
    for _ in range(8):
        packer.wrote("there", KNOWN_BYTES, KNOWN_BYTES / rate)
    return packer


def answers(packer: Packer, kind: str, count: int = PROBE_EVERY) -> list[bool]:
    return [packer.pays("there", kind) for _ in range(count)]


@pytest.mark.parametrize(("kind", "gain", "speed", "slow", "middle", "fast"), FIGURES)
def test_it_pays_where_the_figures_say(kind: str, gain: float, speed: float, slow: bool, middle: bool, fast: bool) -> None:
    for rate, pays in ((12.5 * MB, slow), (125 * MB, middle), (1250 * MB, fast)):
        packer = packer_on(rate)
        packer.packed(kind, 10 * MB, round(10 * MB / gain), 10 / speed)
        assert answers(packer, kind)[1:] == [pays] * (PROBE_EVERY - 1), f"{kind} at {rate:g} B/s"


def test_a_link_that_is_not_known_gets_payloads_as_they_are() -> None:
    packer = Packer()
    packer.packed("int8", MB, MB // 2, 0.001)
    assert not any(answers(packer, "int8"))
    packer.wrote("there", KNOWN_BYTES - 1, 10.0)
    assert not any(answers(packer, "int8"))
    packer.wrote("there", 1, 0.0)
    assert all(answers(packer, "int8"))


def test_what_does_not_pay_is_tried_again_once_in_a_while() -> None:
    packer = packer_on(12.5 * MB)
    packer.packed("noise", MB, MB + 20, 0.001)
    assert answers(packer, "noise", 3 * PROBE_EVERY).count(True) == 3
    packer.packed("noise", 200 * MB, 50 * MB, 0.2)
    assert all(answers(packer, "noise"))


def test_kinds_and_links_are_measured_apart() -> None:
    packer = packer_on(12.5 * MB)
    packer.wrote("elsewhere", KNOWN_BYTES, 0.001)
    packer.packed("good", MB, MB // 2, 0.001)
    packer.packed("bad", MB, MB, 0.001)
    assert all(answers(packer, "good"))
    assert not any(answers(packer, "bad")[1:])
    assert not packer.pays("elsewhere", "good")


def test_a_link_that_became_fast_is_believed() -> None:
    packer = packer_on(12.5 * MB)
    packer.packed("int8", MB, round(MB / 1.24), 0.001)
    assert all(answers(packer, "int8"))
    for _ in range(60):
        packer.wrote("there", KNOWN_BYTES, KNOWN_BYTES / (1250 * MB))
    assert not any(answers(packer, "int8"))


def test_only_what_gets_smaller_is_packed() -> None:
    packer = Packer()
    assert packer.pack("noise", random.Random(1).randbytes(1000)) is None
    packed = packer.pack("zeros", bytes(1000))
    assert packed is not None
    assert len(packed) < 40


def test_links_are_forgotten_in_the_end() -> None:
    packer = packer_on(12.5 * MB)
    for index in range(LINKS_REMEMBERED):
        packer.wrote(str(index), 1, 0.1)
    assert len(packer._links) == LINKS_REMEMBERED
    assert not packer.pays("there", "int8")
