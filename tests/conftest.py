"""House rules for every test: none hangs, none leaves anything behind, none depends on the machine's proxy settings.

- A test has a time limit (`timeout`: 120 s, 600 s when it is marked slow, its own mark beats both). At the limit the stacks
  of all threads are dumped and the test fails; stuck so deep that a signal does not reach it, its process ends a little later.
- A test that leaves a child process, or a file of shoal's in shared memory or the temporary directory, fails
  (`nothing_is_left_behind`).
- `--seed N` replays a simulation; without it a fixed one is used.
- Hypothesis sets no time limit for an example: other tests run beside it.
- Tests that use network namespaces wait for each other (`internet`): they share one address of this machine.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import hypothesis
import psutil
import pytest

LIMIT_S = 120
SLOW_LIMIT_S = 600
SOAK_LIMIT_S = 4 * 3600
HARD_LIMIT_AFTER_S = 20
"""How long after its limit a test's process is ended, when it is still in that test."""
LEFTOVER_GRACE_S = 3.0
"""How long a process that was told to end may take to be gone."""

MARKER = "SHOAL_TEST_PROCESS"
"""Environment variable by which a process is recognised as started, directly or not, by the pytest process that it names."""
os.environ[MARKER] = str(os.getpid())

hypothesis.settings.register_profile("shoal", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("shoal")

for _name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # before torch is loaded: two workers with all cores each only wait for each other

_stderr: IO[str] | None = None
"""The real standard error, which pytest does not capture."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of the simulations (default: a fixed one)")


def pytest_configure(config: pytest.Config) -> None:
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _stderr is not None:
        _stderr.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark, limit_s in (("soak", SOAK_LIMIT_S), ("slow", SLOW_LIMIT_S)):
            if item.get_closest_marker(mark) is None:
                continue
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(limit_s))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The last resort behind pytest-timeout: a process that no signal reaches dumps its stacks and ends."""
    mark = item.get_closest_marker("timeout")
    limit_s = float(mark.args[0] if mark and mark.args else mark.kwargs.get("timeout", LIMIT_S) if mark else LIMIT_S)
    if limit_s > 0 and _stderr is not None:
        faulthandler.dump_traceback_later(limit_s + HARD_LIMIT_AFTER_S, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int | None:
    """The seed given with `--seed`, or None: then a simulation uses its own list of seeds."""
    given: int | None = request.config.getoption("--seed")
    return given


# --- nothing is left behind -----------------------------------------------------------------------------------------------------


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _orphans(known_pids: set[int]) -> set[psutil.Process]:
    """New processes that descend from this one by their environment, though their parent is gone."""
    found = set()
    for pid in set(psutil.pids()) - known_pids:
        try:
            process = psutil.Process(pid)
            if process.environ().get(MARKER) == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
        except (psutil.Error, OSError):
            continue
    return found


def _tells_of_a_leak(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True  # nobody waited for it
        return not any("resource_tracker" in word for word in process.cmdline())  # multiprocessing's own lives as long as we do
    except psutil.NoSuchProcess:
        return False


ROOTS = ("/dev/shm/shoal", str(Path(tempfile.gettempdir()) / "shoal"))
_made_here: set[str] = set()
"""Paths of shoal's that this process made."""
_started = 0
"""Processes that this process started."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    global _started
    if event in ("os.mkdir", "open"):
        path = arguments[0]
        if isinstance(path, str | os.PathLike) and (text := os.fspath(path)).startswith(ROOTS):
            _made_here.add(text)
    elif event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        _started += 1


sys.addaudithook(_watch)


WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw")
"""This process among those that run tests at the same time. The runs of `toyswarm` are named with it, so that nobody is accused of
a local copy that a peer of another one's left for a while."""


def _shoal_files() -> set[Path]:
    found = {path for root in ROOTS for path in Path(root).parent.glob(Path(root).name + "*")}
    return {path for path in found if (named := re.search(r"-(gw\d*)x", path.name)) is None or named[1] == WORKER}


def _in_use_elsewhere(path: Path) -> bool:
    """Whether a process that is no child of this one works under `path`: another xdist worker, or a swarm of the developer's."""
    ours = {os.getpid(), *(child.pid for child in _children())}
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            if str(path) in Path(f"/proc/{process.pid}/maps").read_text() or any(str(path) in word for word in process.cmdline()):
                return True
            if any(Path(opened.path).is_relative_to(path) for opened in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test after which there is a child process or a shoal file that was not there before."""
    known_pids, children, files, started = set(psutil.pids()), _children(), _shoal_files(), _started
    _made_here.clear()
    yield
    left_files = _shoal_files() - files
    if _started == started:  # then whatever is new and not of our making is somebody else's
        left_files &= {Path(path) for path in _made_here}
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    while True:
        left_processes = [child for child in (_children() - children) | _orphans(known_pids) if _tells_of_a_leak(child)]
        left_files = {path for path in left_files if path.exists() and not _in_use_elsewhere(path)}
        if not left_processes and not left_files:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    described = []
    for child in left_processes:
        try:
            described.append(f"process {child.pid}: {' '.join(child.cmdline()) or child.name()} ({child.status()})")
            child.kill()
            child.wait(5)
        except psutil.Error:
            continue
    pytest.fail("left behind: " + "; ".join([*described, *map(str, sorted(left_files))]))
