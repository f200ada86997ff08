"""Addresses of peers at home: shared by several behind a router, and changed while a machine slept."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.processes import Child
from tests.swarm.toyswarm import members, status, toy_spec, working
from tests.wan.conftest import WanSwarm
from tests.wan.internet import HUB, ROUTER, Internet

pytestmark = [pytest.mark.network, pytest.mark.slow]


def known(swarm: WanSwarm) -> dict[str, tuple[str, str]]:
    """Whether each member was reached, and where others are told to dial it."""
    return {peer.name: (peer.reach, peer.address) for peer in members(swarm)}


def test_of_several_peers_behind_one_address_the_one_with_a_mapped_port_reduces_for_all(
    internet: Internet, wan_directory: Path
) -> None:
    """All three are seen under the router's address. Ben's port is mapped to nobody, cleo's to anna: she must not pass for cleo."""
    with WanSwarm(wan_directory, toy_spec(100_000, peers=3), internet) as swarm:
        swarm.create()
        swarm.start_coordinator()
        inside = {}
        for name, port in (("anna", 7001), ("ben", 7002), ("cleo", 7001)):
            inside[name] = f"{internet.home(name, masquerade=True)}:{port}"
            if name == "anna":
                internet.forward(name, port)
            swarm.add_from(name, name, "--listen", f"0.0.0.0:{port}")
        expected = {"anna": ("yes", f"{ROUTER}:7001"), "ben": ("no", inside["ben"]), "cleo": ("no", inside["cleo"])}
        swarm.wait_for(lambda: known(swarm) == expected, 90, "all to be dialled back")
        assert {peer.seen_from for peer in members(swarm)} == {ROUTER}
        begun = status(swarm).version
        swarm.wait_for(lambda: status(swarm).version >= begun + 3, 90, "three more versions")
        assert working(swarm) == {"anna", "ben", "cleo"}


@contextlib.contextmanager
def asleep(child: Child) -> Iterator[None]:
    """The machine sleeps: nothing of the peer runs meanwhile."""
    process = psutil.Process(child.pid)
    pids = [process.pid, *(each.pid for each in process.children(recursive=True))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_laptop_that_slept_and_woke_up_in_another_network_goes_on_by_itself(internet: Internet, wan_directory: Path) -> None:
    timing = {"heartbeat_s": 1.0, "lost_after_s": 4.0}
    with WanSwarm(wan_directory, toy_spec(100_000, peers=2, timing=timing), internet) as swarm:
        swarm.create()
        swarm.start_coordinator()
        swarm.add_peer("hub", "--listen", f"{HUB}:0")
        before = internet.home("laptop")
        laptop = swarm.add_from("laptop", "anna", "--listen", "0.0.0.0:0")

        def is_at(address: str) -> bool:
            reach, told = known(swarm).get("anna", ("", ""))
            return (reach, told.partition(":")[0]) == ("yes", address)

        swarm.wait_for(lambda: is_at(before) and status(swarm).version >= 1, 90, "version 1")
        with asleep(laptop):
            after = internet.move("laptop")
            swarm.wait_for(lambda: "anna" not in known(swarm), 60, "the sleeper to be lost")
            stopped_at = status(swarm).version
        swarm.wait_for(lambda: is_at(after), 90, f"it to come back at {after}")
        swarm.wait_for(lambda: status(swarm).version >= stopped_at + 3, 90, "the run to go on")
        swarm.wait_for(lambda: working(swarm) == {"hub", "anna"}, 90, "work of both")
