"""The inner learning rate, as a pure function of progress. Nobody counts steps: a joiner, a restarted peer and a slow one agree.

Rule: progress is counted in tokens. At an inner step it is P + E * min(1, own / quota): the tokens P that the swarm has committed,
and of the tokens E that this round is expected to add, the share that the peer has done of its own quota, the step being taken
included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, then "constant", or "cosine" down to `final_fraction` of it at `total_tokens` and beyond."""

    peak: float
    total_tokens: int
    warmup_fraction: float = 0.05
    """Of `total_tokens`."""
    final_fraction: float = 0.1
    """Of `peak`."""
    shape: str = "cosine"

    def __post_init__(self) -> None:
        if self.shape not in ("cosine", "constant"):
            raise ValueError(f"unknown schedule {self.shape!r}; known: cosine, constant")
        if not (math.isfinite(self.peak) and self.peak >= 0.0):
            raise ValueError(f"learning rate {self.peak}")
        if self.total_tokens <= 0 or not 0.0 <= self.warmup_fraction <= 1.0 or not 0.0 <= self.final_fraction <= 1.0:
            raise ValueError(f"impossible schedule: {self}")

    def at(self, progress: float) -> float:
        """The rate of a step that ends at `progress` tokens."""
        if not progress >= 0.0:
            raise ValueError(f"progress of {progress} tokens")
        warmup = self.warmup_fraction * self.total_tokens
        if progress < warmup:
            return self.peak * (progress / warmup)
        if self.shape == "constant" or warmup >= self.total_tokens:
            return self.peak
        done = min(1.0, (progress - warmup) / (self.total_tokens - warmup))
        return self.peak * (self.final_fraction + (1.0 - self.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * done)))


def learning_rate(schedule: Schedule, committed: int, expected: int, own: int, quota: int) -> float:
    """The rate of the step after which a peer has done `own` tokens of its `quota` in this round; beyond the quota counts as quota.

    `committed` tokens are in the shared state already; all members together are expected to add `expected`.
    """
    if committed < 0 or expected < 0 or own < 0 or quota <= 0:
        raise ValueError(f"impossible progress: committed {committed}, expected {expected}, own {own}, quota {quota}")
    return schedule.at(committed + expected * min(1.0, own / quota))
