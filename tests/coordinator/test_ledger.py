"""The ledger: what the journal's records add up to. No sample is ever leased twice, and none is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.ledger import KEPT_FINGERPRINTS, KEPT_SHOWINGS, Ledger, merge, split, total
from shoal.coordinator.records import (
    FingerprintAgreed,
    Grant,
    OriginBuilt,
    PauseSet,
    Record,
    Report,
    RoundAbandoned,
    RoundCommitted,
    RoundOpened,
    RunCreated,
    RunEnded,
    RunStopping,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    Showing,
    Spent,
    TermRaised,
    WorkReported,
)
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import NO_VERSION, Contribution, FragmentShape, Layout, Span

LAYOUT = Layout(b"L" * 32, 6, (FragmentShape(3),))


def positions(spans: list[Span]) -> list[int]:
    return [position for span in spans for position in range(span.start, span.stop)]


def joined(session: int) -> SessionOpened:
    return SessionOpened(session, f"peer{session}", "instance", f"host{session}:1")


def opened(number: int, members: tuple[int, ...], *grants: Grant, base: int = 0) -> RoundOpened:
    return RoundOpened(number, 0, 0, base, members, grants)


def committed(number: int, *spent: Spent, version: int = 1, tokens: int = 0) -> RoundCommitted:
    contributions = tuple(Contribution(f"peer{item.session}", item.weight) for item in spent)
    return RoundCommitted(version, number, 0, 0, version - 1, (), contributions, spent, tokens, 0.7, 0.9, 1.0, 2.0, 3.0)


def ledger_of(*records: Record) -> Ledger:
    ledger = Ledger()
    for record in (RunCreated("run", b"{}"), TermRaised(1), joined(1), joined(2), OriginBuilt(1, LAYOUT, b"r" * 32), *records):
        ledger.apply(record)
    return ledger


# --- spans ----------------------------------------------------------------------------------------------------------------------


@st.composite
def disjoint_spans(draw: st.DrawFn) -> list[Span]:
    """Spans in any order that share no sample, some of them touching."""
    spans, at = [], 0
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=8)):
        spans.append(Span(at + gap, at + gap + length))
        at += gap + length
    return draw(st.permutations(spans))


@given(disjoint_spans(), st.integers(0, 50))
def test_split_takes_the_first_samples_and_keeps_every_other_in_order(spans: list[Span], count: int) -> None:
    first, rest = split(spans, count)
    assert positions(first) == positions(spans)[:count]
    assert positions(rest) == positions(spans)[count:]


@given(disjoint_spans())
def test_merge_keeps_every_sample_once_in_order_and_joins_what_touches(spans: list[Span]) -> None:
    merged = merge(spans)
    assert positions(merged) == sorted(positions(spans))
    assert all(before.stop < after.start for before, after in itertools.pairwise(merged))


@given(disjoint_spans(), st.data())
def test_merge_refuses_a_sample_that_is_there_twice(spans: list[Span], data: st.DataObject) -> None:
    if not spans:
        return
    again = data.draw(st.sampled_from(positions(spans)))
    with pytest.raises(LocalProtocolError, match="leased twice"):
        merge([*spans, Span(again, again + 1)])


def test_split_cuts_inside_a_span() -> None:
    assert split([Span(7, 10), Span(0, 4)], 5) == ([Span(7, 10), Span(0, 2)], [Span(2, 4)])


# --- grants ---------------------------------------------------------------------------------------------------------------------


def test_the_first_grants_are_consecutive_in_the_order_of_the_wants() -> None:
    assert ledger_of().grants([(2, 3), (1, 4)]) == [Grant(2, (Span(0, 3),)), Grant(1, (Span(3, 7),))]


def test_whoever_wants_nothing_is_granted_nothing() -> None:
    assert ledger_of().grants([(1, 0), (2, 2)]) == [Grant(2, (Span(0, 2),))]


def test_returned_samples_are_granted_before_new_ones() -> None:
    ledger = ledger_of(
        opened(0, (1, 2), Grant(1, (Span(0, 4),)), Grant(2, (Span(4, 8),))), RoundAbandoned(0, "why"), SessionEnded(1, "lost")
    )
    assert ledger.free == [Span(0, 4)]
    assert ledger.grants([(2, 3), (2, 3)]) == [Grant(2, (Span(0, 3),)), Grant(2, (Span(3, 4), Span(8, 10)))]


def test_a_question_changes_nothing() -> None:
    ledger = ledger_of()
    assert ledger.grants([(1, 5)]) == ledger.grants([(1, 5)])
    assert (ledger.cursor, ledger.free, ledger.members[1].lease) == (0, [], [])


def test_a_grant_from_the_middle_of_returned_samples_leaves_both_ends_free() -> None:
    ledger = ledger_of(opened(0, (1,), Grant(1, (Span(0, 9),))), RoundAbandoned(0, "why"), SessionEnded(1, "lost"))
    ledger.apply(opened(1, (2,), Grant(2, (Span(3, 5),))))
    assert ledger.free == [Span(0, 3), Span(5, 9)]
    assert ledger.cursor == 9


Step = tuple[str, int, int]


@given(
    st.lists(st.tuples(st.sampled_from(("open", "commit", "abandon", "end")), st.integers(0, 3), st.integers(0, 9)), max_size=40)
)
def test_no_sample_is_leased_twice_or_lost_whatever_happens(steps: list[Step]) -> None:
    ledger = ledger_of(joined(3), joined(4))
    spent: list[int] = []
    for what, who, count in steps:
        sessions = sorted(ledger.members)
        if what == "open" and ledger.undecided is None and sessions:
            wants = [(session, (count + index) % 5) for index, session in enumerate(sessions)]
            ledger.apply(opened(ledger.next_round, tuple(sessions), *ledger.grants(wants), base=ledger.version))
        elif what == "commit" and ledger.undecided is not None:
            everybody = {**ledger.members, **ledger.limbo}
            session = sorted(everybody)[who % len(everybody)]
            samples = min(count, total(everybody[session].lease))
            spent += positions(split(everybody[session].lease, samples)[0])
            ledger.apply(committed(ledger.undecided.round, Spent(session, samples, samples * 10), version=ledger.version + 1))
        elif what == "abandon" and ledger.undecided is not None:
            ledger.apply(RoundAbandoned(ledger.undecided.round, "why"))
        elif what == "end" and who in range(len(sessions)):
            ledger.apply(SessionEnded(sessions[who], "lost"))
        held = [positions(member.lease) for member in (*ledger.members.values(), *ledger.limbo.values())]
        everything = [*spent, *positions(ledger.free), *(position for lease in held for position in lease)]
        assert sorted(everything) == list(range(ledger.cursor))


# --- the round in flight --------------------------------------------------------------------------------------------------------


def test_a_lost_members_lease_waits_for_the_outcome_of_the_round_in_flight() -> None:
    ledger = ledger_of(opened(0, (1, 2), Grant(1, (Span(0, 4),)), Grant(2, (Span(4, 8),))), SessionEnded(1, "lost"))
    assert ledger.free == []
    assert ledger.grants([(2, 2)]) == [Grant(2, (Span(8, 10),))]
    ledger.apply(RoundAbandoned(0, "why"))
    assert ledger.free == [Span(0, 4)]
    assert not ledger.limbo


def test_a_lost_members_committed_work_stays_spent() -> None:
    ledger = ledger_of(opened(0, (1, 2), Grant(1, (Span(0, 4),)), Grant(2, (Span(4, 8),))), SessionEnded(1, "lost"))
    ledger.apply(committed(0, Spent(1, 3, 30), tokens=30))
    assert ledger.free == [Span(3, 4)]
    assert ledger.committed_tokens == 30


def test_a_member_that_is_not_in_the_round_returns_its_lease_at_once() -> None:
    ledger = ledger_of(
        opened(0, (1, 2), Grant(2, (Span(0, 4),))), RoundAbandoned(0, "why"), opened(1, (1,)), SessionEnded(2, "left")
    )
    assert ledger.free == [Span(0, 4)]


def test_a_commit_spends_the_oldest_samples_of_a_lease_and_counts_the_tokens() -> None:
    ledger = ledger_of(opened(0, (1, 2), Grant(1, (Span(0, 4),)), Grant(2, (Span(4, 6),))))
    ledger.apply(committed(0, Spent(1, 3, 30), tokens=30))
    assert ledger.members[1].lease == [Span(3, 4)]
    assert ledger.members[1].committed_tokens == 30
    assert ledger.members[2].lease == [Span(4, 6)]
    assert (ledger.version, ledger.undecided) == (1, None)


def test_the_history_says_what_became_of_each_round() -> None:
    ledger = ledger_of(opened(0, (1, 2)), committed(0, Spent(1, 0, 30)), opened(1, (1,), base=1), RoundAbandoned(1, "nobody came"))
    first, second = ledger.history
    assert (first.state, first.version, len(first.who), len(first.included), first.weight) == ("committed", 1, 2, 1, 30)
    assert (first.gather_s, first.reduce_s, first.commit_s) == (1.0, 2.0, 3.0)
    assert (second.state, second.version, second.reason) == ("abandoned", NO_VERSION, "nobody came")


def test_only_the_newest_entries_and_fingerprints_are_kept() -> None:
    ledger = ledger_of()
    ledger.keep_entries = 2
    for number in range(5):
        ledger.apply(opened(number, (1,), base=number))
        ledger.apply(committed(number, version=number + 1))
    assert list(ledger.entries) == [4, 5]
    for version in range(1, KEPT_FINGERPRINTS + 1):
        ledger.apply(FingerprintAgreed(version, b"x" * 32, 2, 2))
    assert list(ledger.fingerprints) == list(range(1, KEPT_FINGERPRINTS + 1))


# --- sessions and the run -------------------------------------------------------------------------------------------------------


def test_what_each_member_did_is_kept_of_the_newest_rounds_only() -> None:
    ledger = ledger_of()
    for number in range(KEPT_SHOWINGS + 3):
        ledger.apply(opened(number, (1,), base=number))
        ledger.apply(replace(committed(number, version=number + 1), base=number, showings=(Showing("a", "in"),)))
        ledger.apply(WorkReported(number + 1, (Report("a", 1, 2, 3.0, 4.0, norm=2.0, cosine=0.5),)))
    kept = [summary.round for summary in ledger.history if summary.showings and summary.claims]
    assert kept == list(range(3, KEPT_SHOWINGS + 3))
    assert ledger.history[-1].claims == {"a": (2.0, 0.5)}


def test_a_resumed_session_keeps_its_lease_at_its_new_address() -> None:
    ledger = ledger_of(opened(0, (1,), Grant(1, (Span(0, 4),))), SessionResumed(1, "another", "elsewhere:2"))
    member = ledger.member_of("peer1")
    assert member is not None
    assert (member.instance, member.address, member.lease) == ("another", "elsewhere:2", [Span(0, 4)])
    assert ledger.member_of("stranger") is None


def test_session_and_round_numbers_are_never_used_again() -> None:
    ledger = ledger_of(SessionEnded(2, "left"), opened(7, (1,)), RoundAbandoned(7, "why"))
    assert (ledger.next_session, ledger.next_round) == (3, 8)


def test_a_version_0_can_be_replaced_until_a_round_binds_it() -> None:
    ledger = ledger_of(OriginBuilt(2, LAYOUT, b"s" * 32))
    assert ledger.fingerprints[0].root == b"s" * 32
    assert not ledger.bound
    ledger.apply(opened(0, (1,)))
    assert ledger.bound


def test_pause_stop_and_end_are_remembered() -> None:
    ledger = ledger_of(PauseSet(True, "op"))
    assert ledger.paused
    for record in (PauseSet(False, "op"), RunStopping("op", "enough"), RunEnded(0, "enough")):
        ledger.apply(record)
    assert not ledger.paused
    assert ledger.stopping == RunStopping("op", "enough")
    assert ledger.ended == RunEnded(0, "enough")


CONTRADICTIONS: dict[str, tuple[tuple[Record, ...], Record]] = {
    "a term that does not rise": ((), TermRaised(1)),
    "a session that was there before": ((), joined(2)),
    "a session resumed that is not there": ((), SessionResumed(9, "i", "a:1")),
    "a session ended twice": ((SessionEnded(1, "left"),), SessionEnded(1, "left")),
    "a version 0 after a round bound it": ((opened(0, (1,)), RoundAbandoned(0, "why")), OriginBuilt(1, LAYOUT, b"s" * 32)),
    "a second round in flight": ((opened(0, (1,)),), opened(1, (1,))),
    "a round number used again": ((opened(0, (1,)), RoundAbandoned(0, "why")), opened(0, (1,))),
    "a round on another version": ((), opened(0, (1,), base=1)),
    "a member that is not there": ((), opened(0, (1, 9))),
    "a grant to nobody": ((), opened(0, (1,), Grant(9, (Span(0, 4),)))),
    "a sample granted twice": (
        (opened(0, (1,), Grant(1, (Span(0, 4),))), RoundAbandoned(0, "")),
        opened(1, (2,), Grant(2, (Span(3, 6),))),
    ),
    "a sample granted to two": ((), opened(0, (1, 2), Grant(1, (Span(0, 4),)), Grant(2, (Span(0, 4),)))),
    "samples that are left out": ((), opened(0, (1,), Grant(1, (Span(2, 4),)))),
    "a commit of no round": ((), committed(0)),
    "a commit of another round": ((opened(0, (1,)),), committed(1)),
    "a commit that skips a version": ((opened(0, (1,)),), committed(0, version=2)),
    "a commit that spends nobody's lease": ((opened(0, (1,)),), committed(0, Spent(9, 1, 10))),
    "an abandonment of another round": ((opened(0, (1,)),), RoundAbandoned(1, "why")),
    "an abandonment of no round": ((), RoundAbandoned(0, "why")),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_record_that_contradicts_the_ones_before_is_an_error(name: str) -> None:
    before, wrong = CONTRADICTIONS[name]
    ledger = ledger_of(*before)
    with pytest.raises(LocalProtocolError, match="twice|contradicts"):
        ledger.apply(wrong)
