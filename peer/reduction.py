"""What a reducer does with one part: add encoded contributions in the order of the plan, divide, encode once.

Rule 1: the value is a function of the contributions alone. The sum starts at 0, each contribution is one `decode_add` with its
weight, in fp32, and everybody, the reducer included, uses what the encoded result decodes to.
Rule 2: memory is bounded. A contribution waits encoded (about a byte per value); a sum (4 bytes per value) exists only while a part
is being added up, and at most `open_limit` sums exist at once. Beyond that, additions wait for a part to close; a part of which
everything is here has a few places more, so that sums that wait for others never keep it from closing.
Rule 3: a sum is begun late. Additions wait for the part to close, or until they take as much memory as the sum, or are urgent:
then most parts are added up at one go, in memory that is still in the processor's cache from the part before.

Neighbours: `bulk` receives contributions and asks for additions as the engine decides; `compression.codec` does the arithmetic.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from shoal.compression.codec import Codec
from shoal.peer.partstore import PartStore
from shoal.peer.spill import Spilled
from shoal.peer.workers import Workers
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import PartKey, PeerId

OPEN_SUMS = 16
"""Sums that exist at once: 64 MiB at 1 Mi values per part."""

CLOSING_SUMS = 2
"""Further sums, of parts that need nothing more to close."""


class Addition(NamedTuple):
    """One contribution to add, still encoded."""

    peer: PeerId
    payload: memoryview | Spilled
    weight: int


class Reduced(NamedTuple):
    """A closed part."""

    digest: bytes
    payload: bytearray


@dataclass(eq=False)
class _Sum:
    """One part that is being reduced: what is still to do, in order, and the sum so far."""

    key: PartKey
    spans: tuple[int, ...]
    store: PartStore
    todo: list[Addition | float] = field(default_factory=list)
    """Additions; at the end, once it is known, the divisor."""
    waiting: int = 0
    """Bytes of additions that may wait for others."""
    admitted: bool = False
    """Whether it counts among the sums that exist."""
    memory: torch.Tensor | None = None
    running: bool = False
    dropped: bool = False

    @property
    def closing(self) -> bool:
        return bool(self.todo) and isinstance(self.todo[-1], float)


class Reducer:
    """All parts that this peer is reducing. Lives on the event loop; the arithmetic runs in the workers."""

    def __init__(
        self,
        workers: Workers,
        codecs: tuple[Codec, Codec],
        closed: Callable[[PartKey, Reduced], None],
        failed: Callable[[BaseException], None],
        open_limit: int = OPEN_SUMS,
        added: Callable[[PartKey, Addition], None] | None = None,
    ) -> None:
        """`codecs`: of contributions, and of results. `closed` hears of results, `failed` of bugs, `added` of contributions whose
        bytes are no longer needed, all on the event loop."""
        self._workers = workers
        self._send_codec, self._return_codec = codecs
        self._closed = closed
        self._failed = failed
        self._added = added
        self._open_limit = open_limit
        self._sums: dict[PartKey, _Sum] = {}
        self._open = 0
        self._waiting: deque[_Sum] = deque()
        self._waiting_to_close: deque[_Sum] = deque()
        self._spare: list[torch.Tensor] = []

    @property
    def open_sums(self) -> int:
        """Sums that exist now, or for which a thread was asked."""
        return self._open

    def add(self, key: PartKey, spans: tuple[int, ...], store: PartStore, addition: Addition, urgent: bool = True) -> None:
        """Add a contribution after those that were asked for before. `urgent`: now, because its bytes are in the way."""
        part = self._sums.setdefault(key, _Sum(key, spans, store))
        if part.closing:
            raise LocalProtocolError(f"an addition to {key} after it was closed")
        part.todo.append(addition)
        part.waiting += len(addition.payload)
        if urgent or part.waiting >= 4 * sum(spans):
            self._pump(part)

    def close(self, key: PartKey, spans: tuple[int, ...], store: PartStore, divisor: float) -> None:
        """Divide and encode once the additions are done; the result goes to the store, then `closed` hears of it."""
        if not divisor > 0:
            raise LocalProtocolError(f"a part cannot close with a total weight of {divisor}")
        part = self._sums.setdefault(key, _Sum(key, spans, store))
        part.todo.append(float(divisor))
        self._pump(part)

    def drop_round(self, round_id: int) -> None:
        """Forget the sums of a round."""
        for key in [key for key in self._sums if key.round == round_id]:
            self.drop_part(key)

    def drop_part(self, key: PartKey) -> None:
        """Forget the sum of a part, if there is one, and what was to be added to it."""
        if (part := self._sums.pop(key, None)) is None:
            return
        todo, part.todo = part.todo, []
        part.dropped = True
        self._let_go(key, todo)
        if not part.running:
            self._free(part)

    def _let_go(self, key: PartKey, todo: list[Addition | float]) -> None:
        """Nobody needs the bytes of these contributions any more."""
        for step in todo:
            if isinstance(step, Addition) and self._added is not None:
                self._added(key, step)

    def _pump(self, part: _Sum) -> None:
        if part.running or not part.todo:
            return
        if not part.admitted:
            queue, limit = (self._waiting_to_close, CLOSING_SUMS) if part.closing else (self._waiting, 0)
            if self._open >= self._open_limit + limit:
                if part not in queue:
                    queue.append(part)
                return
            self._open += 1
            part.admitted = True
        todo, part.todo = part.todo, []
        part.waiting = 0
        part.running = True
        job = self._workers.part(self._work, part, todo)
        job.add_done_callback(lambda done: self._worked(part, todo, done))

    def _work(self, part: _Sum, todo: list[Addition | float]) -> Reduced | None:
        """In a worker thread: everything that could be done on this part when the thread was asked."""
        size = sum(part.spans)
        if part.memory is None:
            part.memory = self._memory(size)
            part.memory[:size].zero_()
        total = part.memory[:size]
        for step in todo:
            if isinstance(step, Addition):
                payload = step.payload.read() if isinstance(step.payload, Spilled) else step.payload
                self._send_codec.decode_add(payload, part.spans, total, float(step.weight))
                continue
            total.div_(step)
            encoded = self._return_codec.encode(total, part.spans)
            digest = hashlib.sha256(encoded).digest()
            part.store.put(part.key, digest, memoryview(encoded))
            self._give_back(part)
            return Reduced(digest, encoded)
        return None

    def _memory(self, size: int) -> torch.Tensor:
        """Memory for a sum: what was used last, if there is any and it is large enough. Any thread may ask."""
        try:
            spare = self._spare.pop()
        except IndexError:
            return torch.empty(size)
        return spare if spare.numel() >= size else torch.empty(size)

    def _give_back(self, part: _Sum) -> None:
        """Keep a sum's memory for the next one."""
        if part.memory is not None and len(self._spare) < self._open_limit:
            self._spare.append(part.memory)
        part.memory = None

    def _worked(self, part: _Sum, todo: list[Addition | float], done: asyncio.Future[Reduced | None]) -> None:
        part.running = False
        if done.cancelled():
            return
        self._let_go(part.key, todo)
        if (error := done.exception()) is not None:
            self._failed(error)
            return
        if part.dropped:
            self._free(part)
        elif (reduced := done.result()) is not None:
            del self._sums[part.key]
            self._free(part)
            self._closed(part.key, reduced)
        else:
            self._pump(part)

    def _free(self, part: _Sum) -> None:
        """Give the sum's place back, and let the parts that waited for one go on."""
        self._give_back(part)
        if part.admitted:
            self._open -= 1
            part.admitted = False
        while self._waiting_to_close and self._open < self._open_limit + CLOSING_SUMS:
            self._pump(self._waiting_to_close.popleft())
        while self._waiting and self._open < self._open_limit:
            self._pump(self._waiting.popleft())
