"""What a volunteer's machine does to a swarm: too little memory, other programs, nights and batteries."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
import torch

from shoal.coordinator.records import RoundCommitted
from tests.swarm.toyswarm import Swarms, finish, journal_of, members, same_models, toy_spec, working

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
