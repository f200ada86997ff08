"""The memory that a volunteer gives to a run (`--memory`), and what the run needs of it.

Rule: a budget is kept by construction. What a run takes whatever happens (local copy, log, sums, a copy for a joiner) is computed
before any of it is taken, and a run that does not fit is refused with have and need; the rest is what contributions may wait in,
and those that find no room in it wait on disk (`spill`). Without a budget they may take as much as one encoded copy of the model,
which only a peer that reduces more than its share, beside a slow contributor, ever needs. The trainer's own memory (the model, its
gradients and moments) is not part of it: on a GPU it is not even this machine's. Neighbours: `daemon` asks, `vault` and `reduction`
take.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.compression.codec import Codec
from shoal.optim.layout import Part
from shoal.peer.exchange import FRAMES_REMEMBERED
from shoal.peer.reduction import CLOSING_SUMS, OPEN_SUMS
from shoal.peer.vault import log_bytes, vault_bytes
from shoal.protocol.errors import ShoalError

LEAST_WAITING = 16
"""Contributions that there is room for in memory at least, so that the disk is for what has to wait long."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class BudgetError(ShoalError):
    """The memory that the volunteer gives does not do for the run."""


def parse_size(text: str) -> int:
    """Bytes of "800M", "2G", "1.5GiB". Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("this is not a size")
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** _UNITS[found[2].lower()])
    if size < 1:
        raise ValueError("this is no memory at all")
    return size


@dataclass(frozen=True)
class Needs:
    """Bytes that a run takes in a peer's daemon."""

    vault: int
    """Shared state, pseudo-gradients, scratch: in shared memory, like the log."""
    log: int
    sums: int
    """Parts that are being added up, and results in memory while they are sent back."""
    joiner: int
    """One frozen copy of the state, for who fetches it."""
    waiting: int
    """Least room for contributions."""

    @property
    def fixed(self) -> int:
        """All but what waits."""
        return self.vault + self.log + self.sums + self.joiner

    @property
    def total(self) -> int:
        return self.fixed + self.waiting

    def check(self, have: int) -> None:
        """Raise BudgetError when this does not fit into `have`."""
        if self.total > have:
            parts = {"local copy": self.vault, "log": self.log, "sums": self.sums, "a joiner": self.joiner, "waiting": self.waiting}
            listed = ", ".join(f"{name} {_megabytes(size)}" for name, size in parts.items())
            raise BudgetError(
                f"this run does not fit into --memory: have {have // 1_000_000}, need {_megabytes(self.total)} MB ({listed})",
                f"give it --memory {_megabytes(self.total)}M if the machine has that to spare, or take part with another one",
            )


def needs(parts: Sequence[Part], send: Codec, back: Codec, entries: int, feedback: bool) -> Needs:
    """What a run with these parts and codecs takes; `entries` log entries are kept, with the one that is being reduced."""
    values = parts[-1].stop
    largest = max(part.stop - part.start for part in parts)
    message = max(max(codec.encoded_size(part.spans) for codec in (send, back)) for part in parts)
    sums = 4 * largest * min(OPEN_SUMS + CLOSING_SUMS, len(parts)) + message * min(FRAMES_REMEMBERED, len(parts))
    waiting = min(LEAST_WAITING, len(parts)) * message
    return Needs(vault_bytes(parts, feedback), log_bytes(parts, back, entries), sums, 8 * values, waiting)


def unbudgeted_bytes(parts: Sequence[Part], send: Codec) -> int:
    """What contributions may take of the memory of a peer without a budget."""
    sizes = [send.encoded_size(part.spans) for part in parts]
    return max(sum(sizes), LEAST_WAITING * max(sizes))


def _megabytes(size: int) -> str:
    """Rounded up: what is asked for must do."""
    return f"{-(-size // 1_000_000)}"
