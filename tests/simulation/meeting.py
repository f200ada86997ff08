"""The coordinator's shell in the simulation: a journal that survives, a core that does not, streams in between.

Rule: effects are performed in order and a crash may come between any two of them; what was journaled before it stays, what was to
be sent after it does not exist. The real shell writes records in groups, so a crash may also keep the records of effects that
were never sent. Neighbours: `machine` talks to it through `streams`, `judge` reads every record and every message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING

from shoal.coordinator.core import Core
from shoal.coordinator.events import (
    Answer,
    Asked,
    Close,
    Connected,
    DialBack,
    DialledBack,
    Disconnected,
    Effect,
    Event,
    Journal,
    Log,
    Said,
    Send,
    TimePassed,
)
from shoal.coordinator.records import Record
from shoal.protocol.admin import AdminCommand
from shoal.protocol.messages import Envelope, Goodbye, Heartbeat, Hello, PartClosed
from tests.simulation.streams import Pipe, SessionStream
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.judge import Judge

ROUNDING_S = 1e-6
"""Alarms ring this late, so that two clocks' rounding never makes them early."""
UNTOLD = frozenset({"spec", "stale", "history", "entries", "_clock", "_effects", "_events"})
"""What a core may change for a message that it drops, and what is too long to look at."""
SPIN_LIMIT = 200
"""Timer events in one instant after which a core is said to spin."""


def portrait(core: Core) -> dict[str, str]:
    """Everything that a core believes, except when it heard of whom."""
    return _portrait(core)


def _portrait(thing: object) -> dict[str, str]:
    """By attribute; what is itself made of the coordinator's own parts, in full."""
    found: dict[str, str] = {}
    for name, value in vars(thing).items():
        if name in UNTOLD:
            continue
        if type(value).__module__.startswith("shoal.coordinator") and not is_dataclass(value) and hasattr(value, "__dict__"):
            found |= {f"{name}.{inner}": told for inner, told in _portrait(value).items()}
        else:
            found[name] = re.sub(r"(last_heard|heartbeat)=[^,]+", "", repr(value))
    return found


class Meeting:
    """The coordinator's machine."""

    def __init__(self, world: World, judge: Judge, first_records: list[Record], make_core: Callable[[], Core]) -> None:
        self.world = world
        self.judge = judge
        self.make_core = make_core
        self.journal: list[Record] = list(first_records)
        self.core: Core | None = None
        self.streams: dict[int, SessionStream] = {}
        self.connections = 0
        self.requests = 0
        self.unanswered: dict[int, AdminCommand] = {}
        self.effects_to_live: int | None = None
        self.frozen_until = 0.0
        self.life = 0
        self._wake: float | None = None
        self._spins = (0.0, 0)
        self._clock = 0.0
        self.answers_at: Callable[[str, str], bool] = lambda peer, address: False
        """Whether that peer is there to be dialled; set by who knows the machines."""
        self.said: dict[str, list[Envelope]] = {}
        """Old messages of each peer, for replays."""

    # --- life and death ---------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.core is not None

    def start(self) -> None:
        """A coordinator process takes the journal over."""
        if self.core is not None:
            return
        self.life += 1
        self.frozen_until = 0.0
        self._clock = self.world.random.uniform(0, 1000)
        self.core = self.make_core()
        for record in self.journal:
            self.core.replay(record)
        self._wake = None
        self.world.note("coordinator", "starts", f"{len(self.journal)} records")
        self._perform(self.core.start(self._now()))

    def crash(self) -> None:
        """kill -9."""
        self.world.note("coordinator", "CRASH")
        self.core = None
        self.effects_to_live = None
        self.unanswered.clear()
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.break_down("the coordinator is gone", coordinator_notices=False)

    # --- streams ----------------------------------------------------------------------------------------------------------------

    def dial(self, peer: str, host: str) -> SessionStream | None:
        """A daemon opens a stream. None: nobody is there."""
        if self.core is None or self.world.now < self.frozen_until:
            return None
        self.connections += 1
        connection = self.connections
        life = self.life
        stream = SessionStream(self.world, connection, peer)
        stream.up = Pipe(self.world, lambda envelope: self._hear(life, connection, peer, envelope))
        stream.on_coordinator_end = lambda: self._ended(life, connection)
        self.streams[connection] = stream
        self.on(Connected(connection, peer, frozenset({"peer", "reducer"}), host))
        return stream if self.core is not None else None

    def freeze(self, seconds: float) -> None:
        """The coordinator's process stands still; what comes in waits."""
        if self.core is not None:
            self.world.note("coordinator", "FREEZES", f"for {seconds:.1f} s")
            self.frozen_until = self.world.now + seconds

    def _waits(self, what: Callable[..., None], *arguments: object) -> bool:
        """Whether the process is frozen; then `what` happens when it is not."""
        if self.world.now >= self.frozen_until:
            return False
        self.world.after(self.frozen_until - self.world.now, what, *arguments)
        return True

    def _hear(self, life: int, connection: int, peer: str, envelope: Envelope) -> None:
        if self._waits(self._hear, life, connection, peer, envelope):
            return
        if life != self.life or self.core is None or connection not in self.streams:
            return
        if not isinstance(envelope.body, Heartbeat | Hello | Goodbye):
            said = self.said.setdefault(peer, [])
            if len(said) < 400:
                said.append(envelope)
        if isinstance(envelope.body, PartClosed) and self.world.chance(self.world.weather.replay):
            key = replace(envelope.body.key, attempt=envelope.body.key.attempt + 1)
            dead = replace(envelope, body=replace(envelope.body, key=key))
            self.world.note("network", "dead attempt", dead)
            self.on(Said(connection, dead))
        self.on(Said(connection, envelope))
        if self.world.chance(self.world.weather.replay) and self.said.get(peer):
            old = self.world.random.choice(self.said[peer])
            if self.judge.is_stale(peer, old):
                self.world.note("network", "replays", old)
                self.on(Said(connection, old))

    def _ended(self, life: int, connection: int) -> None:
        if self._waits(self._ended, life, connection):
            return
        if life == self.life and self.core is not None and self.streams.pop(connection, None) is not None:
            self.on(Disconnected(connection))

    # --- events and effects -----------------------------------------------------------------------------------------------------

    def ask(self, command: AdminCommand) -> None:
        """An operator asks for something."""
        if self.core is None or self.world.now < self.frozen_until:
            return
        self.requests += 1
        self.unanswered[self.requests] = command
        request = self.requests
        self.on(Asked(request, "operator", command))
        if self.core is not None and request in self.unanswered:
            raise Violation(f"{command} was not answered")

    def on(self, event: Event) -> None:
        """Feed one event, perform what comes of it."""
        if self.core is None:
            return
        if not (isinstance(event, Said) and isinstance(event.envelope.body, Heartbeat)):
            self.world.note("coordinator", "<-", event)
        if isinstance(event, Said) and self.judge.is_void(event, self.streams):
            self._hear_void(event)
        else:
            self._perform(self.core.on(event, self._now()))
            if isinstance(event, Said) and isinstance(event.envelope.body, Heartbeat):
                self._see_nothing_due()

    def _see_nothing_due(self) -> None:
        """Heartbeats are noted and no more, which is right only if time before `wake_at` moves nothing."""
        if self.core is None or (self.core.wake_at is not None and self.core.wake_at <= self._now()):
            return
        if effects := self.core.on(TimePassed(), self._now()):
            raise Violation(f"time had come for {effects}, and the core did not ask to be woken")

    def _hear_void(self, event: Said) -> None:
        """A message of a dead attempt, round, session or term: it must not move anything."""
        assert self.core is not None
        before, earlier = portrait(self.core), None
        while before != earlier:  # whatever time alone moves has moved before, a round that it opens included
            self._perform(self.core.on(TimePassed(), self._now()))
            if self.core is None:
                return
            earlier, before = before, portrait(self.core)
        effects = self.core.on(event, self._now())
        after = portrait(self.core)
        moved = [name for name in before if before[name] != after.get(name)]
        if moved or any(not isinstance(effect, Log) for effect in effects):
            raise Violation(f"a message that belongs to nothing any more moved {moved}, {effects}: {event.envelope}")
        self._perform(effects)

    def _perform(self, effects: list[Effect]) -> None:
        for index, effect in enumerate(effects):
            if self.effects_to_live is not None:
                self.effects_to_live -= 1
                if self.effects_to_live < 0:
                    if self.world.chance(0.3):
                        for later in effects[index:]:
                            if isinstance(later, Journal):
                                self._write(later.record)
                    self.crash()
                    return
            match effect:
                case Journal(record):
                    self._write(record)
                case Send(connection, envelope):
                    self.world.note("coordinator", f"-> {connection}", envelope)
                    stream = self.streams.get(connection)
                    if stream is not None:
                        self.judge.coordinator_sends(stream.peer, envelope)
                        stream.tell(envelope)
                case Close(connection):
                    self.world.note("coordinator", "closes", connection)
                    stream = self.streams.pop(connection, None)
                    if stream is not None:
                        stream.close_from(True, "the coordinator closed the stream")
                case DialBack():
                    self.world.after(effect.after_s + self.world.latency(), self._dials_back, self.life, effect)
                case Answer(request, reply):
                    if self.unanswered.pop(request, None) is None:
                        raise Violation(f"an answer to nothing: {reply}")
                case Log(text, _):
                    self.world.note("coordinator", "says", text)
        self._set_alarm()

    def _dials_back(self, life: int, wanted: DialBack) -> None:
        """The shell tries the member's addresses; on the way there, too, much goes wrong."""
        if self._waits(self._dials_back, life, wanted):
            return
        if life != self.life or self.core is None or wanted.connection not in self.streams:
            return
        there = self.answers_at(wanted.peer, wanted.addresses[0]) and not self.world.chance(self.world.weather.fetch_fails)
        self.on(DialledBack(wanted.connection, wanted.addresses[0] if there else "", "" if there else "nobody answers"))

    def _write(self, record: Record) -> None:
        self.world.note("coordinator", "journals", record)
        self.journal.append(record)
        self.judge.journaled(record)

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.world.now + self._clock

    def _set_alarm(self) -> None:
        if self.core is None or self.core.wake_at is None:
            return
        at = max(self.core.wake_at - self._clock + ROUNDING_S, self.world.now)
        if self._wake is None or at < self._wake - 1e-9:
            self._wake = at
            self.world.after(at - self.world.now, self._alarm, self.life, at)

    def _alarm(self, life: int, at: float) -> None:
        if self._waits(self._alarm, life, at):
            return
        if life != self.life or self.core is None or self._wake != at:
            return
        self._wake = None
        if self.core.wake_at is not None and self.core.wake_at <= self._now():
            instant, spins = self._spins
            self._spins = (self.world.now, spins + 1 if self.world.now - instant < 1e-6 else 0)
            if self._spins[1] > SPIN_LIMIT:
                raise Violation(f"the coordinator spins: it wants to wake at {self.core.wake_at} again and again")
            self.on(TimePassed())
        self._set_alarm()
