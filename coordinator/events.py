"""What can happen to the coordinator (events), and what it can want done (effects).

The core is `on(event, now) -> list[Effect]`; the shell feeds it events and performs the effects in order. Rule: nothing after a
`Journal` effect may be performed before that record is durable. Neighbours: `core` decides, `server` performs, `journal` keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.coordinator.records import Record
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply
from shoal.protocol.messages import Envelope, PeerId

# --- events ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """A peer opened a session stream. `peer` and `rights` come from its certificate, `seen_from` from its socket."""

    connection: int
    peer: PeerId
    rights: frozenset[str]
    seen_from: str = ""


@dataclass(frozen=True)
class Said:
    """A message arrived on a stream."""

    connection: int
    envelope: Envelope


@dataclass(frozen=True)
class Disconnected:
    """A stream broke or was closed."""

    connection: int


@dataclass(frozen=True)
class TimePassed:
    """The time that `Core.wake_at` asked for has come."""


@dataclass(frozen=True)
class Asked:
    """An operator asked for something; answered by exactly one `Answer` with the same `request`."""

    request: int
    by: PeerId
    command: AdminCommand


@dataclass(frozen=True)
class DialledBack:
    """`address`, one of those to be tried, leads to the peer of this stream; "": none does, and what was seen instead."""

    connection: int
    address: str
    reason: str = ""


Event = Connected | Said | Disconnected | TimePassed | Asked | DialledBack

# --- effects --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Journal:
    """Make this record durable before performing anything that follows."""

    record: Record


@dataclass(frozen=True)
class Send:
    """Send a message on a stream; a stream that is gone swallows it."""

    connection: int
    envelope: Envelope


@dataclass(frozen=True)
class Close:
    """End a stream after what was sent on it."""

    connection: int


@dataclass(frozen=True)
class Bar:
    """Certify none of these identities, and no longer believe certificates of theirs; all others are as before."""

    peers: frozenset[PeerId]


@dataclass(frozen=True)
class DialBack:
    """Find out, after a pause, whether one of these addresses leads to the peer of this stream, in this order. Answered by one
    DialledBack while the stream lasts, unless it is wanted anew before."""

    connection: int
    peer: PeerId
    addresses: tuple[str, ...]
    after_s: float = 0.0


@dataclass(frozen=True)
class Answer:
    """Answer an operator's request."""

    request: int
    reply: AdminReply | AdminError


@dataclass(frozen=True)
class Log:
    """Say a sentence to whoever watches the coordinator: a decision and its reason, when it changes."""

    text: str
    level: str = "info"
    about: PeerId = ""
    """The peer that caused it, where one can as often as it likes: each has a budget of lines."""


Effect = Journal | Send | Close | Bar | DialBack | Answer | Log
