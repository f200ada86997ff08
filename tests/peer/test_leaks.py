"""Memory, descriptors, threads and disk after hundreds of rounds, half of them abandoned, and after reconnects and transfers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import torch

from shoal.compression.codec import codec
from shoal.optim.layout import Part
from shoal.peer import events as ev
from shoal.protocol import channels, frames, services, tls
from shoal.protocol.authority import Authority
from shoal.protocol.channels import Kind
from shoal.protocol.frames import FrameHeader
from shoal.protocol.messages import Section
from tests.peer.scripted import RUN, ScriptedPeer, apply, commit_of, credential, plan_for

RAW = codec("raw")
VALUES, PART = 1 << 18, 1 << 16
PARTS = tuple(Part(start, start + PART, (PART,)) for start in range(0, VALUES, PART))
ROUNDS, SETTLED_AFTER = 300, 50
GROWTH_BYTES = 80 << 20
"""Of three peers in one process that ran other tests before, allocators included. A leak of one contribution per round would be
250 MiB."""
FETCHES, RECONNECTS = 100, 200
FEW = 5


@pytest_asyncio.fixture
async def peers(tmp_path: Path) -> AsyncIterator[list[ScriptedPeer]]:
    authority = Authority.generate(RUN)
    made = [ScriptedPeer(tmp_path / str(index), credential(authority), (RAW, RAW), threads=1) for index in range(3)]
    for index, peer in enumerate(made):
        await peer.start(PARTS, torch.zeros(VALUES) if index < 2 else None, keep_entries=2)
    yield made
    for peer in made:
        await peer.stop()


def delta_of(peer: int, round_id: int) -> torch.Tensor:
    return torch.linspace(-1.0, peer + round_id, VALUES)


def held(directory: Path) -> tuple[int, int, int, int]:
    """Resident bytes, descriptors, threads, and bytes of files."""
    gc.collect()
    process = psutil.Process()
    files = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
    return process.memory_info().rss, process.num_fds(), process.num_threads(), files


@pytest.mark.slow
async def test_rounds_leave_nothing_whether_they_commit_or_are_abandoned(peers: list[ScriptedPeer], tmp_path: Path) -> None:
    members = peers[:2]
    version, settled = 0, (0, 0, 0, 0)
    for round_id in range(1, ROUNDS + 1):
        for index, peer in enumerate(members):
            peer.publish(delta_of(index, round_id), round_id)
            peer.events.clear()
        plan = plan_for(members, round_id, (1, 2))
        for peer in members:
            peer.begin(plan)
        if round_id % 2:
            await asyncio.gather(*(peer.collected() for peer in members))
            version += 1
            commit = commit_of(members, plan, version)
            await asyncio.gather(*(apply(peer, commit) for peer in members))
        else:
            await members[0].until(lambda: bool(members[0].closing))
            for peer in members:
                peer.plane.perform(ev.DropRound(round_id))
        if round_id == SETTLED_AFTER:
            settled = held(tmp_path)
    memory, descriptors, threads, files = held(tmp_path)
    assert version == ROUNDS // 2
    assert memory <= settled[0] + GROWTH_BYTES
    assert descriptors <= settled[1] + FEW
    assert threads <= settled[2] + FEW
    assert files <= settled[3] + 2 * 4 * VALUES, "one round more or less"


@pytest.mark.slow
async def test_reconnects_and_fetched_states_leave_no_descriptor(peers: list[ScriptedPeer], tmp_path: Path) -> None:
    donor, _, joiner = peers
    opening = frames.encode(FrameHeader(RUN, 1, 0, 0, 9, Section.PARAMETERS, 0, 0))
    settled = (0, 0, 0, 0)
    for number in range(FETCHES):
        joiner.events.clear()
        joiner.plane.perform(ev.FetchState(0, (donor.contact,)))
        await joiner.wait_for(ev.StateFetched)
        await donor.plane.settled()
        if number == FETCHES // 4:
            settled = held(tmp_path)
    for _ in range(RECONNECTS):
        credentials = tls.client_credentials(joiner.plane._credential())
        async with channels.open_channel(Kind.BULK, donor.address, credentials, donor.me) as channel:
            call = services.REDUCE.stub(channel)()
            await call.write(opening)
    async with asyncio.timeout(30):
        while held(tmp_path)[1] > settled[1] + FEW:
            await asyncio.sleep(0.1)
    memory, _, threads, files = held(tmp_path)
    assert memory <= settled[0] + GROWTH_BYTES
    assert threads <= settled[2] + FEW
    assert files <= settled[3] + 2 * 4 * VALUES
