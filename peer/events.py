"""What can happen to a peer (events), and what its round engine can want done (effects).

The engine is `on(event, now) -> list[Effect]`; the daemon feeds it events and performs the effects in order. Bulk bytes never pass
through here: the engine speaks of a part by its key, and the daemon keeps the bytes under that key until told to drop them.
Neighbours: `engine` decides, `daemon` performs.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.messages import Commit, Contact, Envelope, FromPeer, Layout, PartKey, PeerId, Plan, Span, StopRule

# === events =====================================================================================================================

# --- the session stream ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Online:
    """A stream to the coordinator is open; nothing was said on it yet."""

    address: str | None = None
    """Where others can dial this peer now; None: where it said before."""


@dataclass(frozen=True)
class Heard:
    """The coordinator said something."""

    envelope: Envelope


@dataclass(frozen=True)
class Offline:
    """The stream broke. The daemon dials again by itself, with growing pauses."""

    reason: str


@dataclass(frozen=True)
class TimePassed:
    """The time that `Engine.wake_at` asked for has come."""


@dataclass(frozen=True)
class LeaveAsked:
    """The volunteer wants to leave (Ctrl-C, SIGTERM), or the machine's time to rest has come.

    With patience the work in hand is published as it is and its round finished first, for so long at most; without it only a round
    that is being reduced is, and for a moment.
    """

    reason: str = "the volunteer left"
    patience_s: float = 0.0
    for_now: bool = False
    """This peer means to come back by itself."""


# --- the trainer ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainerAttached:
    """A trainer process is attached and has built its model; `data` is the fingerprint of the training data that it reads."""

    layout: Layout
    data: bytes = b""


@dataclass(frozen=True)
class TrainerLost:
    """The trainer process died. The daemon starts another by itself."""

    reason: str


@dataclass(frozen=True)
class Published:
    """The trainer stopped training and its pseudo-gradient, base minus local, is in the vault.

    `trained` counts the leased samples behind it that are not committed yet, pending ones included. `note` says what is wrong with
    it ("w: 1/8 non-finite"), in which case the trainer has dropped its local progress and `trained` is 0.
    """

    round: int
    trained: int
    weight: int
    steps: int
    loss: float
    train_s: float
    note: str = ""
    norm: float = 0.0
    """Euclidean norm of the pseudo-gradient."""


@dataclass(frozen=True)
class Progressed:
    """The trainer is this far in its round: inner steps done, last loss, speed, samples behind what it would publish now."""

    steps: int
    loss: float
    tokens_per_s: float
    samples: int = 0


@dataclass(frozen=True)
class EvaluationDone:
    """The trainer evaluated the shared state at `version`. `tokens` 0: that version was gone before it could be read."""

    version: int
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True)
class Exported:
    """The model is on disk."""

    where: str


# --- shared state ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OriginReady:
    """The trainer wrote version 0 into the vault."""

    root: bytes


@dataclass(frozen=True)
class StateFetched:
    """A whole shared state arrived from a donor, matches the root that the donor gave, and is in the vault."""

    version: int
    root: bytes
    donor: PeerId


@dataclass(frozen=True)
class StateFetchFailed:
    """No donor of the list served a whole state; what arrived is kept for the next try."""

    reason: str
    failed: tuple[PeerId, ...]


@dataclass(frozen=True)
class Hashed:
    """Fingerprint of the shared state at `version`."""

    version: int
    root: bytes


@dataclass(frozen=True)
class EntryApplied:
    """The vault is at `version`; what the entry's round cost in bytes at this peer's sockets.

    `norm` and `cosine` compare this peer's work in the entry with the update, over the parts that contain it; both are 0 where
    none does.
    """

    version: int
    sent_bytes: int = 0
    received_bytes: int = 0
    norm: float = 0.0
    cosine: float = 0.0


# --- bulk bytes -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContributionArrived:
    """As reducer: an encoded contribution to a part is here, decodes and is finite (own ones too)."""

    key: PartKey
    peer: PeerId


@dataclass(frozen=True)
class ContributionRefused:
    """As reducer: a contribution does not decode or is not finite; its bytes are dropped."""

    key: PartKey
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class PartReduced:
    """As reducer: the part that `ClosePart` asked for is divided and encoded; its bytes are kept like an arrived result."""

    key: PartKey
    digest: bytes


@dataclass(frozen=True)
class ResultArrived:
    """As collector: the final bytes of a part are here, from its reducer or fetched, with this digest."""

    key: PartKey
    digest: bytes


@dataclass(frozen=True)
class PartFetchFailed:
    """No contact had a part with the wanted digest."""

    key: PartKey
    reason: str


@dataclass(frozen=True)
class StreamFailed:
    """A bulk stream to or from a peer broke or made no progress within its deadline."""

    round: int
    peer: PeerId
    reason: str
    dialled: bool = True
    """False: the peer opened it, which says nothing about the way to that peer."""


@dataclass(frozen=True)
class LinkMeasured:
    """A bulk transfer or a probe ended, and this is what the link was seen to carry, in bytes per second; 0: too little to tell."""

    up_bytes_s: float
    down_bytes_s: float


Event = (
    Online
    | Heard
    | Offline
    | TimePassed
    | LeaveAsked
    | TrainerAttached
    | TrainerLost
    | Published
    | Progressed
    | EvaluationDone
    | Exported
    | OriginReady
    | StateFetched
    | StateFetchFailed
    | Hashed
    | EntryApplied
    | ContributionArrived
    | ContributionRefused
    | PartReduced
    | ResultArrived
    | PartFetchFailed
    | StreamFailed
    | LinkMeasured
)

# === effects ====================================================================================================================


@dataclass(frozen=True)
class MeasureLink:
    """Exchange a little with this peer, to see what the link carries. Answered by LinkMeasured, unless it fails."""

    to: Contact


@dataclass(frozen=True)
class Say:
    """Send this to the coordinator on the stream that is open now, under these ids; without a stream it is dropped."""

    session: int
    term: int
    body: FromPeer


@dataclass(frozen=True)
class HangUp:
    """Close the stream; the daemon dials again unless `Exit` follows."""


@dataclass(frozen=True)
class Tell:
    """Say a sentence to the volunteer."""

    text: str
    level: str = "info"


@dataclass(frozen=True)
class Exit:
    """End the daemon, with this exit code and last sentence; `fix` says what to do about it, where there is something."""

    code: int
    reason: str
    fix: str = ""


# --- the trainer ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartTrainer:
    """The run spec is known: start the trainer (or wait for one to attach). Answered by TrainerAttached."""

    spec: bytes


@dataclass(frozen=True)
class Train:
    """Load local := shared - pending, then train. Answered by Published.

    `lease` lists all samples leased and not committed; the first `trained` of them are behind pending work already. The trainer
    trains the following samples: `quota` of them (STEPS), those whose inner steps fit into `seconds` (TIME), or until it hears
    WrapUp (SAMPLES); never more than the lease holds.
    """

    round: int
    base: int
    lease: tuple[Span, ...]
    trained: int
    quota: int
    committed_tokens: int
    expected_tokens: int
    stop: StopRule = StopRule.STEPS
    seconds: float = 0.0

    @property
    def limit(self) -> int:
        """Samples to train at most."""
        left = sum(map(len, self.lease)) - self.trained
        return min(self.quota, left) if self.stop is StopRule.STEPS else left


@dataclass(frozen=True)
class Relabel:
    """The training under way now belongs to this round; everything else about it stays."""

    round: int
    committed_tokens: int
    expected_tokens: int


@dataclass(frozen=True)
class WrapUp:
    """Stop training after the step in hand and publish. Answered by Published."""


@dataclass(frozen=True)
class DropPending:
    """Pending work no longer counts (new membership): pending := 0, before anything that follows."""


@dataclass(frozen=True)
class EvaluateState:
    """Evaluate the shared state at `version`, while the trainer has nothing else to do. Answered by EvaluationDone."""

    version: int


@dataclass(frozen=True)
class Export:
    """Write the shared state at `version` as a model, print a sample. Answered by Exported."""

    version: int


# --- shared state ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildState:
    """Write version 0, as the run spec says, into the vault. Answered by OriginReady."""


@dataclass(frozen=True)
class FetchState:
    """Fetch the shared state, at `version` or newer, from the first that serves it. A contact without an address dials this peer.
    Answered by StateFetched or -Failed."""

    version: int
    contacts: tuple[Contact, ...]


@dataclass(frozen=True)
class HashState:
    """Compute the fingerprint of the shared state at `version`, off the critical path. Answered by Hashed."""

    version: int


@dataclass(frozen=True)
class Apply:
    """Apply this entry to the vault, resumably. Answered by EntryApplied.

    `included` says for each part, in the order of `commit.parts`, whether this peer's published work is in it: there pending
    becomes 0, elsewhere it stays. `trained` is the number of leased samples behind pending work afterwards, kept with the version.
    """

    commit: Commit
    included: tuple[bool, ...]
    trained: int


@dataclass(frozen=True)
class Serve:
    """Whether this peer may hand out its shared state and log entries: not while its copy differs from what was agreed."""

    allowed: bool


@dataclass(frozen=True)
class Bar:
    """Accept no calls from these identities, and no others, end those that are open, and call them no more: they are banned."""

    peers: frozenset[PeerId]


@dataclass(frozen=True)
class KeepSession:
    """Remember this session next to the vault, so that a restarted daemon can resume it."""

    session: int


# --- bulk bytes -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BeginReduce:
    """A plan came, or other attempts at some of its parts (then with those shares only): bulk bytes of this round (run, term,
    group, round as in the plan) may be sent and received from now on. Earlier attempts at these parts are over."""

    plan: Plan


@dataclass(frozen=True)
class Collect:
    """Open the bulk stream of this round to a reducer, unless it is open, to contribute and to receive its results."""

    round: int
    reducer: Contact


@dataclass(frozen=True)
class SendPart:
    """Encode this part of the published pseudo-gradient and send it to the reducer, which may be this peer itself."""

    key: PartKey
    reducer: PeerId


@dataclass(frozen=True)
class Add:
    """As reducer: decode this peer's contribution, add it with its weight, drop the encoded bytes. Effects of one part are
    performed in the order in which they come."""

    key: PartKey
    peer: PeerId
    weight: int


@dataclass(frozen=True)
class Discard:
    """As reducer: drop an arrived contribution that cannot count."""

    key: PartKey
    peer: PeerId


@dataclass(frozen=True)
class DropPart:
    """As reducer: this attempt is over; forget its sum, and the contributions that wait for it."""

    key: PartKey


@dataclass(frozen=True)
class ClosePart:
    """As reducer: divide the sum by `divisor`, encode it with the return codec, keep the bytes. Answered by PartReduced."""

    key: PartKey
    divisor: float


@dataclass(frozen=True)
class ReturnPart:
    """As reducer: send the kept result back on the round's streams to these members; a stream that opens later gets it then."""

    key: PartKey
    to: tuple[PeerId, ...]


@dataclass(frozen=True)
class FetchPart:
    """Find a part's final bytes by digest, here or at the first contact that has them; one without an address dials this peer.
    Answered by ResultArrived or -Failed."""

    key: PartKey
    digest: bytes
    contacts: tuple[Contact, ...]


@dataclass(frozen=True)
class PushTo:
    """Dial this peer, which was told to expect it, and hand it what it asks for. What fails is seen over there."""

    to: Contact


@dataclass(frozen=True)
class DropRound:
    """Close the round's streams and forget everything kept for it, except what a log entry needs."""

    round: int


Effect = (
    Say
    | HangUp
    | Tell
    | Exit
    | StartTrainer
    | Train
    | Relabel
    | WrapUp
    | DropPending
    | EvaluateState
    | Export
    | BuildState
    | FetchState
    | HashState
    | Apply
    | Serve
    | Bar
    | KeepSession
    | BeginReduce
    | Collect
    | SendPart
    | Add
    | Discard
    | DropPart
    | ClosePart
    | ReturnPart
    | FetchPart
    | PushTo
    | MeasureLink
    | DropRound
)
