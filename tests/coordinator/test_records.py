"""An entry of many parts is short, in the journal and on its way, and says the same as the long form of early journals."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from shoal.coordinator.records import RoundCommitted
from shoal.protocol import wire
from shoal.protocol.entries import brief, whole, whole_commit
from shoal.protocol.messages import Commit, Contribution, Decision, Envelope, Inclusion, Section
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


def entry(parts: tuple[Decision, ...], inclusions: tuple[Inclusion, ...] = ()) -> RoundCommitted:
    return RoundCommitted(3, 7, 0, 0, 2, parts, CONTRIBUTIONS, (), 10**9, 0.7, 0.9, inclusions=inclusions)


def stored(record: RoundCommitted) -> str:
    return json.dumps(to_plain(record))


def test_an_entry_of_ten_thousand_parts_and_64_peers_is_short_and_says_who_is_in_each_part() -> None:
    all_of_it = decisions(10_000)
    parts, inclusions = brief(all_of_it)
    text = stored(entry(parts, inclusions))
    assert len(inclusions) == 4
    assert len(text) < 10_000 * BYTES_PER_PART
    assert len(stored(entry(all_of_it))) > 10 * len(text), "as it was before"
    assert from_plain(RoundCommitted, json.loads(text)).decisions == all_of_it


def test_a_commit_of_ten_thousand_parts_and_64_peers_fits_into_a_message_many_times() -> None:
    parts, inclusions = brief(decisions(10_000))
    commit = Commit(3, 7, 0, 0, 2, parts, 1, 0.7, 0.9, (), inclusions)
    packed = wire.pack(Envelope(1, 1, commit))
    assert len(packed) < wire.MESSAGE_LIMIT_BYTES / 16
    body = wire.unpack(packed).body
    assert isinstance(body, Commit)
    assert whole_commit(body) == replace(commit, parts=decisions(10_000), inclusions=())
    assert whole_commit(whole_commit(body)) == whole_commit(body)


def test_a_part_that_names_an_inclusion_that_is_not_there_has_nobody_in_it() -> None:
    parts, inclusions = brief(decisions(11))
    assert [len(part.contributors) for part in whole(parts, inclusions[:2])] == [63, *[64] * 9, 0]


def test_an_entry_of_an_early_journal_says_the_same() -> None:
    early = to_plain(entry(decisions(30)))
    del early["inclusions"]
    for part in early["parts"]:
        del part["inclusion"]
    assert from_plain(RoundCommitted, json.loads(json.dumps(early))).decisions == decisions(30)
