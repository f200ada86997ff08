"""What operators see: answers that one message holds, however many members there are."""

from __future__ import annotations

import pytest

from shoal.coordinator import views
from shoal.coordinator.claims import ADDRESS_LIMIT
from shoal.protocol import wire
from shoal.protocol.admin import GetPeers, Peers
from shoal.protocol.messages import Heartbeat
from tests.coordinator.test_core import Stage

LONGEST = "\N{GRINNING FACE}" * 4000
"""Four bytes each, as many as a message may bring."""


def listed(stage: Stage, after: int) -> tuple[list[str], bool]:
    reply = stage.ask(GetPeers(after))
    assert isinstance(reply, Peers)
    return [peer.name for peer in reply.peers], reply.more


def test_members_are_listed_in_pieces_by_session_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PEERS_AT_ONCE", 2)
    stage = Stage()
    peers = stage.members("ada", "bob", "cyd", "dan", "eve")
    assert listed(stage, 0) == (["ada", "bob"], True)
    assert listed(stage, peers[1].session) == (["cyd", "dan"], True)
    peers[3].breaks()
    stage.wait(10)  # dan is lost; whoever had its session as the last one goes on behind it
    assert listed(stage, peers[3].session) == (["eve"], False)
    assert listed(stage, peers[2].session) == (["eve"], False)
    assert listed(stage, peers[4].session) == ([], False)


def test_a_piece_is_one_message_whatever_members_say_of_themselves() -> None:
    stage = Stage()
    ada = stage.peer("a" * 64, "x" * ADDRESS_LIMIT)
    ada.dial(name=LONGEST, device=LONGEST, software=LONGEST)
    ada.says(Heartbeat(LONGEST, 1 << 50, 1e300, 1e11, 1e11, 1e11))
    one = len(wire.pack_reply(stage.ask(GetPeers())))
    assert one * views.PEERS_AT_ONCE < wire.MESSAGE_LIMIT_BYTES / 2, "the shell adds warnings"
