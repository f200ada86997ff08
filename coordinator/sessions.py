"""The coordinator's end of the session streams: one handler per stream, between gRPC and the performer.

Rule: a stream can hurt only itself. What is sent to it waits in its own bounded queue, and when that is full the stream is
closed; bytes that do not decode close it; a certificate that expires closes it, unless the same identity renewed meanwhile. Who
speaks, and with what rights, comes from the certificate alone. Neighbours: `performer` calls `send` and `close`, `server` owns
the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from urllib.parse import unquote

import grpc

from shoal.coordinator.claims import Budget
from shoal.coordinator.performer import Performer
from shoal.protocol.channels import split_address
from shoal.protocol.errors import ShoalError, UnreachableError
from shoal.protocol.generated import coordinator_pb2
from shoal.protocol.messages import Envelope, PeerId
from shoal.protocol.services import SESSION_OPEN
from shoal.protocol.tls import Caller, caller_of, utc
from shoal.protocol.wire import pack, unpack_from_peer

OUTBOX = 2048
"""Messages that may wait for a slow stream; one more and it is closed."""
DRAIN_S = 3.0
"""How long a stream that is being closed may take to send what was sent before."""
LONGEST_SLEEP_S = 60.0
"""A certificate's end is looked at on the wall clock at least this often, because that clock may be set."""
_EOF: Any = cast(Any, grpc.aio).EOF
"""Not in the type stubs of gRPC."""


class Outbox:
    """What waits to be sent on one stream. Implements `performer.Stream`; belongs to one event loop."""

    def __init__(self, limit: int = OUTBOX) -> None:
        self._waiting: deque[Envelope] = deque()
        self._limit = limit
        self._changed = asyncio.Event()
        self._closed = False
        self.broken = asyncio.Event()
        """The stream is to end at once; `reason` says why."""
        self.reason = ""

    def send(self, envelope: Envelope) -> None:
        if self._closed:
            return
        if len(self._waiting) >= self._limit:
            self.break_off(f"takes no messages: {len(self._waiting)} wait")
            return
        self._waiting.append(envelope)
        self._changed.set()

    def close(self, reason: str) -> None:
        self._closed = True
        self.reason = self.reason or reason
        self._changed.set()

    def break_off(self, reason: str) -> None:
        """End the stream without sending what waits."""
        self._closed = True
        self._waiting.clear()
        self.reason = self.reason or reason
        self._changed.set()
        self.broken.set()

    @property
    def closed(self) -> bool:
        """Nothing more is accepted."""
        return self._closed

    async def drain(self) -> AsyncIterator[Envelope]:
        """What is sent, in order, until `close`."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()


class Packer:
    """Encodes envelopes. A body that goes to many streams (a commit of thousands of parts) is encoded once, not once per stream.

    An envelope's bytes are its ids followed by its body's: protobuf reads concatenated messages as one (protobuf.dev, "Last One
    Wins"), and fields that are 0 are not written.
    """

    def __init__(self, kept: int = 8) -> None:
        self._recent: deque[tuple[object, bytes]] = deque(maxlen=kept)

    def pack(self, envelope: Envelope) -> bytes:
        """The same message as `wire.pack(envelope)`."""
        ids = coordinator_pb2.Envelope(session=envelope.session, term=envelope.term).SerializeToString()
        for body, encoded in self._recent:
            if body is envelope.body:
                return ids + encoded
        encoded = pack(Envelope(0, 0, envelope.body))
        self._recent.append((envelope.body, encoded))
        return ids + encoded


class Sessions:
    """Serves session streams. `renewed_until` tells when the newest certificate of a peer that this process issued ends."""

    def __init__(
        self,
        performer: Performer,
        renewed_until: Callable[[PeerId], float],
        say: Callable[[str, str], None],
    ) -> None:
        self._performer = performer
        self._renewed_until = renewed_until
        self._say = say
        self._open: set[Outbox] = set()
        self._shown_until: dict[PeerId, float] = {}
        """When the certificate ends with which a peer's newest open stream was opened."""
        self._packer = Packer()
        self._budget = Budget()

    def close_all(self, reason: str) -> None:
        """End all streams now; the coordinator leaves, which is said once and not per stream."""
        self._say = lambda text, level: None
        for outbox in list(self._open):
            outbox.break_off(reason)

    def certificate_until(self, peer: PeerId) -> float:
        """When the newest certificate of `peer` that this process knows of ends (wall clock); 0 when it knows none."""
        return max(self._shown_until.get(peer, 0.0), self._renewed_until(peer))

    async def serve(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """One stream, from open to end."""
        caller = caller_of(context)
        if not caller.rights & {"peer", "reducer"}:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the certificate of {caller.peer} does not allow to take part")
        await context.send_initial_metadata(SESSION_OPEN)
        seen_from = host_of(context.peer())
        outbox = Outbox()
        self._open.add(outbox)
        self._shown_until[caller.peer] = caller.expires_at.timestamp()
        connection = self._performer.connect(caller.peer, caller.rights, seen_from, outbox)
        reading = asyncio.create_task(self._read(context, connection))
        writing = asyncio.create_task(self._write(context, outbox))
        ending = [asyncio.create_task(outbox.broken.wait()), asyncio.create_task(self._expire(caller, outbox))]
        tasks = [reading, writing, *ending]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if outbox.closed and not outbox.broken.is_set() and not reading.done():
                await asyncio.wait({writing, reading, ending[0]}, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._performer.disconnect(connection)
            self._open.discard(outbox)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._finish(context, caller, outbox, reading, writing)

    async def _finish(
        self,
        context: grpc.aio.ServicerContext[bytes, bytes],
        caller: Caller,
        outbox: Outbox,
        reading: asyncio.Task[None],
        writing: asyncio.Task[None],
    ) -> None:
        """Give the call its last status; re-raise what is our own fault."""
        for task in (reading, writing):
            error = task.exception() if task.done() and not task.cancelled() else None
            match error:
                case None | grpc.RpcError() | grpc.aio.AbortError() | asyncio.InvalidStateError():
                    pass
                case ShoalError():
                    outbox.reason = outbox.reason or str(error)
                case _:
                    raise error
        if outbox.reason:
            if self._budget.spend(caller.peer, time.monotonic())[0]:
                self._say(f"closed the stream of {caller.peer} from {host_of(context.peer())}: {outbox.reason:.500}", "warning")
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                await context.abort(grpc.StatusCode.ABORTED, outbox.reason)

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes], connection: int) -> None:
        while (message := await context.read()) is not _EOF:
            await self._performer.said(connection, unpack_from_peer(message))

    async def _write(self, context: grpc.aio.ServicerContext[bytes, bytes], outbox: Outbox) -> None:
        async for envelope in outbox.drain():
            await context.write(self._packer.pack(envelope))

    async def _expire(self, caller: Caller, outbox: Outbox) -> None:
        """Returns when the identity's newest certificate has ended."""
        while True:
            ends = max(caller.expires_at.timestamp(), self._renewed_until(caller.peer))
            left = ends - time.time()
            if left <= 0:
                outbox.break_off(f"the certificate of {caller.peer} expired at {utc(ends)}; the coordinator's clock says {utc()}")
                return
            await asyncio.sleep(min(left, LONGEST_SLEEP_S))


def host_of(peer: str) -> str:
    """The host in gRPC's name for the other end ("ipv4:1.2.3.4:5", "ipv6:%5B::1%5D:5"); "" when it is not an IP address."""
    family, _, address = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return ""
    try:
        return split_address(unquote(address))[0]
    except UnreachableError:
        return ""
