"""The world of the simulation: one clock, one heap of things to come, one source of chance.

Rule: nothing in a simulated world asks the machine it runs on for time, chance or order; `random.Random(seed)` and the heap
decide everything, so that a seed is a whole history. Neighbours: `streams`, `meeting` and `machine` are what happens in it,
`judge` watches, `story` starts it and throws the stones.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


class Violation(Exception):
    """A promise was broken. The message says which; the world's trace says how it came to it."""


@dataclass(frozen=True)
class Weather:
    """How rough a world is: chances per opportunity, and mean seconds between faults (0: never)."""

    latency_s: float = 0.05
    stream_breaks_every_s: float = 0.0
    bulk_break: float = 0.0
    """Chance that one bulk stream breaks, per round and pair."""
    bulk_duplicate: float = 0.0
    daemon_crash_every_s: float = 0.0
    crash_in_apply: float = 0.0
    """Chance of a daemon's death between two parts of one entry."""
    crash_between_effects: float = 0.0
    """Chance that a daemon's death cuts one list of effects."""
    machine_loss: float = 0.0
    """Chance that a daemon's crash takes its vault along."""
    trainer_crash: float = 0.0
    """Chance of a trainer's death, per order to train."""
    non_finite: float = 0.0
    """Chance that a published delta is not finite."""
    poison: float = 0.0
    """Chance that a contribution turns non-finite on its way to one reducer."""
    freeze_every_s: float = 0.0
    """Between two freezes of some process, for seconds or longer than anybody waits: a laptop's lid, a swapping machine."""
    coordinator_crash_every_s: float = 0.0
    leave_every_s: float = 0.0
    join_every_s: float = 0.0
    operator_every_s: float = 0.0
    corrupt: float = 0.0
    """Chance that a result changes on its way back to one member."""
    rot: float = 0.0
    """Chance that a vault's bytes change silently after an entry was applied."""
    replay: float = 0.0
    """Chance that a message is followed by one from an earlier session or term."""
    slow: float = 0.0
    """Chance that something takes very long (a transfer, a training)."""
    fetch_fails: float = 0.0


CALM = Weather()


class World:
    """Virtual time and what comes next."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.weather = weather
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.trace: deque[tuple[float, str, str, Any]] = deque(maxlen=50_000)

    def after(self, delay_s: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what(*arguments)` in `delay_s` seconds; equal times in the order of asking."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, what, arguments))

    def step(self) -> bool:
        """Let the next thing happen. False: nothing is left to come."""
        if not self._heap:
            return False
        self.now, _, what, arguments = heapq.heappop(self._heap)
        self.events += 1
        what(*arguments)
        return True

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def latency(self) -> float:
        """One way through the network."""
        delay = self.random.expovariate(1 / self.weather.latency_s) + 0.002
        if self.chance(self.weather.slow):
            delay += self.random.uniform(0.5, 8)
        return delay

    def note(self, who: str, what: str, thing: Any = "") -> None:
        """One line of the trace; put into words only when somebody reads it."""
        self.trace.append((self.now, who, what, thing))

    def tail(self, lines: int = 120, about: Callable[[str, str], bool] | None = None) -> str:
        """The end of the trace, for people."""
        if lines <= 0:
            return ""
        chosen = [line for line in self.trace if about is None or about(line[1], line[2])][-lines:]
        return "\n".join(f"{now:10.3f}  {who:<12} {what:<14} {words(thing)}" for now, who, what, thing in chosen)


def words(thing: Any, depth: int = 0) -> str:
    """A short form of a message, event or effect: digests cut, spans as ranges, defaults left out."""
    if isinstance(thing, bytes):
        return thing.hex()[:6] or "-"
    if isinstance(thing, tuple):
        return "(" + ", ".join(words(item, depth + 1) for item in thing) + ")"
    if isinstance(thing, float):
        return f"{thing:.4g}"
    if is_dataclass(thing) and not isinstance(thing, type):
        name = type(thing).__name__
        if name == "Span":
            return f"{thing.start}..{thing.stop}"  # type: ignore[attr-defined]
        if name == "PartKey":
            return f"r{thing.round}p{thing.part}a{thing.attempt}"  # type: ignore[attr-defined]
        if name == "Contact":
            return str(thing.peer)  # type: ignore[attr-defined]
        if name == "Layout":
            return "Layout"
        shown = []
        for entry in fields(thing):
            value = getattr(thing, entry.name)
            if entry.name in ("spec", "major", "minor", "software", "device", "section") or value in ("", (), b"", None, 0.0):
                continue
            shown.append(f"{entry.name}={words(value, depth + 1)}")
        return f"{name}({', '.join(shown)})"
    return str(thing)
