"""A contribution that was recorded and is sent again: in its round, in another, after it, and to another run with the same model.
Each time it is dropped and counted, nothing of it stays, and its sender, whose it is, is not punished."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import torch

from shoal.compression.codec import codec
from shoal.optim.layout import Part
from shoal.peer import events as ev
from shoal.peer import lanes
from shoal.protocol import channels, frames, services, tls
from shoal.protocol.authority import Authority
from shoal.protocol.channels import Kind
from shoal.protocol.frames import FrameHeader
from shoal.protocol.messages import Section
from tests.peer.scripted import RUN, ScriptedPeer, apply, commit_of, credential, plan_for

RAW = codec("raw")
PARTS = (Part(0, 100, (100,)), Part(100, 200, (100,)))
IDS = 4_000
GROWTH_BYTES = 40 * IDS
"""Less than the smallest thing that could be remembered of each. What measures the link is left out: it remembers when the last MBs
came, and no more."""


def recorded(run: str, round_id: int, part: int, attempt: int = 0) -> bytes:
    """What the second peer sent."""
    header = FrameHeader(run, 1, 0, 0, round_id, Section.PARAMETERS, part, attempt, 5)
    return frames.encode(header, torch.full((100,), 0.25).numpy().tobytes())


def opening(run: str, round_id: int) -> bytes:
    return frames.encode(FrameHeader(run, 1, 0, 0, round_id, Section.PARAMETERS, 0, 0))


def channel_to(receiver: ScriptedPeer, shown: tls.Credential) -> grpc.aio.Channel:
    return channels.open_channel(Kind.BULK, receiver.address, tls.client_credentials(shown), receiver.me)


async def test_a_contribution_counts_once_in_its_round_and_run_and_nowhere_else(tmp_path: Path) -> None:
    authority, other_run = Authority.generate(RUN), Authority.generate("other")
    reducer, sender = peers = [ScriptedPeer(tmp_path / str(at), credential(authority), (RAW, RAW)) for at in range(2)]
    try:
        for peer in peers:
            await peer.start(PARTS, torch.zeros(200))
            peer.publish(torch.full((200,), 0.25), 1)
        plan = plan_for(peers, 1, (1, 5))
        for peer in peers:
            peer.begin(plan)
        async with channel_to(reducer, sender.plane._credential()) as channel:
            for peer in peers:
                await peer.collected()
            call: Any = services.REDUCE.stub(channel)()
            for frame in (opening(RUN, 1), recorded(RUN, 1, 0), recorded(RUN, 2, 0), recorded("other", 1, 0)):
                await call.write(frame)
            await reducer.until(lambda: sum(reducer.plane.dropped.values()) == 3)
            assert set(reducer.plane.dropped) == {
                "contribution that was here already",
                "contribution to another round",
                "contribution to another run",
            }
            commit = commit_of(peers, plan, 1)
            for peer in peers:
                await apply(peer, commit)
            assert {decision.divisor for decision in commit.parts} == {6.0}, "it counted once"
            late = services.REDUCE.stub(channel)()
            await late.write(opening(RUN, 1))
            assert await late.code() is grpc.StatusCode.NOT_FOUND, "the round is over"
            elsewhere = services.REDUCE.stub(channel)()
            await elsewhere.write(opening("other", 1))
            assert await elsewhere.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not [event for event in reducer.events if isinstance(event, ev.StreamFailed | ev.ContributionRefused)]
        async with channel_to(reducer, credential(other_run)) as channel:
            stranger = services.REDUCE.stub(channel)()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stranger.write(opening(RUN, 2))
            assert await stranger.code() is grpc.StatusCode.UNAVAILABLE, "its certificate is of another run"
    finally:
        for peer in peers:
            await peer.stop()


@pytest.mark.slow
async def test_contributions_under_ever_new_ids_leave_nothing(tmp_path: Path) -> None:
    authority = Authority.generate(RUN)
    reducer, sender = peers = [ScriptedPeer(tmp_path / str(at), credential(authority), (RAW, RAW)) for at in range(2)]
    try:
        for peer in peers:
            await peer.start(PARTS, torch.zeros(200))
        reducer.mute = True
        reducer.plane.perform(ev.BeginReduce(plan_for(peers, 1, (1, 5))))
        async with channel_to(reducer, sender.plane._credential()) as channel:
            call: Any = services.REDUCE.stub(channel)()
            await call.write(opening(RUN, 1))
            tracemalloc.start()
            held = []
            for begin in (2, 2 + IDS):
                for number in range(begin, begin + IDS):
                    await call.write(recorded(RUN, number, number))
                await reducer.until(lambda: reducer.plane.dropped["contribution to another round"] == begin - 2 + IDS)  # noqa: B023
                gc.collect()
                kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, lanes.__file__)])
                held.append(sum(trace.size for trace in kept.traces))
            tracemalloc.stop()
        assert held[1] - held[0] < GROWTH_BYTES
    finally:
        for peer in peers:
            await peer.stop()
