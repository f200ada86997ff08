"""Child processes that never outlive their parent and always leave a log.

Rule: a child runs in a process group of its own, so that Ctrl-C reaches the parent alone and the parent decides; its standard
input is the leash (`leash`), its output goes to one file. `end` asks, waits a little, then kills the whole group. Neighbour:
`localswarm` runs a swarm out of such children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 15


class Child:
    """One `python -m shoal ...` process."""

    def __init__(self, name: str, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shoal", *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id, which is the id of its group as well."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.poll()

    def ask_to_leave(self) -> None:
        """What Ctrl-C does, and what works from the first instant of the process on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it, and every process that it started, without a chance to tidy up."""
        if sys.platform == "win32":
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None when it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def release(self) -> None:
        """Close the leash."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def last_words(self, lines: int = LOG_TAIL_LINES) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""


def end(children: Iterable[Child], patience_s: float = 3.0) -> None:
    """Ask all of them to leave, wait for all together, then kill what is left of each group."""
    remaining = list(children)
    for child in remaining:
        child.ask_to_leave()
    deadline = time.monotonic() + patience_s
    for child in remaining:
        child.wait(max(0.0, deadline - time.monotonic()))
    for child in remaining:
        child.kill()
        child.release()
