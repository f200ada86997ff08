"""What the journal remembers. The coordinator's durable state is a fold over these records, live and after a restart alike.

Rule: a record holds facts, never conclusions that a later version of the code might draw differently. Records are append-only and
their fields never change meaning; a new fact is a new field with a default.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.entries import whole
from shoal.protocol.messages import Contribution, Decision, Inclusion, Layout, PeerId, Span


@dataclass(frozen=True)
class RunCreated:
    """The first record: which run this is. `spec` is canonical JSON."""

    run: str
    spec: bytes


@dataclass(frozen=True)
class TermRaised:
    """A coordinator process took the journal over."""

    term: int


@dataclass(frozen=True)
class SessionOpened:
    """A peer became a member. `address` is "" for a peer that accepts no inbound connections."""

    session: int
    peer: PeerId
    instance: str
    address: str
    name: str = ""
    device: str = ""
    software: str = ""
    helper: bool = False


@dataclass(frozen=True)
class SessionResumed:
    """A member came back within grace, perhaps as a new daemon process at a new address."""

    session: int
    instance: str
    address: str


@dataclass(frozen=True)
class AddressLearnt:
    """The coordinator reached a member at another address than the one that it advertises: others are told this one."""

    session: int
    address: str


@dataclass(frozen=True)
class SessionEnded:
    """A membership ended for good; its uncommitted lease is free again, with the outcome of a round in flight if it is in one."""

    session: int
    reason: str


@dataclass(frozen=True)
class OriginBuilt:
    """Version 0 exists: layout and fingerprint of the first peer's build. Until a round opens the next one replaces it."""

    session: int
    layout: Layout
    root: bytes
    data: bytes = b""
    """Fingerprint of the training data, compared at every join."""


@dataclass(frozen=True)
class Grant:
    """Samples newly leased to one member."""

    session: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class RoundOpened:
    """A round began, with its members (sessions) and the leases granted for it."""

    round: int
    group: int
    fragment: int
    base: int
    members: tuple[int, ...]
    grants: tuple[Grant, ...]
    expected_tokens: int = 0
    """What its members were to train on."""
    expected_gather_s: float = 0.0
    """What the slowest of them needed for that, by the speed it had reported; 0: no speed was known."""


@dataclass(frozen=True)
class Spent:
    """What a contributor's work used up: the first `samples` samples of its lease."""

    session: int
    samples: int
    weight: int


@dataclass(frozen=True)
class Showing:
    """What one member did in a round, as `RoundPeerView` shows it."""

    peer: PeerId
    outcome: str
    weight: int = 0
    ready_s: float = 0.0
    limit_s: float = 0.0
    norm: float = 0.0
    """The peer's own claim."""
    name: str = ""
    """Of early journals; the id says who it is."""


@dataclass(frozen=True)
class Limits:
    """Deadlines of one round: computed from earlier ones, bounded by the run spec, in seconds; 0: none was computed."""

    gather_s: float = 0.0
    part_s: float = 0.0
    reduce_s: float = 0.0
    delivery_s: float = 0.0


@dataclass(frozen=True)
class RoundCommitted:
    """Log entry: the only thing that moves shared state."""

    version: int
    round: int
    group: int
    fragment: int
    base: int
    parts: tuple[Decision, ...]
    """In brief: `decisions` are the whole."""
    contributions: tuple[Contribution, ...]
    """Everybody in at least one part."""
    spent: tuple[Spent, ...]
    committed_tokens: int
    outer_lr: float
    outer_momentum: float
    gather_s: float = 0.0
    reduce_s: float = 0.0
    commit_s: float = 0.0
    expected_bytes: int = 0
    """What its members had to send together by its plan."""
    showings: tuple[Showing, ...] = ()
    limits: Limits = Limits()
    inclusions: tuple[Inclusion, ...] = ()
    """Who is in which parts; empty in early journals, whose parts say it themselves."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The parts, each with its contributors."""
        return whole(self.parts, self.inclusions)


@dataclass(frozen=True)
class RoundAbandoned:
    """A round had no effect."""

    round: int
    reason: str
    showings: tuple[Showing, ...] = ()
    limits: Limits = Limits()


@dataclass(frozen=True)
class FingerprintAgreed:
    """What a version's bytes are. `flagged`: there was no strict majority and the longest-standing member's value was declared."""

    version: int
    root: bytes
    votes: int
    voters: int
    flagged: bool = False


@dataclass(frozen=True)
class PeerEvaluated:
    """One peer's claim of what a version costs on the held-out samples."""

    version: int
    peer: PeerId
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True)
class PauseSet:
    """An operator paused or resumed the run."""

    paused: bool
    by: PeerId


@dataclass(frozen=True)
class Report:
    """What one member says that a version cost it."""

    peer: PeerId
    sent_bytes: int
    received_bytes: int
    train_s: float
    wait_s: float
    norm: float = 0.0
    """Of its own work in the version; 0: it has none in it."""
    cosine: float = 0.0
    """Of that work to the version's update."""


@dataclass(frozen=True)
class WorkReported:
    """What members said of a version's cost, journaled when all of them had, or the next round opened. Claims, each once."""

    version: int
    reports: tuple[Report, ...]


@dataclass(frozen=True)
class PeerKicked:
    """An operator ended a membership; the identity may return."""

    peer: PeerId
    by: PeerId
    reason: str


@dataclass(frozen=True)
class PeerBanned:
    """An operator banned an identity: its membership, if it had one, ended, and it never returns."""

    peer: PeerId
    by: PeerId
    reason: str


@dataclass(frozen=True)
class PeerUnbanned:
    """An operator lets a banned identity return."""

    peer: PeerId
    by: PeerId


@dataclass(frozen=True)
class DrainAsked:
    """An operator asked a member to leave when its round is over."""

    session: int
    by: PeerId


@dataclass(frozen=True)
class SettingChanged:
    """An operator changed a setting of the run spec from now on. `value` as TOML writes it."""

    key: str
    value: str
    by: PeerId


@dataclass(frozen=True)
class RunStopping:
    """The run ends with the next commit (operator, or `total_tokens` reached)."""

    by: PeerId
    reason: str


@dataclass(frozen=True)
class RunEnded:
    """The run is over at this version."""

    version: int
    reason: str


Record = (
    RunCreated
    | TermRaised
    | SessionOpened
    | SessionResumed
    | AddressLearnt
    | SessionEnded
    | OriginBuilt
    | RoundOpened
    | RoundCommitted
    | RoundAbandoned
    | FingerprintAgreed
    | PeerEvaluated
    | PauseSet
    | WorkReported
    | PeerKicked
    | PeerBanned
    | PeerUnbanned
    | DrainAsked
    | SettingChanged
    | RunStopping
    | RunEnded
)
