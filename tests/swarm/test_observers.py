"""Whoever looks on at a real swarm: Prometheus scrapes it, a log collector reads it, and a service that hangs changes nothing."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest

from shoal.coordinator.records import RoundCommitted
from shoal.localswarm import LocalSwarm
from tests.swarm.conftest import PACKAGES
from tests.swarm.toyswarm import Swarms, finish, journal_of, status, toy_spec, working

pytestmark = pytest.mark.slow


def page(log: Path) -> dict[str, float]:
    """Scrape what a process's log says it shows; series without labels, by name."""
    (url,) = re.findall(r"metrics at (http://\S+?)\"?[,\s]", log.read_text() + "\n")[:1]
    with urllib.request.urlopen(url, timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if re.match(r"\w+ ", line))}


def test_a_coordinator_and_a_peer_are_scraped_and_say_json(swarms: Swarms) -> None:
    swarm: LocalSwarm = swarms(toy_spec(100_000, peers=1))
    swarm.coordinator_words = ("--metrics", "127.0.0.1:0", "--log-json")
    swarm.start_coordinator()
    anna = swarm.add_peer("anna", "--metrics", "127.0.0.1:0", "--log-json")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")
    assert swarm.coordinator is not None
    before, now = page(swarm.coordinator.log), status(swarm)
    assert before["shoal_run_version"] >= 1
    assert before["shoal_run_version"] <= now.version
    assert before["shoal_run_members"] == 1
    swarm.wait_for(lambda: page(anna.log)["shoal_peer_version"] >= 1, 20, "anna's page to show it")
    own = page(anna.log)
    assert own["shoal_peer_inner_steps_total"] >= 1
    swarm.wait_for(lambda: page(anna.log)["shoal_peer_version"] > own["shoal_peer_version"], 20, "the page to move on")
    anna.ask_to_leave()
    assert anna.wait(5) == 0
    for log in (anna.log, swarm.coordinator.log):
        lines = [json.loads(line) for line in log.read_text().splitlines()]  # every single one
        assert {"time", "level", "event", "text"} <= set.intersection(*(set(line) for line in lines))
    assert any(line["event"] == "progress" and line["version"] >= 0 for line in map(json.loads, anna.log.read_text().splitlines()))


def test_a_service_that_hangs_costs_no_round_and_no_leave(swarms: Swarms, tmp_path: Path) -> None:
    """USE-12 of a report: Weights & Biases is slow, fails and panics; training goes on and says it once."""
    (tmp_path / "wandb.py").write_text(
        "import time\n"
        "Settings = dict\n"
        "class Run:\n"
        "    def log(self, numbers):\n"
        "        if numbers['version'] < 4:\n"
        "            raise RuntimeError('500 Internal Server Error')\n"
        "        time.sleep(600)\n"
        "def init(**about):\n"
        "    return Run()\n"
    )
    swarm = swarms(toy_spec(40, peers=1))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna", "--wandb", "shoal", environment={"PYTHONPATH": f"{PACKAGES}:{tmp_path}"})
    began = time.monotonic()
    finish(swarm)
    assert time.monotonic() - began < 60
    log = anna.log.read_text()
    assert log.count("Weights & Biases") == 1
    assert "warning: Weights & Biases failed (RuntimeError: 500 Internal Server Error)" in log
    commits = [record for record in journal_of(swarm) if isinstance(record, RoundCommitted)]
    assert len(commits) >= 40
