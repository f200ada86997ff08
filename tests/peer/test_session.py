"""The session link over a scripted transport, on a virtual clock: streams break, and nobody has to care."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from shoal.peer import session
from shoal.peer.events import Heard, Offline, Online
from shoal.peer.session import PAUSE_CEILING_S, PAUSE_FLOOR_S, SessionLink, pause_s
from shoal.protocol.errors import RefusedError, ShoalError, UnreachableError
from shoal.protocol.messages import Envelope, Goodbye, Heartbeat, Notice
from shoal.protocol.wire import pack, unpack


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            if timeout:
                self._now += timeout
            elif timeout is None:
                raise AssertionError("everything waits for ever")
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


@pytest.fixture
def on_virtual_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Awaitable[None]], float]]:
    loop = VirtualLoop()
    monkeypatch.setattr(session.time, "monotonic", loop.time)

    def run(story: Awaitable[None]) -> float:
        loop.run_until_complete(asyncio.wait_for(story, 100_000))
        return loop.time()

    yield run
    loop.close()


class FakeLine:
    """A stream under the test's control."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []
        self.inbox: asyncio.Queue[bytes | ShoalError | None] = asyncio.Queue()
        self.stuck = False
        self.ended = False
        self.dropped = False

    async def read(self) -> bytes | None:
        item = await self.inbox.get()
        if isinstance(item, ShoalError):
            raise item
        return item

    async def write(self, message: bytes) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.sent.append(unpack(message))

    async def end(self) -> None:
        self.ended = True
        self.inbox.put_nowait(None)

    async def drop(self) -> None:
        self.dropped = True


class Scene:
    """A link, what it emitted and told, and a coordinator that answers as the script says."""

    def __init__(self, answers: Callable[[int, str], FakeLine | ShoalError], addresses: tuple[str, ...] = ("c:1",)) -> None:
        self.events: list[Online | Heard | Offline] = []
        self.told: list[tuple[float, str]] = []
        self.dialled: list[tuple[float, str]] = []
        self._answers = answers
        self.link = SessionLink(addresses, self._dial, self.events.append, self._tell, random.Random(7))

    def _tell(self, text: str) -> None:
        self.told.append((asyncio.get_running_loop().time(), text))

    async def _dial(self, address: str) -> FakeLine:
        self.dialled.append((asyncio.get_running_loop().time(), address))
        answer = self._answers(len(self.dialled), address)
        if isinstance(answer, ShoalError):
            raise answer
        return answer


def heartbeat(steps: int) -> Envelope:
    return Envelope(1, 1, Heartbeat("training", steps))


def test_the_pause_before_dialling_is_random_below_a_limit_that_doubles() -> None:
    rng = random.Random(3)
    for failures, ceiling in ((0, 0.5), (1, 1.0), (2, 2.0), (4, 8.0), (5, PAUSE_CEILING_S), (10_000, PAUSE_CEILING_S)):
        pauses = [pause_s(failures, rng) for _ in range(2000)]
        assert max(pauses) <= ceiling
        assert max(pauses) > 0.95 * ceiling
        assert min(pauses) < 0.05 * ceiling
    assert PAUSE_FLOOR_S == 0.5


def test_messages_go_out_in_order_and_come_in_as_heard(on_virtual_time: Any) -> None:
    line = FakeLine()
    scene = Scene(lambda number, address: line)

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(0.1)
        for steps in range(3):
            scene.link.say(heartbeat(steps))
        line.inbox.put_nowait(pack(Envelope(1, 1, Notice("peers", 1, 2))))
        await asyncio.sleep(0.1)
        scene.link.say(Envelope(1, 1, Goodbye("done")))
        scene.link.close()
        await running

    on_virtual_time(story())
    assert line.sent == [*(heartbeat(steps) for steps in range(3)), Envelope(1, 1, Goodbye("done"))]
    assert line.ended
    assert line.dropped
    assert scene.events == [Online(), Heard(Envelope(1, 1, Notice("peers", 1, 2))), Offline("hung up")]


def test_what_is_said_without_a_stream_is_dropped(on_virtual_time: Any) -> None:
    line = FakeLine()
    scene = Scene(lambda number, address: UnreachableError("c:1 is down") if number == 1 else line)

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(0)
        scene.link.say(heartbeat(1))
        await asyncio.sleep(5)
        scene.link.say(heartbeat(2))
        scene.link.close()
        await running

    on_virtual_time(story())
    assert line.sent == [heartbeat(2)]


def test_a_broken_stream_is_dialled_again_and_the_new_one_starts_empty(on_virtual_time: Any) -> None:
    first, second = FakeLine(), FakeLine()
    first.stuck = True
    scene = Scene(lambda number, address: first if number == 1 else second)

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(6)
        scene.link.say(heartbeat(1))
        scene.link.say(heartbeat(2))
        first.inbox.put_nowait(UnreachableError("connection reset"))
        await asyncio.sleep(1)
        scene.link.say(heartbeat(3))
        await asyncio.sleep(0.1)
        scene.link.close()
        await running

    on_virtual_time(story())
    assert scene.events == [Online(), Offline("connection reset"), Online(), Offline("hung up")]
    assert second.sent == [heartbeat(3)]
    assert [text.split(":")[0] for _, text in scene.told] == ["lost the coordinator at c", "the coordinator at c"]


def test_a_stream_that_takes_nothing_is_given_up_instead_of_filling_memory(on_virtual_time: Any) -> None:
    first = FakeLine()
    first.stuck = True
    scene = Scene(lambda number, address: first if number == 1 else FakeLine())

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(6)
        for steps in range(session.OUTBOX + 2):
            scene.link.say(heartbeat(steps))
        await asyncio.sleep(5)
        assert scene.events[:3] == [Online(), Offline(f"the coordinator takes no messages ({session.OUTBOX} wait)"), Online()]
        assert first.dropped
        scene.link.close()
        await running

    on_virtual_time(story())


def test_a_message_that_does_not_decode_breaks_the_stream_with_its_reason(on_virtual_time: Any) -> None:
    line = FakeLine()
    scene = Scene(lambda number, address: line if number == 1 else FakeLine())

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(6)
        line.inbox.put_nowait(b"\xff\xff\xff garbage")
        await asyncio.sleep(1)
        scene.link.close()
        await running

    on_virtual_time(story())
    assert isinstance(scene.events[1], Offline)
    assert line.dropped


def test_an_outage_says_what_it_waits_for_after_5_s_and_ever_more_rarely(on_virtual_time: Any) -> None:
    line, after = FakeLine(), FakeLine()

    def answers(number: int, address: str) -> FakeLine | ShoalError:
        if number == 1:
            return line
        return UnreachableError("nobody listens at c:1") if scene.dialled[-1][0] < 10 + 3 * 3600 else after

    scene = Scene(answers)

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(10)
        line.inbox.put_nowait(UnreachableError("connection reset"))
        await asyncio.sleep(3 * 3600 - 60)
        lost_at = scene.told[0][0]
        assert [round((at - lost_at) / 5) * 5 for at, _ in scene.told[1:]] == [5, 30, 300, 3900, 7500]
        for _, text in scene.told[1:]:
            assert "waiting for the coordinator at c:1" in text
            assert "last: nobody listens at c:1" in text
        await asyncio.sleep(120)
        scene.link.close()
        await running

    on_virtual_time(story())
    assert scene.events == [Online(), Offline("connection reset"), Online(), Offline("hung up")]


def test_streams_that_end_at_once_are_not_dialled_in_a_storm_and_do_not_flood_the_log(on_virtual_time: Any) -> None:
    def answers(number: int, address: str) -> FakeLine:
        line = FakeLine()
        line.inbox.put_nowait(None)
        return line

    scene = Scene(answers)

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(30)
        assert len(scene.dialled) <= 20
        assert len(scene.told) <= 10
        scene.link.close()
        await running

    on_virtual_time(story())


def test_a_thousand_peers_come_back_spread_out(on_virtual_time: Any) -> None:
    rng = random.Random(11)
    moments: list[float] = []
    for _ in range(1000):
        at = 0.0
        for failures in range(12):
            at += pause_s(failures, rng)
            moments.append(at)
    busiest = max(sum(1 for moment in moments if start <= moment < start + 0.1) for start in (n / 10 for n in range(20, 600)))
    assert busiest < 100


def test_addresses_are_tried_in_turn(on_virtual_time: Any) -> None:
    line = FakeLine()
    scene = Scene(
        lambda number, address: line if address == "[::1]:3" else UnreachableError(f"{address} is down"), ("a:1", "b:2", "[::1]:3")
    )

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(30)
        scene.link.close()
        await running

    on_virtual_time(story())
    assert [address for _, address in scene.dialled] == ["a:1", "b:2", "[::1]:3"]


def test_a_refusal_ends_a_link_that_never_was_online_and_not_one_that_was(on_virtual_time: Any) -> None:
    refusal = RefusedError("banned", "you are banned")
    never = Scene(lambda number, address: refusal)

    async def first_story() -> None:
        with pytest.raises(RefusedError, match="you are banned"):
            await never.link.run()

    line = FakeLine()
    once = Scene(lambda number, address: line if number == 1 else refusal)

    async def second_story() -> None:
        running = asyncio.create_task(once.link.run())
        await asyncio.sleep(6)
        line.inbox.put_nowait(None)
        await asyncio.sleep(60)
        assert not running.done()
        once.link.close()
        await running

    on_virtual_time(first_story())
    on_virtual_time(second_story())
    assert len(never.dialled) == 1
    assert len(once.dialled) > 3


def test_closing_while_dialling_and_while_pausing_is_immediate(on_virtual_time: Any) -> None:
    async def hangs(address: str) -> FakeLine:
        await asyncio.sleep(1000)
        return FakeLine()

    async def story() -> None:
        dialling = SessionLink(("c:1",), hangs, lambda event: None, lambda text: None)
        running = asyncio.create_task(dialling.run())
        await asyncio.sleep(1)
        dialling.close()
        await asyncio.wait_for(running, 0.1)
        pausing = Scene(lambda number, address: UnreachableError("down"))
        running = asyncio.create_task(pausing.link.run())
        await asyncio.sleep(100)
        pausing.link.close()
        await asyncio.wait_for(running, 0.1)

    on_virtual_time(story())


def test_hanging_up_on_a_stuck_coordinator_takes_two_seconds_at_most(on_virtual_time: Any) -> None:
    line = FakeLine()
    line.stuck = True
    scene = Scene(lambda number, address: line)

    async def story() -> None:
        running = asyncio.create_task(scene.link.run())
        await asyncio.sleep(1)
        scene.link.say(heartbeat(1))
        scene.link.close()
        began = asyncio.get_running_loop().time()
        await running
        assert asyncio.get_running_loop().time() - began <= 2.1

    on_virtual_time(story())
