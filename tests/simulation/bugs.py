"""Bugs to plant, one decision each, so that the simulation itself is tested: it must find every one of them.

Rule: a bug changes the outcome of one decision of a core, an engine or a shell while it is planted, and nothing is copied.
Neighbour: `test_planted_bugs` plants and counts seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from shoal.coordinator.core import Core
from shoal.coordinator.events import Effect as CoordinatorEffect
from shoal.coordinator.events import Journal
from shoal.coordinator.ledger import Ledger
from shoal.coordinator.records import Record, SessionEnded
from shoal.coordinator.rounds import Round
from shoal.peer.engine import Engine
from shoal.peer.events import ClosePart, DropPending, Effect, FetchState
from shoal.peer.roundbook import OwnPart, RoundBook
from shoal.protocol.messages import Commit, Decision, PartKey, PeerId
from tests.simulation.machine import Machine
from tests.simulation.world import Weather

Plant = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Bug:
    """A sentence about what is broken, and how to break it."""

    name: str
    plant: Plant
    within: int = 15
    """Seeds in which it must be found."""
    peers: int | None = None
    weather: Weather | None = None
    """The weather that brings it out, where the usual one seldom does."""


def always(owner: type, method: str, outcome: Any) -> Plant:
    """A decision that always comes out the same."""
    return lambda: patch.object(owner, method, lambda *_: outcome)


def instead(owner: type, method: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plant:
    """A decision that is made from the right one."""
    return lambda: patch.object(owner, method, make(getattr(owner, method)))


def both(*plants: Plant) -> Plant:
    """Two halves of one bug."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


# --- the coordinator ------------------------------------------------------------------------------------------------------------


def counts_everyone_who_ever_reported(round_: Round, everyone: set[int]) -> bool:
    def reports(slot: tuple[Any, int]) -> int:
        return sum(round_.counts(held, round_.decisions[slot]) for held in round_.holds.get(slot, {}).values())

    return all(reports(slot) >= len(everyone) for slot in round_.reducer_of)


def says_before_it_journals(take: Callable[[Core], list[CoordinatorEffect]]) -> Callable[[Core], list[CoordinatorEffect]]:
    return lambda core: sorted(take(core), key=lambda effect: isinstance(effect, Journal))


def frees_leases_at_once(apply: Callable[[Ledger, Record], None]) -> Callable[[Ledger, Record], None]:
    def applied(ledger: Ledger, record: Record) -> None:
        if not isinstance(record, SessionEnded):
            return apply(ledger, record)
        undecided, ledger.undecided = ledger.undecided, None
        member = ledger.members[record.session]
        apply(ledger, record)
        ledger.undecided = undecided
        if undecided is not None and record.session in undecided.members:
            ledger.limbo[record.session] = replace(member, lease=[])
        return None

    return applied


def session_alone_fits(core: Core, envelope: Any, session: int) -> bool:
    return bool(envelope.session == session)


def hears_no_latecomer(ready: Callable[..., None]) -> Callable[..., None]:
    def heard(core: Core, presence: Any, said: Any, now: float) -> None:
        if core.round is None or presence.session not in core.round.absent:
            ready(core, presence, said, now)

    return heard


# --- the peer -------------------------------------------------------------------------------------------------------------------


def forgets_what_was_left_out(engine: Engine, commit: Commit) -> tuple[bool, ...]:
    mine = engine.trained > 0 and any(engine.me.peer in part.contributors for part in commit.parts)
    return tuple(mine for _ in commit.parts)


def keeps_what_was_included(engine: Engine, commit: Commit) -> tuple[bool, ...]:
    return tuple(False for _ in commit.parts)


def divides_by_the_plan(on: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def answered(engine: Engine, event: Any, now: float) -> list[Effect]:
        effects = on(engine, event, now)
        if engine.reduction is None:
            return effects
        everything = float(sum(engine.reduction.weights.values()))
        return [replace(effect, divisor=everything) if isinstance(effect, ClosePart) else effect for effect in effects]

    return answered


def applies_before_the_commit(hold: Callable[..., None]) -> Callable[..., None]:
    def held(engine: Engine, key: PartKey, digest: bytes) -> None:
        hold(engine, key, digest)
        reduction = engine.reduction
        assert reduction is not None
        if reduction.complete():
            contributors = tuple(reduction.order)
            parts = tuple(
                Decision(held.section, held.part, held.attempt, held.digest, contributors, float(sum(reduction.weights.values())))
                for _, held in sorted(reduction.results.items(), key=lambda item: item[0][1])
            )
            plan = reduction.plan
            engine._take_commit(Commit(plan.base + 1, plan.round, 0, 0, plan.base, parts, 0, 0.7, 0.9))

    return held


def does_not_say_that_it_is_there(catch_up: Callable[..., None]) -> Callable[..., None]:
    def caught_up(engine: Engine, commits: Any, contacts: Any) -> None:
        announced = engine.announced
        catch_up(engine, commits, contacts)
        engine.announced = announced

    return caught_up


def drops_the_drop(fetching: bool) -> Callable[[Callable[..., list[Effect]]], Callable[..., list[Effect]]]:
    """DropPending is left out where a state is fetched, or everywhere else."""

    def make(on: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
        def answered(engine: Engine, event: Any, now: float) -> list[Effect]:
            effects = on(engine, event, now)
            if any(isinstance(effect, FetchState) for effect in effects) != fetching:
                return effects
            return [effect for effect in effects if not isinstance(effect, DropPending)]

        return answered

    return make


def adds_in_order_of_arrival(reduction: RoundBook, part: OwnPart, late: bool) -> PeerId | None:
    for peer in sorted(part.arrived, key=lambda peer: -reduction.order.index(peer)):
        return peer
    gone = {*part.added, *part.refused, *reduction.lost}
    if late or gone >= set(reduction.order):
        part.turn = len(reduction.order)
    return None


def raises_the_version_early(apply_part: Callable[[Machine], None]) -> Callable[[Machine], None]:
    def applied(machine: Machine) -> None:
        vault = machine.vault
        assert vault.applying is not None
        if vault.progress == machine.model.parts - 1:
            vault.version = vault.applying.commit.version
            if machine.world.chance(0.02):
                vault.progress += 1  # the daemon dies here, and its successor sees a whole version
                return
        apply_part(machine)

    return applied


RESTLESS = Weather(latency_s=0.4, stream_breaks_every_s=1.0)
"""Streams break so often that a Welcome is as likely to be lost as to be heard."""
UNREACHABLE = Weather(corrupt=0.1, fetch_fails=0.85)
"""Results arrive broken, and what is asked for seldom comes: whoever is behind ends up fetching a whole state."""
GARBLING = Weather(corrupt=0.3)
DYING = Weather(corrupt=0.3, daemon_crash_every_s=3)
"""Members hold the wrong bytes, and die before they hold the right ones."""
LAGGING = Weather(corrupt=0.1, slow=0.2, stream_breaks_every_s=4.0)
"""Some members have everything long before others do, who come and go meanwhile."""
SLOW = Weather(slow=0.3)
SHAKY = Weather(latency_s=0.3, stream_breaks_every_s=2.0)
"""Commits are missed, and heard of later."""
ECHOING = Weather(replay=0.3, coordinator_crash_every_s=15, stream_breaks_every_s=3, latency_s=0.2)
"""Old messages come again, and there are enough terms and sessions for them to be old."""
DOUBLING = Weather(bulk_duplicate=0.3, slow=0.02)

BUGS = (
    Bug("a report about a dead attempt decides its part", always(Round, "attempt_is_current", True)),
    Bug(
        "reports are counted instead of compared with the live members",
        lambda: patch.object(Round, "everyone_holds_everything", counts_everyone_who_ever_reported),
        peers=4,
        weather=LAGGING,
    ),
    Bug("one copy of a part is enough although others live", always(Round, "enough", 1), weather=DYING),
    Bug("bytes that were never decided count as held", always(Round, "counts", True), weather=GARBLING),
    Bug(
        "a lost member's lease is handed out while its work may still be committed", instead(Ledger, "apply", frees_leases_at_once)
    ),
    Bug("the coordinator ignores the term", lambda: patch.object(Core, "_fits", session_alone_fits), peers=3, weather=ECHOING),
    Bug("the coordinator speaks before it has journaled", instead(Core, "_take_effects", says_before_it_journals)),
    Bug(
        "a message about another round is taken for the one in flight", always(Core, "_is_current", True), peers=3, weather=ECHOING
    ),
    Bug("nobody is told that its copy differs", always(Core, "_resync", None), peers=6, weather=Weather(rot=0.03)),
    Bug("anybody may resume any session", always(Core, "_may_resume", True), within=30, peers=3, weather=RESTLESS),
    Bug("who was late once is never heard again", instead(Core, "_ready", hears_no_latecomer), peers=4, weather=SLOW),
    Bug("a peer forgets work that was left out", lambda: patch.object(Engine, "_included", forgets_what_was_left_out)),
    Bug("a peer keeps work that was included", lambda: patch.object(Engine, "_included", keeps_what_was_included)),
    Bug("a part is divided by the plan's weight, not by what is in it", instead(Engine, "on", divides_by_the_plan)),
    Bug("a peer applies a result before its commit", instead(Engine, "_hold", applies_before_the_commit)),
    Bug("a new membership keeps the old one's pending work", instead(Engine, "on", drops_the_drop(fetching=False))),
    Bug(
        "a fetched state leaves pending work that skipped entries contain",
        instead(Engine, "on", drops_the_drop(fetching=True)),
        weather=UNREACHABLE,
    ),
    Bug(
        "a peer that was brought forward does not say so",
        instead(Engine, "_catch_up", does_not_say_that_it_is_there),
        peers=4,
        weather=SHAKY,
    ),
    Bug("contributions are added as they arrive", lambda: patch.object(RoundBook, "next_to_add", adds_in_order_of_arrival)),
    Bug("a copy of a contribution discards the one that waits", always(RoundBook, "waits", False), weather=DOUBLING),
    Bug("the version is raised before the last part", instead(Machine, "_apply_part", raises_the_version_early)),
    Bug("a peer listens to messages of a dead session or term", always(Engine, "_fits", True), peers=3, weather=ECHOING),
)
