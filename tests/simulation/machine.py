"""One volunteer's machine in the simulation: a vault that survives, a daemon that does not, a trainer that survives even less.

Rule: what the vault holds lives until the machine is lost; everything else dies with the process that made it, at any moment:
between two effects of one list, between two parts of one entry. Bulk bytes live here by key, as in the real daemon, and the
engine hears of them only. Neighbours: `streams` carries, `meeting` is the other end, `judge` watches every byte that moves.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never

from shoal.peer.engine import Engine, Introduction, Kept
from shoal.peer.events import (
    Add,
    Apply,
    Bar,
    BeginReduce,
    BuildState,
    ClosePart,
    Collect,
    ContributionArrived,
    ContributionRefused,
    Discard,
    DropPart,
    DropPending,
    DropRound,
    Effect,
    EntryApplied,
    EvaluateState,
    EvaluationDone,
    Event,
    Exit,
    Export,
    Exported,
    FetchPart,
    FetchState,
    HangUp,
    Hashed,
    HashState,
    Heard,
    KeepSession,
    LeaveAsked,
    LinkMeasured,
    MeasureLink,
    Offline,
    Online,
    OriginReady,
    PartFetchFailed,
    PartReduced,
    Progressed,
    Published,
    PushTo,
    Relabel,
    ResultArrived,
    ReturnPart,
    Say,
    SendPart,
    Serve,
    StartTrainer,
    StateFetched,
    StateFetchFailed,
    StreamFailed,
    Tell,
    TimePassed,
    Train,
    TrainerAttached,
    TrainerLost,
    WrapUp,
)
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    Contact,
    Envelope,
    Heartbeat,
    Hello,
    PartKey,
    PeerId,
    Plan,
    Span,
    StopRule,
)
from tests.simulation import values
from tests.simulation.meeting import ROUNDING_S, SPIN_LIMIT, Meeting
from tests.simulation.streams import Pipe, SessionStream
from tests.simulation.values import Model, PartState, State, Vector
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.judge import Judge

NO_ROUND = -1
SLOWNESS = (1.0, 1.0, 1.0, 1.0, 8.0, 30.0)
"""What a machine may be slower by: there are CPUs beside GPUs."""
PROGRESS_S = 0.7
"""How often a trainer says how far it is."""
PUSH_LIMIT_S, PUSH_STAYS_S = 10.0, 15.0
"""How long a holder that dials this peer may take to come, and how long it stays."""


@dataclass(eq=False)
class Work:
    """What one training made: progress on every part, from these samples. Never changes; the judge follows where it ends up."""

    id: int
    peer: PeerId
    session: int
    samples: tuple[int, ...]
    values: tuple[Vector, ...]
    committed: list[int | None]
    """Per part, the version whose entry contains it."""
    spent: int | None = None
    """The version whose entry counted its samples."""
    dropped: bool = False

    def __repr__(self) -> str:
        return f"work {self.id} of {self.peer}"


@dataclass
class Training:
    """What the trainer is at: it loaded local := shared - pending when it began."""

    order: Train
    count: int
    """Samples that it will have trained at its end."""
    session: int
    loaded: list[tuple[Work, ...]]
    begun: float
    ends: float


@dataclass
class Vault:
    """What survives the daemon."""

    model: Model
    version: int = NO_VERSION
    state: list[PartState] = field(default_factory=list)
    pending: list[list[Work]] = field(default_factory=list)
    published_round: int = NO_ROUND
    trained: int = 0
    session: int = NO_SESSION
    """What KeepSession wrote down."""
    applying: Apply | None = None
    progress: int = 0
    rotten: bool = False
    """Its bytes are not what they should be, and nobody has noticed yet."""
    results: dict[int, dict[bytes, tuple[PartKey, bytes]]] = field(default_factory=dict)
    """Final bytes of parts, by round and digest."""
    entries: dict[int, int] = field(default_factory=dict)
    """Which round made a kept log entry."""

    def __post_init__(self) -> None:
        if not self.pending:
            self.pending = [[] for _ in range(self.model.parts)]

    def payload(self, digest: bytes) -> bytes | None:
        """The bytes with this digest."""
        for parts in self.results.values():
            if digest in parts:
                return parts[digest][1]
        return None

    def delta(self, part: int) -> Vector:
        """The pending pseudo-gradient of one part."""
        total = [0.0] * self.model.widths[part]
        for work in self.pending[part]:
            for index, value in enumerate(work.values[part]):
                total[index] += value
        return tuple(total)


@dataclass
class Reduction:
    """What the daemon holds in memory for a round whose plan it knows."""

    plan: Plan
    arrived: dict[tuple[PartKey, PeerId], bytes] = field(default_factory=dict)
    sums: dict[PartKey, Vector] = field(default_factory=dict)
    inbound: dict[PeerId, BulkStream] = field(default_factory=dict)
    returns: dict[PeerId, list[PartKey]] = field(default_factory=dict)


class BulkStream:
    """A contributor's stream to a reducer: contributions go there, results come back."""

    def __init__(self, world: World, round_id: int, contributor: Machine, reducer: Machine) -> None:
        self.world = world
        self.round = round_id
        self.contributor, self.reducer = contributor, reducer
        contributor_life, reducer_life = contributor.life, reducer.life
        self.up = Pipe(world, lambda item: reducer.contribution_arrives(reducer_life, contributor.peer, *item))
        self.down = Pipe(world, lambda item: contributor.result_arrives(contributor_life, *item))
        self.lives = (contributor_life, reducer_life)
        self.broken = False

    def fail(self, reason: str, loudly: bool = True) -> None:
        """Break: both ends lose what was under way; whoever still lives hears of it, unless it was closed in peace."""
        if self.broken:
            return
        self.broken = True
        stall = self.world.random.choice((0.0, 0.1, 2.0))
        self.up.cut(stall)
        self.down.cut(stall)
        if loudly:
            for end, life, other in (
                (self.contributor, self.lives[0], self.reducer),
                (self.reducer, self.lives[1], self.contributor),
            ):
                self.world.after(stall + self.world.latency(), end.stream_fails, life, self, other.peer, reason)


class Machine:
    """A machine, with its daemon when it runs."""

    def __init__(
        self,
        world: World,
        judge: Judge,
        meeting: Meeting,
        machines: dict[PeerId, Machine],
        peer: PeerId,
        model: Model,
        run: str,
        keep_entries: int,
        tokens_per_sample: int,
        dialable: bool = True,
        helper: bool = False,
        make_engine: Callable[[Introduction, Kept], Engine] = Engine,
    ) -> None:
        self.world, self.judge, self.meeting, self.machines = world, judge, meeting, machines
        self.peer, self.model, self.run, self.make_engine = peer, model, run, make_engine
        self.keep_entries, self.tokens_per_sample = keep_entries, tokens_per_sample
        self.address = f"{peer}:1" if dialable else ""
        self.helper = helper
        self.vault = Vault(model)
        self.life = 0
        self.engine: Engine | None = None
        self.stream: SessionStream | None = None
        self.left = False
        """It said goodbye: nobody expects it back."""
        self.exports = 0
        self.leaving = False
        """Its volunteer wants it to leave."""
        self.sample_s = world.random.uniform(0.1, 0.6) * random.Random(f"{world.seed} {peer}").choice(SLOWNESS)
        self._crash_in: int | None = None
        self._attempts = 0
        self._reset()

    def _reset(self) -> None:
        """A new process remembers nothing."""
        self.stream = None
        self.rounds: dict[int, Reduction] = {}
        self.outbound: dict[tuple[int, PeerId], BulkStream] = {}
        self.early: dict[int, list[Callable[[], None]]] = {}
        self.over = NO_ROUND
        """Rounds up to this one are over for this process."""
        self.may_serve = True
        self.pushers: dict[PeerId, tuple[int, float]] = {}
        """Who has dialled this process to push what it asks for: which life of it, and until when."""
        self.frozen_until = 0.0
        self.trainer = "none"
        self._commands: deque[Train | EvaluateState | Export | BuildState | WrapUp | Relabel] = deque()
        self._busy = False
        self._training: Training | None = None
        self._trainer_life = 0
        self._wake: float | None = None
        self._spins = (0.0, 0)
        self._clock = self.world.random.uniform(0, 1000)

    def __repr__(self) -> str:
        return f"machine {self.peer}"

    # --- life and death ---------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.engine is not None

    def start(self) -> None:
        """The volunteer (or their service manager) starts the daemon."""
        if self.engine is not None:
            return
        self.left = self.leaving = False
        self.life += 1
        self._reset()
        self._recover()
        self.engine = self._make_engine()
        self.world.note(
            self.peer, "starts", f"version {self.vault.version}, session {self.vault.session}, trained {self.vault.trained}"
        )
        self.later(self.world.random.uniform(0.01, 0.5), self._dial)
        self._set_alarm()

    def _make_engine(self) -> Engine:
        instance = f"{self.peer}/{self.life}"
        vault = self.vault
        root = values.root(vault.version, vault.state) if vault.version != NO_VERSION else b""
        kept = Kept(vault.session, vault.version, vault.trained, root)
        return self.make_engine(Introduction(self.run, instance, self.peer, self.address, helper=self.helper), kept)

    def _recover(self) -> None:
        """Opening the vault finishes what a killed daemon left half done."""
        vault = self.vault
        if vault.applying is not None:
            while vault.progress < self.model.parts:
                self._apply_part()
            self._finish_apply()

    def die(self, reason: str = "kill -9") -> None:
        """The daemon's process ends, and its trainer with it."""
        if self.engine is None:
            return
        self.world.note(self.peer, "DIES", reason)
        self.engine = None
        self.life += 1
        self._crash_in = None
        if self.stream is not None:
            self.stream.break_down("the daemon died", peer_notices=False)
        for stream in [*self.outbound.values(), *(s for r in self.rounds.values() for s in r.inbound.values())]:
            stream.fail(f"{self.peer} died")
        self._reset()

    def burn(self) -> None:
        """The machine itself is lost, and its vault with it."""
        self.die("the machine is lost")
        self.world.note(self.peer, "LOSES VAULT")
        self.judge.vault_lost(self.vault)
        self.vault = Vault(self.model)

    def crash_soon(self, effects: int) -> None:
        """Let the daemon die within one of its next lists of effects."""
        self._crash_in = effects

    def freeze(self, seconds: float) -> None:
        """The daemon's process stands still; what comes in waits."""
        self.world.note(self.peer, "FREEZES", f"for {seconds:.1f} s")
        self.frozen_until = self.world.now + seconds

    def later(self, delay_s: float, what: Callable[..., None], *arguments: Any) -> None:
        """Something this process will do, unless it dies before."""
        self.world.after(delay_s, self._if_alive, self.life, what, arguments)

    def _if_alive(self, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self.life or self.engine is None:
            return
        if self.world.now < self.frozen_until:
            self.world.after(self.frozen_until - self.world.now, self._if_alive, life, what, arguments)
        else:
            what(*arguments)

    # --- the session stream -----------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if self.stream is not None:
            return
        stream = self.meeting.dial(self.peer, self.peer)
        if stream is None:
            self._attempts += 1
            self.later(self.world.random.uniform(0.2, min(8.0, 0.5 * 2**self._attempts)), self._dial)
            return
        self._attempts = 0
        life = self.life
        stream.down = Pipe(self.world, lambda envelope: self._hear(life, stream, envelope))
        stream.on_peer_end = lambda reason: self._goes_offline(life, stream, reason)
        self.stream = stream
        self.feed(Online())

    def _hear(self, life: int, stream: SessionStream, envelope: Envelope) -> None:
        if self.world.now < self.frozen_until:
            self.later(self.frozen_until - self.world.now, self._hear, life, stream, envelope)
        elif life == self.life and self.stream is stream:
            self.judge.hears(self, envelope)
            self.feed(Heard(envelope))
            old = self.judge.old_message_for(self)
            if old is not None and self.engine is not None and self.stream is stream:
                self.world.note("network", f"replays to {self.peer}", old)
                self.feed(Heard(old), stale=True)

    def _goes_offline(self, life: int, stream: SessionStream, reason: str) -> None:
        if self.world.now < self.frozen_until:
            self.later(self.frozen_until - self.world.now, self._goes_offline, life, stream, reason)
            return
        if life != self.life or self.stream is not stream:
            return
        self.stream = None
        self.feed(Offline(reason))
        if self.engine is not None:
            self.later(self.world.random.uniform(0.05, 1.5) + (6 if self.world.chance(self.world.weather.slow) else 0), self._dial)

    # --- events and effects -----------------------------------------------------------------------------------------------------

    def feed(self, event: Event, stale: bool = False) -> None:
        """One event into the engine, what it wants done out of it."""
        if self.engine is None:
            return
        if self.world.now < self.frozen_until:
            self.later(self.frozen_until - self.world.now, self.feed, event, stale)
            return
        self.world.note(self.peer, "<-", event)
        effects = self.engine.on(event, self._now())
        if stale:
            self.judge.stale_reaction(self, event, effects)
        cut: int | None = None
        if self._crash_in is not None and effects:
            self._crash_in -= 1
            if self._crash_in < 0:
                cut = self.world.random.randint(0, len(effects))
        elif len(effects) > 1 and self.world.chance(self.world.weather.crash_between_effects):
            cut = self.world.random.randint(0, len(effects))
        for index, effect in enumerate(effects):
            if index == cut:
                break
            self._perform(effect, effects[index + 1 :])
            if self.engine is None:
                return
        if cut is not None:
            self.die(f"kill -9 after {cut} of {len(effects)} effects")
            return
        self._set_alarm()

    def _perform(self, effect: Effect, effects_to_come: list[Effect]) -> None:
        if not (isinstance(effect, Say) and isinstance(effect.body, Heartbeat)):
            self.world.note(self.peer, "->", effect)
        match effect:
            case Say(session, term, body):
                if self.stream is not None:
                    self.judge.peer_says(self, body)
                    self.stream.say(Envelope(NO_SESSION if isinstance(body, Hello) else session, term, body))
            case HangUp():
                if self.stream is not None:
                    stream, self.stream = self.stream, None
                    stream.close_from(False, "the peer hung up")
                    self.later(self.world.latency(), self._hung_up)
            case Tell():
                pass
            case Exit(code, reason):
                self._exit(code, reason)
            case StartTrainer():
                if self.trainer == "none":
                    self.trainer = "starting"
                    self.later(self.world.random.uniform(0.2, 1.5), self._trainer_attaches)
            case Train() | Relabel() | WrapUp() | EvaluateState() | Export() | BuildState():
                self._command(effect)
            case KeepSession(session):
                self.vault.session = session
            case Serve(allowed):
                self.may_serve = allowed
            case Bar():
                pass
            case DropPending():
                self.judge.drops_pending(self, effects_to_come)
                self._clear_pending()
            case FetchState(version, contacts):
                self._fetch_state(version, iter(contacts), [])
            case PushTo(to):
                self._push_to(to)
            case MeasureLink():
                self.later(random.Random(self.peer).uniform(0.2, 3.0), self.feed, LinkMeasured(1e6, 1e6))
            case HashState(version):
                self._hash(version)
            case Apply():
                self._apply(effect)
            case BeginReduce(plan):
                self._begin_reduce(plan)
            case Collect(round_id, reducer):
                self._collect(round_id, reducer)
            case SendPart(key, reducer_id):
                self._send_part(key, reducer_id)
            case Add(key, peer, weight):
                self._add(key, peer, weight)
            case Discard(key, peer):
                if key.round in self.rounds:
                    self.rounds[key.round].arrived.pop((key, peer), None)
            case DropPart(key):
                self._drop_part(key)
            case ClosePart(key, divisor):
                self._close_part(key, divisor)
            case ReturnPart(key, to):
                self._return_part(key, to)
            case FetchPart(key, digest, contacts):
                if self.vault.payload(digest) is not None:
                    self.later(0.001, self.feed, ResultArrived(key, digest))
                else:
                    self._fetch_part(key, digest, iter(contacts))
            case DropRound(round_id):
                self._drop_round(round_id)
            case _:
                assert_never(effect)

    def _hung_up(self) -> None:
        if self.stream is None:
            self.feed(Offline("hung up"))
            self.later(self.world.random.uniform(0.1, 2.0), self._dial)

    def _exit(self, code: int, reason: str) -> None:
        self.world.note(self.peer, "EXITS", f"{code}: {reason}")
        self.judge.exits(self, code, reason)
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close_from(False, "the daemon exited")
        self.engine = None
        self.life += 1
        for bulk in [*self.outbound.values(), *(s for r in self.rounds.values() for s in r.inbound.values())]:
            bulk.fail(f"{self.peer} left")
        self._reset()
        self.left = code == 0
        if not self.left:
            self.world.after(self.world.random.uniform(3, 15), self.start)  # a service manager tries again

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.world.now + self._clock

    def _set_alarm(self) -> None:
        if self.engine is None or self.engine.wake_at is None:
            return
        at = max(self.engine.wake_at - self._clock + ROUNDING_S, self.world.now)
        if self._wake is None or at < self._wake - 1e-9:
            self._wake = at
            self.later(at - self.world.now, self._alarm, at)

    def _alarm(self, at: float) -> None:
        if self._wake != at or self.engine is None:
            return
        self._wake = None
        if self.engine.wake_at is not None and self.engine.wake_at <= self._now():
            instant, spins = self._spins
            self._spins = (self.world.now, spins + 1 if self.world.now - instant < 1e-6 else 0)
            if self._spins[1] > SPIN_LIMIT:
                raise Violation(f"{self.peer} spins: it wants to wake at {self.engine.wake_at} again and again")
            self.feed(TimePassed())
        self._set_alarm()

    # --- the trainer ------------------------------------------------------------------------------------------------------------

    def _trainer_attaches(self) -> None:
        self.trainer = "attached"
        self.feed(TrainerAttached(self.model.layout))

    def kill_trainer(self) -> None:
        """The trainer's process dies; the daemon starts another."""
        if self.trainer != "attached":
            return
        self.world.note(self.peer, "TRAINER DIES")
        self.trainer = "dead"
        self._trainer_life += 1
        self._training, self._busy = None, False
        self._commands.clear()
        self.later(self.world.random.uniform(0.01, 0.2), self._trainer_lost)

    def _trainer_lost(self) -> None:
        self.trainer = "starting"
        self.feed(TrainerLost("killed"))
        self.later(self.world.random.uniform(0.3, 2.0), self._trainer_attaches)

    def _soon(self, delay_s: float, what: Callable[..., None], *arguments: Any) -> None:
        """Something that the trainer's process will do, unless it dies before."""
        self.later(delay_s, self._if_trainer_lives, self._trainer_life, what, arguments)

    def _if_trainer_lives(self, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life == self._trainer_life:
            what(*arguments)

    def _command(self, command: Train | EvaluateState | Export | BuildState | WrapUp | Relabel) -> None:
        """The daemon says something to the trainer, which answers one thing after the other."""
        if self.helper and not isinstance(command, WrapUp):
            raise Violation(f"{self.peer} trains nothing, and is told {command}")
        if isinstance(command, Train):
            self.judge.train_ordered(self, command)
        if self.trainer != "attached":
            return
        if self._training is None:
            self._commands.append(command)
            self._next_command()
        elif isinstance(command, WrapUp):
            step_s = self.sample_s * self._batch
            self._soon(self.world.random.uniform(0.01, 0.3 + step_s), self._finish_training, self._training)
        elif isinstance(command, Relabel):
            self._relabel(command)
        else:
            raise Violation(
                f"{self.peer}'s trainer dies: it is told {command} while it trains for round {self._training.order.round}"
            )

    def _relabel(self, label: Relabel) -> None:
        assert self._training is not None
        self._training.order = replace(
            self._training.order,
            round=label.round,
            committed_tokens=label.committed_tokens,
            expected_tokens=label.expected_tokens,
        )

    def _next_command(self) -> None:
        if self._busy or not self._commands:
            return
        command = self._commands.popleft()
        random = self.world.random
        match command:
            case Train():
                self._busy = True
                self._begin_training(command)
            case EvaluateState(version):
                self._busy = True
                self._soon(random.uniform(0.1, 2.0), self._evaluate, version)
            case Export(version):
                self._busy = True
                self._soon(random.uniform(0.1, 1.0), self._export, version)
            case BuildState():
                self._busy = True
                self._soon(random.uniform(0.2, 1.5), self._build)
            case WrapUp() | Relabel():
                self._next_command()  # crossed our Published on the way
            case _:
                assert_never(command)

    def _answered(self, event: Event) -> None:
        """The trainer's answer is under way; it is ready for the next command."""
        self._busy = False
        self.later(self.world.random.uniform(0.001, 0.05), self.feed, event)
        self._next_command()

    def _begin_training(self, order: Train) -> None:
        vault = self.vault
        if vault.version != order.base or vault.applying is not None:
            raise Violation(f"{self.peer}'s trainer dies: told to train from version {order.base}, the vault holds {vault.version}")
        sample_s = self.sample_s * self.world.random.uniform(0.8, 1.3)
        count = order.limit
        if order.stop is StopRule.TIME:
            count = min(count, max(self._batch, int(order.seconds / sample_s)))
        takes = 0.05 + count * sample_s
        if self.world.chance(self.world.weather.slow):
            takes += self.world.random.uniform(2, 20)
        loaded = [tuple(pending) for pending in vault.pending]
        now, session = self.world.now, self.judge.session_heard(self)
        self._training = training = Training(order, count, session, loaded, now, now + takes)
        if order.stop is StopRule.SAMPLES:
            self._soon(PROGRESS_S, self._tell_progress, training)
        if self.world.chance(self.world.weather.trainer_crash):
            self._soon(takes * self.world.random.random(), self.kill_trainer)
        self._soon(takes, self._finish_training, training)
        while self._commands and isinstance(self._commands[0], WrapUp | Relabel):
            self._command(self._commands.popleft())

    @property
    def _batch(self) -> int:
        assert self.engine is not None
        assert self.engine.spec is not None
        return self.engine.spec.train.batch

    def _done(self, training: Training) -> int:
        """Samples that it has trained by now."""
        share = min(1.0, (self.world.now + 1e-9 - training.begun) / (training.ends - training.begun))
        return int(training.count * share)

    def _tell_progress(self, training: Training) -> None:
        if self._training is training:
            tokens_per_s = self.tokens_per_sample / self.sample_s
            self.feed(Progressed(0, 2.0, tokens_per_s, training.order.trained + self._done(training)))
            self._soon(PROGRESS_S, self._tell_progress, training)

    def _finish_training(self, training: Training) -> None:
        if self._training is not training:
            return
        self._training = None
        order, now = training.order, self.world.now
        done = self._done(training) if now < training.ends - 1e-9 else training.count
        todo = list(positions(order.lease))[order.trained : order.trained + done]
        if self.world.chance(self.world.weather.non_finite):
            self.judge.trainer_drops(self)
            self._clear_pending()
            self.vault.published_round = order.round
            self._answered(Published(order.round, 0, 0, len(todo), 9.0, now - training.begun, "w: 1/8 non-finite"))
            return
        work = self.judge.trained(self, training.session, tuple(todo)) if todo else ()
        self.vault.pending = [[*loaded, *work] for loaded in training.loaded]
        trained = order.trained + len(todo)
        self.vault.trained, self.vault.published_round = trained, order.round
        weight, steps = trained * self.tokens_per_sample, -(-len(todo) // self._batch)
        self._answered(Published(order.round, trained, weight, steps, 2.0, now - training.begun, norm=1.0))

    def _clear_pending(self) -> None:
        for pending in self.vault.pending:
            pending.clear()
        self.vault.trained, self.vault.published_round = 0, NO_ROUND

    def _evaluate(self, version: int) -> None:
        tokens = 128 if self.vault.version == version and self.vault.applying is None else 0
        self._answered(EvaluationDone(version, 2.5 if tokens else 0.0, tokens))

    def _export(self, version: int) -> None:
        if self.vault.version != version or self.vault.applying is not None:
            raise Violation(f"{self.peer}'s trainer dies: told to export version {version}, the vault holds {self.vault.version}")
        self.exports += 1
        self._answered(Exported("model.safetensors"))

    # --- shared state -----------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        if self.vault.version > 0:
            raise Violation(f"{self.peer} builds version 0 over version {self.vault.version}")
        state = tuple(
            PartState(tuple(self.world.random.uniform(-1, 1) for _ in range(width)), (0.0,) * width) for width in self.model.widths
        )
        self.vault.state, self.vault.version = list(state), 0
        self._answered(OriginReady(self.judge.built(self, state)))

    def _hash(self, version: int) -> None:
        if self.vault.version == version and self.vault.applying is None:
            root = values.root(version, self.vault.state)
            self.later(self.world.random.uniform(0.01, 0.2), self.feed, Hashed(version, root))

    def _apply(self, effect: Apply) -> None:
        vault, commit = self.vault, effect.commit
        if commit.version <= vault.version and vault.applying is None:
            self.later(0.001, self.feed, EntryApplied(vault.version))
            return
        if commit.base != vault.version or vault.applying is not None:
            raise Violation(f"{self.peer} applies entry {commit.version} on base {commit.base}, its vault is at {vault.version}")
        if len(effect.included) != len(commit.parts) or len(commit.parts) != self.model.parts:
            raise Violation(f"{self.peer} applies {len(commit.parts)} parts with {len(effect.included)} inclusions")
        for decision in commit.parts:
            if vault.payload(decision.digest) is None:
                raise Violation(f"{self.peer} applies version {commit.version} without the bytes of part {decision.part}")
        self.judge.apply_begins(self, commit)
        if self._training is not None or any(isinstance(command, Train) for command in self._commands):
            raise Violation(f"{self.peer} applies version {commit.version} while its trainer trains from {vault.version}")
        vault.applying, vault.progress = effect, 0
        self.later(0.001, self._apply_step)

    def _apply_step(self) -> None:
        """One part, then the next, then the version; a daemon may die between any two."""
        if self.world.chance(self.world.weather.crash_in_apply):
            self.die("kill -9 while applying")
            return
        if self.vault.progress < self.model.parts:
            self._apply_part()
            self.later(0.002, self._apply_step)
            return
        self._finish_apply()
        self.feed(EntryApplied(self.vault.version))

    def _apply_part(self) -> None:
        vault = self.vault
        assert vault.applying is not None
        commit, included = vault.applying.commit, vault.applying.included
        decision = commit.parts[vault.progress]
        payload = vault.payload(decision.digest)
        assert payload is not None
        part = decision.part
        vault.state[part] = values.outer_step(vault.state[part], payload, commit.outer_lr, commit.outer_momentum)
        if included[vault.progress]:
            vault.pending[part].clear()
        vault.progress += 1

    def _finish_apply(self) -> None:
        vault = self.vault
        assert vault.applying is not None
        commit, included = vault.applying.commit, vault.applying.included
        vault.trained = vault.applying.trained
        vault.version, vault.applying = commit.version, None
        vault.entries[commit.version] = commit.round
        for version in [v for v in vault.entries if v <= commit.version - self.keep_entries]:
            vault.results.pop(vault.entries.pop(version), None)
        if self.world.chance(self.world.weather.rot) and self.judge.may_rot(self):
            self.world.note(self.peer, "ROTS")
            vault.rotten = True
            first = vault.state[0]
            vault.state[0] = PartState((first.theta[0] + 1.0, *first.theta[1:]), first.momentum)
        self.judge.applied(self, commit, included)

    def _fetch_state(self, version: int, contacts: Iterator[Contact], failed: list[PeerId]) -> None:
        contact = next(contacts, None)
        if contact is None:
            self.later(self.world.latency(), self.feed, StateFetchFailed("no donor served", tuple(failed)))
            return
        self._when_there(contact, self._ask_donor, version, contact, contacts, failed)

    def _ask_donor(self, version: int, contact: Contact, contacts: Iterator[Contact], failed: list[PeerId]) -> None:
        donor = self._other_end(contact)
        broken = self.world.chance(self.world.weather.fetch_fails)
        if donor is None or broken or donor.vault.version < version or donor.vault.applying is not None:
            self._fetch_state(version, contacts, [*failed, contact.peer])
            return
        served = (donor.vault.version, tuple(donor.vault.state), donor.vault.rotten)
        self.later(self.world.latency() + self.world.random.uniform(0, 1), self._install, *served, donor.peer)

    def _when_there(self, contact: Contact, then: Callable[..., None], *arguments: Any, waited_s: float = 0.0) -> None:
        """Ask a contact: at once, or when it has dialled this peer, or has had the time to."""
        if contact.address or waited_s >= PUSH_LIMIT_S or self._other_end(contact) is not None:
            self.later(2 * self.world.latency(), then, *arguments)
            return
        life = self.life

        def look_again() -> None:
            if life == self.life and self.engine is not None:
                self._when_there(contact, then, *arguments, waited_s=waited_s + 0.5)

        self.world.after(0.5, look_again)

    def _other_end(self, contact: Contact) -> Machine | None:
        """Who answers what this peer asks a contact; None: nobody."""
        other = self.machines.get(contact.peer)
        if other is None or other.engine is None or not other.may_serve or self.world.now < other.frozen_until:
            return None
        if contact.address:
            return other if other.serves_at(contact.address) else None
        life, until = self.pushers.get(contact.peer, (0, 0.0))
        return other if life == other.life and self.world.now < until else None

    def _push_to(self, to: Contact) -> None:
        """Dial a machine that needs what this one holds."""
        target = self.machines.get(to.peer)
        if target is not None and target.serves_at(to.address) and not self.world.chance(self.world.weather.fetch_fails):
            self.world.after(self.world.latency(), target.is_dialled, target.life, self.peer, self.life)

    def is_dialled(self, life: int, pusher: PeerId, pusher_life: int) -> None:
        """A holder came to push; it stays for a while."""
        if life == self.life:
            self.pushers[pusher] = (pusher_life, self.world.now + PUSH_STAYS_S)

    def _install(self, version: int, state: State, rotten: bool, donor: PeerId) -> None:
        if self.vault.applying is not None:
            raise Violation(f"{self.peer} installs a fetched state while it applies an entry")
        self.vault.state, self.vault.version, self.vault.rotten = list(state), version, rotten
        self.judge.installed(self)
        self.feed(StateFetched(version, values.root(version, state), donor))

    @property
    def serves(self) -> bool:
        """Whether others can dial it now, and get something."""
        return self.serves_at(self.address) and self.may_serve

    def serves_at(self, address: str) -> bool:
        """Whether it listens there now."""
        return self.engine is not None and address == self.address != "" and self.world.now >= self.frozen_until

    # --- bulk bytes: as a member ------------------------------------------------------------------------------------------------

    def _begin_reduce(self, plan: Plan) -> None:
        if plan.round not in self.rounds:
            self.rounds[plan.round] = Reduction(plan)
        for arrival in self.early.pop(plan.round, []):
            self.later(0.001, arrival)

    def _collect(self, round_id: int, reducer: Contact) -> None:
        target = self.machines.get(reducer.peer)
        if target is None or not target.serves:
            self.later(self.world.latency(), self.feed, StreamFailed(round_id, reducer.peer, "cannot be dialled"))
            return
        old = self.outbound.get((round_id, reducer.peer))
        if old is not None and not old.broken:
            return
        stream = BulkStream(self.world, round_id, self, target)
        self.outbound[round_id, reducer.peer] = stream
        self.world.after(self.world.latency(), target.accept, target.life, stream)
        if self.world.chance(self.world.weather.bulk_break):
            self.later(self.world.random.uniform(0, 1.0), stream.fail, "the bulk stream broke")

    def _send_part(self, key: PartKey, reducer: PeerId) -> None:
        vector = self.vault.delta(key.part)
        payload = values.encode_contribution(vector)
        self.judge.contributes(self, key, payload)
        if self.world.chance(self.world.weather.poison):
            payload = values.encode_contribution((float("nan"), *vector[1:]))
        if reducer == self.peer:
            self.later(self.world.random.uniform(0.001, 0.02), self.contribution_arrives, self.life, self.peer, key, payload)
            return
        stream = self.outbound.get((key.round, reducer))
        if stream is not None:
            stream.up.send((key, payload))
            if self.world.chance(self.world.weather.bulk_duplicate):
                # A frame that was sent twice, the second time late: perhaps after its attempt, or its round, is over.
                late = self.world.random.choice((0.01, 0.5, 5.0, 20.0))
                life = stream.reducer.life
                self.world.after(late, stream.reducer.contribution_arrives, life, self.peer, key, payload)

    def result_arrives(self, life: int, key: PartKey, payload: bytes) -> None:
        """As collector: final bytes of a part."""
        if life != self.life or self.engine is None or key.round <= self.over:
            return
        if self.world.chance(self.world.weather.corrupt):
            payload = payload[:-1] + bytes([payload[-1] ^ 1])
        digest = values.sha256(payload)
        self._keep(key, digest, payload)
        self.feed(ResultArrived(key, digest))

    def _keep(self, key: PartKey, digest: bytes, payload: bytes) -> None:
        self.vault.results.setdefault(key.round, {})[digest] = (key, payload)

    def _fetch_part(self, key: PartKey, digest: bytes, contacts: Iterator[Contact]) -> None:
        contact = next(contacts, None)
        if contact is None:
            self.later(self.world.latency(), self.feed, PartFetchFailed(key, "no contact has it"))
            return
        self._when_there(contact, self._ask_holder, key, digest, contact, contacts)

    def _ask_holder(self, key: PartKey, digest: bytes, contact: Contact, contacts: Iterator[Contact]) -> None:
        holder = self._other_end(contact)
        payload = holder.vault.payload(digest) if holder is not None else None
        if payload is None or self.world.chance(self.world.weather.fetch_fails):
            self._fetch_part(key, digest, contacts)
            return
        self._keep(key, digest, payload)
        self.feed(ResultArrived(key, digest))

    def _drop_round(self, round_id: int) -> None:
        self.over = max(self.over, round_id)
        self.early.pop(round_id, None)
        reduction = self.rounds.pop(round_id, None)
        if reduction is not None:
            for stream in reduction.inbound.values():
                stream.fail("the round is over", loudly=self.world.chance(0.3))
        for key in [key for key in self.outbound if key[0] == round_id]:
            self.outbound.pop(key).fail("the round is over", loudly=False)
        applying = self.vault.applying.commit.round if self.vault.applying else NO_ROUND
        if round_id not in self.vault.entries.values() and round_id != applying:
            self.vault.results.pop(round_id, None)

    # --- bulk bytes: as a reducer -----------------------------------------------------------------------------------------------

    def accept(self, life: int, stream: BulkStream) -> None:
        """A contributor opened a stream."""
        if life != self.life or self.engine is None or stream.broken:
            stream.fail(f"{self.peer} is gone")
            return
        if stream.round <= self.over:
            stream.fail("the round is over")
            return
        reduction = self.rounds.get(stream.round)
        if reduction is None:
            self.early.setdefault(stream.round, []).append(lambda: self.accept(life, stream))
            return
        reduction.inbound[stream.contributor.peer] = stream
        for key in reduction.returns.pop(stream.contributor.peer, []):
            self._return_part(key, (stream.contributor.peer,))

    def contribution_arrives(self, life: int, sender: PeerId, key: PartKey, payload: bytes) -> None:
        """Encoded bytes of somebody's part are here."""
        if life != self.life or self.engine is None or key.round <= self.over:
            return
        reduction = self.rounds.get(key.round)
        if reduction is None:
            self.early.setdefault(key.round, []).append(lambda: self.contribution_arrives(life, sender, key, payload))
            return
        if any(value != value for value in values.decode_contribution(payload)):
            self.feed(ContributionRefused(key, sender, "not finite"))
            return
        reduction.arrived[key, sender] = payload
        self.feed(ContributionArrived(key, sender))

    def _add(self, key: PartKey, peer: PeerId, weight: int) -> None:
        reduction = self.rounds.get(key.round)
        payload = reduction.arrived.pop((key, peer), None) if reduction is not None else None
        if reduction is None or payload is None:
            raise Violation(f"{self.peer} adds a contribution of {peer} to {key} that is not here")
        reduction.sums[key] = values.add(reduction.sums.get(key), values.decode_contribution(payload), weight)

    def _drop_part(self, key: PartKey) -> None:
        reduction = self.rounds.get(key.round)
        if reduction is not None:
            reduction.sums.pop(key, None)
            for arrived in [arrived for arrived in reduction.arrived if arrived[0] == key]:
                del reduction.arrived[arrived]

    def _close_part(self, key: PartKey, divisor: float) -> None:
        reduction = self.rounds.get(key.round)
        total = reduction.sums.get(key) if reduction is not None else None
        if total is None:
            raise Violation(f"{self.peer} closes {key}, to which nothing was added")
        payload = values.encode_result(tuple(value / divisor for value in total))
        self.later(self.world.random.uniform(0.001, 0.05), self._reduced, key, payload)

    def _reduced(self, key: PartKey, payload: bytes) -> None:
        if key.round <= self.over:
            return
        digest = values.sha256(payload)
        self._keep(key, digest, payload)
        self.feed(PartReduced(key, digest))

    def _return_part(self, key: PartKey, to: tuple[PeerId, ...]) -> None:
        reduction = self.rounds.get(key.round)
        kept = [payload for kept_key, payload in self.vault.results.get(key.round, {}).values() if kept_key == key]
        if reduction is None or not kept:
            return
        for member in to:
            stream = reduction.inbound.get(member)
            if stream is not None and not stream.broken:
                stream.down.send((key, kept[0]))
            elif member != self.peer:
                reduction.returns.setdefault(member, []).append(key)

    def stream_fails(self, life: int, stream: BulkStream, other: PeerId, reason: str) -> None:
        """A bulk stream to or from `other` broke."""
        if life != self.life or self.engine is None:
            return
        mine = self.outbound.get((stream.round, other)) is stream
        reduction = self.rounds.get(stream.round)
        theirs = reduction is not None and reduction.inbound.get(other) is stream
        if mine:
            del self.outbound[stream.round, other]
        if theirs and reduction is not None:
            del reduction.inbound[other]
        if mine or theirs:
            self.feed(StreamFailed(stream.round, other, reason, dialled=mine))

    # --- the volunteer ----------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Ctrl-C."""
        self.leaving = True
        self.feed(LeaveAsked())


def positions(lease: tuple[Span, ...]) -> Iterator[int]:
    """The samples of a lease, in order."""
    for span in lease:
        yield from range(span.start, span.stop)
