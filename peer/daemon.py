"""The peer daemon: one process per peer, which wires the engine to everything that does things.

    SessionLink ──┐                                  ┌── SessionLink   Say, HangUp
    BulkPlane   ──┼── events ──► Engine ── effects ──┼── BulkPlane     parts, entries, states
    TrainerHost ──┘   (one queue, one at a time)     └── TrainerHost   Train, EvaluateState, Export, ...

Rule: this file decides nothing. It takes one event from the queue, asks the engine, performs the effects in order, and tells the
view. Whatever fails in it for good ends the daemon with one line; the vault stays, so that the next start goes on from there.
Neighbours: `engine` decides, `vault` keeps, `bulk` moves bytes, `attach` owns the trainer, `session` and `enrol` own the way to the
coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoal.compression.codec import Codec, codec
from shoal.optim.diloco import DiLoCo
from shoal.optim.layout import ParameterLayout, Part
from shoal.optim.strategy import Strategy
from shoal.peer.attach import STOP_WITHIN_S, HostCallbacks, TrainerHost, TrainerSettings, VaultPlace
from shoal.peer.budget import needs, unbudgeted_bytes
from shoal.peer.bulk import BulkPlane
from shoal.peer.device import device_named
from shoal.peer.engine import Engine, Introduction, Kept
from shoal.peer.enrol import Credentials, Keeper, come_in, enrolled_in
from shoal.peer.events import (
    BuildState,
    DropPending,
    Effect,
    EntryApplied,
    EvaluateState,
    EvaluationDone,
    Event,
    Exit,
    Export,
    HangUp,
    Heard,
    KeepSession,
    LeaveAsked,
    Offline,
    Online,
    Progressed,
    Published,
    Relabel,
    Say,
    StartTrainer,
    Tell,
    TimePassed,
    Train,
    TrainerAttached,
    TrainerLost,
    WrapUp,
)
from shoal.peer.exchange import Room
from shoal.peer.lanes import Lane
from shoal.peer.packer import Packer
from shoal.peer.reach import Reach, reach_of
from shoal.peer.session import GrpcDial, Line, SessionLink
from shoal.peer.shifts import Shifts, end_of_shift, patiently, rest
from shoal.peer.slots import Slot, runs, take_directory, take_slot
from shoal.peer.task import layout_of
from shoal.peer.vault import Vault, VaultBusyError, VaultError, copy_whole, log_bytes, shared_memory_directory
from shoal.peer.whereabouts import Whereabouts
from shoal.peer.workers import Workers, settle_daemon_process
from shoal.protocol.channels import split_address
from shoal.protocol.errors import InviteError, RefusedError, ShoalError, UnreachableError
from shoal.protocol.files import allow_many_open_files
from shoal.protocol.invites import Invite, parse
from shoal.protocol.messages import NO_SESSION, NO_VERSION, Envelope, FragmentShape, Goodbye, Layout
from shoal.protocol.signals import hangup_signals
from shoal.protocol.spec import RunSpec
from shoal.protocol.units import BITS_PER_BYTE

LOG = logging.getLogger("shoal.peer")
WATCH_EVERY_S = 0.25
LAST_WORDS_S = 1.0
"""How long what was said to the coordinator may take to be sent when the daemon ends."""
LEAVE_WITHIN_S = 4.0
"""By when a trainer that does not end is killed after Ctrl-C, which shall take 5 s in all."""
REST_PATIENCE_S = 120.0
"""How long a rest may be put off by the round in hand."""
EXIT_INTERRUPTED = 130
LAST_COPY = "last-copy"
"""Where, beside its identity, the last member to leave keeps its local copy. It stays until a later leave: shared memory may be
lost at any moment before."""


@dataclass(frozen=True)
class PeerSettings:
    """What the volunteer decides. Nothing here changes the maths of the run."""

    state_dir: Path
    """Identities and exported models, by run."""
    invite: str | None = None
    identity: Path | None = None
    data_dir: Path | None = None
    data_lan: bool = False
    """Whether data may be fetched from private networks also when the coordinator is elsewhere."""
    device: str = "auto"
    threads: int = 0
    allow: tuple[str, ...] = ()
    listen: str = "0.0.0.0:0"
    """Empty: accept no inbound connections."""
    advertise: str = ""
    """Host, or host:port, that others reach this peer at; empty: the address this machine reaches the coordinator from."""
    name: str = ""
    micro_batch: int = 0
    helper: bool = False
    """Train nothing: reduce parts, and hold state and log for others."""
    max_upload: float = 0.0
    """Bytes per second of bulk traffic, out and in; 0: as fast as it goes. The session is not capped."""
    max_download: float = 0.0
    nice: int = 0
    """How much the trainer stands back for the machine's other programs."""
    memory_bytes: int = 0
    """What this peer's daemon may take for local copy, log and contributions; 0: what the run needs."""
    shifts: Shifts = field(default_factory=Shifts)
    """When this machine works."""


@dataclass(frozen=True)
class Totals:
    """What a daemon has seen since it started (a rest starts it anew)."""

    contributed: int = 0
    """Rounds that its trainer published work for."""
    skipped: int = 0
    """Rounds that its trainer published nothing for."""
    applied: int = 0
    """Log entries."""
    sent_bytes: int = 0
    """For entries that were applied, at this peer's sockets, as are the next ones."""
    received_bytes: int = 0
    trainer_losses: int = 0

    def after(self, event: Event) -> Totals:
        """With this event counted."""
        match event:
            case Published(weight=0):
                return replace(self, skipped=self.skipped + 1)
            case Published():
                return replace(self, contributed=self.contributed + 1)
            case EntryApplied(_, sent, received):
                more = (self.applied + 1, self.sent_bytes + sent, self.received_bytes + received)
                return replace(self, applied=more[0], sent_bytes=more[1], received_bytes=more[2])
            case TrainerLost():
                return replace(self, trainer_losses=self.trainer_losses + 1)
            case _:
                return self


@dataclass(frozen=True)
class PeerProgress:
    """What a view shows."""

    phase: str
    round: int = 0
    version: int = -1
    members: int = 0
    steps: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    bits_per_byte: float = 0.0
    waiting_for: str = ""
    waiting_s: float = 0.0
    run: str = ""
    peer: str = ""
    name: str = ""
    software: str = ""
    totals: Totals = field(default_factory=Totals)
    unit: str = BITS_PER_BYTE
    """Of both losses, the one of training once it is in bits."""


async def run_peer(settings: PeerSettings, watch: Callable[[PeerProgress], None]) -> int:
    """Join a run and stay until it ends or the volunteer leaves, with rests in between. Returns 0, or raises ShoalError with the
    one line to show."""
    settle_daemon_process()
    allow_many_open_files()
    asyncio.get_running_loop().set_exception_handler(_unretrieved)
    watch(PeerProgress("joining"))
    if settings.shifts.spare_battery and settings.shifts.battery() is None:
        LOG.warning("this machine has no battery that it can tell of: --pause-on-battery changes nothing")
    slot, invite = _take_identity(settings)
    try:
        credentials = await come_in(slot.directory, invite)
        while (code := await _work(settings, slot, credentials, watch)) is None:
            resting = _Resting(watch)
            if not await rest(settings.shifts, resting.show):
                return 0
            LOG.info("this peer goes back to work")
            watch(PeerProgress("joining"))

            async def come_back() -> None:
                nonlocal credentials
                credentials = await come_in(slot.directory, None)

            if not await patiently(come_back, UnreachableError, LOG.warning):
                return 0
        return code
    finally:
        slot.release()


async def _work(settings: PeerSettings, slot: Slot, credentials: Credentials, watch: Callable[[PeerProgress], None]) -> int | None:
    """Take part until the run ends or the volunteer leaves: the exit code; or until it is time to rest: None."""
    if settings.shifts.rest():
        return None
    daemon = Daemon(settings, slot, Keeper(credentials, LOG.info), watch)
    timekeeper = asyncio.create_task(end_of_shift(settings.shifts, daemon.may_rest, daemon.rest))
    try:
        code = await daemon.run()
    finally:
        timekeeper.cancel()
        await asyncio.gather(timekeeper, return_exceptions=True)
        await daemon.close()
    return None if daemon.rests else code  # the volunteer may have said leave while it was being closed


class _Resting:
    """Shows a rest: a sentence when its reason changes, and the view all the time."""

    def __init__(self, watch: Callable[[PeerProgress], None]) -> None:
        self._watch = watch
        self._said = ""
        self._since = time.monotonic()

    def show(self, why: str) -> None:
        """This is why the peer rests now."""
        until = why.partition(": ")[2]
        if until != self._said:
            self._said = until
            LOG.info(why)
        self._watch(PeerProgress("resting", waiting_for=why, waiting_s=time.monotonic() - self._since))


def _take_identity(settings: PeerSettings) -> tuple[Slot, Invite | None]:
    """The identity to use, ours from now on, and the invite if one was given."""
    root = settings.state_dir / "identities"
    invite = parse(settings.invite) if settings.invite else None
    if settings.identity is not None:
        return take_directory(settings.identity), invite
    if invite is not None:
        return take_slot(invite.run, root), invite
    known = runs(root)
    if not known:
        raise InviteError("this machine is in no run yet", "join with the line that the run's operator gave you")
    slot = take_slot(known[0], root)
    if not enrolled_in(slot.directory):
        slot.release()
        raise InviteError(
            f"no identity that this machine has in run {known[0]!r} is free",
            "join with the line that the run's operator gave you, which makes another",
        )
    return slot, None


class Daemon:
    """One peer, wired together."""

    def __init__(self, settings: PeerSettings, slot: Slot, keeper: Keeper, watch: Callable[[PeerProgress], None]) -> None:
        self._settings, self._slot, self._keeper, self._watch = settings, slot, keeper, watch
        credentials = keeper.current()
        self._run, self._me = credentials.run, credentials.peer
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_id = f"{self._run} {hashlib.sha256(credentials.credential.ca).hexdigest()}"
        """A run that was made anew under the same name has another authority, and nothing to do with an old local copy."""
        self._vault_directory = shared_memory_directory() / f"shoal-{os.getuid()}-{self._run}-{self._me}"
        self._vault: Vault | None = None
        self._strategy: Strategy = DiLoCo()
        self._spec: RunSpec | None = None
        self._session = NO_SESSION
        self._dropping = False
        self._leave_by: float | None = None
        self._linking: asyncio.Task[None] | None = None
        self._bits_per_byte = 0.0
        self._waiting = ("", 0.0)
        self._watched_at = 0.0
        self._progress = Progressed(0, 0.0, 0.0)
        self._totals = Totals()
        self._workers = Workers()
        self._packer = Packer()
        lanes = (Lane(settings.max_upload), Lane(settings.max_download))
        self._plane = BulkPlane(self._run, keeper.credential, self._workers, self._emit, lanes=lanes)
        reach = reach_of([split_address(address)[0] for address in credentials.session_addresses])
        self._host = TrainerHost(
            slot.directory,
            TrainerSettings(
                settings.device,
                settings.threads,
                str(settings.data_dir or ""),
                settings.allow,
                settings.micro_batch,
                str(slot.directory / "model"),
                settings.nice,
                str(settings.state_dir / "data"),
                Reach.LAN if settings.data_lan and reach is Reach.INTERNET else reach,
                settings.max_download,
            ),
            HostCallbacks(self._emit, self._open_vault, LOG.info, self._fail),
        )
        self._whereabouts = Whereabouts("", "", 0)
        self._link = SessionLink(credentials.session_addresses, self._dial, self._emit_link, LOG.info)
        self._engine: Engine | None = None

    async def run(self) -> int:
        """Serve until the engine says Exit. Raises ShoalError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self._interrupted)
        for number in hangup_signals():
            loop.add_signal_handler(number, self._ask_to_leave)  # it may come twice
        port = await self._plane.listen(self._settings.listen) if self._settings.listen else 0
        here = self._whereabouts = Whereabouts(self._settings.advertise, self._settings.listen, port)
        engine = self._engine = Engine(self._introduction(), self._find_vault())
        self._linking = self._supervise(self._link.run())
        watching = here.watch(self._link.hang_up)
        for work in (self._keeper.run(), self._serve_events(engine), watching, _outcome(self._plane.broken)):
            self._supervise(work)
        return await self._over

    async def close(self) -> None:
        """End everything; what this peer holds of the run goes to disk unless others are known to hold it or the run is over."""
        self._link.close()
        left_s = STOP_WITHIN_S if self._leave_by is None else max(0.0, self._leave_by - time.monotonic())
        endings: list[Awaitable[Any]] = [self._host.close(min(STOP_WITHIN_S, left_s))]
        if self._linking is not None:
            endings.append(asyncio.wait({self._linking}, timeout=LAST_WORDS_S))
        await asyncio.gather(*endings)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._plane.close()
        self._workers.close()
        if self._vault is None:
            return
        needed = self._engine is None or self._engine.copy_is_needed
        gone = not needed or (self._over.done() and not self._over.cancelled() and self._over.exception() is None)
        if gone and needed and self._vault.version != NO_VERSION:
            gone = self._keep_last_copy()
        elif gone:
            shutil.rmtree(self._last_copy, ignore_errors=True)
        self._vault.close(remove=gone)

    @property
    def rests(self) -> bool:
        """Whether this daemon ended because it is time to rest, and for no other reason."""
        return self._engine is not None and self._engine.left_for_now and self._leave_by is None

    def may_rest(self) -> bool:
        """Whether nothing speaks against a rest: what ends by itself is left to it."""
        return self._engine is not None and self._engine.phase not in ("leaving", "finishing") and not self._over.done()

    def rest(self, why: str) -> None:
        """Finish the round in hand and leave, for now."""
        self._emit(LeaveAsked(f"time to rest ({why.partition(': ')[0]})", REST_PATIENCE_S, for_now=True))

    def _interrupted(self) -> None:
        """Ctrl-C: the first one leaves in good order, the second at once."""
        if self._ask_to_leave():
            return
        if (trainer := self._host.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(trainer, signal.SIGKILL)
        os._exit(EXIT_INTERRUPTED)  # like a crash: the local copy stays where the next start finds it

    def _ask_to_leave(self) -> bool:
        """Begin to leave in good order. Whether that is new."""
        if self._leave_by is not None:
            return False
        self._leave_by = time.monotonic() + LEAVE_WITHIN_S
        self._emit(LeaveAsked())
        return True

    # --- events in, effects out -------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def _dial(self, address: str) -> Line:
        """Open a stream to the coordinator, knowing where this machine is."""
        if await self._whereabouts.look(address):
            self._plane.reconnect()
        return await GrpcDial(self._keeper.current)(address)

    def _emit_link(self, event: Online | Heard | Offline) -> None:
        self._emit(Online(self._whereabouts.address) if isinstance(event, Online) else event)

    async def _serve_events(self, engine: Engine) -> None:
        while True:
            wake_at = engine.wake_at
            pause = None if wake_at is None else max(0.0, wake_at - time.monotonic())
            try:
                async with asyncio.timeout(pause):
                    event = await self._events.get()
            except TimeoutError:
                event = TimePassed()
            if isinstance(event, EvaluationDone) and event.tokens:
                self._bits_per_byte = event.bits_per_byte
            elif isinstance(event, Progressed):
                self._progress = event
            self._totals = self._totals.after(event)
            for effect in engine.on(event, time.monotonic()):
                await self._perform(effect)
            self._show(engine)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Say(session, term, body):
                self._link.say(Envelope(session, term, body))
            case HangUp():
                self._link.hang_up()
            case Tell(text, level):
                LOG.log(logging.WARNING if level == "warning" else logging.INFO, text)
            case Exit(code, reason, fix):
                self._exit(code, reason, fix)
            case StartTrainer(spec):
                self._spec = RunSpec.from_json(spec)
                if self._vault is not None:
                    self._attach(self._vault)
                self._supervise(self._help(self._spec) if self._settings.helper else self._host.start(spec))
            case Train() | Relabel() | WrapUp() | EvaluateState() | Export() | BuildState():
                if self._dropping:  # the trainer must not load what is about to be dropped
                    await self._plane.settled()
                    self._dropping = False
                self._host.perform(effect)
            case DropPending() | KeepSession() if self._vault is None:
                if isinstance(effect, KeepSession):
                    self._session = effect.session
            case _:
                self._dropping = self._dropping or isinstance(effect, DropPending)
                self._plane.perform(effect)

    def _exit(self, code: int, reason: str, fix: str) -> None:
        if self._over.done():
            return
        if code == 0:
            LOG.info(reason)
            self._over.set_result(0)
        else:
            self._over.set_exception(RefusedError("refused", reason, fix))

    def _fail(self, error: ShoalError) -> None:
        """This peer cannot take part: say so to the coordinator, and end."""
        if self._over.done():
            return
        engine = self._engine
        if engine is not None and engine.welcomed:
            self._link.say(Envelope(engine.session, engine.term, Goodbye(f"it cannot take part: {error}"[:500])))
        self._over.set_exception(error)

    def _supervise(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for the daemon's life; when it fails, the daemon ends with its error."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    # --- who we are and what we hold --------------------------------------------------------------------------------------------

    def _introduction(self) -> Introduction:
        settings = self._settings
        return Introduction(
            self._run,
            uuid.uuid4().hex,
            self._me,
            self._whereabouts.address,
            settings.name,
            str(device_named(settings.device)),
            f"shoal {version('shoal')}",
            settings.helper,
        )

    @property
    def _last_copy(self) -> Path:
        return self._slot.directory / LAST_COPY

    def _find_vault(self) -> Kept:
        """The local copy of an earlier daemon, if there is one, made whole."""
        restored = self._last_copy.is_dir() and not self._vault_directory.exists()
        if restored:
            copy_whole(self._last_copy, self._vault_directory)
        if not self._vault_directory.exists():
            return Kept()
        try:
            vault = self._vault = Vault.open(self._vault_directory, self._run_id, strategy=self._strategy)
        except VaultBusyError:
            raise
        except VaultError as error:
            LOG.warning("the local copy cannot be used, the state is fetched anew: %s", error)
            shutil.rmtree(self._vault_directory, ignore_errors=True)
            if restored:
                shutil.rmtree(self._last_copy, ignore_errors=True)
            return Kept()
        LOG.info("found the local copy of version %d in %s", vault.version, self._last_copy if restored else vault.directory)
        return Kept(vault.session, vault.version, vault.trained, vault.root() if vault.version >= 0 else b"")

    async def _open_vault(self, layout: ParameterLayout) -> VaultPlace:
        """The vault for the trainer's model: the one that is there if it fits, else a new one."""
        assert self._spec is not None
        spec = self._spec
        parts = partition(layout, *_codecs(spec))
        self._room(parts)
        if self._vault is not None and (self._vault.layout_hash != layout.hash or self._vault.parts != parts):
            raise VaultError(
                f"the local copy in {self._vault_directory} was made for another model",
                "install the model code and versions that the other peers use, or remove that directory",
            )
        if self._vault is None:
            log = log_bytes(parts, _codecs(spec)[1], spec.state.keep_entries + 1)  # and the one that is being reduced
            where, run, strategy = self._vault_directory, self._run_id, self._strategy
            feedback = _codecs(spec)[0] if spec.codec.error_feedback else None
            self._vault = Vault.create(
                where, run, layout.values, layout.hash, parts, log_bytes=log, strategy=strategy, feedback=feedback
            )
            self._vault.keep_session(self._session)
            self._attach(self._vault)
        return VaultPlace(self._vault_directory, Layout(layout.hash, layout.values, (FragmentShape(len(parts)),)))

    async def _help(self, spec: RunSpec) -> None:
        """A helper starts no trainer: all that it must know of the model is how it lies in memory."""
        place = await self._open_vault(await asyncio.to_thread(layout_of, spec, self._settings.allow))
        self._emit(TrainerAttached(place.layout))

    def _attach(self, vault: Vault) -> None:
        """The plane works with this vault from now on, whatever becomes of trainers."""
        assert self._spec is not None
        spec = self._spec
        packer = self._packer if spec.codec.zstd == "auto" else None
        self._plane.attach(vault, *_codecs(spec), spec.state.keep_entries, packer, self._room(vault.parts))

    def _room(self, parts: Sequence[Part]) -> Room:
        """Where contributions may wait. Raises BudgetError when the run does not fit into what the volunteer gives."""
        assert self._spec is not None
        spec, have = self._spec, self._settings.memory_bytes
        if not have:
            return Room(unbudgeted_bytes(parts, _codecs(spec)[0]), self._slot.directory)
        need = needs(parts, *_codecs(spec), spec.state.keep_entries + 1, spec.codec.error_feedback)
        need.check(have)
        return Room(have - need.fixed, self._slot.directory, joiners=1)

    def _keep_last_copy(self) -> bool:
        """Whether the local copy is on disk now; it stays in shared memory otherwise."""
        try:
            copy_whole(self._vault_directory, self._last_copy)
        except VaultError as error:
            LOG.warning("the local copy stays in %s, because it could not be kept on disk: %s", self._vault_directory, error)
            return False
        LOG.info("others may not hold what this peer holds: its local copy is kept in %s", self._last_copy)
        return True

    # --- what people see --------------------------------------------------------------------------------------------------------

    def _show(self, engine: Engine) -> None:
        now = time.monotonic()
        if engine.waiting_for != self._waiting[0]:
            self._waiting = (engine.waiting_for, now)
        elif now < self._watched_at + WATCH_EVERY_S:
            return
        self._watched_at = now
        opened = engine.opened
        self._watch(
            PeerProgress(
                engine.phase,
                opened.round if opened is not None else 0,
                engine.version,
                opened.members if opened is not None else 0,
                self._progress.steps,
                self._progress.loss,
                self._progress.tokens_per_s,
                self._bits_per_byte,
                engine.waiting_for,
                now - self._waiting[1] if engine.waiting_for else 0.0,
                self._run,
                self._me,
                self._settings.name,
                engine.me.software,
                self._totals,
                self._spec.data.unit if self._spec is not None else BITS_PER_BYTE,
            )
        )


def _codecs(spec: RunSpec) -> tuple[Codec, Codec]:
    """What contributors send, and what reducers return."""
    return codec(spec.codec.send, spec.codec.block), codec(spec.codec.return_, spec.codec.block)


def partition(layout: ParameterLayout, send: Codec, back: Codec) -> tuple[Part, ...]:
    """The parts of the run: cut by the codec whose parts are larger, so that both ways a part fits one message."""
    probe = (send.block, 1)
    return layout.partition(max(send, back, key=lambda c: c.encoded_size(probe)))


def _unretrieved(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """gRPC's server, cut off by Ctrl-C while it starts, leaves an InvalidStateError behind that nobody can retrieve."""
    if isinstance(context.get("exception"), asyncio.InvalidStateError):
        LOG.debug("%s: %s", context["message"], context["exception"])
    else:
        loop.default_exception_handler(context)


async def _outcome(future: asyncio.Future[None]) -> None:
    await future


__all__ = ["Daemon", "PeerProgress", "PeerSettings", "partition", "run_peer"]
