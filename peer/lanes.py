"""The two directions of this peer's link: how fast each was seen to go, and how fast it may.

Rule: rates are measured on the bulk bytes that move anyway, and on a short probe while there are none. What counts is the fastest
long run in a row, because everything slower waited for somebody else: a lane that carried 10 MiB in a second can carry them in a
second. What the system takes into its buffers at once is no part of a run. An estimate goes half the way up to what a transfer
showed, and a quarter of the way down.

A cap is a token bucket: it lets `size` bytes through when those before them have had their time. Neighbours: `bulk` owns the lanes,
`exchange` passes them with every frame; the session stream is not capped.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable

RUN_BYTES, RUN_S = 8 << 20, 0.5
"""The least length of a run."""
SWALLOWED_BYTES_S = 500e6
"""A write that was done faster than this filled a buffer, and tells nothing of the link behind it."""
RISE, FALL = 0.5, 0.25
"""How far an estimate follows a transfer that was faster, or slower, than it."""


LEAST_CAP_BYTES_S = 62_500.0
"""Half a megabit: below that a part takes so long that others would take the peer for gone."""
_UNITS = {"bit": 1 / 8, "B": 1.0}
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def rate(text: str) -> float:
    """Bytes per second of "10Mbit", "1.5MB/s" or "1MiB/s"; bits and bytes are told apart by the word. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kKMG]i?)?(bit|B)(?:/s|ps)?", text.strip())
    if match is None:
        raise ValueError(f'{text!r} is no rate: write "10Mbit" or "1MiB/s"')
    number, prefix, unit = match.groups()
    bytes_s = float(number) * _PREFIXES[prefix or ""] * _UNITS[unit]
    if bytes_s < LEAST_CAP_BYTES_S:
        raise ValueError(f"{text!r} is too slow to take part: 500kbit at least")
    return bytes_s


class Lane:
    """One direction. `cap_bytes_s` 0: as fast as it goes."""

    def __init__(self, cap_bytes_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.cap_bytes_s = cap_bytes_s
        self._clock = clock
        self._free_at = 0.0
        self._total = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._fastest = 0.0
        self._estimate = 0.0
        self._paused = False
        self._idle_s = 0.0

    @property
    def bytes_s(self) -> float:
        """What this lane can carry; 0 while too little was carried to tell."""
        return min(self._estimate, self.cap_bytes_s) if self.cap_bytes_s else self._estimate

    def suppose(self, bytes_s: float) -> None:
        """What a probe showed: a beginning, where no transfer told yet."""
        self._estimate = self._estimate or bytes_s

    async def admit(self, size: int) -> None:
        """Returns when `size` bytes more may move."""
        if self.cap_bytes_s:
            now = self._clock()
            starts = max(now, self._free_at)
            self._free_at = starts + size / self.cap_bytes_s
            if starts > now:
                await asyncio.sleep(starts - now)

    def moved(self, size: int, waited_s: float | None = None) -> None:
        """So many bytes more have passed, just now; of a write, how long it waited."""
        if waited_s is not None and size > waited_s * SWALLOWED_BYTES_S:
            return
        now = self._clock() - self._idle_s
        if self._paused and self._marks:  # how long this one took is not known: the time goes on with the next
            self._idle_s += now - self._marks[-1][0]
            self._paused = False
            return
        self._paused = False
        self._total += size
        marks = self._marks
        marks.append((now, self._total))
        while len(marks) > 2 and marks[1][1] <= self._total - RUN_BYTES and marks[1][0] <= now - RUN_S:
            marks.popleft()
        since, before = marks[0]
        if self._total - before >= RUN_BYTES and now - since >= RUN_S:
            self._fastest = max(self._fastest, (self._total - before) / (now - since))

    def settle(self) -> None:
        """A transfer is over: the estimate moves towards what it showed. One too small to tell is part of the next one, without the
        time between."""
        if self._fastest and self._estimate:
            self._estimate += (RISE if self._fastest > self._estimate else FALL) * (self._fastest - self._estimate)
        elif self._fastest:
            self._estimate = self._fastest
        if self._fastest:
            self._marks.clear()
        self._fastest, self._paused = 0.0, True
