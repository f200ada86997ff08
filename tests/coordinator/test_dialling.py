"""What becomes of a member that can, cannot, or can elsewhere be dialled back."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.coordinator.dialling import FIRST_PAUSE_S, LONGEST_PAUSE_S, Reach, Way
from shoal.coordinator.events import Connected, DialBack, DialledBack, Said
from shoal.coordinator.records import AddressLearnt
from shoal.protocol.admin import GetPeers, Peers
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    Complaint,
    Contact,
    Donors,
    Envelope,
    Heartbeat,
    Hello,
    Locate,
    Push,
    Reachability,
)
from tests.coordinator.test_core import GRACE_S, JOIN_WAIT_S, LAYOUT, PEER, Peer, Stage, spec

# --- where to dial --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advertised", "seen_from", "places"),
    [
        ("10.0.0.1:7", "10.0.0.1", ("10.0.0.1:7",)),
        ("192.168.1.5:7", "203.0.113.9", ("192.168.1.5:7", "203.0.113.9:7")),
        ("127.0.0.1:7", "10.9.0.2", ("10.9.0.2:7",)),
        ("localhost:7", "10.9.0.2", ("10.9.0.2:7",)),
        ("[::1]:7", "2001:db8::9", ("[2001:db8::9]:7",)),
        ("127.0.0.1:7", "127.0.0.1", ("127.0.0.1:7",)),
        ("127.0.0.1:7", "::1", ("127.0.0.1:7", "[::1]:7")),
        ("10.0.0.1:7", "127.0.0.1", ("10.0.0.1:7", "127.0.0.1:7")),
        ("home.example:7", "", ("home.example:7",)),
        ("169.254.169.254:80", "10.0.0.1", ("10.0.0.1:80",)),
        ("[fe80::1]:7", "", ()),
        ("", "10.0.0.1", ()),
    ],
)
def test_the_advertised_address_is_tried_and_then_where_the_member_is_seen(
    advertised: str, seen_from: str, places: tuple[str, ...]
) -> None:
    assert Way(advertised, seen_from).places == places


def test_pauses_between_tests_double_up_to_a_limit_and_start_anew_after_an_answer() -> None:
    way, pauses = Way("a.example:7"), []
    for _ in range(9):
        way.failed()
        pauses.append(way.pause_s)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    way.answered()
    way.failed()
    assert way.pause_s == FIRST_PAUSE_S


def test_what_was_found_out_holds_for_the_same_way_and_no_other() -> None:
    way = Way("a.example:7", "10.0.0.1", Reach.PROVEN)
    assert way.after_hello("a.example:7", "10.0.0.1").reach is Reach.PROVEN
    assert way.after_hello("a.example:7", "10.0.0.2").reach is Reach.UNTESTED
    assert way.after_hello("a.example:8", "10.0.0.1").reach is Reach.UNTESTED
    assert way.after_hello("", "10.0.0.1").reach is Reach.OUTBOUND


@pytest.mark.parametrize(
    ("advertised", "seen_from", "fix"),
    [
        (
            "192.168.1.5:7",
            "203.0.113.9",
            "let it map port 7 to this machine and join with --listen 0.0.0.0:7 --advertise 203.0.113.9:7",
        ),
        ("203.0.113.9:7", "203.0.113.9", "let firewalls pass port 7"),
    ],
)
def test_who_was_not_reached_hears_where_it_was_tried_and_what_to_do(advertised: str, seen_from: str, fix: str) -> None:
    said = Way(advertised, seen_from).refusal()
    assert said.address == ""
    assert "could not dial this peer at " + " and ".join(dict.fromkeys((advertised, f"{seen_from}:7"))) in said.reason
    assert fix in said.fix
    assert "--listen ''" in said.fix


# --- the coordinator's decisions ------------------------------------------------------------------------------------------------


def joins(stage: Stage, name: str, address: str, seen_from: str, **hello: Any) -> Peer:
    """A peer whose stream comes from somewhere."""
    peer = stage.peer(name, address)
    stage.connections += 1
    peer.connection = stage.connections
    stage.streams[peer.connection] = peer
    stage.on(Connected(peer.connection, name, PEER, seen_from))
    me = Hello("run", 1, hello.pop("minor", 2), peer.instance, NO_SESSION, NO_VERSION, b"", LAYOUT, address, name, **hello)
    stage.on(Said(peer.connection, Envelope(NO_SESSION, 0, me)))
    peer.is_at(0)
    return peer


def trials(stage: Stage, peer: Peer) -> list[DialBack]:
    return [effect for effect in stage.steps if isinstance(effect, DialBack) and effect.connection == peer.connection]


def told(stage: Stage, peer: Peer) -> str:
    return stage.core.ledger.members[peer.session].address


def reach(stage: Stage) -> dict[str, str]:
    listed = stage.ask(GetPeers())
    assert isinstance(listed, Peers)
    return {view.peer: view.reach for view in listed.peers}


def test_a_member_that_answers_where_it_says_is_proven_and_hears_nothing_of_it() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "10.0.0.1:7", "10.0.0.1")
    assert trials(stage, anna) == [DialBack(anna.connection, "anna", ("10.0.0.1:7",))]
    assert reach(stage) == {"anna": "not tried yet"}
    stage.on(DialledBack(anna.connection, "10.0.0.1:7"))
    assert reach(stage) == {"anna": "yes"}
    assert not anna.all(Reachability)
    assert not stage.journaled(AddressLearnt)


def test_a_member_that_advertises_its_own_loopback_is_told_to_others_where_it_was_reached_also_after_a_restart() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "127.0.0.1:7", "10.9.0.2")
    stage.on(DialledBack(anna.connection, "10.9.0.2:7"))
    assert told(stage, anna) == "10.9.0.2:7"
    heard = anna.last(Reachability)
    assert heard.address == "10.9.0.2:7"
    assert "10.9.0.2:7, where the coordinator reached it, and not at 127.0.0.1:7" in heard.reason
    assert "--advertise 10.9.0.2:7" in heard.fix
    assert stage.logged("anna) advertises 127.0.0.1:7, where it was not reached: others are told 10.9.0.2:7")
    stage.start()
    assert told(stage, anna) == "10.9.0.2:7"


def test_who_comes_to_catch_up_is_sent_to_the_corrected_address() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "127.0.0.1:7", "10.9.0.2")
    stage.on(DialledBack(anna.connection, "10.9.0.2:7"))
    ben = joins(stage, "ben", "10.9.0.3:7", "10.9.0.3")
    ben.says(Locate(NO_VERSION))
    assert ben.last(Donors).contacts == (Contact("anna", "10.9.0.2:7"),)


def test_a_member_that_was_not_reached_stays_hears_why_once_and_is_tried_again_ever_more_rarely() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "192.168.1.5:7", "203.0.113.9")
    for _ in range(3):
        stage.on(DialledBack(anna.connection, "", "192.168.1.5:7: unavailable: timed out"))
    assert [test.after_s for test in trials(stage, anna)] == [0.0, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert len(anna.all(Reachability)) == 1
    assert stage.logged("could not dial anna (anna): 192.168.1.5:7: unavailable: timed out")
    assert reach(stage) == {"anna": "no"}
    stage.on(DialledBack(anna.connection, "203.0.113.9:7"))  # its owner opened the port
    assert reach(stage) == {"anna": "yes"}
    assert stage.logged("can be dialled now, at 203.0.113.9:7")


def test_what_was_found_of_an_old_stream_says_nothing_of_the_new_one() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "127.0.0.1:7", "10.9.0.2")
    old = anna.connection
    anna.breaks()
    stage.wait(GRACE_S / 2)
    stage.on(DialledBack(old, "10.9.0.2:7"))
    assert not stage.journaled(AddressLearnt)
    anna.returns(address="10.9.0.4:7")
    stage.on(DialledBack(old, "10.9.0.2:7"))
    assert told(stage, anna) == "10.9.0.4:7"
    assert [test.addresses for test in trials(stage, anna)] == [("10.9.0.4:7",)]


def test_an_older_peer_is_dialled_back_too_and_is_sent_no_message_that_it_does_not_know() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "127.0.0.1:7", "10.9.0.2", minor=1)
    stage.on(DialledBack(anna.connection, "10.9.0.2:7"))
    assert told(stage, anna) == "10.9.0.2:7"
    assert not anna.all(Reachability)


def planned(stage: Stage, *peers: Peer) -> set[str]:
    """Who reduces when all of these are ready."""
    stage.wait(JOIN_WAIT_S)
    for peer in peers:
        peer.is_ready()
    return {share.reducer.peer for share in stage.plan.shares}


def test_whom_the_coordinator_did_not_reach_reduces_nothing_beside_one_that_it_reached() -> None:
    stage = Stage(spec(min_peers=3))
    peers = [joins(stage, name, f"{name}.example:7", "") for name in ("anna", "ben", "cleo")]
    stage.on(DialledBack(peers[0].connection, "", "refused"))
    stage.on(DialledBack(peers[1].connection, "ben.example:7"))
    assert planned(stage, *peers) == {"ben", "cleo"}


def test_fellows_in_a_network_that_the_coordinator_does_not_reach_reduce_among_themselves() -> None:
    stage = Stage(spec(min_peers=2))
    peers = [joins(stage, name, f"192.168.1.{number}:7", "203.0.113.9") for number, name in enumerate(("anna", "ben"), 1)]
    for peer in peers:
        stage.on(DialledBack(peer.connection, "", "timed out"))
    assert planned(stage, *peers) == {"anna", "ben"}


def test_those_whom_neither_coordinator_nor_fellows_reach_wait_with_the_fix_until_the_next_test() -> None:
    stage = Stage(spec(min_peers=2))
    peers = [joins(stage, name, f"192.168.1.{number}:7", "203.0.113.9") for number, name in enumerate(("anna", "ben"), 1)]
    for peer in peers:
        stage.on(DialledBack(peer.connection, "", "timed out"))
    planned(stage, *peers)
    round_id = stage.round
    peers[0].says(Complaint(round_id, "ben", "timed out"))
    peers[1].says(Complaint(round_id, "anna", "timed out"))  # nobody is left to reduce in this round, or in the next
    stage.wait(40.0)
    assert stage.core.round is None
    assert "--helper" in str(stage.core._waiting)
    stage.on(DialledBack(peers[1].connection, "203.0.113.9:7"))
    stage.wait(40.0)
    assert planned(stage, *peers) == {"ben"}


def test_a_complaint_about_a_proven_member_has_it_tried_at_once() -> None:
    stage = Stage(spec(min_peers=2))
    anna, ben = (joins(stage, name, f"{name}.example:7", "") for name in ("anna", "ben"))
    for peer in (anna, ben):
        stage.on(DialledBack(peer.connection, f"{peer.name}.example:7"))
    planned(stage, anna, ben)
    anna.says(Complaint(stage.round, "ben", "timed out"))
    assert [test.after_s for test in trials(stage, ben)] == [0.0, 0.0]
    assert len(trials(stage, anna)) == 1


def test_a_seeker_is_not_left_to_donors_that_the_coordinator_did_not_reach() -> None:
    """They are told to dial it, and are named as well: it may be nearer to them."""
    stage = Stage()
    anna = joins(stage, "anna", "192.168.1.5:7", "203.0.113.9")
    stage.on(DialledBack(anna.connection, "", "timed out"))
    ben = joins(stage, "ben", "198.51.100.1:7", "198.51.100.1")
    stage.on(DialledBack(ben.connection, "198.51.100.1:7"))
    anna.forget()
    ben.says(Locate(NO_VERSION))
    assert anna.last(Push).to == Contact("ben", "198.51.100.1:7")
    assert ben.last(Donors).contacts == (Contact("anna", ""), Contact("anna", "192.168.1.5:7"))


def test_operators_see_who_can_be_dialled_from_where_members_come_and_what_their_links_carry() -> None:
    stage = Stage()
    anna = joins(stage, "anna", "127.0.0.1:7", "10.9.0.2")
    stage.on(DialledBack(anna.connection, "10.9.0.2:7"))
    joins(stage, "ben", "", "10.9.0.3", helper=True)
    anna.says(Heartbeat("training", up_bytes_s=1.25e6, down_bytes_s=12.5e6))
    listed = stage.ask(GetPeers())
    assert isinstance(listed, Peers)
    shown = [(view.reach, view.address, view.seen_from, view.helper, view.up_bytes_s, view.down_bytes_s) for view in listed.peers]
    assert shown == [("yes", "10.9.0.2:7", "10.9.0.2", False, 1.25e6, 12.5e6), ("outbound only", "", "10.9.0.3", True, 0.0, 0.0)]
