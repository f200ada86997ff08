"""Children that leave with their parent, and directories that leave with the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shoal.processes import Child, end
from shoal.workplace import interrupted_by_signals, workplace

WEARER = "import time; from shoal import leash; leash.wear(); print('worn', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WEARER}"


@pytest.mark.parametrize(("code", "expected"), [(WEARER, -signal.SIGTERM), (STUBBORN, 1)], ids=["willing", "stubborn"])
def test_a_leashed_process_leaves_within_seconds_when_its_parent_is_gone(code: str, expected: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"worn\n"
        assert process.poll() is None
        started = time.monotonic()
        process.stdin.close()
        assert process.wait(10) == expected
        assert time.monotonic() - started < 5.5
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_child_keeps_what_it_says_and_its_exit_code(tmp_path: Path) -> None:
    child = Child("asker", ["admin", "status", "--dir", str(tmp_path / "none")], tmp_path / "log")
    try:
        assert child.wait(30) == 2
        assert child.last_words().startswith("error: ")
    finally:
        end([child])


def test_ending_children_kills_the_whole_group_of_one_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ntrap "" TERM\n{sys.executable} -c "import time; time.sleep(60)" &\necho up\nwait\nwait\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    child = Child("stubborn", [], tmp_path / "log")
    deadline = time.monotonic() + 10
    while not (members := psutil.Process(child.pid).children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert members
    end([child], patience_s=0.2)
    assert child.exit_code is not None
    _, alive = psutil.wait_procs(members, timeout=5)
    assert not alive


def test_ending_a_child_twice_is_fine(tmp_path: Path) -> None:
    child = Child("helper", ["--version"], tmp_path / "log")
    end([child])
    end([child])
    assert child.exit_code is not None


def test_a_workplace_is_gone_afterwards_also_after_an_error() -> None:
    seen: list[Path] = []

    def work() -> None:
        with workplace() as directory:
            seen.append(directory)
            (directory / "file").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert not seen[0].exists()


def test_a_kept_workplace_stays(tmp_path: Path) -> None:
    with workplace(tmp_path / "kept") as directory:
        (directory / "file").write_text("x")
    assert (tmp_path / "kept" / "file").exists()


def test_sigterm_tidies_up_like_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Path] = []

    def work() -> None:
        with interrupted_by_signals(), workplace() as directory:
            seen.append(directory)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not seen[0].exists()
    assert signal.getsignal(signal.SIGTERM) is before
