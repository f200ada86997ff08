"""What asks a process to stop: Ctrl-C, SIGTERM, and the end of its terminal.

Rule: who closes the terminal ends what runs in it, unless it was started to outlive that (nohup). Neighbours: the coordinator's
server and a peer's rests use `interrupted`; the daemon, for which a second Ctrl-C means something else, only asks which signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator


def hangup_signals() -> tuple[signal.Signals, ...]:
    """The one that the end of the terminal sends, where there is one that is not ignored."""
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return ()
    return (signal.SIGHUP,)


@contextlib.contextmanager
def interrupted(stop: asyncio.Event | None = None) -> Iterator[asyncio.Event]:
    """An event (`stop`, or a new one) that SIGINT, SIGTERM and the terminal's end set while the block lasts, where this is possible
    (the main thread of a POSIX process)."""
    loop, stop = asyncio.get_running_loop(), stop or asyncio.Event()
    taken = []
    for number in (signal.SIGINT, signal.SIGTERM, *hangup_signals()):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
            taken.append(number)
    try:
        yield stop
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
