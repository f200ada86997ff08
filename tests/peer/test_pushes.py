"""Holders that cannot be dialled bring what they hold: over real mutual TLS, with the peers of the data plane's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.compression.codec import codec
from shoal.optim.layout import Part
from shoal.peer import events as ev
from shoal.peer.exchange import Limits
from shoal.protocol import channels, services, tls, wire
from shoal.protocol.authority import Authority
from shoal.protocol.messages import Contact
from shoal.protocol.transfers import PushOpening
from tests.peer.scripted import RUN, ScriptedPeer, apply, commit_of, credential, plan_for

INT8 = codec("int8", 64)
PARTS = [Part(0, 3000, (1000, 2000)), Part(3000, 5000, (2000,)), Part(5000, 5500, (500,))]
VALUES = 5500
QUICK = Limits(push_s=0.5, push_idle_s=0.4)


def theta0() -> torch.Tensor:
    return torch.sin(torch.arange(VALUES, dtype=torch.float32))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", RUN)


@pytest.fixture
async def pair(tmp_path: Path, authority: Authority) -> AsyncIterator[tuple[ScriptedPeer, ScriptedPeer]]:
    """A holder of version 0, which nobody is told an address of, and a peer that holds nothing."""
    holder = ScriptedPeer(tmp_path / "holder", credential(authority), (INT8, INT8), QUICK)
    seeker = ScriptedPeer(tmp_path / "seeker", credential(authority), (INT8, INT8), QUICK)
    await holder.start(PARTS, theta0())
    await seeker.start(PARTS, None)
    yield holder, seeker
    await holder.stop()
    await seeker.stop()


def hidden(peer: ScriptedPeer) -> Contact:
    return Contact(peer.me, "")


async def test_a_state_is_pushed_by_a_holder_that_dials_before_or_after_it_is_expected(
    pair: tuple[ScriptedPeer, ScriptedPeer],
) -> None:
    holder, seeker = pair
    for early in (True, False):
        seeker.events.clear()
        if early:
            holder.plane.perform(ev.PushTo(seeker.contact))
        seeker.plane.perform(ev.FetchState(0, (hidden(holder),)))
        if not early:
            holder.plane.perform(ev.PushTo(seeker.contact))
        assert await seeker.wait_for(ev.StateFetched) == ev.StateFetched(0, holder.vault.root(), holder.me)
        assert torch.equal(seeker.vault.theta, theta0())
        await holder.until(lambda: not holder.plane._pushing_to, 5)  # an idle stream is closed


async def test_a_pushed_state_goes_on_where_another_donor_ended(pair: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    holder, seeker = pair
    content = holder.vault.theta.numpy().tobytes() + holder.vault.momentum.numpy().tobytes()
    begun = seeker.vault.incoming(0, holder.vault.root())
    begun.write(content[:20_000])
    seeker.plane.perform(ev.FetchState(0, (hidden(holder),)))
    holder.plane.perform(ev.PushTo(seeker.contact))
    await seeker.wait_for(ev.StateFetched)
    assert begun.received == len(content)
    assert seeker.vault.root() == holder.vault.root()


async def test_a_begun_fetch_of_a_state_that_the_holder_does_not_have_starts_anew(pair: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    holder, seeker = pair
    seeker.vault.incoming(0, b"g" * 32).write(b"0" * 999)
    seeker.plane.perform(ev.FetchState(0, (hidden(holder),)))
    holder.plane.perform(ev.PushTo(seeker.contact))
    assert await seeker.wait_for(ev.StateFetched) == ev.StateFetched(0, holder.vault.root(), holder.me)


async def test_the_parts_of_an_entry_are_pushed_and_checked(pair: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    holder, seeker = pair
    seeker.plane.perform(ev.FetchState(0, (holder.contact,)))
    await seeker.wait_for(ev.StateFetched)
    holder.publish(theta0() / 7, 1)
    plan = plan_for([holder], 1, (3,))
    holder.begin(plan)
    await holder.collected()
    commit = commit_of([holder], plan, 1)
    await apply(holder, commit)
    holder.plane.perform(ev.PushTo(seeker.contact))
    for decision, key in zip(commit.parts, sorted(holder.decided, key=lambda key: key.part), strict=True):
        seeker.plane.perform(ev.FetchPart(key, decision.digest, (hidden(holder),)))
    await seeker.collected()
    assert seeker.results == holder.results
    seeker.plane.perform(ev.FetchPart(key, b"?" * 32, (hidden(holder),)))
    failed = await seeker.wait_for(ev.PartFetchFailed)
    assert isinstance(failed, ev.PartFetchFailed)
    assert "does not have it" in failed.reason


async def test_a_question_that_waits_for_its_turn_is_not_the_holders_silence(
    tmp_path: Path, pair: tuple[ScriptedPeer, ScriptedPeer], authority: Authority
) -> None:
    """One stream, several questions, and a holder that needs most of the deadline for each answer."""
    holder, _ = pair
    slow = Limits(progress_s=0.6, push_s=5.0, push_idle_s=5.0)
    seeker = ScriptedPeer(tmp_path / "patient", credential(authority), (INT8, INT8), slow)
    await seeker.start(PARTS, theta0())
    answer = holder.plane._part

    async def slowly(tools: Any, digest: bytes) -> bytes:
        await asyncio.sleep(0.35)
        return await answer(tools, digest)

    holder.plane._part = slowly  # type: ignore[method-assign]
    holder.publish(theta0() / 7, 1)
    plan = plan_for([holder], 1, (3,))
    holder.begin(plan)
    await holder.collected()
    holder.plane.perform(ev.PushTo(seeker.contact))
    for key, digest in holder.results.items():
        seeker.plane.perform(ev.FetchPart(key, digest, (hidden(holder),)))
    await seeker.collected()
    assert not any(isinstance(event, ev.PartFetchFailed) for event in seeker.events)
    await seeker.stop()


async def test_a_new_push_takes_the_place_of_one_that_hangs(pair: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    holder, seeker = pair
    hanging = asyncio.Event()

    async def deaf(_: Any, context: Any) -> None:
        hanging.set()
        await asyncio.Event().wait()

    serve = seeker.plane._pushes.serve
    seeker.plane._pushes.serve = deaf  # type: ignore[method-assign, assignment]
    holder.plane.perform(ev.PushTo(seeker.contact))
    await asyncio.wait_for(hanging.wait(), 5)
    seeker.plane._pushes.serve = serve  # type: ignore[method-assign]
    seeker.plane.perform(ev.FetchState(0, (hidden(holder),)))
    holder.plane.perform(ev.PushTo(seeker.contact))
    assert await seeker.wait_for(ev.StateFetched) == ev.StateFetched(0, holder.vault.root(), holder.me)


async def test_a_holder_that_does_not_come_is_named_and_the_next_one_is_asked(pair: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    holder, seeker = pair
    seeker.plane.perform(ev.FetchState(0, (Contact("f" * 32, ""), holder.contact)))
    await seeker.wait_for(ev.StateFetched)
    seeker.events.clear()
    seeker.plane.perform(ev.FetchState(1, (Contact("f" * 32, ""),)))
    failed = await seeker.wait_for(ev.StateFetchFailed)
    assert failed == ev.StateFetchFailed(f"{'f' * 32}: it did not dial this peer within 0.5 s", ("f" * 32,))


async def test_a_holder_whose_copy_is_in_doubt_pushes_nothing(pair: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    holder, seeker = pair
    holder.plane.perform(ev.Serve(False))
    seeker.plane.perform(ev.FetchState(0, (hidden(holder),)))
    holder.plane.perform(ev.PushTo(seeker.contact))
    failed = await seeker.wait_for(ev.StateFetchFailed)
    assert isinstance(failed, ev.StateFetchFailed)
    assert failed.failed == (holder.me,)


async def test_a_peer_of_another_run_cannot_push(pair: tuple[ScriptedPeer, ScriptedPeer], authority: Authority) -> None:
    _, seeker = pair
    channel = channels.open_channel(channels.Kind.BULK, seeker.address, tls.client_credentials(credential(authority)), seeker.me)
    call = services.PUSH.stub(channel)()
    await call.write(wire.pack_message(PushOpening("another")))
    assert (await call.code()).name == "FAILED_PRECONDITION"
    await channel.close(None)


async def test_nobody_at_the_address_is_a_warning_and_not_the_end(
    pair: tuple[ScriptedPeer, ScriptedPeer], caplog: pytest.LogCaptureFixture
) -> None:
    holder, _ = pair
    holder.plane.perform(ev.PushTo(Contact("f" * 32, "127.0.0.1:1")))
    await holder.until(lambda: "could not hand" in caplog.text, 20)
    assert not holder.plane.broken.done()
