"""A peer's decisions, without a socket, clock, thread or file: `on(event, now) -> list[Effect]`.

Guided tour. Four small stories run side by side and meet in `_advance`, which every event ends with:

    the stream    offline -> Hello -> Welcome -> ... ; what is said travels under the session and term of the last Welcome
    the state     nothing | version v; behind: Locate -> CatchUp or Donors -> entries in order -> StateReady
    the trainer   absent | idle | training; its published work waits in the vault until a Commit contains it
    the round     Open -> train -> Ready -> Plan -> reduce -> Have -> outcome

Rules. Only the coordinator abandons: published work and the parts of an undecided round are kept until its outcome is heard. No
entry is applied before its Commit, nor out of order, nor while the trainer trains from the version before (it is wrapped up first).
What is not in a committed entry stays pending. Neighbours: `roundbook` keeps one plan's books, `daemon` performs the effects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

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
from shoal.peer.roundbook import OwnPart, RoundBook
from shoal.protocol.entries import whole_commit
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Abandoned,
    Applied,
    Barred,
    BuildOrigin,
    CatchUp,
    Commit,
    Complaint,
    Contact,
    ContributorLost,
    Dismissed,
    Donors,
    Envelope,
    Evaluate,
    Evaluated,
    Fetch,
    Fingerprint,
    Finish,
    FromPeer,
    Goodbye,
    Have,
    Heartbeat,
    Held,
    Hello,
    Layout,
    Leave,
    Locate,
    Measure,
    Notice,
    Open,
    PartClosed,
    PartKey,
    PeerId,
    Plan,
    Push,
    Reachability,
    Ready,
    Refused,
    Replan,
    Resync,
    Section,
    Share,
    StateReady,
    Welcome,
    Wrap,
)
from shoal.protocol.spec import RunSpec

HAVE_PAUSE_S = 0.25
"""Results that arrive within this time are reported in one message."""
LOCATE_PAUSE_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pause before asking again after so many failed fetches in a row."""
STALL_S = 60.0
"""A trainer that finishes no step for so long, or for three of its longest, is spoken of."""
STALLED = "the trainer to finish a step"
FINISH_ROUND_S, LEAVE_S = 1.5, 2.5
"""How long leaving waits for the round in hand, and, in all, for the coordinator's last word."""

OVERDUE = 2
"""After so many trainings in a row that came too late, what is pending is offered before more is added to it: this peer's inner
steps take longer than rounds."""
OLD_SELF_S = 20.0
"""How long a restarted peer is patient with a coordinator that still believes in its old connection."""

EXIT_DONE, EXIT_REFUSED, EXIT_DISMISSED = 0, 4, 4


@dataclass(frozen=True)
class Introduction:
    """What a daemon says of itself in Hello."""

    run: str
    instance: str
    peer: PeerId
    address: str
    name: str = ""
    device: str = ""
    software: str = ""
    helper: bool = False
    """It trains nothing: its TrainerAttached only says how the model lies in memory."""


@dataclass(frozen=True)
class Kept:
    """What a daemon found in its vault when it started."""

    session: int = NO_SESSION
    version: int = NO_VERSION
    trained: int = 0
    """Leased samples behind the pending work in the vault."""
    root: bytes = b""
    """Fingerprint of the shared state in the vault."""


class Engine:
    """The round engine of one peer."""

    def __init__(self, me: Introduction, kept: Kept = Kept()) -> None:
        self.me = me
        self.session = kept.session
        self.term = 0
        self.version = kept.version
        self.newest = kept.version
        """Newest version that the coordinator is known to have committed."""
        self.trained = kept.trained
        self.spec: RunSpec | None = None
        self.layout: Layout | None = None
        self._data = b""
        self.root = kept.root
        self.online = False
        self.welcomed = False
        self.announced = False
        """StateReady was said in this session's present stream."""
        self.opened: Open | None = None
        self.training: int | None = None
        """The round that the trainer is training for."""
        self.published: Published | None = None
        """The trainer's last word on the round in `opened`."""
        self._at_risk = kept.trained > 0
        """Pending work was sent for a round whose outcome has not reached the state here: an entry may contain it."""
        self.missed = 0
        """Trainings in a row whose work came too late for the round that it was made for."""
        self._fresh = False
        """The last training's work is pending, and no entry was made without it yet."""
        self.reduction: RoundBook | None = None
        self.kept_rounds: set[int] = set()
        """Rounds whose bytes the daemon still keeps."""
        self.waiting_for = ""
        """The coordinator's last word on what the run waits for, have and need, and what to do."""
        self.copy_is_needed = True
        """The local copy must outlive this daemon: nobody said that others hold it, and the run is not over."""
        self._effects: list[Effect] = []
        self._clock = 0.0
        self._early_plan: Plan | None = None
        self._after_plan: list[Replan | Fetch | ContributorLost] = []
        """What was said about the round of the early plan since."""
        self._trainer = False
        self._trainer_started = False
        self._labels: set[int] = set()
        """Rounds that the training under way may be published for."""
        self._wrapping = False
        self._wrapped = -1
        """The last round that this peer was asked to wrap up."""
        self._published_at = 0.0
        self._norm = 0.0
        """Of the pending pseudo-gradient, as the trainer published it; 0: not known."""
        self._last_ready = (-1, 0.0, 0.0)
        """Round, seconds of training, and time of the last Ready: what the round cost this peer."""
        self._hashing: int | None = None
        self._refused_since: float | None = None
        self._offer: Donors | None = None
        self._commits: dict[int, Commit] = {}
        self._fetching_parts: set[PartKey] = set()
        self._fetched: dict[int, dict[tuple[Section, int], tuple[int, bytes]]] = {}
        """Parts fetched or received, by round."""
        self._applying: Commit | None = None
        self._fetching_state = False
        self._building = False
        self._located = False
        self._suspect = False
        self._failed: tuple[PeerId, ...] = ()
        self._failures = 0
        self._locate_at: float | None = None
        self._have_at: float | None = None
        self._heartbeat_at: float | None = None
        self._evaluate: int | None = None
        self._finish: Finish | None = None
        self._exporting = False
        self._let_go = False
        """The run is over, and the coordinator waits for this peer no more."""
        self._said_goodbye = False
        self._leaving = LeaveAsked()
        self._sent_off = False
        """Somebody else wants this peer to leave."""
        self._goodbye_at: float | None = None
        self._leave_at: float | None = None
        self._stalled_at: float | None = None
        """When the trainer, if it trains, has been silent for too long; None once that was said."""
        self._moved_at: float | None = None
        self._longest_step_s = 0.0
        self._exited = False
        self._progress = Progressed(0, 0.0, 0.0)
        self._link = LinkMeasured(0.0, 0.0)
        self.stale = 0
        """Messages and bulk events dropped because their session, term, round or attempt was over."""

    def on(self, event: Event, now: float) -> list[Effect]:
        """One event in, the effects that follow from it out."""
        self._clock = now
        if self._exited:
            return []
        match event:
            case Online(address):
                self.online = True
                self.me = self.me if address is None else replace(self.me, address=address)
                self.welcomed = self.announced = self._located = False
                if self._leave_at is None and not self._let_go:
                    self._say_hello()
            case Offline():
                self.online = self.welcomed = self.announced = self._located = False
            case Heard(envelope):
                self._heard(envelope, now)
            case TimePassed():
                pass
            case LeaveAsked():
                self._leave(event, now)
            case TrainerAttached(layout, data):
                self._trainer, self.layout, self._data = True, layout, data
            case TrainerLost(reason):
                self._trainer = self._wrapping = self._building = self._exporting = False
                self.training = None
                self._labels.clear()
                self.waiting_for = "" if self.waiting_for == STALLED else self.waiting_for
                self._emit(Tell(f"the trainer stopped: {reason}; starting another", "warning"))
            case Published():
                self._published(event, now)
            case Progressed():
                self._progress = event
                self._trainer_moved(now)
            case LinkMeasured():
                self._link = event
            case EvaluationDone(version, bits_per_byte, tokens):
                self._say(Evaluated(version, bits_per_byte, tokens))
            case Exported(where):
                self._exported(where, now)
            case OriginReady(root):
                self._building = False
                self._now_at(0, root)
                self.newest = max(self.newest, 0)
            case StateFetched():
                self._state_fetched(event)
            case StateFetchFailed(reason, failed):
                self._fetching_state = False
                self._fetch_failed(reason, failed, now)
            case Hashed(version, root):
                self._hashed(version, root)
            case EntryApplied():
                self._entry_applied(event)
            case ContributionArrived(key, peer):
                self._contribution(key, peer)
            case ContributionRefused(key, peer, _):
                self._contribution_refused(key, peer)
            case PartReduced(key, digest):
                self._part_reduced(key, digest)
            case ResultArrived(key, digest):
                self._result(key, digest, now)
            case PartFetchFailed(key, reason):
                self._fetching_parts.discard(key)
                if self._is_committed(key.round):  # else the coordinator asks again, or has it reduced again
                    self._fetch_failed(f"part {key.part} of round {key.round}: {reason}", (), now)
            case StreamFailed():
                self._stream_failed(event)
            case _:
                assert_never(event)
        self._advance(now)
        effects, self._effects = self._effects, []
        return effects

    @property
    def wake_at(self) -> float | None:
        """When TimePassed is due, if nothing happens before."""
        if self._exited:
            return None
        stalled_at = self._stalled_at if self.training is not None else None
        due = (self._locate_at, self._have_at, self._heartbeat_at, self._goodbye_at, self._leave_at, stalled_at)
        times = [t for t in due if t is not None]
        reduction = self.reduction
        if reduction is not None and (deadline := reduction.next_deadline(self._clock)) is not None:
            times.append(deadline)
        return min(times, default=None)

    @property
    def phase(self) -> str:
        """What this peer is doing, in words a person would say."""
        if self._leave_at is not None:
            return "leaving"
        if self._finish is not None:
            return "finishing"
        if not self.welcomed and self.training is None:
            return "connecting"
        if self._fetching_state or self._fetching_parts:
            return "fetching state"
        if self._applying is not None:
            return "applying"
        if self.training is not None:
            return "training"
        if self.reduction is not None:
            return "reducing"
        if not self._trainer:
            return "getting ready" if self.me.helper else "starting the trainer"
        if self.me.helper:
            return "helping"
        return "ready" if self.published is not None else "waiting"

    # --- the stream -------------------------------------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        me = self.me
        hello = Hello(
            me.run,
            PROTOCOL_MAJOR,
            PROTOCOL_MINOR,
            me.instance,
            self.session,
            self.version,
            self.root,
            self.layout,
            me.address,
            me.name,
            me.device,
            me.software,
            me.helper,
        )
        self._emit(Say(NO_SESSION, 0, hello))

    def _heard(self, envelope: Envelope, now: float) -> None:
        body = envelope.body
        if isinstance(body, Welcome):
            self._welcome(body, now)
            return
        if isinstance(body, Refused):
            self._refused(body, now)
            return
        if not self._fits(envelope):
            self.stale += 1
            return
        match body:
            case BuildOrigin():
                if self.version == NO_VERSION and not self._building:
                    self._building = True
                    self._emit(BuildState())
                elif self.version == 0:
                    self.announced = False
            case Donors(version, contacts):
                self._donors(version, contacts)
            case Push(to):
                self._emit(PushTo(to))
            case CatchUp(commits, contacts):
                self._catch_up(commits, contacts)
            case Open():
                self._open(body)
            case Wrap(round_id):
                self._wrap(round_id)
            case Plan():
                self._plan(body, now)
            case Replan() | Fetch() | ContributorLost():
                if self._early_plan is not None and self._early_plan.round == body.round:
                    self._after_plan.append(body)
                else:
                    self._repair(body, now)
            case Commit():
                self._take_commit(body)
            case Abandoned(round_id):
                self._abandoned(round_id, body.reason)
            case Evaluate(version):
                self._evaluate = version
            case Resync(version, root, reason):
                self._resync(version, root, reason)
            case Notice():
                self._notice(body)
            case Finish():
                self._finish = body
                self.newest = max(self.newest, body.version)
            case Dismissed():
                self._dismissed(body)
            case Leave(reason):
                self._sent_off = True
                if self._leave_at is None:
                    self._emit(Tell(f"asked to leave: {reason}"))
                    self._leave(LeaveAsked(reason), now)
            case Barred(peers):
                self._emit(Bar(frozenset(peers)))
            case Measure(to):
                if not (self._link.up_bytes_s and self._link.down_bytes_s):
                    self._emit(MeasureLink(to))
            case Reachability(_, reason, fix):
                self._emit(Tell(f"{reason} — {fix}" if fix else reason, "warning"))
            case _:
                self.stale += 1

    def _refused(self, said: Refused, now: float) -> None:
        """The coordinator's no is final, except right after a restart: our own old stream may still count as alive there."""
        if said.code == "ALREADY_EXISTS" and self.session != NO_SESSION:
            if self._refused_since is None:
                self._refused_since = now
                self._emit(Tell(f"waiting up to {OLD_SELF_S:g} s for the coordinator to give up this peer's old connection"))
            if now < self._refused_since + OLD_SELF_S:
                self._emit(HangUp())
                return
        if said.code == "ENDED":
            self.copy_is_needed = False
        self._exit(EXIT_REFUSED, f"the coordinator refused this peer: {said.reason}", said.fix)

    def _fits(self, envelope: Envelope) -> bool:
        """Whether a message belongs to this membership and this life of the coordinator."""
        return self.welcomed and envelope.session == self.session and envelope.term == self.term

    def _welcome(self, welcome: Welcome, now: float) -> None:
        if not self.online:
            self.stale += 1
            return
        if welcome.term < self.term:  # ids of rounds may mean two things now: only a new start keeps them apart
            reason = f"the coordinator went back from term {self.term} to {welcome.term}: its journal is an older copy"
            self._exit(EXIT_REFUSED, reason, "start this peer again: it goes on with what it holds")
            return
        self.term, self.welcomed, self._refused_since = welcome.term, True, None
        self.copy_is_needed = True
        self.spec = RunSpec.from_json(welcome.spec)
        if not self._trainer_started:
            self._trainer_started = True
            self._emit(StartTrainer(welcome.spec))
        if not welcome.resumed:
            self._new_session()
        if welcome.session != self.session:
            self.session = welcome.session
            self._emit(KeepSession(self.session))
        self.newest = max(self.newest, welcome.version)
        self._heartbeat_at = now
        if self._said_goodbye:
            self._say(Goodbye("the run is over"))  # the first one may have been lost with its stream

    def _new_session(self) -> None:
        """Another membership: what was leased to the old one is other peers' work now, so pending work must not count twice."""
        self.session = NO_SESSION
        self._drop_pending()
        self.published, self.opened = None, None
        self._wrap_up()
        self._labels.clear()  # what the trainer publishes now belongs to the old membership
        self.reduction, self._have_at = None, None
        self._early_plan, self._after_plan = None, []

    def _dismissed(self, said: Dismissed) -> None:
        self.session = NO_SESSION
        self.welcomed = self.announced = False
        self.copy_is_needed = self.copy_is_needed and not said.copy_is_safe
        if self._leave_at is not None or self._said_goodbye:
            self._sent_off = self._sent_off or (self._goodbye_at is not None and not said.may_return)
            if self._finish is None or self._said_goodbye:
                self._exit(EXIT_DONE, "left the run")
            return
        if said.may_return:
            self._emit(Tell(f"the coordinator ended this session ({said.reason}); joining again"))
            self._emit(HangUp())
        elif self._finish is not None and self._finish.run_is_over and self.version >= self._finish.version:
            self._let_go = True  # it was slow, and needs nobody any more: it writes the model, and leaves
        else:
            self._exit(EXIT_DISMISSED, f"dismissed: {said.reason}")

    def _notice(self, notice: Notice) -> None:
        have = f" (have {notice.have}, need {notice.need})" if notice.need else ""
        fix = f": {notice.fix}" if notice.fix else ""
        self.waiting_for = f"{notice.waiting_for}{have}{fix}" if notice.waiting_for else ""
        if self.waiting_for:
            self._emit(Tell(f"waiting for {self.waiting_for}"))

    # --- shared state -----------------------------------------------------------------------------------------------------------

    def _donors(self, version: int, contacts: tuple[Contact, ...]) -> None:
        self._located = False
        self.newest = max(self.newest, version)
        self._offer = Donors(version, contacts)

    def _catch_up(self, commits: tuple[Commit, ...], contacts: tuple[Contact, ...]) -> None:
        self._located = self.announced = False  # whoever is brought forward says so when it is there
        for commit in commits:
            self._take_commit(commit)

    def _take_commit(self, commit: Commit) -> None:
        commit = whole_commit(commit)
        self.newest = max(self.newest, commit.version)
        if commit.version > self.version and self._applying != commit:
            self._commits[commit.version] = commit

    def _state_fetched(self, event: StateFetched) -> None:
        self._fetching_state, self._suspect = False, False
        self._failures = 0
        self._emit(Serve(True))
        self._now_at(event.version, event.root)

    def _now_at(self, version: int, root: bytes) -> None:
        """The vault holds this version."""
        self.version, self.root = version, root
        self.announced = False
        self._located = False
        for old in [v for v in self._commits if v <= version]:
            del self._commits[old]

    def _fetch_failed(self, reason: str, failed: tuple[PeerId, ...], now: float) -> None:
        self._failed = tuple(dict.fromkeys((*self._failed, *failed)))[-16:]
        pause = LOCATE_PAUSE_S[min(self._failures, len(LOCATE_PAUSE_S) - 1)]
        self._failures += 1
        self._commits.clear()  # whoever is asked again names other contacts
        self._located = True
        self._locate_at = now + pause
        self._emit(Tell(f"could not fetch {reason}; asking again in {pause:g} s", "warning"))

    def _resync(self, version: int, root: bytes, reason: str) -> None:
        if version == self.version and self.root == root and not self._suspect:
            return
        self._emit(Tell(f"resynchronising: {reason}", "warning"))
        self._emit(Serve(False))
        self._suspect = True
        self._located = False

    def _entry_applied(self, event: EntryApplied) -> None:
        commit, self._applying = self._applying, None
        assert commit is not None
        assert commit.version == event.version
        self.version, self.root = event.version, b""
        self._commits.pop(event.version, None)
        self._fetched.pop(commit.round, None)
        self._failures = 0
        self._forget_rounds(commit.round)
        ready_round, train_s, ready_at = self._last_ready
        cost = (train_s, self._clock - ready_at) if ready_round == commit.round else (0.0, 0.0)
        self._note_missed()
        self._say(Applied(event.version, event.sent_bytes, event.received_bytes, *cost, event.norm, event.cosine))
        if self.opened is not None and self.opened.round <= commit.round:
            self.opened, self.published = None, None
        assert self.spec is not None
        if event.version % self.spec.state.fingerprint_every == 0:
            self._emit(HashState(event.version))

    def _hashed(self, version: int, root: bytes) -> None:
        self._hashing = None
        if version == self.version:
            self.root = root
        if self.spec is not None and version % self.spec.state.fingerprint_every == 0:
            self._say(Fingerprint(version, root))

    def _forget_rounds(self, upto: int) -> None:
        """These rounds have their outcome."""
        for round_id in sorted(r for r in self.kept_rounds if r <= upto):
            self.kept_rounds.discard(round_id)
            self._emit(DropRound(round_id))
        for round_id in [r for r in self._fetched if r <= upto]:
            del self._fetched[round_id]
        if self.reduction is not None and self.reduction.round <= upto:
            self.reduction, self._have_at = None, None

    def _missing(self, commit: Commit) -> list[PartKey]:
        """Parts of an entry whose committed bytes are not here."""
        have = self._fetched.get(commit.round, {})
        return [
            PartKey(commit.round, part.section, part.part, part.attempt)
            for part in commit.parts
            if have.get((part.section, part.part)) != (part.attempt, part.digest)
        ]

    def _included(self, commit: Commit) -> tuple[bool, ...]:
        """Where this peer's pending work is in the entry."""
        return tuple(self.trained > 0 and self.me.peer in part.contributors for part in commit.parts)

    # --- the trainer ------------------------------------------------------------------------------------------------------------

    def _published(self, event: Published, now: float) -> None:
        wanted = self.training is not None and event.round in self._labels
        round_id, self.training, self._wrapping = self.training, None, False
        self._labels.clear()
        self._trainer_moved(now)
        if not wanted:
            self.stale += 1
            self._drop_pending()
            return
        self.trained, self._norm, self._fresh = event.trained, event.norm, event.trained > 0
        if self.opened is not None and self.opened.round == round_id:
            self.published, self._published_at = event, now
            if event.note:
                self._emit(Tell(f"this peer contributes nothing to round {round_id}: {event.note}", "warning"))
            self._say_ready()

    def _say_ready(self) -> None:
        assert self.opened is not None
        assert self.published is not None
        assert self.spec is not None
        done = self.published
        weight = self.trained * self.spec.data.sequence_length
        self._last_ready = (self.opened.round, done.train_s, self._published_at)
        norm = self._norm if self.trained else 0.0
        self._say(Ready(self.opened.round, weight, self.trained, done.steps, done.loss, done.train_s, done.note, norm))

    def _open(self, opened: Open) -> None:
        if self.opened is not None and opened.round < self.opened.round:
            self.stale += 1
            return
        if self.opened is not None and opened.round == self.opened.round:
            if self.published is not None:
                self._say_ready()
            return
        before = self.opened
        self.opened, self.published = opened, None
        self.newest = max(self.newest, opened.base)
        if opened.base == self.version:
            self._forget_rounds(opened.round - 1)
        if self._labels and before is not None and opened.base == before.base and not self._wrapping:
            self.training = opened.round
            self._labels.add(opened.round)
            self._emit(Relabel(opened.round, opened.committed_tokens, opened.expected_tokens))

    def _wrap(self, round_id: int) -> None:
        if self.opened is None or self.opened.round != round_id or self.published is not None:
            return
        self._wrapped = round_id
        if self.training is not None:
            self._wrap_up()
        elif self.opened.base == self.version:
            self._publish_pending(round_id)

    def _publish_pending(self, round_id: int) -> None:
        """What is pending is all that this peer contributes to this round."""
        self.published, self._published_at = Published(round_id, self.trained, 0, 0, 0.0, 0.0), self._clock
        self._say_ready()

    def _wrap_up(self) -> None:
        if self.training is not None and not self._wrapping:
            self._wrapping = True
            self._emit(WrapUp())

    def _train(self) -> None:
        """Start the open round's training, if it stands on the state that is here."""
        opened = self.opened
        if opened is None or self.published is not None or self.training is not None or opened.base != self.version:
            return
        if self._leave_at is not None:
            return
        self._at_risk = False  # a round opens when all before it are decided, and the state here is what came of them
        if self.missed >= OVERDUE or opened.round == self._wrapped or sum(map(len, opened.lease)) <= self.trained:
            self._publish_pending(opened.round)
        elif self._trainer:
            self.training = opened.round
            self._moved_at = None
            self._trainer_moved(self._clock)
            self._labels = {opened.round}
            self._progress = replace(self._progress, samples=self.trained)
            self._emit(
                Train(
                    opened.round,
                    opened.base,
                    opened.lease,
                    self.trained,
                    opened.quota,
                    opened.committed_tokens,
                    opened.expected_tokens,
                    opened.stop,
                    opened.seconds,
                )
            )

    def _drop_pending(self) -> None:
        """What was trained and not committed no longer counts."""
        self.trained, self.missed, self._fresh, self._at_risk, self._norm = 0, 0, False, False, 0.0
        self._emit(DropPending())

    def _note_missed(self) -> None:
        """The state moved on: with the work that was pending here, or without it."""
        if not self.trained:
            self.missed = 0
        elif self._fresh:
            self.missed += 1
        self._fresh = False

    def _trainer_moved(self, now: float) -> None:
        """The trainer began, finished a step, or finished the round."""
        if self._moved_at is not None:
            self._longest_step_s = max(self._longest_step_s, now - self._moved_at)
        self._moved_at = now
        self._stalled_at = now + max(STALL_S, 3.0 * self._longest_step_s)
        if self.waiting_for == STALLED:
            self.waiting_for = ""

    def _exported(self, where: str, now: float) -> None:
        self._emit(Tell(f"the model is in {where}"))
        self._exporting = False
        self.waiting_for = ""
        self._said_goodbye = True
        assert self._finish is not None
        self.copy_is_needed = not self._finish.run_is_over
        self._say(Goodbye("the run is over"))
        if self._leave_at is not None or not self.welcomed:
            self._exit(EXIT_DONE, "left the run; the model is on disk")

    # --- the round --------------------------------------------------------------------------------------------------------------

    def _plan(self, plan: Plan, now: float) -> None:
        if plan.term != self.term or plan.base < self.version or self.me.peer not in plan.members or self._suspect:
            self.stale += 1
            return
        if plan.base > self.version:
            self._early_plan, self._after_plan = plan, []  # its turn comes when the entries before it are applied
            return
        if self.reduction is not None and self.reduction.round >= plan.round:
            return
        self._forget_rounds(plan.round - 1)
        self.reduction = reduction = RoundBook(plan, self.me.peer, now)
        self.kept_rounds.add(plan.round)
        self._emit(BeginReduce(plan))
        for reducer in reduction.reducers():
            self._emit(Collect(plan.round, reducer))
        published = self.published is not None and self.opened is not None and self.opened.round == plan.round
        if self.me.peer in reduction.weights and published:
            self._at_risk = reduction.contributes = True
            for key, reducer_id in reduction.sending_order():
                self._emit(SendPart(key, reducer_id))

    def _repair(self, said: Replan | Fetch | ContributorLost, now: float) -> None:
        """Somebody went out of the round in hand."""
        reduction = self.reduction
        if reduction is None or reduction.round != said.round:
            self.stale += 1
            return
        match said:
            case Replan(_, shares):
                self._replan(reduction, shares, now)
            case Fetch(_, parts, contacts):
                self._fetch_results(reduction, parts, contacts)
            case ContributorLost(_, peer):
                reduction.lost.add(peer)
                self._reduce_all(now)
            case _:
                assert_never(said)

    def _replan(self, reduction: RoundBook, shares: tuple[Share, ...], now: float) -> None:
        """Some parts are reduced again, by others."""
        again = reduction.replan(shares, now)
        if not again.shares:
            self.stale += 1
            return
        for key in again.lapsed:
            self._emit(DropPart(key))
        self._emit(BeginReduce(replace(reduction.plan, shares=tuple(again.shares))))
        for reducer in again.reducers:
            self._emit(Collect(reduction.round, reducer))
        if reduction.contributes:
            for share in again.shares:
                self._emit(SendPart(PartKey(reduction.round, share.section, share.start, share.attempt), share.reducer.peer))
        for key, digest in again.arrived:
            self._hold(key, digest)
        self._reduce_all(now)

    def _fetch_results(self, reduction: RoundBook, parts: tuple[Held, ...], contacts: tuple[Contact, ...]) -> None:
        """What the reducer does not return any more, others have."""
        for part in parts:
            slot, key = (part.section, part.part), PartKey(reduction.round, part.section, part.part, part.attempt)
            share = reduction.reducer_of.get(slot)
            if share is not None and share.attempt == part.attempt and reduction.results.get(slot) != part:
                self._fetch_part(key, part.digest, contacts)

    def _contribution(self, key: PartKey, peer: PeerId) -> None:
        reduction = self.reduction
        if reduction is not None and reduction.is_to_come(key) and peer in reduction.weights:
            reduction.keep_for_later(key, peer)
            return
        if reduction is None or not reduction.expects(key, peer):
            self.stale += 1
            if reduction is None or not reduction.waits(key, peer):  # a second copy of one that waits is the same bytes
                self._emit(Discard(key, peer))
            return
        part = reduction.own[key.section, key.part]
        part.arrived.add(peer)
        self._reduce(reduction, part, late=False)

    def _contribution_refused(self, key: PartKey, peer: PeerId) -> None:
        reduction = self.reduction
        if reduction is not None and reduction.is_to_come(key) and peer in reduction.weights:
            reduction.refuse_for_later(key, peer)
            return
        if reduction is None or not reduction.expects(key, peer):
            self.stale += 1
            return
        part = reduction.own[key.section, key.part]
        part.refused.append(peer)
        self._reduce(reduction, part, late=False)

    def _reduce(self, reduction: RoundBook, part: OwnPart, late: bool) -> None:
        """Add what is here and due; close the part when nothing more can come."""
        if part.closed:
            return
        while (peer := reduction.next_to_add(part, late)) is not None:
            part.arrived.discard(peer)
            part.added.append(peer)
            part.turn += 1
            self._emit(Add(part.key, peer, reduction.weights[peer]))
        if reduction.ready_to_close(part):
            part.closed = True
            self._emit(ClosePart(part.key, reduction.divisor(part)))

    def _reduce_all(self, now: float) -> None:
        if self.reduction is not None:
            for part in self.reduction.own.values():
                self._reduce(self.reduction, part, now >= part.deadline)

    def _part_reduced(self, key: PartKey, digest: bytes) -> None:
        reduction = self.reduction
        part = reduction.own.get((key.section, key.part)) if reduction is not None else None
        if reduction is None or part is None or part.key != key:
            self.stale += 1
            return
        self._say(PartClosed(key, tuple(part.added), reduction.divisor(part), digest, tuple(part.refused)))
        others = tuple(peer for peer in reduction.plan.members if peer != self.me.peer)
        if others:
            self._emit(ReturnPart(key, others))
        self._hold(key, digest)

    def _result(self, key: PartKey, digest: bytes, now: float) -> None:
        fetched = key in self._fetching_parts
        self._fetching_parts.discard(key)
        if fetched and self._is_committed(key.round):
            self._note_bytes(key, digest)
            return
        reduction = self.reduction
        share = reduction.reducer_of.get((key.section, key.part)) if reduction is not None else None
        if reduction is None or reduction.round != key.round or share is None or share.attempt != key.attempt:
            if fetched:
                self._note_bytes(key, digest)
            elif reduction is not None and reduction.is_to_come(key):
                reduction.keep_result_for_later(key, digest)
            else:
                self.stale += 1
            return
        self._hold(key, digest)
        if not reduction.complete() and self._have_at is None:
            self._have_at = now + HAVE_PAUSE_S

    def _is_committed(self, round_id: int) -> bool:
        """Whether an entry that is to be applied came of this round."""
        return any(commit.round == round_id for commit in self._commits.values())

    def _note_bytes(self, key: PartKey, digest: bytes) -> None:
        self._fetched.setdefault(key.round, {})[key.section, key.part] = (key.attempt, digest)
        self.kept_rounds.add(key.round)

    def _hold(self, key: PartKey, digest: bytes) -> None:
        """Part of the result of the round in hand is here: report it, soon or, when it was the last one, now."""
        assert self.reduction is not None
        self._note_bytes(key, digest)
        self.reduction.keep(key, digest)
        if self.reduction.complete():
            self._flush_have()
        elif self._have_at is None:
            self._have_at = self._clock + HAVE_PAUSE_S

    def _flush_have(self) -> None:
        self._have_at = None
        if self.reduction is not None and self.reduction.unsaid:
            self._say(Have(self.reduction.round, tuple(self.reduction.unsaid)))
            self.reduction.unsaid = []

    def _say_all_results(self) -> None:
        """After a new stream: what was said on the old one may be lost."""
        if self.reduction is not None:
            self.reduction.unsaid = list(self.reduction.results.values())
            for part in self.reduction.own.values():
                held = self.reduction.results.get((part.key.section, part.key.part))
                if part.closed and held is not None:
                    self._say(
                        PartClosed(part.key, tuple(part.added), self.reduction.divisor(part), held.digest, tuple(part.refused))
                    )
            self._flush_have()

    def _abandoned(self, round_id: int, reason: str) -> None:
        if self.reduction is not None and self.reduction.round == round_id:
            self._emit(Tell(f"round {round_id} was abandoned: {reason}; nothing is lost"))
        if self._early_plan is not None and self._early_plan.round == round_id:
            self._early_plan, self._after_plan = None, []
        self._forget_rounds(round_id)

    def _stream_failed(self, event: StreamFailed) -> None:
        """Complain about who could not be dialled; who dialled this peer complains by itself."""
        reduction = self.reduction
        if reduction is None or reduction.round != event.round or event.peer not in reduction.dialled or not event.dialled:
            self.stale += 1
            return
        self._say(Complaint(event.round, event.peer, event.reason[:500]))

    # --- everything that time and the newest facts allow ------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._keep_time(now)
        self._pursue(now)
        if self._early_plan is not None and self._early_plan.base <= self.version:
            plan, self._early_plan = self._early_plan, None
            said, self._after_plan = self._after_plan, []
            self._plan(plan, now)
            for body in said:
                self._repair(body, now)
        if self.welcomed and self._settled():
            if not self.announced and self._trainer and self.version != NO_VERSION:
                self._introduce_state()
            if self.announced:
                self._train()
        self._run_evaluation()
        self._run_finish(now)

    def _keep_time(self, now: float) -> None:
        if self._heartbeat_at is not None and now >= self._heartbeat_at and self.spec is not None:
            self._heartbeat_at = now + self.spec.timing.heartbeat_s
            progress, link = self._progress, self._link
            at = (self.training, progress.samples) if self.training is not None else (-1, 0)
            rates = (link.up_bytes_s, link.down_bytes_s)
            self._say(Heartbeat(self.phase, progress.steps, progress.loss, progress.tokens_per_s, *rates, *at))
        if self._have_at is not None and now >= self._have_at:
            self._flush_have()
        if self._locate_at is not None and now >= self._locate_at:
            self._locate_at, self._located = None, False
        if self.training is not None and self._stalled_at is not None and now >= self._stalled_at:
            self._stalled_at, self.waiting_for = None, STALLED
            silent_s = now - self._moved_at if self._moved_at is not None else STALL_S
            fix = "if its steps are not that long, stop its process: another is started"
            self._emit(Tell(f"the trainer finished no step for {silent_s:.0f} s: {fix}", "warning"))
        if self.reduction is not None and self.reduction.is_late(now):
            self._reduce_all(now)
        if self._goodbye_at is not None and (now >= self._goodbye_at or not self._has_work_to_finish()):
            self._goodbye_at = None
            self._say(Goodbye(self._leaving.reason))
        if self._leave_at is not None and now >= self._leave_at:
            unwritten = "; the model was not written, the trainer took too long" if self._exporting else ""
            self._exit(EXIT_DONE, f"left the run{unwritten}")

    def _settled(self) -> bool:
        """The newest committed version is here, and nothing is moving it."""
        return (
            self.version >= self.newest
            and not self._suspect
            and self._applying is None
            and not self._fetching_state
            and not self._building
        )

    def _introduce_state(self) -> None:
        """Say which version is here; first compute its fingerprint where it is not known."""
        if self.root:
            self._announce()
        elif self._hashing != self.version:
            self._hashing = self.version
            self._emit(HashState(self.version))

    def _announce(self) -> None:
        assert self.layout is not None
        self.announced = True
        self._failed, self._failures = (), 0
        self._say(StateReady(self.version, self.root, self.layout, self._data))
        if self.published is not None and self.opened is not None:
            self._say_ready()
        self._say_all_results()

    def _pursue(self, now: float) -> None:
        """Move the state towards the newest version: apply the next entry, fetch its parts, or ask who has what is missing."""
        if self._applying is not None or self._fetching_state or self._building:
            return
        offer = self._offer
        if offer is not None and self.version >= offer.version and not self._suspect:
            self._offer = offer = None
            self.announced = False  # the coordinator thinks that we are behind: an old StateReady reached it late
        if self._suspect or self.version == NO_VERSION or offer is not None:
            if self.training is not None:
                self._wrap_up()
            elif offer is not None:
                self._offer, self._fetching_state = None, True
                if self._at_risk or self._suspect:
                    # An entry that is skipped may contain it, or it was trained from a bad copy; its samples stay leased.
                    self._drop_pending()
                self._note_missed()
                self._emit(FetchState(offer.version, offer.contacts))
            elif self._trainer:
                self._ask(Locate(NO_VERSION, self._failed))
            return
        commit = self._commits.get(self.version + 1)
        if commit is None:
            if self.version < self.newest:
                nobody_keeps_it = self._failures % 4 == 3
                self._ask(Locate(NO_VERSION if nobody_keeps_it else self.version, self._failed))
            return
        missing = self._missing(commit)
        if missing:
            self._fetch_parts(commit, missing)
        elif self.training is not None:
            self._wrap_up()
        else:
            self._apply(commit)

    def _fetch_parts(self, commit: Commit, missing: Iterable[PartKey]) -> None:
        if self._locate_at is not None:
            return
        digests = {(part.section, part.part): part.digest for part in commit.parts}
        for key in missing:
            self._fetch_part(key, digests[key.section, key.part], commit.contacts)

    def _fetch_part(self, key: PartKey, digest: bytes, contacts: tuple[Contact, ...]) -> None:
        if key not in self._fetching_parts:
            self._fetching_parts.add(key)
            self._emit(FetchPart(key, digest, tuple(contact for contact in contacts if contact.peer != self.me.peer)))

    def _apply(self, commit: Commit) -> None:
        included = self._included(commit)
        if any(included):
            self.trained, self._norm = self._left_after(commit), 0.0
        self._applying = commit
        self._emit(Apply(commit, included, self.trained))

    def _left_after(self, commit: Commit) -> int:
        """Leased samples behind pending work once this entry, which contains this peer's work, is applied."""
        return 0

    def _ask(self, locate: Locate) -> None:
        if self.welcomed and not self._located:
            self._located = True
            self._say(locate)

    def _run_evaluation(self) -> None:
        if self._evaluate is None or not self._trainer or self.training is not None or self._applying is not None:
            return
        idle = self.published is not None or self._finish is not None
        if self._evaluate < self.version or (idle and self._evaluate == self.version):
            wanted, self._evaluate = self._evaluate, None
            if wanted == self.version:
                self._emit(EvaluateState(wanted))
            else:
                self._say(Evaluated(wanted, 0.0, 0))

    def _run_finish(self, now: float) -> None:
        if self._finish is None or self._exporting or self._said_goodbye or not self._settled():
            return
        if self.training is not None:
            self._wrap_up()
        elif self.version != NO_VERSION and self._trainer and not self.me.helper:
            self._exporting = True
            self.waiting_for = "the trainer to write the model"
            self._emit(Tell(f"writing the model of version {self.version}"))
            self._emit(Export(self.version))
        elif self._finish.version == NO_VERSION or self.me.helper:
            self.copy_is_needed = self.copy_is_needed and not self._finish.run_is_over
            self._said_goodbye = True
            self._say(Goodbye("the run is over"))

    def _leave(self, asked: LeaveAsked, now: float) -> None:
        if self._leave_at is not None and (asked.patience_s or not self._leaving.patience_s):
            self._exit(EXIT_DONE, "left at once")
            return
        first, self._leaving = self._leave_at is None, asked
        self._leave_at = now + asked.patience_s + LEAVE_S
        if not self.welcomed:
            self._exit(EXIT_DONE, "left the run")
            return
        self._emit(Tell(f"leaving: {asked.reason}; this round first" if asked.patience_s else "leaving: handing back the lease"))
        self._wrap_up()
        if first or self._goodbye_at is not None:
            self._goodbye_at = now + (asked.patience_s or FINISH_ROUND_S)

    @property
    def left_for_now(self) -> bool:
        """Whether this peer left because it wants to rest, and for no other reason: the run goes on, and nobody sent it off."""
        return self._exited and self._leaving.for_now and self._finish is None and not self._sent_off

    def _has_work_to_finish(self) -> bool:
        """Whether whoever leaves waits for the round in hand."""
        in_hand = self.training is not None or self.published is not None
        return self.reduction is not None or (in_hand and self._leaving.patience_s > 0)

    def _exit(self, code: int, reason: str, fix: str = "") -> None:
        if not self._exited:
            self._exited = True
            self._emit(Exit(code, reason, fix))

    def _say(self, body: FromPeer) -> None:
        if self.welcomed:
            self._emit(Say(self.session, self.term, body))

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)
