"""Where a daemon's heavy work runs: a few threads for parts, one for whole states, none of it on the event loop.

Rule: the event loop only moves messages. Encoding, adding, hashing and copying release the GIL in torch, hashlib and the kernel,
so threads are enough. Work on whole states (apply, hash, freeze) has one thread of its own, which also puts it in order: what was
asked first is done first, and no two of them overlap. Neighbour: `bulk` hands the work out.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

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


class Workers:
    """The threads of one daemon."""

    def __init__(self, threads: int | None = None) -> None:
        self._parts = ThreadPoolExecutor(threads or part_threads(), thread_name_prefix="shoal-part")
        self._state = ThreadPoolExecutor(1, thread_name_prefix="shoal-state")

    def part(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run work on one part; several run at once."""
        return asyncio.get_running_loop().run_in_executor(self._parts, lambda: work(*args, **kwargs))

    def state(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run work on the whole shared state, after all such work that was asked for before."""
        return asyncio.get_running_loop().run_in_executor(self._state, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Drop work that has not begun and wait for what has."""
        for pool in (self._parts, self._state):
            pool.shutdown(wait=True, cancel_futures=True)
