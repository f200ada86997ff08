"""Contributions that find no room in memory wait on disk instead, so that a volunteer's memory budget holds nobody up.

Rule: a file per round, which has no name and is gone with its last reader. The event loop only says where in it a contribution
goes; writing and reading are for the workers, because a disk may be slow. Neighbours: `exchange` decides what waits where,
`reduction` reads it back.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from shoal.protocol.files import write_at


class _NamelessFile:
    """An open file that nobody finds, closed when the last that speaks of it is gone."""

    def __init__(self, directory: Path) -> None:
        self.descriptor, name = tempfile.mkstemp(prefix="contributions-", dir=directory)
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(name)


@dataclass(frozen=True)
class Spilled:
    """Where the bytes of one contribution lie. Both methods may be called from any thread."""

    file: _NamelessFile
    offset: int
    length: int

    def write(self, payload: memoryview) -> None:
        """Put them there. Raises OSError when there is no room."""
        write_at(self.file.descriptor, payload, self.offset)

    def read(self) -> memoryview:
        """The bytes that were written."""
        return memoryview(os.pread(self.file.descriptor, self.length, self.offset))

    def __len__(self) -> int:
        return self.length


class SpillFile:
    """One round's contributions on disk."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError when there is no place for it."""
        self._file = _NamelessFile(directory)
        self._end = 0

    def reserve(self, length: int) -> Spilled:
        """A place for a contribution."""
        spilled = Spilled(self._file, self._end, length)
        self._end += length
        return spilled
