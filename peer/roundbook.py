"""One plan as one peer sees it, repairs included: what it sends, what it adds in which order, what it holds of the result.

Rules. Contributions are added in plan order, never in order of arrival, so that the value is reproducible; early ones wait encoded.
The divisor is the weight that was really added. A part that nobody contributed to cannot close. A part's newest attempt is the only
one that counts; what belongs to a newer one than was heard of waits for word of it. Neighbours: `engine` turns the questions asked
here into effects; `reduction` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from shoal.protocol.messages import Contact, Held, PartKey, PeerId, Plan, Section, Share

Slot = tuple[Section, int]
"""A part without its attempt."""


@dataclass
class OwnPart:
    """A part that this peer reduces."""

    key: PartKey
    deadline: float
    """When it is closed with what is here."""
    arrived: set[PeerId] = field(default_factory=set)
    """Contributions that wait, encoded, for their turn."""
    added: list[PeerId] = field(default_factory=list)
    refused: list[PeerId] = field(default_factory=list)
    passed: set[PeerId] = field(default_factory=set)
    """Contributors whose turn came and went: what they still send does not count."""
    turn: int = 0
    """Index in the plan's contributions of the next one to add."""
    closed: bool = False


@dataclass
class Replanned:
    """What another attempt at some parts changes."""

    shares: list[Share] = field(default_factory=list)
    """One part each."""
    reducers: list[Contact] = field(default_factory=list)
    """Of these attempts, but this peer; a stream to some may be there."""
    lapsed: list[PartKey] = field(default_factory=list)
    """Attempts that this peer was making, and that count no more."""
    arrived: list[tuple[PartKey, bytes]] = field(default_factory=list)
    """Results of the new attempts that are here already."""


class RoundBook:
    """Bookkeeping of the round that is being reduced."""

    def __init__(self, plan: Plan, me: PeerId, now: float) -> None:
        self.plan = plan
        """As it was first made; `reducer_of` knows of repairs."""
        self.me = me
        self.weights = {contribution.peer: contribution.weight for contribution in plan.contributions}
        self.order = [contribution.peer for contribution in plan.contributions]
        self.contributes = False
        """This peer sends its work to the reducers."""
        self.lost: set[PeerId] = set()
        self.own: dict[Slot, OwnPart] = {}
        self.reducer_of: dict[Slot, Share] = {}
        self.results: dict[Slot, Held] = {}
        self.unsaid: list[Held] = []
        """Results not yet reported to the coordinator."""
        self.dialled: set[PeerId] = set()
        """The other peers that reduced something at any time in this round."""
        self._early: dict[PartKey, set[PeerId]] = {}
        self._early_refused: dict[PartKey, set[PeerId]] = {}
        self._early_results: dict[PartKey, bytes] = {}
        for share in plan.shares:
            self._take(share, now)

    def _take(self, share: Share, now: float) -> None:
        for part in range(share.start, share.stop):
            slot = (share.section, part)
            self.reducer_of[slot] = share
            self.own.pop(slot, None)
            if share.reducer.peer == self.me:
                key = PartKey(self.round, share.section, part, share.attempt)
                refused = sorted(self._early_refused.pop(key, ()))
                self.own[slot] = OwnPart(key, now + self.plan.deadline_s, self._early.pop(key, set()), refused=refused)
            else:
                self.dialled.add(share.reducer.peer)

    def replan(self, shares: Iterable[Share], now: float) -> Replanned:
        """Take what was planned again; what was heard before, or belongs to no part of the plan, changes nothing."""
        found = Replanned()
        for share in shares:
            for part in range(share.start, share.stop):
                slot, key = (share.section, part), PartKey(self.round, share.section, part, share.attempt)
                known = self.reducer_of.get(slot)
                if known is None or known.attempt >= share.attempt:
                    continue
                if slot in self.own:
                    found.lapsed.append(self.own[slot].key)
                self.results.pop(slot, None)
                found.shares.append(replace(share, start=part, stop=part + 1))
                self._take(found.shares[-1], now)
                if (digest := self._early_results.pop(key, None)) is not None:
                    found.arrived.append((key, digest))
        self.unsaid = [held for held in self.unsaid if self.results.get((held.section, held.part)) == held]
        again = {share.reducer.peer: share.reducer for share in found.shares if share.reducer.peer != self.me}
        found.reducers.extend(again.values())
        return found

    def is_to_come(self, key: PartKey) -> bool:
        """Whether this belongs to an attempt that this peer has yet to hear of."""
        share = self.reducer_of.get((key.section, key.part))
        return key.round == self.round and share is not None and key.attempt > share.attempt

    def keep_for_later(self, key: PartKey, peer: PeerId) -> None:
        """A contribution to an attempt that is to come is here, encoded."""
        self._early.setdefault(key, set()).add(peer)

    def refuse_for_later(self, key: PartKey, peer: PeerId) -> None:
        """A contribution to an attempt that is to come is here, and cannot count."""
        self._early_refused.setdefault(key, set()).add(peer)

    def keep_result_for_later(self, key: PartKey, digest: bytes) -> None:
        """A result of an attempt that is to come is here."""
        self._early_results[key] = digest

    @property
    def round(self) -> int:
        """The round's id."""
        return self.plan.round

    def reducers(self) -> list[Contact]:
        """The other peers that reduce something, each once."""
        seen: dict[PeerId, Contact] = {}
        for share in self.reducer_of.values():
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
        """Whether this contribution is here already, encoded, until its turn comes, or its attempt's."""
        part = self.own.get((key.section, key.part))
        return (part is not None and key == part.key and peer in part.arrived) or peer in self._early.get(key, ())

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

    def next_deadline(self, now: float) -> float | None:
        """When the next part that this peer reduces has to be closed."""
        return min((part.deadline for part in self.own.values() if not part.closed and part.deadline > now), default=None)

    def is_late(self, now: float) -> bool:
        """Whether some part that this peer reduces has to be closed now."""
        return any(not part.closed and now >= part.deadline for part in self.own.values())

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
