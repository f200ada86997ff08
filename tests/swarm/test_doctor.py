"""`shoal doctor` and a real coordinator: what it finds on the way, and what each trouble on the way is called."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.protocol.invites import parse
from tests.swarm.toyswarm import Swarms, members, status, toy_spec

pytestmark = pytest.mark.slow

CLOCK = """
import time, types
import shoal.doctor, shoal.peer.diagnosis
off = types.SimpleNamespace(**{{**vars(time), "time": lambda: time.time() + {}}})
shoal.doctor.time = shoal.peer.diagnosis.time = off
"""
"""Ours only: gRPC's halves would no longer agree on what a deadline is."""


def doctor(*words: str, code: int = 0, clock_off_s: float = 0.0) -> dict[str, dict[str, Any]]:
    """What it finds, on a machine whose clock is off by so much."""
    program = CLOCK.format(clock_off_s) + "from shoal.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "doctor", "--json", *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == code, done.stderr + done.stdout
    return {item["about"]: item for item in json.loads(done.stdout)["findings"]}


def test_the_way_to_a_coordinator_is_looked_at_without_spending_the_invite(swarms: Swarms, tmp_path: Path) -> None:
    swarm = swarms(toy_spec(1000, peers=1))
    swarm.start_coordinator()
    once = json.loads(
        subprocess.run(
            [sys.executable, "-m", "shoal", "admin", "invite", "--uses", "1", "--dir", str(swarm.run_directory), "--json"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    )["line"]
    for _ in range(2):
        report = doctor(once, "--state", str(tmp_path))
    for about in ("coordinator, enrolment", "coordinator, sessions", "clock", "address", "invite", "upload", "download"):
        assert report[about]["level"] == "ok", report[about]
    assert report["clock"]["text"].startswith("0.0 s ")
    assert "127.0.0.1" in report["address"]["text"]
    assert float(report["upload"]["text"].split(" ")[0]) > 5
    assert not members(swarm)
    assert list(tmp_path.iterdir()) == []
    anna = swarm.add_peer("anna", invite=once)  # its one use is still there
    swarm.wait_for(lambda: len(members(swarm)) == 1, 60, "anna to join")
    anna.ask_to_leave()
    assert anna.wait(5) == 0

    used_up = doctor(once, "--state", str(tmp_path), code=5)
    assert used_up["invite"]["text"] == "this invite is used up"
    assert "shoal admin invite" in used_up["invite"]["fix"]
    assert "upload" not in used_up  # bytes are for those with an invite
    again = doctor("--state", str(swarm.state_of("anna")))  # an enrolled machine needs none
    assert again["clock"]["level"] == again["coordinator, sessions"]["level"] == "ok"
    assert "invite" not in again
    assert status(swarm).phase


def test_a_coordinator_that_is_not_there_and_one_of_another_run_are_told_apart(swarms: Swarms, tmp_path: Path) -> None:
    swarm = swarms(toy_spec(1000, peers=1))
    gone = doctor(swarm.invite, "--state", str(tmp_path), code=5)
    assert "nobody listens at 127.0.0.1" in gone["coordinator, enrolment"]["text"]
    assert "check that the coordinator runs" in gone["coordinator, sessions"]["fix"]
    assert "clock" not in gone
    other = swarms(toy_spec(1000, peers=1))
    other.start_coordinator()
    mixed = parse(swarm.invite)
    theirs = parse(other.invite)
    line = type(mixed)(mixed.run, theirs.enrol_addresses, theirs.session_addresses, mixed.ca_pem, mixed.token).line()
    report = doctor(line, "--state", str(tmp_path), code=5)
    assert "another authority signed its certificate" in report["coordinator, enrolment"]["text"]
    assert "clock" not in report


def test_an_outbound_only_peer_is_told_what_that_means(swarms: Swarms, tmp_path: Path) -> None:
    swarm = swarms(toy_spec(1000, peers=1))
    swarm.start_coordinator()
    report = doctor(swarm.invite, "--listen", "", "--state", str(tmp_path))
    assert report["address"]["level"] == "warn"
    assert "others cannot dial in" in report["address"]["text"]
    far = doctor(swarm.invite, "--advertise", "198.51.100.1", "--state", str(tmp_path))
    assert far["address"]["text"] == "others are told 198.51.100.1, the coordinator sees 127.0.0.1"


def test_a_clock_that_is_off_is_said_with_both_times_or_by_how_much(swarms: Swarms, tmp_path: Path) -> None:
    """MEM-19 of a report: skew between peers and coordinator."""
    swarm = swarms(toy_spec(1000, peers=1))
    swarm.coordinator_words = ("--certificate-hours", "1")
    swarm.start_coordinator()
    words = (swarm.invite, "--state", str(tmp_path))
    for off_s, way in ((600.0, "ahead of"), (-400.0, "behind")):
        clock = doctor(*words, clock_off_s=off_s)["clock"]
        assert clock["level"] == "warn"
        assert re.match(rf"\d\d\d\.\d s {way} the coordinator's, give or take \d\.\d s", clock["text"])
        assert abs(float(clock["text"].split()[0]) - abs(off_s)) <= 1.0
    behind = doctor(*words, clock_off_s=-500.0, code=5)["clock"]
    assert "certificates are not valid yet" in behind["text"], "they begin 7.5 minutes before they are made"
    far = doctor(*words, clock_off_s=-10 * 86_400.0, code=5)["clock"]
    assert far["level"] == "fail"
    assert re.search(r"is valid from 20\d\d-.* UTC, but this machine's clock says 20\d\d-.* UTC", far["text"])
    ahead = doctor(*words, clock_off_s=2 * 3600.0, code=5)["clock"]
    assert "certificates are valid no longer" in ahead["text"]
