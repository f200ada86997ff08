"""Holders that cannot be dialled dial in: what they hold can then be asked for over the stream that they opened.

Rule: only the direction of the dialling differs. What is asked for is checked like anything that was fetched, and a stream answers
one question after the other. One that nobody asks for a while is closed; the coordinator has another opened when it is needed.

    seeker                                              holder
    CatchUp or Donors, a contact without address        Push(to the seeker)
    Pushes.serve ◄──────────── PushOpening ───────────  dials
    Pushed.ask ─────────────── PushRequest ──────────►  reads its store
               ◄──── a part, or an offer and chunks ──

Neighbours: `bulk` fetches and serves with these; `coordinator.core` decides who dials whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from shoal.protocol import wire
from shoal.protocol.errors import RefusedError, RemoteProtocolError, UnreachableError
from shoal.protocol.messages import PeerId
from shoal.protocol.transfers import PushRequest, StateOffer

_EOF: Any = vars(grpc.aio)["EOF"]


class Pushed:
    """One stream that a holder opened to this peer."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.turn = asyncio.Lock()
        """Held by who asks, from before its question to the end of the answer."""
        self.over = asyncio.Event()
        """It broke, or an answer was not read to its end."""
        self.asked = 0

    @property
    def busy(self) -> bool:
        """Whether it is answering."""
        return self.turn.locked()

    async def ask(self, request: PushRequest) -> AsyncGenerator[bytes]:
        """The messages of the answer, for who has the `turn`. Raises RefusedError when the holder does not have it,
        RemoteProtocolError when the stream breaks."""
        self.asked += 1
        left = 1
        try:
            await self._write(wire.pack_message(request))
            first = await self._read()
            if not first:
                left = 0
                raise RefusedError("not-here", "the peer that dialled in does not have it")
            if not request.part:
                offer = wire.unpack_message(StateOffer, first)
                left = 1 + offer.size - offer.offset
            left -= 1
            yield first
            while left > 0:
                chunk = await self._read()
                left -= len(chunk)
                yield chunk
        finally:
            if left > 0:
                self.over.set()

    async def _write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise RemoteProtocolError(f"the stream of the peer that dialled in broke: {error}") from error

    async def _read(self) -> bytes:
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise RemoteProtocolError(f"the stream of the peer that dialled in broke: {error}") from error
        if message is _EOF:
            raise RemoteProtocolError("the peer that dialled in hung up")
        assert isinstance(message, bytes)
        return message


class Pushes:
    """The streams that holders have opened to this peer, at most one of each."""

    def __init__(self, within_s: float, idle_s: float) -> None:
        """A holder that was asked to dial may take `within_s`; a stream that is not used for `idle_s` is closed."""
        self._within_s, self._idle_s = within_s, idle_s
        self._streams: dict[PeerId, Pushed] = {}
        self._changed = asyncio.Event()

    async def of(self, peer: PeerId) -> Pushed:
        """The stream of this holder, which may be on its way. Raises UnreachableError."""
        try:
            async with asyncio.timeout(self._within_s):
                while peer not in self._streams:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise UnreachableError(f"it did not dial this peer within {self._within_s:g} s") from None
        return self._streams[peer]

    def hang_up(self) -> None:
        """Close them all."""
        for pushed in self._streams.values():
            pushed.over.set()

    async def serve(self, peer: PeerId, context: Any) -> None:
        """A holder's stream, for as long as it is of use. A newer one of the same holder takes its place."""
        if (old := self._streams.get(peer)) is not None:
            old.over.set()
        pushed = self._streams[peer] = Pushed(context)
        self._changed.set()
        try:
            asked = -1
            while asked != pushed.asked or pushed.busy:
                asked = pushed.asked
                try:
                    async with asyncio.timeout(self._idle_s):
                        await pushed.over.wait()
                except TimeoutError:
                    continue
                return
        finally:
            pushed.over.set()
            if self._streams.get(peer) is pushed:
                del self._streams[peer]
