"""The bulk plane over real streams with real certificates: a round ends with the bytes of plain arithmetic, whatever goes wrong."""

from __future__ import annotations

import asyncio
import datetime
import functools
import hashlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import torch

from shoal.compression.codec import Codec, codec
from shoal.compression.packing import pack, unpack
from shoal.optim.layout import Part
from shoal.optim.outer import nesterov_step
from shoal.peer import bulk, doorkeeper, lanes
from shoal.peer import events as ev
from shoal.peer import exchange as exchange_module
from shoal.peer.events import Bar
from shoal.peer.exchange import Limits, Room
from shoal.peer.lanes import Lane
from shoal.peer.packer import Packer
from shoal.peer.workers import Workers
from shoal.protocol import channels, frames, services, tls
from shoal.protocol.authority import Authority
from shoal.protocol.channels import Kind, split_address
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError, UnreachableError
from shoal.protocol.frames import FrameHeader
from shoal.protocol.messages import Commit, Contact, Decision, PartKey, Section, Share
from shoal.protocol.transfers import PING_LIMIT_BYTES, PartRequest, Ping, StateRequest
from tests.peer.scripted import RUN, ScriptedPeer, apply, commit_of, credential, plan_for

PARTS = tuple(Part(start, start + 1000, (700, 300)) for start in range(0, 7000, 1000))
VALUES = 7000
INT8 = codec("int8", 64)
QUICK = Limits(progress_s=0.5, early_s=0.5, reopen=1, reopen_s=0.05)

Swarm = Callable[..., Awaitable[list[ScriptedPeer]]]


def theta0() -> torch.Tensor:
    return torch.randn(VALUES, generator=torch.Generator().manual_seed(0))


def delta_of(peer: int, round_id: int = 1) -> torch.Tensor:
    return torch.randn(VALUES, generator=torch.Generator().manual_seed(100 * round_id + peer))


def mean(weights: dict[int, int], codecs: tuple[Codec, Codec] = (INT8, INT8), round_id: int = 1) -> torch.Tensor:
    """What everybody should decode: contributions of these peers, in this order, with these weights."""
    result = torch.empty(VALUES)
    for part in PARTS:
        total = torch.zeros(part.stop - part.start)
        for peer, weight in weights.items():
            payload = codecs[0].encode(delta_of(peer, round_id)[part.start : part.stop], part.spans)
            codecs[0].decode_add(payload, part.spans, total, float(weight))
        total /= float(sum(weights.values()))
        result[part.start : part.stop] = codecs[1].decode(codecs[1].encode(total, part.spans), part.spans)
    return result


def after(deltas: Sequence[torch.Tensor]) -> torch.Tensor:
    theta, momentum = theta0(), torch.zeros(VALUES)
    for delta in deltas:
        nesterov_step(theta, momentum, delta, 0.7, 0.9)
    return theta


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.generate(RUN)


@pytest_asyncio.fixture
async def swarm(tmp_path: Path, authority: Authority) -> AsyncIterator[Swarm]:
    made: list[ScriptedPeer] = []

    async def make(
        count: int, codecs: tuple[Codec, Codec] = (INT8, INT8), limits: Limits | None = None, packers: Sequence[Packer | None] = ()
    ) -> list[ScriptedPeer]:
        peers = []
        for index in range(count):
            packer = packers[index] if packers else None
            place = tmp_path / f"vault-{len(made)}"
            peer = ScriptedPeer(place, credential(authority), codecs, limits, packer=packer)
            made.append(peer)
            await peer.start(PARTS, theta0())
            peers.append(peer)
        return peers

    yield make
    for peer in made:
        await peer.stop()


def publish(peers: Sequence[ScriptedPeer], round_id: int = 1) -> None:
    for index, peer in enumerate(peers):
        peer.publish(delta_of(index, round_id), round_id)


async def raw_stream(sender: ScriptedPeer, receiver: ScriptedPeer) -> tuple[grpc.aio.Channel, Any]:
    """A Reduce call in `sender`'s name, to say whatever a test likes on it."""
    credentials = tls.client_credentials(sender.plane._credential())
    channel = channels.open_channel(Kind.BULK, receiver.address, credentials, receiver.me)
    return channel, services.REDUCE.stub(channel)()


def frame(round_id: int, index: int, payload: bytes, tokens: int, **ids: Any) -> bytes:
    header: dict[str, Any] = {"run": RUN, "term": 1, "group": 0, "fragment": 0, "round": round_id, "section": Section.PARAMETERS}
    return frames.encode(FrameHeader(**(header | {"part": index, "attempt": 0, "weight": tokens} | ids)), payload)


def arrived(peer: ScriptedPeer, contributions: int) -> bool:
    """Whether so many contributions to each part that the peer reduces by plan are here."""
    assert peer.plan is not None
    own = sum(share.stop - share.start for share in peer.plan.shares if share.reducer.peer == peer.me)
    return len(peer.closing) == own and all(len(part.arrived) == contributions for part in peer.closing.values())


def contribution(peer: int, part: int) -> bytes:
    return bytes(INT8.encode(delta_of(peer)[PARTS[part].start : PARTS[part].stop], PARTS[part].spans))


# --- rounds that go well --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codecs", [(INT8, INT8), (codec("raw"), codec("bf16"))])
async def test_rounds_end_with_the_bytes_that_plain_arithmetic_gives(swarm: Swarm, codecs: tuple[Codec, Codec]) -> None:
    peers = await swarm(3, codecs)
    deltas = []
    for version in (1, 2):
        publish(peers, version)
        plan = plan_for(peers, version, (5, 1, 3))
        for peer in peers:
            peer.begin(plan)
        await asyncio.gather(*(peer.collected() for peer in peers))
        commit = commit_of(peers, plan, version)
        await asyncio.gather(*(apply(peer, commit) for peer in peers))
        deltas.append(mean({0: 5, 1: 1, 2: 3}, codecs, version))
    for peer in peers:
        assert torch.equal(peer.vault.theta, after(deltas))
        assert peer.vault.pending.eq(0).all()
        assert not peer.plane.dropped
        sent, received = peer.plane.traffic(2)
        assert sent > 0
        assert received > 0
    assert len({peer.vault.root() for peer in peers}) == 1


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_peers_that_know_each_other_by_ipv6_addresses_reduce_and_fetch(tmp_path: Path, authority: Authority) -> None:
    peers = [ScriptedPeer(tmp_path / f"six-{index}", credential(authority), (INT8, INT8)) for index in range(3)]
    joiner = ScriptedPeer(tmp_path / "joiner", credential(authority), (INT8, INT8))
    try:
        for peer in peers:
            await peer.start(PARTS, theta0(), host="[::1]")
        await joiner.start(PARTS, None, host="[::1]")
        assert all(split_address(peer.address)[0] == "::1" for peer in peers)
        publish(peers)
        plan = plan_for(peers, 1, (4, 2, 1))
        for peer in peers:
            peer.begin(plan)
        for peer in peers:
            await peer.collected()
        entry = commit_of(peers, plan, 1)
        for peer in peers:
            await apply(peer, entry)
            assert torch.equal(peer.vault.theta, after([mean({0: 4, 1: 2, 2: 1})]))
        joiner.plane.perform(ev.FetchState(1, (peers[1].contact,)))
        assert await joiner.wait_for(ev.StateFetched) == ev.StateFetched(1, peers[0].vault.root(), peers[1].me)
    finally:
        for peer in (*peers, joiner):
            await peer.stop()


async def test_what_the_codec_left_out_is_in_the_next_round_that_counts(tmp_path: Path, authority: Authority) -> None:
    """Round 2 is abandoned after everything was sent: it changes no residual."""
    peers = [ScriptedPeer(tmp_path / f"vault-{index}", credential(authority), (INT8, INT8)) for index in range(2)]
    for peer in peers:
        await peer.start(PARTS, theta0(), feedback=INT8)
    residuals, deltas = [torch.zeros(VALUES), torch.zeros(VALUES)], []
    for round_id in (1, 2, 3):
        publish(peers, round_id)
        plan = plan_for(peers, round_id, (1, 1))
        for peer in peers:
            peer.begin(plan)
        await asyncio.gather(*(peer.collected() for peer in peers))
        if round_id == 2:
            for peer in peers:
                peer.plane.perform(ev.DropRound(round_id))
            continue
        sent = []
        for index in range(2):
            wanted, decoded = delta_of(index, round_id) + residuals[index], torch.empty(VALUES)
            for part in PARTS:
                INT8.decode(INT8.encode(wanted[part.start : part.stop], part.spans), part.spans, decoded[part.start : part.stop])
            residuals[index] = wanted - decoded
            sent.append(decoded)
        combined = torch.empty(VALUES)
        for part in PARTS:
            mean_of_part = ((sent[0] + sent[1]) / 2)[part.start : part.stop]
            INT8.decode(INT8.encode(mean_of_part, part.spans), part.spans, combined[part.start : part.stop])
        deltas.append(combined)
        commit = replace(commit_of(peers, plan, len(deltas)), base=len(deltas) - 1)
        await asyncio.gather(*(apply(peer, commit) for peer in peers))
    for index, peer in enumerate(peers):
        assert torch.equal(peer.vault.residual, residuals[index])
        assert torch.allclose(peer.vault.theta, after(deltas), atol=0.05)
        await peer.stop()


async def test_a_member_that_contributes_nothing_collects_everything(swarm: Swarm) -> None:
    peers = await swarm(3)
    publish(peers)
    plan = plan_for(peers, 1, (2, 0, 1))
    for peer in peers:
        peer.begin(plan)
    await asyncio.gather(*(peer.collected() for peer in peers))
    await apply(peers[1], commit_of(peers, plan, 1))
    assert torch.equal(peers[1].vault.theta, after([mean({0: 2, 2: 1})]))
    assert torch.equal(peers[1].vault.pending, delta_of(1))


async def test_streams_that_open_before_the_plan_arrives_wait_for_it(swarm: Swarm) -> None:
    peers = await swarm(3)
    publish(peers)
    plan = plan_for(peers, 1, (1, 1, 1))
    for peer in peers[:2]:
        peer.begin(plan)
    async with asyncio.timeout(10):
        while peers[2].plane._early.total() < 2:
            await asyncio.sleep(0.01)
    assert not peers[2].events
    peers[2].begin(plan)
    await asyncio.gather(*(peer.collected() for peer in peers))
    assert len({tuple(sorted(peer.results.items(), key=lambda item: item[0].part)) for peer in peers}) == 1


async def test_sums_are_freed_and_bounded_while_the_last_contributor_is_slow(swarm: Swarm) -> None:
    """With room for one sum, additions of other parts wait encoded, and the round still ends."""
    peers = await swarm(3)
    for peer in peers:
        assert peer.plane._reducer is not None
        peer.plane._reducer._open_limit = 1
    publish(peers)
    plan = plan_for(peers, 1, (1, 1, 1))
    for peer in peers[:2]:
        peer.begin(plan)
    await peers[0].until(lambda: len(peers[0].closing) == 2)
    assert peers[0].plane._reducer.open_sums <= 1  # type: ignore[union-attr]
    peers[2].begin(plan)
    await asyncio.gather(*(peer.collected() for peer in peers))
    commit = commit_of(peers, plan, 1)
    await asyncio.gather(*(apply(peer, commit) for peer in peers))
    assert torch.equal(peers[0].vault.theta, after([mean({0: 1, 1: 1, 2: 1})]))
    assert all(peer.plane._reducer.open_sums == 0 for peer in peers)  # type: ignore[union-attr]


async def test_contributions_that_find_no_room_in_memory_wait_on_disk_and_nobody_notices(swarm: Swarm, tmp_path: Path) -> None:
    """One peer reduces everything; who comes second in the plan is silent for longer than a stream may be, so that the third's work
    piles up."""
    peers = await swarm(3, limits=QUICK)
    one = peers[0]
    message = len(contribution(2, 0))
    one.plane.attach(one.vault, INT8, INT8, room=Room(2 * message, tmp_path, joiners=1))
    publish(peers)
    plan = plan_for(peers, 1, (1, 1, 1), [Share(one.contact, Section.PARAMETERS, 0, len(PARTS))])
    for peer in (one, peers[2]):
        peer.begin(plan)
    exchange = one.plane._rounds[1]
    await one.until(lambda: exchange._held_bytes[peers[2].me] == len(PARTS) * message)
    assert exchange.in_memory <= 2 * message
    await asyncio.sleep(2 * QUICK.progress_s)
    assert not [event for event in peers[2].events if isinstance(event, ev.StreamFailed)]
    peers[1].begin(plan)
    await asyncio.gather(*(peer.collected() for peer in (one, peers[2])))
    await one.until(lambda: not exchange._held_bytes.total())
    assert exchange.in_memory == 0
    commit = commit_of(peers, plan, 1)
    await asyncio.gather(*(apply(peer, commit) for peer in (one, peers[2])))
    assert torch.equal(one.vault.theta, after([mean({0: 1, 1: 1, 2: 1})]))
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


async def test_a_disk_without_room_is_said_and_the_contributions_stay_in_memory(
    swarm: Swarm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = await swarm(3)
    for peer in peers:
        peer.plane.attach(peer.vault, INT8, INT8, room=Room(1, tmp_path / "nowhere"))
    publish(peers)
    plan = plan_for(peers, 1, (1, 1, 1))
    for peer in peers:
        peer.begin(plan)
    await asyncio.gather(*(peer.collected() for peer in peers))
    assert "contributions take more memory than they may" in caplog.text


# --- packing --------------------------------------------------------------------------------------------------------------------


class AlwaysPacker(Packer):
    """Packs for every link, as if all were slow."""

    def pays(self, link: str, kind: str) -> bool:
        return True


async def test_packed_rounds_end_with_the_same_bytes_and_send_fewer(swarm: Swarm) -> None:
    """Peers that pack, and one whose links are too fast for it, in one round."""
    sent = []
    roots = set()
    for packers in ((AlwaysPacker(), AlwaysPacker(), Packer()), (None, None, None)):
        peers = await swarm(3, packers=packers)
        for index, peer in enumerate(peers):
            peer.publish(delta_of(index).round() * (torch.arange(VALUES) % 5 == 0), 1)
        plan = plan_for(peers, 1, (5, 1, 3))
        for peer in peers:
            peer.begin(plan)
        await asyncio.gather(*(peer.collected() for peer in peers))
        commit = commit_of(peers, plan, 1)
        await asyncio.gather(*(apply(peer, commit) for peer in peers))
        roots |= {peer.vault.root() for peer in peers}
        assert not any(peer.plane.dropped for peer in peers)
        sent.append([peer.plane.traffic(1)[0] for peer in peers])
    assert len(roots) == 1
    assert all(packed < 0.7 * plain for packed, plain in zip(sent[0][:2], sent[1][:2], strict=True))
    assert sent[0][2] == sent[1][2]


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (pack(bytes(5000)), "holds 5000 bytes, where"),
        (pack(bytes(5000))[:-1], "holds 5000 bytes, where"),
        (b"no zstd frame", "does not unpack"),
    ],
)
async def test_a_packed_contribution_that_is_no_part_ends_its_stream(swarm: Swarm, packed: bytes, reason: str) -> None:
    reducer, sender = await swarm(2, packers=(Packer(), Packer()))
    reducer.mute = True
    reducer.plane.perform(ev.BeginReduce(plan_for([reducer, sender], 1, (1, 1))))
    channel, call = await raw_stream(sender, reducer)
    await call.write(frame(1, 0, b"", 0))
    await call.write(frame(1, 0, packed, 1, packed=True))
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in await call.details()
    assert reducer.plane.dropped == {"malformed frame": 1}
    assert not any(isinstance(event, ev.ContributionArrived) for event in reducer.events)
    await channel.close()


async def test_what_is_not_wanted_is_dropped_without_being_unpacked(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = []

    def counting(packed: memoryview, size: int) -> bytes:
        unpacked.append(size)
        return unpack(packed, size)

    monkeypatch.setattr(exchange_module, "unpack", counting)
    reducer, sender = await swarm(2, packers=(Packer(), Packer()))
    plan = plan_for([reducer, sender], 1, (1, 1))
    reducer.mute = True
    reducer.plane.perform(ev.BeginReduce(plan))
    channel, call = await raw_stream(sender, reducer)
    good, bomb = pack(contribution(1, 0)), pack(bytes(1 << 20))
    await call.write(frame(1, 0, b"", 0))
    await call.write(frame(1, 0, good, 1, packed=True))
    for ids in ({}, {"round": 2}, {"part": 6}, {"part": 99}, {"weight": 9}):
        await call.write(frame(1, 0, bomb, 1, **{"packed": True, **ids}))
    await call.write(frame(1, 1, pack(contribution(1, 1)), 1, packed=True))
    await reducer.until(lambda: len(reducer.events) == 2)
    assert reducer.plane.dropped == {
        "contribution that was here already": 1,
        "contribution to another round": 1,
        "contribution to a part that another peer reduces": 1,
        "contribution to a part that does not exist": 1,
        "contribution with another weight than planned": 1,
    }
    assert unpacked == [len(contribution(1, 0)), len(contribution(1, 1))]
    await channel.close()


async def test_a_packed_contribution_is_refused_in_a_run_without_packing(swarm: Swarm) -> None:
    reducer, sender = await swarm(2)
    reducer.mute = True
    reducer.plane.perform(ev.BeginReduce(plan_for([reducer, sender], 1, (1, 1))))
    channel, call = await raw_stream(sender, reducer)
    await call.write(frame(1, 0, b"", 0))
    await call.write(frame(1, 0, pack(contribution(1, 0)), 1, packed=True))
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "without packing" in await call.details()
    await channel.close()


# --- what may not get in --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ({"run": "other"}, "contribution to another run"),
        ({"term": 2}, "contribution to another term"),
        ({"group": 1}, "contribution to another group"),
        ({"fragment": 1}, "contribution to another fragment"),
        ({"round": 2}, "contribution to another round"),
        ({"weight": 9}, "contribution with another weight than planned"),
        ({"part": 6}, "contribution to a part that another peer reduces"),
        ({"part": 99}, "contribution to a part that does not exist"),
        ({"section": Section.BUFFERS}, "contribution to a part that does not exist"),
    ],
)
async def test_a_frame_that_does_not_match_is_dropped_and_counted(swarm: Swarm, ids: dict[str, object], reason: str) -> None:
    reducer, sender = await swarm(2)
    plan = plan_for([reducer, sender], 1, (1, 1))
    reducer.mute = True
    reducer.plane.perform(ev.BeginReduce(plan))
    channel, call = await raw_stream(sender, reducer)
    await call.write(frame(1, 0, b"", 0))
    await call.write(frame(1, 0, contribution(1, 0), 1, **ids))
    await call.write(frame(1, 1, contribution(1, 1)[:-1], 1))
    await call.write(frame(1, 2, contribution(1, 2), 1))
    await call.write(frame(1, 2, contribution(1, 2), 1))
    await call.write(frame(1, 3, contribution(1, 3), 1))
    await reducer.until(lambda: len(reducer.events) == 2)
    keys = [PartKey(1, Section.PARAMETERS, part) for part in (2, 3)]
    assert reducer.events == [ev.ContributionArrived(key, sender.me) for key in keys]
    assert reducer.plane.dropped == {
        reason: 1,
        "contribution of another size than its part": 1,
        "contribution that was here already": 1,
    }
    await channel.close()


async def test_a_contribution_that_is_not_finite_is_refused_and_the_part_closes_without_it(swarm: Swarm) -> None:
    fp32 = codec("raw")
    peers = await swarm(3, (fp32, fp32))
    publish(peers)
    plan = plan_for(peers, 1, (2, 3, 4))
    for peer in peers[:2]:
        peer.begin(plan)
    peers[2].mute = True
    peers[2].plane.perform(ev.BeginReduce(plan))
    channel, call = await raw_stream(peers[2], peers[0])
    await call.write(frame(1, 0, b"", 0))
    for part in range(2):
        values = delta_of(2)[PARTS[part].start : PARTS[part].stop].clone()
        if part == 1:
            values[17] = torch.nan
        await call.write(frame(1, part, values.numpy().tobytes(), 4))
    keys = [PartKey(1, Section.PARAMETERS, part) for part in (0, 1)]
    await peers[0].until(lambda: all(key in peers[0].results for key in keys))
    assert peers[0].decided[keys[0]] == (tuple(peer.me for peer in peers), 9.0)
    assert peers[0].decided[keys[1]] == ((peers[0].me, peers[1].me), 5.0)
    stored = peers[0].vault.store.find(peers[0].results[keys[1]])
    assert stored is not None
    got = fp32.decode(peers[0].vault.store.read(stored), PARTS[1].spans)
    assert torch.equal(got, mean({0: 2, 1: 3}, (fp32, fp32))[PARTS[1].start : PARTS[1].stop])
    await channel.close()


async def test_who_is_no_member_of_the_round_or_no_peer_of_the_run_is_refused(swarm: Swarm, authority: Authority) -> None:
    reducer, member, stranger = await swarm(3)
    plan = plan_for([reducer, member], 1, (1, 1))
    reducer.plane.perform(ev.BeginReduce(plan))
    channel, call = await raw_stream(stranger, reducer)
    await call.write(frame(1, 0, b"", 0))
    assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    await channel.close()
    observer = tls.client_credentials(credential(authority, ("observer",)))
    channel = channels.open_channel(Kind.BULK, reducer.address, observer, reducer.me)
    with pytest.raises(grpc.aio.AioRpcError, match="is no peer of this run"):
        await services.PING.call(channel, Ping(RUN), timeout_s=5)
    await channel.close()
    outsider = tls.client_credentials(credential(Authority.generate(RUN)))
    channel = channels.open_channel(Kind.BULK, reducer.address, outsider, reducer.me)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await services.PING.call(channel, Ping(RUN), timeout_s=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_a_certificate_that_expired_since_the_connection_was_made_opens_nothing(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, other = await swarm(2)
    channel, call = await raw_stream(other, peer)
    call.cancel()
    assert (await services.PING.call(channel, Ping(RUN), timeout_s=5)).peer == peer.me
    ends = other.plane._credential().owner.expires_at.timestamp()
    clock = SimpleNamespace(time=lambda: ends, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(doorkeeper, "time", clock)
    with pytest.raises(grpc.aio.AioRpcError, match=r"expired at \d{4}-.* UTC; the clock here says \d{4}-") as caught:
        await services.PING.call(channel, Ping(RUN), timeout_s=5)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await channel.close()


async def test_a_call_that_is_open_when_its_certificate_ends_is_ended_and_hears_both_times(
    swarm: Swarm, authority: Authority
) -> None:
    (peer,) = await swarm(1)
    short = credential(authority, lifetime=datetime.timedelta(seconds=5))
    channel = channels.open_channel(Kind.BULK, peer.address, tls.client_credentials(short), peer.me)
    call = services.REDUCE.stub(channel)()
    await call.write(frame(9, 0, b"", 0))  # a round that has no plan yet: the stream waits for it
    with pytest.raises(grpc.aio.AioRpcError, match=r"expired at \d{4}-.* UTC; the clock here says \d{4}-") as caught:
        await asyncio.wait_for(call.read(), 20)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert time.time() >= short.owner.expires_at.timestamp()
    assert peer.plane._early.total() == 0
    await channel.close()


async def test_a_banned_peers_open_streams_end_at_once_and_it_opens_no_others_until_it_is_unbanned(swarm: Swarm) -> None:
    peer, eve, bob = await swarm(3)
    banned, call = await raw_stream(eve, peer)
    other, going_on = await raw_stream(bob, peer)
    for stream in (call, going_on):
        await stream.write(frame(9, 0, b"", 0))
    async with asyncio.timeout(10):
        while peer.plane._early.total() < 2:
            await asyncio.sleep(0.01)
    peer.plane.perform(Bar(frozenset({eve.me})))
    with pytest.raises(grpc.aio.AioRpcError, match=f"{eve.me} is banned from this run") as caught:
        await asyncio.wait_for(call.read(), 5)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(grpc.aio.AioRpcError, match="is banned"):
        await services.PING.call(banned, Ping(RUN), timeout_s=5)
    assert (await services.PING.call(other, Ping(RUN), timeout_s=5)).peer == peer.me
    assert not going_on.done()
    assert peer.plane._early.total() == 1
    peer.plane.perform(Bar(frozenset()))
    assert (await services.PING.call(banned, Ping(RUN), timeout_s=5)).peer == peer.me
    going_on.cancel()
    for channel in (banned, other):
        await channel.close()


async def test_connections_to_a_banned_peer_are_closed(swarm: Swarm) -> None:
    peer, eve, bob = await swarm(3)
    to_eve, to_bob = peer.plane._channel(eve.contact), peer.plane._channel(bob.contact)
    peer.plane.perform(Bar(frozenset({eve.me})))
    async with asyncio.timeout(5):
        while to_eve.get_state() is not grpc.ChannelConnectivity.SHUTDOWN:
            await asyncio.sleep(0.01)
    assert peer.plane._channel(bob.contact) is to_bob
    with pytest.raises(UnreachableError, match=f"{eve.me} is banned from this run"):
        peer.plane._channel(eve.contact)
    peer.plane.perform(Bar(frozenset()))
    assert peer.plane._channel(eve.contact) is not to_eve


async def test_a_reducer_that_is_banned_in_the_middle_of_a_round_is_sent_nothing_more(swarm: Swarm) -> None:
    peers = await swarm(3)
    publish(peers)
    plan = plan_for(peers, 1, (1, 1, 1))
    peers[0].plane.perform(Bar(frozenset({peers[2].me})))
    for one in peers:
        one.begin(plan)
    async with asyncio.timeout(20):
        while not any(isinstance(event, ev.StreamFailed) and event.peer == peers[2].me for event in peers[0].events):
            await asyncio.sleep(0.01)
    assert not any(peers[0].me in part.arrived for part in peers[2].closing.values())
    assert peers[2].me not in peers[0].plane._channels


async def test_a_renewed_certificate_and_a_moved_peer_get_new_connections_and_the_old_ones_are_closed(
    swarm: Swarm, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_RETIRED_S", 0.0)
    (holder,) = await swarm(1)
    mine = [credential(authority)]
    plane = bulk.BulkPlane(RUN, lambda: mine[-1], holder.workers, lambda event: None)
    first = plane._channel(holder.contact)
    assert plane._channel(holder.contact) is first
    mine.append(replace(mine[0], certificate=mine[0].certificate + b"\n"))
    second = plane._channel(holder.contact)
    third = plane._channel(replace(holder.contact, address="127.0.0.1:1"))
    assert len({id(first), id(second), id(third)}) == 3
    async with asyncio.timeout(5):
        while plane._tasks:
            await asyncio.sleep(0)
    for closed in (first, second):
        assert closed.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    monkeypatch.setattr(bulk, "_CHANNELS_KEPT", 1)
    plane._channel(Contact("f" * 32, holder.address))
    assert list(plane._channels) == ["f" * 32]
    await plane.close()


async def test_a_peer_that_moved_opens_its_connections_anew_and_ends_what_hangs_on_the_old_ones(swarm: Swarm) -> None:
    """A donor that never answers stands for one that is beyond a dead connection: only its end can end the wait of minutes."""
    moved, donor = await swarm(2)
    never = asyncio.Event()

    async def hang(*_: object) -> None:
        await never.wait()

    donor.plane._part = hang  # type: ignore[assignment, method-assign]
    key, payload = PartKey(5, Section.PARAMETERS, 4), contribution(0, 4)
    moved.plane.perform(ev.FetchPart(key, put(donor, key, payload), (donor.contact,)))
    await moved.until(lambda: bool(donor.plane._door._calls))
    old = moved.plane._channels[donor.me][2]
    moved.plane.reconnect()
    failed = await moved.wait_for(ev.PartFetchFailed)
    assert isinstance(failed, ev.PartFetchFailed)
    assert moved.plane._channel(donor.contact) is not old
    never.set()


async def test_a_ping_says_who_answers(swarm: Swarm) -> None:
    (peer, other) = await swarm(2)
    channel, call = await raw_stream(other, peer)
    call.cancel()
    pong = await services.PING.call(channel, Ping(RUN, 7), timeout_s=5)
    assert (pong.peer, pong.nonce) == (peer.me, 7)
    with pytest.raises(grpc.aio.AioRpcError, match="another run"):
        await services.PING.call(channel, Ping("other"), timeout_s=5)
    await channel.close()


async def test_a_link_that_carried_nothing_is_measured_both_ways_within_its_caps_and_failing_harms_nobody(
    tmp_path: Path, authority: Authority
) -> None:
    fellow = ScriptedPeer(tmp_path / "fellow", credential(authority), (INT8, INT8))
    workers, told = Workers(1), asyncio.Queue[ev.Event]()
    up, down = Lane(), Lane(cap_bytes_s=8e6)
    plane = bulk.BulkPlane(RUN, credential(authority), workers, told.put_nowait, lanes=(up, down))
    try:
        await fellow.start(PARTS, theta0())
        plane.perform(ev.MeasureLink(fellow.contact))
        async with asyncio.timeout(60):
            measured = await told.get()
        assert isinstance(measured, ev.LinkMeasured)
        assert measured.up_bytes_s > 0
        assert 0 < measured.down_bytes_s <= 8e6
        assert (up.bytes_s, down.bytes_s) == (measured.up_bytes_s, measured.down_bytes_s)
        plane.perform(ev.MeasureLink(Contact("f" * 32, fellow.address)))
        while plane._tasks:
            await asyncio.gather(*plane._tasks)
        assert told.empty()
        assert not plane.broken.done()
    finally:
        await plane.close()
        workers.close()
        await fellow.stop()


async def test_a_coordinators_ping_brings_no_bytes_however_many_it_wants(swarm: Swarm, authority: Authority) -> None:
    (peer,) = await swarm(1)
    for rights, size in ((("coordinator",), 0), (("peer",), PING_LIMIT_BYTES)):
        mine = tls.client_credentials(credential(authority, rights))
        async with channels.open_channel(Kind.BULK, peer.address, mine, peer.me) as channel:
            pong = await services.PING.call(channel, Ping(RUN, 1, b"", 1 << 40), timeout_s=20)
        assert len(pong.payload) == size


async def test_a_result_from_a_peer_that_does_not_reduce_the_part_is_dropped(swarm: Swarm) -> None:
    liar, member, owner = await swarm(3)
    shares = [
        Share(liar.contact, Section.PARAMETERS, 0, 2),
        Share(owner.contact, Section.PARAMETERS, 2, 7),
    ]
    plan = plan_for([liar, member, owner], 1, (1, 1, 1), shares)
    for peer in (liar, member):
        peer.mute = True
        peer.plane.perform(ev.BeginReduce(plan))
    member.plane.perform(ev.Collect(1, liar.contact))
    exchange = liar.plane._rounds[1]
    for part in (0, 5):
        key = PartKey(1, Section.PARAMETERS, part)
        exchange.reduced(key, b"", bytearray(contribution(0, part)))
        liar.plane.perform(ev.ReturnPart(key, (member.me,)))
    await member.until(lambda: bool(member.events) and bool(member.plane.dropped))
    assert member.events == [ev.ResultArrived(PartKey(1, Section.PARAMETERS, 0), hashlib.sha256(contribution(0, 0)).digest())]
    assert member.plane.dropped == {"result from a peer that does not reduce the part": 1}


# --- what breaks ----------------------------------------------------------------------------------------------------------------


async def test_a_stream_without_a_plan_is_refused_when_its_time_is_up(swarm: Swarm) -> None:
    early, late = await swarm(2, limits=QUICK)
    publish([early, late])
    early.begin(plan_for([early, late], 1, (1, 1)))
    failed = await early.wait_for(ev.StreamFailed)
    assert isinstance(failed, ev.StreamFailed)
    assert (failed.round, failed.peer) == (1, late.me)
    assert "no plan of round 1 came within 0.5 s" in failed.reason


async def test_a_contributor_that_sends_nothing_is_reported_with_what_is_missing(swarm: Swarm) -> None:
    reducer, silent = await swarm(2, limits=QUICK)
    publish([reducer, silent])
    plan = plan_for([reducer, silent], 1, (1, 1))
    silent.mute = True
    silent.plane.perform(ev.BeginReduce(plan))
    silent.plane.perform(ev.Collect(1, reducer.contact))
    reducer.begin(plan)
    failed = await reducer.wait_for(ev.StreamFailed)
    assert isinstance(failed, ev.StreamFailed)
    assert failed.peer == silent.me
    assert "no progress within 0.5 s, 4 parts missing" in failed.reason


async def test_a_reducer_that_owes_results_and_is_silent_is_reported_and_one_that_owes_nothing_is_not(swarm: Swarm) -> None:
    peers = await swarm(3, limits=replace(QUICK, progress_s=1.5))
    publish(peers)
    shares = [Share(peers[0].contact, Section.PARAMETERS, 0, 3), Share(peers[1].contact, Section.PARAMETERS, 3, 7)]
    plan = plan_for(peers, 1, (1, 1, 1), shares, deadline_s=0.1)
    peers[1].mute = True
    for peer in peers:
        peer.begin(plan)
    failed = await peers[2].wait_for(ev.StreamFailed, limit_s=10)
    assert isinstance(failed, ev.StreamFailed)
    assert (failed.peer, failed.reason) == (peers[1].me, "stream to the reducer: no progress within its deadline")
    await asyncio.sleep(0.5)
    assert {event.peer for event in peers[2].events if isinstance(event, ev.StreamFailed)} == {peers[1].me}
    assert len(peers[2].results) == 3


async def test_a_contribution_that_cannot_be_encoded_is_blamed_on_nobody_else(
    swarm: Swarm, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)  # a command run earlier in this process may have the say
    peers = await swarm(2)
    publish(peers)
    peers[0].vault.pending[[500, 5500]] = torch.nan  # in a part of its own and in one of the other's
    plan = plan_for(peers, 1, (2, 3))
    for peer in peers:
        peer.begin(plan)
    failed = await peers[0].wait_for(ev.StreamFailed)
    refused = await peers[0].wait_for(ev.ContributionRefused)
    assert isinstance(failed, ev.StreamFailed)
    assert isinstance(refused, ev.ContributionRefused)
    assert (failed.peer, refused.peer) == (peers[0].me, peers[0].me)
    assert "this peer's contribution to part 5 of round 1 cannot be encoded" in failed.reason
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "shoal.peer"]
    assert warning.endswith("cannot be encoded: int8: 1/1000 values non-finite; the round goes on without it")
    await peers[0].until(lambda: len(peers[0].results) == 6)  # all but the one that waits for its deadline
    assert peers[0].decided[PartKey(1, Section.PARAMETERS, 0)] == ((peers[1].me,), 3.0)


async def test_streams_for_rounds_that_never_come_leave_nothing_while_others_wait(swarm: Swarm) -> None:
    reducer, member = await swarm(2, limits=replace(QUICK, early_s=0.2, progress_s=30.0))
    channel, call = await raw_stream(member, reducer)
    await call.write(frame(7, 0, b"", 0))
    async with asyncio.timeout(5):
        while not reducer.plane._early:
            await asyncio.sleep(0)
    reducer.plane._early[8] = 1  # another that waits still
    assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
    async with asyncio.timeout(5):  # the status is here a moment before the call is over there
        while (list(reducer.plane._early), list(reducer.plane._begun)) != ([8], []):
            await asyncio.sleep(0.01)
    await channel.close()


async def test_a_peer_that_nobody_can_reach_is_reported(swarm: Swarm) -> None:
    (peer, gone) = await swarm(2, limits=QUICK)
    publish([peer, gone])
    plan = plan_for([peer, gone], 1, (1, 1))
    await gone.plane.close()
    peer.begin(plan)
    failed = await peer.wait_for(ev.StreamFailed)
    assert isinstance(failed, ev.StreamFailed)
    assert failed.peer == gone.me
    assert "unavailable" in failed.reason


async def test_a_reducer_that_only_talks_nonsense_is_reported_like_one_that_is_silent(
    swarm: Swarm, tmp_path: Path, authority: Authority
) -> None:
    (peer,) = await swarm(1, limits=QUICK)
    mad = ScriptedPeer(tmp_path / "mad", credential(authority), (INT8, INT8))

    async def nonsense(_: Any, context: Any) -> None:
        await context.read()
        await context.write(frame(1, 0, b"of another size", 0))
        await context.write(b"junk")
        await asyncio.Event().wait()

    mad.plane._serve_reduce = nonsense  # type: ignore[method-assign]
    await mad.start(PARTS, theta0())
    publish([peer])
    peer.begin(plan_for([peer, mad], 1, (1, 1)))
    failed = await peer.wait_for(ev.StreamFailed, limit_s=5)
    assert isinstance(failed, ev.StreamFailed)
    assert failed.peer == mad.me
    await mad.stop()


async def test_a_donor_that_sends_nothing_for_ever_is_left() -> None:
    class Call:
        cancelled = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"some"
            while True:
                yield b""

        def cancel(self) -> None:
            self.cancelled = True

    call = Call()
    messages = bulk._steadily(bulk._messages_of(call), 5.0)
    assert await anext(messages) == b"some"
    with pytest.raises(RemoteProtocolError, match="no progress"):
        await anext(messages)
    assert call.cancelled


class Dripping:
    """A download of `count` messages of `size` bytes, one every `pause_s`."""

    def __init__(self, count: int, size: int, pause_s: float) -> None:
        self.count, self.size, self.pause_s, self.cancelled = count, size, pause_s, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.count):
            await asyncio.sleep(self.pause_s)
            yield bytes(self.size)

    def cancel(self) -> None:
        self.cancelled = True


async def test_a_donor_that_lets_bytes_drip_is_left() -> None:
    call, taken = Dripping(1000, 100, 0.02), 0
    with pytest.raises(TimeoutError, match=r"^\d+ bytes came within 0.3 s, after 100$"):  # noqa: PT012
        async for message in bulk._steadily(bulk._messages_of(call), 0.3):
            taken += len(message)
    assert 100 < taken <= 16 * 100
    assert call.cancelled


async def test_a_slow_donor_is_kept_and_a_busy_reader_is_not_the_donors_fault() -> None:
    taken = 0
    async for message in bulk._steadily(bulk._messages_of(Dripping(5, bulk._LEAST_BYTES // 2, 0.1)), 0.35):
        taken += len(message)
        await asyncio.sleep(0.2)
    assert taken == 5 * bulk._LEAST_BYTES // 2


@pytest.mark.parametrize("address", ["", "unix:/tmp/socket", "nowhere"])
async def test_a_reducer_with_an_address_that_is_none_is_reported(swarm: Swarm, address: str) -> None:
    (peer, other) = await swarm(2, limits=QUICK)
    other.address = address
    publish([peer, other])
    peer.begin(plan_for([peer, other], 1, (1, 1)))
    failed = await peer.wait_for(ev.StreamFailed)
    assert isinstance(failed, ev.StreamFailed)
    assert "address" in failed.reason


async def test_a_broken_stream_is_opened_again_and_the_round_ends_as_if_nothing_had_been(swarm: Swarm) -> None:
    peers = await swarm(3)
    publish(peers)
    plan = plan_for(peers, 1, (1, 2, 3))
    for peer in peers[:2]:
        peer.begin(plan)
    await peers[0].until(lambda: peers[1].me in peers[0].plane._rounds[1].inbound)
    await peers[1].plane._channels.pop(peers[0].me)[2].close()
    peers[2].begin(plan)
    await asyncio.gather(*(peer.collected() for peer in peers))
    commit = commit_of(peers, plan, 1)
    await asyncio.gather(*(apply(peer, commit) for peer in peers))
    assert torch.equal(peers[1].vault.theta, after([mean({0: 1, 1: 2, 2: 3})]))
    assert not [event for peer in peers for event in peer.events if isinstance(event, ev.StreamFailed)]


async def test_lost_parts_are_reduced_again_elsewhere_as_the_next_attempt(swarm: Swarm) -> None:
    peers = await swarm(3)
    publish(peers)
    plan = plan_for(peers, 1, (1, 2, 3))
    for peer in peers[:2]:
        peer.begin(plan)
    survivors = peers[:2]
    lost = next(share for share in plan.shares if share.reducer.peer == peers[2].me)
    own = [share for share in plan.shares if share is not lost]
    for peer in survivors:  # the third never contributes: its parts close without it
        await peer.until(functools.partial(arrived, peer, 2))
        for key in peer.closing:
            peer.decided[key] = ((peers[0].me, peers[1].me), 3.0)
            peer.plane.perform(ev.ClosePart(key, 3.0))
    again = [
        Share(peers[0].contact, lost.section, lost.start, lost.start + 1, 1),
        Share(peers[1].contact, lost.section, lost.start + 1, lost.stop, 1),
    ]
    for peer in survivors:
        peer.plan = replace(plan, contributions=plan.contributions[:2], members=tuple(p.me for p in survivors))
        for share in again:
            for part in range(share.start, share.stop):
                peer.plane.perform(ev.SendPart(PartKey(1, share.section, part, 1), share.reducer.peer))
    for peer in survivors:
        peer.plane.perform(ev.BeginReduce(replace(plan, shares=tuple(again))))
    await asyncio.gather(*(peer.collected() for peer in survivors))
    commit = commit_of(survivors, plan, 1)
    assert {decision.attempt for decision in commit.parts} == {0, 1}
    assert len(own) == 2
    await asyncio.gather(*(apply(peer, commit) for peer in survivors))
    assert torch.equal(peers[0].vault.theta, after([mean({0: 1, 1: 2})]))
    assert peers[0].vault.root() == peers[1].vault.root()


async def test_a_part_that_goes_to_another_reducer_leaves_nothing_at_the_first(swarm: Swarm) -> None:
    peers = await swarm(3)
    publish(peers)
    plan = plan_for(peers, 1, (1, 2, 3))
    for peer in peers[:2]:  # the third contributes to nothing: all parts wait for it
        peer.begin(plan)
    given, taking = peers[0], peers[1]
    share = next(share for share in plan.shares if share.reducer.peer == given.me)
    keys = [PartKey(1, share.section, part, 0) for part in range(share.start, share.stop)]
    await given.until(functools.partial(arrived, given, 2))
    exchange = given.plane._rounds[1]
    again = replace(plan, shares=(replace(share, reducer=taking.contact, attempt=1),))
    for key in keys:
        given.plane.perform(ev.DropPart(key))
    for peer in peers[:2]:
        peer.plane.perform(ev.BeginReduce(again))
    async with asyncio.timeout(10):
        while given.plane._reducer.open_sums:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    assert not [held for held in exchange._held if held[0] in keys]
    assert exchange.in_memory == 0
    assert not exchange.owes(given.me)
    for peer in peers[:2]:
        for key in keys:
            peer.plane.perform(ev.SendPart(replace(key, attempt=1), taking.me))

    def again_here() -> int:
        return sum(isinstance(event, ev.ContributionArrived) and event.key.attempt == 1 for event in taking.events)

    await taking.until(lambda: again_here() == 2 * len(keys))


@pytest.mark.parametrize("rightly", [True, False], ids=["by its reducer", "by another"])
async def test_a_result_that_comes_before_word_of_its_attempt_counts_if_its_sender_is_then_the_reducer(
    swarm: Swarm, rightly: bool
) -> None:
    me, hasty, good = await swarm(3)
    publish([me])
    plan = plan_for([me, hasty, good], 1, (1, 2, 3))
    me.begin(plan)
    exchange = me.plane._rounds[1]
    part = next(share.start for share in plan.shares if share.reducer.peer == good.me)
    key = PartKey(1, Section.PARAMETERS, part, 1)
    header, early, late = exchange.header(key), memoryview(contribution(0, part)), memoryview(contribution(1, part))
    assert exchange.expects(header, early, hasty.me)
    await exchange.collect(key, early, hasty.me)
    said = ev.ResultArrived(key, hashlib.sha256(early).digest())
    assert said not in me.events
    owner = hasty if rightly else good
    me.plane.perform(ev.BeginReduce(replace(plan, shares=(Share(owner.contact, Section.PARAMETERS, part, part + 1, 1),))))
    assert (said in me.events) is rightly
    assert exchange.expects(header, late, good.me) is not rightly
    if not rightly:
        await exchange.collect(key, late, good.me)
        assert ev.ResultArrived(key, hashlib.sha256(late).digest()) in me.events


async def test_a_dropped_round_leaves_nothing_behind(swarm: Swarm) -> None:
    peers = await swarm(3)
    for round_id in range(1, 6):
        publish(peers, round_id)
        plan = plan_for(peers, round_id, (1, 1, 1))
        for peer in peers[:2]:
            peer.begin(plan)
        await peers[0].until(lambda: len(peers[0].closing) == 2)
        for peer in peers[:2]:
            peer.plane.perform(ev.DropRound(round_id))
        peers[0].closing.clear()
        await peers[2].plane.settled()
    for peer in peers[:2]:
        await peer.plane.settled()
        async with asyncio.timeout(10):
            while peer.plane._tasks or peer.plane._reducer.open_sums:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        assert not peer.plane._rounds
        assert not peer.vault.store.rounds()
        assert torch.equal(peer.vault.theta, theta0())
        peer.plane.perform(ev.DropRound(3))
        peer.plane.perform(ev.Discard(PartKey(3, Section.PARAMETERS, 0), peer.me))


async def test_an_effect_for_a_round_that_never_began_is_our_bug(swarm: Swarm) -> None:
    (peer,) = await swarm(1)
    with pytest.raises(LocalProtocolError, match="round 9 has not begun"):
        peer.plane.perform(ev.ClosePart(PartKey(9, Section.PARAMETERS, 0), 1.0))


# --- parts and states by request --------------------------------------------------------------------------------------------------


def put(peer: ScriptedPeer, key: PartKey, payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).digest()
    peer.vault.store.put(key, digest, payload)
    return digest


async def test_a_part_is_fetched_from_the_first_contact_that_really_has_it(swarm: Swarm) -> None:
    wanting, without, lying, holder = await swarm(4)
    key, payload = PartKey(5, Section.PARAMETERS, 4), contribution(0, 4)
    digest = put(holder, key, payload)
    lying.vault.store.put(key, digest, payload[:-1] + b"?")
    contacts = (without.contact, lying.contact, holder.contact, Contact("f" * 32, "127.0.0.1:1"))
    wanting.plane.perform(ev.FetchPart(key, digest, contacts))
    assert await wanting.wait_for(ev.ResultArrived) == ev.ResultArrived(key, digest)
    stored = wanting.vault.store.find(digest, 5)
    assert stored is not None
    assert wanting.vault.store.read(stored) == payload


async def test_entries_fetched_ahead_stay_until_they_are_applied(swarm: Swarm) -> None:
    holder, behind = await swarm(2)
    commits = []
    for version in (1, 2, 3):
        keys = [PartKey(10 - version, Section.PARAMETERS, part) for part in range(len(PARTS))]
        decisions = [
            Decision(key.section, key.part, 0, put(holder, key, contribution(version, key.part)), (holder.me,), 1.0) for key in keys
        ]
        commits.append(Commit(version, 10 - version, 0, 0, version - 1, tuple(decisions), 0, 0.7, 0.9))
        for key, decision in zip(keys, decisions, strict=True):
            behind.plane.perform(ev.FetchPart(key, decision.digest, (holder.contact,)))
    await behind.until(lambda: sum(isinstance(event, ev.ResultArrived) for event in behind.events) == 21)
    for commit in commits[:2]:
        behind.plane.perform(ev.Apply(commit, (False,) * len(PARTS), 0))
    behind.plane.perform(ev.DropRound(commits[2].round))
    brought = sum(len(contribution(2, part)) for part in range(len(PARTS)))
    await behind.until(lambda: ev.EntryApplied(2, 0, brought) in behind.events)
    await behind.plane.settled()
    assert behind.vault.store.rounds() == {8, 9}
    deltas = [INT8.decode(contribution(version, 0), PARTS[0].spans) for version in (1, 2)]
    theta, momentum = theta0()[:1000], torch.zeros(1000)
    for delta in deltas:
        nesterov_step(theta, momentum, delta, 0.7, 0.9)
    assert torch.equal(behind.vault.theta[:1000], theta)


async def test_what_is_fetched_counts_as_traffic_of_its_round_and_tells_both_ends_of_their_links(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "RUN_BYTES", 64)
    monkeypatch.setattr(lanes, "RUN_S", 0.0)
    monkeypatch.setattr(lanes, "SWALLOWED_BYTES_S", float("inf"))
    holder, behind = await swarm(2)
    keys = [PartKey(9, Section.PARAMETERS, part) for part in range(len(PARTS))]
    payloads = [contribution(1, key.part) for key in keys]
    decisions = [
        Decision(key.section, key.part, 0, put(holder, key, payload), (holder.me,), 1.0)
        for key, payload in zip(keys, payloads, strict=True)
    ]
    for key, decision in zip(keys, decisions, strict=True):
        behind.plane.perform(ev.FetchPart(key, decision.digest, (holder.contact,)))
    await behind.until(lambda: sum(isinstance(event, ev.ResultArrived) for event in behind.events) == len(PARTS))
    entry = Commit(1, 9, 0, 0, 0, tuple(decisions), 0, 0.7, 0.9)
    behind.plane.perform(ev.Apply(entry, (False,) * len(PARTS), 0))
    applied = await behind.wait_for(ev.EntryApplied)
    assert applied == ev.EntryApplied(1, 0, sum(map(len, payloads)))
    for peer in (holder, behind):
        peer.plane.perform(ev.DropRound(9))
    measured = [await peer.wait_for(ev.LinkMeasured) for peer in (holder, behind)]
    assert [(m.up_bytes_s > 0, m.down_bytes_s > 0) for m in measured if isinstance(m, ev.LinkMeasured)] == [
        (True, False),
        (False, True),
    ]


async def test_a_part_that_nobody_has_is_reported_with_the_reasons(swarm: Swarm) -> None:
    wanting, without, lying = await swarm(3)
    key, digest = PartKey(5, Section.PARAMETERS, 0), b"d" * 32
    lying.vault.store.put(key, digest, b"something else")
    wanting.plane.perform(ev.FetchPart(key, digest, (without.contact, lying.contact)))
    failed = await wanting.wait_for(ev.PartFetchFailed)
    assert isinstance(failed, ev.PartFetchFailed)
    assert "not_found" in failed.reason
    assert "another digest" in failed.reason
    wanting.plane.perform(ev.FetchPart(key, digest, ()))
    await wanting.until(lambda: ev.PartFetchFailed(key, "there is nobody to ask") in wanting.events)


async def test_a_joiner_fetches_the_whole_state_and_checks_it(swarm: Swarm, tmp_path: Path, authority: Authority) -> None:
    (donor,) = await swarm(1)
    joiner = ScriptedPeer(tmp_path / "joiner", credential(authority), (INT8, INT8))
    await joiner.start(PARTS, None)
    joiner.plane.perform(ev.FetchState(0, (Contact("f" * 32, "127.0.0.1:1"), donor.contact)))
    fetched = await joiner.wait_for(ev.StateFetched)
    assert fetched == ev.StateFetched(0, donor.vault.root(), donor.me)
    assert torch.equal(joiner.vault.theta, theta0())
    joiner.plane.perform(ev.HashState(0))
    assert await joiner.wait_for(ev.Hashed) == ev.Hashed(0, donor.vault.root())
    await donor.plane.settled()
    assert donor.plane._frozen is not None
    async with asyncio.timeout(5):
        while donor.plane._frozen.copies:
            await asyncio.sleep(0)
    donor.plane.perform(ev.Serve(False))
    joiner.events.clear()
    joiner.plane.perform(ev.FetchState(0, (donor.contact,)))
    failed = await joiner.wait_for(ev.StateFetchFailed)
    assert isinstance(failed, ev.StateFetchFailed)
    assert failed.failed == (donor.me,)
    assert "serves no state" in failed.reason
    joiner.events.clear()
    joiner.plane.perform(ev.FetchState(1, (donor.contact,)))
    await joiner.wait_for(ev.StateFetchFailed)
    await joiner.stop()


async def test_a_fetch_goes_on_where_another_donor_ended(swarm: Swarm) -> None:
    donor, joiner = await swarm(2)
    content = donor.vault.theta.numpy().tobytes() + donor.vault.momentum.numpy().tobytes()
    donor.vault.theta.add_(1)
    content = donor.vault.theta.numpy().tobytes() + donor.vault.momentum.numpy().tobytes()
    begun = joiner.vault.incoming(0, donor.vault.root())
    begun.write(content[:20_000])
    before = joiner.plane.dropped.copy()
    joiner.plane.perform(ev.FetchState(0, (donor.contact,)))
    await joiner.wait_for(ev.StateFetched)
    assert begun.received == len(content), "the bytes that were here are not fetched again"
    assert joiner.vault.root() == donor.vault.root()
    assert joiner.plane.dropped == before


async def test_a_begun_fetch_of_a_state_that_is_gone_starts_anew(swarm: Swarm) -> None:
    donor, joiner = await swarm(2)
    donor.vault.theta.add_(1)
    joiner.vault.incoming(0, b"g" * 32).write(b"0" * 999)
    joiner.plane.perform(ev.FetchState(0, (donor.contact,)))
    fetched = await joiner.wait_for(ev.StateFetched)
    assert fetched == ev.StateFetched(0, donor.vault.root(), donor.me)
    assert torch.equal(joiner.vault.theta, donor.vault.theta)


async def test_joiners_share_one_frozen_copy_that_entries_do_not_touch(swarm: Swarm) -> None:
    (donor,) = await swarm(1)
    frozen = donor.plane._frozen
    assert frozen is not None
    async with frozen.hold(0, b"") as first, frozen.hold(0, b"") as second:
        assert first is second
        assert frozen.copies == 1
        donor.vault.theta.zero_()
        assert first.chunk(0, 4 * VALUES) == theta0().numpy().tobytes()
    assert frozen.copies == 0


async def test_malformed_requests_are_refused(swarm: Swarm) -> None:
    peer, other = await swarm(2)
    channel, call = await raw_stream(other, peer)
    await call.write(b"junk")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    for refused in (
        services.FETCH_PART.open(channel, PartRequest("other", b"d" * 32)),
        services.FETCH_STATE.open(channel, StateRequest("other", 0)),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="that run"):
            async for _ in refused:
                pass
    await channel.close()
    assert peer.plane.broken.done() is False
