"""A lock belongs to one process at a time, says whose it is, and tells a held lock from one that cannot be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shoal.protocol import locks
from shoal.protocol.locks import FileLock, LockHeldError


def test_a_second_holder_is_told_who_has_the_lock_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with FileLock.take(path) as first:
        with pytest.raises(LockHeldError, match=f"held by process {os.getpid()}") as held:
            FileLock.take(path)
        assert held.value.holder == str(os.getpid())
        first.release()
        FileLock.take(path).release()


def test_a_file_system_without_locks_is_not_taken_for_a_lock_that_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_lock", unable)
    with pytest.raises(OSError, match="No locks available"):
        FileLock.take(tmp_path / "lock")
