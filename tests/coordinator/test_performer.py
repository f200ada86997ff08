"""The performer: order, durability, and streams that cannot hold the core up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from shoal.coordinator.claims import LINES, WINDOW_S
from shoal.coordinator.events import (
    Answer,
    Asked,
    Bar,
    Close,
    Connected,
    Disconnected,
    Effect,
    Event,
    Journal,
    Log,
    Said,
    Send,
    TimePassed,
)
from shoal.coordinator.performer import STREAM_CREDIT, Performer
from shoal.coordinator.records import Record, TermRaised
from shoal.protocol.admin import Done, Pause
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.messages import Envelope, Goodbye, Heartbeat, Notice

Script = Callable[[Event], list[Effect]]


class ScriptedCore:
    """Answers each event as the script says and remembers what it was told."""

    def __init__(self, script: Script) -> None:
        self.wake_at: float | None = None
        self.heard: list[Event] = []
        self._script = script

    def replay(self, record: Record) -> None: ...

    def start(self, now: float) -> list[Effect]:
        return [Journal(TermRaised(1))]

    def on(self, event: Event, now: float) -> list[Effect]:
        self.heard.append(event)
        return self._script(event)


class Trace:
    """A store and a stream that write down, in one list, what happened in which order."""

    def __init__(self) -> None:
        self.steps: list[object] = []
        self.disk_is_slow_s = 0.0
        self.history: list[tuple[str, str]] = []

    def append(self, records: list[Record], told: list[tuple[str, str]]) -> None:
        time.sleep(self.disk_is_slow_s)
        self.steps += records
        self.history += told

    def send(self, envelope: Envelope) -> None:
        self.steps.append(envelope.body)

    def close(self, reason: str) -> None:
        self.steps.append(f"closed: {reason}")


@asynccontextmanager
async def running(core: ScriptedCore, trace: Trace, said: list[str] | None = None) -> AsyncIterator[Performer]:
    lines: list[str] = said if said is not None else []
    performer = Performer(core, trace, lambda text, level: lines.append(text))
    task = asyncio.create_task(performer.run())
    yield performer
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def notice(number: int) -> Envelope:
    return Envelope(1, 1, Notice(str(number)))


def beat(steps: int) -> Envelope:
    return Envelope(1, 1, Heartbeat("training", steps))


async def test_nothing_is_sent_before_the_records_ahead_of_it_are_durable() -> None:
    def script(event: Event) -> list[Effect]:
        if not isinstance(event, Said):
            return []
        body = event.envelope.body
        assert isinstance(body, Heartbeat)
        number = body.steps
        return [
            Journal(TermRaised(number)),
            Send(1, notice(number)),
            Journal(TermRaised(number + 100)),
            Send(1, notice(number + 100)),
        ]

    trace = Trace()
    trace.disk_is_slow_s = 0.01
    async with running(ScriptedCore(script), trace) as performer:
        connection = performer.connect("p", frozenset({"peer"}), "host", trace)
        for number in range(2, 8):
            await performer.said(connection, beat(number))
        await until(lambda: Notice("107") in trace.steps)
    for number in range(2, 8):
        for value in (number, number + 100):
            assert trace.steps.index(TermRaised(value)) < trace.steps.index(Notice(str(value)))
    sent = [step for step in trace.steps if isinstance(step, Notice)]
    assert sent == [Notice(str(value)) for number in range(2, 8) for value in (number, number + 100)]
    kept = [step for step in trace.steps if isinstance(step, TermRaised)]
    assert kept == [TermRaised(1), *(TermRaised(value) for number in range(2, 8) for value in (number, number + 100))]


async def test_nothing_at_all_leaves_when_the_journal_cannot_be_written() -> None:
    class FullDisk(Trace):
        def append(self, records: list[Record], told: list[tuple[str, str]]) -> None:
            if TermRaised(2) in records:
                raise OSError("no space left on device")

    trace = FullDisk()
    core = ScriptedCore(lambda event: [Journal(TermRaised(2)), Send(1, notice(1))])
    performer = Performer(core, trace, lambda text, level: None)
    performer.connect("p", frozenset(), "", trace)
    with pytest.raises(OSError, match="no space"):
        await asyncio.wait_for(performer.run(), 5)
    assert trace.steps == []


async def test_a_close_comes_after_what_was_sent_and_a_gone_stream_swallows_everything() -> None:
    trace = Trace()
    effects: list[Effect] = [Send(1, notice(1)), Close(1), Send(77, notice(2)), Close(77)]
    core = ScriptedCore(lambda event: effects if isinstance(event, Said) else [])
    async with running(core, trace) as performer:
        connection = performer.connect("p", frozenset({"peer"}), "10.0.0.9", trace)
        await performer.said(connection, Envelope(0, 0, Goodbye()))
        await until(lambda: len(trace.steps) == 3)
        performer.disconnect(connection)
        performer.disconnect(connection)
        await performer.said(connection, beat(1))
        await until(lambda: len(core.heard) == 3)
    assert trace.steps == [TermRaised(1), Notice("1"), "closed: "]
    assert core.heard == [Connected(1, "p", frozenset({"peer"}), "10.0.0.9"), Said(1, Envelope(0, 0, Goodbye())), Disconnected(1)]


async def test_an_operator_gets_the_answer_to_his_own_request() -> None:
    def script(event: Event) -> list[Effect]:
        return [Answer(event.request, Done(event.by))] if isinstance(event, Asked) else []

    async with running(ScriptedCore(script), Trace()) as performer:
        replies = await asyncio.gather(*(performer.ask(f"op{n}", Pause()) for n in range(20)))
    assert replies == [Done(f"op{n}") for n in range(20)]


async def test_the_core_is_woken_when_it_asked_to_be() -> None:
    def script(event: Event) -> list[Effect]:
        core.wake_at = None
        return [Log("awake")]

    said: list[str] = []
    core = ScriptedCore(script)
    core.wake_at = time.monotonic() + 0.05
    async with running(core, Trace(), said):
        await until(lambda: said == ["awake"])
    assert core.heard == [TimePassed()]


async def test_a_flooding_stream_waits_for_the_core_and_does_not_delay_others() -> None:
    trace = Trace()
    trace.disk_is_slow_s = 0.2
    core = ScriptedCore(lambda event: [])
    async with running(core, trace) as performer:
        loud = performer.connect("loud", frozenset(), "", Trace())
        quiet = performer.connect("quiet", frozenset(), "", Trace())

        async def flood() -> None:
            for number in range(STREAM_CREDIT * 3):
                await performer.said(loud, beat(number))

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(performer.said(quiet, beat(7)), 0.1)
        assert not flooding.done()
        await asyncio.wait_for(flooding, 5)
        heard = [event.connection for event in core.heard if isinstance(event, Said)]
        await until(lambda: len(core.heard) == 2 + STREAM_CREDIT * 3 + 1)
        assert heard.index(quiet) == STREAM_CREDIT


async def test_a_message_that_the_core_finds_malformed_closes_its_stream_only() -> None:
    def script(event: Event) -> list[Effect]:
        if isinstance(event, Said):
            raise RemoteProtocolError("span 3..1")
        return []

    bad, good = Trace(), Trace()
    core = ScriptedCore(script)
    async with running(core, Trace()) as performer:
        connection = performer.connect("bad", frozenset(), "", bad)
        performer.connect("good", frozenset(), "", good)
        await performer.said(connection, beat(1))
        await until(lambda: bool(bad.steps))
    assert bad.steps == ["closed: span 3..1"]
    assert good.steps == []


async def test_a_bug_in_the_core_ends_the_process_instead_of_going_on_with_half_a_decision() -> None:
    def script(event: Event) -> list[Effect]:
        raise KeyError("bug")

    performer = Performer(ScriptedCore(script), Trace(), lambda text, level: None)
    performer.connect("p", frozenset(), "", Trace())
    with pytest.raises(KeyError, match="bug"):
        await asyncio.wait_for(performer.run(), 5)


async def test_what_core_and_shell_tell_is_said_and_kept_and_bans_reach_the_shell() -> None:
    trace = Trace()
    said: list[tuple[str, str]] = []
    barred: list[frozenset[str]] = []
    core = ScriptedCore(lambda event: [Log("it happened", "warning"), Bar(frozenset({"eve"}))])
    performer = Performer(core, trace, lambda text, level: said.append((text, level)), barred.append)
    task = asyncio.create_task(performer.run())
    performer.tell("a stream broke", "info")
    await until(lambda: trace.history == [("a stream broke", "info")])
    performer.connect("p", frozenset(), "", trace)
    await until(lambda: barred == [{"eve"}])
    assert trace.history == said == [("a stream broke", "info"), ("it happened", "warning")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_lines_about_a_peer_that_causes_them_without_end_are_counted_instead() -> None:
    clock, trace = [0.0], Trace()
    said: list[str] = []
    noise: list[Effect] = [Log("noise", "warning", "eve")] * 50
    core = ScriptedCore(lambda event: [*noise, Log("bob is slow", "info", "bob")])
    performer = Performer(core, trace, lambda text, level: said.append(text), clock=lambda: clock[0])
    task = asyncio.create_task(performer.run())
    performer.connect("p", frozenset(), "", trace)
    await until(lambda: "bob is slow" in said)
    assert said == ["noise"] * LINES + ["bob is slow"]
    clock[0] = WINDOW_S
    performer.connect("q", frozenset(), "", trace)
    await until(lambda: said.count("bob is slow") == 2)
    assert said[LINES + 1 :] == [f"{50 - LINES} more lines about eve were left out", *["noise"] * LINES, "bob is slow"]
    assert [text for text, _ in trace.history] == said
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
