"""Peers that accept no connections, and the helper that makes a swarm of them: real processes on loopback."""

from __future__ import annotations

import pytest

from shoal.protocol.admin import GetPeers, Peers
from tests.swarm.toyswarm import Swarms, same_models, status, toy_spec, working

pytestmark = pytest.mark.slow

HIDDEN = ("--listen", "")


def test_two_outbound_only_peers_wait_for_a_helper_and_train_with_it(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(6, peers=2))
    swarm.start_coordinator()
    anna, ben = swarm.add_peer("anna", *HIDDEN), swarm.add_peer("ben", *HIDDEN)
    swarm.wait_for(lambda: "--helper" in status(swarm).waiting_for, 60, "the run to name the fix")
    assert status(swarm).version <= 0
    hal = swarm.add_peer("hal", "--helper")
    swarm.wait_for(lambda: status(swarm).version >= 2, 60, "version 2")
    peers = swarm.ask(GetPeers())
    assert isinstance(peers, Peers)
    assert working(swarm) == {"anna", "ben"}
    swarm.wait_for(lambda: all(child.exit_code == 0 for child in (anna, ben, hal)), 90, "the run to end")
    assert not list(swarm.state_of("hal").rglob("model.safetensors"))
    hidden = {name: next(swarm.state_of(name).rglob("model.safetensors")) for name in ("anna", "ben")}
    assert same_models(hidden)


def test_a_helper_that_comes_back_without_its_copy_is_given_it_by_peers_that_it_cannot_dial(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(100_000, peers=2))
    swarm.start_coordinator()
    for name in ("anna", "ben"):
        swarm.add_peer(name, *HIDDEN)
    hal = swarm.add_peer("hal", "--helper")
    swarm.wait_for(lambda: status(swarm).version >= 2, 60, "version 2")
    hal.kill()
    swarm.wait_for(lambda: "--helper" in status(swarm).waiting_for, 60, "the run to wait for a helper")
    stopped_at = status(swarm).version
    swarm.add_peer("ida", "--helper")
    swarm.wait_for(lambda: status(swarm).version >= stopped_at + 2, 60, "the run to go on")
