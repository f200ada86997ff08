"""Votes on what a version's bytes are: by name, a strict majority, and the longest-standing member's word without one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.ballots import Ballots, Verdict

X, Y, Z = b"x" * 32, b"y" * 32, b"z" * 32


def ballots(*votes: tuple[int, bytes], version: int = 5) -> Ballots:
    cast = Ballots()
    for session, root in votes:
        cast.cast(version, session, root)
    return cast


def test_a_strict_majority_settles_a_version_and_names_who_differs() -> None:
    verdict = ballots((1, Y), (2, X), (3, X), (4, X)).settle(5, {1, 2, 3, 4})
    assert verdict == Verdict(5, X, votes=3, voters=4, flagged=False, differing=(1,))


def test_a_majority_does_not_wait_for_the_last_votes() -> None:
    assert ballots((1, X), (2, X)).settle(5, {1, 2, 3}) == Verdict(5, X, 2, 3, False, ())


def test_half_of_the_members_are_no_majority() -> None:
    assert ballots((1, X), (2, X)).settle(5, {1, 2, 3, 4}) is None
    assert ballots((1, X), (2, X), (3, Y)).settle(5, {1, 2, 3, 4}) is None


def test_without_a_majority_the_longest_standing_members_copy_is_declared_and_flagged() -> None:
    assert ballots((3, X), (2, Y), (4, X), (7, Z)).settle(5, {2, 3, 4, 7}) == Verdict(5, Y, 1, 4, True, (3, 4, 7))


def test_a_tie_of_two_goes_to_the_longer_standing_whatever_the_bytes() -> None:
    for first, second in ((X, Y), (Y, X)):
        assert ballots((1, first), (2, second)).settle(5, {1, 2}) == Verdict(5, first, 1, 2, True, (2,))


def test_a_single_member_settles_its_own_version_unflagged() -> None:
    assert ballots((1, X)).settle(5, {1}) == Verdict(5, X, 1, 1, False, ())


def test_the_vote_of_who_is_not_in_the_electorate_does_not_count() -> None:
    cast = ballots((1, X), (8, Y), (9, Y))
    assert cast.settle(5, {1, 2, 3}) is None
    assert cast.settle(5, {1}) == Verdict(5, X, 1, 1, False, ())


def test_nobody_votes_twice_and_the_last_word_counts() -> None:
    cast = ballots((1, X), (1, X), (1, X))
    assert cast.settle(5, {1, 2, 3}) is None
    cast.cast(5, 1, Y)
    cast.cast(5, 2, Y)
    assert cast.settle(5, {1, 2, 3}) == Verdict(5, Y, 2, 3, False, ())


def test_no_votes_settle_nothing() -> None:
    assert ballots((9, X)).settle(5, {1, 2}) is None
    assert ballots((9, X)).settle(5, set()) is None


def test_a_settled_vote_is_closed_and_an_unsettled_one_stays_open() -> None:
    cast = ballots((1, X))
    cast.cast(6, 1, Y)
    assert list(cast.versions) == [5, 6]
    assert cast.settle(5, {1, 2}) is None
    assert list(cast.versions) == [5, 6]
    assert cast.settle(5, {1}) is not None
    assert list(cast.versions) == [6]


def test_old_votes_are_forgotten() -> None:
    cast = ballots((1, X), version=3)
    for version in (4, 5):
        cast.cast(version, 1, X)
    cast.forget_before(5)
    assert list(cast.versions) == [5]


VOTES = st.dictionaries(st.integers(1, 7), st.sampled_from((X, Y, Z)), min_size=1)


@given(VOTES, st.sets(st.integers(1, 7), min_size=1), st.data())
def test_a_verdict_is_right_in_whatever_order_the_votes_come(
    votes: dict[int, bytes], electorate: set[int], data: st.DataObject
) -> None:
    verdict = ballots(*votes.items()).settle(5, electorate)
    assert ballots(*data.draw(st.permutations(list(votes.items())))).settle(5, electorate) == verdict
    if verdict is not None:
        agreeing = {session for session in electorate if votes.get(session) == verdict.root}
        assert verdict.votes == len(agreeing)
        assert verdict.flagged != (2 * len(agreeing) > len(electorate))
        assert set(verdict.differing) == (electorate & votes.keys()) - agreeing
