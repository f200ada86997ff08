"""One plan's books: in which order a peer sends, adds and reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.peer.roundbook import RoundBook
from shoal.protocol.messages import Contact, Contribution, Held, PartKey, Plan, Section, Share

PARAMETERS = Section.PARAMETERS
ADA, BOB, CYD = (Contact(peer, f"{peer}:1") for peer in ("ada", "bob", "cyd"))
PLAN = Plan(
    round=7,
    term=1,
    group=0,
    fragment=0,
    base=0,
    contributions=(Contribution("ada", 40), Contribution("bob", 20), Contribution("cyd", 10)),
    members=("ada", "bob", "cyd"),
    shares=(Share(ADA, PARAMETERS, 0, 2), Share(BOB, PARAMETERS, 2, 5, attempt=1), Share(CYD, PARAMETERS, 5, 6)),
    deadline_s=30.0,
)


def key(part: int, attempt: int | None = None) -> PartKey:
    return PartKey(7, PARAMETERS, part, (1 if 2 <= part < 5 else 0) if attempt is None else attempt)


def book(me: str = "bob") -> RoundBook:
    return RoundBook(PLAN, me, now=100.0)


def added(books: RoundBook, part: int, late: bool = False) -> list[str]:
    """Add what is due, as the engine does."""
    own = books.own[PARAMETERS, part]
    while (peer := books.next_to_add(own, late)) is not None:
        own.arrived.discard(peer)
        own.added.append(peer)
        own.turn += 1
    return own.added


def test_a_peer_keeps_books_of_its_own_parts_in_their_attempt() -> None:
    assert [part.key for part in book().own.values()] == [key(2, 1), key(3, 1), key(4, 1)]
    assert [part.key for part in book("cyd").own.values()] == [key(5, 0)]
    assert book("dot").own == {}
    assert {part.deadline for part in book().own.values()} == {130.0}
    assert (book().next_deadline(100.0), book().is_late(129.9), book().is_late(130.0)) == (130.0, False, True)
    assert book().next_deadline(130.0) is None


def test_the_other_reducers_are_named_once_each() -> None:
    twice = Plan(**{**vars(PLAN), "shares": (*PLAN.shares, Share(ADA, Section.BUFFERS, 0, 1))})
    assert RoundBook(twice, "bob", 0.0).reducers() == [ADA, CYD]


# --- sending --------------------------------------------------------------------------------------------------------------------


def test_parts_are_sent_to_one_reducer_after_another() -> None:
    sent = [(to, name.part) for name, to in book("ada").sending_order()]
    assert sent == [("ada", 0), ("bob", 2), ("cyd", 5), ("bob", 3), ("ada", 1), ("bob", 4)]


def test_no_two_peers_begin_at_the_same_reducer() -> None:
    assert [next(book(peer).sending_order())[1] for peer in ("ada", "bob", "cyd")] == ["ada", "bob", "cyd"]


@pytest.mark.parametrize("me", ["ada", "bob", "cyd", "dot"])
def test_every_part_is_sent_once_to_its_reducer(me: str) -> None:
    sent = sorted(book(me).sending_order(), key=lambda item: item[0].part)
    assert sent == [(key(part), "ada" if part < 2 else "bob" if part < 5 else "cyd") for part in range(6)]


# --- adding ---------------------------------------------------------------------------------------------------------------------


@given(st.permutations(["ada", "bob", "cyd"]))
def test_contributions_are_added_in_plan_order_whatever_the_order_of_arrival(arrivals: list[str]) -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    for index, peer in enumerate(arrivals):
        assert not books.ready_to_close(own)
        own.arrived.add(peer)
        assert added(books, 2) == ["ada", "bob", "cyd"][: len(own.added)]
        assert own.arrived == set(arrivals[: index + 1]) - set(own.added)
    assert own.added == ["ada", "bob", "cyd"]
    assert books.ready_to_close(own)
    assert books.divisor(own) == 70.0


def test_a_lost_or_refused_contributor_is_passed_over_and_does_not_count_in_the_divisor() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    own.arrived.add("cyd")
    assert added(books, 2) == []
    books.lost.add("ada")
    assert added(books, 2) == []
    own.refused.append("bob")
    assert added(books, 2) == ["cyd"]
    assert books.ready_to_close(own)
    assert books.divisor(own) == 10.0


def test_what_a_lost_contributor_sent_before_still_counts() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    own.arrived.add("ada")
    books.lost.add("ada")
    assert added(books, 2) == ["ada"]


def test_after_the_deadline_what_is_missing_is_passed_over() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    own.arrived.add("cyd")
    assert added(books, 2, late=True) == ["cyd"]
    assert books.ready_to_close(own)


def test_a_part_that_nobody_contributed_to_cannot_close() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    assert added(books, 2, late=True) == []
    assert not books.ready_to_close(own)


def test_a_closed_part_does_not_close_again() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    own.arrived.update(("ada", "bob", "cyd"))
    added(books, 2)
    own.closed = True
    assert not books.ready_to_close(own)


# --- what still counts ----------------------------------------------------------------------------------------------------------


def test_a_planned_contribution_to_an_own_part_is_expected_once() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    assert books.expects(key(2), "cyd")
    own.arrived.add("cyd")
    assert not books.expects(key(2), "cyd")
    assert books.waits(key(2), "cyd")
    own.arrived.clear()
    assert not books.waits(key(2), "cyd")
    own.added.append("cyd")
    assert not books.expects(key(2), "cyd")


@pytest.mark.parametrize(
    ("which", "peer"),
    [
        (key(2, 0), "cyd"),
        (key(2, 2), "cyd"),
        (key(0), "cyd"),
        (key(9, 0), "cyd"),
        (PartKey(7, Section.BUFFERS, 2, 1), "cyd"),
        (PartKey(6, PARAMETERS, 2, 1), "cyd"),
        (key(2), "dot"),
    ],
    ids=["attempt before", "attempt after", "another's part", "no part", "another section", "another round", "no contributor"],
)
def test_what_is_not_in_the_plan_is_not_expected(which: PartKey, peer: str) -> None:
    assert not book().expects(which, peer)


def test_a_refused_contribution_and_a_closed_part_expect_nothing_more() -> None:
    books = book()
    books.own[PARAMETERS, 2].refused.append("ada")
    assert not books.expects(key(2), "ada")
    books.own[PARAMETERS, 3].closed = True
    assert not books.expects(key(3), "ada")


def test_a_contribution_whose_turn_was_passed_over_is_not_expected() -> None:
    books = book()
    own = books.own[PARAMETERS, 2]
    own.arrived.add("bob")
    books.lost.add("ada")
    assert added(books, 2) == ["bob"]
    assert not books.expects(key(2), "ada")
    assert books.expects(key(2), "cyd")


# --- results --------------------------------------------------------------------------------------------------------------------


def test_each_result_is_reported_once_and_a_changed_one_again() -> None:
    books = book()
    first, other = Held(PARAMETERS, 2, 1, b"x" * 32), Held(PARAMETERS, 2, 1, b"y" * 32)
    books.keep(key(2), b"x" * 32)
    books.keep(key(2), b"x" * 32)
    assert books.unsaid == [first]
    books.keep(key(2), b"y" * 32)
    assert books.unsaid == [first, other]


def test_the_result_is_complete_when_every_part_is_here() -> None:
    books = book()
    for part in range(6):
        assert not books.complete()
        books.keep(key(part), bytes([part]) * 32)
    assert books.complete()


def test_a_large_share_is_sent_all_the_time_and_not_at_the_end() -> None:
    large, small = Contact("ada", "ada:1"), Contact("bob", "bob:1")
    shares = (Share(large, Section.PARAMETERS, 0, 9), Share(small, Section.PARAMETERS, 9, 12))
    plan = Plan(1, 1, 0, 0, 0, (Contribution("cyd", 1),), ("ada", "bob", "cyd"), shares, 30.0)
    order = [reducer for _, reducer in RoundBook(plan, "cyd", 0.0).sending_order()]
    assert len(order) == 12
    assert [order[third : third + 4].count("bob") for third in (0, 4, 8)] == [1, 1, 1]


# --- repair ---------------------------------------------------------------------------------------------------------------------


def test_parts_that_are_planned_again_change_hands_and_all_else_stays() -> None:
    books = book()
    books.own[PARAMETERS, 3].arrived.add("ada")
    books.keep(key(2), b"2" * 32)
    books.keep(key(5), b"5" * 32)
    again = books.replan((Share(CYD, PARAMETERS, 2, 3, 2), Share(BOB, PARAMETERS, 5, 6, 1)), now=200.0)
    assert [(share.start, share.reducer, share.attempt) for share in again.shares] == [(2, CYD, 2), (5, BOB, 1)]
    assert again.lapsed == [key(2)]
    assert (again.reducers, again.arrived) == ([CYD], [])
    assert [(part.key, part.deadline) for part in books.own.values()] == [(key(3), 130.0), (key(4), 130.0), (key(5, 1), 230.0)]
    assert books.own[PARAMETERS, 3].arrived == {"ada"}
    assert books.results == {}  # both were of attempts that are over
    assert books.unsaid == []


def test_a_repair_that_was_heard_before_or_is_of_no_part_changes_nothing() -> None:
    books = book()
    books.replan((Share(CYD, PARAMETERS, 2, 3, 2),), now=200.0)
    own = dict(books.own)
    for shares in ((Share(CYD, PARAMETERS, 2, 3, 2),), (Share(BOB, PARAMETERS, 2, 3, 1),), (Share(BOB, PARAMETERS, 77, 78, 1),)):
        assert books.replan(shares, now=300.0).shares == []
    assert books.own == own


def test_a_repair_that_is_told_with_older_ones_is_taken_part_by_part() -> None:
    books = book()
    books.replan((Share(CYD, PARAMETERS, 2, 4, 2),), now=200.0)
    again = books.replan((Share(CYD, PARAMETERS, 2, 5, 2),), now=200.0)
    assert [(share.start, share.stop) for share in again.shares] == [(4, 5)]


def test_who_reduces_a_part_again_is_named_once() -> None:
    dot = Contact("dot", "dot:1")
    shares = (Share(dot, PARAMETERS, 0, 1, 1), Share(BOB, PARAMETERS, 1, 2, 1), Share(dot, PARAMETERS, 5, 6, 1))
    assert book().replan(shares, now=200.0).reducers == [dot]


def test_who_has_no_part_left_is_not_a_reducer() -> None:
    books = book()
    books.replan((Share(ADA, PARAMETERS, 5, 6, 1),), now=200.0)
    assert books.reducers() == [ADA]


def test_what_comes_before_word_of_its_attempt_waits_for_it() -> None:
    books = book()
    assert books.is_to_come(key(5, 1))
    assert not any(books.is_to_come(which) for which in (key(5), key(2), PartKey(8, PARAMETERS, 5, 1), key(77, 1)))
    books.keep_for_later(key(5, 1), "ada")
    books.keep_result_for_later(key(0, 1), b"0" * 32)
    assert books.waits(key(5, 1), "ada")
    again = books.replan((Share(BOB, PARAMETERS, 5, 6, 1), Share(CYD, PARAMETERS, 0, 1, 1)), now=200.0)
    assert books.own[PARAMETERS, 5].arrived == {"ada"}
    assert again.arrived == [(key(0, 1), b"0" * 32)]
