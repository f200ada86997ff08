"""What a volunteer's machine does to a swarm: too little memory, other programs, nights and batteries."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shoal.coordinator.records import RoundCommitted
from tests.swarm.toyswarm import Swarms, finish, journal_of, members, same_models, status, toy_spec, working

pytestmark = pytest.mark.slow


def test_a_peer_that_runs_out_of_memory_skips_a_round_and_halves_its_micro_batch_while_the_others_go_on(swarms: Swarms) -> None:
    """USE-09 of a report: the GPU is taken by another program."""
    swarm = swarms(toy_spec(8, peers=2, train={"batch": 4}, run={"total_tokens": 8 * 2 * 4 * 4}))
    swarm.start_coordinator()
    swarm.add_peer("whole")
    short = swarm.add_peer("short", environment={"SHOAL_TOY_ROOM": "1"})
    models = finish(swarm)
    assert same_models(models)
    said = re.findall(
        r"contributes nothing to round \d+: out of memory with (\d) samples at a time; .* with (\d)", short.log.read_text()
    )
    assert said in ([("4", "2")], [("4", "2"), ("2", "1")])  # its next share of a round may be a single sample
    commits = [record for record in journal_of(swarm) if isinstance(record, RoundCommitted)]
    assert [len(commit.contributions) for commit in commits].count(1) == len(said)
    assert len(commits[-1].contributions) == 2


def test_a_gpu_that_is_not_there_is_one_line_and_nobody_trains_on_the_cpu_unawares(swarms: Swarms) -> None:
    """USE-09: `--device cuda` without CUDA fails at once; `auto` says what it took, and operators see it."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    swarm = swarms(toy_spec(10_000, peers=1))
    swarm.start_coordinator()
    began = time.monotonic()
    words = ["peer", "join", "--device", "cuda", "--state", str(swarm.directory / "gpu"), swarm.invite]
    done = subprocess.run([sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert re.fullmatch(r"error: --device cuda: .* has no cuda — use --device cpu or auto\n", done.stderr)
    assert time.monotonic() - began < 20  # nearly all of it is the import of PyTorch on a busy machine
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")
    assert [peer.device for peer in members(swarm)] == ["cpu"]
    assert anna.log.read_text().count("no CUDA device here: training on the CPU") == 1


def shifted(minutes_before: float, clock: str) -> dict[str, str]:
    """An environment in which the local time is `clock` ("7:00"), `minutes_before` minutes from now: a zone of its own."""
    hour, minute = map(int, clock.split(":"))
    wanted_s = (hour * 60 + minute - minutes_before) * 60
    utc_s = time.time() % 86_400
    behind_s = (
        round(utc_s - wanted_s + 43_200) % 86_400 - 43_200
    )  # how far local time is behind UTC: POSIX counts west of Greenwich
    sign, rest_s = ("-" if behind_s < 0 else ""), abs(behind_s)
    return {"TZ": f"TST{sign}{rest_s // 3600}:{rest_s % 3600 // 60:02d}:{rest_s % 60:02d}"}


def test_a_peer_works_only_in_its_hours_and_goes_and_comes_by_itself(swarms: Swarms) -> None:
    """anna's night ends in a moment and begins again a minute later; the others train on meanwhile."""
    swarm = swarms(toy_spec(100_000, peers=1))
    swarm.start_coordinator()
    swarm.add_peer("bea")
    swarm.wait_for(lambda: working(swarm) == {"bea"}, 60, "bea's work to be committed")
    anna = swarm.add_peer("anna", "--hours", "7:01-7:00", environment=shifted(0.5, "7:00"))
    swarm.wait_for(lambda: len(members(swarm)) == 2, 28, "anna to join")
    swarm.wait_for(lambda: len(members(swarm)) == 1, 60, "anna to rest")
    says = "it is 07:00 here, outside --hours 07:01-07:00"
    swarm.wait_for(lambda: f"{says}: this peer rests until 07:01" in anna.log.read_text(), 10, "anna to say why")
    assert f"leaving: time to rest ({says}); this round first" in anna.log.read_text()
    held = status(swarm).version
    swarm.wait_for(lambda: status(swarm).version > held, 20, "bea to go on")
    swarm.wait_for(lambda: "anna" in working(swarm), 100, "anna to come back")
    assert anna.exit_code is None
    assert "goes back to work" in anna.log.read_text()
    anna.ask_to_leave()
    assert anna.wait(5) == 0


def test_a_peer_that_rests_leaves_on_ctrl_c_and_holds_no_memory(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(100_000, peers=1))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna", "--hours", "22-7", environment=shifted(0, "12:00"))
    swarm.wait_for(lambda: "this peer rests until 22:00" in anna.log.read_text(), 30, "anna to rest")
    assert not members(swarm)
    assert not list(Path("/dev/shm").glob(f"shoal-*-{swarm.spec.run.name}-*"))
    anna.ask_to_leave()
    assert anna.wait(5) == 0


def test_a_run_that_does_not_fit_the_memory_given_is_refused_and_one_that_does_is_trained(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(6, peers=1, values=500_000))
    swarm.start_coordinator()
    small = swarm.add_peer("small", "--memory", "5M")
    swarm.wait_for(lambda: small.exit_code is not None, 60, "the small one to give up")
    assert small.exit_code == 5
    (said,) = re.findall(
        r"error: this run does not fit into --memory: have 5, need (\d+) MB \(.*\) — give it --memory \d+M", small.log.read_text()
    )
    assert not list(Path("/dev/shm").glob(f"shoal-*-{swarm.spec.run.name}-*"))
    large = swarm.add_peer("large", "--memory", f"{said}M")
    swarm.wait_for(lambda: large.exit_code is not None, 60, "the large one to finish the run")
    assert large.exit_code == 0
    assert "the model is in" in large.log.read_text()
