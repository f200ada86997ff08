"""The final bytes of parts, on disk or in shared memory: results of the round in flight, and the payloads of kept log entries.

Rule 1: bytes are written once and never moved; a round that commits becomes a log entry by being kept, not by being copied.
Rule 2: a part exists when its index record does, and the record is appended after the bytes; a process killed in between lost
nothing that it had promised.

Per round there is one data file, `<round>.bytes`, and one index of fixed-size records, `<round>.index`. Reading and writing go
through `pread` and `pwrite`: on a full file system they fail with an error where a mapping would kill the process. Neighbours:
`vault` keeps one of these in its directory, `bulk` stores into it and serves from it. All methods may be called from any thread.

The data file of a round that is dropped is kept as `spare` for the next one: taking its memory from the kernel again would cost as
much as writing the parts. Not if a thread still writes into it: that would end up in the next round's bytes.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

from shoal.protocol.errors import LocalProtocolError, ShoalError
from shoal.protocol.files import write_at
from shoal.protocol.messages import DIGEST_BYTES, PartKey, Section

_RECORD = struct.Struct(f"<B3xIIIQ{DIGEST_BYTES}s")
"""Section, part, attempt, length, offset, digest."""
_SECTIONS = {Section.PARAMETERS: 1, Section.BUFFERS: 2}
_SECTION_OF = {number: section for section, number in _SECTIONS.items()}


class StorageFullError(ShoalError):
    """The file system of the vault has no room for what must be kept."""


def storage_full(directory: Path, need_bytes: int, what: str) -> StorageFullError:
    """The one sentence about a full file system: have, need, what to do."""
    status = os.statvfs(directory)
    have = status.f_bavail * status.f_frsize
    return StorageFullError(
        f"no room for {what} in {directory}: have {have / 2**20:,.0f} MiB, need {need_bytes / 2**20:,.0f} MiB",
        "free some memory, enlarge the file system (Docker: --shm-size), or choose another directory for the vault",
    )


@dataclass(frozen=True)
class StoredPart:
    """Where the bytes of one part lie."""

    key: PartKey
    digest: bytes
    offset: int
    length: int


@dataclass
class _Round:
    data: int
    index: int
    end: int = 0
    index_end: int = 0
    """Bytes of whole records; the next record goes here, over what a failed write may have left."""
    users: int = 0
    """Threads that read or write the data file at this moment, without the lock."""
    parts: dict[bytes, StoredPart] = field(default_factory=dict)


class PartStore:
    """All parts kept in one directory, found by digest."""

    def __init__(self, directory: Path) -> None:
        """Open the store, with whatever an earlier process left in it."""
        self._directory = directory
        self._lock = threading.Lock()
        self._rounds: dict[int, _Round] = {}
        directory.mkdir(exist_ok=True)
        try:
            for path in sorted(directory.glob("*.index")):
                if path.stem.isdigit():
                    self._load(int(path.stem))
        except BaseException:
            self.close()
            raise

    def put(self, key: PartKey, digest: bytes, payload: bytes | memoryview) -> None:
        """Keep these bytes under their round. Storing the same digest of a round twice keeps one copy."""
        length = len(payload)
        with self._lock:
            files = self._rounds.get(key.round) or self._create(key.round)
            if digest in files.parts:
                return
            offset, files.end = files.end, files.end + length
            data = self._use(files)
        try:
            write_at(data, payload, offset)
            with self._lock:
                if self._rounds.get(key.round) is not files:
                    return
                record = _RECORD.pack(_SECTIONS[key.section], key.part, key.attempt, length, offset, digest)
                write_at(files.index, record, files.index_end)
                files.index_end += len(record)
                files.parts[digest] = StoredPart(key, digest, offset, length)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise storage_full(self._directory, length, f"part {key.part} of round {key.round}") from error
            raise
        finally:
            self._leave(files, data)

    def find(self, digest: bytes, round_id: int | None = None) -> StoredPart | None:
        """The part with this digest, of this round or of any."""
        with self._lock:
            if round_id is not None:
                files = self._rounds.get(round_id)
                return files.parts.get(digest) if files else None
            return next((files.parts[digest] for files in self._rounds.values() if digest in files.parts), None)

    def read(self, stored: StoredPart) -> bytes:
        """The bytes of a stored part. Raises LocalProtocolError when its round was dropped meanwhile."""
        with self._lock:
            files = self._rounds.get(stored.key.round)
            if files is None:
                raise LocalProtocolError(f"round {stored.key.round} is no longer kept")
            data = self._use(files)
        try:
            return os.pread(data, stored.length, stored.offset)
        finally:
            self._leave(files, data)

    def rounds(self) -> frozenset[int]:
        """Rounds of which anything is kept."""
        with self._lock:
            return frozenset(self._rounds)

    def nbytes(self) -> int:
        """Bytes kept."""
        with self._lock:
            return sum(files.end for files in self._rounds.values())

    def drop(self, round_id: int) -> None:
        """Forget a round and free its bytes."""
        with self._lock:
            files = self._rounds.pop(round_id, None)
            if files is None:
                return
            os.close(files.data)
            os.close(files.index)
            self._path(round_id, "index").unlink(missing_ok=True)
            if files.users:
                self._path(round_id, "bytes").unlink()
            else:
                os.replace(self._path(round_id, "bytes"), self._spare)

    def close(self) -> None:
        """Close the files; what is kept stays on disk."""
        with self._lock:
            for files in self._rounds.values():
                os.close(files.data)
                os.close(files.index)
            self._rounds.clear()

    def _use(self, files: _Round) -> int:
        """A descriptor of the data file that outlives `drop`; give it to `_leave`. Under the lock."""
        data = os.dup(files.data)
        files.users += 1
        return data

    def _leave(self, files: _Round, data: int) -> None:
        with self._lock:
            files.users -= 1
        os.close(data)

    def _path(self, round_id: int, kind: str) -> Path:
        return self._directory / f"{round_id}.{kind}"

    @property
    def _spare(self) -> Path:
        return self._directory / "spare"

    def _create(self, round_id: int) -> _Round:
        """Open a round's files; a new one gets the spare file, whose old bytes no index speaks of."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        if not self._path(round_id, "bytes").exists() and self._spare.exists():
            os.replace(self._spare, self._path(round_id, "bytes"))
        data = os.open(self._path(round_id, "bytes"), flags, 0o600)
        try:
            index = os.open(self._path(round_id, "index"), flags, 0o600)
        except OSError:
            os.close(data)
            raise
        self._rounds[round_id] = files = _Round(data, index)
        return files

    def _load(self, round_id: int) -> None:
        files = self._create(round_id)
        size = os.fstat(files.data).st_size
        records = os.read(files.index, os.fstat(files.index).st_size)
        whole = len(records) - len(records) % _RECORD.size
        os.ftruncate(files.index, whole)
        files.index_end = whole
        for section, part, attempt, length, offset, digest in _RECORD.iter_unpack(records[:whole]):
            if section in _SECTION_OF and offset + length <= size:
                key = PartKey(round_id, _SECTION_OF[section], part, attempt)
                files.parts[digest] = StoredPart(key, digest, offset, length)
                files.end = max(files.end, offset + length)
