"""What an operator can ask a coordinator, and what it answers. Same rules as `messages`: frozen, plain, a sentence each."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.messages import PeerId

# --- commands -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GetStatus:
    """ "How is the run?" """


@dataclass(frozen=True)
class GetPeers:
    """ "Who is in it?" Answered in pieces, by session."""

    after: int = 0
    """Only members of later sessions than this."""


@dataclass(frozen=True)
class GetRounds:
    """ "What became of the last `limit` rounds?" """

    limit: int = 20


@dataclass(frozen=True)
class GetEvents:
    """ "What happened lately?", or since event `after`. Answered by the shell, which keeps them."""

    limit: int = 50
    after: int = 0
    """Only events with a higher number, oldest first; 0: the newest ones."""


@dataclass(frozen=True)
class GetSettings:
    """ "What can be changed while the run goes on, and how is it set?" """


@dataclass(frozen=True)
class GetLeaderboard:
    """ "Who contributed most?" """

    limit: int = 50


@dataclass(frozen=True)
class MakeInvite:
    """ "Let `uses` more peers enrol within `hours` hours." Answered by the shell, which owns the tokens."""

    uses: int = 1
    hours: float = 24.0


@dataclass(frozen=True)
class GetInvites:
    """ "Which invites are there?" Answered by the shell."""

    spent: bool = False
    """Those that let nobody in any more, too."""


@dataclass(frozen=True)
class RevokeInvite:
    """ "Let nobody in with this invite any more." Who came in with it stays. Answered by the shell."""

    invite: str
    """Its id, or the first 4 or more characters of that."""


@dataclass(frozen=True)
class Pause:
    """ "Open no further rounds." The round in flight finishes."""


@dataclass(frozen=True)
class Resume:
    """ "Open rounds again." """


@dataclass(frozen=True)
class Stop:
    """ "End the run after one last synchronisation." """


@dataclass(frozen=True)
class Kick:
    """ "End this peer's membership now." It may return when its owner joins again.

    `peer`, here and below, is a display name, an id, or the beginning of one."""

    peer: str
    reason: str = ""


@dataclass(frozen=True)
class Ban:
    """ "End this identity's membership now, and let it never return." An id that was never seen may be banned, too."""

    peer: str
    reason: str = ""


@dataclass(frozen=True)
class Unban:
    """ "Let this identity return." """

    peer: str


@dataclass(frozen=True)
class Drain:
    """ "Let this peer leave in good order when its round is over." """

    peer: str


@dataclass(frozen=True)
class Change:
    """ "Set `key` of the run spec to `value`, written as in the run spec, from now on." """

    key: str
    value: str


@dataclass(frozen=True)
class Grant:
    """ "Certify this identity as operator." Signed like an enrolment (see `enrolment.Enrol`); answered by the shell."""

    role: str
    """"admin" or "observer"."""
    name: str
    public_key: bytes
    tls_key: bytes
    binding: bytes
    days: float = 30.0


AdminCommand = (
    GetStatus
    | GetPeers
    | GetRounds
    | GetEvents
    | GetSettings
    | GetLeaderboard
    | MakeInvite
    | GetInvites
    | RevokeInvite
    | Pause
    | Resume
    | Stop
    | Kick
    | Ban
    | Unban
    | Drain
    | Change
    | Grant
)

# --- replies --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """The run at a glance."""

    run: str
    term: int
    phase: str
    """"waiting", "training", "reducing", "paused", "stopping" or "ended"."""
    waiting_for: str
    """What it waits for and what to do, when it does; else empty."""
    version: int
    round: int
    """Newest round, or -1 before the first."""
    members: int
    min_peers: int
    committed_tokens: int
    total_tokens: int
    bits_per_byte: float
    """Last evaluation; 0 before the first."""
    evaluated_version: int
    root: str
    """Last agreed fingerprint, hex."""
    unit: str = ""
    """Of the evaluation: "bits per byte", of token files "bits per token"; empty: bits per byte, says an older coordinator."""


@dataclass(frozen=True)
class PeerView:
    """One member."""

    peer: PeerId
    name: str
    session: int
    state: str
    address: str
    device: str
    version: int
    phase: str
    silent_s: float
    tokens_per_s: float
    loss: float
    committed_tokens: int
    software: str
    draining: bool = False
    """An operator asked it to leave when its round is over."""
    certificate_until: float = 0.0
    """When its certificate ends (Unix time, the coordinator's clock), filled in by the shell; 0: unknown."""
    warning: str = ""
    """What an operator should look after."""
    reach: str = ""
    """Whether the coordinator could dial it: "yes", "no", "not tried yet", or "outbound only" where it says so itself."""
    helper: bool = False
    """It trains nothing."""
    up_bytes_s: float = 0.0
    """What its link was seen to carry, out and in, as it says; 0: not measured yet."""
    down_bytes_s: float = 0.0
    seen_from: str = ""
    """Where its stream comes from, as the coordinator sees it; empty: it has none."""


@dataclass(frozen=True)
class RoundPeerView:
    """One member in one round."""

    peer: PeerId
    name: str
    outcome: str
    """"in"; "in part": some parts went without it; "late": not ready when gathering closed; "left out": ready, but in no part;
    "nothing": weight 0; "lost". What is "late" or "left out" stays pending and counts in the next round."""
    weight: int
    ready_s: float
    """Seconds from the round's opening to its Ready; 0: there was none in time."""
    limit_s: float
    """Seconds from the opening after which it was asked to publish what it had; 0: it was not measured yet."""
    norm: float
    """Euclidean norm of its update, as this peer says; 0: it did not say."""
    cosine: float
    """Cosine of its update to the round's mean, as this peer says, once it applied the entry; 0 with norm 0: it did not say."""


@dataclass(frozen=True)
class RoundView:
    """One round."""

    round: int
    version: int
    """The version it made, or -1."""
    state: str
    members: int
    contributors: int
    weight: int
    sent_bytes: int
    """Sum over the members that reported, as are the next two."""
    train_s: float
    wait_s: float
    gather_s: float
    reduce_s: float
    commit_s: float
    reason: str
    received_bytes: int = 0
    """Sum over the members that reported."""
    expected_weight: int = 0
    """Tokens that its members were to train on."""
    expected_bytes: int = 0
    """What its members have to send together by its plan; 0 before there is one."""
    expected_gather_s: float = 0.0
    """What the slowest member needs for its share at the speed it last reported; 0: no speed was known."""
    absent: tuple[PeerId, ...] = ()
    """Members whose work is not in what it made."""
    gather_limit_s: float = 0.0
    """When gathering would have closed without the slowest member, in seconds from the opening; this and the next three come from
    medians and spreads of earlier rounds, bounded by the run spec's [timing]."""
    part_limit_s: float = 0.0
    """How long reducers waited for a contribution at most."""
    reduce_limit_s: float = 0.0
    """How long after its plan the round would have been abandoned without a commit."""
    delivery_limit_s: float = 0.0
    """How long the decided round waited for members that lacked parts at most."""
    usual_gather_s: float = 0.0
    """Median of the rounds before, as are the next two; 0: none yet."""
    usual_reduce_s: float = 0.0
    usual_commit_s: float = 0.0
    peers: tuple[RoundPeerView, ...] = ()
    """Everybody who was asked to take part."""


@dataclass(frozen=True)
class EventView:
    """One line of the run's history."""

    at: float
    """Unix time, the coordinator's clock."""
    text: str
    number: int = 0
    """Counts up; `GetEvents.after` wants it."""
    level: str = "info"
    """"info" or "warning"."""


@dataclass(frozen=True)
class SettingView:
    """One setting that may be changed while the run goes on. Values as they are written in a run spec."""

    key: str
    value: str
    initial: str
    """What the run began with."""
    meaning: str


@dataclass(frozen=True)
class Contributor:
    """What one identity did for the run, over all its memberships."""

    peer: PeerId
    name: str
    """The display name it last chose; may be empty, and is not unique."""
    tokens: int
    rounds: int
    """Committed rounds that its work is in."""
    sent_bytes: int
    """As it says itself, as is the next."""
    received_bytes: int
    here: bool
    """It is a member now."""
    banned: bool = False


@dataclass(frozen=True)
class Peers:
    """Answer to GetPeers, the oldest sessions first."""

    peers: tuple[PeerView, ...]
    more: bool = False
    """There are others, of later sessions than the last of these."""


@dataclass(frozen=True)
class Rounds:
    """Answer to GetRounds, newest last."""

    rounds: tuple[RoundView, ...]


@dataclass(frozen=True)
class Events:
    """Answer to GetEvents, newest last."""

    events: tuple[EventView, ...]


@dataclass(frozen=True)
class RunSettings:
    """Answer to GetSettings."""

    settings: tuple[SettingView, ...]


@dataclass(frozen=True)
class Leaderboard:
    """Answer to GetLeaderboard, most tokens first."""

    contributors: tuple[Contributor, ...]
    committed_tokens: int
    """Of the whole run."""


@dataclass(frozen=True)
class Granted:
    """Answer to Grant: the certificate (PEM) of a new operator, and the authority's. Where to use it, the asker knows."""

    peer: PeerId
    role: str
    certificate: str
    ca: str


@dataclass(frozen=True)
class Invitation:
    """Answer to MakeInvite: the line to give to a volunteer."""

    line: str
    uses: int
    hours: float
    id: str = ""
    """Names the invite in other commands, and says nothing of its token."""


@dataclass(frozen=True)
class InviteView:
    """One invite."""

    id: str
    state: str
    """"open", "used up", "expired" or "revoked"."""
    uses_left: int
    enrolled: int
    """Peers that came in with it."""
    made_at: float
    """Unix time, the coordinator's clock, as is the next."""
    expires_at: float
    made_by: str
    """The operator's name, or the beginning of its id."""


@dataclass(frozen=True)
class Invites:
    """Answer to GetInvites, newest last."""

    invites: tuple[InviteView, ...]


@dataclass(frozen=True)
class Done:
    """The command was carried out (or had been before): what is true now."""

    text: str


AdminReply = Status | Peers | Rounds | Events | RunSettings | Leaderboard | Granted | Invitation | Invites | Done


@dataclass(frozen=True)
class AdminError:
    """The command cannot be carried out: why, and what to do."""

    reason: str
    fix: str = ""
