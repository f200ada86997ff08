"""The bulk plane: performs the engine's effects that move bytes, and tells it what arrived.

Rule 1: effects are performed in the order given. `perform` never waits; what takes time runs in tasks and worker threads, in an
order that keeps the promises of `events` (additions of a part in order, its closing after them, work on whole states in line).
Rule 2: nothing fails silently. What a peer did wrong becomes an event or a counter; what we did wrong ends the daemon (`broken`).
Rule 3: memory is bounded, whatever others send. Beside the vault there are what `Room` gives to contributions that wait to be added
(one byte per value of the model without a budget; more wait on disk), 8 bytes per value while somebody fetches the state; and a
constant: sums (72 MiB), frames on their way (a few MiB per stream).

Neighbours: `exchange` is one round's streams, `reduction` adds up, `frozen` serves joiners, `vault` keeps what lasts, `engine`
decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from shoal.compression.codec import Codec
from shoal.peer.doorkeeper import Doorkeeper
from shoal.peer.events import (
    Add,
    Apply,
    Bar,
    BeginReduce,
    ClosePart,
    Collect,
    Discard,
    DropPart,
    DropPending,
    DropRound,
    EntryApplied,
    Event,
    FetchPart,
    FetchState,
    Hashed,
    HashState,
    KeepSession,
    LinkMeasured,
    MeasureLink,
    PartFetchFailed,
    PartReduced,
    PushTo,
    ResultArrived,
    ReturnPart,
    SendPart,
    Serve,
    StateFetched,
    StateFetchFailed,
)
from shoal.peer.exchange import Exchange, Inbound, Limits, Room, Tools
from shoal.peer.frozen import FROZEN_LIMIT, FrozenStates
from shoal.peer.lanes import Lane
from shoal.peer.packer import Packer
from shoal.peer.probe import measure
from shoal.peer.pushes import Pushes
from shoal.peer.reduction import Addition, Reduced, Reducer
from shoal.peer.vault import Vault, VaultError
from shoal.peer.workers import Workers
from shoal.protocol import channels, frames, services, tls, wire
from shoal.protocol.channels import Kind
from shoal.protocol.errors import LocalProtocolError, RefusedError, RemoteProtocolError, UnreachableError
from shoal.protocol.messages import Contact, PartKey, PeerId
from shoal.protocol.transfers import PING_LIMIT_BYTES, PartRequest, Ping, Pong, PushOpening, PushRequest, StateOffer, StateRequest

BulkEffect = (
    BeginReduce
    | Collect
    | SendPart
    | Add
    | Discard
    | DropPart
    | ClosePart
    | ReturnPart
    | FetchPart
    | FetchState
    | PushTo
    | MeasureLink
    | DropRound
    | DropPending
    | Apply
    | HashState
    | Serve
    | Bar
    | KeepSession
)
"""What `BulkPlane.perform` performs; everything else is the daemon's."""

LOG = logging.getLogger("shoal.peer")
_EOF: Any = vars(grpc.aio)["EOF"]
T = TypeVar("T")

_PARTS_FETCHED_AT_ONCE = 8
_CHANNELS_KEPT = 256
"""Connections to other peers; a plan has 64 reducers at most. Beyond that the one used longest ago is given up."""
_RETIRED_S = 600.0
"""How long calls on a channel that was replaced may go on; a round does not take longer by default."""
_ROUNDS_REMEMBERED = 1024
_STOP_GRACE_S = 0.5
_LEAST_BYTES = 64 << 10
"""What a download must bring within `Limits.progress_s`: 1 kB/s by default, which no link that can train is below."""


class BulkPlane:
    """One peer's side of all bulk transfers. Lives on the event loop."""

    def __init__(
        self,
        run: str,
        credential: tls.Credential | Callable[[], tls.Credential],
        workers: Workers,
        emit: Callable[[Event], None],
        limits: Limits | None = None,
        lanes: tuple[Lane, Lane] | None = None,
    ) -> None:
        """`credential` (a function when it may be renewed) says who this peer is; `emit` is called on the event loop; `lanes` are
        up and down."""
        self._run = run
        self._credential = credential if callable(credential) else lambda: credential
        self.me: PeerId = self._credential().owner.peer
        self._workers = workers
        self._emit = emit
        self._limits = limits or Limits()
        self._up, self._down = lanes or (Lane(), Lane())
        self._server: grpc.aio.Server | None = None
        self._channels: OrderedDict[PeerId, tuple[str, tls.Credential, grpc.aio.Channel]] = OrderedDict()
        self._tools: Tools | None = None
        self._reducer: Reducer | None = None
        self._frozen: FrozenStates | None = None
        self._keep_entries = 0
        self._serving = True
        self._rounds: dict[int, Exchange] = {}
        self._over: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Rounds that were dropped, with the bytes sent and received in them."""
        self._fetched: dict[int, int] = {}
        """Rounds of entries that are being caught up with, and the bytes that were fetched: their parts stay until the entry
        is applied or dropped."""
        self._begun: dict[int, asyncio.Event] = {}
        self._early: Counter[int] = Counter()
        """Streams that wait for a plan, by round."""
        self._fetching = asyncio.Semaphore(_PARTS_FETCHED_AT_ONCE)
        self._pushes = Pushes(self._limits.push_s, self._limits.push_idle_s)
        self._pushing_to: dict[PeerId, Any] = {}
        """The calls to peers that this one pushes to."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped: Counter[str] = Counter()
        """Frames and streams that were dropped or refused, by reason."""
        self._door = Doorkeeper(self.dropped)
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of whatever went wrong in here; the daemon's supervisor awaits it."""

    # --- life -------------------------------------------------------------------------------------------------------------------

    async def listen(self, address: str) -> int:
        """Serve other peers at this address; the real port. Before `attach`, streams wait and fetches are refused."""
        self._server = channels.new_server(Kind.BULK)
        served = (
            services.REDUCE.serve(self._serve_reduce),
            services.FETCH_PART.serve(self._serve_part, self._limits.progress_s),
            services.FETCH_STATE.serve(self._serve_state, self._limits.progress_s),
            services.PUSH.serve(self._serve_push),
        )
        ping = self._door.guard(services.PING.serve(self._serve_ping), frozenset({"peer", "coordinator"}))
        self._server.add_generic_rpc_handlers(services.handlers(*map(self._door.guard, served), ping))
        port = channels.listen(self._server, address, tls.server_credentials(self._credential))
        await self._server.start()
        return port

    def attach(
        self,
        vault: Vault,
        send_codec: Codec,
        return_codec: Codec,
        keep_entries: int = 8,
        packer: Packer | None = None,
        room: Room | None = None,
    ) -> None:
        """The model is known: work with this vault and these codecs from now on, and pack frames if there is a `packer`. With
        a `room` no more contributions wait in memory than it says; without one, all that the plan allows."""
        if self._rounds:
            raise LocalProtocolError("a vault cannot be attached in the middle of a round")
        self._tools = Tools(
            self._run,
            self.me,
            vault,
            send_codec,
            return_codec,
            self._workers,
            self._limits,
            self._emit,
            self.dropped,
            self._spawn,
            self._up,
            self._down,
            packer,
            room,
        )
        self._reducer = Reducer(self._workers, (send_codec, return_codec), self._reduced, self._fail, added=self._added)
        self._frozen = FrozenStates(vault, self._workers, FROZEN_LIMIT if room is None else room.joiners)
        self._keep_entries = keep_entries

    def reconnect(self) -> None:
        """This machine has another address: what was opened from, or to, the old one is dead. Whoever needs it opens it anew."""
        for _, _, channel in self._channels.values():
            self._spawn(channel.close())
        self._channels.clear()
        self._pushes.hang_up()

    async def settled(self) -> None:
        """Returns when all work on whole states that was asked for before is done."""
        await self._workers.state(lambda: None)

    async def close(self) -> None:
        """End all streams and tasks. The vault and the workers stay their owners'."""
        for round_id in list(self._rounds):
            self._drop(round_id)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
        for _, _, channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        if self.broken.done() and not self.broken.cancelled():
            self.broken.exception()
        self.broken.cancel()

    def traffic(self, round_id: int) -> tuple[int, int]:
        """Bytes sent and received for a round: frames, and parts that were fetched."""
        exchange = self._rounds.get(round_id)
        sent, received = (exchange.sent_bytes, exchange.received_bytes) if exchange else self._over.get(round_id, (0, 0))
        return sent, received + self._fetched.get(round_id, 0)

    # --- effects ----------------------------------------------------------------------------------------------------------------

    def perform(self, effect: BulkEffect) -> None:
        """Begin what the engine wants done. Raises LocalProtocolError for what makes no sense here and now."""
        match effect:
            case BeginReduce():
                self._begin(effect)
            case DropRound(round_id):
                self._fetched.pop(round_id, None)
                self._drop(round_id)
            case FetchPart():
                self._fetched.setdefault(effect.key.round, 0)
                self._spawn(self._fetch_part(effect))
            case FetchState():
                self._spawn(self._fetch_state(effect))
            case PushTo(to):
                self._spawn(self._push_to(to))
            case MeasureLink(to):
                self._spawn(self._measure_link(to))
            case Apply():
                self._on_state(self._apply, effect)
            case HashState(version):
                self._on_state(self._hash, version)
            case DropPending():
                self._on_state(self._tooled.vault.drop_pending)
            case KeepSession(session):
                self._on_state(self._tooled.vault.keep_session, session)
            case Serve(allowed):
                self._serving = allowed
            case Bar(peers):
                self._door.bar(peers)
                for peer in peers & self._channels.keys():
                    self._spawn(self._channels.pop(peer)[2].close())
            case Collect(round_id, reducer):
                if exchange := self._live(round_id):
                    exchange.open(reducer.peer, lambda: services.REDUCE.stub(self._channel(reducer))())
            case SendPart(key, peer):
                if exchange := self._live(key.round):
                    exchange.send(key, peer)
            case Add(key, peer, weight):
                if exchange := self._live(key.round):
                    self._add(exchange, key, peer, weight)
            case Discard(key, peer):
                if exchange := self._live(key.round):
                    exchange.discard(key, peer)
            case DropPart(key):
                if exchange := self._live(key.round):
                    self._summing.drop_part(key)
                    exchange.lapse(key)
            case ClosePart(key, divisor):
                if exchange := self._live(key.round):
                    self._summing.close(key, exchange.spans(key), self._tooled.vault.store, divisor)
            case ReturnPart(key, to):
                if exchange := self._live(key.round):
                    exchange.give(key, to)

    def _live(self, round_id: int) -> Exchange | None:
        """A round in flight; None for one that was dropped meanwhile."""
        exchange = self._rounds.get(round_id)
        if exchange is None and round_id not in self._over:
            raise LocalProtocolError(f"round {round_id} has not begun here")
        return exchange

    def _begin(self, effect: BeginReduce) -> None:
        round_id = effect.plan.round
        if round_id in self._rounds:
            self._rounds[round_id].extend(effect.plan)
        elif round_id not in self._over:
            self._rounds[round_id] = Exchange(effect.plan, self._tooled)
            if begun := self._begun.pop(round_id, None):
                begun.set()

    def _add(self, exchange: Exchange, key: PartKey, peer: PeerId, weight: int) -> None:
        payload = exchange.hand_over(key, peer)
        if payload is None:
            raise LocalProtocolError(f"there is no contribution of {peer} to {key} to add")
        addition = Addition(peer, payload, weight)
        self._summing.add(key, exchange.spans(key), self._tooled.vault.store, addition, urgent=exchange.short_of_memory)

    def _added(self, key: PartKey, addition: Addition) -> None:
        if exchange := self._rounds.get(key.round):
            exchange.done_with(addition.peer, addition.payload)

    def _reduced(self, key: PartKey, reduced: Reduced) -> None:
        if exchange := self._rounds.get(key.round):
            exchange.reduced(key, reduced.digest, reduced.payload)
            self._emit(PartReduced(key, reduced.digest))

    def _drop(self, round_id: int) -> None:
        if exchange := self._rounds.pop(round_id, None):
            self._over[round_id] = (exchange.sent_bytes, exchange.received_bytes)
            while len(self._over) > _ROUNDS_REMEMBERED:
                self._over.popitem(last=False)
            exchange.end()
            self._summing.drop_round(round_id)
        self._tell_rates()
        if self._tools is not None:
            self._on_state(self._tools.vault.drop_round, round_id)

    def _tell_rates(self) -> None:
        """A transfer is over: say what it showed of the link, if anything."""
        before = (self._up.bytes_s, self._down.bytes_s)
        self._up.settle()
        self._down.settle()
        if (rates := (self._up.bytes_s, self._down.bytes_s)) != before:
            self._emit(LinkMeasured(*rates))

    def _apply(self, effect: Apply) -> Callable[[], None]:
        """In the state thread; returns what is to be said on the event loop."""
        tools = self._tooled
        likeness = tools.vault.apply(effect.commit, effect.included, tools.return_codec, effect.trained)
        traffic = self.traffic(effect.commit.round)
        self._fetched.pop(effect.commit.round, None)
        tools.vault.keep_entries(self._keep_entries, [*list(self._rounds), *list(self._fetched)])
        return lambda: self._emit(EntryApplied(effect.commit.version, *traffic, likeness.norm, likeness.cosine))

    def _hash(self, version: int) -> Callable[[], None]:
        vault = self._tooled.vault
        if vault.version != version:
            return lambda: None
        root = vault.root()
        return lambda: self._emit(Hashed(version, root))

    # --- fetching ---------------------------------------------------------------------------------------------------------------

    async def _fetch_part(self, effect: FetchPart) -> None:
        """Look here, then ask one contact after another, each part beginning with another, so that parts are spread over all."""
        tools, key, reasons = self._tooled, effect.key, []
        if await self._workers.part(self._is_here, key, effect.digest):
            self._emit(ResultArrived(key, effect.digest))
            return
        first = key.part % max(1, len(effect.contacts))
        async with self._fetching:
            for contact in (*effect.contacts[first:], *effect.contacts[:first]):
                try:
                    payload = await self._download_part(contact, effect.digest)
                    if hashlib.sha256(payload).digest() != effect.digest:
                        raise RemoteProtocolError("the bytes have another digest")
                except _TRANSFER_ERRORS as error:
                    reasons.append(f"{contact.peer}: {_why(error)}")
                    continue
                await self._workers.part(tools.vault.store.put, key, effect.digest, payload)
                if key.round in self._fetched:
                    self._fetched[key.round] += len(payload)
                if exchange := self._rounds.get(key.round):
                    exchange.results[key] = effect.digest
                self._emit(ResultArrived(key, effect.digest))
                return
        self._emit(PartFetchFailed(key, "; ".join(reasons) or "there is nobody to ask"))

    def _is_here(self, key: PartKey, digest: bytes) -> bool:
        """Whether the store has the part, whole, from before this daemon was started perhaps."""
        store = self._tooled.vault.store
        stored = store.find(digest, key.round)
        return stored is not None and hashlib.sha256(store.read(stored)).digest() == digest

    async def _download_part(self, contact: Contact, digest: bytes) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async with self._answer_of(contact, PartRequest(self._run, digest)) as messages:
            async for chunk in messages:
                chunks.append(chunk)
                size += len(chunk)
                self._down.moved(len(chunk))
                await self._down.admit(len(chunk))
                if size > frames.FRAME_LIMIT_BYTES:
                    raise RemoteProtocolError("more bytes than a part can have")
        return b"".join(chunks)

    @asynccontextmanager
    async def _answer_of(self, contact: Contact, request: PartRequest | StateRequest) -> AsyncIterator[AsyncGenerator[bytes]]:
        """The messages of a contact's answer: of one that is dialled, or that dials this peer."""
        if contact.address:
            channel = self._channel(contact)
            if isinstance(request, PartRequest):
                call = services.FETCH_PART.open(channel, request)
            else:
                call = services.FETCH_STATE.open(channel, request)
            async with aclosing(_steadily(_messages_of(call), self._limits.progress_s)) as messages:
                yield messages
            return
        if isinstance(request, PartRequest):
            wanted = PushRequest(request.digest)
        else:
            wanted = PushRequest(b"", request.version, request.offset, request.root)
        pushed = await self._pushes.of(contact.peer)
        async with pushed.turn, aclosing(_steadily(pushed.ask(wanted), self._limits.progress_s)) as messages:
            yield messages

    async def _fetch_state(self, effect: FetchState) -> None:
        reasons, failed = [], []
        for contact in effect.contacts:
            try:
                version, root = await self._fetch_state_from(contact, effect.version)
            except _TRANSFER_ERRORS as error:
                reasons.append(f"{contact.peer}: {_why(error)}")
                failed.append(contact.peer)
            else:
                self._emit(StateFetched(version, root, contact.peer))
                return
        self._emit(StateFetchFailed("; ".join(reasons) or "there is nobody to ask", tuple(failed)))

    async def _fetch_state_from(self, contact: Contact, version: int) -> tuple[int, bytes]:
        """Fetch, check and install; goes on with what an earlier donor began, if this one has the same state."""
        vault = self._tooled.vault
        begun = vault.interrupted()
        if begun is not None and begun.version >= version:
            try:
                return await self._download_state(contact, StateRequest(self._run, begun.version, begun.received, begun.root))
            except RefusedError:
                pass
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
        return await self._download_state(contact, StateRequest(self._run, version))

    async def _download_state(self, contact: Contact, request: StateRequest) -> tuple[int, bytes]:
        vault, workers = self._tooled.vault, self._workers
        async with self._answer_of(contact, request) as chunks:
            offer = wire.unpack_message(StateOffer, await anext(chunks, b""))
            if offer.layout_hash != vault.layout_hash or offer.size != 8 * vault.values:
                raise RemoteProtocolError("the state offered is of another model")
            if offer.version < request.version or (request.root and offer.root != request.root):
                raise RemoteProtocolError(f"version {offer.version} was offered, {request.version} was asked for")
            incoming = await workers.state(vault.incoming, offer.version, offer.root)
            if offer.offset != incoming.received:
                raise RemoteProtocolError(f"the state was offered from byte {offer.offset}, {incoming.received} are here")
            async for chunk in chunks:
                self._down.moved(len(chunk))
                await workers.state(incoming.write, chunk)
                await self._down.admit(len(chunk))
        if not incoming.whole:
            raise RemoteProtocolError(f"the state ended after {incoming.received} of {incoming.total} bytes")
        await workers.state(vault.install, incoming)
        self._tell_rates()
        return offer.version, offer.root

    # --- serving ----------------------------------------------------------------------------------------------------------------

    async def _refuse(self, context: Any, code: grpc.StatusCode, reason: str) -> NoReturn:
        self.dropped[f"call refused: {code.name.lower()}"] += 1
        await context.abort(code, reason)
        raise AssertionError("abort raises")

    async def _first_of(self, context: Any, unpack: Callable[[bytes], T], what: str) -> T:
        """What a stream that was opened to this peer begins with."""
        try:
            async with asyncio.timeout(self._limits.progress_s):
                return unpack(await context.read() or b"")
        except (RemoteProtocolError, TypeError, TimeoutError) as error:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"the stream does not begin with {what}: {error}")

    async def _serve_reduce(self, _: Any, context: Any) -> None:
        peer = tls.caller_of(context).peer
        header, payload = await self._first_of(context, frames.decode, "a frame")
        if header.run != self._run or len(payload):
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the stream does not begin with an opening of this run")
        exchange = await self._exchange_of(header.round, context)
        if unlike := exchange.mismatch(header):
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"round {header.round} has another {unlike} here")
        if peer not in exchange.plan.members:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{peer} is no member of round {header.round}")
        await Inbound(exchange, peer, context).serve()

    async def _exchange_of(self, round_id: int, context: Any) -> Exchange:
        """The round that a stream is for; waits for this peer's own plan. Nothing is read meanwhile, so HTTP/2 holds the sender."""
        if round_id not in self._rounds and round_id not in self._over:
            if self._early.total() >= self._limits.early_streams:
                await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams wait for a plan")
            self._early[round_id] += 1
            try:
                async with asyncio.timeout(self._limits.early_s):
                    await self._begun.setdefault(round_id, asyncio.Event()).wait()
            except TimeoutError:
                reason = f"no plan of round {round_id} came within {self._limits.early_s:g} s"
                await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, reason)
            finally:
                self._early[round_id] -= 1
                if not self._early[round_id]:
                    del self._early[round_id]
                    self._begun.pop(round_id, None)
        if round_id not in self._rounds:
            await self._refuse(context, grpc.StatusCode.NOT_FOUND, f"round {round_id} is over")
        return self._rounds[round_id]

    async def _serve_part(self, request: PartRequest, context: Any) -> AsyncGenerator[bytes]:
        tools = self._tools
        if request.run != self._run or tools is None or not self._serving:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "this peer serves no parts of that run now")
        try:
            payload = await self._part(tools, request.digest)
        except RefusedError as error:
            await self._refuse(context, grpc.StatusCode.NOT_FOUND, str(error))
        for start in range(0, len(payload), channels.CHUNK_BYTES):
            chunk = payload[start : start + channels.CHUNK_BYTES]
            await self._up.admit(len(chunk))
            began = time.monotonic()
            yield chunk
            self._up.moved(len(chunk), time.monotonic() - began)

    async def _serve_state(self, request: StateRequest, context: Any) -> AsyncGenerator[bytes]:
        if request.run != self._run or self._frozen is None or not self._serving:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "this peer serves no state of that run now")
        try:
            async with aclosing(self._state_messages(self._frozen, request)) as messages:
                async for message in messages:
                    yield message
        except RefusedError as error:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if error.code == "busy" else grpc.StatusCode.NOT_FOUND
            await self._refuse(context, code, str(error))
        except VaultError as error:
            await self._refuse(context, grpc.StatusCode.NOT_FOUND, str(error))

    async def _state_messages(self, states: FrozenStates, request: StateRequest) -> AsyncGenerator[bytes]:
        """An offer of the shared state, then its bytes. Raises RefusedError, VaultError."""
        async with states.hold(request.version, request.root) as frozen:
            offset = request.offset if request.root else 0
            yield wire.pack_message(StateOffer(frozen.version, frozen.root, frozen.layout_hash, frozen.size, offset))
            while offset < frozen.size:
                chunk = frozen.chunk(offset, channels.CHUNK_BYTES)
                offset += len(chunk)
                await self._up.admit(len(chunk))
                began = time.monotonic()
                yield chunk
                self._up.moved(len(chunk), time.monotonic() - began)

    async def _serve_push(self, _: Any, context: Any) -> None:
        """A holder dialled in, because this peer cannot dial it."""
        peer = tls.caller_of(context).peer
        opening = await self._first_of(context, partial(wire.unpack_message, PushOpening), "an opening")
        if opening.run != self._run:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "another run lives here")
        await self._pushes.serve(peer, context)

    async def _push_to(self, to: Contact) -> None:
        """Dial a peer that needs what this one holds, and answer it until it hangs up."""
        limits, call = self._limits, None
        try:
            if (old := self._pushing_to.get(to.peer)) is not None:
                old.cancel()  # it may be half open: its other end asked anew
            self._pushing_to[to.peer] = call = services.PUSH.stub(self._channel(to))()
            await call.write(wire.pack_message(PushOpening(self._run)))
            while True:
                async with asyncio.timeout(limits.push_idle_s + limits.progress_s):
                    message = await call.read()
                if message is _EOF:
                    break
                await self._answer_push(call, wire.unpack_message(PushRequest, message))
            await call.done_writing()
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        except (*_TRANSFER_ERRORS, asyncio.InvalidStateError) as error:
            LOG.warning("could not hand %s what it needs, at %s: %s", to.peer, to.address, _why(error))
        finally:
            if call is not None:
                call.cancel()
                if self._pushing_to.get(to.peer) is call:
                    del self._pushing_to[to.peer]

    async def _measure_link(self, to: Contact) -> None:
        try:
            await measure(self._channel(to), self._run, self._up, self._down)
        except _TRANSFER_ERRORS as error:
            LOG.debug("could not measure the link with %s: %s", to.peer, _why(error))
        else:
            self._emit(LinkMeasured(self._up.bytes_s, self._down.bytes_s))

    async def _answer_push(self, call: Any, request: PushRequest) -> None:
        tools, said = self._tools, False
        if tools is None or self._frozen is None or not self._serving:
            await call.write(b"")
            return
        try:
            if request.part:
                payload = await self._part(tools, request.part)
                await self._up.admit(len(payload))
                began = time.monotonic()
                async with asyncio.timeout(self._limits.progress_s):
                    await call.write(payload)
                self._up.moved(len(payload), time.monotonic() - began)
                return
            wanted = StateRequest(self._run, request.version, request.offset, request.root)
            async with aclosing(self._state_messages(self._frozen, wanted)) as messages:
                async for message in messages:
                    said = True
                    async with asyncio.timeout(self._limits.progress_s):
                        await call.write(message)
        except RefusedError:
            if said:
                raise
            await call.write(b"")

    async def _part(self, tools: Tools, digest: bytes) -> bytes:
        """The part with this digest. Raises RefusedError when it is not here, or not any more."""
        stored = tools.vault.store.find(digest)
        if stored is None:
            raise RefusedError("not-here", "this peer does not have the part")
        try:
            return await self._workers.part(tools.vault.store.read, stored)
        except LocalProtocolError as error:  # its round was dropped at this moment
            raise RefusedError("not-here", str(error)) from error

    async def _serve_ping(self, request: Ping, context: Any) -> Pong:
        if request.run != self._run:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "another run lives here")
        await self._down.admit(len(request.payload))
        wanted = min(request.want_bytes, PING_LIMIT_BYTES) if "peer" in tls.caller_of(context).rights else 0
        await self._up.admit(wanted)
        return Pong(self.me, request.nonce, bytes(wanted))

    # --- inside -----------------------------------------------------------------------------------------------------------------

    @property
    def _tooled(self) -> Tools:
        if self._tools is None:
            raise LocalProtocolError("no vault is attached to the bulk plane yet")
        return self._tools

    @property
    def _summing(self) -> Reducer:
        if self._reducer is None:
            raise LocalProtocolError("no vault is attached to the bulk plane yet")
        return self._reducer

    def _channel(self, contact: Contact) -> grpc.aio.Channel:
        """The connection to a peer, where it is now and with the certificate that we have now. Raises UnreachableError."""
        if self._door.is_barred(contact.peer):
            raise UnreachableError(f"{contact.peer} is banned from this run")
        address, credential = contact.address, self._credential()
        known = self._channels.get(contact.peer)
        if known is None or known[:2] != (address, credential):
            opened = channels.open_channel(Kind.BULK, address, tls.client_credentials(credential), contact.peer)
            if known is not None:
                self._spawn(self._retire(known[2]))
            known = self._channels[contact.peer] = (address, credential, opened)
            if len(self._channels) > _CHANNELS_KEPT:
                self._spawn(self._retire(self._channels.popitem(last=False)[1][2]))
        self._channels.move_to_end(contact.peer)
        return known[2]

    async def _retire(self, channel: grpc.aio.Channel) -> None:
        """Close a channel that gets no new calls, when those on it are over."""
        try:
            await asyncio.sleep(_RETIRED_S)
        finally:
            await channel.close()

    def _on_state(self, work: Callable[..., Callable[[], None] | None], *args: Any) -> None:
        """Put work on whole states in line, now; what it returns is called on the event loop."""
        done = self._workers.state(work, *args)

        async def finish() -> None:
            if say := await done:
                say()

        self._spawn(finish())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)


_TRANSFER_ERRORS = (grpc.aio.AioRpcError, RemoteProtocolError, UnreachableError, RefusedError, VaultError, TimeoutError)


def _why(error: BaseException) -> str:
    """One sentence about a transfer that failed."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error) or "no progress"


async def _messages_of(call: Any) -> AsyncGenerator[bytes]:
    """What a running call brings; it ends with the generator."""
    try:
        async for message in call:
            yield message
    finally:
        call.cancel()


async def _steadily(messages: AsyncGenerator[bytes], progress_s: float) -> AsyncGenerator[bytes]:
    """The messages of a download: the first within `progress_s`, then _LEAST_BYTES within each `progress_s`, so that nobody who
    lets them drip holds us for ever. Only waiting counts, not what the reader does in between. Raises TimeoutError."""
    clock = asyncio.get_running_loop().time
    total, counted, left_s = 0, 0, progress_s
    async with aclosing(messages):
        while True:
            began = clock()
            try:
                async with asyncio.timeout(left_s):
                    message: bytes = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise TimeoutError(f"{total - counted} bytes came within {progress_s:g} s, after {counted}") from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise RemoteProtocolError("the call was cancelled") from None
            if not message:
                raise RemoteProtocolError("an empty message, which is no progress")
            left_s -= clock() - began
            if not total or total + len(message) >= counted + _LEAST_BYTES:
                counted, left_s = total + len(message), progress_s
            total += len(message)
            yield message
