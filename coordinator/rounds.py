"""One round in flight: from its opening to its one outcome.

    GATHERING ──plan──► REDUCING ──commit──► COMMITTED
        └────────abandon────┴──────────────► ABANDONED

Rules. The first PartClosed accepted for a part's current attempt decides that part; later ones never change it. A Have counts only
where its digest equals the decision. Members are compared, never counted: a round waits for *these* members, not for *so many*.
Repair. A part whose reducer is out of the round is reduced again by another, as the next attempt, if it is undecided, or if nobody
alive holds what was decided (`to_redo`, `redo`). What too few hold is fetched from those who do (`to_spread`). Nothing else is done
again.
Neighbours: `core` feeds it and journals its outcome; `ledger` holds what survives a restart.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.coordinator.records import Limits, RoundOpened
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import (
    Contribution,
    Decision,
    Have,
    PartClosed,
    PartKey,
    PeerId,
    Plan,
    Ready,
    Section,
    Share,
)

Slot = tuple[Section, int]
"""A part without its attempt."""
SETTLE_S = 1.0
"""After a loss, or after the last decision: how long what was delivered before may take to be reported."""
SPREAD_AGAIN_S = 10.0
"""After so long, members are asked again to fetch what they lack."""


class RoundState(enum.Enum):
    """Where a round is."""

    GATHERING = "gathering"
    REDUCING = "reducing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


TRANSITIONS: dict[RoundState, frozenset[RoundState]] = {
    RoundState.GATHERING: frozenset({RoundState.REDUCING, RoundState.ABANDONED}),
    RoundState.REDUCING: frozenset({RoundState.COMMITTED, RoundState.ABANDONED}),
    RoundState.COMMITTED: frozenset(),
    RoundState.ABANDONED: frozenset(),
}


@dataclass
class Round:
    """Live bookkeeping of the round in flight."""

    opened: RoundOpened
    opened_at: float
    state: RoundState = RoundState.GATHERING
    ready: dict[int, Ready] = field(default_factory=dict)
    """By session; only of members."""
    members: set[int] = field(default_factory=set)
    """Sessions whose Ready the gathering waits for."""
    plan: Plan | None = None
    collectors: dict[PeerId, int] = field(default_factory=dict)
    """Sessions of the plan's members, lost ones removed."""
    planned_at: float = 0.0
    hurried_at: float = 0.0
    """When the plan was made, or parts of it were planned again: the round's time to reduce runs from here."""
    decided_at: float | None = None
    settle_at: float | None = None
    """When what members hold of an outgoing reducer's parts has had time to be reported."""
    lost: set[PeerId] = field(default_factory=set)
    """Whose contributions do not come any more, where they are not in yet."""
    excluded: set[PeerId] = field(default_factory=set)
    """Collectors that reduce no more in this round: they restarted, are cut off, or reported what cannot be true."""
    unreached: dict[PeerId, set[PeerId]] = field(default_factory=dict)
    """Whom each collector could not reach; who is in here, and not excluded for saying so, reduces no more in this round."""
    repair_at: float = math.inf
    """When to look what is to be repaired: after each loss, and when what was done about it has had its time."""
    spread_at: dict[Slot, float] = field(default_factory=dict)
    """When members were last asked to fetch a part from each other."""
    refused: set[PeerId] = field(default_factory=set)
    """Contributors that some reducer refused: said once."""
    decisions: dict[Slot, Decision] = field(default_factory=dict)
    holds: dict[Slot, dict[int, tuple[int, bytes]]] = field(default_factory=dict)
    """What each session says that it holds of a part: attempt and digest."""
    reducer_of: dict[Slot, Share] = field(default_factory=dict)
    weights: dict[PeerId, int] = field(default_factory=dict)
    sessions: dict[PeerId, int] = field(default_factory=dict)
    """Whose lease a contribution of the plan spends."""
    explain_at: float = math.inf
    """When those who are ready, or everybody if nobody is, are told whom the round waits for."""
    relabelled: bool = False
    """The round before was abandoned: trainings that are under way may have begun before this one opened."""
    leases: dict[int, int] = field(default_factory=dict)
    """Samples leased to each member."""
    ready_at: dict[int, float] = field(default_factory=dict)
    """When each session first said that it was ready."""
    heard_at: dict[int, float] = field(default_factory=dict)
    """When each session last said what it holds."""
    wrapped: dict[int, float] = field(default_factory=dict)
    """Sessions that were asked to stop training early, and when."""
    peers: dict[int, PeerId] = field(default_factory=dict)
    """Whose sessions the members were when the round opened; this and the next are `gathering.prepare`'s."""
    quotas: dict[int, int] = field(default_factory=dict)
    """Samples expected of each member."""
    limits: dict[int, float] = field(default_factory=dict)
    """Seconds from the opening after which each member is asked for what it has."""
    graces: dict[int, float] = field(default_factory=dict)
    """Seconds that each member then gets to answer."""
    absent: set[int] = field(default_factory=set)
    """Members that the last rounds closed without: not waited for until they have caught up."""
    quorum: int = 0
    """Members that are enough, with gather = "quorum"."""
    looked_at: float = 0.0
    late: bool = False
    """Nobody is waited for any more, if enough are ready."""
    look_again_at: float = 0.0
    """When time alone may move the gathering."""
    seen: tuple[object, ...] = ()
    """What the gathering looked like when it was looked at last."""
    deadlines: Limits = field(default_factory=Limits)
    """What is waited for at most, now that the plan is known."""
    _undecided: Counter[PeerId] = field(default_factory=Counter)
    """Parts that each reducer has not closed; this and the next three say what a look at all parts would, which may be many."""
    _slots: defaultdict[PeerId, dict[Slot, None]] = field(default_factory=lambda: defaultdict(dict))
    """The parts of each reducer."""
    _right: Counter[int] = field(default_factory=Counter)
    """Parts of which each session says to hold what was decided."""
    _doubted: dict[Slot, None] = field(default_factory=dict)
    """Parts of which some session says to hold something else."""

    def __post_init__(self) -> None:
        self.members = set(self.opened.members)

    @property
    def id(self) -> int:
        """The round's id."""
        return self.opened.round

    def move(self, to: RoundState) -> None:
        """Change state, along the table only."""
        if to not in TRANSITIONS[self.state]:
            raise LocalProtocolError(f"round {self.id} cannot go from {self.state.value} to {to.value}")
        self.state = to

    def begin_reducing(self, plan: Plan, collectors: dict[PeerId, int], sessions: dict[PeerId, int], now: float) -> None:
        """Gathering is over: this is the plan, and these are the sessions of its collectors and contributors."""
        self.move(RoundState.REDUCING)
        self.plan, self.collectors, self.sessions, self.planned_at, self.hurried_at = plan, collectors, sessions, now, now
        self.weights = {contribution.peer: contribution.weight for contribution in plan.contributions}
        for share in plan.shares:
            for part in range(share.start, share.stop):
                self.reducer_of[share.section, part] = share
                self._slots[share.reducer.peer][share.section, part] = None
            self._undecided[share.reducer.peer] += share.stop - share.start

    def close_part(self, sender: PeerId, closed: PartClosed) -> str:
        """Take a reducer's report. Returns why it does not count, or "" when it decided its part."""
        key = closed.key
        if unasked := self.why_unasked(sender, key):
            return unasked
        if not closed.contributors or len(set(closed.contributors)) != len(closed.contributors):
            return f"part {key.part} has no contributors, or one twice"
        if not set(closed.contributors) <= self.weights.keys():
            return f"part {key.part} names contributors that are not in the plan"
        if closed.divisor != float(sum(self.weights[peer] for peer in closed.contributors)):
            return f"part {key.part} was divided by {closed.divisor}, which is not the weight of its contributors"
        decision = Decision(key.section, key.part, key.attempt, closed.digest, closed.contributors, closed.divisor)
        slot = (key.section, key.part)
        self.decisions[slot] = decision
        self._undecided[sender] -= 1
        for session in self.holds.get(slot, ()):
            self._compare(slot, session, 1)
        return ""

    def why_unasked(self, sender: PeerId, key: PartKey) -> str:
        """Why nothing is to be decided by this sender's word about a part, or ""."""
        slot = (key.section, key.part)
        share = self.reducer_of.get(slot)
        if share is None:
            return f"part {key.part} of {key.section.value} is not in the plan"
        if share.reducer.peer != sender:
            return f"part {key.part} belongs to reducer {share.reducer.peer}"
        if not self.attempt_is_current(key.attempt, share):
            return f"attempt {key.attempt} of part {key.part} is over"
        if slot in self.decisions:
            return f"part {key.part} is decided"
        return ""

    def undecided_reducers(self) -> list[PeerId]:
        """Who has not closed all its parts."""
        return sorted(peer for peer, parts in self._undecided.items() if parts)

    def attempt_is_current(self, attempt: int, share: Share) -> bool:
        """Whether a report about this attempt may decide a part of `share`."""
        return attempt == share.attempt

    def hold(self, session: int, have: Have) -> None:
        """A collector says what it holds; compared with the decisions whenever they are asked for."""
        for item in have.items:
            slot = (item.section, item.part)
            if slot in self.reducer_of:
                self._compare(slot, session, -1)
                self.holds.setdefault(slot, {})[session] = (item.attempt, item.digest)
                self._compare(slot, session, 1)

    def _compare(self, slot: Slot, session: int, weight: int) -> None:
        """What a session says to hold of a part begins (1) or ceases (-1) to be taken into account."""
        held, decision = self.holds.get(slot, {}).get(session), self.decisions.get(slot)
        if held is None or decision is None:
            return
        if self.counts(held, decision):
            self._right[session] += weight
        else:
            self._doubted[slot] = None

    def decided(self) -> bool:
        """Every part has its decision."""
        return len(self.decisions) == len(self.reducer_of)

    def counts(self, held: tuple[int, bytes], decision: Decision) -> bool:
        """Whether what a member says that it holds is what was decided."""
        return held == (decision.attempt, decision.digest)

    def holders(self, slot: Slot) -> set[int]:
        """Live sessions that hold exactly what was decided for this part."""
        decision = self.decisions.get(slot)
        if decision is None:
            return set()
        live = set(self.collectors.values())
        return {session for session, held in self.holds.get(slot, {}).items() if session in live and self.counts(held, decision)}

    def complete(self) -> set[int]:
        """Live sessions that hold every part as decided."""
        return {session for session in self.collectors.values() if self._right[session] == len(self.reducer_of)}

    def may_commit(self, now: float, delivery_s: float) -> bool:
        """Every part decided and safe, and either all live members hold everything or the delivery deadline passed."""
        if self.state is not RoundState.REDUCING or not self.decided() or self.decided_at is None or not self.collectors:
            return False
        everyone = set(self.collectors.values())
        if self.everyone_holds_everything(everyone):
            return True
        waited = now >= self.decided_at + delivery_s or (self.settled(now) and self.lack_what_nobody_brings(everyone))
        return waited and all(len(self.holders(slot)) >= self.enough() for slot in self.reducer_of)

    def everyone_holds_everything(self, everyone: set[int]) -> bool:
        """All live members, compared by name, hold all parts as decided."""
        return self.complete() == everyone

    def settled(self, now: float) -> bool:
        """Somebody went out, and what was delivered until then, or decided since, has had time to be reported."""
        return self.settle_at is not None and now >= max(self.settle_at, (self.decided_at or 0.0) + SETTLE_S)

    def lack_what_nobody_brings(self, everyone: set[int]) -> bool:
        """Whether all that live members lack are parts of reducers that are out, or to be brought to who is cut off itself: they
        have to fetch it."""
        out = self._slots_of_those_out()
        everyone = everyone - {session for peer, session in self.collectors.items() if peer in self.lost}
        lacks = {session: len(self.reducer_of) - self._right[session] for session in everyone}
        if any(parts > len(out) for parts in lacks.values()):
            return False
        lacking = Counter(session for slot in out for session in everyone - self.holders(slot))
        return all(lacks[session] == lacking[session] for session in everyone)

    def lose(self, peer: PeerId, now: float) -> None:
        """A collector is gone for good."""
        del self.collectors[peer]
        self.lost.add(peer)
        self._unsettle(now)

    def cut_off(self, peer: PeerId, now: float) -> None:
        """A collector can neither contribute nor reduce any more; it still wants the result."""
        self.lost.add(peer)
        self.exclude(peer, now)

    def exclude(self, reducer: PeerId, now: float) -> None:
        """Let others reduce what this one has not closed, whoever reaches it."""
        self.excluded.add(reducer)
        self._unsettle(now)

    def cannot_reach(self, complainer: PeerId, accused: PeerId, now: float) -> bool:
        """A collector could not exchange bytes with another. Whether it is believed: not if it is alone with what it says of two,
        or names more than half of all. Then it is the one that is cut off."""
        mine = self.unreached.setdefault(complainer, set())
        mine.add(accused)
        self._unsettle(now)
        others = set().union(*(them for peer, them in self.unreached.items() if peer != complainer))
        alone = {peer for peer in mine - others - self.excluded if peer in self.collectors}
        return len(alone) <= 1 and 2 * len(mine) <= max(2, len(self.collectors))

    def complainers(self, accused: PeerId) -> set[PeerId]:
        """Who, of those who are still here, could not reach this peer."""
        return {peer for peer, them in self.unreached.items() if accused in them and peer in self.collectors}

    def believed(self, accused: PeerId) -> set[PeerId]:
        """Whose word counts against this peer: one that is excluded itself is not believed alone."""
        complainers = self.complainers(accused)
        return complainers if len(complainers) > 1 else complainers - self.excluded

    def _unsettle(self, now: float) -> None:
        self.settle_at, self.repair_at = now + SETTLE_S, now

    def forget(self, session: int) -> None:
        """A collector does not hold any more what it said that it holds."""
        for slot, held in self.holds.items():
            self._compare(slot, session, -1)
            held.pop(session, None)

    def undecide(self, reducer: PeerId) -> None:
        """What this reducer reported cannot be true: none of its parts is decided."""
        for slot in [slot for slot in self._slots[reducer] if slot in self.decisions]:
            self._undecide(slot)
        self.decided_at = None

    def _undecide(self, slot: Slot) -> None:
        for session in self.holds.get(slot, ()):
            self._compare(slot, session, -1)
        self._doubted.pop(slot, None)
        del self.decisions[slot]
        self._undecided[self.reducer_of[slot].reducer.peer] += 1

    def is_out(self, reducer: PeerId) -> bool:
        """Whether this peer closes and hands out no parts any more."""
        return reducer in self.excluded or reducer not in self.collectors or bool(self.believed(reducer))

    def enough(self) -> int:
        """How many live members must hold a part before it is safe."""
        return min(2, len(self.collectors))

    def _slots_of_those_out(self) -> list[Slot]:
        return sorted((slot for peer, slots in self._slots.items() if slots and self.is_out(peer) for slot in slots), key=_by_part)

    def to_redo(self, now: float) -> list[Slot]:
        """Parts that are to be reduced again, in order."""
        settled = self.settle_at is not None and now >= self.settle_at
        out = self._slots_of_those_out()
        return [slot for slot in out if slot not in self.decisions or (settled and not self.holders(slot))]

    def redo(self, shares: Iterable[Share], now: float) -> None:
        """These shares replace whatever was planned for their parts."""
        for share in shares:
            for part in range(share.start, share.stop):
                slot = (share.section, part)
                if slot in self.decisions:
                    self._undecide(slot)
                self.spread_at.pop(slot, None)
                former = self.reducer_of[slot].reducer.peer
                self._undecided[former] -= 1
                self._undecided[share.reducer.peer] += 1
                del self._slots[former][slot]
                self._slots[share.reducer.peer][slot] = None
                self.reducer_of[slot] = share
        self.decided_at, self.hurried_at = None, now

    def to_spread(self, now: float) -> dict[frozenset[int], list[Slot]]:
        """Decided parts that too few members hold and whose reducer is out, by who holds them."""
        found: dict[frozenset[int], list[Slot]] = {}
        if self.settle_at is None or now < self.settle_at:
            return found
        for slot in self._slots_of_those_out():
            if slot in self.decisions and now >= self.spread_at.get(slot, -math.inf) + SPREAD_AGAIN_S:
                holders = self.holders(slot)
                if 0 < len(holders) < self.enough():
                    found.setdefault(frozenset(holders), []).append(slot)
        return found

    def looked(self, now: float) -> None:
        """What could be repaired now was; until the next loss only time brings more to do."""
        times = [at + SPREAD_AGAIN_S for at in self.spread_at.values()]
        if self.settle_at is not None:
            times.append(self.settle_at)
        self.repair_at = min((at for at in times if at > now), default=math.inf)

    def repair_times(self) -> list[float]:
        """When time alone may change what is to be repaired, or whether the repaired round may be committed."""
        if self.settle_at is None:
            return []
        return [self.repair_at, max(self.settle_at, (self.decided_at or 0.0) + SETTLE_S)]

    def replanned(self) -> tuple[Share, ...]:
        """All parts that are not in their first attempt, as they are planned now."""
        return tuple(regrouped({slot: share for slot, share in self.reducer_of.items() if share.attempt}))

    def contradiction(self) -> tuple[Decision, set[int]] | None:
        """A part of which most of the reducer's fellows hold other bytes than the reducer reported, and who they are."""
        if self.decided_at is None:
            return None
        live = set(self.collectors.values())
        for slot in self._doubted:
            decision = self.decisions[slot]
            others = live - {self.collectors.get(self.reducer_of[slot].reducer.peer, 0)}
            reports = {session: held for session, held in self.holds.get(slot, {}).items() if session in others}
            witnesses = {s for s, (attempt, digest) in reports.items() if attempt == decision.attempt and digest != decision.digest}
            if 2 * len(witnesses) > len(others):
                return decision, witnesses
        return None

    def inclusions(self) -> Counter[PeerId]:
        """How many decided parts contain each peer's work."""
        return Counter(peer for decision in self.decisions.values() for peer in decision.contributors)

    def outcome(self, session: int, parts: int, alive: bool) -> str:
        """What became of a member's work, which is in so many parts, in the words of `RoundPeerView`."""
        peer, ready = self.peers[session], self.ready.get(session)
        if self.state is not RoundState.ABANDONED and parts and self.sessions.get(peer) == session:
            return "in" if parts == len(self.reducer_of) else "in part"
        if not alive:
            return "lost"
        if ready is None:
            return "late"
        return "left out" if ready.weight else "nothing"

    def missing(self) -> set[int]:
        """Live sessions that do not hold everything that was decided."""
        return set(self.collectors.values()) - self.complete()

    def contributors(self) -> list[Contribution]:
        """Everybody in at least one decided part, in plan order."""
        assert self.plan is not None
        included: set[PeerId] = set()
        for decision in self.decisions.values():
            included.update(decision.contributors)
        return [contribution for contribution in self.plan.contributions if contribution.peer in included]


def plan_order(contributions: Collection[Contribution], rates: Mapping[PeerId, float]) -> tuple[Contribution, ...]:
    """The order in which every reducer adds: the fastest uplinks first, so that few contributions wait for their turn, and equal
    ones by peer id. Whoever is not in `rates` comes last."""
    return tuple(sorted(contributions, key=lambda contribution: (-rates.get(contribution.peer, 0.0), contribution.peer)))


def regrouped(slots: Mapping[Slot, Share]) -> list[Share]:
    """Shares of exactly these parts, each by its reducer and in its attempt; neighbours together."""
    shares: list[Share] = []
    for section, part in sorted(slots, key=_by_part):
        share = slots[section, part]
        last = shares[-1] if shares else None
        if last is not None and (last.reducer, last.section, last.stop, last.attempt) == (
            share.reducer,
            section,
            part,
            share.attempt,
        ):
            shares[-1] = replace(last, stop=part + 1)
        else:
            shares.append(Share(share.reducer, section, part, part + 1, share.attempt))
    return shares


def _by_part(slot: Slot) -> tuple[str, int]:
    return (slot[0].value, slot[1])
