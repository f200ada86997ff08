"""Threads for heavy work: what comes out of them, and what does not when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from shoal.peer.workers import Workers

LIMIT_S = 20


async def test_work_is_done_in_the_order_in_which_it_was_given_and_brings_its_result_or_its_error() -> None:
    workers, order = Workers(1), list[int]()

    def work(number: int) -> int:
        order.append(number)
        return 10 // number

    async with asyncio.timeout(LIMIT_S):
        results = await asyncio.gather(*(workers.part(work, number) for number in (5, 0, 2)), return_exceptions=True)
        assert order == [5, 0, 2]
        assert (results[0], results[2]) == (2, 5)
        assert isinstance(results[1], ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            await workers.state(work, 0)
    workers.close()


async def test_work_that_was_cancelled_or_that_closing_finds_waiting_is_not_done() -> None:
    workers, done, begun, release = Workers(1), list[str](), threading.Event(), threading.Event()

    def hold() -> str:
        begun.set()
        assert release.wait(LIMIT_S)
        return "held"

    held = workers.part(hold)
    cancelled, waiting = workers.part(done.append, "cancelled"), workers.part(done.append, "waiting")
    cancelled.cancel()
    assert await asyncio.to_thread(begun.wait, LIMIT_S)

    def let_go() -> None:
        while not waiting.cancelled():  # closing has dropped it
            time.sleep(0.005)
        release.set()

    threading.Thread(target=let_go, daemon=True).start()
    workers.close()
    assert await held == "held"
    assert waiting.cancelled()
    assert done == []


async def test_threads_that_were_closed_take_no_work() -> None:
    workers = Workers(1)
    workers.close()
    with pytest.raises(RuntimeError, match="closed"):
        workers.part(len, "")
