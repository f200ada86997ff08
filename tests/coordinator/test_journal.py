"""The journal keeps what it said it kept, for one coordinator at a time."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.coordinator import journal as journal_module
from shoal.coordinator.journal import Journal, JournalError, journal_url
from shoal.coordinator.records import (
    FingerprintAgreed,
    Grant,
    OriginBuilt,
    PauseSet,
    Record,
    RoundCommitted,
    RoundOpened,
    RunCreated,
    Spent,
    TermRaised,
)
from shoal.protocol.errors import InviteError
from shoal.protocol.invites import token_digest
from shoal.protocol.messages import Contribution, Decision, FragmentShape, Layout, Section, Span

RIGHTS = frozenset({"peer", "reducer"})
RECORDS: tuple[Record, ...] = (
    RunCreated("demo", b'{"run": 1}'),
    TermRaised(3),
    OriginBuilt(1, Layout(b"h" * 32, 77, (FragmentShape(5, 1), FragmentShape(4))), b"r" * 32),
    RoundOpened(7, 0, 0, 2, (1, 2), (Grant(1, (Span(0, 5), Span(9, 12))), Grant(2, ()))),
    RoundCommitted(
        version=3,
        round=7,
        group=0,
        fragment=0,
        base=2,
        parts=(Decision(Section.PARAMETERS, 0, 1, b"d" * 32, ("a", "b"), 384.5),),
        contributions=(Contribution("a", 128), Contribution("b", 256)),
        spent=(Spent(1, 3, 128),),
        committed_tokens=10**12,
        outer_lr=0.7,
        outer_momentum=0.1 + 0.2,
    ),
    FingerprintAgreed(3, b"f" * 32, 2, 3, flagged=True),
    PauseSet(False, "op"),
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return journal_url(tmp_path / "journal.db")


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    opened = Journal.open(url)
    yield opened
    opened.close()


def test_records_come_back_equal_and_in_order_after_a_restart(url: str) -> None:
    first = Journal.open(url)
    first.append(RECORDS[:3])
    first.append(RECORDS[3:])
    first.close()
    second = Journal.open(url)
    assert tuple(second.records()) == RECORDS
    assert [entry.number for entry in second.entries(last=2)] == [6, 7]
    assert all(abs(entry.at - time.time()) < 60 for entry in second.entries())
    second.close()


def test_a_long_journal_is_read_page_by_page(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PAGE", 4)
    for count in (0, 3, 4, 5, 8, 9):
        journal.append(TermRaised(n) for n in range(len(list(journal.records())), count))
        assert list(journal.records()) == [TermRaised(n) for n in range(count)]
    assert [entry.record for entry in journal.entries(last=5)] == [TermRaised(n) for n in range(4, 9)]
    assert len(list(journal.entries(last=100))) == 9


@pytest.mark.parametrize("body", ["{", "{}", '{"term": "x"}', '{"term": 1, "moon": 2}'])
def test_a_damaged_record_is_refused_by_number(journal: Journal, body: str) -> None:
    journal.append([TermRaised(1)])
    with journal._transaction() as connection:
        connection.exec_driver_sql(f"INSERT INTO records (at, kind, body) VALUES (0, 'TermRaised', '{body}')")
    with pytest.raises(JournalError, match="record 2 of .* is damaged"):
        list(journal.records())


def test_a_second_coordinator_is_refused_and_told_who_has_the_journal(journal: Journal, url: str) -> None:
    with pytest.raises(JournalError, match=rf"another coordinator \(process {os.getpid()}\) has the journal .*journal\.db"):
        Journal.open(url)


def test_the_lock_dies_with_a_killed_process_and_its_records_do_not(url: str) -> None:
    program = (
        "import sys, time\n"
        "from shoal.coordinator.journal import Journal\n"
        "from shoal.coordinator.records import TermRaised\n"
        f"journal = Journal.open({url!r})\n"
        "journal.append([TermRaised(41)])\n"
        "print('written', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"written\n"
        with pytest.raises(JournalError, match=rf"process {holder.pid}"):
            Journal.open(url)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=10)
    after = Journal.open(url)
    assert list(after.records()) == [TermRaised(41)]
    after.close()


def test_every_commit_waits_for_the_disk(journal: Journal) -> None:
    with journal._transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_an_append_that_fails_half_way_leaves_nothing(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append([TermRaised(1)])

    def full_disk() -> Iterator[Record]:
        yield TermRaised(2)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        journal.append(full_disk())
    assert list(journal.records()) == [TermRaised(1)]


def test_a_database_error_names_the_journal(journal: Journal, tmp_path: Path) -> None:
    with journal._transaction() as connection:
        connection.exec_driver_sql("DROP TABLE records")
    with pytest.raises(JournalError, match=r"journal\.db: no such table: records"):
        journal.append([TermRaised(1)])


def test_a_record_of_a_newer_program_is_refused_by_name(journal: Journal, tmp_path: Path) -> None:
    with journal._transaction() as connection:
        connection.exec_driver_sql("INSERT INTO records (at, kind, body) VALUES (0, 'MoonPhase', '{}')")
    with pytest.raises(JournalError, match=r"'MoonPhase'.*newer shoal"):
        list(journal.records())


def test_a_journal_of_a_newer_format_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "FORMAT", 2)
    Journal.open(url).close()
    monkeypatch.setattr(journal_module, "FORMAT", 1)
    with pytest.raises(JournalError, match="format 2, this shoal reads up to 1"):
        Journal.open(url)


@pytest.mark.parametrize("url", ["postgresql://localhost/run", "sqlite://"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(JournalError, match="SQLite file"):
        Journal.open(url)


def test_a_place_that_is_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open the journal"):
        Journal.open(journal_url(tmp_path / "file" / "journal.db"))


def test_a_file_that_is_no_journal_is_one_clear_error_and_unlocks(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database" * 100)
    for _ in range(2):
        with pytest.raises(JournalError, match="not a database"):
            Journal.open(journal_url(tmp_path / "journal.db"))


def test_an_invite_admits_as_many_peers_as_it_says(journal: Journal) -> None:
    journal.add_invite("secret", uses=2, lifetime_s=60, by="op")
    assert journal.enrol("a", "secret", RIGHTS).rights == RIGHTS
    journal.enrol("b", "secret", RIGHTS)
    with pytest.raises(InviteError, match="used up"):
        journal.enrol("c", "secret", RIGHTS)
    assert journal.enrolled("c") is None


def test_an_enrolled_peer_comes_back_with_a_used_up_invite_at_no_cost(journal: Journal) -> None:
    journal.add_invite("secret", uses=2, lifetime_s=60, by="op")
    for _ in range(5):
        journal.enrol("a", "secret", RIGHTS)
    journal.enrol("b", "secret", RIGHTS)
    assert journal.enrol("a", "whatever", frozenset({"admin"})).rights == RIGHTS


def test_a_revoked_invite_admits_nobody_and_who_came_in_with_it_comes_back(journal: Journal) -> None:
    for token in ("one", "other"):
        journal.add_invite(token, uses=2, lifetime_s=60, by="op")
    journal.enrol("a" * 32, "one", frozenset({"peer"}))
    assert journal.revoke_invite(token_digest("one")[:6]) == token_digest("one")[:12]
    with pytest.raises(InviteError, match="revoked by the run's operator"):
        journal.enrol("b" * 32, "one", frozenset({"peer"}))
    assert journal.enrol("a" * 32, "one", frozenset({"peer"})).peer == "a" * 32
    assert journal.enrol("b" * 32, "other", frozenset({"peer"})).peer == "b" * 32
    seen = [(known.id, known.state, known.uses_left, known.enrolled) for known in journal.invites()]
    assert seen == [(token_digest("one")[:12], "revoked", -1, 1), (token_digest("other")[:12], "open", 1, 1)]


def test_an_id_that_fits_several_invites_or_none_revokes_nothing(journal: Journal) -> None:
    tokens: dict[str, str] = {}
    for token in map(str, itertools.count()):
        if (twice := token_digest(token)[:4]) in tokens:
            journal.add_invite(token, uses=1, lifetime_s=60, by="op")
            journal.add_invite(tokens[twice], uses=1, lifetime_s=60, by="op")
            break
        tokens[twice] = token
    for text, why in (
        (twice, "several invites begin with"),
        ("0" * 20, "no invite begins"),
        ("%", "no invite's id"),
        ("abc", "id"),
    ):
        with pytest.raises(InviteError, match=why):
            journal.revoke_invite(text)
    assert {known.state for known in journal.invites()} == {"open"}


def test_an_unknown_and_an_expired_invite_are_told_apart(journal: Journal) -> None:
    journal.add_invite("old", uses=2, lifetime_s=-1, by="op")
    with pytest.raises(InviteError, match="does not know this invite"):
        journal.enrol("a", "guess", RIGHTS)
    with pytest.raises(InviteError, match=r"expired at \d{4}-.* UTC \(now \d{4}-"):
        journal.enrol("a", "old", RIGHTS)


def test_the_file_holds_no_token_in_clear(journal: Journal, tmp_path: Path) -> None:
    journal.add_invite("very-secret-token", uses=1, lifetime_s=60, by="op")
    files = list(tmp_path.glob("journal.db*"))
    assert len(files) >= 2
    assert all(b"very-secret-token" not in file.read_bytes() for file in files)


def test_a_use_is_not_spent_when_the_enrolment_is_not_recorded(journal: Journal, tmp_path: Path) -> None:
    journal.add_invite("secret", uses=1, lifetime_s=60, by="op")
    with journal._transaction() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON enrolled BEGIN SELECT RAISE(ABORT, 'no space left on device'); END"
        )
    with pytest.raises(JournalError, match="no space"):
        journal.enrol("a", "secret", RIGHTS)
    with sqlite3.connect(tmp_path / "journal.db") as raw:
        assert raw.execute("SELECT uses_left FROM invites").fetchall() == [(1,)]
    raw.close()


def test_a_full_disk_is_said_with_what_to_do(journal: Journal) -> None:
    with journal._transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalError, match="database or disk is full — free some space on its disk, then serve the run again"):
        journal.audit("op", "x" * 100_000, "done")
    with journal._transaction() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    journal.audit("op", "y", "done")
    assert [line.what for line in journal.audited()] == ["y"]


def test_operators_commands_are_kept_in_order(journal: Journal) -> None:
    for number in range(5):
        journal.audit("op", f"Pause {number}", "done")
    last = journal.audited(last=3)
    assert [(line.who, line.what, line.result) for line in last] == [("op", f"Pause {n}", "done") for n in (2, 3, 4)]


def test_a_thread_that_comes_after_the_end_does_not_write_without_the_lock(tmp_path: Path) -> None:
    journal = Journal.open(journal_url(tmp_path / "journal.db"))
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.audit("somebody", "something", "nothing")
    again = Journal.open(journal_url(tmp_path / "journal.db"))
    assert again.audited() == ()
    again.close()
