"""Real swarms for tests: processes on loopback that are always ended, and that explain themselves when a test fails.

Rule: a test asks for `swarms(spec)` and gets a `LocalSwarm`, the same class that the demo uses. When the test fails, every
living process dumps its stacks into its log, and the logs become part of the report.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.localswarm import LocalSwarm
from shoal.processes import Child
from shoal.protocol.spec import RunSpec
from tests.swarm.toyswarm import WORKER, Swarms

PACKAGES = Path(__file__).parent / "packages"
STEP_S = 0.05
LOG_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


_failed = pytest.StashKey[bool]()


@pytest.fixture
def swarms(request: pytest.FixtureRequest) -> Iterator[Swarms]:
    """Makes swarms, and ends them."""
    with swarm_factory(lambda: bool(request.node.stash.get(_failed, True))) as (make, _):
        yield make


@contextlib.contextmanager
def swarm_factory(failed: Callable[[], bool]) -> Iterator[tuple[Swarms, Path]]:
    """What makes swarms that end with the block, and explain themselves when `failed` then; and the directory that all is in, whose
    name is short: a socket's path must not be long."""
    made: list[LocalSwarm] = []
    top = Path(tempfile.mkdtemp(prefix=f"shoal-{WORKER}x"))

    def make(spec: RunSpec, *peer_words: str, **environment: str) -> LocalSwarm:
        directory = top / str(len(made))
        directory.mkdir()
        swarm = LocalSwarm(
            directory,
            spec,
            peer_words=("--threads", "1", "--allow", "shoal_toy", *peer_words),
            environment={
                "PYTHONPATH": str(PACKAGES),
                "PYTHONFAULTHANDLER": "1",
                "SHOAL_TOY_STEP_S": str(STEP_S),
                "XDG_STATE_HOME": str(top / "state"),
                **environment,
            },
        )
        made.append(swarm)
        swarm.create()
        return swarm

    try:
        yield make, top
        if failed():
            for swarm in made:
                _explain(swarm)
    finally:
        for swarm in made:
            swarm.close()
        shutil.rmtree(top)


def _explain(swarm: LocalSwarm) -> None:
    """Print the end of each process's log, with the stacks of those that live."""
    children: list[Child] = [*([swarm.coordinator] if swarm.coordinator else []), *swarm.peers.values()]
    for child in children:
        if child.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGABRT)
            child.wait(5)
    for child in children:
        print(f"\n--- {child.name} (exit code {child.exit_code}) ---\n{child.last_words(LOG_LINES)}")
