"""A link that is cut without a word: nobody waits for who is behind it, who is behind it says so, and it heals by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.swarm.toyswarm import members, status, toy_spec, working
from tests.wan.conftest import WanSwarm
from tests.wan.internet import HUB, Internet

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_a_peer_behind_a_cut_link_is_given_up_says_so_and_comes_back(internet: Internet, wan_directory: Path) -> None:
    spec = toy_spec(100_000, peers=1, timing={"heartbeat_s": 0.5, "lost_after_s": 3.0})
    with WanSwarm(wan_directory, spec, internet) as swarm:
        swarm.create()
        swarm.start_coordinator()
        address = internet.home("home")
        swarm.add_peer("hub", "--listen", f"{HUB}:0")
        anna = swarm.add_from("home", "anna", "--listen", f"{address}:0")
        swarm.wait_for(lambda: working(swarm) == {"hub", "anna"}, 90, f"both to work\n{swarm.explain()}")
        internet.cut("home")
        swarm.wait_for(lambda: {peer.name for peer in members(swarm)} == {"hub"}, 30, "anna to be given up")
        before = status(swarm).version
        swarm.wait_for(lambda: status(swarm).version >= before + 2, 60, "the hub to go on alone")
        swarm.wait_for(lambda: "ping timeout" in anna.log.read_text(), 40, f"anna to notice\n{swarm.explain()}")
        late = swarm.add_from("home", "late", "--listen", f"{address}:0")
        swarm.wait_for(lambda: late.exit_code is not None, 40, "one that joins from there to be told")
        assert late.exit_code == 3
        assert "does not answer within 3 s" in late.last_words(3)
        assert "firewall" in late.last_words(3)
        internet.mend("home")
        swarm.wait_for(lambda: working(swarm) == {"hub", "anna"}, 60, f"anna's new work to be committed\n{swarm.explain()}")
        assert anna.exit_code is None, "all by itself"
