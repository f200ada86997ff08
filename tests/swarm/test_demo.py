"""`shoal demo` as a person runs it: the table at the end, and nothing left behind whenever it is cut short."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shoal import demo
from shoal.coordinator.records import PeerEvaluated
from shoal.protocol.spec import RunSpec
from tests.swarm.toyswarm import Swarms, finish, journal_of

pytestmark = pytest.mark.slow


@contextmanager
def running_demo(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "demo", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)


def at_work(process: psutil.Process) -> bool:
    """Whether it still does or holds anything; a container's first process may not collect ended orphans."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_line(log: Path, pattern: str, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not re.search(pattern, log.read_text()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_the_demo_keeps_its_promises_and_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_demo(log) as process:
        assert process.wait(550) == 0, log.read_text()
    said = log.read_text()
    bits = re.search(r"held-out bits per byte, start → end +(\S+) → (\S+)", said)
    assert bits, said
    assert 7.9 < float(bits[1]) < 8.2
    assert float(bits[2]) < demo.MOST_BITS_PER_BYTE
    saving = re.search(r"bytes sent .* (\d+)x less", said)
    assert saving, said
    assert int(saving[1]) >= 100
    assert re.search(r"committed rounds lost +0\n", said)
    assert re.search(r"final models +4 equal", said)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (r"the coordinator listens", signal.SIGINT),
        (r"enrol over mTLS", signal.SIGINT),
        (r"version 1 ", signal.SIGINT),
        (r"was killed \(SIGKILL\)", signal.SIGINT),
        (r"version 1 ", signal.SIGTERM),
    ],
    ids=["before peers", "joining", "training", "after a kill", "terminated"],
)
def test_ctrl_c_leaves_within_seconds_with_nothing_left(tmp_path: Path, moment: str, number: int) -> None:
    log = tmp_path / "log"
    with running_demo(log, "--rounds", "6") as process:
        wait_for_line(log, moment, process, 200)
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        asked_at = time.monotonic()
        assert process.wait(10) == 130
        assert time.monotonic() - asked_at < 5.5
    _, alive = psutil.wait_procs(family, timeout=1)
    assert not [child for child in alive if at_work(child)]
    assert "Traceback" not in log.read_text()
    assert "version -1" not in log.read_text()
    assert log.read_text().endswith("interrupted, tidied up\n")


def test_the_stored_figure_of_a_lone_peer_is_what_one_measures(swarms: Swarms) -> None:
    """One peer, the demo's model, text, inner optimizer and number of steps. An outer step of rate 1 without momentum on updates
    that are sent as they are changes nothing: it is plain training. On a busy machine a round may be asked for what it has before
    its last step; the tokens are the same, in a round or two more."""
    spec = demo.run_spec()
    tables = spec.model_dump(mode="json", by_alias=True)
    tables["run"]["total_tokens"] //= demo.PEERS
    tables["outer"] = {"lr": 1.0, "momentum": 0.0}
    tables["codec"] = {"send": "raw", "return": "raw"}
    swarm = swarms(RunSpec.of(**tables))
    swarm.start_coordinator()
    swarm.add_peer("lone")
    swarm.wait_for(lambda: swarm.peers["lone"].exit_code is not None, 300, "the lone peer to finish")
    finish(swarm)
    evaluations = [record for record in journal_of(swarm) if isinstance(record, PeerEvaluated)]
    assert demo.ROUNDS <= evaluations[-1].version <= demo.ROUNDS + 5
    assert evaluations[-1].bits_per_byte == pytest.approx(demo.LONE_PEER_BITS_PER_BYTE, rel=0.03)
