"""The network of the simulation: session streams, ordered until they break, and bulk streams between machines.

Rule: a stream delivers a prefix of what was sent on it, in order, and both ends notice its end at times of their own, so that
messages of a broken stream may arrive after the first ones of its successor. Neighbours: `meeting` and `machine` hold the ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from shoal.protocol.messages import Envelope
from tests.simulation.world import World


class Pipe:
    """One direction of a stream."""

    def __init__(self, world: World, deliver: Callable[[Any], None], latency: Callable[[], float] | None = None) -> None:
        self.world = world
        self.deliver = deliver
        self.latency = latency or world.latency
        self.queue: deque[Any] = deque()
        self.open = True
        self.last_arrival = 0.0
        self.stalled_until = 0.0

    def send(self, thing: Any) -> None:
        """Put something in; swallowed when the stream is broken."""
        if not self.open:
            return
        self.queue.append(thing)
        self.last_arrival = max(self.last_arrival, self.world.now + self.latency())
        self.world.after(self.last_arrival - self.world.now, self._arrive)

    def cut(self, stall_s: float) -> None:
        """Break: what is under way arrives up to a random point, up to `stall_s` later than it would have."""
        if not self.open:
            return
        self.open = False
        keep = self.world.random.randint(0, len(self.queue))
        while len(self.queue) > keep:
            self.queue.pop()
        self.stalled_until = self.world.now + stall_s
        for _ in self.queue:
            self.world.after(stall_s, self._arrive)

    def drain(self) -> float:
        """No more sends; what is under way still arrives. Returns when the last of it will be there."""
        self.open = False
        return max(self.last_arrival, self.world.now)

    def silence(self) -> None:
        """The receiver is gone."""
        self.open = False
        self.queue.clear()

    def _arrive(self) -> None:
        if self.queue and self.world.now >= self.stalled_until - 1e-9:
            self.deliver(self.queue.popleft())


class SessionStream:
    """One stream between a peer's daemon and the coordinator, as both ends see it."""

    def __init__(self, world: World, connection: int, peer: str) -> None:
        self.world = world
        self.connection = connection
        self.peer = peer
        self.up: Pipe
        """To the coordinator."""
        self.down: Pipe
        """To the peer."""
        self.on_peer_end: Callable[[str], None] = lambda reason: None
        self.on_coordinator_end: Callable[[], None] = lambda: None
        self.broken = False

    def say(self, envelope: Envelope) -> None:
        self.up.send(envelope)

    def tell(self, envelope: Envelope) -> None:
        self.down.send(envelope)

    def break_down(self, reason: str = "the stream broke", peer_notices: bool = True, coordinator_notices: bool = True) -> None:
        """The stream breaks; each end notices when it notices."""
        if self.broken:
            return
        self.broken = True
        for pipe, end, notices in (
            (self.up, self._coordinator_ends, coordinator_notices),
            (self.down, self._peer_ends, peer_notices),
        ):
            stall_s = self.world.random.choice((0.0, 0.02, 0.3, 1.0, 3.0, 8.0))
            pipe.cut(stall_s)
            if notices:
                self.world.after(stall_s + self.world.latency(), end, reason)

    def close_from(self, coordinator: bool, reason: str) -> None:
        """One end closes on purpose: what it sent before still arrives, what was on its way to it does not."""
        if self.broken:
            return
        self.broken = True
        closing, other = (self.down, self.up) if coordinator else (self.up, self.down)
        other.silence()
        end = self._peer_ends if coordinator else self._coordinator_ends
        self.world.after(closing.drain() - self.world.now + 0.001, end, reason)

    def _peer_ends(self, reason: str) -> None:
        self.down.silence()
        self.on_peer_end(reason)

    def _coordinator_ends(self, reason: str) -> None:
        self.up.silence()
        self.on_coordinator_end()
