"""The tiny model of the simulation: a few parts of one to three values, with the real rules of arithmetic.

Rule: everything is exact to the bit and reproducible from what was really sent: contributions travel as fp64, a reducer adds them
in plan order and divides once, and the result is rounded to fp32 when it is encoded, so that a mean that was computed twice in
different ways does not look the same by luck. Neighbours: `machine` computes with this, `judge` computes it again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.protocol.messages import FragmentShape, Layout

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Model:
    """How many parts there are; part `i` has `1 + i % 3` values."""

    parts: int

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(1 + part % 3 for part in range(self.parts))

    @property
    def layout(self) -> Layout:
        return Layout(hashlib.sha256(b"layout%d" % self.parts).digest(), sum(self.widths), (FragmentShape(self.parts),))


@dataclass(frozen=True)
class PartState:
    """One part of the shared state."""

    theta: Vector
    momentum: Vector


State = tuple[PartState, ...]


def encode_contribution(values: Vector) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def decode_contribution(payload: bytes) -> Vector:
    return struct.unpack(f"<{len(payload) // 8}d", payload)


def encode_result(values: Vector) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def decode_result(payload: bytes) -> Vector:
    return struct.unpack(f"<{len(payload) // 4}f", payload)


def add(total: Vector | None, values: Vector, weight: float) -> Vector:
    """One contribution more in a reducer's sum."""
    if total is None:
        return tuple(value * weight for value in values)
    return tuple(old + value * weight for old, value in zip(total, values, strict=True))


def weighted_mean(contributions: Iterable[tuple[float, bytes]], divisor: float) -> bytes:
    """What a reducer must make of these contributions, in this order."""
    total: Vector | None = None
    for weight, payload in contributions:
        total = add(total, decode_contribution(payload), weight)
    assert total is not None
    return encode_result(tuple(value / divisor for value in total))


@lru_cache(maxsize=4096)
def outer_step(part: PartState, payload: bytes, rate: float, mu: float) -> PartState:
    """Nesterov's outer step on one part, from the encoded result."""
    delta = decode_result(payload)
    momentum = tuple(m * mu + d for m, d in zip(part.momentum, delta, strict=True))
    theta = tuple(t - (m * mu + d) * rate for t, m, d in zip(part.theta, momentum, delta, strict=True))
    return PartState(theta, momentum)


def sha256(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()


def root(version: int, state: Sequence[PartState]) -> bytes:
    """Fingerprint of a shared state."""
    digest = hashlib.sha256(struct.pack("<q", version))
    for part in state:
        digest.update(struct.pack(f"<{2 * len(part.theta)}d", *part.theta, *part.momentum))
    return digest.digest()
