"""The vocabulary: everything that coordinator and peers say to each other, as frozen values.

Rule: a message is valid by construction, and each docstring is the sentence that it speaks. Messages hold plain data only (ints,
strings, bytes, tuples, other messages), so that the coordinator's core, the round engine and the simulation share them without a
socket in sight. `protocol.wire` turns them into protobuf and back; `protocol.frames` carries the bulk bytes that they talk about.

Ids. A *session* is one membership of one peer, a *term* one life of the coordinator, a *round* one attempt to make a log entry: all
three are journaled counters that are never reused. A *part* is the unit of checking, adding, inclusion and digest; its *attempt*
counts how often it was planned. Whatever does not match the receiver's own ids is dropped or refused, never guessed.

Units: `_s` seconds (durations of one machine only), `tokens` and `samples` counts, `digest` and `root` SHA-256 (32 bytes).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shoal.protocol.errors import LocalProtocolError

PeerId = str
NO_VERSION = -1
"""The version of a peer that holds no shared state yet."""
NO_SESSION = 0
"""The session of a peer that has none; real ones count from 1."""

PROTOCOL_MAJOR, PROTOCOL_MINOR = 1, 2
"""Peers and coordinator of different majors refuse each other; a higher minor only adds. Minor 1: Leave, Barred, Push, the stop
rules TIME and SAMPLES. Minor 2: Reachability, Measure, Fetch."""

DIGEST_BYTES = 32


FASTEST_BYTES_S = 1e12
"""No link is faster."""


class Section(enum.Enum):
    """Which half of a log entry a part belongs to."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"


@dataclass(frozen=True)
class PartKey:
    """Names one part of one round, in one attempt."""

    round: int
    section: Section
    part: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if self.round < 0 or self.part < 0 or self.attempt < 0:
            raise LocalProtocolError(f"negative id in {self}")


@dataclass(frozen=True)
class Contact:
    """Where a peer can be dialled. `address` is "host:port", or "" for a peer that accepts no inbound connections."""

    peer: PeerId
    address: str


@dataclass(frozen=True)
class Span:
    """Half-open range of positions in the run's endless, shuffled stream of samples (p is sample p mod size of epoch p // size)."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise LocalProtocolError(f"empty or negative span {self.start}..{self.stop}")

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class FragmentShape:
    """How many parts one fragment has in each section of an entry."""

    parameters: int
    buffers: int = 0


@dataclass(frozen=True)
class Layout:
    """What the coordinator knows of the model: sizes and a hash, compared at every join."""

    hash: bytes
    values: int
    """Trainable values in all fragments."""
    fragments: tuple[FragmentShape, ...]


# --- peer to coordinator --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """First message of a stream: "I am this daemon; this is what I hold; may I come in, or come back?" """

    run: str
    major: int
    minor: int
    instance: str
    """Random id of the daemon process. The same instance replaces its own session."""
    session: int
    """The session to resume, or NO_SESSION."""
    version: int
    """Version of the shared state in the peer's vault, or NO_VERSION."""
    root: bytes
    """Fingerprint of that state; empty when the peer has none or has not computed it."""
    layout: Layout | None
    """None until the peer knows the run spec and has built its model."""
    address: str
    """Where other peers can dial this one; empty: accepts no inbound connections."""
    name: str = ""
    device: str = ""
    software: str = ""
    helper: bool = False
    """This peer trains nothing: it reduces, and hands over state and log."""


@dataclass(frozen=True)
class Heartbeat:
    """ "I live, and this is how far my trainer is." Sent by the daemon, whatever the trainer does."""

    phase: str = ""
    """A word a person would say: "training", "reducing", "fetching state", ..."""
    steps: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    up_bytes_s: float = 0.0
    """What this peer's link was seen to carry, out and in; 0: nothing that tells was carried yet."""
    down_bytes_s: float = 0.0
    round: int = -1
    """The round that the trainer trains for, or -1."""
    samples: int = 0
    """Leased samples behind what it would publish for that round now."""

    def __post_init__(self) -> None:
        if not (0 <= self.up_bytes_s <= FASTEST_BYTES_S and 0 <= self.down_bytes_s <= FASTEST_BYTES_S):
            raise LocalProtocolError(f"no link carries {self.up_bytes_s} and {self.down_bytes_s} bytes per second")


@dataclass(frozen=True)
class StateReady:
    """ "I hold version `version` of the shared state and can train from it." Ends joining, catching up and resynchronising."""

    version: int
    root: bytes
    layout: Layout
    data: bytes = b""
    """Fingerprint of the training data as this peer reads it; empty where its trainer has data of its own."""


@dataclass(frozen=True)
class Locate:
    """ "I hold `version`; who has what I need to reach the newest one?" Answered with CatchUp, Donors or BuildOrigin."""

    version: int
    failed: tuple[PeerId, ...] = ()
    """Donors that did not serve what was asked, with evidence in the peer's log; others are named first."""


@dataclass(frozen=True)
class Ready:
    """ "My pseudo-gradient for this round is published." """

    round: int
    weight: int
    """Tokens trained since this peer's work was last committed, at most those leased. 0: nothing to contribute."""
    samples: int
    """Leased samples behind that weight, from the front of the peer's lease."""
    steps: int = 0
    loss: float = 0.0
    train_s: float = 0.0
    note: str = ""
    """Why the weight is 0, when it is ("w: 1/8 non-finite")."""
    norm: float = 0.0
    """Euclidean norm of the pseudo-gradient; 0: not known, or nothing there. This peer's claim."""


@dataclass(frozen=True)
class PartClosed:
    """A reducer's report: "this part is reduced, from these contributors, divided by this weight; its bytes have this digest." """

    key: PartKey
    contributors: tuple[PeerId, ...]
    divisor: float
    digest: bytes
    refused: tuple[PeerId, ...] = ()
    """Contributors whose bytes arrived but were not finite or did not decode."""


@dataclass(frozen=True)
class Held:
    """One part whose final bytes a member holds."""

    section: Section
    part: int
    attempt: int
    digest: bytes


@dataclass(frozen=True)
class Have:
    """ "I hold these parts of the round's result." Counts only where the digest equals the decision."""

    round: int
    items: tuple[Held, ...]


@dataclass(frozen=True)
class Applied:
    """ "My shared state is at `version` now"; with what the round cost this peer."""

    version: int
    sent_bytes: int = 0
    received_bytes: int = 0
    train_s: float = 0.0
    wait_s: float = 0.0
    norm: float = 0.0
    """Euclidean norm of this peer's own work in the entry; 0: it has none in it, or did not measure. A claim, as is the next."""
    cosine: float = 0.0
    """Cosine of that work to the entry's update, over the parts that contain it."""


@dataclass(frozen=True)
class Fingerprint:
    """ "The SHA-256 of my shared state at `version` is `root`." """

    version: int
    root: bytes


@dataclass(frozen=True)
class Evaluated:
    """ "On the held-out samples, version `version` costs this much." A claim of this peer, journaled as such."""

    version: int
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True)
class Complaint:
    """ "I could not exchange bulk bytes with `peer` in this round, and this is what I saw." """

    round: int
    peer: PeerId
    reason: str


@dataclass(frozen=True)
class Goodbye:
    """ "I am leaving on purpose." """

    reason: str = ""


# --- coordinator to peer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Welcome:
    """ "You are in, as session `session` of term `term`. Here is the run." """

    session: int
    term: int
    resumed: bool
    """True: the same membership goes on and pending work counts. False: a new one; pending work must be dropped."""
    version: int
    """Newest committed version of the peer's group, or NO_VERSION."""
    spec: bytes
    """The run spec as canonical JSON."""
    heartbeat_s: float
    lost_after_s: float
    group: int = 0


@dataclass(frozen=True)
class Refused:
    """ "You may not come in", why, and what to do. The stream ends."""

    code: str
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class BuildOrigin:
    """ "Nobody holds version 0: build it as the run spec says, then send StateReady(0)." """


@dataclass(frozen=True)
class Donors:
    """ "Fetch the whole shared state, at `version` or newer, from one of these." One without an address cannot be dialled: it was
    told to dial you and push (Push)."""

    version: int
    contacts: tuple[Contact, ...]


@dataclass(frozen=True)
class Push:
    """ "`to` needs what you hold, and cannot dial you: dial it, and push what it asks for." """

    to: Contact


@dataclass(frozen=True)
class CatchUp:
    """ "These entries bring you forward; fetch their parts, by digest, from these." """

    commits: tuple[Commit, ...]
    contacts: tuple[Contact, ...]


class StopRule(enum.Enum):
    """When a member stops training and publishes."""

    STEPS = "steps"
    """After its quota."""
    TIME = "time"
    """When no further inner step fits into `Open.seconds`; the quota is what was expected of it."""
    SAMPLES = "samples"
    """When it hears Wrap, because the members have enough together; the quota is what was expected of it."""


@dataclass(frozen=True)
class Open:
    """ "Round `round` is open: train from `base`." Sent when a round opens and again, unchanged, to a member that comes back."""

    round: int
    group: int
    fragment: int
    base: int
    lease: tuple[Span, ...]
    """All samples leased to this peer and not yet committed, oldest first; work that is pending stands at the front."""
    quota: int
    """Samples expected of this member in this round: H inner steps times samples per step, or what its speed so far promises."""
    committed_tokens: int
    expected_tokens: int
    members: int
    stop: StopRule = StopRule.STEPS
    seconds: float = 0.0
    """With TIME: how long to train, by the member's own clock."""


@dataclass(frozen=True)
class Wrap:
    """ "Stop training now and publish what you have." """

    round: int


@dataclass(frozen=True)
class Share:
    """One reducer's consecutive parts [start, stop) of one section, in one attempt."""

    reducer: Contact
    section: Section
    start: int
    stop: int
    attempt: int = 0


@dataclass(frozen=True)
class Contribution:
    """One contributor of a plan and the weight of its work."""

    peer: PeerId
    weight: int


@dataclass(frozen=True)
class Plan:
    """ "Gathering is over: these contribute, in this order of summation; these reduce; these collect." """

    round: int
    term: int
    group: int
    fragment: int
    base: int
    contributions: tuple[Contribution, ...]
    """In the order in which every reducer adds."""
    members: tuple[PeerId, ...]
    """All who collect the result, contributors or not."""
    shares: tuple[Share, ...]
    deadline_s: float
    """How long a reducer waits for a contribution, from the receipt of this plan."""


@dataclass(frozen=True)
class Replan:
    """ "These parts were lost with their reducer and are reduced anew: send them, and only them, again." Said again, with all parts
    of attempts above 0, to a member that comes back."""

    round: int
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Fetch:
    """ "These parts are decided, and their reducer hands them out no more: fetch what you lack of them, by digest, from these." """

    round: int
    parts: tuple[Held, ...]
    contacts: tuple[Contact, ...]


@dataclass(frozen=True)
class ContributorLost:
    """ "`peer` is gone for good: close its parts without what has not arrived." """

    round: int
    peer: PeerId


@dataclass(frozen=True)
class Decision:
    """What one part of an entry is: the first PartClosed that the coordinator accepted."""

    section: Section
    part: int
    attempt: int
    digest: bytes
    contributors: tuple[PeerId, ...]
    """Empty: those of an inclusion of the entry (see `entries`)."""
    divisor: float
    inclusion: int = 0
    """Which one, if so."""


@dataclass(frozen=True)
class Inclusion:
    """Who is in some parts of an entry, in plan order."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True)
class Commit:
    """ "Version `version` is `base` plus these parts." Only bytes that match are applied. Inclusion is final."""

    version: int
    round: int
    group: int
    fragment: int
    base: int
    parts: tuple[Decision, ...]
    committed_tokens: int
    """P after this entry."""
    outer_lr: float
    outer_momentum: float
    contacts: tuple[Contact, ...] = ()
    """Members that held every part when the message was sent."""
    inclusions: tuple[Inclusion, ...] = ()


@dataclass(frozen=True)
class Abandoned:
    """ "Round `round` had no effect. Your work stays pending." """

    round: int
    reason: str


@dataclass(frozen=True)
class Evaluate:
    """ "Evaluate the shared state at `version` on the held-out samples while you wait for a reduction." """

    version: int


@dataclass(frozen=True)
class Resync:
    """ "Your copy of `version` differs from the others': fetch it again before you contribute or serve." """

    version: int
    root: bytes
    reason: str


@dataclass(frozen=True)
class Notice:
    """ "The run waits", for what, have and need, and what to do about it. Empty `waiting_for`: it goes on."""

    waiting_for: str
    have: int = 0
    need: int = 0
    fix: str = ""


@dataclass(frozen=True)
class Finish:
    """ "Write the model at `version` and leave": the run is over, or you are the last member to leave it."""

    version: int
    reason: str
    run_is_over: bool = True
    """False: the run waits, and this peer's copy is what it can go on from."""


@dataclass(frozen=True)
class Dismissed:
    """ "Your session is over": replaced, lost, kicked or banned, or because you said goodbye. `may_return`: come back by itself."""

    reason: str
    may_return: bool
    copy_is_safe: bool = False
    """Others hold the newest version and can hand it over: the leaving peer's own copy is not needed."""


@dataclass(frozen=True)
class Leave:
    """ "An operator drains you: leave in good order now, as if your volunteer had asked for it." """

    reason: str = ""


@dataclass(frozen=True)
class Barred:
    """ "These identities, and no others, are banned: accept nothing from them and send them nothing." """

    peers: tuple[PeerId, ...]


@dataclass(frozen=True)
class Reachability:
    """ "I dialled you back: others are told to dial you at `address`", which is not what you said; empty: I could not, and why, and
    what would help."""

    address: str
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Measure:
    """ "Nothing tells yet what your link carries: exchange a little with `to`, and say it in your heartbeats." """

    to: Contact


FromPeer = (
    Hello | Heartbeat | StateReady | Locate | Ready | PartClosed | Have | Applied | Fingerprint | Evaluated | Complaint | Goodbye
)
FromCoordinator = (
    Welcome
    | Refused
    | BuildOrigin
    | Donors
    | Push
    | CatchUp
    | Open
    | Wrap
    | Plan
    | Replan
    | Fetch
    | ContributorLost
    | Commit
    | Abandoned
    | Evaluate
    | Resync
    | Notice
    | Finish
    | Dismissed
    | Leave
    | Barred
    | Reachability
    | Measure
)


SINCE_MINOR: dict[type, int] = {Leave: 1, Barred: 1, Push: 1, Reachability: 2, Measure: 2, Fetch: 2}
"""Messages that peers of an older minor version do not know, and are not sent."""


@dataclass(frozen=True)
class Envelope:
    """A message with the ids of the conversation it belongs to. Hello travels with session 0 and term 0."""

    session: int
    term: int
    body: FromPeer | FromCoordinator
