"""When a machine works and when it rests, with a clock and a battery that the test sets."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from shoal.peer import shifts as module
from shoal.peer.shifts import Hours, Shifts, end_of_shift, on_battery, patiently, rest
from shoal.protocol.errors import UnreachableError


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"2026-11-30 {text}")


def clock(*times: str) -> Callable[[], datetime.datetime]:
    """Shows these times, one after the other; the last one stays."""
    left = [at(text) for text in times]
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22-7", ("22:00", "23:59", "00:00", "06:59"), ("07:00", "12:00", "21:59")),
        ("9-17", ("09:00", "16:59"), ("08:59", "17:00", "00:00")),
        ("22:30-6:45", ("22:30", "06:44"), ("22:29", "06:45")),
        ("0-24", (), ()),
        ("18-24", ("18:00", "23:59"), ("00:00", "17:59")),
        ("0-6", ("00:00", "05:59"), ("06:00", "23:59")),
        (" 22 - 07:00 ", ("22:00",), ("07:00",)),
    ],
)
def test_hours_begin_at_their_first_minute_and_end_before_their_last(
    text: str, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    if text == "0-24":
        with pytest.raises(ValueError, match="begin when they end"):
            Hours.parse(text)
        return
    hours = Hours.parse(text)
    assert [time for time in inside if not hours.contain(at(time))] == []
    assert [time for time in outside if hours.contain(at(time))] == []


@pytest.mark.parametrize(
    "text", ["", "22", "22-", "-7", "22-7-9", "25-7", "22:60-7", "22.5-7", "ten-seven", "24:30-7", "7-7", "22–7"]
)
def test_what_is_not_two_times_of_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="these"):
        Hours.parse(text)


def test_a_rest_says_why_and_until_when() -> None:
    night = Hours.parse("22-7")
    assert Shifts(night, clock=clock("12:31")).rest() == (
        "it is 12:31 here, outside --hours 22:00-07:00: this peer rests until 22:00"
    )
    assert Shifts(night, clock=clock("23:00")).rest() == ""
    assert Shifts().rest() == ""
    assert "on battery" in Shifts(spare_battery=True, battery=lambda: True).rest()
    assert Shifts(night, True, clock("23:00"), lambda: True).rest().startswith("this machine runs on battery")


@pytest.mark.parametrize("battery", [False, None])
def test_a_machine_that_is_plugged_in_or_cannot_say_works(battery: bool | None) -> None:
    assert Shifts(spare_battery=True, battery=lambda: battery).rest() == ""


@pytest.mark.parametrize(("plugged", "expected"), [(True, False), (False, True), (None, None)])
def test_the_battery_is_read_as_the_system_shows_it(
    monkeypatch: pytest.MonkeyPatch, plugged: bool | None, expected: bool | None
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(percent=50, power_plugged=plugged), raising=False)
    assert on_battery() is expected


def test_a_battery_that_is_not_there_or_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert on_battery() is None

    def broken() -> None:
        raise FileNotFoundError("/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", broken, raising=False)
    assert on_battery() is None
    monkeypatch.delattr(psutil, "sensors_battery")
    assert on_battery() is None


async def test_a_rest_lasts_until_its_time_whatever_the_clock_does() -> None:
    """Somebody sets it back, forward and back again; only what it says at the moment counts."""
    shown: list[str] = []
    shifts = Shifts(Hours.parse("22-7"), clock=clock("21:58", "03:00"))
    assert await rest(shifts, shown.append)
    jumps = Shifts(Hours.parse("22-7"), clock=clock("21:59", "07:30", "12:00", "21:00", "22:00"))
    assert await rest(jumps, shown.append)
    assert [text[6:11] for text in shown] == ["21:58", "21:59", "07:30", "12:00", "21:00"]


async def test_a_shift_ends_once_when_its_time_is_over_and_nothing_speaks_against_it() -> None:
    busy, ended = [True, True, False], []
    await end_of_shift(
        Shifts(Hours.parse("22-7"), clock=clock("06:58", "06:59", "07:00")), lambda: not busy.pop(0), lambda why: ended.append(why)
    )
    assert busy == []
    assert len(ended) == 1
    assert "07:00" in ended[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_ctrl_c_and_a_closed_terminal_end_a_rest_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    asyncio.get_running_loop().add_signal_handler(number, lambda: pytest.fail("the daemon that is over was asked"))
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
    async with asyncio.timeout(5):
        assert not await rest(Shifts(Hours.parse("22-7"), clock=clock("12:00")), lambda _: None)
    signal.signal(number, before)


async def test_coming_back_is_tried_until_the_coordinator_answers() -> None:
    answers = [UnreachableError("nobody listens at x:1"), UnreachableError("nobody listens at x:1"), None]
    told: list[str] = []

    async def errand() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    assert await patiently(errand, UnreachableError, told.append)
    assert len(told) == 2
    assert told[0].startswith("nobody listens at x:1; trying again in")


async def test_what_waiting_does_not_heal_is_raised() -> None:
    async def errand() -> None:
        raise ValueError("banned")

    with pytest.raises(ValueError, match="banned"):
        await patiently(errand, UnreachableError, lambda _: None)
