"""The run's memory: an append-only list of records, who enrolled, open invites, what operators did, and the latest events as people
read them. One SQLite file.

Rule: when a method returns, what it wrote survives `kill -9` and a power cut (`synchronous=FULL`); a method writes all or nothing.
Exactly one coordinator may hold a journal: `open` takes an operating-system lock on a file beside it, which dies with its process.

The records are the coordinator's state (a fold over `records`); the other tables are the shell's own. Invite tokens are kept as
SHA-256 only, and a use of an invite is taken in the transaction that records the enrolment it paid for. Times in here are
wall-clock seconds since 1970, for people; no decision of the core rests on them. Neighbours: `records` says what is remembered,
`performer` appends it, `enrolment` and `operators` keep the other tables.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import sqlalchemy as sa

from shoal.coordinator.records import Record
from shoal.protocol.errors import InviteError, RemoteProtocolError, ShoalError
from shoal.protocol.invites import ID_LENGTH, token_digest
from shoal.protocol.locks import FileLock, LockHeldError
from shoal.protocol.messages import PeerId
from shoal.protocol.plain import from_plain, to_plain
from shoal.protocol.tls import utc

FORMAT = 1
"""Raised when an older program could no longer read the file."""

EVENTS_KEPT = 10_000
"""Lines of the run's history; older ones are forgotten, so that a run that fails for weeks does not fill the disk."""
AUDIT_KEPT = 100_000
"""Operators' commands; the same."""
PAGE = 1000
"""Records read at once."""
REVOKED = -1
"""Uses left of an invite that an operator took back."""
INVITES_LISTED = 1000
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Record)}

_tables = sa.MetaData()
_about = sa.Table(
    "about",
    _tables,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)
_records = sa.Table(
    "records",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
_invites = sa.Table(
    "invites",
    _tables,
    sa.Column("token_sha256", sa.String(64), primary_key=True),
    sa.Column("uses_left", sa.Integer, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("made_by", sa.String, nullable=False),
)
_enrolled = sa.Table(
    "enrolled",
    _tables,
    sa.Column("peer", sa.String(32), primary_key=True),
    sa.Column("rights", sa.String, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("invite_sha256", sa.String(64), nullable=False),
)
_audit = sa.Table(
    "audit",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("who", sa.String, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=False),
)
_operators = sa.Table(
    "operators",
    _tables,
    sa.Column("peer", sa.String(32), primary_key=True),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("until", sa.Float, nullable=False),
    sa.Column("granted_by", sa.String, nullable=False),
)
_events = sa.Table(
    "events",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("level", sa.String, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)


class JournalError(ShoalError):
    """The journal cannot be opened, read or written."""


@dataclass(frozen=True)
class Entry:
    """One record and when it was written (wall clock)."""

    number: int
    at: float
    record: Record


@dataclass(frozen=True)
class KnownPeer:
    """A peer that may have certificates."""

    peer: PeerId
    rights: frozenset[str]
    at: float


@dataclass(frozen=True)
class KnownInvite:
    """An invite, without its token."""

    id: str
    uses_left: int
    enrolled: int
    made_at: float
    expires_at: float
    made_by: str
    """The operator's name, or the beginning of its id."""

    @property
    def state(self) -> str:
        """What it is now, as an operator reads it."""
        if self.uses_left == REVOKED:
            return "revoked"
        if self.uses_left == 0:
            return "used up"
        return "expired" if self.expires_at <= time.time() else "open"


@dataclass(frozen=True)
class Happened:
    """One line of the run's history."""

    number: int
    at: float
    level: str
    text: str


@dataclass(frozen=True)
class Audited:
    """One operator's command and what came of it."""

    at: float
    who: PeerId
    what: str
    result: str


def journal_url(path: Path) -> str:
    """The URL of the journal in this file."""
    return f"sqlite:///{path}"


class Journal:
    """An open, locked journal. Methods may be called from any one thread at a time; they block until the disk has it."""

    def __init__(self, engine: sa.Engine, lock: FileLock, where: str) -> None:
        self._engine = engine
        self._lock = lock
        self._where = where
        self._turn = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, url: str) -> Journal:
        """Open the journal at `url`, making the file when there is none, and take its lock. Raises JournalError."""
        place = sa.make_url(url)
        if place.get_backend_name() != "sqlite" or not place.database:
            raise JournalError(f"cannot keep a journal in {url!r}", "name a SQLite file: sqlite:///PATH")
        path = Path(place.database)
        lock = _take_lock(path.with_name(path.name + ".lock"), str(path))
        engine = sa.create_engine(place, poolclass=sa.StaticPool, connect_args={"check_same_thread": False, "timeout": 5.0})
        sa.event.listen(engine, "connect", _make_durable)
        try:
            _tables.create_all(engine)
            with engine.begin() as connection:
                known = connection.execute(sa.select(_about.c.value).where(_about.c.key == "format")).scalar()
                if known is None:
                    connection.execute(_about.insert().values(key="format", value=str(FORMAT)))
                elif int(known) > FORMAT:
                    raise JournalError(f"{path} has format {known}, this shoal reads up to {FORMAT}", "use a newer shoal")
        except (sa.exc.SQLAlchemyError, ShoalError) as error:
            engine.dispose()
            lock.release()
            if isinstance(error, ShoalError):
                raise
            raise JournalError(f"cannot open the journal {path}: {_reason(error)}") from error
        return cls(engine, lock, str(path))

    def close(self) -> None:
        """Let go of the file and its lock, after the transaction in hand; a thread that comes later gets a JournalError."""
        with self._turn:
            self._closed = True
            self._engine.dispose()
            self._lock.release()

    # --- records ----------------------------------------------------------------------------------------------------------------

    def append(self, records: Iterable[Record], told: Iterable[tuple[str, str]] = ()) -> None:
        """Add records, and lines of history (text, level), in order, in one durable transaction."""
        now = time.time()
        rows = [{"at": now, "kind": type(record).__name__, "body": json.dumps(to_plain(record))} for record in records]
        lines = list(told)
        if not rows and not lines:
            return
        with self._transaction() as connection:
            if rows:
                connection.execute(_records.insert(), rows)
            if lines:
                _add_events(connection, now, lines)

    def events(self, limit: int, after: int = 0) -> tuple[Happened, ...]:
        """The `limit` newest lines of history, oldest first; with `after`, the first ones with a higher number."""
        rows = sa.select(_events)
        with self._transaction() as connection:
            if after > 0:
                found = connection.execute(rows.where(_events.c.id > after).order_by(_events.c.id).limit(limit)).all()
            else:
                found = connection.execute(rows.order_by(_events.c.id.desc()).limit(limit)).all()[::-1]
        return tuple(Happened(row.id, row.at, row.level, row.text) for row in found)

    def records(self) -> Iterator[Record]:
        """Every record, oldest first."""
        for entry in self.entries():
            yield entry.record

    def entries(self, last: int | None = None) -> Iterator[Entry]:
        """Every record with its time, oldest first; only the `last` ones when given. Read page by page: a long run has many."""
        done = 0
        if last is not None:
            with self._transaction() as connection:
                newest = sa.select(_records.c.id).order_by(_records.c.id.desc()).offset(last).limit(1)
                done = connection.execute(newest).scalar() or 0
        while True:
            with self._transaction() as connection:
                rows = connection.execute(sa.select(_records).where(_records.c.id > done).order_by(_records.c.id).limit(PAGE)).all()
            for row in rows:
                yield self._entry(row)
            if len(rows) < PAGE:
                return
            done = rows[-1].id

    def _entry(self, row: Any) -> Entry:
        kind = KINDS.get(row.kind)
        if kind is None:
            raise JournalError(f"record {row.id} of {self._where} is a {row.kind!r}, unknown here", "use a newer shoal")
        try:
            return Entry(row.id, row.at, from_plain(kind, json.loads(row.body)))
        except (ValueError, RemoteProtocolError) as error:
            raise JournalError(
                f"record {row.id} of {self._where} is damaged: {error}", "restore the journal from a copy"
            ) from error

    # --- invites and enrolment --------------------------------------------------------------------------------------------------

    def add_invite(self, token: str, uses: int, lifetime_s: float, by: PeerId) -> None:
        """Let `token` enrol `uses` peers within `lifetime_s` seconds."""
        now = time.time()
        with self._transaction() as connection:
            row = {
                "token_sha256": token_digest(token),
                "uses_left": uses,
                "expires_at": now + lifetime_s,
                "made_at": now,
                "made_by": by,
            }
            connection.execute(_invites.insert().values(row))

    def invites(self) -> tuple[KnownInvite, ...]:
        """The newest invites, newest last."""
        came = (
            sa.select(_enrolled.c.invite_sha256, sa.func.count().label("enrolled")).group_by(_enrolled.c.invite_sha256).subquery()
        )
        with_counts = _invites.outerjoin(came, came.c.invite_sha256 == _invites.c.token_sha256)
        everything = with_counts.outerjoin(_operators, _operators.c.peer == _invites.c.made_by)
        wanted = sa.select(_invites, came.c.enrolled, _operators.c.name).select_from(everything)
        with self._transaction() as connection:
            rows = connection.execute(wanted.order_by(_invites.c.made_at.desc()).limit(INVITES_LISTED)).all()
        return tuple(
            KnownInvite(
                row.token_sha256[:ID_LENGTH],
                row.uses_left,
                row.enrolled or 0,
                row.made_at,
                row.expires_at,
                row.name or row.made_by[:8],
            )
            for row in reversed(rows)
        )

    def revoke_invite(self, text: str) -> str:
        """Let nobody in any more with the invite whose id begins so; the id. Raises InviteError when that is not one invite."""
        if not re.fullmatch(r"[0-9a-f]{4,64}", text):
            raise InviteError(f"{text!r:.80} is no invite's id", "list them with `shoal admin invites`")
        begins = _invites.c.token_sha256.startswith(text)
        with self._transaction() as connection:
            found = connection.execute(sa.select(_invites.c.token_sha256).where(begins).limit(2)).scalars().all()
            if len(found) != 1:
                reason = f"{'several invites begin' if found else 'no invite begins'} with {text}"
                raise InviteError(reason, "list them with `shoal admin invites`")
            connection.execute(_invites.update().where(_invites.c.token_sha256 == found[0]).values(uses_left=REVOKED))
        return str(found[0][:ID_LENGTH])

    def enrol(self, peer: PeerId, token: str, rights: frozenset[str]) -> KnownPeer:
        """Record that `peer` enrolled with `token`, which costs one use. A peer that enrolled before keeps what it has, at no cost.

        Raises InviteError when the token is unknown, used up or expired.
        """
        now = time.time()
        digest = token_digest(token)
        with self._transaction() as connection:
            before = connection.execute(sa.select(_enrolled).where(_enrolled.c.peer == peer)).one_or_none()
            if before is not None:
                return KnownPeer(peer, frozenset(before.rights.split()), before.at)
            invite = _usable(connection, digest, now)
            spend = _invites.update().where(_invites.c.token_sha256 == digest).values(uses_left=invite.uses_left - 1)
            connection.execute(spend)
            row = {"peer": peer, "rights": " ".join(sorted(rights)), "at": now, "invite_sha256": digest}
            connection.execute(_enrolled.insert().values(row))
        return KnownPeer(peer, rights, now)

    def check_invite(self, token: str) -> None:
        """Raise InviteError when `token` would let nobody in. Spends nothing."""
        with self._transaction() as connection:
            _usable(connection, token_digest(token), time.time())

    def enrolled(self, peer: PeerId) -> KnownPeer | None:
        """What is known of an enrolled peer."""
        with self._transaction() as connection:
            row = connection.execute(sa.select(_enrolled).where(_enrolled.c.peer == peer)).one_or_none()
        return None if row is None else KnownPeer(peer, frozenset(row.rights.split()), row.at)

    # --- audit ------------------------------------------------------------------------------------------------------------------

    def audit(self, who: PeerId, what: str, result: str) -> None:
        """Remember an operator's command and its result, now; it is a line of history, too."""
        now = time.time()
        with self._transaction() as connection:
            known = connection.execute(sa.select(_operators).where(_operators.c.peer == who)).one_or_none()
            connection.execute(_audit.insert().values(at=now, who=who, what=what, result=result))
            newest = connection.execute(sa.select(sa.func.max(_audit.c.id))).scalar_one()
            connection.execute(_audit.delete().where(_audit.c.id <= newest - AUDIT_KEPT))
            name = f"{known.role} {known.name} ({who[:8]})" if known else f"operator {who[:8]}"
            _add_events(connection, now, [(f"{name} asked: {what}: {result}", "info")])

    def add_operator(self, peer: PeerId, role: str, name: str, until: float, by: PeerId) -> None:
        """Remember that `peer` may look (observer) or act (admin) until then."""
        row = {"peer": peer, "role": role, "name": name, "at": time.time(), "until": until, "granted_by": by}
        with self._transaction() as connection:
            connection.execute(_operators.delete().where(_operators.c.peer == peer))
            connection.execute(_operators.insert().values(row))

    def audited(self, last: int = 100) -> tuple[Audited, ...]:
        """The last commands of operators, oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(sa.select(_audit).order_by(_audit.c.id.desc()).limit(last)).all()
        return tuple(Audited(row.at, row.who, row.what, row.result) for row in reversed(rows))

    def _transaction(self) -> _Transaction:
        return _Transaction(self)


def _usable(connection: sa.Connection, digest: str, now: float) -> sa.Row[Any]:
    """The invite with this digest, if it lets somebody in now. Raises InviteError."""
    invite = connection.execute(sa.select(_invites).where(_invites.c.token_sha256 == digest)).one_or_none()
    another = "ask the run's operator for a new one (shoal admin invite)"
    if invite is None:
        raise InviteError("this run does not know this invite", another)
    if invite.uses_left == REVOKED:
        raise InviteError("this invite was revoked by the run's operator", another)
    if invite.expires_at <= now:
        raise InviteError(f"this invite expired at {utc(invite.expires_at)} (now {utc(now)})", another)
    if invite.uses_left <= 0:
        raise InviteError("this invite is used up", another)
    return invite


class _Transaction:
    """One transaction at a time, whichever thread asks; the database's errors come out as JournalError."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._begun = journal._engine.begin()
        self._turn = journal._turn
        self._where = journal._where

    def __enter__(self) -> sa.Connection:
        self._turn.acquire()
        try:
            if self._journal._closed:
                raise JournalError(f"the journal {self._where} is closed")
            return self._begun.__enter__()
        except BaseException:
            self._turn.release()
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self._begun.__exit__(kind, error, trace)
        except sa.exc.SQLAlchemyError as failure:
            raise JournalError(f"cannot write the journal {self._where}: {_reason(failure)}", _fix(failure)) from failure
        finally:
            self._turn.release()
        if isinstance(error, sa.exc.SQLAlchemyError):
            raise JournalError(f"cannot use the journal {self._where}: {_reason(error)}", _fix(error)) from error


def _add_events(connection: sa.Connection, at: float, lines: Iterable[tuple[str, str]]) -> None:
    connection.execute(_events.insert(), [{"at": at, "level": level, "text": text} for text, level in lines])
    newest = connection.execute(sa.select(sa.func.max(_events.c.id))).scalar_one()
    connection.execute(_events.delete().where(_events.c.id <= newest - EVENTS_KEPT))


def _make_durable(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")  # with FULL: every commit is one fsync, none is lost (sqlite.org/wal.html §3.3)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _take_lock(path: Path, what: str) -> FileLock:
    try:
        return FileLock.take(path)
    except LockHeldError as error:
        by = f" (process {error.holder})" if error.holder else ""
        raise JournalError(f"another coordinator{by} has the journal {what}", "stop it first, or name another directory") from None
    except OSError as error:
        raise JournalError(f"cannot open the journal {what}: {error.strerror}") from error


def _reason(error: Exception) -> str:
    """The database's own words, on one line."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _fix(error: Exception) -> str:
    """What to do about the database's trouble."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_FULL:
        return "free some space on its disk, then serve the run again: it goes on where it was"
    return "look after its disk, then serve the run again: it goes on where it was"
