"""kill -9 of every kind of process, at work: the others lose seconds, nobody loses a committed round."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from shoal.coordinator.records import FingerprintAgreed, RoundCommitted
from shoal.localswarm import LocalSwarm
from tests.swarm.toyswarm import Swarms, finish, journal_of, members, same_models, status, toy_spec, working

pytestmark = pytest.mark.slow

SETTLE_S = 90.0
LONG = 100_000
"""Rounds that no test waits for."""


def begin(swarms: Swarms, rounds: int, *names: str, min_peers: int = 1) -> LocalSwarm:
    """A swarm whose members all have work in the shared model."""
    swarm = swarms(toy_spec(rounds, peers=len(names), values=300_000, run={"min_peers": min_peers}))
    swarm.start_coordinator()
    for number, name in enumerate(names, 1):
        swarm.add_peer(name, environment={"SHOAL_TOY_D": str(number / 1000)})
    swarm.wait_for(lambda: working(swarm) == set(names), SETTLE_S, "work of every peer to be committed")
    return swarm


def stop(swarm: LocalSwarm) -> None:
    from shoal.protocol.admin import Stop

    swarm.ask(Stop())


def assert_nothing_was_lost(swarm: LocalSwarm) -> None:
    """Versions follow each other, each was made from the one before, and nobody ever held other bytes than the others."""
    records = journal_of(swarm)
    committed = [record for record in records if isinstance(record, RoundCommitted)]
    assert [(record.base, record.version) for record in committed] == [(v, v + 1) for v in range(len(committed))]
    agreed = [record for record in records if isinstance(record, FingerprintAgreed)]
    assert len(agreed) > 1
    assert not [record for record in agreed if record.flagged]
    assert swarm.coordinator is not None
    assert "differs from the others" not in swarm.coordinator.log.read_text()


def test_a_killed_peer_costs_the_others_seconds_and_comes_back_with_its_identity(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna", "ben", "cleo")
    identities = {member.name: member.peer for member in members(swarm)}
    swarm.peers["ben"].kill()
    before, killed_at = status(swarm).version, time.monotonic()
    swarm.wait_for(lambda: status(swarm).version >= before + 2, 20, "the others to go on")
    assert time.monotonic() - killed_at < 10
    swarm.wait_for(lambda: {member.name for member in members(swarm)} == {"anna", "cleo"}, 10, "ben to be missed")
    swarm.add_peer("ben")
    swarm.wait_for(lambda: "ben" in working(swarm), SETTLE_S, "ben's new work to be committed")
    assert {member.name: member.peer for member in members(swarm)} == identities
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


@pytest.mark.parametrize("pause_s", [0.0, 0.37], ids=["at once", "a little later"])
def test_a_killed_coordinator_continues_the_same_run_at_the_same_version(swarms: Swarms, pause_s: float) -> None:
    swarm = begin(swarms, LONG, "anna", "ben", min_peers=2)
    time.sleep(pause_s)  # another moment of a round
    before = status(swarm)
    assert swarm.coordinator is not None
    swarm.coordinator.kill()
    assert all(peer.exit_code is None for peer in swarm.peers.values())
    swarm.start_coordinator()
    swarm.wait_for(lambda: status(swarm).version >= before.version + 2, 40, "rounds to go on")
    assert status(swarm).term == before.term + 1
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


def test_a_killed_trainer_is_started_again_and_the_peer_stays_a_member(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna", "ben", min_peers=2)
    sessions = {member.name: member.session for member in members(swarm)}
    trainer = trainer_of(swarm.peers["anna"].pid)
    trainer.kill()
    before = status(swarm).version
    swarm.wait_for(lambda: status(swarm).version >= before + 3, SETTLE_S, "rounds with both peers to go on")
    assert trainer_of(swarm.peers["anna"].pid).pid != trainer.pid
    assert {member.name: member.session for member in members(swarm)} == sessions
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


def test_all_peers_killed_at_once_come_back_to_the_same_state(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna", "ben", min_peers=2)
    for peer in swarm.peers.values():
        peer.kill()
    before = status(swarm).version
    for name in ("anna", "ben"):
        swarm.add_peer(name)
    swarm.wait_for(lambda: status(swarm).version >= before + 2, SETTLE_S, "rounds to go on")
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


def test_coordinator_and_all_peers_killed_together_continue(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna", "ben", min_peers=2)
    before = status(swarm).version
    assert swarm.coordinator is not None
    for child in (swarm.coordinator, *swarm.peers.values()):
        child.kill()
    swarm.start_coordinator()
    assert status(swarm).version >= before
    for name in ("anna", "ben"):
        swarm.add_peer(name)
    swarm.wait_for(lambda: status(swarm).version >= before + 2, SETTLE_S, "rounds to go on")
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


def test_a_frozen_peer_is_given_up_and_finds_back_when_it_thaws(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna", "ben")
    os.kill(swarm.peers["ben"].pid, signal.SIGSTOP)
    before = status(swarm).version
    swarm.wait_for(lambda: {member.name for member in members(swarm)} == {"anna"}, 30, "ben to be given up")
    swarm.wait_for(lambda: status(swarm).version >= before + 2, 30, "anna to go on alone")
    os.kill(swarm.peers["ben"].pid, signal.SIGCONT)
    swarm.wait_for(lambda: "ben" in working(swarm), SETTLE_S, "ben's new work to be committed")
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


def test_ctrl_c_leaves_at_once_says_goodbye_and_leaves_nothing(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna", "ben")
    ben = swarm.peers["ben"]
    processes = psutil.Process(ben.pid).children(recursive=True)
    assert processes
    os.kill(ben.pid, signal.SIGINT)
    asked_at = time.monotonic()
    assert ben.wait(5) == 0
    swarm.wait_for(lambda: {member.name for member in members(swarm)} == {"anna"}, 1.5, "the coordinator to see it leave")
    assert time.monotonic() - asked_at < 6.5
    assert not [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    before = status(swarm).version
    swarm.wait_for(lambda: status(swarm).version >= before + 2, 20, "anna to go on alone")


def test_a_peer_whose_parent_is_killed_ends_with_everything_it_started(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna")
    anna = psutil.Process(swarm.peers["anna"].pid)
    family = [anna, *anna.children(recursive=True)]
    swarm.peers["anna"].release()
    _, alive = psutil.wait_procs(family, timeout=6)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def trainer_of(daemon: int) -> psutil.Process:
    """The trainer that a daemon has started."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in psutil.Process(daemon).children(recursive=True):
            if any("shoal.peer.trainer" in word for word in child.cmdline()):
                return child
        time.sleep(0.05)
    raise AssertionError("no trainer")


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_everybody_leaves_while_the_coordinator_does_not_answer_and_nothing_is_lost(swarms: Swarms, how: str) -> None:
    swarm = begin(swarms, LONG, "anna", "ben", min_peers=2)
    before = status(swarm).version
    coordinator = swarm.coordinator
    assert coordinator is not None
    if how == "killed":
        coordinator.kill()
    else:
        os.kill(coordinator.pid, signal.SIGSTOP)
    for peer in swarm.peers.values():
        peer.ask_to_leave()
    assert [peer.wait(20) for peer in swarm.peers.values()] == [0, 0]
    if how == "killed":
        swarm.start_coordinator()
    else:
        os.kill(coordinator.pid, signal.SIGCONT)
    for name in ("ben", "anna"):
        swarm.add_peer(name)
    swarm.wait_for(lambda: status(swarm).version >= before + 2, SETTLE_S, "rounds to go on")
    stop(swarm)
    assert same_models(finish(swarm))
    assert_nothing_was_lost(swarm)


def test_the_last_member_leaves_in_good_order_and_comes_back_to_what_it_had(swarms: Swarms) -> None:
    swarm = begin(swarms, LONG, "anna")
    swarm.peers["anna"].ask_to_leave()
    assert swarm.peers["anna"].wait(20) == 0
    before = status(swarm).version
    swarm.add_peer("anna")
    swarm.wait_for(lambda: status(swarm).version >= before + 2, SETTLE_S, "rounds to go on")
    stop(swarm)
    finish(swarm)
    assert_nothing_was_lost(swarm)


def test_a_second_daemon_with_a_copied_identity_is_turned_away_and_harms_nobody(swarms: Swarms, tmp_path: Path) -> None:
    swarm = begin(swarms, LONG, "anna")
    original = next((swarm.state_of("anna") / "identities").glob("*/*"))
    copied = tmp_path / "copied"
    shutil.copytree(original, copied, ignore=shutil.ignore_patterns("*.lock", "*.sock"))
    copy = swarm.add_peer("copy", "--identity", str(copied))
    assert copy.wait(40) not in (0, None)
    before = status(swarm).version
    swarm.wait_for(lambda: status(swarm).version >= before + 2, SETTLE_S, "anna to go on")
    copy.release()
    del swarm.peers["copy"]
    stop(swarm)
    finish(swarm)
    assert_nothing_was_lost(swarm)
