"""How the demo looks: on a terminal a table of peers that changes in place, elsewhere a line per committed round.

Neighbours: `demo` tells the story, `panel` is the same idea for a single peer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal import narration
from shoal.demo import PEERS, Audience, Result, Snapshot
from shoal.panel import NO_VERSION, REFRESH_PER_S, amount, bits, counted, duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def headline(snapshot: Snapshot) -> str:
    """How far the run is: before its first version, what the demo itself waits for."""
    status = snapshot.status
    if snapshot.starting or status.version == NO_VERSION:
        return f"starting {PEERS} peers ({status.members} of {PEERS} ready)"
    return f"version {status.version} of about {snapshot.rounds}"


def waits(snapshot: Snapshot) -> str:
    """What the run waits for, but not what the demo arranged."""
    return "" if snapshot.starting else snapshot.status.waiting_for


class LogAudience:
    """Plain lines: one per event, one per committed round, one per change of what is waited for."""

    def __init__(self) -> None:
        self._last: tuple[int, str, str] = (0, "", "")

    def say(self, line: str) -> None:
        """Write a line with the time before it."""
        print(f"{narration.stamp()} {line}", flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Write what is new, if anything is."""
        status = snapshot.status
        now = (status.version, waits(snapshot), headline(snapshot) if snapshot.starting else "")
        if now == self._last:
            return
        if now[2] and now[2] != self._last[2]:
            self.say(now[2])
        if status.version > self._last[0]:
            rates = [peer.tokens_per_s for peer in snapshot.peers if peer.tokens_per_s > 0]
            losses = [peer.loss for peer in snapshot.peers if peer.loss > 0]
            parts = [headline(snapshot), counted(status.members, "member")]
            if rates:
                parts.append(f"{amount(sum(rates))} tokens/s")
            if losses:
                parts.append(f"bits per byte: training {bits(sum(losses) / len(losses))}")
            if status.bits_per_byte > 0:
                parts.append(f"held-out {status.bits_per_byte:.3f}")
            self.say("  ".join(parts))
        if now[1] and now[1] != self._last[1]:
            self.say(f"waiting for {now[1]}")
        self._last = now


class LiveAudience:
    """A table that is redrawn in place; events scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._snapshot: Snapshot | None = None

    def say(self, line: str) -> None:
        """Let a line scroll by above the table."""
        self._console.print(f"{narration.stamp()} {line}", markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """Remember the newest state of things; the next redraw shows it."""
        self._snapshot = snapshot

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        snapshot = self._snapshot
        if snapshot is None:
            return Text("starting", style="dim")
        status = snapshot.status
        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in ("peer", "phase", "version", "bits/byte", "tokens/s", "tokens"):
            table.add_column(head, justify="left" if head in ("peer", "phase") else "right", min_width=8)
        for peer in sorted(snapshot.peers, key=lambda peer: peer.name):
            table.add_row(
                Text(peer.name),
                Text(peer.phase or peer.state),
                str(peer.version) if peer.version > NO_VERSION else "",
                bits(peer.loss) if peer.loss > 0 else "",
                amount(peer.tokens_per_s) if peer.tokens_per_s > 0 else "",
                amount(peer.committed_tokens),
            )
        held_out = f"   held-out {status.bits_per_byte:.3f} bits per byte" if status.bits_per_byte > 0 else ""
        line = f"{headline(snapshot)}   {duration(snapshot.elapsed_s)}{held_out}"
        top = Table.grid()  # a bar alone does not end its line
        top.add_row(
            ProgressBar(total=max(1, status.total_tokens), completed=min(status.committed_tokens, status.total_tokens), width=60)
        )
        waiting = waits(snapshot)
        lines = (
            top,
            Text(line),
            Text(f"waiting for {waiting}" if waiting else status.phase * (not snapshot.starting), style="dim"),
        )
        return Group("", *lines, table)


@contextmanager
def open_audience() -> Iterator[Audience]:
    """The audience that fits where stdout goes."""
    if not sys.stdout.isatty():
        yield LogAudience()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    audience = LiveAudience(console)
    with Live(audience, console=console, refresh_per_second=REFRESH_PER_S, transient=True):
        yield audience


def print_results(results: Sequence[Result]) -> None:
    """The final table."""
    width = max(len(result.what) for result in results)
    print()
    for result in results:
        print(f"  {result.what.ljust(width)}   {result.value}{'' if result.kept else '   << not as promised'}")
    print(flush=True)
