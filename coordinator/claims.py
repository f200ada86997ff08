"""What peers say of themselves and of others, cut to what can be true, be told and be kept.

Rule: nothing that one peer says may make an answer to others impossible, fill the history with its lines, or be counted twice. So
texts have a length, quantities a bound, and each peer a budget of lines; what cannot be true counts as not said. Pure. Neighbour:
`core` passes everything that arrives through `believable`; speeds and norms are `gathering`'s, which calculates with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from shoal.protocol.messages import Applied, Complaint, Evaluated, Goodbye, Heartbeat, Hello, Locate, PeerId, Ready

TEXT_LIMIT = 500
"""Characters of a reason or a note."""
LINE_LIMIT = 1000
"""Characters of one line of the history."""
NAME_LIMIT = 64
ADDRESS_LIMIT = 256
BYTES_LIMIT = 1 << 50
SECONDS_LIMIT = 30 * 86400.0
FAILED_LIMIT = 16
"""Donors that a peer may say did not serve it."""
SUM_LIMIT = (1 << 62) - 1
"""Where sums of claims end."""
LINES, WINDOW_S = 20, 60.0
"""A peer's budget: so many lines in so many seconds."""
_REMEMBERED = 10_000

Body = TypeVar("Body")


def believable(body: Body) -> Body:
    """The same message, without what is too long to tell or too large to be true."""
    cut: object = body
    match body:
        case Hello():
            address = body.address if len(body.address) <= ADDRESS_LIMIT else ""
            names = {name: getattr(body, name)[:NAME_LIMIT] for name in ("run", "instance", "name", "device", "software")}
            cut = replace(body, address=address, **names)
        case Heartbeat():
            cut = replace(
                body,
                phase=body.phase[:NAME_LIMIT],
                steps=min(body.steps, BYTES_LIMIT),
                samples=min(body.samples, BYTES_LIMIT),
            )
        case Locate():
            cut = replace(body, failed=tuple(peer[:NAME_LIMIT] for peer in body.failed[:FAILED_LIMIT]))
        case Ready():
            cut = replace(body, note=body.note[:TEXT_LIMIT], train_s=_seconds(body.train_s))
        case Applied():
            cut = replace(
                body,
                sent_bytes=min(body.sent_bytes, BYTES_LIMIT),
                received_bytes=min(body.received_bytes, BYTES_LIMIT),
                train_s=_seconds(body.train_s),
                wait_s=_seconds(body.wait_s),
            )
        case Evaluated():
            cut = replace(body, tokens=min(body.tokens, BYTES_LIMIT))
        case Complaint():
            cut = replace(body, peer=body.peer[:NAME_LIMIT], reason=body.reason[:TEXT_LIMIT])
        case Goodbye():
            cut = replace(body, reason=body.reason[:TEXT_LIMIT])
        case _:
            pass
    assert isinstance(cut, type(body))
    return cut


def added(total: int, claimed: int) -> int:
    """A sum of claims that stays a number that can be told."""
    return min(total + claimed, SUM_LIMIT)


def _seconds(value: float) -> float:
    return min(max(0.0, value), SECONDS_LIMIT)


class Budget:
    """How many lines of the history each peer may cause. Time is an argument."""

    def __init__(self) -> None:
        self._spent: dict[PeerId, tuple[float, int]] = {}
        """When the window began, and the lines in it, those left out included."""

    def spend(self, peer: PeerId, now: float) -> tuple[bool, int]:
        """Whether one more line may be written about `peer`, and how many were left out in the window that this one ends."""
        began, lines = self._spent.get(peer, (now, 0))
        left_out = 0
        if now >= began + WINDOW_S:
            left_out, began, lines = max(0, lines - LINES), now, 0
        if len(self._spent) >= _REMEMBERED:
            self._spent = {who: known for who, known in self._spent.items() if now < known[0] + WINDOW_S}
        self._spent[peer] = (began, lines + 1)
        return lines < LINES, left_out
