"""Where a daemon's heavy work runs: a few threads for parts, one for whole states, none of it on the event loop.

Rule: the event loop only moves messages. Encoding, adding, hashing and copying release the GIL in torch, hashlib and the kernel,
so threads are enough. Work on whole states (apply, hash, freeze) has one thread of its own, which also puts it in order: what was
asked first is done first, and no two of them overlap. Neighbour: `bulk` hands the work out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def part_threads() -> int:
    """How many threads work on parts: half the cores, 1 to 4. The trainer needs the rest."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores // 2))


def settle_daemon_process() -> None:
    """For the daemon's `main`, after its imports: parts are what runs in parallel, so each torch operation keeps to its own thread;
    and the garbage collector no longer walks through all of torch, for tenths of a second on the event loop, to find nothing."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


class _Pool:
    """Threads that take work in the order in which it was given. A ThreadPoolExecutor does the same for an event loop through a
    second future, two locks and two more callbacks per piece of work, which is felt where work comes in thousands of pieces."""

    def __init__(self, threads: int, name: str) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True) for index in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What the work returns or raises; cancelled before it has begun it is not done. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("work for threads that were closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((work, done))
        return done

    def close(self) -> None:
        """Drop work that has not begun and wait for what has."""
        self._closed = True
        with contextlib.suppress(Empty):
            while True:
                dropped = self._queue.get_nowait()
                if dropped is not None and not dropped[1].get_loop().is_closed():
                    dropped[1].cancel()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            work, done = given
            if not done.cancelled():
                result, error = None, None
                try:
                    result = work()
                except BaseException as raised:  # noqa: BLE001 - it is whoever waits who gets it
                    error = raised
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    done.get_loop().call_soon_threadsafe(_settle, done, result, error)
                del result, error
            del given, work, done  # not to be held until the next one comes


def _settle(done: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """On the event loop."""
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class Workers:
    """The threads of one daemon."""

    def __init__(self, threads: int | None = None) -> None:
        self._parts = _Pool(threads or part_threads(), "shoal-part")
        self._state = _Pool(1, "shoal-state")

    def part(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run work on one part; several run at once."""
        return self._parts.submit(lambda: work(*args, **kwargs))

    def state(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run work on the whole shared state, after all such work that was asked for before."""
        return self._state.submit(lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Drop work that has not begun and wait for what has."""
        for pool in (self._parts, self._state):
            pool.close()
