"""Dials members back, to see whether others could: the shell of `dialling`.

Rule: whoever answers must show the certificate of the very member that is asked for, so an address that leads to somebody else
proves nothing; and a member learns nothing of an address but whether it is its own. One test per stream at a time, few at once.
Neighbours: `performer` hands over what the core wants dialled, and takes what was found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc
import grpc.aio

from shoal.coordinator.events import DialBack, DialledBack
from shoal.protocol import channels
from shoal.protocol.channels import Kind
from shoal.protocol.errors import ShoalError
from shoal.protocol.services import PING
from shoal.protocol.tls import Credential, client_credentials
from shoal.protocol.transfers import Ping

LOG = logging.getLogger("shoal.coordinator")
AT_ONCE = 8
ANSWER_S = 8.0
"""How long one address may take to answer."""
_REACHED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
"""What a peer of an older release answers to a coordinator: it is there."""


class DialBacks:
    """Tests that are waiting or under way, by stream. Lives on the event loop."""

    def __init__(self, run: str, credential: Callable[[], Credential], found: Callable[[DialledBack], None]) -> None:
        self._run, self._credential, self._found = run, credential, found
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._tests: dict[int, asyncio.Task[None]] = {}

    def dial(self, wanted: DialBack) -> None:
        """Begin this test, in the place of an earlier one of the same stream."""
        self.forget(wanted.connection)
        self._tests[wanted.connection] = test = asyncio.create_task(self._test(wanted))
        test.add_done_callback(lambda test: self._ended(test, wanted.connection))

    def _ended(self, test: asyncio.Task[None], connection: int) -> None:
        """Whatever goes wrong in a test is no reason to believe an address."""
        if not test.cancelled() and (error := test.exception()) is not None:
            LOG.error("a dial-back failed in itself: %r", error, exc_info=error)
            self._found(DialledBack(connection, "", f"the test itself failed: {type(error).__name__}"))

    def forget(self, connection: int) -> None:
        """The stream is over: nobody wants to know any more."""
        if (test := self._tests.pop(connection, None)) is not None:
            test.cancel()

    async def close(self) -> None:
        """End all of them."""
        tests = list(self._tests.values())
        self._tests.clear()
        for test in tests:
            test.cancel()
        await asyncio.gather(*tests, return_exceptions=True)

    async def _test(self, wanted: DialBack) -> None:
        await asyncio.sleep(wanted.after_s)
        async with self._turn:
            reasons = []
            for address in wanted.addresses:
                if not (reason := await self._why_not(wanted.peer, address)):
                    return self._found(DialledBack(wanted.connection, address))
                reasons.append(f"{address}: {reason}")
        return self._found(DialledBack(wanted.connection, "", "; ".join(reasons)))

    async def _why_not(self, peer: str, address: str) -> str:
        """What is wrong with an address; "" when the peer answers there."""
        try:
            async with channels.open_channel(Kind.BULK, address, client_credentials(self._credential()), peer) as channel:
                await PING.call(channel, Ping(self._run), ANSWER_S)
        except grpc.aio.AioRpcError as error:
            return (
                ""
                if error.code() in _REACHED
                else f"{error.code().name.lower()}: {' '.join((error.details() or '').split())[:200]}"
            )
        except ShoalError as error:
            return str(error)
        return ""
