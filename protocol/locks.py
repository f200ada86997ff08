"""One process at a time: an operating-system lock on a file, which dies with its process, `kill -9` included.

Rule: the file itself means nothing and is never removed (removing it would let two processes lock two files of one name); it only
tells, for people, the id of the process that last had it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import IO

from shoal.protocol.errors import ShoalError

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK})
"""What the systems say of a lock that another process has; anything else (no locks on this file system) is another trouble."""


class LockHeldError(ShoalError):
    """Another process holds the lock. `holder` is its process id, or "" when that is unknown."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by process {holder or '(unknown)'}")
        self.args = (path, holder)
        self.holder = holder


class FileLock:
    """A lock that is held. Usable as a context manager."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle

    @classmethod
    def take(cls, path: Path) -> FileLock:
        """Take the lock on `path` (made when missing, with its folder) or raise LockHeldError at once, or OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+b")
        try:
            _lock(handle)
        except OSError as error:
            with handle:
                if error.errno not in _HELD:
                    raise
                handle.seek(0)
                raise LockHeldError(path, handle.read(32).decode("ascii", "replace").strip()) from None
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()).encode())
        handle.flush()
        return cls(handle)

    def release(self) -> None:
        """Let go. Harmless when done already."""
        self._handle.close()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _lock(handle: IO[bytes]) -> None:
    if os.name == "nt":
        import msvcrt

        handle.seek(1 << 20)  # a byte that nobody reads: Windows' locks keep others from reading what is locked
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
