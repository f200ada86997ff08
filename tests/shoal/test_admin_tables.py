"""What an operator reads of rounds: deadlines, and what each peer did."""

from __future__ import annotations

from shoal.admintables import peers_of_rounds
from shoal.protocol.admin import RoundPeerView, Rounds, RoundView


def test_a_rounds_peers_stand_under_its_deadlines() -> None:
    peers = (
        RoundPeerView("a" * 32, "anna", "in", 4000, 5.25, 7.5, 2.5, 0.75),
        RoundPeerView("b" * 32, "ben", "late", 0, 0.0, 90.0, 0.0, 0.0),
    )
    view = RoundView(
        7,
        6,
        "committed",
        2,
        1,
        4000,
        0,
        0.0,
        0.0,
        9.5,
        1.0,
        0.25,
        "",
        gather_limit_s=9.5,
        reduce_limit_s=6.0,
        usual_gather_s=5.0,
        peers=peers,
    )
    assert peers_of_rounds(Rounds((view,))) == [
        "round 7, version 6: gather 9.50 s (usually 5.00, at most 9.5); reduce 1.00 s (at most 6); commit 0.25 s",
        "  peer      name  work  tokens  ready s  asked at  norm  cosine",
        "  aaaaaaaa  anna  in    4.0k    5.25     7.50      2.5   +0.750",
        "  bbbbbbbb  ben   late  0                90.00",
        "norm of a peer's update, and its cosine to the mean of the round: what that peer says of itself",
    ]


def test_a_round_in_flight_and_no_round_at_all_are_lines_too() -> None:
    view = RoundView(0, -1, "open", 2, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, "")
    assert peers_of_rounds(Rounds((view,)))[0] == "round 0, open: gather 0.00 s; reduce 0.00 s; commit 0.00 s"
    assert peers_of_rounds(Rounds(())) == ["no rounds yet"]
