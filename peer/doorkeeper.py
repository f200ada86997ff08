"""Who may call this peer, and for how long: every call of the bulk plane passes here.

Rule: a call lives no longer than its caller's right to it. gRPC looks at a certificate's dates when a connection is made, which may
be days ago; here they are looked at when a call begins and until it ends, and so is the list of banned identities, which the
coordinator tells. A call that loses its right is ended at once and its caller hears why, with both clocks where time is the reason.
Neighbours: `bulk` serves the calls, `engine` hears who is banned.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio

from shoal.protocol import services, tls
from shoal.protocol.errors import IdentityError
from shoal.protocol.messages import PeerId
from shoal.protocol.services import Behaviour, Served

LONGEST_SLEEP_S = 60.0
"""The wall clock is looked at this often at least, because it may be set."""


@dataclass(eq=False)
class _Call:
    """One call that is being answered. `barred` gets a result when its caller is banned."""

    peer: PeerId
    barred: asyncio.Future[None]
    work: asyncio.Future[Any] | None = None


class Doorkeeper:
    """Admits callers, and ends the calls of those whose right ends. `refused` counts both, by reason. Lives on the event loop."""

    def __init__(self, refused: Counter[str]) -> None:
        self._refused = refused
        self._barred: frozenset[PeerId] = frozenset()
        self._calls: set[_Call] = set()

    def bar(self, peers: frozenset[PeerId]) -> None:
        """These identities, and no others, are banned from now on."""
        self._barred = peers
        for call in self._calls:
            if call.peer in peers and not call.barred.done():
                call.barred.set_result(None)

    def is_barred(self, peer: PeerId) -> bool:
        """Whether this identity is banned."""
        return peer in self._barred

    def guard(self, served: Served, rights: frozenset[str] = frozenset({"peer"})) -> Served:
        """The same method, open to who has one of these rights in the run, and while it lasts."""
        return services.around(served, partial(self._answer, rights))

    async def _answer(self, rights: frozenset[str], behaviour: Behaviour, request: Any, context: Any) -> Any:
        try:
            caller = tls.caller_of(context)
        except IdentityError as error:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if not rights & caller.rights:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{caller.peer} is no peer of this run")
        call = _Call(caller.peer, asyncio.get_running_loop().create_future())
        self._calls.add(call)
        try:
            while (lost := self._lost_right(caller)) is None:
                call.work = call.work or asyncio.ensure_future(behaviour(request, context))
                left_s = min(caller.expires_at.timestamp() - time.time(), LONGEST_SLEEP_S)
                await asyncio.wait({call.work, call.barred}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if call.work.done():
                    return call.work.result()
        finally:
            self._calls.discard(call)
            if call.work is not None:
                call.work.cancel()
                await asyncio.gather(call.work, return_exceptions=True)
        return await self._refuse(context, *lost)

    def _lost_right(self, caller: tls.Caller) -> tuple[grpc.StatusCode, str] | None:
        """Why this caller may not go on, if so."""
        if caller.peer in self._barred:
            return grpc.StatusCode.PERMISSION_DENIED, f"{caller.peer} is banned from this run"
        ends = caller.expires_at.timestamp()
        if ends <= time.time():
            reason = f"the certificate of {caller.peer} expired at {tls.utc(ends)}; the clock here says {tls.utc()}"
            return grpc.StatusCode.UNAUTHENTICATED, reason
        return None

    async def _refuse(self, context: Any, code: grpc.StatusCode, reason: str) -> NoReturn:
        self._refused[f"call refused: {code.name.lower()}"] += 1
        await context.abort(code, reason)
        raise AssertionError("abort raises")
