"""Peers at home, as they are: behind routers that nobody can dial through, and on links that bulk traffic fills."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.swarm.toyswarm import members, status, toy_spec, working
from tests.wan.conftest import WanSwarm
from tests.wan.internet import HUB, Internet

pytestmark = [pytest.mark.network, pytest.mark.slow]

FIX = "shoal peer join --helper"


def test_two_peers_behind_masquerading_routers_train_with_a_helper_and_wait_without_one(
    internet: Internet, wan_directory: Path
) -> None:
    with WanSwarm(wan_directory, toy_spec(100_000, peers=2), internet) as swarm:
        swarm.create()
        swarm.start_coordinator()
        for home, name in (("first", "anna"), ("second", "ben")):
            address = internet.home(home, masquerade=True)
            with pytest.raises(OSError, match="refused|unreachable|timed out"):
                socket.create_connection((address, 22), timeout=1)
            swarm.add_from(home, name, "--listen", "")
        swarm.wait_for(lambda: FIX in status(swarm).waiting_for, 90, "the run to name the fix")
        assert status(swarm).version <= 0
        hal = swarm.add_peer("hal", "--helper", "--listen", f"{HUB}:0")
        swarm.wait_for(lambda: status(swarm).version >= 3, 90, f"version 3\n{swarm.explain()}")
        assert working(swarm) == {"anna", "ben"}
        hal.kill()
        swarm.wait_for(lambda: FIX in status(swarm).waiting_for, 90, "the run to wait for a helper")
        stopped_at = status(swarm).version
        swarm.add_peer("ida", "--helper", "--listen", f"{HUB}:0")
        swarm.wait_for(lambda: status(swarm).version >= stopped_at + 3, 90, f"the run to go on\n{swarm.explain()}")


def test_heartbeats_pass_while_bulk_traffic_fills_a_link_of_10_mbit(internet: Internet, wan_directory: Path) -> None:
    """Entries of 4 MiB: each round fills the home's link for several seconds, both ways."""
    spec = toy_spec(100_000, peers=2, values=1 << 20, codec={"send": "raw", "return": "raw", "zstd": "off"})
    with WanSwarm(wan_directory, spec, internet) as swarm:
        swarm.create()
        swarm.start_coordinator()
        address = internet.home("home", mbit=10)
        swarm.add_peer("hub", "--listen", f"{HUB}:0")
        swarm.add_from("home", "anna", "--listen", f"{address}:0")
        swarm.wait_for(lambda: status(swarm).version >= 1, 200, f"version 1\n{swarm.explain()}")
        silent, versions, end = [], set(), time.monotonic() + 30
        while time.monotonic() < end:
            silent.append(max(peer.silent_s for peer in members(swarm)))
            versions.add(status(swarm).version)
            time.sleep(0.2)
        assert len(versions) > 1, "there was bulk traffic"
        assert max(silent) < 6.0, "a heartbeat every 2 s"
        assert working(swarm) == {"hub", "anna"}
