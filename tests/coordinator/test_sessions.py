"""What waits on a stream, and how it is encoded."""

from __future__ import annotations

import asyncio

import pytest

from shoal.coordinator import sessions
from shoal.coordinator.sessions import Outbox, Packer
from shoal.protocol.messages import Commit, Decision, Envelope, FromCoordinator, Notice, Section, Wrap
from shoal.protocol.wire import pack, unpack

COMMIT = Commit(3, 7, 0, 0, 2, (Decision(Section.BUFFERS, 1, 2, b"d" * 32, ("a", "b"), 3.5),), 99, 0.7, 0.9)


def test_a_packed_envelope_is_the_same_message_whoever_it_goes_to() -> None:
    packer = Packer(kept=2)
    bodies: list[FromCoordinator] = [COMMIT, Wrap(0), Notice(""), COMMIT, Wrap(5)]
    for session, term in ((0, 0), (1, 1), (300, 2**40)):
        for body in bodies:
            envelope = Envelope(session, term, body)
            assert unpack(packer.pack(envelope)) == envelope
            assert packer.pack(envelope) == pack(envelope)


def test_a_body_for_many_streams_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Envelope] = []

    def counting(envelope: Envelope) -> bytes:
        encoded.append(envelope)
        return pack(envelope)

    monkeypatch.setattr(sessions, "pack", counting)
    packer = Packer()
    for session in range(1, 65):
        packer.pack(Envelope(session, 1, COMMIT))
    assert len(encoded) == 1


async def drained(outbox: Outbox) -> list[Envelope]:
    return [envelope async for envelope in outbox.drain()]


async def test_what_was_sent_before_a_close_leaves_and_what_is_sent_after_it_does_not() -> None:
    outbox = Outbox()
    outbox.send(Envelope(1, 1, Wrap(1)))
    outbox.send(Envelope(1, 1, Wrap(2)))
    outbox.close("")
    outbox.send(Envelope(1, 1, Wrap(3)))
    assert await asyncio.wait_for(drained(outbox), 1) == [Envelope(1, 1, Wrap(1)), Envelope(1, 1, Wrap(2))]


async def test_a_full_outbox_breaks_its_stream_and_frees_what_waited() -> None:
    outbox = Outbox(limit=3)
    for number in range(5):
        outbox.send(Envelope(1, 1, Wrap(number)))
    assert outbox.broken.is_set()
    assert outbox.reason == "takes no messages: 3 wait"
    assert await asyncio.wait_for(drained(outbox), 1) == []
