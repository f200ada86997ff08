"""Which bytes a version is: members say the fingerprint of what they hold, and a strict majority settles it.

Rule: members are asked by name, never counted: a vote of somebody who is no longer in the electorate does not count, nobody votes
twice. Without a strict majority, once all have voted, the longest-standing member's value is declared and flagged. Neighbours:
`core` journals what comes out and tells those who differ to resynchronise.
"""

from __future__ import annotations

from dataclasses import dataclass

Root = bytes


@dataclass(frozen=True)
class Verdict:
    """What was settled about one version."""

    version: int
    root: Root
    votes: int
    voters: int
    flagged: bool
    differing: tuple[int, ...]
    """Sessions that voted otherwise."""


class Ballots:
    """Open votes, by version and session."""

    def __init__(self) -> None:
        self._votes: dict[int, dict[int, Root]] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that are being voted on."""
        return tuple(self._votes)

    def cast(self, version: int, session: int, root: Root) -> None:
        """A member says what its copy of this version is."""
        self._votes.setdefault(version, {})[session] = root

    def forget_before(self, version: int) -> None:
        """Nobody will settle these any more."""
        for old in [v for v in self._votes if v < version]:
            del self._votes[old]

    def settle(self, version: int, electorate: set[int]) -> Verdict | None:
        """The verdict on a version, if these members' votes allow one; the vote is then closed."""
        cast = {session: root for session, root in self._votes[version].items() if session in electorate}
        if not cast:
            return None
        roots = list(cast.values())
        winner = max(sorted(set(roots)), key=roots.count)
        flagged = 2 * roots.count(winner) <= len(electorate)
        if flagged:
            if cast.keys() != electorate:
                return None
            winner = cast[min(cast)]
        del self._votes[version]
        differing = tuple(sorted(session for session, root in cast.items() if root != winner))
        return Verdict(version, winner, roots.count(winner), len(electorate), flagged, differing)
