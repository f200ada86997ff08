"""How long things took lately, and so how long they may take: deadlines from medians and spreads instead of constants.

Rule 1: a deadline is the median and four spreads of what was measured, never less than the caller's least and never more than the
run spec's limit, which alone holds as long as nothing was measured. Rule 2: what was cut off at its deadline counts as having
taken that long, and what was missed for want of patience doubles the next patience: a deadline that was too short grows by itself.
Rule 3: only this process's clock and durations of one machine; all of it dies with the process and is measured again. Neighbours:
`gathering` decides with it, `core` tells it what happened.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from shoal.protocol.messages import PeerId

KEPT = 16
"""Measurements that count; older ones are forgotten, so that a machine may change its speed."""
SPREADS = 4.0
LEAST_SPREAD = 0.125
"""Of the median: nothing is so regular that half as much again would be suspicious."""
NORMAL = 1.4826
"""From the median of absolute deviations to the standard deviation of a normal distribution."""
LARGEST = 1e12
"""Nothing that is measured is larger; so no sum of them is infinite."""
PEERS_KEPT = 4096
"""Beyond that, who was measured longest ago is forgotten."""


class Recent:
    """The last measurements of one duration, in seconds (or of one rate)."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """One more measurement."""
        self._values.append(min(max(0.0, value), LARGEST))

    @property
    def median(self) -> float:
        """0 when nothing was measured."""
        return statistics.median(self._values) if self._values else 0.0

    @property
    def spread(self) -> float:
        """Like a standard deviation, but a few wild values do not move it; at least an eighth of the median."""
        if not self._values:
            return 0.0
        median = self.median
        deviation = statistics.median(abs(value - median) for value in self._values)
        return max(NORMAL * deviation, LEAST_SPREAD * median)

    def allowance(self, limit: float, least: float = 0.0) -> float:
        """How long the next one may take."""
        if not self._values:
            return limit
        return min(limit, max(least, self.median + SPREADS * self.spread))


@dataclass
class PeerPace:
    """What was measured of one peer."""

    turn: Recent = field(default_factory=Recent)
    """From a round's opening to its Ready, for a whole quota."""
    speed: Recent = field(default_factory=Recent)
    """Samples per second of training."""
    answer: Recent = field(default_factory=Recent)
    """From being asked to wrap up to its Ready."""
    reduce: Recent = field(default_factory=Recent)
    """From a plan to its last decision, in rounds whose every part contains it."""
    delivery: Recent = field(default_factory=Recent)
    """From a round's last decision until it had everything."""
    missed: int = 0
    """Rounds in a row of which some part went without it although it was in the plan."""
    absent: int = 0
    """Rounds in a row whose gathering closed without it."""


class Pace:
    """All measurements of a run."""

    def __init__(self) -> None:
        self.overhead = Recent()
        """From a plan to its commit."""
        self._peers: OrderedDict[PeerId, PeerPace] = OrderedDict()

    def __getitem__(self, peer: PeerId) -> PeerPace:
        """What is known of `peer`, to be added to; nothing at first."""
        found = self._peers.setdefault(peer, PeerPace())
        self._peers.move_to_end(peer)
        while len(self._peers) > PEERS_KEPT:
            self._peers.popitem(last=False)
        return found

    def part_limit(self, contributors: list[PeerId], limit_s: float, least_s: float, abandoned: int) -> float:
        """How long reducers wait for these contributors: as long as the slowest of them may need."""
        patience = [self[peer].reduce.allowance(limit_s, least_s) * 2.0 ** min(self[peer].missed, 30) for peer in contributors]
        return min(limit_s, max(patience, default=limit_s) * 2.0 ** min(abandoned, 30))

    def delivery_limit(self, collectors: list[PeerId], limit_s: float, least_s: float, quorum: bool) -> float:
        """How long a decided round waits for its last collector: for the slowest of them, or with a quorum for half of them."""
        patience = [self[peer].delivery.allowance(limit_s, least_s) for peer in collectors]
        if not patience:
            return limit_s
        return statistics.median_high(patience) if quorum else max(patience)
