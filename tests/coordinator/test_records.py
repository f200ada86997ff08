"""An entry of many parts is short in the journal, and says the same as the long form of early journals."""

from __future__ import annotations

import hashlib
import json

from shoal.coordinator.records import RoundCommitted, brief
from shoal.protocol.messages import Contribution, Decision, Section
from shoal.protocol.plain import from_plain, to_plain

PEERS = tuple(hashlib.sha256(bytes([number])).hexdigest()[:32] for number in range(64))
CONTRIBUTIONS = tuple(Contribution(peer, 100 + at) for at, peer in enumerate(PEERS))
BYTES_PER_PART = 200
"""A digest in hex, and names of fields."""


def decisions(parts: int) -> tuple[Decision, ...]:
    """Every tenth part misses a peer, another one of three."""
    return tuple(
        Decision(
            Section.PARAMETERS,
            part,
            part % 2,
            hashlib.sha256(b"%d" % part).digest(),
            PEERS if part % 10 else tuple(peer for at, peer in enumerate(PEERS) if at != part // 10 % 3),
            6400.0 + part,
        )
        for part in range(parts)
    )


def entry(parts: tuple[Decision, ...], *more: object) -> RoundCommitted:
    return RoundCommitted(3, 7, 0, 0, 2, parts, CONTRIBUTIONS, (), 10**9, 0.7, 0.9, *more)  # type: ignore[arg-type]


def stored(record: RoundCommitted) -> str:
    return json.dumps(to_plain(record))


def test_an_entry_of_ten_thousand_parts_and_64_peers_is_short_and_says_who_is_in_each_part() -> None:
    whole = decisions(10_000)
    decided, inclusions = brief(whole, CONTRIBUTIONS)
    text = stored(RoundCommitted(3, 7, 0, 0, 2, (), CONTRIBUTIONS, (), 1, 0.7, 0.9, decided=decided, inclusions=inclusions))
    assert len(inclusions) == 4
    assert len(text) < 10_000 * BYTES_PER_PART
    assert len(stored(entry(whole))) > 10 * len(text), "as it was before"
    again = from_plain(RoundCommitted, json.loads(text))
    assert again.decisions == whole


def test_an_entry_of_an_early_journal_says_the_same() -> None:
    early = to_plain(entry(decisions(30)))
    for later in ("decided", "inclusions"):
        del early[later]
    assert from_plain(RoundCommitted, json.loads(json.dumps(early))).decisions == decisions(30)
