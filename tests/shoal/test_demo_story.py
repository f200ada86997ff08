"""The demo's story against a swarm that follows a script, and the arithmetic of its table."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import shoal.demo as story
from shoal.demo import Demo, Snapshot, count_values, data_parallel_bytes, file_digest
from shoal.demoview import LiveAudience, LogAudience
from shoal.failures import PromiseError
from shoal.protocol.admin import (
    AdminCommand,
    AdminReply,
    Done,
    GetPeers,
    GetRounds,
    GetStatus,
    Pause,
    Peers,
    PeerView,
    Resume,
    Rounds,
    RoundView,
    Status,
)

VALUES = 1000


def write_model(path: Path, content: bytes = b"same") -> None:
    """A file with the header of a safetensors file."""
    header = json.dumps({"__metadata__": {"a": "b"}, "w": {"shape": [VALUES - 1]}, "b": {"shape": []}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)


@dataclass
class ScriptedChild:
    name: str
    exit_code: int | None = None
    killed: bool = False

    def kill(self) -> None:
        self.killed = True

    def last_words(self, lines: int = 3) -> str:
        return "last words"


@dataclass
class ScriptedSwarm:
    """Commits a version each time it is asked for its status, once it was resumed."""

    directory: Path
    rounds: int = 12
    bits: float = 2.2
    stuck_at: int = 1000
    forget: int = 0
    """A version whose round is missing from the history."""
    odd_one: str = ""
    """A peer that ends with other bytes."""
    address: str = "127.0.0.1:1"
    advice: str = "look there"
    version: int = 0
    resumed: bool = False
    peers: dict[str, ScriptedChild] = field(default_factory=dict)
    joined_at: dict[str, int] = field(default_factory=dict)
    asked: list[AdminCommand] = field(default_factory=list)

    def create(self) -> None: ...
    def start_coordinator(self) -> None: ...
    def check(self) -> None: ...

    def wait_for(self, condition: object, timeout_s: float, what: str) -> None:
        assert callable(condition)
        assert condition(), what

    def add_peer(self, name: str) -> ScriptedChild:
        self.peers[name] = ScriptedChild(name)
        self.joined_at[name] = self.version
        return self.peers[name]

    def state_of(self, name: str) -> Path:
        state = self.directory / name
        state.mkdir(exist_ok=True)
        return state

    def alive(self) -> list[str]:
        return [name for name, child in self.peers.items() if not child.killed]

    def ask(self, command: AdminCommand) -> AdminReply:
        self.asked.append(command)
        match command:
            case Pause():
                return Done("paused")
            case Resume():
                self.resumed = True
                return Done("resumed")
            case GetStatus():
                if self.resumed and self.version < min(self.rounds, self.stuck_at):
                    self.version += 1
                return self.status()
            case GetPeers():
                return Peers(tuple(self.view(name) for name in self.alive()))
            case GetRounds():
                return Rounds(tuple(self.round(v) for v in range(1, self.version + 1) if v != self.forget))
            case _:
                raise AssertionError(command)

    def status(self) -> Status:
        ended = self.version == self.rounds
        if ended:
            for name in self.alive():
                write_model(self.state_of(name) / "model.safetensors", b"odd" if name == self.odd_one else b"same")
                self.peers[name].exit_code = 0
        evaluated = self.version if ended else 0
        bits = self.bits if ended else 8.0
        phase = "ended" if ended else "training"
        return Status(
            "demo", 1, phase, "", self.version, self.version, len(self.alive()), 1, self.version, self.rounds, bits, evaluated, ""
        )

    def view(self, name: str) -> PeerView:
        work = 10 if self.version > self.joined_at[name] + 1 else 0
        return PeerView("id", name, 1, "active", "", "cpu", self.version, "training", 0.0, 100.0, 2.0, work, "")

    def round(self, version: int) -> RoundView:
        sent = data_parallel_bytes(VALUES, 4, story.STEPS) // 119
        return RoundView(version, version, "committed", 4, 4, 100, sent, 9.0, 1.0, 0.01, 0.0, 0.0, "")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "POLL_S", 0.0)


def perform(swarm: ScriptedSwarm) -> dict[str, tuple[str, bool]]:
    demo = Demo(swarm, LogAudience(), swarm.rounds)  # type: ignore[arg-type]
    return {result.what: (result.value, result.kept) for result in demo.perform()}


def test_the_story_pauses_until_all_are_in_kills_one_and_adds_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swarm = ScriptedSwarm(tmp_path)
    results = perform(swarm)
    assert [command for command in swarm.asked if isinstance(command, Pause | Resume)] == [Pause(), Resume()]
    assert isinstance(swarm.asked[0], Pause)
    assert swarm.peers["peer-2"].killed
    assert swarm.joined_at["peer-5"] > swarm.joined_at["peer-1"] == 0
    assert all(kept for _, kept in results.values()), results
    assert results["held-out bits per byte, start → end"][0] == "8.000 → 2.200"
    width = max(map(len, results))
    assert all(width + len(value) <= 80 - 5 for value, _ in results.values()), "a terminal of 80 columns"
    assert "119x less" in results["bytes sent (against per-step fp32)"][0]
    assert results["utilisation (time spent training)"][0] == "90%"
    said = capsys.readouterr().out
    assert "peer-2 was killed" in said
    assert "peer-5 joins" in said


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"bits": 2.5, "rounds": story.ROUNDS}, "held-out bits per byte, start → end"),
        ({"bits": 8.1}, "held-out bits per byte, start → end"),
        ({"forget": 7}, "committed rounds lost"),
        ({"odd_one": "peer-3"}, "final models"),
    ],
)
def test_a_promise_that_was_not_kept_is_marked(tmp_path: Path, change: dict[str, object], broken: str) -> None:
    results = perform(ScriptedSwarm(tmp_path, **change))  # type: ignore[arg-type]
    assert [what for what, (_, kept) in results.items() if not kept] == [broken]


def test_a_swarm_that_stands_still_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "STALL_S", 0.05)
    with pytest.raises(PromiseError, match="no round was committed"):
        perform(ScriptedSwarm(tmp_path, stuck_at=3))


def test_values_are_counted_from_the_header_scalars_too(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    assert count_values(tmp_path / "m") == VALUES


def test_the_digest_in_the_table_is_the_files_own(tmp_path: Path) -> None:
    swarm = ScriptedSwarm(tmp_path)
    results = perform(swarm)
    model = tmp_path / "peer-1" / "model.safetensors"
    assert results["final models"][0] == f"4 equal, SHA-256 {hashlib.sha256(model.read_bytes()).hexdigest()[:16]}"
    assert file_digest(model) == hashlib.sha256(model.read_bytes()).hexdigest()


def test_a_short_demo_promises_learning_only_and_does_not_compare_with_a_long_one(tmp_path: Path) -> None:
    results = perform(ScriptedSwarm(tmp_path, bits=4.5))
    assert results["held-out bits per byte, start → end"] == ("8.000 → 4.500", True)
    assert not any("alone" in what for what in results)
    whole = perform(ScriptedSwarm(tmp_path, rounds=story.ROUNDS))
    assert whole["one peer alone, as many steps"] == ("2.299 (measured once)", True)


def test_data_parallel_bytes_are_the_lower_bound_of_an_all_reduce() -> None:
    assert data_parallel_bytes(values=10, peers=4, steps=3) == 4 * (2 * 3 / 4) * 40 * 3
    assert data_parallel_bytes(values=10, peers=1, steps=3) == 0


def test_the_log_has_one_line_per_version(capsys: pytest.CaptureFixture[str]) -> None:
    audience = LogAudience()
    swarm = ScriptedSwarm(Path(), resumed=True)
    swarm.add_peer("anna")
    for _ in range(3):
        status = swarm.status()
        for _ in range(5):
            audience.show(Snapshot(1.0, status, (swarm.view("anna"),)))
        swarm.version += 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].split(" ", 1)[1] for line in lines] == ["version 1 of about 40", "version 2 of about 40"]
    assert all("  1 member  " in line for line in lines)


def test_until_all_are_in_the_log_says_how_many_and_not_that_an_operator_must_resume(capsys: pytest.CaptureFixture[str]) -> None:
    audience = LogAudience()
    swarm = ScriptedSwarm(Path())
    for name in ("anna", "ben"):
        status = replace(swarm.status(), version=-1, phase="paused", waiting_for="an operator to resume the run")
        for _ in range(2):
            audience.show(Snapshot(1.0, status, (), starting=True))
        swarm.add_peer(name)
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["starting 4 peers (0 of 4 ready)", "starting 4 peers (1 of 4 ready)"]


def test_the_live_table_shows_every_peer_and_what_is_waited_for_as_it_was_said() -> None:
    from rich.console import Console

    console = Console(width=80, force_terminal=False)
    audience = LiveAudience(console)
    swarm = ScriptedSwarm(Path(), version=3)
    for name in ("anna", "[red]ben"):
        swarm.add_peer(name)
    with console.capture() as captured:
        console.print(audience)
        audience.show(Snapshot(65.0, replace(swarm.status(), waiting_for="[1] more peer"), tuple(map(swarm.view, swarm.peers))))
        console.print(audience)
        audience.say("peer-2 was killed")
    shown = captured.get()
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "\nversion 3 of about 40   1 min 05 s" in shown
    for text in (
        "starting",
        "version 3 of about 40",
        "1 min 05 s",
        "anna",
        "[red]ben",
        "waiting for [1] more peer",
        "peer-2 was killed",
    ):
        assert text in shown
