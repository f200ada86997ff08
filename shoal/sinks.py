"""TensorBoard and Weights & Biases, which may fail without harm.

Rule: nothing that a sink does reaches the training. Each has a thread and a short queue of its own: it may be slow, hang, raise or
not be installed; points that find no room are dropped and counted, one warning says why, and leaving waits for it for a second at
most. Neighbours: `metrics` is what is asked instead of what is pushed, `command_peer` and `command_coordinator` feed the sinks.
"""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shoal.metrics import RunSeen
    from shoal.peer.daemon import PeerProgress

ROOM = 256
"""Points that may wait for a sink."""
CLOSE_WITHIN_S = 1.0
STUCK_AFTER_S = 30.0
"""A sink that takes longer than this for one point is spoken of."""


@dataclass(frozen=True)
class Point:
    """Some numbers at one version of the shared state."""

    version: int
    numbers: Mapping[str, float]


class Sink(Protocol):
    """Takes points. May block and may raise whatever it likes."""

    def write(self, point: Point) -> None: ...
    def close(self) -> None: ...


class Feed:
    """One sink, its thread and its queue. No method waits for the sink or raises what it raises."""

    def __init__(self, name: str, open_sink: Callable[[], Sink], warn: Callable[[str], None], room: int = ROOM) -> None:
        """`open_sink` runs in the thread, too: an import or a login may take its time."""
        self.name = name
        self.dropped = 0
        """Points that the sink never got."""
        self._open, self._warn = open_sink, warn
        self._points: queue.Queue[Point | None] = queue.Queue(room)
        self._busy_since: float | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._run, name=f"shoal-{name}", daemon=True)
        self._thread.start()

    def offer(self, point: Point) -> None:
        """Give the sink a point, if it takes any."""
        try:
            self._points.put_nowait(point)
        except queue.Full:
            self.dropped += 1
        since = self._busy_since
        if since is not None and time.monotonic() - since > STUCK_AFTER_S:
            self._complain(f"has taken nothing for {STUCK_AFTER_S:.0f} s; training goes on without it")

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Let the sink write what it has and close, if it can within this time."""
        deadline = time.monotonic() + within_s
        try:
            self._points.put(None, timeout=within_s)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        sink: Sink | None = None
        try:
            self._busy_since = time.monotonic()
            sink = self._open()
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on; it is said once
            self._complain(f"is not used: {error}")
        self._busy_since = None
        while (point := self._points.get()) is not None:
            if sink is None:
                self.dropped += 1
                continue
            try:
                self._busy_since = time.monotonic()
                sink.write(point)
            except Exception as error:  # noqa: BLE001 - like above
                self.dropped += 1
                self._complain(f"failed ({type(error).__name__}: {error}); what it does not take is dropped, training goes on")
            finally:
                self._busy_since = None
        if sink is not None:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - like above
                self._complain(f"could not be closed: {error}")

    def _complain(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"{self.name} {' '.join(what.split())}")


class Feeds:
    """All sinks of a process: a point for each version."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds
        self._version: int | None = None

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def peer(self, progress: PeerProgress) -> None:
        """A peer is this far."""
        numbers = {
            "loss": progress.loss,
            "heldout_bits_per_byte": progress.bits_per_byte,
            "tokens_per_second": progress.tokens_per_s,
            "members": progress.members,
            "sent_bytes": progress.totals.sent_bytes,
            "received_bytes": progress.totals.received_bytes,
        }
        self._offer(progress.version, numbers)

    def run(self, run: RunSeen) -> None:
        """A run is this far."""
        status = run.status
        numbers = {
            "heldout_bits_per_byte": status.bits_per_byte,
            "committed_tokens": status.committed_tokens,
            "members": status.members,
            "tokens_per_second": sum(peer.tokens_per_s for peer in run.peers),
        }
        self._offer(status.version, numbers)

    def _offer(self, version: int, numbers: Mapping[str, float]) -> None:
        if version < 0 or version == self._version:
            return
        self._version = version
        known = {name: float(value) for name, value in numbers.items() if value}
        for feed in self._feeds:
            feed.offer(Point(version, known))

    def close(self) -> None:
        """Let all of them finish, for a moment."""
        deadline = time.monotonic() + CLOSE_WITHIN_S
        for feed in self._feeds:
            feed.close(max(0.0, deadline - time.monotonic()))


def open_feeds(tensorboard: Path | None, wandb: str, name: str, warn: Callable[[str], None]) -> Feeds:
    """The sinks that somebody wants: a directory for TensorBoard, a project of Weights & Biases. `name` tells this process's
    curves from others'."""
    feeds = []
    if tensorboard is not None:
        directory = tensorboard.expanduser().absolute() / name
        feeds.append(Feed("TensorBoard", lambda: TensorBoard(directory), warn))
    if wandb:
        feeds.append(Feed("Weights & Biases", lambda: WeightsAndBiases(wandb, name), warn))
    return Feeds(feeds)


class MissingPackage(Exception):
    """An optional package is not installed."""


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(f"{error}; pip install 'shoal[{extra}]'") from error


class TensorBoard:
    """Event files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._writer = _optional("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(directory))

    def write(self, point: Point) -> None:
        """One scalar for each number, with the version as its step."""
        for name, value in point.numbers.items():
            self._writer.add_scalar(name, value, point.version)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of a project at wandb.ai, or wherever WANDB_BASE_URL says; WANDB_MODE=offline keeps it here."""

    def __init__(self, project: str, name: str) -> None:
        wandb = _optional("wandb", "wandb")
        self._run = wandb.init(project=project, name=name, settings=wandb.Settings(console="off"))

    def write(self, point: Point) -> None:
        """All numbers at once; `version` is one of them, so that it can be an axis also after a restart."""
        self._run.log({**point.numbers, "version": point.version})

    def close(self) -> None:
        self._run.finish()
