"""Clocks that are wrong, and processes that are deaf for a while: neither makes a member less of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.coordinator.records import SessionEnded
from tests.swarm.toyswarm import Swarms, finish, journal_of, same_models, status, toy_spec, working

pytestmark = pytest.mark.slow

LIBFAKETIME = next((str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), "")
"""Gives a process, TLS included, another wall clock. With it `time.sleep` fails (0.9.10), which the peers here do without."""


@pytest.mark.skipif(not LIBFAKETIME, reason="libfaketime is not installed (Debian: faketime)")
def test_clocks_ten_minutes_ahead_and_behind_change_nothing(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(6, peers=3))
    swarm.start_coordinator()
    wrong = {"LD_PRELOAD": LIBFAKETIME, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "SHOAL_TOY_STEP_S": "0"}
    for name, clock in (("ahead", wrong | {"FAKETIME": "+600"}), ("behind", wrong | {"FAKETIME": "-600"}), ("right", {})):
        swarm.add_peer(name, environment=clock)
    models = finish(swarm)
    assert same_models(models)
    assert {record.reason for record in journal_of(swarm) if isinstance(record, SessionEnded)} == {"left: the run is over"}
    for name in ("ahead", "behind"):
        assert re.search(rf"\b(59[89]|60[0-2]) s {name}", swarm.peers[name].log.read_text()), "and its volunteer is told"


def test_a_step_that_never_lets_go_of_the_interpreter_is_no_silence(swarms: Swarms) -> None:
    """The heartbeats come from the daemon, whatever the trainer does."""
    timing = {"heartbeat_s": 0.5, "lost_after_s": 4.0}
    swarm = swarms(toy_spec(100_000, peers=1, timing=timing), SHOAL_TOY_STEP_S="0", SHOAL_TOY_DEAF_S="0,9,0")
    swarm.start_coordinator()
    swarm.add_peer("anna")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "the round before")
    swarm.wait_for(lambda: status(swarm).version >= 3, 60, "the rounds after")
    assert not [record for record in journal_of(swarm) if isinstance(record, SessionEnded)]
