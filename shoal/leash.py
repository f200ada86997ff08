"""Ties a child process to its parent: when the parent is gone, however it went, the child leaves within seconds.

The parent keeps the write end of the child's standard input open and says nothing; end-of-file means that it is gone. That
works on every platform and needs no process to watch another. Neighbours: `processes` holds the other end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

LEAVE_WITHIN_S = 4.0


def wear() -> None:
    """From now on leave like after Ctrl-C when standard input ends, and leave at once when that takes too long."""
    threading.Thread(target=_wait_for_parent, name="leash", daemon=True).start()


def _wait_for_parent() -> None:
    descriptor = sys.stdin.fileno()
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LEAVE_WITHIN_S)
    os._exit(1)
