"""What a process says while it runs: log records become plain lines, or lines above the live panel when there is one.

Rule: the rooms speak through `logging` under the name "shoal" and never print; this module alone decides how it looks. A line
is "HH:MM:SS text"; warnings and errors say so. Whoever listens may have gone, or log to a full disk: that never ends the work.
Neighbours: `panel` draws what changes in place."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

LOGGER = "shoal"
CONTINUATION = "\n         "
"""Further lines of a message stand below its text, so that no message can pass for two."""


def stamp() -> str:
    """The time of day, as lines begin with it."""
    return time.strftime("%H:%M:%S")


def printable(text: str) -> str:
    """The text without anything that could steer a terminal: names and reasons come from strangers."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


class Narrator(logging.Handler):
    """Hands each record, as one line, to whoever shows lines at the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.show: Callable[[str], None] = _to_stderr

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        text = CONTINUATION.join(printable(line) for line in record.getMessage().splitlines())
        if record.exc_info and self.level <= logging.DEBUG:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        with contextlib.suppress(OSError, ValueError):
            self.show(f"{stamp()} {level}{text}")


def write(line: str, stream: TextIO) -> None:
    """Write one line of narration, if that can be done."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=stream, flush=True)


def finish() -> None:
    """At the end of the process: what could not be written stays unwritten, instead of becoming Python's exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _to_stderr(line: str) -> None:
    write(line, sys.stderr)


def begin(verbose: bool) -> Narrator:
    """Show what the rooms say from now on. Calling it again changes the level and keeps the one narrator."""
    logger = logging.getLogger(LOGGER)
    narrator = current()
    if narrator is None:
        narrator = Narrator()
        logger.addHandler(narrator)
    level = logging.DEBUG if verbose else logging.INFO
    narrator.setLevel(level)
    logger.setLevel(level)
    logger.propagate = False
    return narrator


def current() -> Narrator | None:
    """The narrator of this process, once `begin` was called."""
    return next((handler for handler in logging.getLogger(LOGGER).handlers if isinstance(handler, Narrator)), None)
