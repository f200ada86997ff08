"""Mutated contributions at a live reducer: each is refused, for its sender alone and on all reducers alike, and the round ends with
the bytes of the others."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import torch

from shoal.compression.codec import LARGEST_CONTRIBUTION, LARGEST_WEIGHT, CodecError, codec
from shoal.optim.layout import Part
from shoal.peer import events as ev
from shoal.protocol import channels, frames, services, tls
from shoal.protocol.authority import Authority
from shoal.protocol.channels import Kind
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.frames import FrameHeader
from shoal.protocol.messages import PartKey, Section, Share
from tests.peer.scripted import RUN, ScriptedPeer, apply, commit_of, credential, plan_for

INT8 = codec("int8", 64)
PARTS = (Part(0, 1000, (700, 300)), Part(1000, 1900, (900,)))
HEADER = FrameHeader(RUN, 1, 0, 0, 1, Section.PARAMETERS, 0, 0, 3)
MUTATIONS = 10_000
HEADER_BYTES = 52 + len(RUN)


def values(peer: int) -> torch.Tensor:
    return torch.randn(1900, generator=torch.Generator().manual_seed(peer))


def contribution(peer: int, part: int) -> bytes:
    return bytes(INT8.encode(values(peer)[PARTS[part].start : PARTS[part].stop], PARTS[part].spans))


def mutations(whole: bytes, scales: range, seed: int) -> Iterator[bytes]:
    """Without end: bits and bytes that changed, a piece that is missing, doubled or moved, numbers at their ends, absurd scales."""
    chance = random.Random(seed)
    numbers = [struct.pack("<I", number) for number in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)]
    absurd = [struct.pack("<f", number) for number in (float("nan"), float("inf"), -1.0, 1e38, -0.0, 1e-45)]
    while True:
        bytes_ = bytearray(whole)
        at, other = chance.randrange(len(whole)), chance.randrange(len(whole))
        match chance.randrange(8):
            case 0:
                bytes_[at] ^= 1 << chance.randrange(8)
            case 1:
                del bytes_[at:]
            case 2:
                del bytes_[at : at + chance.randrange(1, 64)]
            case 3:
                bytes_[at:at] = bytes_[other : other + chance.randrange(1, 64)]
            case 4:
                bytes_[at], bytes_[other] = bytes_[other], bytes_[at]
            case 5:
                place = chance.randrange(8, HEADER_BYTES - len(RUN) - 4)
                bytes_[place : place + 4] = chance.choice(numbers)
            case 6:
                place = chance.choice(scales)
                bytes_[place : place + 4] = chance.choice(absurd)
            case _:
                bytes_ += bytes(chance.randrange(1, 64))
        yield bytes(bytes_)


def test_ten_thousand_mutations_are_refused_in_words_or_are_finite_and_small() -> None:
    part = PARTS[0]
    whole = frames.encode(HEADER, contribution(0, 0))
    scales = range(HEADER_BYTES, HEADER_BYTES + 4 * 16, 4)
    refused = accepted = 0
    for mutated, _ in zip(mutations(whole, scales, 7), range(MUTATIONS), strict=False):
        total = torch.ones(1000)
        try:
            _, payload = frames.decode(mutated)
            INT8.decode_add(payload, part.spans, total, LARGEST_WEIGHT)
        except (RemoteProtocolError, CodecError) as error:
            refused += bool(str(error)) and torch.equal(total, torch.ones(1000))  # a refusal changes nothing
        else:
            assert bool((total.abs() <= 1.01 * LARGEST_CONTRIBUTION * LARGEST_WEIGHT).all())
            accepted += 1
    assert refused + accepted == MUTATIONS
    assert refused > MUTATIONS / 2, "most mutations hurt"
    assert accepted > MUTATIONS / 50, "and some make another contribution, as its sender might have sent it"


async def test_a_round_ends_without_the_peer_whose_every_frame_is_mutated(tmp_path: Path) -> None:
    authority = Authority.generate(RUN)
    peers = [ScriptedPeer(tmp_path / str(index), credential(authority), (INT8, INT8)) for index in range(3)]
    try:
        for index, peer in enumerate(peers):
            await peer.start(PARTS, torch.zeros(1900))
            peer.publish(values(index), 1)
        *honest, liar = peers
        shares = [Share(peer.contact, Section.PARAMETERS, index, index + 1) for index, peer in enumerate(honest)]
        plan = plan_for(peers, 1, (2, 5, 3), shares)
        for peer in honest:
            peer.begin(plan)
        liar.mute = True
        liar.plane.perform(ev.BeginReduce(plan))
        for index, reducer in enumerate(honest):
            await _mutate(liar, reducer, index)
        for peer in honest:
            await peer.collected()
        for index, reducer in enumerate(honest):
            assert reducer.decided == {PartKey(1, Section.PARAMETERS, index): ((honest[0].me, honest[1].me), 7.0)}
            mine = {event.peer for event in reducer.events if isinstance(event, ev.ContributionRefused)}
            assert mine == {liar.me}, "and nobody else"
        commit = commit_of(honest, plan, 1)
        for peer in honest:
            await apply(peer, commit)
        assert honest[0].vault.root() == honest[1].vault.root()
        assert torch.isfinite(honest[0].vault.read_theta(1)).all()  # type: ignore[arg-type]
    finally:
        for peer in peers:
            await peer.stop()


async def _mutate(liar: ScriptedPeer, reducer: ScriptedPeer, part: int) -> None:
    """Each bit of a frame's header turned round, the frame cut at every 50th byte, and at last a scale that is no number."""
    good = frames.encode(FrameHeader(RUN, 1, 0, 0, 1, Section.PARAMETERS, part, 0, 3), contribution(2, part))
    turned = [good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :] for at in range(HEADER_BYTES) for bit in range(8)]
    cut = [good[:size] for size in range(0, len(good), 50)]
    nan = good[:HEADER_BYTES] + struct.pack("<f", float("nan")) + good[HEADER_BYTES + 4 :]
    opening = frames.encode(FrameHeader(RUN, 1, 0, 0, 1, Section.PARAMETERS, 0, 0))
    credentials = tls.client_credentials(liar.plane._credential())
    async with channels.open_channel(Kind.BULK, reducer.address, credentials, reducer.me) as channel:
        call: Any = None
        for frame in [*turned, *cut, nan]:
            if call is None:
                call = services.REDUCE.stub(channel)()
                await call.write(opening)
            seen = len(reducer.events) + sum(reducer.plane.dropped.values())
            try:
                await call.write(frame)
            except grpc.aio.AioRpcError:
                call = None
                continue
            async with asyncio.timeout(10):
                while len(reducer.events) + sum(reducer.plane.dropped.values()) == seen:
                    await asyncio.sleep(0.001)
            if reducer.plane.dropped["malformed frame"] > 0:
                reducer.plane.dropped["malformed frame"] = 0
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
                call = None
