"""Who is here: who can be dialled, who is named to a seeker, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shoal.coordinator.ledger import Ledger
from shoal.coordinator.records import RunCreated, SessionEnded, SessionOpened
from shoal.coordinator.roster import Presence, Roster, Standing
from shoal.protocol.messages import Contact

NAMES = ("ada", "bob", "cyd", "dot", "eve")


def roster_of(count: int, undialable: Iterable[str] = ()) -> Roster:
    """So many active members, ada with session 1, bob with session 2, ..."""
    ledger = Ledger()
    ledger.apply(RunCreated("run", b"{}"))
    roster = Roster(ledger)
    for session, peer in enumerate(NAMES[:count], start=1):
        address = "" if peer in undialable else f"{peer}:1"
        ledger.apply(SessionOpened(session, peer, "instance", address, peer.title()))
        roster.add(Presence(session, connection=10 * session, last_heard=0.0, standing=Standing.ACTIVE))
    return roster


def complain(roster: Roster, about: int, *complainers: str) -> None:
    roster[about].complaints.update(complainers)


def named(contacts: Iterable[Contact]) -> list[str]:
    return [contact.peer for contact in contacts]


# --- who is here ----------------------------------------------------------------------------------------------------------------


def test_active_are_those_with_the_state_a_stream_and_no_wish_to_leave() -> None:
    roster = roster_of(5)
    roster[2].standing = Standing.FETCHING
    roster[3].connection = None
    roster[4].goodbye = True
    assert [presence.session for presence in roster.active()] == [1, 5]


def test_members_may_end_while_one_looks_at_all_of_them() -> None:
    roster = roster_of(3)
    for presence in roster:
        roster.remove(presence.session)
    assert len(roster) == 0
    assert 1 not in roster
    assert roster.connection_of(1) is None


def test_a_member_is_called_by_its_name_and_the_start_of_its_id_here_or_not() -> None:
    roster = roster_of(1)
    assert roster.name(1) == "Ada (ada)"
    assert roster.name(9) == "session 9"
    roster._ledger.apply(SessionOpened(2, "0123456789abcdef", "instance", ""))
    assert roster.name(2) == "01234567"


# --- who can be dialled ---------------------------------------------------------------------------------------------------------


def test_who_does_not_listen_cannot_be_dialled() -> None:
    roster = roster_of(2, undialable=("bob",))
    assert roster.dialable(1)
    assert not roster.dialable(2)


@pytest.mark.parametrize(
    ("members", "complainers", "dialable"),
    [(1, 0, True), (2, 0, True), (2, 1, False), (3, 1, False), (4, 1, True), (5, 1, True), (5, 2, False)],
)
def test_half_of_the_others_make_a_member_undialable(members: int, complainers: int, dialable: bool) -> None:
    roster = roster_of(members)
    complain(roster, 1, *NAMES[1 : 1 + complainers])
    assert roster.dialable(1) is dialable


def test_one_who_complains_again_and_again_is_one() -> None:
    roster = roster_of(4)
    for _ in range(9):
        complain(roster, 1, "bob")
    assert roster.dialable(1)


def test_the_complaint_of_who_is_gone_does_not_count() -> None:
    roster = roster_of(4)
    complain(roster, 1, "bob", "cyd")
    assert not roster.dialable(1)
    roster.remove(3)
    roster._ledger.apply(SessionEnded(3, "left"))
    assert roster[1].complaints == {"bob", "cyd"}
    complain(roster, 2, "cyd")
    assert roster.dialable(2)


def test_all_are_forgiven_when_nobody_could_be_dialled() -> None:
    roster = roster_of(3, undialable=("cyd",))
    complain(roster, 1, "bob", "cyd")
    assert not roster.forgive_all()
    complain(roster, 2, "ada", "cyd")
    assert roster.forgive_all()
    assert roster[1].complaints == roster[2].complaints == set()
    assert not roster.forgive_all()


def test_nobody_is_forgiven_for_not_listening() -> None:
    assert not roster_of(2, undialable=("ada", "bob")).forgive_all()


# --- who is named to a seeker ---------------------------------------------------------------------------------------------------


def test_a_seeker_is_told_of_all_other_active_members_that_listen() -> None:
    roster = roster_of(5, undialable=("bob",))
    roster[3].standing = Standing.FETCHING
    roster[4].connection = None
    assert roster.contacts(1) == (Contact("eve", "eve:1"),)


def test_seekers_start_at_different_members() -> None:
    roster = roster_of(5)
    assert named(roster.contacts(5)) == ["bob", "cyd", "dot", "ada"]
    assert named(roster.contacts(4)) == ["ada", "bob", "cyd", "eve"]
    assert named(roster.contacts(3)) == ["eve", "ada", "bob", "dot"]


def test_those_that_failed_come_last_and_otherwise_keep_their_order() -> None:
    assert named(roster_of(5).contacts(5, failed=("cyd", "bob"))) == ["dot", "ada", "bob", "cyd"]


def test_members_that_do_not_have_the_newest_version_are_named_on_demand() -> None:
    roster = roster_of(3)
    roster[2].standing = Standing.ARRIVING
    assert named(roster.contacts(3)) == ["ada"]
    assert sorted(named(roster.contacts(3, only_active=False))) == ["ada", "bob"]


def test_only_those_asked_for_are_named() -> None:
    assert named(roster_of(5).contacts(0, among={2, 4})) == ["bob", "dot"]


def test_a_seeker_that_is_alone_is_told_of_nobody() -> None:
    assert roster_of(1).contacts(1) == ()
