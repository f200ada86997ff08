"""The inner learning rate, as a pure function of progress. Nobody counts steps: a joiner, a restarted peer and a slow one agree.

Rule: progress is counted in tokens. At an inner step it is P + E * min(1, own / quota): the tokens P that the swarm has committed,
and of the tokens E that this round is expected to add, the share that the peer has done of its own quota, the step being taken
included.

After a linear warm-up to the peak comes one of these courses; f is the final fraction, `done` goes from 0 to 1 over the fall:

    cosine      f + (1 - f) (1 + cos(pi done)) / 2, falling from the warm-up to the end
    linear      f + (1 - f) (1 - done), falling from the warm-up to the end
    wsd         the peak, and over the last `decay_fraction` linear's fall or, as "sqrt", f + (1 - f) (1 - sqrt(done))
    rsqrt       sqrt(warm-up / progress), at least f: knows no end
    constant    the peak

"wsd" is warm-up, stable, decay (Hu et al. 2024, arXiv 2404.06395); its sqrt fall is that of Haegele et al. 2024, arXiv 2405.18392.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_FALLS: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
    "sqrt": lambda done: 1.0 - math.sqrt(done),
}
"""From 1 at done = 0 to 0 at done = 1."""
SHAPES = ("cosine", "linear", "wsd", "rsqrt", "constant")
DECAY_SHAPES = ("linear", "sqrt")


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to `peak`, then the course that `shape` names; beyond `total_tokens` the rate stays what it was there, but
    for rsqrt's."""

    peak: float
    total_tokens: int
    warmup_fraction: float = 0.05
    """Of `total_tokens`."""
    final_fraction: float = 0.1
    """Of `peak`."""
    shape: str = "cosine"
    decay_fraction: float = 0.2
    """Of `total_tokens`, the last ones; wsd only."""
    decay_shape: str = "linear"
    """How wsd falls."""

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"unknown schedule {self.shape!r}; known: {', '.join(SHAPES)}")
        if self.decay_shape not in DECAY_SHAPES:
            raise ValueError(f"unknown decay {self.decay_shape!r}; known: {', '.join(DECAY_SHAPES)}")
        if not (math.isfinite(self.peak) and self.peak >= 0.0):
            raise ValueError(f"learning rate {self.peak}")
        fractions = (self.warmup_fraction, self.final_fraction, self.decay_fraction)
        if self.total_tokens <= 0 or not all(0.0 <= fraction <= 1.0 for fraction in fractions):
            raise ValueError(f"impossible schedule: {self}")
        if self.shape == "wsd" and self.warmup_fraction + self.decay_fraction > 1.0:
            raise ValueError(f"warm-up and decay overlap: {self}")
        if self.shape == "rsqrt" and self.warmup_fraction == 0.0:
            raise ValueError("rsqrt needs a warm-up, whose length is its scale")

    def at(self, progress: float) -> float:
        """The rate of a step that ends at `progress` tokens."""
        if not progress >= 0.0:
            raise ValueError(f"progress of {progress} tokens")
        warmup = self.warmup_fraction * self.total_tokens
        if progress < warmup:
            return self.peak * (progress / warmup)
        match self.shape:
            case "constant":
                return self.peak
            case "rsqrt":
                return self.peak * max(self.final_fraction, math.sqrt(warmup / progress))
            case "wsd":
                start, fall = (1.0 - self.decay_fraction) * self.total_tokens, _FALLS[self.decay_shape]
            case _:
                start, fall = warmup, _FALLS[self.shape]
        if start >= self.total_tokens:
            return self.peak
        done = min(1.0, max(0.0, (progress - start) / (self.total_tokens - start)))
        return self.peak * (self.final_fraction + (1.0 - self.final_fraction) * fall(done))


def learning_rate(schedule: Schedule, committed: int, expected: int, own: int, quota: int) -> float:
    """The rate of the step after which a peer has done `own` tokens of its `quota` in this round; beyond the quota counts as quota.

    `committed` tokens are in the shared state already; all members together are expected to add `expected`.
    """
    if committed < 0 or expected < 0 or own < 0 or quota <= 0:
        raise ValueError(f"impossible progress: committed {committed}, expected {expected}, own {own}, quota {quota}")
    return schedule.at(committed + expected * min(1.0, own / quota))
