"""Feeds the core with events, one at a time, and performs what it wants done, in order. The only place where the core is called.

What the core logs, and what other parts of the shell `tell`, is said to whoever watches and kept as the run's history.

Rule: nothing that follows a `Journal` effect is performed before that record is durable. Events that wait are handed to the
core together, and their records go into one transaction (group commit): a record may become durable earlier than the core
asked, never later, and messages leave in the order in which the core sent them.

A stream cannot hold the core up: sending only puts a message into that stream's bounded queue (`Stream.send`), and each stream
may have at most `STREAM_CREDIT` unheard messages before its own reader waits. Any exception here ends the process: the journal
holds everything that was ever said on the strength of it, and the next start replays it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from shoal.coordinator.claims import Budget
from shoal.coordinator.events import (
    Answer,
    Asked,
    Bar,
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
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.messages import Envelope, PeerId

STREAM_CREDIT = 256
"""Messages of one stream that may wait for the core."""
BATCH = 512
"""Events handed to the core between two journal transactions."""


class Machine(Protocol):
    """The coordinator's core, as its shell sees it."""

    @property
    def wake_at(self) -> float | None:
        """When it wants TimePassed, on the clock that `now` comes from."""
        ...

    def replay(self, record: Record) -> None: ...
    def start(self, now: float) -> list[Effect]: ...
    def on(self, event: Event, now: float) -> list[Effect]: ...


class Store(Protocol):
    """Where records, and lines of history (text, level), become durable. Blocks until they are."""

    def append(self, records: list[Record], told: list[tuple[str, str]]) -> None: ...


class Stream(Protocol):
    """One peer's session stream, outgoing half. Neither method blocks or raises."""

    def send(self, envelope: Envelope) -> None: ...
    def close(self, reason: str) -> None:
        """End it after what was sent."""
        ...


class Tests(Protocol):
    """Dials members back. Neither method blocks or raises."""

    def dial(self, wanted: DialBack) -> None: ...
    def forget(self, connection: int) -> None:
        """Its stream is gone."""
        ...


@dataclass
class _Link:
    stream: Stream
    credit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAM_CREDIT))


class Performer:
    """Runs one core over one journal. All methods belong to one event loop."""

    def __init__(
        self,
        core: Machine,
        store: Store,
        say: Callable[[str, str], None],
        bar: Callable[[frozenset[PeerId]], None] = lambda peers: None,
        tests: Tests | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bar` gets the banned identities, at the start and whenever they change."""
        self._core = core
        self._store = store
        self._say = say
        self._bar = bar
        self._tests = tests
        self._told: list[Effect] = []
        self._begun = False
        self._budget = Budget()
        self._clock = clock
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._links: dict[int, _Link] = {}
        self._connections = itertools.count(1)
        self._requests = itertools.count(1)
        self._asked: dict[int, asyncio.Future[AdminReply | AdminError]] = {}

    # --- what the streams and the operators tell it -----------------------------------------------------------------------------

    def connect(self, peer: PeerId, rights: frozenset[str], seen_from: str, stream: Stream) -> int:
        """A stream is open; returns the number of its connection."""
        connection = next(self._connections)
        self._links[connection] = _Link(stream)
        self._happened(Connected(connection, peer, rights, seen_from))
        return connection

    async def said(self, connection: int, envelope: Envelope) -> None:
        """A message arrived on a stream. Waits while too many messages of this stream are unheard."""
        link = self._links.get(connection)
        if link is not None:
            await link.credit.acquire()
            self._happened(Said(connection, envelope))

    def disconnect(self, connection: int) -> None:
        """A stream is gone."""
        if self._tests is not None:
            self._tests.forget(connection)
        if self._links.pop(connection, None) is not None:
            self._happened(Disconnected(connection))

    def dialled_back(self, found: DialledBack) -> None:
        """A member was dialled back."""
        self._happened(found)

    async def ask(self, by: PeerId, command: AdminCommand) -> AdminReply | AdminError:
        """What the core answers to an operator."""
        request = next(self._requests)
        future: asyncio.Future[AdminReply | AdminError] = asyncio.get_running_loop().create_future()
        self._asked[request] = future
        self._happened(Asked(request, by, command))
        try:
            return await future
        finally:
            self._asked.pop(request, None)

    def tell(self, text: str, level: str) -> None:
        """Something worth telling happened in the shell."""
        self._told.append(Log(text, level))
        self._arrived.set()

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    # --- the pump ---------------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start the core, unless it is started: what it wants done at once is done when this returns."""
        if not self._begun:
            self._begun = True
            await self._perform(self._core.start(self._clock()))

    async def run(self) -> None:
        """Start the core and serve it until cancelled."""
        await self.begin()
        while True:
            await self._wait()
            effects, self._told = self._told, []
            for _ in range(min(BATCH, len(self._events))):
                effects += self._on(self._events.popleft())
            wake_at = self._core.wake_at
            if wake_at is not None and wake_at <= self._clock():
                effects += self._core.on(TimePassed(), self._clock())
            await self._perform(effects)
            await asyncio.sleep(0)

    async def _wait(self) -> None:
        """Until something happened, or the core's time has come."""
        if self._events or self._told:
            return
        self._arrived.clear()
        wake_at = self._core.wake_at
        try:
            async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - self._clock())):
                await self._arrived.wait()
        except TimeoutError:
            pass

    def _on(self, event: Event) -> list[Effect]:
        link = self._links.get(event.connection) if isinstance(event, Said) else None
        if link is not None:
            link.credit.release()
        try:
            return self._core.on(event, self._clock())
        except RemoteProtocolError as error:
            if not isinstance(event, Said):
                raise
            if link is not None:
                link.stream.close(str(error))
            return []

    def _affordable(self, effects: list[Effect]) -> Iterator[Effect]:
        """Everything but the lines that are too many about one peer, which are counted instead."""
        for effect in effects:
            if isinstance(effect, Log) and effect.about:
                allowed, left_out = self._budget.spend(effect.about, self._clock())
                if left_out:
                    yield Log(f"{left_out} more lines about {effect.about} were left out", effect.level)
                if not allowed:
                    continue
            yield effect

    async def _perform(self, wanted: list[Effect]) -> None:
        effects = list(self._affordable(wanted))
        records = [effect.record for effect in effects if isinstance(effect, Journal)]
        told = [(effect.text, effect.level) for effect in effects if isinstance(effect, Log)]
        if records or told:
            await asyncio.to_thread(self._store.append, records, told)
        for effect in effects:
            match effect:
                case Journal():
                    pass
                case Send(connection, envelope):
                    if link := self._links.get(connection):
                        link.stream.send(envelope)
                case Close(connection):
                    if link := self._links.get(connection):
                        link.stream.close("")
                case Bar(peers):
                    self._bar(peers)
                case DialBack(connection):
                    if self._tests is not None and connection in self._links:
                        self._tests.dial(effect)
                case Answer(request, reply):
                    future = self._asked.pop(request, None)
                    if future is not None and not future.done():
                        future.set_result(reply)
                case Log(text, level, _):
                    self._say(text, level)
                case _:
                    assert_never(effect)
