"""One plan as one peer sees it: what it sends, what it adds in which order, what it holds of the result.

Rules. Contributions are added in plan order, never in order of arrival, so that the value is reproducible; early ones wait encoded.
The divisor is the weight that was really added. A part that nobody contributed to cannot close. Neighbours: `engine` turns the
questions asked here into effects; `reduction` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.protocol.messages import Contact, Held, PartKey, PeerId, Plan, Section, Share

Slot = tuple[Section, int]
"""A part without its attempt."""


@dataclass
class OwnPart:
    """A part that this peer reduces."""

    key: PartKey
    arrived: set[PeerId] = field(default_factory=set)
    """Contributions that wait, encoded, for their turn."""
    added: list[PeerId] = field(default_factory=list)
    refused: list[PeerId] = field(default_factory=list)
    passed: set[PeerId] = field(default_factory=set)
    """Contributors whose turn came and went: what they still send does not count."""
    turn: int = 0
    """Index in the plan's contributions of the next one to add."""
    closed: bool = False


class RoundBook:
    """Bookkeeping of the round that is being reduced."""

    def __init__(self, plan: Plan, me: PeerId, now: float) -> None:
        self.plan = plan
        self.me = me
        self.deadline = now + plan.deadline_s
        self.weights = {contribution.peer: contribution.weight for contribution in plan.contributions}
        self.order = [contribution.peer for contribution in plan.contributions]
        self.lost: set[PeerId] = set()
        self.own: dict[Slot, OwnPart] = {}
        self.reducer_of: dict[Slot, Share] = {}
        self.results: dict[Slot, Held] = {}
        self.unsaid: list[Held] = []
        """Results not yet reported to the coordinator."""
        for share in plan.shares:
            for part in range(share.start, share.stop):
                self.reducer_of[share.section, part] = share
                if share.reducer.peer == me:
                    self.own[share.section, part] = OwnPart(PartKey(plan.round, share.section, part, share.attempt))

    @property
    def round(self) -> int:
        """The round's id."""
        return self.plan.round

    def reducers(self) -> list[Contact]:
        """The other peers that reduce something, each once."""
        seen: dict[PeerId, Contact] = {}
        for share in self.plan.shares:
            if share.reducer.peer != self.me:
                seen.setdefault(share.reducer.peer, share.reducer)
        return list(seen.values())

    def sending_order(self) -> Iterator[tuple[PartKey, PeerId]]:
        """All parts with their reducers, not beginning where every other peer begins. Each share is spread evenly: a large one that
        took turns with small ones would be all that is left at the end, on one link."""
        queues = [
            [(PartKey(self.round, s.section, part, s.attempt), s.reducer.peer) for part in range(s.start, s.stop)]
            for s in self.plan.shares
        ]
        place = self.plan.members.index(self.me) if self.me in self.plan.members else 0
        queues = queues[place % len(queues) :] + queues[: place % len(queues)]
        places = [(step / len(queue), index, step) for index, queue in enumerate(queues) for step in range(len(queue))]
        for _, index, step in sorted(places):
            yield queues[index][step]

    def expects(self, key: PartKey, peer: PeerId) -> bool:
        """Whether this contribution may still count."""
        part = self.own.get((key.section, key.part))
        return (
            part is not None
            and self.is_current(key, part)
            and not part.closed
            and peer in self.weights
            and not any(peer in those for those in (part.arrived, part.added, part.refused, part.passed))
        )

    def waits(self, key: PartKey, peer: PeerId) -> bool:
        """Whether this contribution is here already, encoded, until its turn comes."""
        part = self.own.get((key.section, key.part))
        return part is not None and key == part.key and peer in part.arrived

    def is_current(self, key: PartKey, part: OwnPart) -> bool:
        """Whether a contribution is to the attempt that this peer is making."""
        return key == part.key

    def next_to_add(self, part: OwnPart, late: bool) -> PeerId | None:
        """The contributor whose turn it is, if its contribution is here; those that can no longer come are passed over."""
        while part.turn < len(self.order):
            peer = self.order[part.turn]
            if peer in part.arrived:
                return peer
            if not (peer in part.refused or peer in self.lost or late):
                return None
            part.passed.add(peer)
            part.turn += 1
        return None

    def ready_to_close(self, part: OwnPart) -> bool:
        """Every contribution that can come was added, and there is at least one."""
        return not part.closed and part.turn == len(self.order) and bool(part.added)

    def divisor(self, part: OwnPart) -> float:
        """The weight that was really added."""
        return float(sum(self.weights[peer] for peer in part.added))

    def keep(self, key: PartKey, digest: bytes) -> None:
        """A part's final bytes are here."""
        held = Held(key.section, key.part, key.attempt, digest)
        if self.results.get((key.section, key.part)) != held:
            self.results[key.section, key.part] = held
            self.unsaid.append(held)

    def complete(self) -> bool:
        """The whole result is here."""
        return len(self.results) == len(self.reducer_of)
