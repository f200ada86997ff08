"""An entry of the log, said briefly: thousands of its parts mostly have the same contributors, which are then said once.

Rule: a decision without contributors has those of the inclusion that it names, and no other decision lacks them: a part of nobody
cannot close. Journal and wire are brief; whoever reasons about an entry asks for the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.protocol.messages import CatchUp, Commit, Decision, Inclusion, PeerId


def brief(decisions: Iterable[Decision]) -> tuple[tuple[Decision, ...], tuple[Inclusion, ...]]:
    """The same decisions, and who is in them."""
    known: dict[tuple[PeerId, ...], int] = {}
    short = tuple(replace(each, contributors=(), inclusion=known.setdefault(each.contributors, len(known))) for each in decisions)
    return short, tuple(Inclusion(peers) for peers in known)


def whole(decisions: Sequence[Decision], inclusions: Sequence[Inclusion]) -> tuple[Decision, ...]:
    """What `brief` was made of. Decisions that say themselves who is in them stay as they are; an inclusion that is missing has
    nobody in it."""
    return tuple(
        each
        if each.contributors or each.inclusion >= len(inclusions)
        else replace(each, contributors=inclusions[each.inclusion].peers, inclusion=0)
        for each in decisions
    )


def whole_commit(commit: Commit) -> Commit:
    """The commit in which each part says who is in it."""
    return replace(commit, parts=whole(commit.parts, commit.inclusions), inclusions=()) if commit.inclusions else commit


def whole_catch_up(message: CatchUp) -> CatchUp:
    """The same for each of its commits."""
    return replace(message, commits=tuple(map(whole_commit, message.commits)))
