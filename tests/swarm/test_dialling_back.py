"""Peers that say a wrong address of themselves, with real processes on loopback."""

from __future__ import annotations

import pytest

from tests.swarm.toyswarm import Swarms, members, status, toy_spec, working

pytestmark = pytest.mark.slow


def test_a_wrong_address_is_corrected_where_it_can_be_and_said_with_the_fix_where_not(swarms: Swarms) -> None:
    """Ben listens at one loopback address and advertises another; nobody at all listens where cleo says."""
    swarm = swarms(toy_spec(100_000, peers=3))
    swarm.start_coordinator()
    swarm.add_peer("anna", "--listen", "127.0.0.1:0")
    ben = swarm.add_peer("ben", "--listen", "127.0.0.1:0", "--advertise", "127.0.0.2")
    cleo = swarm.add_peer("cleo", "--listen", "127.0.0.1:0", "--advertise", "127.0.0.2:1")

    def known() -> dict[str, tuple[str, str]]:
        return {peer.name: (peer.reach, peer.address.partition(":")[0]) for peer in members(swarm)}

    expected = {"anna": ("yes", "127.0.0.1"), "ben": ("yes", "127.0.0.1"), "cleo": ("no", "127.0.0.2")}
    swarm.wait_for(lambda: known() == expected, 90, "the coordinator to have dialled all three back")
    begun = status(swarm).version
    swarm.wait_for(lambda: status(swarm).version >= begun + 3, 90, "three more versions")
    assert working(swarm) == {"anna", "ben", "cleo"}
    assert "others are told to dial this peer at 127.0.0.1:" in ben.last_words(200)
    assert "map port 1 to this machine" in cleo.last_words(200)
