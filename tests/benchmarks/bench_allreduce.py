"""An all-reduce among four daemons against gloo's, in fp32, among the same four processes.

Each process has a vault and a bulk plane, real mutual TLS over loopback, driven by the scripted engine of the data plane's tests,
and a gloo process group. Turns alternate, so that both see the same machine; a turn's time is from a common barrier to the slowest
process. A turn of ours ends when everybody has every part hashed, stored and decoded to fp32; the outer step is timed apart. Bytes
are what the kernel says was acknowledged on the process's TCP connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

PEERS = 4
TIME_GOALS = {25_000_000: 1.5, 100_000_000: 1.25}
BYTES_GOAL = 1.03
CONTRIBUTIONS_BYTES = 1.0
"""Per parameter: encoded contributions that may wait at once."""
CONSTANT_MIB = 384
"""What a daemon may take beside what grows with the model: sums, frames, gRPC, allocator."""
BLOCK = 1024
TURN_LIMIT_S = 300
KEEP_ENTRIES = 1
WARM_UP = 3
"""Turns until rounds live in memory that earlier ones gave back, as they do once a log is as long as it may be."""


def run() -> list[dict[str, Any]]:
    """Both sizes of the goals."""
    return [row for parameters, turns in ((25_000_000, 9), (100_000_000, 5)) for row in measured(parameters, turns)]


def measured(parameters: int, turns: int) -> list[dict[str, Any]]:
    """Four processes, `turns` of each kind after some to warm up."""
    turns_of = list(_measure(parameters, turns))
    gloo = statistics.median(turn["gloo"] for turn in turns_of)
    ours = statistics.median(turn["reduce"] for turn in turns_of)
    ratio = statistics.median(turn["reduce"] / turn["gloo"] for turn in turns_of)
    apply_s = statistics.median(turn["apply"] for turn in turns_of)
    cpu, gloo_cpu = (statistics.median(turn[name] for turn in turns_of) for name in ("cpu", "gloo cpu"))
    bound = 2 * (PEERS - 1) / PEERS * parameters
    sent = max(turn["sent"] for turn in turns_of) / bound
    anonymous = max(turn["anonymous"] for turn in turns_of)
    allowed = CONTRIBUTIONS_BYTES * parameters + CONSTANT_MIB * 2**20
    vault = turns_of[-1]["vault"] / parameters
    arithmetic, transport = _least_cpu_s(parameters)
    size = f"{parameters / 1e6:g} M"
    goal = TIME_GOALS.get(parameters)
    return [
        _result(f"all-reduce {size}: gloo fp32", gloo, "s", None),
        _result(f"all-reduce {size}: int8 over mutual TLS", ours, "s", None),
        _result(f"all-reduce {size}: against gloo fp32", ratio, "x", goal),
        _result(f"all-reduce {size}: processor time of gloo, all four", gloo_cpu, "s", None),
        _result(f"all-reduce {size}: processor time of ours, all four", cpu, "s", None),
        _result(f"all-reduce {size}: processor time of its codec and digests alone, all four", arithmetic, "s", None),
        _result(f"all-reduce {size}: processor time of gRPC and TLS alone, all four", transport, "s", None),
        _result(f"all-reduce {size}: outer step of one entry", apply_s, "s", None),
        _result(f"all-reduce {size}: bytes at the socket against 2(N-1)/N", sent, "x", BYTES_GOAL),
        _result(f"all-reduce {size}: vault, log and round in flight apart", vault, "B/parameter", 16.0 + 0.5),
        _result(f"all-reduce {size}: other memory of a daemon", anonymous / 2**20, "MiB", allowed / 2**20),
    ]


def _result(name: str, value: float, unit: str, goal: float | None) -> dict[str, Any]:
    said = "" if goal is None else f"at most {goal:.4g}"
    return {"name": name, "value": round(value, 3), "unit": unit, "goal": said, "met": None if goal is None else value <= goal}


def _least_cpu_s(parameters: int) -> tuple[float, float]:
    """Processor seconds that the four spend at least, for arithmetic and for transport: what the codec and SHA-256 take for one
    turn's bytes, each alone in a loop over 1 MiB; and what gRPC takes to move so many bytes over mutual TLS, both ends, when
    nobody looks at them."""
    import hashlib

    import torch

    from shoal.compression.codec import codec

    int8, values = codec("int8", BLOCK), 1 << 20
    part, threads = torch.randn(values), torch.get_num_threads()
    torch.set_num_threads(1)
    payload, total = bytearray(int8.encoded_size((values,))), torch.zeros(values)
    encode = _cpu_s(lambda: int8.encode_into(part, (values,), payload))
    once = (
        (1 + 1 / PEERS) * encode
        + _cpu_s(lambda: int8.decode_add(payload, (values,), total, 1.0))
        + _cpu_s(lambda: int8.decode(payload, (values,), part))
        + _cpu_s(lambda: hashlib.sha256(payload).digest())
    )
    torch.set_num_threads(threads)
    moved = 2 * (PEERS - 1) / PEERS * asyncio.run(_transport_cpu_s(bytes(payload)))
    return PEERS * once * parameters / values, PEERS * moved * parameters / values


def _cpu_s(work: Callable[[], object], times: int = 40) -> float:
    """Processor seconds of one call: the median of several."""
    seconds = []
    for _ in range(times):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return statistics.median(seconds)


async def _transport_cpu_s(frame: bytes, times: int = 200) -> float:
    """Processor seconds to send one message and to receive it, over the channels and with the TLS of the bulk plane."""
    from shoal.protocol import channels, services, tls
    from shoal.protocol.authority import Authority
    from shoal.protocol.channels import Kind
    from tests.peer.scripted import credential

    authority = Authority.generate("shoal-test")
    ours, theirs = credential(authority), credential(authority)

    async def echo(_: object, context: Any) -> None:
        for _ in range(times):
            await context.read()
            await context.write(frame)

    server = channels.new_server(Kind.BULK)
    server.add_generic_rpc_handlers(services.handlers(services.REDUCE.serve(echo)))
    port = channels.listen(server, "127.0.0.1:0", tls.server_credentials(theirs))
    await server.start()
    channel = channels.open_channel(Kind.BULK, f"127.0.0.1:{port}", tls.client_credentials(ours), theirs.owner.peer)
    try:
        call = services.REDUCE.stub(channel)()
        spent = 0.0
        for turn in range(times):
            start = time.process_time()
            await call.write(frame)
            await call.read()
            spent += (time.process_time() - start) * (turn >= times // 10)  # the first ones warm up
        return spent / (2 * (times - times // 10))
    finally:
        await channel.close()
        await server.stop(None)


# --- the parent -----------------------------------------------------------------------------------------------------------------


class _Worker:
    def __init__(self, index: int, scratch: Path, parameters: int) -> None:
        from shoal.peer.allocator import malloc_environment

        root = Path(__file__).resolve().parents[2]
        environment = malloc_environment() | {"PYTHONPATH": str(root), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.benchmarks.bench_allreduce", str(index), str(scratch), str(parameters)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=root)

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker of the benchmark ended with {self.process.wait(10)}")
        return json.loads(line)


def _ask(workers: list[_Worker], **command: Any) -> list[Any]:
    for worker in workers:
        worker.tell(**command)
    return [worker.hear() for worker in workers]


@contextmanager
def _swarm(parameters: int) -> Iterator[list[_Worker]]:
    from shoal.peer.vault import shared_memory_directory
    from shoal.protocol.authority import Authority

    scratch = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=shared_memory_directory()))
    workers: list[_Worker] = []
    watchdog = threading.Timer(TURN_LIMIT_S * 3, _kill, (workers,))
    watchdog.start()
    try:
        Authority.create(scratch / "authority", "shoal-test")
        workers.extend(_Worker(index, scratch, parameters) for index in range(PEERS))
        yield workers
        for worker in workers:
            worker.tell(do="stop")
        for worker in workers:
            worker.process.wait(30)
    finally:
        watchdog.cancel()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def _kill(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()


def _measure(parameters: int, turns: int) -> Iterator[dict[str, float]]:
    from shoal.protocol.messages import Commit, Contact, Contribution, Plan, Section, Share
    from shoal.protocol.plain import from_plain, to_plain

    with _swarm(parameters) as workers:
        hello = [worker.hear() for worker in workers]
        contacts = [Contact(said["peer"], said["address"]) for said in hello]
        parts = hello[0]["parts"]
        bounds = [round(index * parts / PEERS) for index in range(PEERS + 1)]
        shares = tuple(
            Share(contact, Section.PARAMETERS, start, stop)
            for contact, start, stop in zip(contacts, bounds, bounds[1:], strict=False)
        )
        contributions = tuple(Contribution(contact.peer, 1000 + index) for index, contact in enumerate(contacts))
        members = tuple(contact.peer for contact in contacts)
        for turn in range(turns + WARM_UP):
            gloo = _ask(workers, do="gloo")
            plan = Plan(turn + 1, 1, 0, 0, turn, contributions, members, shares, 60.0)
            reduced = _ask(workers, do="reduce", plan=to_plain(plan))
            decisions = sorted((decision for said in reduced for decision in said["decisions"]), key=lambda one: one["part"])
            commit = Commit(turn + 1, plan.round, 0, 0, turn, (), 0, 0.7, 0.9)
            plain = to_plain(commit) | {"parts": decisions}
            from_plain(Commit, plain)
            applied = _ask(workers, do="apply", commit=plain)
            if len({said["root"] for said in applied}) != 1:
                raise RuntimeError("the four do not hold the same bytes")
            if turn >= WARM_UP:
                yield {
                    "gloo": max(said["seconds"] for said in gloo),
                    "reduce": max(said["seconds"] for said in reduced),
                    "gloo cpu": sum(said["cpu"] for said in gloo),
                    "cpu": sum(said["cpu"] for said in reduced),
                    "apply": max(said["seconds"] for said in applied),
                    "sent": max(said["sent"] for said in reduced),
                    "anonymous": max(said["anonymous"] for said in reduced),
                    "vault": max(said["vault"] for said in applied),
                }


# --- a worker -------------------------------------------------------------------------------------------------------------------


def _acknowledged_bytes() -> int:
    """Bytes that the other ends of this process's TCP connections have acknowledged, by the kernel's count."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
                    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                    total += struct.unpack_from("<Q", info, 120)[0]
        except OSError:
            continue
    return total


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) << 10


class _Peak:
    """The most anonymous memory that the process had while this was open, beyond what it had before."""

    def __init__(self, before: int) -> None:
        self._before = before
        self._stop = threading.Event()
        self._most = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self._most = max(self._most, _anonymous_bytes())

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return max(0, self._most - self._before)


async def _work(index: int, scratch: Path, parameters: int, out: IO[str]) -> None:
    import torch
    import torch.distributed

    from shoal.compression.codec import codec
    from shoal.optim.layout import Part
    from shoal.peer import events as ev
    from shoal.peer.workers import settle_daemon_process
    from shoal.protocol.authority import Authority
    from shoal.protocol.messages import Commit, Decision, PartKey, Plan
    from shoal.protocol.plain import from_plain, to_plain
    from tests.peer.scripted import ScriptedPeer, credential

    before = _anonymous_bytes()
    int8 = codec("int8", BLOCK)
    step = (1 << 20) // int8.encoded_size((BLOCK,)) * BLOCK
    parts = [Part(at, min(at + step, parameters), (min(step, parameters - at),)) for at in range(0, parameters, step)]
    result = torch.empty(parameters)
    final: SimpleQueue[tuple[PartKey, bytes]] = SimpleQueue()
    decoded = asyncio.Event()

    class Peer(ScriptedPeer):
        """Decodes each final part when it is here, in a thread of its own as an apply has."""

        def react(self, event: ev.Event) -> None:
            super().react(event)
            if isinstance(event, ev.ResultArrived | ev.PartReduced):
                final.put((event.key, event.digest))

        def decode(self, loop: asyncio.AbstractEventLoop) -> None:
            while True:
                for _ in parts:
                    key, digest = final.get()
                    stored = self.vault.store.find(digest, key.round)
                    assert stored is not None
                    part = parts[key.part]
                    int8.decode(self.vault.store.read(stored), part.spans, result[part.start : part.stop])
                loop.call_soon_threadsafe(decoded.set)

        async def has_decoded(self) -> None:
            waiting = asyncio.ensure_future(decoded.wait())
            either: list[asyncio.Future[Any]] = [waiting, self.plane.broken]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.plane.broken.done():
                self.plane.broken.result()
            decoded.clear()

    peer = Peer(scratch / f"vault-{index}", credential(Authority.load(scratch / "authority")), (int8, int8), None, None)
    await peer.start(parts, torch.zeros(parameters), KEEP_ENTRIES)
    generator = torch.Generator().manual_seed(index)
    delta = torch.randn(parameters, generator=generator)
    own = torch.empty_like(delta)
    before += 4 * 3 * parameters  # delta, own and result are the benchmark's
    torch.distributed.init_process_group("gloo", init_method=f"file://{scratch}/gloo", rank=index, world_size=PEERS)

    settle_daemon_process()
    threading.Thread(target=peer.decode, args=(asyncio.get_running_loop(),), daemon=True).start()

    def say(**said: Any) -> None:
        out.write(json.dumps(said) + "\n")
        out.flush()

    def gloo() -> tuple[float, float]:
        own.copy_(delta)
        torch.distributed.barrier()
        cpu, start = time.process_time(), time.perf_counter()
        torch.distributed.all_reduce(own)
        own.div_(PEERS)
        return time.perf_counter() - start, time.process_time() - cpu

    say(peer=peer.me, address=peer.address, parts=len(parts))
    while (command := json.loads(await asyncio.to_thread(sys.stdin.readline)))["do"] != "stop":
        match command["do"]:
            case "gloo":
                seconds, cpu = await asyncio.to_thread(gloo)
                say(seconds=seconds, cpu=cpu)
            case "reduce":
                plan = from_plain(Plan, command["plan"])
                peer.publish(delta, plan.round)
                sent = _acknowledged_bytes()
                await asyncio.to_thread(torch.distributed.barrier)
                cpu, start = time.process_time(), time.perf_counter()
                with _Peak(before) as peak:
                    peer.begin(plan)
                    await peer.has_decoded()
                    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
                    await asyncio.to_thread(torch.distributed.barrier)
                decisions = [
                    to_plain(Decision(key.section, key.part, key.attempt, peer.results[key], *peer.decided[key]))
                    for key in peer.decided
                ]
                sent = _acknowledged_bytes() - sent
                say(seconds=seconds, cpu=cpu, sent=sent, anonymous=peak.bytes, decisions=decisions)
            case "apply":
                commit = from_plain(Commit, command["commit"])
                peer.events.clear()
                start = time.perf_counter()
                peer.plane.perform(ev.Apply(commit, (True,) * len(commit.parts), 0))
                await peer.wait_for(ev.EntryApplied)
                seconds = time.perf_counter() - start
                peer.plane.perform(ev.DropRound(commit.round))
                peer.plane.perform(ev.HashState(commit.version))
                await peer.wait_for(ev.Hashed)
                held = sum(file.stat().st_blocks * 512 for file in peer.directory.iterdir() if file.is_file())
                say(seconds=seconds, root=peer.vault.root().hex(), vault=held)
            case _:
                raise ValueError(command)
    torch.distributed.destroy_process_group()
    await peer.stop()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        asyncio.run(_work(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.stdout))
    else:
        for line in measured(int(sys.argv[1]) if len(sys.argv) > 1 else 25_000_000, 9):
            print(line)
