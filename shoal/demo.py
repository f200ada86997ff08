"""The story of `shoal demo`: a swarm trains, loses a peer, gains a peer, and ends with one model and a table of what it took.

The numbers of the table are measured, not asserted: bytes and times are what the coordinator journaled, the models are compared
file by file. Two figures come from outside the run: `LONE_PEER`, measured once, and the bytes that per-step data parallelism
would have sent, by its formula. Neighbours: `localswarm` runs the processes, `demoview` shows them, `command_demo` wires.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoal.failures import PromiseError
from shoal.localswarm import LocalSwarm
from shoal.panel import byte_count, duration
from shoal.protocol.admin import GetPeers, GetRounds, GetStatus, Pause, Peers, PeerView, Resume, Rounds, RoundView, Status
from shoal.protocol.messages import NO_VERSION
from shoal.protocol.spec import RunSpec

PEERS = 4
ROUNDS = 40
STEPS = 30
BATCH = 4
SEQUENCE = 128
KILL_AT = ROUNDS // 3
"""Version at which a peer is killed."""
JOIN_AT = ROUNDS * 2 // 5
"""Version at which another is started; it takes a few rounds to come in, so that it trains from about half-way on."""
ALL_ROUNDS_KEPT = 1000

MOST_BITS_PER_BYTE = 2.4
LEAST_SAVING = 100.0
LONE_PEER_BITS_PER_BYTE = 2.299
"""Held-out bits per byte of one peer alone after as many steps: 1,200 of 4 x 128 tokens, the same model, text and inner optimizer,
outer rate 1 and momentum 0. Measured once with shoal itself (Python 3.11's library, torch 2.13, one thread); the slow tests measure
it again, the demo does not."""

START_S = 180.0
STALL_S = 120.0
"""The longest time without a commit before the demo gives up."""
FAREWELL_S = 60.0
POLL_S = 0.4


def run_spec(rounds: int = ROUNDS) -> RunSpec:
    """The demo's run: 0.19 M parameters, the standard library's sources, rounds of 30 steps."""
    return RunSpec.of(
        run={"name": f"demo-{secrets.token_hex(3)}", "min_peers": 1, "total_tokens": rounds * PEERS * STEPS * BATCH * SEQUENCE},
        model={"width": 64, "layers": 3, "init_std": 0.08},
        data={"source": "stdlib", "sequence_length": SEQUENCE},
        train={"batch": BATCH, "steps": STEPS, "lr": 4e-3},
        outer={"lr": 0.7, "momentum": 0.6},
        evaluation={"every": 5},
    )


@dataclass(frozen=True)
class Snapshot:
    """The swarm at one moment."""

    elapsed_s: float
    status: Status
    peers: tuple[PeerView, ...]
    rounds: int = ROUNDS
    """Rounds that the run takes about."""
    starting: bool = False
    """Whether the demo still holds the run until the first peers are in."""


class Audience(Protocol):
    """Who watches the demo."""

    def show(self, snapshot: Snapshot) -> None: ...
    def say(self, line: str) -> None: ...


@dataclass(frozen=True)
class Result:
    """One line of the final table, and whether it is as promised."""

    what: str
    value: str
    kept: bool = True


@dataclass
class Observations:
    """What the demo noticed on the way."""

    started_at: float = 0.0
    finished_at: float = 0.0
    newest: int = NO_VERSION
    went_back: int = 0
    """How often the version was seen below one that had been seen before."""
    killed: str = ""
    killed_at: float = 0.0
    killed_version: int = 0
    recovered_at: float = 0.0
    joined: str = ""
    joined_at: float = 0.0
    contributed_at: float = 0.0
    rounds: tuple[RoundView, ...] = ()
    status: Status | None = None
    evaluations: dict[int, float] = field(default_factory=dict)


class Demo:
    """One showing. `perform` tells the story; `results` are its table."""

    def __init__(self, swarm: LocalSwarm, audience: Audience, rounds: int = ROUNDS) -> None:
        self._swarm = swarm
        self._audience = audience
        self._rounds = rounds
        self._kill_at, self._join_at = max(1, rounds * KILL_AT // ROUNDS), max(2, rounds * JOIN_AT // ROUNDS)
        self._seen = Observations()
        self._began = time.monotonic()

    def perform(self) -> list[Result]:
        """Start, train, kill, join, finish, compare."""
        self._start()
        self._train()
        self._finish()
        return self._results()

    def _start(self) -> None:
        swarm = self._swarm
        swarm.create()
        swarm.start_coordinator()
        self._audience.say(f"the coordinator listens on {swarm.address}")
        swarm.ask(Pause())
        for number in range(1, PEERS + 1):
            swarm.add_peer(f"peer-{number}")
        self._audience.say(f"{PEERS} peers, each a process with a trainer of its own, enrol over mTLS")
        swarm.wait_for(lambda: self._look().status.members == PEERS, START_S, f"{PEERS} peers to come in")
        swarm.ask(Resume())
        self._seen.started_at = time.monotonic()

    def _train(self) -> None:
        seen, swarm = self._seen, self._swarm
        moved_at, version = time.monotonic(), 0
        while True:
            snapshot = self._look()
            now, status = time.monotonic(), snapshot.status
            if status.version > version:
                moved_at, version = now, status.version
            if not seen.killed and version >= self._kill_at:
                seen.killed, seen.killed_version = "peer-2", version
                seen.killed_at = time.monotonic()
                swarm.peers["peer-2"].kill()
                self._audience.say("peer-2 was killed (SIGKILL)")
            elif seen.killed and not seen.recovered_at and version > seen.killed_version + 1:
                seen.recovered_at = now
                self._audience.say(
                    f"the others went on: a whole round without it is committed after {duration(now - seen.killed_at)}"
                )
            if not seen.joined and version >= self._join_at and seen.recovered_at:
                seen.joined, seen.joined_at = f"peer-{PEERS + 1}", time.monotonic()
                swarm.add_peer(seen.joined)
                self._audience.say(f"{seen.joined} joins the running swarm")
            if (
                seen.joined
                and not seen.contributed_at
                and any(p.name == seen.joined and p.committed_tokens for p in snapshot.peers)
            ):
                seen.contributed_at = now
                self._audience.say(f"{seen.joined}'s work is in the shared model, {duration(now - seen.joined_at)} after its start")
            if status.phase == "ended":
                seen.finished_at = now
                return
            swarm.check()
            if now - moved_at > STALL_S:
                waiting = status.waiting_for or f"phase {status.phase}"
                raise PromiseError(f"no round was committed for {STALL_S:g} s: {waiting}", swarm.advice)
            time.sleep(POLL_S)

    def _finish(self) -> None:
        seen, swarm = self._seen, self._swarm
        self._audience.say("the run is over; every peer writes the model and leaves")
        leaving = [child for name, child in swarm.peers.items() if name != seen.killed]
        deadline = time.monotonic() + FAREWELL_S
        while any(child.exit_code is None for child in leaving) and time.monotonic() < deadline:
            self._look()
            time.sleep(POLL_S)
        for child in leaving:
            if child.exit_code != 0:
                outcome = "did not leave" if child.exit_code is None else f"ended with code {child.exit_code}"
                raise PromiseError(f"{child.name} {outcome}: {child.last_words(3)}", swarm.advice)
        seen.status = self._look().status
        rounds = swarm.ask(GetRounds(ALL_ROUNDS_KEPT))
        assert isinstance(rounds, Rounds)
        seen.rounds = rounds.rounds

    def _look(self) -> Snapshot:
        """Ask how things are, show it, remember what the table needs."""
        seen = self._seen
        status, peers = self._swarm.ask(GetStatus()), self._swarm.ask(GetPeers())
        assert isinstance(status, Status)
        assert isinstance(peers, Peers)
        seen.went_back += status.version < seen.newest
        seen.newest = max(seen.newest, status.version)
        if status.evaluated_version >= 0:
            seen.evaluations[status.evaluated_version] = status.bits_per_byte
        snapshot = Snapshot(time.monotonic() - self._began, status, peers.peers, self._rounds, not seen.started_at)
        self._audience.show(snapshot)
        return snapshot

    def _results(self) -> list[Result]:
        seen, status = self._seen, self._seen.status
        assert status is not None
        models = self._models()
        values = next((count_values(path) for path in models.values()), 0)
        committed = [entry for entry in seen.rounds if entry.version >= 0]
        first, last = (seen.evaluations.get(min(seen.evaluations, default=-1), 0.0), status.bits_per_byte)
        goal = MOST_BITS_PER_BYTE if self._rounds >= ROUNDS else first
        learned = 0 < last < goal and status.evaluated_version == status.version
        sent = sum(entry.sent_bytes for entry in seen.rounds)
        classic = sum(data_parallel_bytes(values, entry.contributors, STEPS) for entry in committed)
        saving = classic / sent if sent else 0.0
        wall = seen.finished_at - seen.started_at
        trained = sum(entry.train_s for entry in committed)
        spent = trained + sum(entry.wait_s for entry in committed)
        lost = status.version - len({entry.version for entry in committed}) + seen.went_back
        digests = {file_digest(path) for path in models.values()}
        expected = {name for name in self._swarm.peers if name != seen.killed}
        same = len(digests) == 1 and models.keys() == expected
        default = self._rounds == ROUNDS
        alone = [Result("one peer alone, as many steps", f"{LONE_PEER_BITS_PER_BYTE:.3f} (measured once)")]
        return [
            Result("held-out bits per byte, start → end", f"{first:.3f} → {last:.3f}", learned),
            *(alone if default else []),
            Result("rounds committed", f"{status.version} of {STEPS} steps, in {duration(wall)}", status.version > 0),
            Result(
                "bytes sent (against per-step fp32)",
                f"{byte_count(sent)}, {saving:.0f}x less ({byte_count(classic)})",
                saving >= LEAST_SAVING,
            ),
            Result("utilisation (time spent training)", f"{trained / spent:.0%}" if spent > 0 else "not reported"),
            Result(
                f"{seen.killed} killed: next whole round after",
                duration(seen.recovered_at - seen.killed_at) if seen.recovered_at else "never",
                bool(seen.recovered_at),
            ),
            Result(
                f"{seen.joined} joined: its work is in after",
                duration(seen.contributed_at - seen.joined_at) if seen.contributed_at else "never",
                bool(seen.contributed_at),
            ),
            Result("committed rounds lost", str(lost), lost == 0),
            Result(
                "final models",
                f"{len(models)} equal, SHA-256 {next(iter(digests))[:16]}"
                if same
                else f"{len(digests)} different among {len(models)}",
                same,
            ),
        ]

    def _models(self) -> dict[str, Path]:
        """The file that each peer wrote at the end."""
        found = {name: sorted(self._swarm.state_of(name).rglob("model.safetensors")) for name in self._swarm.peers}
        return {name: paths[0] for name, paths in found.items() if paths}


def data_parallel_bytes(values: int, peers: int, steps: int) -> int:
    """What `peers` together send when they average fp32 gradients after each of `steps` steps: 2(N-1)/N of the vector per peer
    and step, the least that any all-reduce can do."""
    return 2 * max(0, peers - 1) * 4 * values * steps


def count_values(model: Path) -> int:
    """Values in a safetensors file."""
    with model.open("rb") as file:
        return sum(math.prod(tensor["shape"]) for tensor in _read_header(file).values())


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """What a safetensors file begins with: 8 bytes of length, then JSON that says of each tensor where and what it is."""
    header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return header
