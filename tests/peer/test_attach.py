"""Daemon and trainer over a real socket: in one process where that does, in two where a death must be seen."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

import shoal.peer.attach as attach_module
from shoal.compression.codec import codec
from shoal.optim.layout import ParameterLayout
from shoal.peer.attach import (
    MESSAGE_LIMIT_BYTES,
    Attached,
    Built,
    Configure,
    DaemonGone,
    DaemonOccupied,
    HostCallbacks,
    Link,
    SmallerBatch,
    Stop,
    TrainerHost,
    TrainerSettings,
    TurnedAway,
    UseVault,
    VaultPlace,
    body_size,
    count_trainers,
    describe_exit,
    encode,
    from_trainer,
    to_trainer,
)
from shoal.peer.events import (
    BuildState,
    EvaluateState,
    EvaluationDone,
    Event,
    Export,
    Exported,
    OriginReady,
    Progressed,
    Published,
    Relabel,
    Train,
    TrainerAttached,
    TrainerLost,
    WrapUp,
)
from shoal.peer.trainer import attach
from shoal.peer.vault import Vault, VaultError
from shoal.protocol.errors import RemoteProtocolError, ShoalError
from shoal.protocol.messages import FragmentShape, Layout, Span
from shoal.protocol.spec import RunSpec

T = TypeVar("T")
LENGTH, BATCH, H = 16, 2, 3
ENDLESS = 1_000_000
"""Inner steps of a round that only a command ends."""


def spec(folder: Path, **changes: Any) -> RunSpec:
    content = b"the quick brown fox jumps over the lazy dog. " * 200
    (folder / "text.txt").write_bytes(content)
    tables: dict[str, Any] = {
        "run": {"total_tokens": 100_000},
        "model": {"width": 16, "layers": 1, "heads": 2, "kv_heads": 1},
        "data": {
            "source": "files",
            "files": [{"path": "text.txt", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}],
            "sequence_length": LENGTH,
        },
        "train": {"batch": BATCH, "steps": H},
        "evaluation": {"samples": 4},
    }
    return RunSpec.of(**tables | changes)


def order(round_id: int, steps: int = H, base: int = 0) -> Train:
    return Train(round_id, base, (Span(0, steps * BATCH),), 0, steps * BATCH, 0, 1000)


class Daemon:
    """The part of a daemon that a trainer sees."""

    def __init__(self, folder: Path, spawn: bool, settings: TrainerSettings | None = None) -> None:
        self.folder = folder
        self.events: asyncio.Queue[Event | ShoalError] = asyncio.Queue()
        self.said: list[str] = []
        self.vault: Vault | None = None
        callbacks = HostCallbacks(self.events.put_nowait, self.open_vault, self.said.append, self.events.put_nowait)
        settings = settings or TrainerSettings(device="cpu", threads=1, data_dir=str(folder))
        self.host = TrainerHost(folder / "host", settings, callbacks, spawn)

    async def open_vault(self, layout: ParameterLayout) -> VaultPlace:
        parts = layout.partition(codec("int8", 1024))
        if self.vault is None:
            self.vault = Vault.create(self.folder / "vault", "run", layout.values, layout.hash, parts)
        return VaultPlace(self.folder / "vault", Layout(layout.hash, layout.values, (FragmentShape(len(parts)),)))

    async def next(self, kind: type[T], limit_s: float = 60) -> T:
        """The next event of this kind; any other but Progressed is an error."""
        async with asyncio.timeout(limit_s):
            while isinstance(event := await self.events.get(), Progressed) and kind is not Progressed:
                pass
        assert isinstance(event, kind), event
        return event

    async def close(self) -> None:
        await self.host.close()
        if self.vault is not None:
            self.vault.close(remove=True)


@pytest.fixture
async def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Daemon]]:
    monkeypatch.setattr(attach_module, "FIRST_PAUSE_S", 0.05)
    made: list[Daemon] = []

    def make(spawn: bool = False, settings: TrainerSettings | None = None) -> Daemon:
        made.append(Daemon(tmp_path, spawn, settings))
        return made[-1]

    yield make
    for one in made:
        await one.close()


class Script(threading.Thread):
    """Somebody's own program that attaches to a daemon."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            attach(str(self.path))
        except ShoalError as error:
            self.error = error

    async def end(self) -> Exception | None:
        await asyncio.to_thread(self.join, 10)
        assert not self.is_alive()
        return self.error


MakeDaemon = Callable[..., Daemon]


# --- the form of messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Configure('{"a": 1}', TrainerSettings("cuda:1", 3, "/data", ("a", "b"), 2, "/out")),
        UseVault("/dev/shm/x"),
        TurnedAway("no", "go"),
        order(4),
        Relabel(5, 6, 7),
        WrapUp(),
        EvaluateState(8),
        Export(9),
        BuildState(),
        Stop(),
    ],
)
def test_what_the_daemon_says_arrives_as_it_was_said(message: Any) -> None:
    frame = encode(message)
    assert body_size(frame[:4]) == len(frame) - 4
    assert to_trainer(frame[4:]) == message


@pytest.mark.parametrize(
    "message",
    [
        Built("{}", "cpu", 2, b"\x01\xff", "note"),
        Attached(),
        Published(1, 2, 3, 4, 0.5, 0.25, "n"),
        OriginReady(b"r"),
        Progressed(1, 2.0, 3.0),
    ],
)
def test_what_the_trainer_says_arrives_as_it_was_said(message: Any) -> None:
    assert from_trainer(encode(message)[4:]) == message


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"type":"Attached","x":1}', b'{"type":"Train"}', b'{"type":"Built","layout":3}', b"[" * 9999]
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        from_trainer(body)


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError, match="exceeds"):
        body_size((MESSAGE_LIMIT_BYTES + 1).to_bytes(4, "big"))


def test_exits_are_described_in_words() -> None:
    assert "SIGKILL" in describe_exit(-9)
    assert describe_exit(3) == "it exited with status 3"


def test_threads_are_shared_among_the_peers_of_a_machine() -> None:
    daemon, trainer = (
        ["python", "-m", "shoal", "peer", "join", "--name", "x"],
        ["python", "-m", "shoal.peer.trainer", "--socket", "s"],
    )
    assert count_trainers([]) == 1
    assert count_trainers([daemon, daemon, daemon, trainer, ["join", "peer"]]) == 3
    assert count_trainers([daemon, trainer, trainer, []]) == 2


# --- a script that attaches -----------------------------------------------------------------------------------------------------


async def test_a_whole_round_over_the_socket(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon()
    await one.host.start(spec(tmp_path).to_json())
    script = Script(one.host.socket_path)
    attached = await one.next(TrainerAttached)
    assert one.vault is not None
    assert (attached.layout.values, attached.layout.hash) == (one.vault.values, one.vault.layout_hash)
    assert one.host.perform(BuildState())
    assert (await one.next(OriginReady)).root == one.vault.root()
    one.host.perform(order(1))
    done = await one.next(Published)
    assert (done.round, done.trained, done.weight, done.steps) == (1, BATCH * H, BATCH * H * LENGTH, H)
    assert one.vault.pending.any()
    one.host.perform(EvaluateState(0))
    assert (await one.next(EvaluationDone)).tokens == 4 * LENGTH
    one.host.perform(Export(0))
    where = Path((await one.next(Exported)).where)
    assert json.loads((where / "config.json").read_text())["model_type"] == "llama"
    assert one.said[-1].startswith("the model writes:\n")
    await one.host.close()
    assert await script.end() is None
    assert not one.host.socket_path.exists()


async def test_commands_reach_the_trainer_in_the_middle_of_a_round(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon()
    await one.host.start(spec(tmp_path).to_json())
    script = Script(one.host.socket_path)
    await one.next(TrainerAttached)
    one.host.perform(BuildState())
    await one.next(OriginReady)
    one.host.perform(order(1, ENDLESS))
    await one.next(Progressed)
    one.host.perform(order(2, ENDLESS))
    one.host.perform(Relabel(3, 10, 20))
    await one.next(Progressed)
    one.host.perform(WrapUp())
    done = await one.next(Published)
    assert done.round == 3
    assert 0 < done.steps < ENDLESS
    one.host.perform(WrapUp())  # too late: it is ignored
    one.host.perform(order(4))
    assert (await one.next(Published)).round == 4
    one.host.perform(order(5, ENDLESS))
    await one.next(Progressed)
    await one.host.close()
    assert await script.end() is None


async def test_a_second_trainer_is_turned_away(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon()
    await one.host.start(spec(tmp_path).to_json())
    Script(one.host.socket_path)
    await one.next(TrainerAttached)
    error = await Script(one.host.socket_path).end()
    assert isinstance(error, DaemonOccupied)
    who = f" (process {os.getpid()})" if sys.platform == "linux" else ""
    assert str(error) == f"another trainer{who} is attached to this daemon — end that one first: there is room for one"
    one.host.perform(BuildState())
    await one.next(OriginReady)


async def test_a_script_that_ends_is_lost_and_another_may_come(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon()
    await one.host.start(spec(tmp_path).to_json())
    link = await asyncio.to_thread(Link, str(one.host.socket_path))
    script = attach_by_hand(link)
    await one.next(TrainerAttached)
    await asyncio.to_thread(script.join)
    link.close()
    assert (await one.next(TrainerLost)).reason == "it closed its connection"
    assert not one.host.perform(order(1))
    Script(one.host.socket_path)
    await one.next(TrainerAttached)


def attach_by_hand(link: Link) -> threading.Thread:
    """Say what a trainer says until it is attached, and no more."""

    def talk() -> None:
        link.expect(Configure)
        layout = {"slots": [["w", [3, 5], 0]], "frozen": [], "buffers": [], "ties": []}
        link.send(Built(json.dumps(layout), "cpu", 1, b""))
        link.expect(UseVault)
        link.send(Attached())

    thread = threading.Thread(target=talk)
    thread.start()
    return thread


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The trainers that the daemon starts are this shell script."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(attach_module.sys, "executable", str(python))


async def until(condition: Callable[[], bool], limit_s: float = 20) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says who connected")
async def test_a_script_that_came_first_is_not_lost_with_the_daemons_own_trainer(
    daemon: MakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, go = tmp_path / "starts", tmp_path / "go"
    stand_in(tmp_path, monkeypatch, f"echo >> {starts}\nwhile [ ! -e {go} ]; do sleep 0.02; done; exit 3")
    one = daemon(spawn=True)
    await one.host.start(spec(tmp_path).to_json())
    await until(starts.exists)
    link = await asyncio.to_thread(Link, str(one.host.socket_path))
    script = attach_by_hand(link)
    await one.next(TrainerAttached)
    await asyncio.to_thread(script.join)
    go.touch()
    await until(lambda: one.host.pid is None)
    await asyncio.sleep(0.2)
    assert one.events.empty()
    assert one.host.perform(WrapUp())
    assert await asyncio.to_thread(link.receive) == WrapUp()
    assert (starts.read_text(), one.said) == ("\n", [])
    link.close()
    assert (await one.next(TrainerLost)).reason == "it closed its connection"
    await until(lambda: len(starts.read_text()) > 1)


async def test_a_trainer_that_does_not_listen_is_killed_when_the_time_is_spent(
    daemon: MakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, f"trap '' TERM\ntouch {tmp_path}/up\nwhile :; do sleep 0.1; done")
    one = daemon(spawn=True)
    for within_s in (0.0, 0.4):
        await one.host.start(spec(tmp_path).to_json())
        await until((tmp_path / "up").exists)
        (tmp_path / "up").unlink()
        process = one.host.pid
        asked_at = time.monotonic()
        await one.host.close(within_s)
        assert within_s <= time.monotonic() - asked_at < within_s + 1
        assert process is not None
        assert not psutil.pid_exists(process)
        one = daemon(spawn=True)


async def test_nonsense_on_the_socket_harms_nobody(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon()
    await one.host.start(spec(tmp_path).to_json())
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x00\x00\x00\x02{}", b"\x00"):
        _, writer = await asyncio.open_unix_connection(one.host.socket_path)
        writer.write(nonsense)
        writer.write_eof()
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
    await asyncio.sleep(0.05)
    Script(one.host.socket_path)
    await one.next(TrainerAttached)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (VaultError("no room", "make some"), "no room — make some"),
        (PermissionError(13, "Permission denied"), "the shared memory cannot be set up: [Errno 13] Permission denied"),
    ],
)
async def test_a_vault_that_cannot_be_made_is_final(daemon: MakeDaemon, tmp_path: Path, trouble: Exception, words: str) -> None:
    one = daemon()

    async def full(_: ParameterLayout) -> VaultPlace:
        raise trouble

    one.host._callbacks = HostCallbacks(one.events.put_nowait, full, one.said.append, one.events.put_nowait)
    await one.host.start(spec(tmp_path).to_json())
    Script(one.host.socket_path)
    assert str(await one.next(ShoalError)) == words


@pytest.mark.parametrize(
    ("settings", "tables", "words"),
    [
        ({"device": "cuda"}, {}, "--device cuda: .* has no cuda — use --device cpu or auto"),
        ({"data_dir": ""}, {}, "--data DIR"),
        ({}, {"damaged": True}, r"text\.txt: SHA-256 [0-9a-f]{64} here, [0-9a-f]{64} in the run spec"),
        ({}, {"model": {"kind": "factory", "factory": "somebody:make"}}, "package 'somebody', which is not allowed"),
    ],
)
async def test_a_trainer_that_cannot_work_here_says_so_in_one_line(
    daemon: MakeDaemon, tmp_path: Path, settings: dict[str, Any], tables: dict[str, Any], words: str
) -> None:
    run = spec(tmp_path, **{name: table for name, table in tables.items() if name != "damaged"})
    if "damaged" in tables:
        path = tmp_path / "text.txt"
        path.write_bytes(path.read_bytes().replace(b"fox", b"cat"))
    one = daemon(settings=TrainerSettings(**{"device": "cpu", "threads": 1, "data_dir": str(tmp_path), **settings}))
    await one.host.start(run.to_json())
    script = Script(one.host.socket_path)
    failure = await one.next(ShoalError)
    assert re.search(words, str(failure))
    assert "\n" not in str(failure)
    assert await script.end() is not None


async def test_a_long_path_still_gets_a_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    one = Daemon(tmp_path, spawn=False)
    one.host = TrainerHost(deep, TrainerSettings(threads=1), one.host._callbacks, spawn=False)
    await one.host.start(b"{}")
    path = one.host.socket_path
    assert len(str(path)) < 100
    assert path.is_socket()
    await one.close()
    assert not path.parent.exists()


def test_without_a_daemon_a_script_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DaemonGone, match="no daemon listens on .* — start"):
        attach(str(tmp_path / "nothing.sock"))


# --- real processes -------------------------------------------------------------------------------------------------------------


async def test_the_next_trainer_begins_with_the_micro_batch_that_was_found(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon()
    await one.host.start(spec(tmp_path).to_json())
    first = Link(str(one.host.socket_path))
    assert (await asyncio.to_thread(first.expect, Configure)).settings.micro_batch == 0
    first.send(SmallerBatch(2))
    first.close()
    async with asyncio.timeout(10):
        while one.host._settings.micro_batch != 2 or one.host._writer is not None:
            await asyncio.sleep(0.01)
    second = Link(str(one.host.socket_path))
    assert (await asyncio.to_thread(second.expect, Configure)).settings.micro_batch == 2
    second.close()


@pytest.mark.slow
async def test_a_trainer_of_the_daemons_stands_back_for_other_programs(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon(spawn=True, settings=TrainerSettings(device="cpu", threads=1, data_dir=str(tmp_path), nice=7))
    await one.host.start(spec(tmp_path).to_json())
    await one.next(TrainerAttached)
    assert one.host.pid is not None
    assert psutil.Process(one.host.pid).nice() == min(19, psutil.Process().nice() + 7)


@pytest.mark.slow
async def test_a_killed_trainer_is_started_again_and_pending_work_is_still_there(daemon: MakeDaemon, tmp_path: Path) -> None:
    one = daemon(spawn=True)
    await one.host.start(spec(tmp_path).to_json())
    await one.next(TrainerAttached)
    one.host.perform(BuildState())
    await one.next(OriginReady)
    one.host.perform(order(1))
    await one.next(Published)
    assert one.vault is not None
    pending, first = one.vault.pending.clone(), one.host.pid
    one.host.perform(order(2, ENDLESS))
    await one.next(Progressed)
    assert first is not None
    os.kill(first, signal.SIGINT)  # the terminal's Ctrl-C reaches it: not its business
    await one.next(Progressed)
    os.kill(first, signal.SIGKILL)
    assert "SIGKILL" in (await one.next(TrainerLost)).reason
    await one.next(TrainerAttached)
    assert one.host.pid != first
    assert one.vault.pending.equal(pending)
    one.host.perform(Train(3, 0, (Span(0, 100),), BATCH * H, BATCH, 0, 100))
    assert (await one.next(Published)).trained == BATCH * H + BATCH
    pid = one.host.pid
    await one.host.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
async def test_python_files_beside_the_data_are_not_run(
    daemon: MakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "from a stranger"
    folder.mkdir()
    for module in ("torch", "json", "random"):
        (folder / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit")
    monkeypatch.chdir(folder)
    one = daemon(spawn=True)
    await one.host.start(spec(tmp_path).to_json())
    await one.next(TrainerAttached)
    assert not (tmp_path / "ran").exists()
    await one.host.close()


@pytest.mark.slow
async def test_a_trainer_that_never_becomes_ready_is_given_up(
    daemon: MakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_module.sys, "executable", "/bin/false")
    one = daemon(spawn=True)
    await one.host.start(spec(tmp_path).to_json())
    failure = await one.next(ShoalError)
    assert "died 5 times before it was ready: it exited with status 1" in str(failure)


@pytest.mark.slow
def test_a_trainer_ends_within_five_seconds_of_its_daemon(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen([sys.executable, "-m", "shoal.peer.trainer", "--socket", str(path)])
        listener.settimeout(60)
        connection, _ = listener.accept()
        settings = TrainerSettings(device="cpu", threads=1, data_dir=str(tmp_path))
        connection.sendall(encode(Configure(spec(tmp_path).to_json().decode(), settings)))
        with connection.makefile("rb") as stream:
            built = from_trainer(stream.read(body_size(stream.read(4))))
        assert isinstance(built, Built)
        layout = ParameterLayout.from_json(built.layout)
        vault = Vault.create(tmp_path / "v", "run", layout.values, layout.hash, layout.partition(codec("int8", 1024)))
        vault.begin_origin().zero_()
        vault.finish_origin()
        for message in (UseVault(str(tmp_path / "v")), order(1, ENDLESS)):
            connection.sendall(encode(message))
        with connection.makefile("rb") as stream:
            assert from_trainer(stream.read(body_size(stream.read(4)))) == Attached()
            assert isinstance(from_trainer(stream.read(body_size(stream.read(4)))), Progressed)
        connection.close()
    assert process.wait(timeout=5) == 0
    vault.close(remove=True)
