"""Contributions that find no room in memory wait on disk instead, so that a volunteer's memory budget holds nobody up.

Rule: a file per round, which has no name and is gone with its last reader. Bytes go in on the event loop, a message at a time (a
copy into the system's page cache, which it takes back when memory is short), and come out in the thread that adds them. Neighbours:
`exchange` decides what waits where, `reduction` reads it back.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path


class _NamelessFile:
    """An open file that nobody finds, closed when the last that speaks of it is gone."""

    def __init__(self, directory: Path) -> None:
        self.descriptor, name = tempfile.mkstemp(prefix="contributions-", dir=directory)
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(name)


@dataclass(frozen=True)
class Spilled:
    """Where the bytes of one contribution lie."""

    file: _NamelessFile
    offset: int
    length: int

    def read(self) -> memoryview:
        """The bytes. May be called from any thread."""
        return memoryview(os.pread(self.file.descriptor, self.length, self.offset))

    def __len__(self) -> int:
        return self.length


class SpillFile:
    """One round's contributions on disk."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError when there is no room, as `keep` does."""
        self._file = _NamelessFile(directory)
        self._end = 0

    def keep(self, payload: memoryview) -> Spilled:
        """Write a contribution."""
        written = 0
        while written < len(payload):
            written += os.pwrite(self._file.descriptor, payload[written:], self._end + written)
        spilled = Spilled(self._file, self._end, len(payload))
        self._end += len(payload)
        return spilled
