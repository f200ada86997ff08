"""The coordinator's durable state: a fold over the journal's records, the same live and after a restart.

Rule: nothing here changes except through `Ledger.apply(record)`, and the same records in the same order give the same ledger. What
dies with the process (streams, heartbeats, the round's live bookkeeping) lives in `core` and `rounds`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from shoal.coordinator.claims import added
from shoal.coordinator.records import (
    AddressLearnt,
    DrainAsked,
    FingerprintAgreed,
    Grant,
    Limits,
    OriginBuilt,
    PauseSet,
    PeerBanned,
    PeerEvaluated,
    PeerKicked,
    PeerUnbanned,
    Record,
    RoundAbandoned,
    RoundCommitted,
    RoundOpened,
    RunCreated,
    RunEnded,
    RunStopping,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    SettingChanged,
    Showing,
    TermRaised,
    WorkReported,
)
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import NO_VERSION, PeerId, Span

KEPT_FINGERPRINTS = 64
KEPT_ROUNDS = 1000
KEPT_SHOWINGS = 32
"""Rounds of which it is kept what each member did."""


def total(spans: Iterable[Span]) -> int:
    """Number of samples in `spans`."""
    return sum(len(span) for span in spans)


def split(spans: Sequence[Span], count: int) -> tuple[list[Span], list[Span]]:
    """The first `count` samples of `spans`, and the rest; order kept."""
    first: list[Span] = []
    rest: list[Span] = []
    for span in spans:
        taken = min(count, len(span))
        count -= taken
        if taken:
            first.append(Span(span.start, span.start + taken))
        if taken < len(span):
            rest.append(Span(span.start + taken, span.stop))
    return first, rest


def merge(spans: Iterable[Span]) -> list[Span]:
    """`spans` in order of position, touching ones joined. Overlap would mean that a sample is leased twice, and is an error."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda s: s.start):
        if merged and span.start < merged[-1].stop:
            raise LocalProtocolError(f"samples {span.start}..{merged[-1].stop} are leased twice")
        if merged and span.start == merged[-1].stop:
            merged[-1] = Span(merged[-1].start, span.stop)
        else:
            merged.append(span)
    return merged


@dataclass
class Member:
    """One membership: what of a session survives a restart of the coordinator."""

    session: int
    peer: PeerId
    instance: str
    address: str
    name: str
    device: str
    software: str
    helper: bool = False
    """It trains nothing: it has no lease, and no round waits for it."""
    lease: list[Span] = field(default_factory=list)
    """Granted and not committed, oldest first."""
    committed_tokens: int = 0


@dataclass
class Contributions:
    """What one identity did for the run, over all its memberships."""

    name: str = ""
    """The display name it last chose."""
    tokens: int = 0
    rounds: int = 0
    """Committed rounds that its work is in."""
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class RoundSummary:
    """One line of `admin rounds`."""

    round: int
    who: tuple[PeerId, ...]
    """Its members."""
    included: tuple[PeerId, ...] = ()
    """Those whose work is in what it made."""
    state: str = "open"
    version: int = NO_VERSION
    weight: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    train_s: float = 0.0
    wait_s: float = 0.0
    gather_s: float = 0.0
    reduce_s: float = 0.0
    commit_s: float = 0.0
    reason: str = ""
    expected_weight: int = 0
    expected_gather_s: float = 0.0
    expected_bytes: int = 0
    limits: Limits = field(default_factory=Limits)
    showings: tuple[Showing, ...] = ()
    """Of the newest rounds only."""
    claims: dict[PeerId, tuple[float, float]] = field(default_factory=dict)
    """Norm and cosine that peers reported after they had applied the entry."""


class Ledger:
    """Everything that the journal says, folded."""

    def __init__(self) -> None:
        self.run = ""
        self.spec = b""
        self.term = 0
        self.next_session = 1
        self.next_round = 0
        self.version = NO_VERSION
        self.committed_tokens = 0
        self.origin: OriginBuilt | None = None
        self.bound = False
        """A round has opened: version 0 is what it is."""
        self.members: dict[int, Member] = {}
        self._member_of: dict[PeerId, Member] = {}
        self.draining: set[int] = set()
        """Members that an operator asked to leave when their round is over."""
        self.limbo: dict[int, Member] = {}
        """Members that ended while a round in flight may still commit their work."""
        self.free: list[Span] = []
        self.cursor = 0
        """First position of the sample stream that was never leased."""
        self.undecided: RoundOpened | None = None
        self.entries: OrderedDict[int, RoundCommitted] = OrderedDict()
        self.keep_entries = 8
        self.fingerprints: OrderedDict[int, FingerprintAgreed] = OrderedDict()
        self.evaluation: PeerEvaluated | None = None
        self.history: deque[RoundSummary] = deque(maxlen=KEPT_ROUNDS)
        self.paused = False
        self.contributions: dict[PeerId, Contributions] = {}
        """Everybody who was ever a member, in order of their first joining."""
        self.banned: set[PeerId] = set()
        self.settings: dict[str, str] = {}
        """What operators changed of the run spec, as TOML writes it."""
        self.stopping: RunStopping | None = None
        self.ended: RunEnded | None = None

    def apply(self, record: Record) -> None:
        """Take one record in. Raises LocalProtocolError when it contradicts the ones before."""
        match record:
            case RunCreated(run, spec):
                self.run, self.spec = run, spec
            case TermRaised(term):
                self._expect(term > self.term, record)
                self.term = term
            case SessionOpened():
                self._expect(record.session >= self.next_session, record)
                self.next_session = record.session + 1
                self.members[record.session] = self._member_of[record.peer] = Member(
                    record.session,
                    record.peer,
                    record.instance,
                    record.address,
                    record.name,
                    record.device,
                    record.software,
                    record.helper,
                )
                self.contributions.setdefault(record.peer, Contributions()).name = record.name
            case SessionResumed(session, instance, address):
                self._expect(session in self.members, record)
                self.members[session].instance = instance
                self.members[session].address = address
            case AddressLearnt(session, address):
                self._expect(session in self.members, record)
                self.members[session].address = address
            case SessionEnded(session, _):
                self._expect(session in self.members, record)
                member = self.members.pop(session)
                self.draining.discard(session)
                if self._member_of[member.peer] is member:
                    del self._member_of[member.peer]
                if self.undecided is not None and session in self.undecided.members:
                    self.limbo[session] = member
                else:
                    self.free = merge([*self.free, *member.lease])
            case OriginBuilt():
                self._expect(not self.bound, record)
                self.origin = record
                self.version = 0
                self.fingerprints[0] = FingerprintAgreed(0, record.root, 1, 1)
            case RoundOpened():
                self._expect(record.round >= self.next_round and self.undecided is None and record.base == self.version, record)
                self._expect(set(record.members) <= self.members.keys(), record)
                self.next_round = record.round + 1
                self.undecided = record
                self.bound = True
                for grant in record.grants:
                    self._expect(grant.session in self.members and all(map(self._is_free, grant.spans)), record)
                    self._take(grant)
                summary = RoundSummary(record.round, tuple(self.members[session].peer for session in record.members))
                summary.expected_weight, summary.expected_gather_s = record.expected_tokens, record.expected_gather_s
                if len(self.history) >= KEPT_SHOWINGS:
                    self.history[-KEPT_SHOWINGS].showings, self.history[-KEPT_SHOWINGS].claims = (), {}
                self.history.append(summary)
            case RoundCommitted():
                self._commit(record)
            case RoundAbandoned(round_id, reason):
                self._expect(self.undecided is not None and self.undecided.round == round_id, record)
                summary = self.history[-1]
                summary.state, summary.reason = "abandoned", reason
                summary.showings, summary.limits = record.showings, record.limits
                self._settle()
            case FingerprintAgreed():
                self.fingerprints[record.version] = record
                while len(self.fingerprints) > KEPT_FINGERPRINTS:
                    self.fingerprints.popitem(last=False)
            case PeerEvaluated():
                self.evaluation = record
            case PauseSet(paused, _):
                self.paused = paused
            case WorkReported():
                self._report(record)
            case PeerKicked():
                pass  # what follows from it is the SessionEnded beside it
            case PeerBanned(peer, _, _):
                self.banned.add(peer)
            case PeerUnbanned(peer, _):
                self.banned.discard(peer)
            case DrainAsked(session, _):
                self._expect(session in self.members, record)
                self.draining.add(session)
            case SettingChanged(key, value, _):
                self.settings[key] = value
            case RunStopping():
                self.stopping = record
            case RunEnded():
                self.ended = record
            case _:
                assert_never(record)

    def grant(self, samples: int) -> list[Span]:
        """The next `samples` samples that nobody holds, returned ones first. A question: changes nothing."""
        first, _ = split(self.free, samples)
        missing = samples - total(first)
        if missing:
            first.append(Span(self.cursor, self.cursor + missing))
        return merge(first)

    def grants(self, wants: Sequence[tuple[int, int]]) -> list[Grant]:
        """Grants for (session, samples) pairs, in this order, no sample twice. A question: changes nothing."""
        taken = 0
        pool = self.grant(sum(samples for _, samples in wants))
        grants = []
        for session, samples in wants:
            if samples:
                _, rest = split(pool, taken)
                spans, _ = split(rest, samples)
                grants.append(Grant(session, tuple(spans)))
                taken += samples
        return grants

    def member_of(self, peer: PeerId) -> Member | None:
        """The current membership of `peer`."""
        return self._member_of.get(peer)

    def _is_free(self, span: Span) -> bool:
        """Nobody holds any of these samples, and none before them is left out."""
        returned = sum(max(0, min(free.stop, span.stop) - max(free.start, span.start)) for free in self.free)
        unused = max(0, span.stop - max(self.cursor, span.start))
        return span.start <= self.cursor and returned + unused == len(span)

    def _take(self, grant: Grant) -> None:
        self.members[grant.session].lease.extend(grant.spans)
        for span in grant.spans:
            inside = [free for free in self.free if free.start < span.stop and span.start < free.stop]
            for free in inside:
                self.free.remove(free)
                if free.start < span.start:
                    self.free.append(Span(free.start, span.start))
                if span.stop < free.stop:
                    self.free.append(Span(span.stop, free.stop))
            self.cursor = max(self.cursor, span.stop)
        self.free = merge(self.free)

    def _commit(self, record: RoundCommitted) -> None:
        self._expect(
            self.undecided is not None
            and self.undecided.round == record.round
            and record.base == self.version
            and record.version == self.version + 1,
            record,
        )
        for spent in record.spent:
            member = self.members.get(spent.session) or self.limbo.get(spent.session)
            if member is None:
                raise self._contradiction(record)
            _, member.lease = split(member.lease, spent.samples)
            member.committed_tokens += spent.weight
        self.version = record.version
        self.committed_tokens = record.committed_tokens
        self.entries[record.version] = record
        while len(self.entries) > self.keep_entries:
            self.entries.popitem(last=False)
        summary = self.history[-1]
        summary.state, summary.version = "committed", record.version
        summary.included = tuple(contribution.peer for contribution in record.contributions)
        summary.weight = sum(contribution.weight for contribution in record.contributions)
        for contribution in record.contributions:
            whole = self.contributions.setdefault(contribution.peer, Contributions())
            whole.tokens += contribution.weight
            whole.rounds += 1
        summary.gather_s, summary.reduce_s, summary.commit_s = record.gather_s, record.reduce_s, record.commit_s
        summary.expected_bytes = record.expected_bytes
        summary.showings, summary.limits = record.showings, record.limits
        self._settle()

    def _report(self, record: WorkReported) -> None:
        for report in record.reports:
            whole = self.contributions.setdefault(report.peer, Contributions())
            whole.sent_bytes = added(whole.sent_bytes, report.sent_bytes)
            whole.received_bytes = added(whole.received_bytes, report.received_bytes)
        for summary in reversed(self.history):
            if summary.version == record.version:
                summary.sent_bytes = added(summary.sent_bytes, sum(report.sent_bytes for report in record.reports))
                summary.received_bytes = added(summary.received_bytes, sum(report.received_bytes for report in record.reports))
                summary.train_s += sum(report.train_s for report in record.reports)
                summary.wait_s += sum(report.wait_s for report in record.reports)
                summary.claims |= {report.peer: (report.norm, report.cosine) for report in record.reports if report.norm > 0.0}
                return

    def _settle(self) -> None:
        """The round in flight has its outcome: what it held back of ended members is free again."""
        for member in self.limbo.values():
            self.free = merge([*self.free, *member.lease])
        self.limbo.clear()
        self.undecided = None

    def _expect(self, holds: bool, record: Record) -> None:
        if not holds:
            raise self._contradiction(record)

    def _contradiction(self, record: Record) -> LocalProtocolError:
        return LocalProtocolError(f"the journal contradicts itself at {record}")
