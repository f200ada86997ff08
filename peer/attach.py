"""Daemon and trainer, two processes of one machine: what they say to each other, over a local socket, and who starts whom.

    daemon (TrainerHost)                                   trainer (Link)
      listens on a Unix socket, starts the trainer ──────►   connects
      Configure(spec, settings) ─────────────────────────►   builds model and data
      makes or opens the vault  ◄─────────────────────────  Built(layout, ...)     or Failed(reason): no use in trying again
      UseVault(directory) ───────────────────────────────►   maps it
      TrainerAttached to the engine ◄─────────────────────  Attached()
      Train, WrapUp, EvaluateState, ... ─────────────────►
      ◄──────────────────────────────────────────────────── Progressed, Published, EvaluationDone, ...

Its one rule: tensors never pass here, they lie in the vault; a message is a frozen dataclass as JSON behind its length, and
nothing that arrives can run code. Whoever connects is a trainer like any other, be it a process that the daemon started or
somebody's own script; one at a time, and whoever comes second is told so. When the daemon dies the trainer sees the end of the
stream and ends; when the trainer dies the daemon starts another after a pause that grows.

Neighbours: `trainer` is the other process, `events` the engine's vocabulary, part of which travels here as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import queue
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil

from shoal.optim.layout import LayoutError, ParameterLayout
from shoal.peer.allocator import malloc_environment
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
from shoal.peer.reach import Reach
from shoal.protocol.errors import RemoteProtocolError, ShoalError
from shoal.protocol.messages import Layout
from shoal.protocol.plain import from_plain, to_plain

MESSAGE_LIMIT_BYTES = 64 << 20
"""A layout of a model with very many tensors is the largest message."""

T = TypeVar("T")


class TrainerError(ShoalError):
    """The trainer cannot work here, and trying again would not help."""


# === what they say ==============================================================================================================


@dataclass(frozen=True)
class TrainerSettings:
    """What the volunteer decides about the trainer; nothing here changes the maths."""

    device: str = "auto"
    """"auto", "cpu", "cuda", "cuda:1", "mps"."""
    threads: int = 0
    """CPU threads; 0: the cores divided by the trainers on this machine."""
    data_dir: str = ""
    """Where the run's data files are; empty: nowhere."""
    allowed: tuple[str, ...] = ()
    """Packages whose model factories may run."""
    micro_batch: int = 0
    """Samples in one forward pass; 0: the whole batch of an inner step. Halved by itself when the device's memory does not do."""
    export_dir: str = ""
    """Where exported models go; empty: the folder "model" beside the trainer's log."""
    nice: int = 0
    """How much a trainer that the daemon starts stands back for the machine's other programs: 0 not at all, 19 as much as there
    is."""
    cache_dir: str = ""
    """Where files that are fetched go, and what is made of them; empty: nothing is fetched."""
    data_reach: Reach = Reach.INTERNET
    """What fetching may ask: public addresses, private networks, too, this machine, too."""
    data_bytes_s: float = 0.0
    """Most that fetching may receive; 0: as fast as it goes."""


@dataclass(frozen=True)
class Configure:
    """Daemon: "this is the run, and this is what you may use"."""

    spec: str
    """The run spec as JSON."""
    settings: TrainerSettings


@dataclass(frozen=True)
class UseVault:
    """Daemon: "the shared memory is here"."""

    directory: str


@dataclass(frozen=True)
class Stop:
    """Daemon: "that was all"."""


@dataclass(frozen=True)
class TurnedAway:
    """Daemon, instead of Configure: "not you", and why."""

    reason: str
    fix: str


@dataclass(frozen=True)
class Built:
    """Trainer: "model and data are there; this is how the parameters lie"."""

    layout: str
    """The `ParameterLayout` as JSON."""
    device: str
    threads: int
    data_fingerprint: bytes
    note: str = ""
    """What the volunteer should know ("no CUDA here: training on the CPU")."""


@dataclass(frozen=True)
class Attached:
    """Trainer: "the vault is mapped, I await commands"."""


@dataclass(frozen=True)
class Told:
    """Trainer: "the volunteer should know this": what it waits for, or how far it is."""

    sentence: str


@dataclass(frozen=True)
class Failed:
    """Trainer: "I cannot work here, for this reason; do not start me again"."""

    reason: str
    fix: str


@dataclass(frozen=True)
class Crashed:
    """Trainer: "this killed me"."""

    reason: str


@dataclass(frozen=True)
class SmallerBatch:
    """Trainer: "memory does for so many samples at a time; tell whoever comes after me"."""

    micro_batch: int


@dataclass(frozen=True)
class ModelWritten:
    """Trainer: "the model is on disk, and this is what it writes"."""

    where: str
    sample: str


ToTrainer = Configure | UseVault | TurnedAway | Stop | Train | Relabel | WrapUp | EvaluateState | Export | BuildState
FromTrainer = (
    Built | Attached | Told | Failed | Crashed | SmallerBatch | Progressed | Published | EvaluationDone | ModelWritten | OriginReady
)
Command = Train | Relabel | WrapUp | EvaluateState | Export | BuildState
"""Effects of the engine that the trainer performs."""

_HEADER = struct.Struct(">I")


def encode(message: ToTrainer | FromTrainer) -> bytes:
    """Length (4 bytes, big endian), then JSON."""
    body = json.dumps(to_plain(message), separators=(",", ":")).encode()
    if len(body) > MESSAGE_LIMIT_BYTES:
        raise TrainerError(f"a {type(message).__name__} of {len(body)} bytes exceeds the limit of {MESSAGE_LIMIT_BYTES}")
    return _HEADER.pack(len(body)) + body


def body_size(header: bytes) -> int:
    """Bytes that follow this header. Raises RemoteProtocolError when that is too many."""
    size: int = _HEADER.unpack(header)[0]
    if size > MESSAGE_LIMIT_BYTES:
        raise RemoteProtocolError(f"a message of {size} bytes exceeds the limit of {MESSAGE_LIMIT_BYTES}")
    return size


def to_trainer(body: bytes) -> ToTrainer:
    """The message from the daemon that `body` holds. Raises RemoteProtocolError."""
    return cast(ToTrainer, from_plain(cast(Any, ToTrainer), _plain(body)))


def from_trainer(body: bytes) -> FromTrainer:
    """The message from the trainer that `body` holds. Raises RemoteProtocolError."""
    return cast(FromTrainer, from_plain(cast(Any, FromTrainer), _plain(body)))


def _plain(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from error


# === the trainer's end ==========================================================================================================


class DaemonGone(ShoalError):
    """The daemon closed the stream, or died."""


class DaemonOccupied(DaemonGone):
    """The daemon has another trainer."""


class Link:
    """The trainer's end of the socket. A thread reads, so that a daemon's death is seen during the longest step."""

    def __init__(self, path: str, on_lost: Callable[[], None] | None = None) -> None:
        """Connect. `on_lost` is called from the reading thread when the daemon is gone; without it, `receive` raises
        DaemonGone."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise DaemonGone(f"no daemon listens on {path} ({error.strerror})", "start `shoal peer join` first") from error
        self._inbox: queue.SimpleQueue[ToTrainer | None] = queue.SimpleQueue()
        self._next: ToTrainer | None = None
        self._on_lost = on_lost
        self._reader = threading.Thread(target=self._read, name="trainer-link", daemon=True)
        self._reader.start()

    def receive(self) -> ToTrainer:
        """The next message, whenever it comes. Raises DaemonGone."""
        if self._next is not None:
            message, self._next = self._next, None
            return message
        return self._take(block=True)

    def peek(self) -> ToTrainer | None:
        """What `receive` would return at once; None when it would wait. Raises DaemonGone."""
        if self._next is None:
            with contextlib.suppress(queue.Empty):
                self._next = self._take(block=False)
        return self._next

    def _take(self, block: bool) -> ToTrainer:
        message = self._inbox.get(block)
        if message is None:
            self._inbox.put(None)
            raise DaemonGone("the daemon is gone")
        return message

    def expect(self, kind: type[T]) -> T:
        """The next message, which must be of this kind. Raises DaemonOccupied, too, when this trainer is turned away."""
        message = self.receive()
        if isinstance(message, TurnedAway):
            raise DaemonOccupied(message.reason, message.fix)
        if not isinstance(message, kind):
            raise RemoteProtocolError(f"{kind.__name__} expected, the daemon said {type(message).__name__}")
        return message

    def send(self, message: FromTrainer) -> None:
        """Say something to the daemon. Raises DaemonGone."""
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise DaemonGone("the daemon is gone") from error

    def close(self) -> None:
        self._on_lost = None
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=5)
        self._socket.close()

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as stream:
                while len(header := stream.read(_HEADER.size)) == _HEADER.size:
                    body = stream.read(body_size(header))
                    self._inbox.put(to_trainer(body))
        except (OSError, RemoteProtocolError) as error:
            print(f"trainer: {error}", file=sys.stderr)
        finally:
            self._inbox.put(None)
            if self._on_lost is not None:
                self._on_lost()


# === the daemon's end ===========================================================================================================


@dataclass(frozen=True)
class VaultPlace:
    """Where the vault is that the daemon made or opened for a layout, and what the coordinator is told about that layout."""

    directory: Path
    layout: Layout


@dataclass(frozen=True)
class HostCallbacks:
    """What the daemon hands to its TrainerHost. All are called in the event loop's thread."""

    emit: Callable[[Event], None]
    """Events for the engine."""
    open_vault: Callable[[ParameterLayout], Awaitable[VaultPlace]]
    """Make or open the vault. A ShoalError that it raises is final."""
    tell: Callable[[str], None]
    """A sentence for the volunteer."""
    fail: Callable[[ShoalError], None]
    """The trainer cannot work here: the daemon ends with this one line."""


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_AFTER_S = 60.0
"""A trainer that lived this long is started again after the first pause."""
LIVES_BEFORE_ATTACHING = 5
"""Trainers that may die in a row before one was ready."""
STOP_WITHIN_S = 3.0
CLOSE_PATIENCE_S = 0.5
EXIT_LAG_S = 1.0

SOCKET_PATH_LIMIT = 100
"""Unix socket paths end at 104 (macOS) or 108 (Linux) bytes."""


class TrainerHost:
    """Starts, restarts, commands and stops the trainer of one daemon."""

    def __init__(self, directory: Path, settings: TrainerSettings, callbacks: HostCallbacks, spawn: bool = True) -> None:
        """`directory` takes the socket and the trainer's log. Without `spawn` somebody's own script is awaited."""
        self._directory = directory
        export_dir = settings.export_dir or str(directory / "model")
        self._settings = dataclasses.replace(settings, threads=settings.threads or default_threads(), export_dir=export_dir)
        self._callbacks = callbacks
        self._spawn = spawn
        self._spec = ""
        self._server: asyncio.Server | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._speaker: int | None = None
        """Process id of whoever has the connection, where the system says."""
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._attached = False
        self._over = False
        self._reason = ""
        self._was_ready = False
        self._place: VaultPlace | None = None
        self.built: Built | None = None
        """What the trainer said of itself and its data; None until then."""
        self._temporary: Path | None = None
        self.socket_path = directory / "trainer.sock"
        """Where trainers connect, from `start` on."""

    @property
    def log_path(self) -> Path:
        """What the trainer prints."""
        return self._directory / "trainer.log"

    @property
    def pid(self) -> int | None:
        """Process id of the trainer that this host started, while it lives."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self, spec: bytes) -> None:
        """Listen, and start the trainer (StartTrainer); TrainerAttached follows. A second call changes nothing."""
        if self._server is not None:
            return
        self._spec = spec.decode()
        self._directory.mkdir(parents=True, exist_ok=True)
        if len(os.fsencode(self.socket_path)) > SOCKET_PATH_LIMIT:
            self._temporary = Path(tempfile.mkdtemp(prefix="shoal-"))
            self.socket_path = self._temporary / "trainer.sock"
        self.socket_path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.socket_path)
        os.chmod(self.socket_path, 0o600)
        if self._spawn:
            self._keeper = asyncio.create_task(self._keep_running(), name="trainer-keeper")
        else:
            self._callbacks.tell(f"waiting for a trainer to attach to {self.socket_path}")

    def perform(self, command: Command) -> bool:
        """Hand a command to the trainer. False when none is attached: TrainerLost came already, or follows."""
        if self._writer is None or not self._attached:
            return False
        self._writer.write(encode(command))
        return True

    async def close(self, within_s: float = STOP_WITHIN_S) -> None:
        """End the trainer and the socket. A trainer of ours has half of this time to go by itself, the rest when it is asked by
        signal, and is killed then."""
        self._over = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(encode(Stop()))
                self._writer.close()
        await self._end_process(within_s)
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(TimeoutError):  # a frozen script may never take its last message
                await asyncio.wait_for(self._server.wait_closed(), CLOSE_PATIENCE_S)
        self.socket_path.unlink(missing_ok=True)
        if self._temporary is not None:
            self._temporary.rmdir()

    # --- the process --------------------------------------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, unready = FIRST_PAUSE_S, 0
        while True:
            await self._vacant.wait()
            started, self._reason, self._was_ready = loop.time(), "", False
            try:
                self._process = await self._spawn_trainer()
            except OSError as error:
                self._give_up(TrainerError(f"the trainer cannot be started: {error}"))
                return
            code = await self._process.wait()
            if self._writer is not None and not self._own_speaks:
                continue  # somebody's own script came first, and is not lost with this one
            self._lost(self._reason or describe_exit(code))
            if self._over:
                return
            unready = 0 if self._was_ready else unready + 1
            if unready == LIVES_BEFORE_ATTACHING:
                reason = f"the trainer died {unready} times before it was ready: {self._reason}"
                self._give_up(TrainerError(reason, f"see {self.log_path}"))
                return
            pause_s = FIRST_PAUSE_S if loop.time() - started > HEALTHY_AFTER_S else pause_s
            self._callbacks.tell(f"the trainer ended ({self._reason}); starting it again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _spawn_trainer(self) -> asyncio.subprocess.Process:
        nice = ("--nice", str(self._settings.nice)) if self._settings.nice else ()
        with open(self.log_path, "ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "shoal.peer.trainer", "--socket", str(self.socket_path), *nice),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=malloc_environment(),
                start_new_session=True,  # the terminal's Ctrl-C is for the daemon, which decides what it means
            )

    async def _end_process(self, within_s: float) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        for end in (process.terminate, process.kill):
            try:
                await asyncio.wait_for(process.wait(), within_s / 2)
                return
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    end()
        await process.wait()

    # --- the conversation ---------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None and not self._over:
            who = "the trainer that this daemon started" if self._own_speaks else "another trainer"
            by = f" (process {self._speaker})" if self._speaker is not None else ""
            writer.write(encode(TurnedAway(f"{who}{by} is attached to this daemon", "end that one first: there is room for one")))
        if self._writer is not None or self._over:
            writer.close()
            return
        self._writer, self._speaker = writer, process_of(writer)
        self._vacant.clear()
        reason = ""
        try:
            writer.write(encode(Configure(self._spec, self._settings)))
            while True:
                body = await reader.readexactly(body_size(await reader.readexactly(_HEADER.size)))
                message = from_trainer(body)
                await self._hear(message, writer)
        except (asyncio.IncompleteReadError, OSError):
            reason = self._reason or await self._exit_reason() or "it closed its connection"
        except RemoteProtocolError as error:
            reason = str(error)
        finally:
            writer.close()
        if self._writer is writer:
            self._lost(reason)

    async def _exit_reason(self) -> str:
        """How the trainer's process ended, if it did: the stream often ends a moment earlier."""
        if self._process is None or not self._own_speaks:
            return ""
        try:
            return describe_exit(await asyncio.wait_for(self._process.wait(), EXIT_LAG_S))
        except TimeoutError:
            return ""

    async def _hear(self, message: FromTrainer, writer: asyncio.StreamWriter) -> None:
        match message:
            case Built():
                if message.note and self.built is None:
                    self._callbacks.tell(message.note)
                self.built = message
                try:
                    self._place = place = await self._callbacks.open_vault(ParameterLayout.from_json(message.layout))
                except LayoutError as error:
                    raise RemoteProtocolError(f"the trainer's layout: {error}") from error
                except ShoalError as error:
                    self._give_up(error)
                    return
                except OSError as error:
                    self._give_up(TrainerError(f"the shared memory cannot be set up: {error}"))
                    return
                writer.write(encode(UseVault(str(place.directory))))
            case Attached():
                if self._place is None:
                    raise RemoteProtocolError("the trainer attached before it was given a vault")
                self._attached = self._was_ready = True
                self._callbacks.emit(
                    TrainerAttached(self._place.layout, self.built.data_fingerprint if self.built is not None else b"")
                )
            case Told(sentence):
                self._callbacks.tell(sentence)
            case Failed():
                self._give_up(TrainerError(message.reason, message.fix))
            case Crashed():
                self._reason = message.reason
            case SmallerBatch(micro_batch):
                self._settings = dataclasses.replace(self._settings, micro_batch=max(1, micro_batch))
            case ModelWritten():
                self._callbacks.tell(f"the model writes:\n{message.sample}")
                self._callbacks.emit(Exported(message.where))
            case Progressed() | Published() | EvaluationDone() | OriginReady():
                self._callbacks.emit(message)

    @property
    def _own_speaks(self) -> bool:
        """Whether the connection is that of the process that this host started, as far as the system says."""
        return self._process is not None and self._speaker in (None, self._process.pid)

    def _lost(self, reason: str) -> None:
        """The trainer is gone; say so once."""
        self._reason = reason
        self._writer = self._speaker = None
        self._vacant.set()
        if self._attached:
            self._attached = False
            if not self._over:
                self._callbacks.emit(TrainerLost(reason))

    def _give_up(self, error: ShoalError) -> None:
        if not self._over:
            self._over = True
            self._callbacks.fail(error)


def process_of(writer: asyncio.StreamWriter) -> int | None:
    """Process id at the other end of a local connection, where the system says."""
    connection = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = struct.Struct("3i")  # pid, uid, gid: unix(7)
    return int(credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))[0])


def default_threads() -> int:
    """Cores that this process may use, divided by the trainers of all peers on the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // count_trainers(process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])))


def count_trainers(commands: Iterable[Sequence[str]]) -> int:
    """How many trainers these command lines stand for, or will: daemons start before their trainers. At least one, ours."""
    daemons = trainers = 0
    for command in commands:
        trainers += "shoal.peer.trainer" in command
        daemons += ("peer", "join") in itertools.pairwise(command)
    return max(daemons, trainers, 1)


def describe_exit(code: int) -> str:
    """What an exit status means, in words."""
    if code >= 0:
        return f"it exited with status {code}"
    return "it was killed (SIGKILL), perhaps for lack of memory" if code == -9 else f"it was killed by signal {-code}"
