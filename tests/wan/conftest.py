"""Swarms whose peers live in network namespaces. Skipped, with the reason, where there can be none."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from shoal.coordinator.setup import init
from shoal.localswarm import LocalSwarm
from shoal.processes import Child
from shoal.protocol.spec import RunSpec
from tests.swarm.conftest import PACKAGES, STEP_S
from tests.swarm.toyswarm import WORKER
from tests.wan.internet import HUB, Internet, why_not


@pytest.fixture
def internet() -> Iterator[Internet]:
    """One at a time, whatever other workers do: each has the same address of this machine."""
    with Path(__file__).open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if reason := why_not():
            pytest.skip(reason)
        with Internet() as made:
            yield made


class WanSwarm(LocalSwarm):
    """The coordinator is on this machine, and peers join from homes."""

    def __init__(self, directory: Path, spec: RunSpec, internet: Internet) -> None:
        words = ("--threads", "1", "--allow", "shoal_toy")
        environment = {"PYTHONPATH": str(PACKAGES), "SHOAL_TOY_STEP_S": str(STEP_S), "XDG_STATE_HOME": str(directory / "state")}
        super().__init__(directory, spec, peer_words=words, environment=environment)
        self._internet = internet

    def __enter__(self) -> WanSwarm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            print(self.explain())
        super().__exit__(kind, error, trace)

    def create(self) -> None:
        invite = init(self.run_directory, self.spec, listen="0.0.0.0:0", enrol_listen="0.0.0.0:0", advertise=HUB)
        self.invite, self.address = invite.line(), invite.session_addresses[0]

    def add_from(self, home: str, name: str, *words: str) -> Child:
        """Start a peer in a home."""
        with self._internet.inside(home):
            return self.add_peer(name, *words)

    def explain(self) -> str:
        """The ends of all logs."""
        children = [*([self.coordinator] if self.coordinator else []), *self.peers.values()]
        return "\n".join(f"--- {child.name}\n{child.last_words(40)}" for child in children)


@pytest.fixture
def wan_directory() -> Iterator[Path]:
    """Short, because a socket's path must not be long."""
    directory = Path(tempfile.mkdtemp(prefix=f"shoal-{WORKER}x"))
    yield directory
    shutil.rmtree(directory)
