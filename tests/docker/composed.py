"""A swarm of containers for tests: `docker-compose` on the engine of this machine, under a project name of its own.

Rule: a project is the user's docker-compose.yml as it is; tests say only what users may say, words and environment. Neighbour:
`conftest` finds the engine, builds the images once and ends every project.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND_S = 240.0
POLL_S = 1.0
TINY = "--name composed --min-peers 2 --rounds 5000 --width 16 --layers 1 --heads 2 --sequence-length 32 --steps 10"
"""A run whose rounds take about a second, so that what is waited for is the containers."""


class Project:
    """One project of docker-compose."""

    def __init__(self, compose: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = f"shoaltest{secrets.token_hex(4)}"
        self._compose = (*compose, "--project-name", self.name, "--project-directory", str(ROOT))
        self._compose += ("--file", str(ROOT / "docker-compose.yml"))
        self._environment = {"SHOAL_RUN": TINY, **environment}

    def compose(self, *words: str) -> str:
        """What `docker-compose WORDS` prints; an AssertionError with all it said when it fails."""
        return said((*self._compose, *words), self._environment, COMMAND_S)

    def up(self, *words: str) -> None:
        """`docker-compose up --detach WORDS`, until the coordinator answers."""
        self.compose("up", "--detach", *words)
        status = (*self._compose, "exec", "-T", "coordinator", "shoal", "admin", "status")
        self.wait(lambda: _run(status, self._environment, COMMAND_S).returncode == 0, 60.0, "the coordinator to answer")

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, ended ones too, in the order of their numbers."""
        form = '{{.Label "com.docker.compose.container-number"}} {{.ID}}'
        listed = docker("ps", "--all", "--no-trunc", *self._filters(service), "--format", form)
        return [line.split()[1] for line in sorted(listed.splitlines(), key=lambda line: int(line.split()[0]))]

    def admin(self, *words: str) -> Any:
        """What `shoal admin WORDS --json` in the coordinator's container answers."""
        return json.loads(self.compose("exec", "-T", "coordinator", "shoal", "admin", *words, "--json"))

    def version(self) -> int:
        """The newest committed version."""
        version: int = self.admin("status")["version"]
        return version

    def commits(self, contributors: int) -> list[int]:
        """Versions of the last committed rounds that had so many contributors."""
        rounds = self.admin("rounds")["rounds"]
        return [each["version"] for each in rounds if each["state"] == "committed" and each["contributors"] == contributors]

    def newest(self, contributors: int) -> int:
        """The last of them, -1 if there is none."""
        return max(self.commits(contributors), default=-1)

    def contributors(self) -> dict[str, str]:
        """Name by id of the members whose work is in a committed round."""
        return {peer["peer"]: peer["name"] for peer in self.admin("peers")["peers"] if peer["committed_tokens"] > 0}

    def wait(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Until `condition` holds; with the containers' logs in the AssertionError when it does not."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}\n{self.compose('logs', '--tail', '40')}"
            time.sleep(POLL_S)

    def left(self) -> list[str]:
        """Containers, networks and volumes of this project."""
        label = ("--filter", f"label=com.docker.compose.project={self.name}", "--quiet")
        found = [docker(*kind, *label).split() for kind in (("ps", "--all"), ("network", "ls"), ("volume", "ls"))]
        return [name for names in found for name in names]

    def _filters(self, service: str) -> tuple[str, ...]:
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        return tuple(word for label in labels for word in ("--filter", f"label={label}"))


def docker(*words: str) -> str:
    """What `docker WORDS` prints."""
    return said(("docker", *words), {}, COMMAND_S)


def log(container: str) -> str:
    """All that a container said."""
    done = _run(("docker", "logs", container), {}, COMMAND_S)
    return done.stdout + done.stderr


def inspect(container: str, what: str) -> str:
    """A fact about a container, as a Go template names it."""
    return docker("inspect", "--format", f"{{{{{what}}}}}", container).strip()


def said(words: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str:
    """Standard output of a command that succeeds."""
    done = _run(words, environment, limit_s)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _run(words: Sequence[str], environment: Mapping[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, **environment}
    return subprocess.run(words, env=surroundings, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)
