"""What operators' verbs do to a run: kick, ban, unban, drain, set, and the contribution ledger. Peers as in `test_core`."""

from __future__ import annotations

import pytest

from shoal.coordinator import naming, settings
from shoal.coordinator.events import Bar
from shoal.coordinator.records import (
    DrainAsked,
    PeerBanned,
    PeerKicked,
    PeerUnbanned,
    RoundOpened,
    SessionEnded,
    SettingChanged,
    WorkReported,
)
from shoal.protocol.admin import (
    AdminError,
    Ban,
    Change,
    Done,
    Drain,
    GetLeaderboard,
    GetPeers,
    GetRounds,
    GetSettings,
    Kick,
    Leaderboard,
    Peers,
    Rounds,
    RunSettings,
    Stop,
    Unban,
)
from shoal.protocol.messages import (
    Applied,
    Barred,
    Commit,
    Dismissed,
    Finish,
    Goodbye,
    Heartbeat,
    Leave,
    Open,
    Refused,
    Replan,
    Welcome,
)
from tests.coordinator.test_core import LAYOUT, Stage, spec


def error(stage: Stage, command: Kick | Ban | Unban | Drain | Change) -> str:
    reply = stage.ask(command)
    assert isinstance(reply, AdminError), reply
    return f"{reply.reason} — {reply.fix}"


# --- kick, ban, unban -----------------------------------------------------------------------------------------------------------


def test_a_kicked_member_is_out_at_once_does_not_come_back_by_itself_and_may_return() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    assert stage.ask(Kick("bob", "too slow")) == Done("kicked bob (bob): it may return when its owner joins again")
    assert stage.journaled(PeerKicked) == [PeerKicked("bob", "operator", "too slow")]
    dismissed = bob.last(Dismissed)
    assert dismissed.reason == "was kicked by an operator (too slow); it may join again"
    assert not dismissed.may_return
    assert bob.connection not in stage.streams
    ada.is_ready()
    ada.closes_its_parts()
    ada.has()
    assert stage.core.ledger.version == 1
    bob.forget()
    bob.session = 0
    bob.returns()
    assert bob.all(Welcome)


def test_what_a_kicked_reducer_had_in_hand_is_reduced_by_the_others() -> None:
    stage = Stage()
    ada, bob = stage.reducing("ada", "bob")
    stage.ask(Kick("bob"))
    assert {share.reducer.peer for share in ada.last(Replan).shares} == {"ada"}
    ada.closes_its_parts("ada")
    ada.has()
    assert ada.last(Commit).version == 1
    assert ada.last(Open).round == 1
    assert bob.connection not in stage.streams


def test_a_banned_identity_is_refused_everywhere_until_it_is_unbanned() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.steps.clear()
    reply = stage.ask(Ban("bob", "sent noise"))
    assert isinstance(reply, Done)
    assert reply.text.startswith("banned bob (bob)")
    assert stage.journaled(PeerBanned) == [PeerBanned("bob", "operator", "sent noise")]
    assert Bar(frozenset({"bob"})) in stage.steps
    assert ada.last(Barred) == Barred(("bob",))
    assert bob.last(Dismissed).reason == "was banned by an operator (sent noise)"
    bob.session = 0
    bob.dial()
    assert bob.last(Refused).code == "BANNED"
    cyd = stage.peer("cyd")
    cyd.dial()
    assert cyd.last(Barred) == Barred(("bob",))
    assert stage.ask(Unban("bob")) == Done("unbanned bob (bob): it may join again")
    assert stage.journaled(PeerUnbanned) == [PeerUnbanned("bob", "operator")]
    assert ada.last(Barred) == Barred(())
    assert Bar(frozenset()) in stage.steps
    bob.forget()
    bob.dial()
    assert not bob.all(Refused)


def test_a_ban_outlives_the_coordinator_and_the_shell_hears_of_it_first_thing() -> None:
    stage = Stage()
    stage.members("ada", "bob")
    stage.ask(Ban("bob"))
    stage.steps.clear()
    stage.start()
    assert Bar(frozenset({"bob"})) in stage.steps[:3]
    bob = stage.peer("bob")
    bob.dial()
    assert bob.last(Refused).code == "BANNED"


def test_an_identity_that_was_never_here_is_banned_by_its_whole_id_only() -> None:
    stage = Stage()
    stranger = "0123456789abcdef" * 2
    assert isinstance(stage.ask(Ban(stranger)), Done)
    assert stage.core.ledger.banned == {stranger}
    assert "no peer 'eve' is known in this run" in error(stage, Ban("eve"))
    assert isinstance(stage.ask(Ban(stranger)), Done)
    assert len(stage.journaled(PeerBanned)) == 1, "it was banned already"


def test_an_older_peer_is_not_sent_words_that_it_does_not_know() -> None:
    stage = Stage()
    ada = stage.peer("ada")
    ada.dial(minor=0)
    ada.is_at(0)
    stage.ask(Ban("0123456789abcdef" * 2))
    assert not ada.all(Barred)
    stage.ask(Drain("ada"))
    assert ada.last(Dismissed).reason == "was drained by an operator"
    assert not ada.last(Dismissed).may_return
    assert not ada.all(Leave)


@pytest.mark.parametrize("verb", [Kick, Drain])
def test_who_is_not_here_cannot_be_kicked_or_drained(verb: type[Kick] | type[Drain]) -> None:
    stage = Stage()
    stage.members("ada", "bob")
    assert "no peer 'eve' is in the run now" in error(stage, verb("eve"))
    stage.ask(Kick("bob"))
    assert "no peer 'bob' is in the run now" in error(stage, verb("bob"))


def test_nobody_is_kicked_from_a_run_that_ended_but_an_identity_can_still_be_banned() -> None:
    stage = Stage()
    ada = stage.peer("ada")
    ada.dial()
    ada.is_at(0)
    stage.ask(Stop())
    for command in (Kick("ada"), Drain("ada"), Change("run.min_peers", "2")):
        assert "the run ended at version 0" in error(stage, command)
    assert isinstance(stage.ask(Ban("ada")), Done)


def test_unbanning_who_is_not_banned_is_an_error() -> None:
    stage = Stage()
    stage.members("ada", "bob")
    assert "no peer 'bob' is banned" in error(stage, Unban("bob"))


# --- drain ----------------------------------------------------------------------------------------------------------------------


def test_a_drained_member_finishes_its_round_and_is_told_to_leave_before_the_next_opens() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    assert stage.ask(Drain("bob")) == Done("draining bob (bob): it leaves when its round is over")
    stage.ask(Drain("bob"))
    assert stage.journaled(DrainAsked) == [DrainAsked(bob.session, "operator")]
    assert not bob.all(Leave)
    listed = stage.ask(GetPeers())
    assert isinstance(listed, Peers)
    assert [(view.name, view.draining) for view in listed.peers] == [("ada", False), ("bob", True)]
    stage.commit_round([ada, bob])
    assert bob.last(Leave) == Leave("an operator drains it")
    assert ada.last(Open).members == 1
    assert bob.last(Open).round == 0
    bob.says(Goodbye("drained"))
    assert stage.journaled(SessionEnded) == [SessionEnded(bob.session, "left: drained")]
    contributors = [c.peer for c in stage.core.ledger.entries[1].contributions]
    assert contributors == ["ada", "bob"]


def test_who_is_in_no_round_is_drained_at_once_and_the_last_one_writes_the_model_first() -> None:
    stage = Stage(spec(min_peers=2))
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    bob.says(Goodbye())
    ada.is_ready()
    ada.closes_its_parts()
    ada.has()
    assert stage.core.round is None
    stage.ask(Drain("ada"))
    assert ada.all(Leave)
    ada.says(Goodbye())
    assert ada.last(Finish).run_is_over is False


def test_a_drain_is_remembered_over_a_restart_and_ends_with_the_membership() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.ask(Drain("bob"))
    stage.start()
    for peer in (ada, bob):
        peer.returns(session=peer.session)
    assert bob.all(Leave)
    assert not ada.all(Leave)
    bob.says(Goodbye())
    bob.session = 0
    bob.forget()
    bob.returns()
    assert not bob.all(Leave)


# --- settings -------------------------------------------------------------------------------------------------------------------


def test_a_changed_setting_acts_at_once_and_outlives_the_coordinator() -> None:
    stage = Stage(spec(min_peers=3))
    ada, bob = stage.peer("ada"), stage.peer("bob")
    for peer in (ada, bob):
        peer.dial()
        peer.is_at(0)
    stage.wait(10)
    assert stage.core.round is None
    assert stage.ask(Change("run.min_peers", "2")) == Done("run.min_peers is 2 from now on")
    stage.wait(1)
    assert stage.core.round is not None
    assert stage.journaled(SettingChanged) == [SettingChanged("run.min_peers", "2", "operator")]
    stage.start()
    assert stage.core.spec.run.min_peers == 2
    assert stage.core.spec.timing == stage.spec.timing
    listed = stage.ask(GetSettings())
    assert isinstance(listed, RunSettings)
    (row,) = [entry for entry in listed.settings if entry.key == "run.min_peers"]
    assert (row.value, row.initial) == ("2", "3")
    assert {entry.key for entry in listed.settings} == set(settings.CHANGEABLE)
    assert all(entry.meaning for entry in listed.settings)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("run.min_peers", "many", "'many' is not a number"),
        ("run.min_peers", "0", "run.min_peers"),
        ("run.min_peers", "2.5", "run.min_peers"),
        ("run.min_peers", "2\nseed = 3", "is not a number"),
        ("run.min_peers", "true", "is not a number"),
        ("timing.reduce_s", "nan", "timing.reduce_s"),
        ("timing.part_s", "4000", "timing.part_s 4000 exceeds timing.reduce_s"),
        ("train.lr", "0.1", "train.lr is fixed for this run"),
        ("codec.return", '"raw"', "codec.return is fixed for this run"),
        ("run.colour", "1", "there is no setting 'run.colour'"),
        ("run.total_tokens", "80", "80 tokens are trained already — end the run with `shoal admin stop`"),
    ],
)
def test_what_cannot_be_set_is_refused_in_words_and_changes_nothing(key: str, value: str, words: str) -> None:
    stage = Stage()
    stage.commit_round(stage.members("ada", "bob"))
    assert words in error(stage, Change(key, value))
    assert stage.core.spec == stage.spec
    assert not stage.journaled(SettingChanged)


def test_a_run_whose_total_is_lowered_ends_there() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    stage.ask(Change("run.total_tokens", "160"))
    stage.commit_round([ada, bob])
    assert ada.last(Finish).reason == "all 160 tokens are trained"


# --- names ----------------------------------------------------------------------------------------------------------------------

IDS = {"a1b2c3d4e5": "ann", "a1b2ffff00": "bob", "0c0c0c0c0c": "ann", "bead000000": ""}


@pytest.mark.parametrize(
    ("text", "found"),
    [("bob", "a1b2ffff00"), ("a1b2f", "a1b2ffff00"), ("a1b2c3d4e5", "a1b2c3d4e5"), ("bead", "bead000000")],
)
def test_a_peer_is_found_by_name_id_or_the_beginning_of_it(text: str, found: str) -> None:
    assert naming.find(text, IDS, "here") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ann", "'ann' may mean 2 peers: ann (a1b2c3d4), ann (0c0c0c0c)"),
        ("a1b2", "may mean 2 peers"),
        ("bea", "no peer 'bea' is here"),
        ("", "no peer '' is here"),
        ("zoe", "no peer 'zoe' is here"),
    ],
)
def test_who_may_be_several_or_nobody_is_refused(text: str, words: str) -> None:
    reply = naming.find(text, IDS, "here")
    assert isinstance(reply, AdminError)
    assert words in reply.reason


def test_a_name_that_is_the_beginning_of_anothers_id_is_ambiguous() -> None:
    assert isinstance(naming.find("a1b2c", {**IDS, "ffffffffff": "a1b2c"}, "here"), AdminError)


# --- what everybody did ---------------------------------------------------------------------------------------------------------


def test_contributions_add_up_over_memberships_and_restarts() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    stage.commit_round([ada, bob])
    ada.says(Applied(1, 100, 90, 2.0, 0.5))
    bob.says(Applied(1, 50, 60, 3.0, 0.25))
    bob.says(Applied(1, 50, 60, 3.0, 0.25))
    assert len(stage.journaled(WorkReported)) == 1, "as soon as all have reported"
    stage.commit_round([ada, bob])
    assert len(stage.journaled(RoundOpened)) == 3, "with each opening what was reported meanwhile is journaled"
    assert [record.version for record in stage.journaled(WorkReported)] == [1], "and each report once"
    bob.says(Goodbye())
    bob.session = 0
    bob.returns(name="bobby")
    for peer in (ada, bob):
        peer.is_ready()
    for _ in range(2):
        board = stage.ask(GetLeaderboard(10))
        assert isinstance(board, Leaderboard)
        assert board.committed_tokens == 160
        rows = [(row.name, row.tokens, row.rounds, row.sent_bytes, row.received_bytes) for row in board.contributors]
        assert rows == [("ada", 80, 2, 100, 90), ("bobby", 80, 2, 50, 60)]
        stage.start()
    board = stage.ask(GetLeaderboard(1))
    assert isinstance(board, Leaderboard)
    assert [row.name for row in board.contributors] == ["ada"]


def test_a_round_is_shown_beside_what_was_expected_of_it() -> None:
    stage = Stage()
    ada, bob = stage.members("ada", "bob")
    ada.says(Heartbeat(tokens_per_s=20.0))
    bob.says(Heartbeat(tokens_per_s=10.0))
    stage.commit_round([ada, bob])
    ada.is_ready()
    bob.is_ready(0)
    for peer in (ada, bob):
        peer.closes_its_parts()
    for peer in (ada, bob):
        peer.has()
    for _ in range(2):
        rounds = stage.ask(GetRounds(10))
        assert isinstance(rounds, Rounds)
        first, second = rounds.rounds[:2]
        assert (first.members, first.contributors, first.weight, first.expected_weight) == (2, 2, 80, 80)
        assert first.expected_gather_s == 0.0, "nobody had trained before it opened"
        assert (second.contributors, second.weight, second.expected_weight, second.absent) == (1, 40, 80, ("bob",))
        assert second.expected_gather_s == 4.0, "bob needs 40 tokens at 10 per second"
        # int8 with scales of 1024 values: 2 contributors keep a share each of 30 values; one result goes to the other member.
        assert first.expected_bytes == round(LAYOUT.values * (1 + 4 / 1024) * (1 + 1))
        stage.start()
