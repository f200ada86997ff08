"""An operator's afternoon: make a run, serve it, look at it, steer it; every answer for people and as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.localswarm import LocalSwarm
from shoal.protocol.invites import parse
from tests.swarm.toyswarm import Swarms, members, status, toy_spec, working

pytestmark = pytest.mark.slow

LONG = 100_000


def shoal(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout if code == 0 else done.stderr


def admin(swarm: LocalSwarm, *words: str) -> Any:
    return json.loads(shoal("admin", *words, "--dir", str(swarm.run_directory), "--json"))


def test_each_question_is_answered_for_people_and_as_json(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=1))
    swarm.start_coordinator()
    new = admin(swarm, "status")
    assert (new["type"], new["version"], new["members"]) == ("Status", -1, 0)
    assert "waiting for  1 more peer" in shoal("admin", "status", "--dir", str(swarm.run_directory))
    swarm.add_peer("anna")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")

    assert admin(swarm, "status")["phase"] in ("training", "reducing", "waiting")
    (anna,) = admin(swarm, "peers")["peers"]
    assert anna["name"] == "anna"
    assert anna["device"]
    listed = admin(swarm, "rounds", "--limit", "3")["rounds"]
    assert len(listed) == 3
    assert [entry["round"] for entry in listed] == sorted(entry["round"] for entry in listed)
    assert any("anna" in event["text"] for event in admin(swarm, "events")["events"])

    table = shoal("admin", "peers", "--dir", str(swarm.run_directory)).splitlines()
    assert table[0].split()[:3] == ["peer", "name", "state"]
    assert "anna" in table[1]
    assert shoal("admin", "rounds", "--dir", str(swarm.run_directory), "-n", "3").count("committed") >= 2
    (first, *_) = shoal("admin", "events", "--dir", str(swarm.run_directory)).splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", first)
    assert abs(time.time() - time.mktime(time.strptime(first[:19], "%Y-%m-%d %H:%M:%S"))) < 600


def test_pause_holds_resume_goes_on_and_stop_ends_for_everybody(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=1))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: status(swarm).version >= 2, 60, "version 2")
    assert admin(swarm, "pause")["type"] == "Done"
    swarm.wait_for(lambda: status(swarm).phase == "paused", 10, "the round in flight to finish")
    held = status(swarm).version
    time.sleep(0.5)  # some rounds' worth of time
    assert status(swarm).version == held
    assert "resume" in status(swarm).waiting_for
    admin(swarm, "resume")
    swarm.wait_for(lambda: status(swarm).version > held, 10, "another round")
    admin(swarm, "stop")
    swarm.wait_for(lambda: anna.exit_code is not None, 30, "anna to leave")
    assert anna.exit_code == 0
    assert "the model is in" in anna.log.read_text()
    assert status(swarm).phase == "ended"
    error = shoal("admin", "resume", "--dir", str(swarm.run_directory), code=4)
    assert re.fullmatch(r"error: .+ — .+\n", error)


def test_more_invites_are_lines_that_let_peers_in(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=1))
    swarm.start_coordinator()
    line = shoal("admin", "invite", "--uses", "2", "--dir", str(swarm.run_directory)).strip()
    assert parse(line).run == swarm.spec.run.name
    swarm.add_peer("anna", invite=line)
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")


def test_a_run_is_named_after_its_directory_or_as_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    addresses = ("--listen", "127.0.0.1:0", "--enrol-listen", "127.0.0.1:0")
    for directory, words, name in (("poems", (), "poems"), ("My Poems", (), "shoal"), ("other", ("--name", "plays"), "plays")):
        said = shoal("coordinator", "init", str(tmp_path / directory), *words, *addresses)
        assert parse(said.split()[-1]).run == name


def test_init_prints_an_invite_and_the_next_command_and_both_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    text = tmp_path / "book.txt"
    text.write_text("call me ishmael. " * 100)
    addresses = ("--listen", "127.0.0.1:0", "--enrol-listen", "127.0.0.1:0")
    said = shoal("coordinator", "init", str(tmp_path / "book"), "--rounds", "300", *addresses, "--data", str(text))
    assert f"shoal coordinator serve {tmp_path / 'book'}" in said
    join = said.strip().splitlines()[-1].split()
    assert join[:3] == ["shoal", "peer", "join"]
    assert join[join.index("--data") + 1] == "."
    assert "in a directory with book.txt" in said
    assert str(tmp_path) not in said.strip().splitlines()[-1]
    assert parse(join[-1]).run == "book"
    kept = tmp_path / "book" / "invite.txt"
    assert str(kept) in said
    assert kept.read_text().strip() == join[-1]
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "book.txt" in (tmp_path / "book" / "run.toml").read_text()
    # The last run made on this machine is the one that commands mean.
    assert parse(join[-1]).session_addresses[0] in shoal("admin", "status", code=3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_coordinator_leaves_at_once_and_frees_its_port(swarms: Swarms, number: int) -> None:
    swarm = swarms(toy_spec(LONG, peers=1))
    coordinator = swarm.start_coordinator()
    os.kill(coordinator.pid, number)
    assert coordinator.wait(5) == 0
    swarm.start_coordinator()


@pytest.mark.parametrize(
    "moment", ["phase joining", "phase connecting", "phase starting the trainer", r"still waiting after \d+ s for 1 more peer"]
)
def test_ctrl_c_leaves_in_every_phase_before_training(swarms: Swarms, moment: str) -> None:
    swarm = swarms(toy_spec(LONG, peers=2))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: bool(re.search(moment, anna.log.read_text())), 60, moment)
    family = psutil.Process(anna.pid).children(recursive=True)
    os.kill(anna.pid, signal.SIGINT)
    asked_at = time.monotonic()
    assert anna.wait(10) in (0, 130)
    assert time.monotonic() - asked_at < 5.5
    assert "Traceback" not in anna.log.read_text()
    _, alive = psutil.wait_procs(family, timeout=1)
    assert not alive
    swarm.wait_for(lambda: not members(swarm), 5, "the coordinator to see it leave")


def test_a_closed_terminal_is_left_in_good_order(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=1, run={"min_peers": 1}))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")
    for _ in range(2):  # the shell says it, and the kernel
        os.kill(anna.pid, signal.SIGHUP)
    assert anna.wait(10) == 0
    assert "its local copy is kept in" in anna.log.read_text()
    assert swarm.coordinator is not None
    os.kill(swarm.coordinator.pid, signal.SIGHUP)
    assert swarm.coordinator.wait(10) == 0


def test_ctrl_c_with_a_frozen_trainer_leaves_within_five_seconds(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=1, run={"min_peers": 1}))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")
    (trainer,) = (child for child in psutil.Process(anna.pid).children() if "shoal.peer.trainer" in child.cmdline())
    os.kill(trainer.pid, signal.SIGSTOP)
    os.kill(anna.pid, signal.SIGINT)
    asked_at = time.monotonic()
    assert anna.wait(10) == 0
    assert time.monotonic() - asked_at < 5.0
    assert not trainer.is_running()


def test_a_second_ctrl_c_does_not_wait(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=1, run={"min_peers": 1}), SHOAL_TOY_STEP_S="3.0")
    swarm.start_coordinator()
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: status(swarm).phase == "training", 60, "a long step")
    family = psutil.Process(anna.pid).children(recursive=True)
    os.kill(anna.pid, signal.SIGINT)
    swarm.wait_for(lambda: "leaving" in anna.log.read_text() or anna.exit_code is not None, 5, "the peer to hear it")
    asked_at = time.monotonic()
    os.kill(anna.pid, signal.SIGINT)
    assert anna.wait(5) in (0, 130, -signal.SIGINT)  # the last is what a shell reports as 130
    assert time.monotonic() - asked_at < 1.5
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
