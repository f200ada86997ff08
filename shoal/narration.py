"""What a process says while it runs: log records become plain lines, lines above the live panel when there is one, or JSON.

Rule: the rooms speak through `logging` under the name "shoal" and never print; this module alone decides how it looks. A line
is "HH:MM:SS text"; warnings and errors say so. With `--log-json` it is one JSON object per line on standard output: `time` (UTC),
`level`, `event` ("said", or "progress" with what `panel` would show) and `text`. Whoever listens may have gone, or log to a full
disk: that never ends the work. Neighbours: `panel` draws what changes in place."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
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


def json_line(level: str, event: str, text: str, facts: Mapping[str, object] | None = None) -> str:
    """One line of a JSON log. What JSON has no word for (a loss that is not a number) is null."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in (facts or {}).items()}
    return json.dumps({"time": now, "level": level, "event": event, "text": text, **known}, allow_nan=False)


class Narrator(logging.Handler):
    """Hands each record, as one line, to whoever shows lines at the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.show: Callable[[str], None] = _to_stderr
        self.as_json = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.as_json:
            line = json_line(record.levelname.lower(), "said", record.getMessage())
        else:
            level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
            text = CONTINUATION.join(printable(line) for line in record.getMessage().splitlines())
            if record.exc_info and self.level <= logging.DEBUG:
                text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
            line = f"{stamp()} {level}{text}"
        with contextlib.suppress(OSError, ValueError):
            self.show(line)


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


def to_stdout(line: str) -> None:
    """Where JSON lines go."""
    write(line, sys.stdout)


def speak_json() -> None:
    """Show what the rooms say as JSON from now on."""
    if narrator := current():
        narrator.show, narrator.as_json = to_stdout, True


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
