"""Numbers for Prometheus: what a coordinator and a peer show at `--metrics HOST:PORT`.

Rule: whoever scrapes costs something, nobody else does. A peer's numbers are those of the progress that its view gets anyway; a
coordinator's are the answers to the questions that `shoal admin` asks, asked when Prometheus comes. A scrape that takes too long
fails by itself, in a thread of its own. Names follow Prometheus: `shoal_` first, base units, `_total` for what only grows;
docs/metrics.md is made from the tables below. Neighbours: `sinks` pushes the same numbers elsewhere, `command_peer` and
`command_coordinator` wire both.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.adminclient import everybody
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply, GetStatus, Peers, PeerView, Status
from shoal.protocol.channels import join_address, split_address
from shoal.protocol.errors import ListenError, RemoteProtocolError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from shoal.peer.daemon import PeerProgress

T = TypeVar("T")
Ask = Callable[[AdminCommand], Awaitable[AdminReply | AdminError]]
"""Asks the coordinator's core what an operator could ask."""

ANSWER_S = 5.0
"""How long a scrape waits for the core."""
LAG_EVERY_S = 0.5
LAG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
RUN_PHASES = ("waiting", "training", "reducing", "paused", "stopping", "ended")
PEER_PHASES = (
    "joining",
    "connecting",
    "starting the trainer",
    "getting ready",
    "fetching state",
    "applying",
    "waiting",
    "training",
    "ready",
    "reducing",
    "helping",
    "finishing",
    "leaving",
    "resting",
)


@dataclass(frozen=True)
class Number(Generic[T]):
    """One metric: its name, what it means, and its value, or values by labels, in a `T`."""

    name: str
    text: str
    values: Callable[[T], Iterable[tuple[tuple[str, ...], float]]]
    """(label values, value) of every series."""
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """ "counter" when it only grows (until its process starts again), else "gauge"."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def family(self, source: T) -> Metric:
        """The metric as Prometheus's library wants it."""
        made = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(self.name, self.text, labels=self.labels)
        for labels, value in self.values(source):
            made.add_metric(labels, value)
        return made


def one(name: str, text: str, value: Callable[[T], float]) -> Number[T]:
    """A metric without labels."""
    return Number(name, text, lambda source: [((), value(source))])


def phase_of(name: str, text: str, phases: Sequence[str], phase: Callable[[T], str]) -> Number[T]:
    """1 for the phase that is, 0 for the others."""
    return Number(name, text, lambda source: [((each,), float(each == phase(source))) for each in phases], ("phase",))


# --- a peer ---------------------------------------------------------------------------------------------------------------------

PEER: tuple[Number[PeerProgress], ...] = (
    Number(
        "shoal_peer_info",
        "Always 1; its labels say who this is.",
        lambda p: [((p.run, p.peer, p.name, p.software), 1.0)],
        ("run", "peer", "name", "software"),
    ),
    phase_of("shoal_peer_phase", "1 for what the peer is doing, 0 for everything else.", PEER_PHASES, lambda p: p.phase),
    one("shoal_peer_version", "Version of the shared state that is here; -1 before the first.", lambda p: p.version),
    one("shoal_peer_round", "Number of the open round.", lambda p: p.round),
    one("shoal_peer_members", "Members of the open round.", lambda p: p.members),
    one("shoal_peer_loss", "Mean training loss of the round so far, nats per token.", lambda p: p.loss),
    one(
        "shoal_peer_heldout_bits_per_byte", "This peer's last evaluation of the shared state; 0 before.", lambda p: p.bits_per_byte
    ),
    one("shoal_peer_tokens_per_second", "Training speed in the round so far.", lambda p: p.tokens_per_s),
    one(
        "shoal_peer_waiting_seconds",
        "How long the run, or a rest, has kept this peer waiting; 0: not at all.",
        lambda p: p.waiting_s,
    ),
    one("shoal_peer_inner_steps_total", "Inner steps of this trainer process.", lambda p: p.steps),
    Number(
        "shoal_peer_rounds_total",
        "Rounds that this peer published work for, and rounds that it had nothing for (not finite, out of memory).",
        lambda p: [(("contributed",), p.totals.contributed), (("skipped",), p.totals.skipped)],
        ("outcome",),
    ),
    one("shoal_peer_entries_applied_total", "Log entries applied, own work in them or not.", lambda p: p.totals.applied),
    one("shoal_peer_sent_bytes_total", "Bytes sent to other peers for committed rounds.", lambda p: p.totals.sent_bytes),
    one(
        "shoal_peer_received_bytes_total",
        "Bytes received from other peers for committed rounds.",
        lambda p: p.totals.received_bytes,
    ),
    one("shoal_peer_trainer_losses_total", "How often the trainer process died.", lambda p: p.totals.trainer_losses),
)


# --- a coordinator --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSeen:
    """What a coordinator answers."""

    status: Status
    peers: tuple[PeerView, ...]


def each_peer(value: Callable[[PeerView], float]) -> Callable[[RunSeen], list[tuple[tuple[str, ...], float]]]:
    """One series for each member. Its name is not part of it: members choose theirs, and may choose anew each time."""
    return lambda run: [((peer.peer,), value(peer)) for peer in run.peers]


_MEMBER = ("peer",)

COORDINATOR: tuple[Number[RunSeen], ...] = (
    Number("shoal_run_info", "Always 1; its label says which run this is.", lambda run: [((run.status.run,), 1.0)], ("run",)),
    phase_of("shoal_run_phase", "1 for what the run is doing, 0 for everything else.", RUN_PHASES, lambda run: run.status.phase),
    one("shoal_run_version", "Version of the shared state; -1 before the first.", lambda run: run.status.version),
    one("shoal_run_members", "Members that can take part now.", lambda run: run.status.members),
    one("shoal_run_min_members", "Members without which no round opens.", lambda run: run.status.min_peers),
    one(
        "shoal_run_heldout_bits_per_byte",
        "The last evaluation of the shared state; 0 before.",
        lambda run: run.status.bits_per_byte,
    ),
    one("shoal_run_planned_tokens", "Tokens after which the run ends.", lambda run: run.status.total_tokens),
    one("shoal_run_committed_tokens_total", "Tokens whose work is committed.", lambda run: run.status.committed_tokens),
    one("shoal_run_rounds_opened_total", "Rounds opened since the run began.", lambda run: max(0, run.status.round + 1)),
    one("shoal_run_rounds_committed_total", "Rounds committed since the run began.", lambda run: max(0, run.status.version)),
    one("shoal_coordinator_starts_total", "How often the run's coordinator was started.", lambda run: run.status.term),
    Number(
        "shoal_member_info",
        "Always 1; its labels say who a member is.",
        lambda run: [((peer.peer, peer.name, peer.device, peer.software), 1.0) for peer in run.peers],
        ("peer", "name", "device", "software"),
    ),
    Number("shoal_member_version", "Version that a member holds.", each_peer(lambda peer: peer.version), _MEMBER),
    Number("shoal_member_tokens_per_second", "A member's speed.", each_peer(lambda peer: peer.tokens_per_s), _MEMBER),
    Number("shoal_member_loss", "A member's training loss, nats per token.", each_peer(lambda peer: peer.loss), _MEMBER),
    Number("shoal_member_silence_seconds", "Since a member was last heard.", each_peer(lambda peer: peer.silent_s), _MEMBER),
    Number(
        "shoal_member_committed_tokens_total",
        "A member's tokens in the log.",
        each_peer(lambda peer: peer.committed_tokens),
        _MEMBER,
    ),
)


async def see_run(ask: Ask) -> RunSeen:
    """Ask the core how the run is."""
    status, peers = await ask(GetStatus()), await everybody(ask)
    if not isinstance(status, Status) or not isinstance(peers, Peers):
        raise RemoteProtocolError(f"the core did not answer a question: {status} {peers}")
    return RunSeen(status, peers.peers)


# --- both -----------------------------------------------------------------------------------------------------------------------

LAG_NAME = "shoal_event_loop_lag_seconds"
LAG_TEXT = "How much later than asked the process's event loop came back to work: what keeps it busy for long shows here."


class _Numbers(Collector, Generic[T]):
    """Hands out a table of numbers of whatever `look` finds when Prometheus comes."""

    def __init__(self, numbers: Sequence[Number[T]], look: Callable[[], T]) -> None:
        self._numbers, self._look = numbers, look

    def collect(self) -> Iterator[Metric]:
        source = self._look()
        for number in self._numbers:
            yield number.family(source)

    def describe(self) -> Iterator[Metric]:
        """Names without asking anybody, so that registering looks at nothing."""
        for number in self._numbers:
            yield (CounterMetricFamily if number.kind == "counter" else GaugeMetricFamily)(number.name, number.text)


@contextlib.asynccontextmanager
async def serve_peer(address: str, look: Callable[[], PeerProgress]) -> AsyncIterator[str]:
    """Show a peer's numbers at `address`, as long as the block lasts; gives the URL. Raises ListenError."""
    async with _serve(address, _Numbers(PEER, look)) as url:
        yield url


@contextlib.asynccontextmanager
async def serve_coordinator(address: str, ask: Ask) -> AsyncIterator[str]:
    """Show a coordinator's numbers at `address`, as long as the block lasts; gives the URL. Raises ListenError."""
    loop = asyncio.get_running_loop()

    def look() -> RunSeen:
        """In a thread of the HTTP server."""
        asking = asyncio.run_coroutine_threadsafe(see_run(ask), loop)
        try:
            return asking.result(ANSWER_S)
        except FutureTimeoutError:
            asking.cancel()
            raise

    async with _serve(address, _Numbers(COORDINATOR, look)) as url:
        yield url


@contextlib.asynccontextmanager
async def _serve(address: str, numbers: Collector) -> AsyncIterator[str]:
    host, port = split_address(address)
    registry = CollectorRegistry()
    registry.register(numbers)
    ProcessCollector(registry=registry)
    lag = Histogram(LAG_NAME, LAG_TEXT, registry=registry, buckets=LAG_BUCKETS)
    try:
        server, thread = await asyncio.to_thread(start_http_server, port, host, registry)  # it asks for names
    except OSError as error:
        fix = "choose another port, or an address of this machine, for --metrics"
        raise ListenError(f"cannot show metrics at {address}: {error.strerror or error}", fix) from error
    measuring = asyncio.create_task(_measure_lag(lag))
    try:
        yield f"http://{join_address(host, server.server_port)}/metrics"
    finally:
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        await asyncio.to_thread(_close, server, thread)


def _close(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


async def _measure_lag(lag: Histogram) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        lag.observe(max(0.0, loop.time() - due))
