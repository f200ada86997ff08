"""What peers ask of each other. The bulk bytes themselves travel as `frames` or raw chunks, never inside these messages.

`PartRequest` is answered with raw chunks of the part's final bytes, in order. `StateRequest` is answered with one packed
`StateOffer` and then raw chunks of that state from `offset` on (at most `channels.CHUNK_BYTES` each). `Ping` is answered with
`Pong`. A holder that cannot be dialled opens a stream with `PushOpening` and answers a `PushRequest` like one of the first two.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.messages import PeerId


@dataclass(frozen=True)
class PartRequest:
    """ "Send me the part with this digest." """

    run: str
    digest: bytes


@dataclass(frozen=True)
class StateRequest:
    """ "Send me the shared state at `version` or newer." With a `root`, the rest of exactly that state, from byte `offset` on."""

    run: str
    version: int
    offset: int = 0
    root: bytes = b""


@dataclass(frozen=True)
class StateOffer:
    """First message of the answer: "these bytes are version `version`, `size` bytes in all, with this fingerprint." """

    version: int
    root: bytes
    layout_hash: bytes
    size: int
    offset: int = 0


@dataclass(frozen=True)
class PushOpening:
    """ "You cannot dial me, so I dial you: ask, and I push." """

    run: str


@dataclass(frozen=True)
class PushRequest:
    """ "Send me the part with this digest", or without one: "the shared state", as in `StateRequest`."""

    part: bytes = b""
    version: int = 0
    offset: int = 0
    root: bytes = b""


PING_LIMIT_BYTES = 128 << 10
"""Of the payload of a ping, each way."""


@dataclass(frozen=True)
class Ping:
    """ "Can you hear me?" `run` guards against a peer of another swarm at a reused address."""

    run: str
    nonce: int = 0
    payload: bytes = b""
    """Anything, to measure the way there."""
    want_bytes: int = 0
    """Bytes to send back, to measure the way here; only for peers."""


@dataclass(frozen=True)
class Pong:
    """ "I can; I am `peer`." """

    peer: PeerId
    nonce: int = 0
    payload: bytes = b""
