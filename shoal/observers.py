"""Who looks on while a peer or a coordinator works: Prometheus, TensorBoard, Weights & Biases, as the command line asks for.

Rule: looking on changes nothing. Wires `metrics` and `sinks` to what the daemon tells its view, and to what the coordinator's core
answers; the rooms know nothing of either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.sinks import Feeds, open_feeds

if TYPE_CHECKING:
    from shoal.metrics import Ask
    from shoal.peer.daemon import PeerProgress

LOG = logging.getLogger("shoal.observers")
ASK_EVERY_S = 5.0
"""How often the sinks of a coordinator look for a new version."""


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for; empty: nothing."""

    metrics: str = ""
    """Address to show Prometheus's page at."""
    tensorboard: Path | None = None
    wandb: str = ""
    name: str = ""
    """What the curves of this process are called."""

    def __bool__(self) -> bool:
        return bool(self.metrics or self.tensorboard or self.wandb)


@contextlib.asynccontextmanager
async def of_peer(wanted: Wanted, watch: Callable[[PeerProgress], None]) -> AsyncIterator[Callable[[PeerProgress], None]]:
    """What to give to the daemon instead of its view's `watch`, for as long as the block lasts. Raises ListenError."""
    from shoal.peer.daemon import PeerProgress

    newest = PeerProgress("joining")
    with _feeds(wanted) as feeds:

        def watch_all(progress: PeerProgress) -> None:
            nonlocal newest
            newest = progress
            watch(progress)
            feeds.peer(progress)

        async with contextlib.AsyncExitStack() as stack:
            if wanted.metrics:
                from shoal import metrics

                _tell(await stack.enter_async_context(metrics.serve_peer(wanted.metrics, lambda: newest)))
            yield watch_all


@contextlib.asynccontextmanager
async def of_coordinator(wanted: Wanted, ask: Ask) -> AsyncIterator[None]:
    """Look on for as long as the block lasts. Raises ListenError."""
    from shoal import metrics

    with _feeds(wanted) as feeds:
        async with contextlib.AsyncExitStack() as stack:
            if wanted.metrics:
                _tell(await stack.enter_async_context(metrics.serve_coordinator(wanted.metrics, ask)))
            if feeds:
                feeding = asyncio.create_task(_feed(feeds, ask))
                stack.push_async_callback(lambda: _end(feeding))
            yield


@contextlib.contextmanager
def _feeds(wanted: Wanted) -> Iterator[Feeds]:
    feeds = open_feeds(wanted.tensorboard, wanted.wandb, wanted.name, LOG.warning)
    try:
        yield feeds
    finally:
        feeds.close()


async def _feed(feeds: Feeds, ask: Ask) -> None:
    from shoal.metrics import see_run

    while True:
        feeds.run(await see_run(ask))
        await asyncio.sleep(ASK_EVERY_S)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _tell(url: str) -> None:
    LOG.info("metrics at %s", url)
