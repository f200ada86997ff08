"""A short look at a link that carried nothing yet, so that the first plan need not guess: pings with a payload, one way and then
the other.

Rule: it ends after `LEAST_S` when it has moved enough to tell, and after `LONGEST_S` in any case; what it finds is a beginning,
which real transfers correct. Caps hold for it, too. Neighbours: `bulk` owns the connections and serves the pings, `lanes` keeps the
rates.
"""

from __future__ import annotations

import asyncio
import time

import grpc.aio

from shoal.peer.lanes import Lane
from shoal.protocol.services import PING
from shoal.protocol.transfers import PING_LIMIT_BYTES, Ping

ENOUGH_BYTES = 4 << 20
LEAST_S, LONGEST_S = 0.25, 2.0
AT_ONCE = 4
"""Pings under way: enough for a long link."""
ANSWER_S = 15.0


async def measure(channel: grpc.aio.Channel, run: str, up: Lane, down: Lane) -> None:
    """Tell both lanes what they carried on the way to this peer. Raises what a call raises."""
    await PING.call(channel, Ping(run), ANSWER_S)  # so that what is timed next is not the connection's beginning
    up.suppose(await _rate(channel, Ping(run, payload=bytes(PING_LIMIT_BYTES)), up))
    down.suppose(await _rate(channel, Ping(run, want_bytes=PING_LIMIT_BYTES), down))


async def _rate(channel: grpc.aio.Channel, ping: Ping, lane: Lane) -> float:
    """Bytes per second of payload."""
    began, moved = time.monotonic(), 0

    async def again_and_again() -> None:
        nonlocal moved
        while (took := time.monotonic() - began) < LONGEST_S and (took < LEAST_S or moved < ENOUGH_BYTES):
            await lane.admit(PING_LIMIT_BYTES)
            await PING.call(channel, ping, ANSWER_S)
            moved += PING_LIMIT_BYTES

    await asyncio.gather(*(again_and_again() for _ in range(AT_ONCE)))
    return moved / (time.monotonic() - began)
