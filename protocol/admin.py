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
    """ "Who is in it?" """


@dataclass(frozen=True)
class GetRounds:
    """ "What became of the last `limit` rounds?" """

    limit: int = 20


@dataclass(frozen=True)
class GetEvents:
    """ "What happened lately?" """

    limit: int = 50


@dataclass(frozen=True)
class MakeInvite:
    """ "Let `uses` more peers enrol within `hours` hours." Answered by the shell, which owns the tokens."""

    uses: int = 1
    hours: float = 24.0


@dataclass(frozen=True)
class Pause:
    """ "Open no further rounds." The round in flight finishes."""


@dataclass(frozen=True)
class Resume:
    """ "Open rounds again." """


@dataclass(frozen=True)
class Stop:
    """ "End the run after one last synchronisation." """


AdminCommand = GetStatus | GetPeers | GetRounds | GetEvents | MakeInvite | Pause | Resume | Stop

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


@dataclass(frozen=True)
class EventView:
    """One line of the run's history."""

    at: float
    """Seconds: the core's clock, turned into Unix time by the shell."""
    text: str


@dataclass(frozen=True)
class Peers:
    """Answer to GetPeers."""

    peers: tuple[PeerView, ...]


@dataclass(frozen=True)
class Rounds:
    """Answer to GetRounds, newest last."""

    rounds: tuple[RoundView, ...]


@dataclass(frozen=True)
class Events:
    """Answer to GetEvents, newest last."""

    events: tuple[EventView, ...]


@dataclass(frozen=True)
class Invitation:
    """Answer to MakeInvite: the line to give to a volunteer."""

    line: str
    uses: int
    hours: float


@dataclass(frozen=True)
class Done:
    """The command was carried out (or had been before): what is true now."""

    text: str


AdminReply = Status | Peers | Rounds | Events | Invitation | Done


@dataclass(frozen=True)
class AdminError:
    """The command cannot be carried out: why, and what to do."""

    reason: str
    fix: str = ""
