"""A coordinator with 2,000 sessions that are idle: each over a connection of its own with mutual TLS, and no heartbeat missed.

The coordinator is the real process. The members are streams of two worker processes that come one after the other, say Hello and
what they hold, and then a heartbeat every two seconds, like a daemon whose trainer is busy. With the last of them the first round
opens. Then it is watched for a while: its processor time, its memory, who was lost, and who was not heard for how long.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SESSIONS = 2000
WORKERS = 2
JOINING_S = 40.0
"""So long do they take to come."""
WATCHED_S = 30.0
LIMIT_S = 240.0
"""For all to be members."""


def run() -> list[dict[str, Any]]:
    """Rows of the goal."""
    import psutil

    from shoal.localswarm import LocalSwarm
    from shoal.protocol.admin import GetPeers, GetStatus, Peers, Status
    from shoal.protocol.errors import UnreachableError
    from shoal.protocol.spec import RunSpec

    spec = RunSpec.of(run={"name": "shoal-bench", "total_tokens": 1 << 40, "min_peers": SESSIONS}, evaluation={"every": 0})
    root = Path(__file__).resolve().parents[2]
    workers: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as scratch, LocalSwarm(Path(scratch), spec) as swarm:
        swarm.create()
        process = psutil.Process(swarm.start_coordinator().pid)

        def begun() -> bool:
            try:
                reply = swarm.ask(GetStatus())
            except UnreachableError:
                return False  # 2,000 handshakes come first
            assert isinstance(reply, Status)
            return reply.round >= 0

        def spent_s() -> float:
            times = process.cpu_times()
            return times.user + times.system

        try:
            for worker in range(WORKERS):
                command = [sys.executable, "-m", "tests.benchmarks.bench_sessions", scratch, swarm.address, str(worker)]
                workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root))
            for one in workers:
                assert one.stdout is not None
                assert one.stdout.readline() == b"certified\n"
            joining, before_s = time.monotonic(), spent_s()
            for one in workers:
                assert one.stdin is not None
                one.stdin.write(b"join\n")
                one.stdin.flush()
            swarm.wait_for(begun, LIMIT_S, f"{SESSIONS} members")
            joined_s, join_cost_s = time.monotonic() - joining, spent_s() - before_s
            time.sleep(10)
            watching, before_s = time.monotonic(), spent_s()
            silences = []
            while time.monotonic() < watching + WATCHED_S:
                members = swarm.ask(GetPeers())
                assert isinstance(members, Peers)
                silences.append([peer.silent_s for peer in members.peers])
                time.sleep(WATCHED_S / 6)
            share = (spent_s() - before_s) / (time.monotonic() - watching)
            memory = process.memory_info().rss / 2**20
            for one in workers:
                assert one.stdin is not None
                one.stdin.write(b"tell\n")
                one.stdin.flush()
            ended = sum(json.loads(one.stdout.readline())["ended"] for one in workers if one.stdout is not None)
        finally:
            for one in workers:
                one.kill()
                one.wait()
    longest, lost = max(map(max, silences)), SESSIONS - min(map(len, silences)) + ended
    return [
        {"name": f"{SESSIONS:,} sessions: all are members after", "value": joined_s, "unit": "s"},
        {"name": f"{SESSIONS:,} sessions: processor time of that", "value": join_cost_s, "unit": "s"},
        {"name": f"{SESSIONS:,} idle sessions: lost", "value": lost, "unit": "", "goal": "0", "met": lost == 0},
        {
            "name": f"{SESSIONS:,} idle sessions: longest silence",
            "value": longest,
            "unit": "s",
            "goal": f"below {2 * spec.timing.heartbeat_s:g}: no heartbeat missed",
            "met": longest < 2 * spec.timing.heartbeat_s,
        },
        {"name": f"{SESSIONS:,} idle sessions: coordinator's share of one core", "value": 100 * share, "unit": "%"},
        {"name": f"{SESSIONS:,} idle sessions: coordinator's memory", "value": memory, "unit": "MiB"},
    ]


async def _work(scratch: Path, address: str, worker: int) -> None:
    """This worker's part of the members."""
    import grpc

    from shoal.coordinator.setup import RunDirectory
    from shoal.peer.session import CONNECT_S, PAUSE_FLOOR_S
    from shoal.protocol.authority import Authority, coordinator_name
    from shoal.protocol.channels import Kind, open_channel
    from shoal.protocol.messages import (
        NO_SESSION,
        NO_VERSION,
        PROTOCOL_MAJOR,
        PROTOCOL_MINOR,
        Envelope,
        FragmentShape,
        Heartbeat,
        Hello,
        Layout,
        StateReady,
        Welcome,
    )
    from shoal.protocol.services import SESSION
    from shoal.protocol.tls import client_credentials
    from shoal.protocol.wire import pack, unpack_from_coordinator
    from tests.peer.scripted import credential

    authority = Authority.load(RunDirectory(scratch / "coordinator").authority)
    layout = Layout(b"L" * 32, 1000, (FragmentShape(1),))
    credentials = [client_credentials(credential(authority)) for _ in range(SESSIONS // WORKERS)]
    await _said("certified", "join")
    ended = 0

    async def opened(number: int) -> Any:
        """A stream; whom a busy coordinator does not hear dials again, as daemons do."""
        while True:
            channel = open_channel(Kind.SESSION, address, credentials[number], coordinator_name(authority.run))
            call = SESSION.stub(channel)()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await call.initial_metadata()
            except (TimeoutError, grpc.aio.AioRpcError):
                await channel.close(None)
                await asyncio.sleep(PAUSE_FLOOR_S)
            else:
                return channel, call

    async def member(number: int) -> None:
        nonlocal ended
        await asyncio.sleep(number * WORKERS * JOINING_S / SESSIONS)
        channel, call = await opened(number)
        name = f"{worker}-{number}"
        ours = (authority.run, PROTOCOL_MAJOR, PROTOCOL_MINOR)
        hello = Hello(*ours, name, NO_SESSION, NO_VERSION, b"", layout, f"10.0.0.1:{number + 1}", name)
        await call.write(pack(Envelope(NO_SESSION, 0, hello)))
        welcome = unpack_from_coordinator(await call.read())
        assert isinstance(welcome.body, Welcome), welcome
        pause_s = welcome.body.heartbeat_s
        ids = (welcome.session, welcome.term)
        await call.write(pack(Envelope(*ids, StateReady(0, b"R" * 32, layout))))

        async def beat() -> None:
            for steps in range(1 << 30):
                await call.write(pack(Envelope(*ids, Heartbeat("training", steps, 2.0, 1000.0))))
                await asyncio.sleep(pause_s)

        beating = asyncio.create_task(beat())
        while isinstance(await call.read(), bytes):
            pass
        ended += 1
        beating.cancel()
        await channel.close(None)

    members = [asyncio.create_task(member(number)) for number in range(len(credentials))]
    await asyncio.to_thread(sys.stdin.readline)
    crashed = sum(one.done() and one.exception() is not None for one in members)
    print(json.dumps({"ended": ended + crashed}), flush=True)
    await asyncio.gather(*members)


async def _said(word: str, until: str) -> None:
    """Say it, and wait for what the benchmark says."""
    print(word, flush=True)
    heard = await asyncio.to_thread(sys.stdin.readline)
    assert heard.strip() == until, heard


if __name__ == "__main__":
    if len(sys.argv) == 4:
        asyncio.run(_work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    else:
        for row in run():
            print(row)
