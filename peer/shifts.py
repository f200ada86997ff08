"""When a volunteer's machine works for the run, and when it rests: at night only, never on battery.

Rule: resting is leaving in good order and coming back. The peer hands its lease back, says goodbye, frees its memory and joins
again when its time has come, so that nobody waits for a machine that sleeps. Whether it is time is asked anew every few seconds,
of the local clock and the battery as they are then: a clock that is set, summer time or a laptop that slept are nothing special.
Neighbours: `daemon` is what works, `shoal peer join` has the options.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

from shoal.protocol.signals import interrupted

LOOK_EVERY_S = 5.0
"""How often the clock and the battery are looked at."""

_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?")
DAY_MINUTES = 24 * 60


@dataclass(frozen=True)
class Hours:
    """The part of each day in which this machine may work, local time: from `start` until just before `end`, over midnight if need
    be. Minutes since midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Hours:
        """ "22-7" or "22:30-6:45". Raises ValueError."""
        first, dash, last = text.partition("-")
        start, end = _minute(first), _minute(last)
        if not dash or start is None or end is None:
            raise ValueError("these are not two times of day")
        if start == end:
            raise ValueError("these hours begin when they end")
        return cls(start, end)

    def contain(self, now: datetime.datetime) -> bool:
        """Whether the machine may work at this (local) time."""
        minute = now.hour * 60 + now.minute
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return f"{_clock(self.start)}-{_clock(self.end)}"


def _minute(text: str) -> int | None:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    minute = int(found[1]) * 60 + int(found[2] or 0)
    return minute % DAY_MINUTES if minute <= DAY_MINUTES and int(found[2] or 0) < 60 else None


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def on_battery() -> bool | None:
    """Whether this machine runs on its battery now; None when it has none, or does not say."""
    sensors = getattr(psutil, "sensors_battery", None)  # not on every system
    try:
        battery = sensors() if sensors is not None else None
    except (OSError, RuntimeError, psutil.Error):
        return None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


@dataclass(frozen=True)
class Shifts:
    """What decides about work and rest. Without hours and without the battery's say it is always work."""

    hours: Hours | None = None
    spare_battery: bool = False
    clock: Callable[[], datetime.datetime] = datetime.datetime.now
    """Local time."""
    battery: Callable[[], bool | None] = on_battery

    def rest(self) -> str:
        """Why this machine rests now and until when, as a sentence; empty when it works."""
        if self.hours is not None and not self.hours.contain(now := self.clock()):
            return f"it is {now:%H:%M} here, outside --hours {self.hours}: this peer rests until {_clock(self.hours.start)}"
        if self.spare_battery and self.battery():
            return "this machine runs on battery (--pause-on-battery): this peer rests until it is plugged in"
        return ""


async def rest(shifts: Shifts, show: Callable[[str], None]) -> bool:
    """Wait until it is time to work, showing why not as often as it is looked at. False: Ctrl-C or SIGTERM came first."""
    with interrupted() as stop:
        while why := shifts.rest():
            show(why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await stop.wait()
                    return False
    return True


async def end_of_shift(shifts: Shifts, may_end: Callable[[], bool], end: Callable[[str], None]) -> None:
    """Call `end`, once, with the reason, when it is time to rest and `may_end`."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if (why := shifts.rest()) and may_end():
            end(why)
            return


async def patiently(errand: Callable[[], Awaitable[None]], failed: type[Exception], tell: Callable[[str], None]) -> bool:
    """Try something until it no longer fails in this way, with growing pauses. False: Ctrl-C or SIGTERM came first."""
    pause_s = LOOK_EVERY_S
    with interrupted() as stop:
        while True:
            try:
                await errand()
                return True
            except failed as error:
                tell(f"{error}; trying again in {pause_s:.0f} s, Ctrl-C leaves")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
                    return False
            pause_s = min(2 * pause_s, 300.0)
