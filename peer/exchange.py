"""One round's bulk streams: contributions out and results in, contributions in and results out.

Rule 1: nothing moves without a plan. What a stream carries is checked against run, term, group, fragment, round, section, part,
attempt, weight and size, and against who the other end's certificate says it is; what does not match is dropped and counted.
Rule 2: whoever is faster waits. A sender encodes at most two parts ahead of the wire, a receiver stops reading while it holds as
much as the plan allows or is behind with hashing; HTTP/2 passes the pressure on.
Rule 3: a stream that makes no progress is ended and explained. A broken one is opened again a few times before that, and both ends
then repeat what may have been lost; repeats are recognised by key.

    contributor                                              reducer
    Outbound.send(key) ─► encode ─► write ───────────► Inbound reads ─► checked ─► arrived
    store ◄─ hash ◄─ check ◄─ read ◄─────────────────── write ◄─ Inbound.give(key)

Neighbours: `bulk` owns the rounds and performs the engine's effects with them; `reduction` adds up what arrived here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import torch

from shoal.compression.codec import Codec, CodecError
from shoal.compression.packing import PackingError, unpack
from shoal.peer.events import ContributionArrived, ContributionRefused, Event, ResultArrived, StreamFailed
from shoal.peer.frozen import FROZEN_LIMIT
from shoal.peer.lanes import Lane
from shoal.peer.packer import Packer
from shoal.peer.spill import Spilled, SpillFile
from shoal.peer.vault import Vault
from shoal.peer.workers import Workers
from shoal.protocol import frames
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError, UnreachableError
from shoal.protocol.frames import FrameHeader
from shoal.protocol.messages import PartKey, PeerId, Plan, Section

LOG = logging.getLogger("shoal.peer")
_ROUND_IDS = ("run", "term", "group", "fragment", "round")
_EOF: Any = vars(grpc.aio)["EOF"]
_CONTRIBUTION, _RESULT = "contribution", "result"
"""Kinds of payload; packing does not do the same to both."""
FRAMES_REMEMBERED = 16
"""Framed results in memory per round: members read at about the same pace; a late one gets its own copy from the store."""


@dataclass(frozen=True)
class Limits:
    """How long and how much a bulk plane waits and holds."""

    progress_s: float = 60.0
    """No message within this time on a stream that owes one: the stream has failed."""
    early_s: float = 60.0
    """How long a stream that opened before this peer's own plan waits for it."""
    early_streams: int = 256
    """How many of those wait at once; further ones are refused."""
    push_s: float = 20.0
    """How long a holder that was told to dial this peer may take to come."""
    push_idle_s: float = 15.0
    """How long its stream stays when nothing is asked of it."""
    reopen: int = 3
    """How often a broken stream is opened again before it counts as failed."""
    reopen_s: float = 0.5
    """Pause before the first of these; it doubles. A reducer waits as long as all of them for a contributor to come back."""
    unplanned_bytes: int = 16 << 20
    """Contributions of a re-planned attempt that one contributor may have waiting here, beyond its share of the plan."""
    results_in_hand: int = 4
    """Results per stream that are being hashed and stored while the next is read."""

    @property
    def absence_s(self) -> float:
        """How long a contributor with a broken stream may take to come back."""
        return self.reopen_s * float(1 << self.reopen) + 1.0


@dataclass(frozen=True)
class Room:
    """What a run may take of this machine's memory (`budget`): contributions that find no room wait in a file in `directory`."""

    limit_bytes: int
    directory: Path
    joiners: int = FROZEN_LIMIT
    """How many are served the state at a time, each from a copy of its own."""


@dataclass(frozen=True)
class Tools:
    """What every exchange of a daemon works with."""

    run: str
    me: PeerId
    vault: Vault
    send_codec: Codec
    return_codec: Codec
    workers: Workers
    limits: Limits
    emit: Callable[[Event], None]
    dropped: Counter[str]
    """What was dropped, by reason."""
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Runs a coroutine whose exception ends the daemon."""
    up: Lane
    down: Lane
    packer: Packer | None = None
    """Decides what is packed on its way; None in a run without packing."""
    room: Room | None = None
    """None: contributions wait in memory, as many as the plan allows."""


class Exchange:
    """Everything this peer knows of one round in flight."""

    def __init__(self, plan: Plan, tools: Tools) -> None:
        self.plan = plan
        self.tools = tools
        self._ids = (tools.run, plan.term, plan.group, plan.fragment, plan.round)
        self.weights = {entry.peer: entry.weight for entry in plan.contributions}
        self.outbound: dict[PeerId, Outbound] = {}
        self.inbound: dict[PeerId, Inbound] = {}
        self.results: dict[PartKey, bytes] = {}
        """Digests of the final parts that are in the store."""
        self.over = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self._told_own_fault = False
        self._owners: dict[PartKey, PeerId] = {}
        self._current: dict[tuple[Section, int], PartKey] = {}
        """The attempt at each part that counts."""
        self._own_parts: set[PartKey] = set()
        self._allowance = 0
        self._arrived: dict[PeerId, set[PartKey]] = {}
        self._arrived_planned: Counter[PeerId] = Counter()
        self._held: dict[tuple[PartKey, PeerId], memoryview | Spilled] = {}
        self.in_memory = 0
        """Bytes of contributions that wait here, or to be added, in memory."""
        self._spill: SpillFile | None = None
        self._held_bytes: Counter[PeerId] = Counter()
        self._returned: dict[PeerId, list[PartKey]] = {}
        self._frames: OrderedDict[tuple[PartKey, bool], bytes] = OrderedDict()
        self._unplanned: Counter[PeerId] = Counter()
        self._ahead: dict[PartKey, tuple[PeerId, bytes]] = {}
        """Results that came before word of their attempt: from whom, and the digest once it is known."""
        self._asked: dict[PeerId, dict[PartKey, None]] = {}
        self._own: deque[PartKey] = deque()
        self._own_lane: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.extend(plan)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the round lasts."""
        task = self.tools.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self) -> None:
        """The round is over: close its streams and let go of its bytes."""
        self.over = True
        for member in self.inbound.values():
            member.end()
        for reducer in self.outbound.values():
            reducer.end()
        for task in self._tasks:
            task.cancel()
        self._held.clear()
        self._frames.clear()

    # --- what the plan says -----------------------------------------------------------------------------------------------------

    def extend(self, plan: Plan) -> None:
        """Take the shares of the plan, or those that were planned again: earlier attempts at their parts are over."""
        for share in plan.shares:
            for part in range(share.start, share.stop):
                key = PartKey(plan.round, share.section, part, share.attempt)
                if (former := self._current.get((share.section, part))) is not None:
                    del self._owners[former]
                self._current[share.section, part] = key
                self._owners[key] = share.reducer.peer
        self._own_parts = {key for key, owner in self._owners.items() if owner == self.tools.me}
        self._allowance = sum(self.tools.send_codec.encoded_size(spans) for key in self._own_parts if (spans := self.spans(key)))
        self._arrived_planned = Counter({peer: len(keys & self._own_parts) for peer, keys in self._arrived.items()})
        for key, (sender, digest) in list(self._ahead.items()):
            if (owner := self._owners.get(key)) is not None:
                del self._ahead[key]
                if sender != owner:
                    self.results.pop(key, None)  # somebody spoke for the reducer, before there was one
                elif digest:
                    self.tools.emit(ResultArrived(key, digest))
        for stream in self.inbound.values():
            stream.plan_changed()

    def is_over(self, key: PartKey) -> bool:
        """Whether a later attempt at this part was planned."""
        return self._current.get((key.section, key.part), key).attempt > key.attempt

    def spans(self, key: PartKey) -> tuple[int, ...]:
        """The spans of a part; none when the layout has no such part."""
        parts = self.tools.vault.parts
        return parts[key.part].spans if key.section is Section.PARAMETERS and key.part < len(parts) else ()

    def header(self, key: PartKey, weight: int = 0, packed: bool = False) -> FrameHeader:
        """What a frame of this round says about itself."""
        return FrameHeader(*self._ids, key.section, key.part, key.attempt, weight, packed)

    def frame(self, kind: str, key: PartKey, payload: bytes | memoryview | bytearray, weight: int = 0, pack: bool = False) -> bytes:
        """In a worker thread: a payload, framed; packed if that is wanted and makes it smaller. `kind`: what packing is measured
        for."""
        if pack and self.tools.packer is not None and (packed := self.tools.packer.pack(kind, payload)) is not None:
            return frames.encode(self.header(key, weight, packed=True), packed)
        return frames.encode(self.header(key, weight), payload)

    def pays(self, peer: PeerId, kind: str) -> bool:
        """Whether to pack the next payload of this kind for this peer."""
        return self.tools.packer is not None and self.tools.packer.pays(peer, kind)

    async def write(self, stream: Any, peer: PeerId, frame: bytes) -> None:
        """Give a frame to the wire to a peer. Raises TimeoutError when the wire does not take it, and what gRPC raises."""
        began = time.perf_counter()  # a cap on uploads is part of how fast this link is
        await self.tools.up.admit(len(frame))
        async with asyncio.timeout(self.tools.limits.progress_s):
            await stream.write(frame)
        waited_s = time.perf_counter() - began
        self.sent_bytes += len(frame)
        self.tools.up.moved(len(frame), waited_s)
        if self.tools.packer is not None:
            self.tools.packer.wrote(peer, len(frame), waited_s)

    async def unpacked(self, header: FrameHeader, payload: memoryview, codec: Codec) -> memoryview:
        """The payload of a packed frame as its sender meant it. To be asked only for what is wanted: it costs many times what a
        sender pays for it. Raises RemoteProtocolError."""
        if self.tools.packer is None:
            raise RemoteProtocolError("a packed frame in a run without packing")
        try:
            return memoryview(await self.tools.workers.part(unpack, payload, codec.encoded_size(self.spans(header.key))))
        except PackingError as error:
            raise RemoteProtocolError(str(error)) from error

    async def received(self, frame: bytes) -> None:
        """A frame is here; returns when the next one may come."""
        self.received_bytes += len(frame)
        self.tools.down.moved(len(frame))
        await self.tools.down.admit(len(frame))

    def opening(self) -> bytes:
        """The first frame of a stream: which round it is for, and no part."""
        return frames.encode(self.header(PartKey(self.plan.round, Section.PARAMETERS, 0)))

    def mismatch(self, header: FrameHeader) -> str:
        """Which id of a frame is not this round's, or ""."""
        theirs = (header.run, header.term, header.group, header.fragment, header.round)
        if theirs == self._ids:
            return ""
        return next(name for name, mine, other in zip(_ROUND_IDS, self._ids, theirs, strict=True) if mine != other)

    # --- as contributor ---------------------------------------------------------------------------------------------------------

    def encode(self, key: PartKey) -> bytearray:
        """In a worker thread: this peer's contribution to a part. Raises CodecError."""
        return self.tools.send_codec.encode(*self._contribution(key))

    def own_fault(self, key: PartKey, error: CodecError) -> str:
        """This peer cannot contribute to a part, which is nobody else's failure: the sentence, also told to the volunteer once."""
        reason = f"this peer's contribution to part {key.part} of round {key.round} cannot be encoded: {error}"
        if not self._told_own_fault:
            self._told_own_fault = True
            LOG.warning("%s; the round goes on without it", reason)
        return reason

    def encode_frame(self, key: PartKey, pack: bool) -> bytes:
        """In a worker thread: the same, framed; encoded into a buffer that the thread keeps. `pack`: pack it, too."""
        values, spans = self._contribution(key)
        encoded = _kept.room(self.tools.send_codec.encoded_size(spans))
        self.tools.send_codec.encode_into(values, spans, encoded)
        return self.frame(_CONTRIBUTION, key, encoded, self.weights[self.tools.me], pack)

    def _contribution(self, key: PartKey) -> tuple[torch.Tensor, tuple[int, ...]]:
        """What this peer has for a part, and the part's spans."""
        spans = self.spans(key)
        if not spans:
            raise LocalProtocolError(f"asked to send {key}, which is not in the layout")
        return self.tools.vault.contribution(self.tools.vault.parts[key.part]), spans

    def open(self, reducer: PeerId, dial: Callable[[], Any]) -> None:
        """Open the stream to a reducer, unless it is open; what was asked to be sent to it before and has no result goes first."""
        if reducer not in self.outbound:
            self.outbound[reducer] = stream = Outbound(self, reducer, dial)
            for key in self._asked.get(reducer, ()):
                if key not in self.results and not self.is_over(key):
                    stream.send(key)
            self.spawn(stream.run())

    def send(self, key: PartKey, reducer: PeerId) -> None:
        """Contribute to a part, which this peer may reduce itself."""
        if reducer == self.tools.me:
            self._own.append(key)
            if self._own_lane is None or self._own_lane.done():
                self._own_lane = self.spawn(self._contribute_here())
            return
        self._asked.setdefault(reducer, {})[key] = None
        if reducer in self.outbound:
            self.outbound[reducer].send(key)

    async def _contribute_here(self) -> None:
        """Encode this peer's contributions to parts that it reduces itself, one after the other, between those for others."""
        me = self.tools.me
        while self._own:
            key = self._own.popleft()
            if key in self._arrived.get(me, ()) or self.is_over(key):
                continue
            self._arrives(key, me)
            try:
                payload = await self.tools.workers.part(self.encode, key)
            except CodecError as error:
                self.tools.emit(ContributionRefused(key, me, self.own_fault(key, error)))
                continue
            self._hold(key, me, await self._placed(memoryview(payload)))

    # --- as reducer -------------------------------------------------------------------------------------------------------------

    def missing(self, peer: PeerId) -> int:
        """How many of the planned parts that this peer reduces a contributor has not sent."""
        return len(self._own_parts) - self._arrived_planned[peer] if self.weights.get(peer) else 0

    def _arrives(self, key: PartKey, peer: PeerId) -> None:
        self._arrived.setdefault(peer, set()).add(key)
        self._arrived_planned[peer] += key in self._own_parts

    def crowded(self, peer: PeerId) -> bool:
        """Whether as much of a contributor's waits here as may."""
        return self._held_bytes[peer] > self._allowance + self.tools.limits.unplanned_bytes

    def refusal(self, header: FrameHeader, peer: PeerId) -> str:
        """Why a contribution cannot count, whatever its payload is, or ""."""
        if unlike := self.mismatch(header):
            return f"contribution to another {unlike}"
        if not self.weights.get(peer):
            return "contribution of a peer that is not in the plan"
        if header.weight != self.weights[peer]:
            return "contribution with another weight than planned"
        if not self.spans(header.key):
            return "contribution to a part that does not exist"
        if self._owners.get(header.key, self.tools.me if header.attempt else "") != self.tools.me:
            return "contribution to a part that another peer reduces"
        if header.key in self._arrived.get(peer, ()):
            return "contribution that was here already"
        return ""

    async def take(self, header: FrameHeader, payload: memoryview, peer: PeerId) -> None:
        """A contribution came in: check it, and hold it until the engine says what becomes of it. Cut short, it never came."""
        key = header.key
        reason = self.refusal(header, peer)
        if not reason and len(payload) != self.tools.send_codec.encoded_size(self.spans(key)):
            reason = "contribution of another size than its part"
        if reason:
            self.tools.dropped[reason] += 1
            return
        try:
            # On the event loop: for int8 this reads the scales only, which is cheaper than asking a thread to.
            self.tools.send_codec.check(payload, self.spans(key), float(self.weights[peer]))
        except CodecError as error:
            self._arrives(key, peer)
            self.tools.emit(ContributionRefused(key, peer, str(error)))
            return
        placed = await self._placed(payload)
        if reason := self.refusal(header, peer):  # it came on another stream meanwhile
            self.tools.dropped[reason] += 1
            self._forget(placed)
            return
        self._arrives(key, peer)
        self._hold(key, peer, placed)

    def _hold(self, key: PartKey, peer: PeerId, payload: memoryview | Spilled) -> None:
        if not self.over:
            self._held[key, peer] = payload
            self._held_bytes[peer] += len(payload)
            self.tools.emit(ContributionArrived(key, peer))

    async def _placed(self, payload: memoryview) -> memoryview | Spilled:
        """The contribution in memory or, where there is a budget and it is spent, on disk."""
        room = self.tools.room
        if room is not None and self.in_memory + len(payload) > room.limit_bytes:
            try:
                self._spill = self._spill or SpillFile(room.directory)
                spilled = self._spill.reserve(len(payload))
                await self.tools.workers.part(spilled.write, payload)
                return spilled
            except OSError as error:
                LOG.warning("contributions take more memory than they may: %s: %s", room.directory, error.strerror or error)
        self.in_memory += len(payload)
        return payload

    @property
    def short_of_memory(self) -> bool:
        """Whether contributions are to be added as soon as they may, to make room for others."""
        room = self.tools.room
        return room is not None and 2 * self.in_memory > room.limit_bytes

    def _forget(self, payload: memoryview | Spilled) -> None:
        """What `_placed` gave is not needed any more."""
        self.in_memory -= len(payload) if isinstance(payload, memoryview) else 0

    def hand_over(self, key: PartKey, peer: PeerId) -> memoryview | Spilled | None:
        """Hand out a held contribution to be added; `done_with` it when that is done."""
        return self._held.pop((key, peer), None)

    def discard(self, key: PartKey, peer: PeerId) -> None:
        """Let go of a held contribution."""
        if (payload := self.hand_over(key, peer)) is not None:
            self.done_with(peer, payload)

    def lapse(self, key: PartKey) -> None:
        """Another attempt was planned at a part that this peer was reducing: nobody's contribution to this one counts."""
        for held, peer in [slot for slot in self._held if slot[0] == key]:
            self.discard(held, peer)

    def done_with(self, peer: PeerId, payload: memoryview | Spilled) -> None:
        """Nobody needs a contribution's bytes any more: more of its sender's may come."""
        self._forget(payload)
        self._held_bytes[peer] -= len(payload)
        if peer in self.inbound:
            self.inbound[peer].room.set()

    def give(self, key: PartKey, to: Iterable[PeerId]) -> None:
        """Send a final part back: now to those with a stream, later to those whose stream opens later."""
        for peer in to:
            if peer != self.tools.me:
                self._returned.setdefault(peer, []).append(key)
                if peer in self.inbound:
                    self.inbound[peer].give(key)

    def reduced(self, key: PartKey, digest: bytes, payload: bytearray) -> None:
        """A part that this peer closed is in the store."""
        self.results[key] = digest
        self._remember((key, False), self.frame(_RESULT, key, payload))

    async def result_frame(self, key: PartKey, pack: bool) -> bytes:
        """A final part, framed; the same object for all streams that write it at about the same time."""
        frame = self._frames.get((key, pack))
        if frame is None:
            store = self.tools.vault.store
            stored = store.find(self.results[key], key.round)
            if stored is None:
                raise LocalProtocolError(f"the result of {key} is not in the store")

            def read_and_frame() -> bytes:
                return self.frame(_RESULT, key, store.read(stored), pack=pack)

            frame = await self.tools.workers.part(read_and_frame)
            self._remember((key, pack), frame)
        return frame

    def _remember(self, key: tuple[PartKey, bool], frame: bytes) -> None:
        self._frames[key] = frame
        while len(self._frames) > FRAMES_REMEMBERED:
            self._frames.popitem(last=False)

    def attach(self, peer: PeerId, stream: Inbound) -> None:
        """A member's stream is open: it takes over from an older one, and gets every result that was returned to it so far."""
        if (old := self.inbound.get(peer)) is not None:
            old.end()
        self.inbound[peer] = stream
        for key in self._returned.get(peer, ()):
            stream.give(key)

    def detach(self, peer: PeerId, stream: Inbound, reason: str) -> None:
        """A member's stream ended. If anything is still owed, it may come back for a while; then it has failed."""
        if self.inbound.get(peer) is stream:
            del self.inbound[peer]
            if not self.over and (self.missing(peer) or stream.owes):
                self.spawn(self._await_return(peer, reason, stream.owes))

    async def _await_return(self, peer: PeerId, reason: str, owed: bool) -> None:
        await asyncio.sleep(self.tools.limits.absence_s)
        if peer not in self.inbound and not self.over and (owed or self.missing(peer)):
            why = f"{reason}; {self.missing(peer)} parts had not come"
            LOG.warning("%s did not come back to this reducer in round %d: %s", peer, self.plan.round, why)
            self.tools.emit(StreamFailed(self.plan.round, peer, why, dialled=False))

    # --- as collector -----------------------------------------------------------------------------------------------------------

    def owes(self, reducer: PeerId) -> bool:
        """Whether a reducer has parts by plan of which nothing final is here."""
        return any(owner == reducer and key not in self.results for key, owner in self._owners.items())

    def expects(self, header: FrameHeader, payload: memoryview, reducer: PeerId) -> bool:
        """Whether to `collect` a final part that came in, which then counts as being here; what is not wanted is counted."""
        reason = self.unwanted(header, reducer)
        if not reason and len(payload) != self.tools.return_codec.encoded_size(self.spans(header.key)):
            reason = "result of another size than its part"
        if reason:
            self.tools.dropped[reason] += 1
            return False
        if header.key not in self._owners:
            self._unplanned[reducer] += 1
            self._ahead[header.key] = (reducer, b"")
        self.results[header.key] = b""
        return True

    def unwanted(self, header: FrameHeader, reducer: PeerId) -> str:
        """Why a final part is not to be collected, whatever its payload is, or ""."""
        if unlike := self.mismatch(header):
            return f"result of another {unlike}"
        if not self.spans(header.key):
            return "result of a part that does not exist"
        if header.key in self.results:
            return "result that was here already"
        owner = self._owners.get(header.key)
        if owner is None and header.attempt:
            return "more results than there are parts" if self._unplanned[reducer] >= len(self.tools.vault.parts) else ""
        return "" if owner == reducer else "result from a peer that does not reduce the part"

    async def collect(self, key: PartKey, payload: memoryview, reducer: PeerId) -> None:
        """Hash a final part, keep it, say so; of an attempt that is to come, when it is known to be this reducer's."""
        digest = await self.tools.workers.part(store_part, self.tools.vault, key, payload)
        if key in self._ahead:
            self._ahead[key], self.results[key] = (reducer, digest), digest
        elif not self.over and self._owners.get(key) == reducer:
            self.results[key] = digest
            self.tools.emit(ResultArrived(key, digest))


class _Kept(threading.local):
    """One buffer per worker thread: a fresh one for each part would cost its page faults each time."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def room(self, size: int) -> memoryview:
        """Space for `size` bytes, good until the thread asks again."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]


_kept = _Kept()


def store_part(vault: Vault, key: PartKey, payload: memoryview) -> bytes:
    """In a worker thread: keep a final part; its digest."""
    digest = hashlib.sha256(payload).digest()
    vault.store.put(key, digest, payload)
    return digest


class _BrokenError(Exception):
    """A stream ended in a way that may be worth another try."""


class Outbound:
    """This peer's stream to one reducer."""

    def __init__(self, exchange: Exchange, reducer: PeerId, dial: Callable[[], Any]) -> None:
        """`dial` opens a new call."""
        self._exchange = exchange
        self._reducer = reducer
        self._dial = dial
        self._asked: dict[PartKey, None] = {}
        self._todo: deque[PartKey] = deque()
        self._more = asyncio.Event()
        self._moved = False
        self._reading_since = math.inf
        """Since when the next message is awaited, by the loop's clock; infinity while it is not."""
        self._call: Any = None

    def send(self, key: PartKey) -> None:
        """Encode and send a part after those that were asked for before."""
        if key not in self._asked:
            self._asked[key] = None
            self._todo.append(key)
            self._more.set()

    def end(self) -> None:
        """The round is over."""
        if self._call is not None:
            self._call.cancel()

    async def run(self) -> None:
        """Keep the stream open until the round is over, or opening it again does not help."""
        limits, tries = self._exchange.tools.limits, 0
        while True:
            try:
                await self._stream()
                return
            except _BrokenError as broken:
                tries = 0 if self._moved else tries
                if self._exchange.over:
                    return
                if tries == limits.reopen:
                    del self._exchange.outbound[self._reducer]
                    self._exchange.tools.emit(StreamFailed(self._exchange.plan.round, self._reducer, str(broken)))
                    return
            await asyncio.sleep(limits.reopen_s * 2**tries)
            tries += 1
            # What has no result yet may be lost with the stream; the reducer recognises what it has.
            self._todo = deque(key for key in self._asked if key not in self._exchange.results and not self._exchange.is_over(key))
            self._more.set()

    async def _stream(self) -> None:
        """One call, until the reducer ends it because the round is over. Raises _BrokenError."""
        self._moved = False
        try:
            self._call = call = self._dial()
        except UnreachableError as error:
            raise _BrokenError(str(error)) from error
        encoded: asyncio.Queue[bytes] = asyncio.Queue(1)
        works = (self._encode(encoded), self._write(call, encoded), self._read(call), self._watch())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():  # gRPC's way to say that the call was
                    raise _BrokenError("stream to the reducer: cancelled")
                task.result()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return
            raise _BrokenError(f"stream to the reducer: {error.code().name.lower()}: {error.details()}") from error
        except TimeoutError as error:
            raise _BrokenError("stream to the reducer: no progress within its deadline") from error
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _encode(self, encoded: asyncio.Queue[bytes]) -> None:
        exchange = self._exchange
        while True:
            while not self._todo:
                self._more.clear()
                await self._more.wait()
            key = self._todo.popleft()
            if exchange.is_over(key):
                continue
            try:
                pack = exchange.pays(self._reducer, _CONTRIBUTION)
                frame = await exchange.tools.workers.part(exchange.encode_frame, key, pack)
            except CodecError as error:
                exchange.tools.emit(StreamFailed(key.round, exchange.tools.me, exchange.own_fault(key, error)))
                continue
            await encoded.put(frame)

    async def _write(self, call: Any, encoded: asyncio.Queue[bytes]) -> None:
        frame = self._exchange.opening()
        try:
            while True:
                await self._exchange.write(call, self._reducer, frame)
                frame = await encoded.get()
        except asyncio.InvalidStateError:
            await asyncio.Event().wait()  # the call is over; its reader says why

    async def _read(self, call: Any) -> None:
        exchange, clock = self._exchange, asyncio.get_running_loop().time
        in_hand = asyncio.Semaphore(exchange.tools.limits.results_in_hand)
        while True:
            self._reading_since = clock()
            frame = await call.read()
            self._reading_since = math.inf
            if frame is _EOF:
                return
            await exchange.received(frame)
            try:
                header, payload = frames.decode(frame)
                if header.packed and not exchange.unwanted(header, self._reducer):
                    payload = await exchange.unpacked(header, payload, exchange.tools.return_codec)
            except RemoteProtocolError as error:
                exchange.tools.dropped["malformed frame"] += 1
                raise _BrokenError(f"stream to the reducer: {error}") from error
            if not exchange.expects(header, payload, self._reducer):
                continue
            self._moved = True
            await in_hand.acquire()
            task = exchange.spawn(exchange.collect(header.key, payload, self._reducer))
            task.add_done_callback(lambda _: in_hand.release())

    async def _watch(self) -> None:
        """Raises TimeoutError when the reducer's next message does not come and something is owed; a round may wait for other
        things than this reducer. One timer for all messages: one for each is felt."""
        exchange, clock = self._exchange, asyncio.get_running_loop().time
        limit_s = exchange.plan.deadline_s + exchange.tools.limits.progress_s
        while True:
            await asyncio.sleep(min(self._reading_since, clock()) + limit_s - clock())
            if clock() >= self._reading_since + limit_s:
                if exchange.owes(self._reducer):
                    raise TimeoutError
                self._reading_since = clock()


class Inbound:
    """A member's stream to this peer as reducer."""

    def __init__(self, exchange: Exchange, peer: PeerId, context: Any) -> None:
        self.room = asyncio.Event()
        """Set when contributions of this peer's were taken away."""
        self._exchange = exchange
        self._peer = peer
        self._context = context
        self._outbox: deque[PartKey] = deque()
        self._more = asyncio.Event()
        self._ended = asyncio.Event()
        self._limit: asyncio.Timeout | None = None
        """Of the read that is under way."""

    @property
    def owes(self) -> bool:
        """Whether results wait to be written."""
        return bool(self._outbox)

    def give(self, key: PartKey) -> None:
        """Write this result after those that were asked for before."""
        self._outbox.append(key)
        self._more.set()

    def plan_changed(self) -> None:
        """Other contributions than before may be missing, and there may be room for more."""
        self.room.set()
        if self._limit is not None and not self._limit.expired():
            owed, limit_s = self._exchange.missing(self._peer), self._exchange.tools.limits.progress_s
            self._limit.reschedule(asyncio.get_running_loop().time() + limit_s if owed else None)

    def end(self) -> None:
        """The round is over, or another stream took this one's place."""
        self._ended.set()

    async def serve(self) -> None:
        """Read contributions and write results until the round is over or the stream breaks."""
        exchange, reason, code = self._exchange, "the stream was closed", None
        exchange.attach(self._peer, self)
        tasks = [asyncio.ensure_future(work) for work in (self._read(), self._write(), self._ended.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():  # the round ended while a contribution was being checked
                    task.result()
        except TimeoutError:
            missing, limit_s = exchange.missing(self._peer), exchange.tools.limits.progress_s
            reason = f"no progress within {limit_s:g} s, {missing} parts missing, {len(self._outbox)} results not taken"
            LOG.warning("the stream from %s in round %d was ended: %s", self._peer, exchange.plan.round, reason)
            exchange.tools.emit(StreamFailed(exchange.plan.round, self._peer, reason, dialled=False))
            if exchange.inbound.get(self._peer) is self:
                del exchange.inbound[self._peer]
            code = grpc.StatusCode.DEADLINE_EXCEEDED
        except RemoteProtocolError as error:
            exchange.tools.dropped["malformed frame"] += 1
            reason, code = str(error), grpc.StatusCode.INVALID_ARGUMENT
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            reason = f"the stream broke: {error}"
        finally:
            for task in tasks:
                task.cancel()
            exchange.detach(self._peer, self, reason)
        if code is not None:  # last, because it waits until the other end reads
            await self._context.abort(code, reason)

    async def _read(self) -> None:
        exchange, limits = self._exchange, self._exchange.tools.limits
        while True:
            while exchange.crowded(self._peer):
                self.room.clear()
                await self.room.wait()
            try:
                async with asyncio.timeout(limits.progress_s if exchange.missing(self._peer) else None) as self._limit:
                    frame = await self._context.read()
            finally:
                self._limit = None
            if frame is _EOF:
                break
            await exchange.received(frame)
            header, payload = frames.decode(frame)
            if header.packed and not exchange.refusal(header, self._peer):
                payload = await exchange.unpacked(header, payload, exchange.tools.send_codec)
            await exchange.take(header, payload, self._peer)
        await self._ended.wait()

    async def _write(self) -> None:
        exchange = self._exchange
        while True:
            while not self._outbox:
                self._more.clear()
                await self._more.wait()
            frame = await exchange.result_frame(self._outbox[0], exchange.pays(self._peer, _RESULT))
            await exchange.write(self._context, self._peer, frame)
            self._outbox.popleft()
