"""An all-reduce over links as people have them: one home with 10 Mb/s and three with 100 Mb/s, and four homes far from one another.

Each home is a network namespace of the wan tests, its link shaped, and in it a process with a vault and a bulk plane, driven by the
scripted engine of the data plane's tests. The first turn divides the parts equally and measures the links; the later ones divide
them as the coordinator would, by what was measured. The best possible is what water-filling gives for the true rates, without
headers or latency. Without root or namespaces there is nothing to measure, and no row.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = 1024
LIMIT_S = 300.0


@dataclass(frozen=True)
class Setting:
    """Four homes, and what is asked of an all-reduce among them."""

    name: str
    mbit: tuple[float, ...]
    parameters: int
    goal: float
    """Times the best possible."""
    round_trip_ms: float = 0.0
    turns: int = 2
    """After the first one, which measures."""


SETTINGS = (
    Setting("25 M, one home at 10 Mb/s and three at 100", (10.0, 100.0, 100.0, 100.0), 25_000_000, 1.4),
    Setting("25 M, four homes at 100 Mb/s and 100 ms", (100.0,) * 4, 25_000_000, 1.4, 100.0),
    Setting("100 M, four homes at 100 Mb/s and 100 ms", (100.0,) * 4, 100_000_000, 1.25, 100.0),
    Setting("25 M, four homes at 1 Gb/s and 100 ms", (1000.0,) * 4, 25_000_000, 2.2, 100.0, turns=4),
)


def run() -> list[dict[str, Any]]:
    """Rows of the goals."""
    from tests.wan.internet import why_not

    if reason := why_not():
        print(f"bench_wan measures nothing here: {reason}", file=sys.stderr)
        return []
    return [row for setting in SETTINGS for row in measured(setting)]


def measured(setting: Setting) -> list[dict[str, Any]]:
    """One turn of equal shares, then those of measured ones."""
    from shoal.coordinator.shares import Link, fractions, slowest_s
    from shoal.protocol.messages import Contact

    size = setting.parameters * (1 + 4 / BLOCK)
    true = [Link(Contact(str(home), ""), mbit * 125_000, mbit * 125_000) for home, mbit in enumerate(setting.mbit)]
    best_s = slowest_s(true, fractions(true), size, size)
    equal_s, *seconds = turns(setting)
    ratio = statistics.median(seconds) / best_s
    name = f"all-reduce {setting.name}"
    return [
        {"name": f"{name}: best possible", "value": round(best_s, 2), "unit": "s"},
        {"name": f"{name}: equal shares", "value": round(equal_s, 2), "unit": "s"},
        {"name": f"{name}: measured shares", "value": round(statistics.median(seconds), 2), "unit": "s"},
        {
            "name": f"{name}: measured shares against the best possible",
            "value": round(ratio, 3),
            "unit": "x",
            "goal": f"at most {setting.goal:g}",
            "met": ratio <= setting.goal,
        },
    ]


def turns(setting: Setting) -> list[float]:
    from shoal.coordinator.shares import Link, planned_shares
    from shoal.peer.allocator import malloc_environment
    from shoal.peer.vault import shared_memory_directory
    from shoal.protocol.authority import Authority
    from shoal.protocol.messages import Contact, Contribution, Plan, Section
    from shoal.protocol.plain import to_plain
    from tests.wan.internet import Internet

    scratch = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=shared_memory_directory()))
    root = Path(__file__).resolve().parents[2]
    environment = malloc_environment() | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    workers: list[subprocess.Popen[bytes]] = []
    seconds = []

    def hear(worker: subprocess.Popen[bytes]) -> Any:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker of the benchmark ended with {worker.wait(10)}")
        return json.loads(line)

    try:
        Authority.create(scratch / "authority", "shoal-test")
        with Internet() as internet:
            for home, mbit in enumerate(setting.mbit):
                host = internet.home(str(home), mbit, delay_ms=setting.round_trip_ms / 4)
                words = (str(home), str(scratch), host, str(setting.parameters))
                command = [sys.executable, "-m", "tests.benchmarks.bench_wan", *words]
                with internet.inside(str(home)):
                    workers.append(
                        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=root)
                    )
            hello = [hear(worker) for worker in workers]
            rates = [(0.0, 0.0)] * len(workers)
            for turn in range(1 + setting.turns):
                contacts = [Contact(said["peer"], said["address"]) for said in hello]
                links = [Link(contact, *rate) for contact, rate in zip(contacts, rates, strict=True)]
                shares = tuple(planned_shares(hello[0]["parts"], links, Section.PARAMETERS))
                contributions = tuple(Contribution(contact.peer, 1000) for contact in contacts)
                members = tuple(contact.peer for contact in contacts)
                plan = Plan(turn + 1, 1, 0, 0, 0, contributions, members, shares, LIMIT_S)
                started = time.perf_counter()
                for worker in workers:
                    assert worker.stdin is not None
                    worker.stdin.write(json.dumps(to_plain(plan)).encode() + b"\n")
                    worker.stdin.flush()
                said = [hear(worker) for worker in workers]
                seconds.append(time.perf_counter() - started)
                if len({one["result"] for one in said}) != 1:
                    raise RuntimeError("the four do not hold the same bytes")
                for worker in workers:  # rates are told when the round is dropped
                    assert worker.stdin is not None
                    worker.stdin.write(b"{}\n")
                    worker.stdin.flush()
                rates = [tuple(hear(worker)["rates"]) for worker in workers]
                print(f"turn {turn}: {seconds[-1]:.1f} s, then Mb/s: {[[round(r / 125e3, 1) for r in rate] for rate in rates]}")
        return seconds
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        shutil.rmtree(scratch, ignore_errors=True)


async def _work(home: int, scratch: Path, host: str, parameters: int) -> None:
    import hashlib

    import torch

    from shoal.compression.codec import codec
    from shoal.optim.layout import Part
    from shoal.peer import events as ev
    from shoal.peer.exchange import Limits
    from shoal.peer.workers import settle_daemon_process
    from shoal.protocol.authority import Authority
    from shoal.protocol.messages import Plan
    from shoal.protocol.plain import from_plain
    from tests.peer.scripted import ScriptedPeer, credential

    int8 = codec("int8", BLOCK)
    step = (1 << 20) // int8.encoded_size((BLOCK,)) * BLOCK
    parts = [Part(at, min(at + step, parameters), (min(step, parameters - at),)) for at in range(0, parameters, step)]
    authority = Authority.load(scratch / "authority")
    limits = Limits(progress_s=LIMIT_S)
    peer = ScriptedPeer(scratch / f"vault-{home}", credential(authority), (int8, int8), limits, None)
    await peer.start(parts, torch.zeros(parameters), host=host)
    delta = torch.randn(parameters, generator=torch.Generator().manual_seed(home))
    settle_daemon_process()
    print(json.dumps({"peer": peer.me, "address": peer.address, "parts": len(parts)}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if (said := json.loads(line)) == {}:
            assert peer.plan is not None
            peer.plane.perform(ev.DropRound(peer.plan.round))
            rates = [(event.up_bytes_s, event.down_bytes_s) for event in peer.events if isinstance(event, ev.LinkMeasured)]
            print(json.dumps({"rates": rates[-1] if rates else (0.0, 0.0)}), flush=True)
            continue
        plan = from_plain(Plan, said)
        peer.publish(delta, plan.round)
        peer.begin(plan)
        await peer.until(lambda: len(peer.results) == len(parts), LIMIT_S)
        digests = b"".join(digest for _, digest in sorted(peer.results.items(), key=lambda item: item[0].part))
        print(json.dumps({"result": hashlib.sha256(digests).hexdigest()}), flush=True)
    await peer.stop()


if __name__ == "__main__":
    if len(sys.argv) == 5:
        asyncio.run(_work(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
    else:
        for row in run():
            print(row)
