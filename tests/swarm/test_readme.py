"""The README's guide to a run of your own, done as it stands there: its own commands, in their order, on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "README.md").read_text().split("## A run of your own")[1].split("\n## ")[0]
COMMANDS = [
    line.split(" #")[0].strip() for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()
]

pytestmark = pytest.mark.slow


class Terminal:
    """Runs the guide's commands in one directory, with a user's state directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
        self.started: list[subprocess.Popen[bytes]] = []

    def words(self, beginning: str, *more: str) -> list[str]:
        """The guide's command that begins like this, and what only this test adds."""
        (line,) = [command for command in COMMANDS if command.startswith(beginning)]
        return [sys.executable, "-m", *shlex.split(line), *more]

    def run(self, beginning: str, *more: str) -> str:
        words = self.words(beginning, *more)
        done = subprocess.run(words, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, log: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("wb") as output:
            process = subprocess.Popen(words, cwd=self.directory, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.directory.glob("*.log")))


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    for process in terminal.started:
        process.terminate()
    for process in terminal.started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], limit_s: float, terminal: Terminal) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, terminal.logs()
        time.sleep(0.25)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_guide_to_a_run_of_your_own_works_as_it_stands(terminal: Terminal) -> None:
    for number, name in enumerate(("a.txt", "b.txt")):
        words = (f"{name} {i * i % 997} swims with {i % 89} others;\n" for i in range(number, 6000, 2))
        (terminal.directory / name).write_text("".join(words))
    sessions, enrolment = free_port(), free_port()
    here = ("--listen", f"127.0.0.1:{sessions}", "--enrol-listen", f"127.0.0.1:{enrolment}", "--advertise", "127.0.0.1")
    output = terminal.run("shoal coordinator init", *here, "--steps", "10")
    (invite,) = set(re.findall(r"shoal-invite-\S+", output))

    coordinator = terminal.start("coordinator.log", terminal.words("shoal coordinator serve"))

    def status() -> str:
        words = terminal.words("shoal admin status")
        asked = subprocess.run(words, cwd=terminal.directory, env=terminal.environment, capture_output=True, text=True, timeout=60)
        return asked.stdout

    def version() -> int:
        found = re.search(r"^version +(\d+)", status(), re.MULTILINE)
        return int(found[1]) if found else -1

    until(lambda: "phase" in status(), 60, terminal)
    join = [invite if word == "INVITE" else word for word in terminal.words("shoal peer join", "--listen", "127.0.0.1:0")]
    peers = [terminal.start(f"peer-{number}.log", join) for number in (1, 2)]
    until(lambda: version() >= 2, 240, terminal)

    assert len(terminal.run("shoal admin peers").splitlines()) == 3
    assert "committed" in terminal.run("shoal admin rounds")
    follow = terminal.start("events.log", terminal.words("shoal admin events"))
    until(lambda: "joined" in (terminal.directory / "events.log").read_text(), 60, terminal)
    follow.terminate()
    assert follow.wait(10) != 0
    assert terminal.run("shoal admin invite").startswith("shoal-invite-")
    terminal.run("shoal admin pause")
    until(lambda: "paused" in status(), 60, terminal)
    terminal.run("shoal admin resume")
    until(lambda: "paused" not in status(), 60, terminal)
    terminal.run("shoal admin stop")

    until(lambda: all(peer.poll() is not None for peer in peers), 120, terminal)
    assert [peer.returncode for peer in peers] == [0, 0], terminal.logs()
    models = sorted((terminal.directory / "state").rglob("model.safetensors"))
    assert len(models) == 2
    assert len({hashlib.sha256(model.read_bytes()).hexdigest() for model in models}) == 1
    assert all(model.with_name("config.json").is_file() for model in models)
    assert coordinator.poll() is None
