"""What a volunteer sees while the peer works: a live panel on a terminal, plain lines everywhere else.

Rule: a view is told the newest progress as often as the daemon likes and decides itself what is worth a line; a log file gets
one line per round, one per change of what the peer does, and one now and then during a long wait (`peer.waits`). Neighbours:
`peer.daemon` reports, `narration` brings what the rooms say, `command_peer` wires them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from shoal import narration
from shoal.peer.waits import said_again_s
from shoal.protocol.units import BITS_PER_BYTE

if TYPE_CHECKING:
    from rich.console import RenderableType

SHORTEST_PAUSE_S = 1.0
"""Rounds may be shorter than anybody reads."""
REFRESH_PER_S = 4
NO_VERSION = -1


class Progress(Protocol):
    """How far a peer is. A number that is not known yet is 0, a version -1, a text empty."""

    @property
    def phase(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def members(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def tokens_per_s(self) -> float: ...
    @property
    def bits_per_byte(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def waiting_for(self) -> str: ...
    @property
    def waiting_s(self) -> float: ...


PROGRESS = tuple(name for name in vars(Progress) if isinstance(vars(Progress)[name], property))
"""What is known of a peer's progress, by name."""


class View(Protocol):
    """Shows progress, and lines in between."""

    def watch(self, progress: Progress) -> None: ...
    def say(self, line: str) -> None: ...


def duration(seconds: float) -> str:
    """Seconds as a person says them: "8 s", "3 min 05 s", "2 h 10 min"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def amount(number: float) -> str:
    """A count in three digits: "640", "6.3k", "12M"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            scaled = number / limit
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{number:.0f}"


def byte_count(number: float) -> str:
    """Bytes in powers of ten: "640 B", "6.3 kB", "1.2 GB"."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f} B"


def bits(loss: float) -> str:
    """A training loss (nats) in the unit of the held-out figure: bits."""
    return f"{loss / math.log(2):.3f}"


def counted(number: int, noun: str) -> str:
    """ "1 member", "2 members"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def fact_names(unit: str) -> tuple[str, ...]:
    """What `facts` may name. The panel keeps a line for each, so that nothing jumps."""
    return ("phase", "round", "version", "members", "steps", f"training {unit}", "tokens/s", f"held-out {unit}")


def facts(progress: Progress) -> list[tuple[str, str]]:
    """What is known now, in the order in which a volunteer wants to read it. What is not known yet is left out."""
    known = [("phase", progress.phase or "starting")]
    if progress.members > 0:
        known.append(("round", str(progress.round)))
    if progress.version > NO_VERSION:
        known.append(("version", str(progress.version)))
    if progress.members > 0:
        known.append(("members", str(progress.members)))
    if progress.steps > 0:
        known.append(("steps", str(progress.steps)))
    if progress.loss > 0:
        known.append((f"training {progress.unit}", bits(progress.loss)))
    if progress.tokens_per_s > 0:
        known.append(("tokens/s", amount(progress.tokens_per_s)))
    if progress.bits_per_byte > 0:
        known.append((f"held-out {progress.unit}", f"{progress.bits_per_byte:.3f}"))
    return known


def waiting(progress: Progress) -> str:
    """The sentence about what is waited for and since when; empty when nothing is."""
    return f"still waiting after {duration(progress.waiting_s)} for {progress.waiting_for}" if progress.waiting_for else ""


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, write: Callable[[str], None] | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._write = write or narration.to_stdout
        self._now = now
        self._last: tuple[str, int] | None = None
        self._last_at = -SHORTEST_PAUSE_S
        self._waits_said = 0

    def watch(self, progress: Progress) -> None:
        """A line when the phase changed before the first version, when the version moved on (once a second at most), and when a
        wait has become long."""
        now = self._now()
        moved = (progress.phase if progress.version <= 0 else "", progress.version)
        if not progress.waiting_for or progress.waiting_s < said_again_s(0):
            self._waits_said = 0
        long_wait = bool(progress.waiting_for) and progress.waiting_s >= said_again_s(self._waits_said)
        if moved == self._last and not long_wait:
            return
        if now - self._last_at < (SHORTEST_PAUSE_S if progress.version > 0 else 0.0):
            return
        self._last, self._last_at = moved, now
        self._waits_said += long_wait
        text = waiting(progress) if long_wait else "  ".join(f"{name} {value}" for name, value in facts(progress))
        self.say(self._line(text, progress))

    def _line(self, text: str, progress: Progress) -> str:
        return f"{narration.stamp()} {narration.printable(text)}"

    def say(self, line: str) -> None:
        """Write one line."""
        self._write(line)


class JsonLines(Lines):
    """The same lines as JSON, with every number under its name."""

    def _line(self, text: str, progress: Progress) -> str:
        known = {name: getattr(progress, name) for name in PROGRESS}
        return narration.json_line("info", "progress", text, known)


class Panel:
    """A panel that is redrawn in place; lines scroll by above it."""

    def __init__(self, title: str, print_above: Callable[[str], None]) -> None:
        self._title = title
        self._print_above = print_above
        self._progress: Progress | None = None
        self._heard_at = 0.0

    def watch(self, progress: Progress) -> None:
        """Remember the newest progress; the next redraw shows it."""
        self._progress, self._heard_at = progress, time.monotonic()

    def say(self, line: str) -> None:
        """Let a line scroll by above the panel."""
        self._print_above(line)

    def __rich__(self) -> RenderableType:
        from rich.panel import Panel as Frame
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        known = dict(facts(self._progress)) if self._progress is not None else {"phase": "starting"}
        for name in fact_names(self._progress.unit if self._progress is not None else BITS_PER_BYTE):
            grid.add_row(name, Text(known.get(name, "")))
        wait = ""
        if self._progress is not None and self._progress.waiting_for:
            waited = self._progress.waiting_s + time.monotonic() - self._heard_at
            wait = f"{self._progress.waiting_for}, since {duration(waited)}"
        grid.add_row("waiting for", Text(wait, style="yellow"))
        return Frame(grid, title=Text(self._title), title_align="left", subtitle="Ctrl-C leaves", subtitle_align="right")


@contextmanager
def open_view(title: str, as_json: bool = False) -> Iterator[View]:
    """The view that fits where stdout goes; what the rooms say goes through it as long as it is open."""
    narrator = narration.current()
    before = narrator.show if narrator else None
    try:
        if as_json:
            lines = JsonLines()
            if narrator:
                narrator.show, narrator.as_json = lines.say, True
            yield lines
        elif sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console()
            panel = Panel(title, lambda line: console.print(line, markup=False, highlight=False))
            if narrator:
                narrator.show = panel.say
            with Live(panel, console=console, refresh_per_second=REFRESH_PER_S, transient=True):
                yield panel
        else:
            yield Lines()
    finally:
        if narrator and before:
            narrator.show, narrator.as_json = before, False
