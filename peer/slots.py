"""Which identity a peer process uses: a slot, one directory per identity and run on this machine, held by one process at a time.

Rule: two live processes never share an identity, and no identity is made while a free one of the same run exists, so that five
peers on one machine are five identities, and the same five after a restart. Neighbour: `enrol` fills the slot with keys and a
certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import platformdirs

from shoal.protocol.errors import IdentityError
from shoal.protocol.locks import FileLock, LockHeldError
from shoal.protocol.names import is_run_name

MOST_SLOTS = 1000
LOCK = "in-use.lock"


@dataclass(frozen=True)
class Slot:
    """An identity's directory, ours until `release` or the end of the process."""

    directory: Path
    lock: FileLock

    def release(self) -> None:
        """Let another process have the identity."""
        self.lock.release()


def default_root() -> Path:
    """Where this user's identities are kept."""
    return platformdirs.user_data_path("shoal") / "identities"


def take_slot(run: str, root: Path | None = None) -> Slot:
    """The first free identity of this run, made when all are in use. Raises IdentityError."""
    if not is_run_name(run):
        raise IdentityError(f"{run!r:.80} is not the name of a run")
    folder = (root or default_root()) / run
    for number in range(1, MOST_SLOTS + 1):
        directory = folder / str(number)
        try:
            return _take(directory)
        except LockHeldError:
            continue
    raise IdentityError(f"all {MOST_SLOTS} identities in {folder} are in use")


def take_directory(directory: Path) -> Slot:
    """This identity and no other (`--identity DIR`). Raises IdentityError when another process has it."""
    try:
        return _take(directory)
    except LockHeldError as error:
        raise IdentityError(
            f"the identity in {directory} is in use by process {error.holder}", "stop that peer, or leave --identity away"
        ) from None


def runs(root: Path | None = None) -> tuple[str, ...]:
    """Runs that this machine has identities of, the last used first."""
    folder = root or default_root()
    if not folder.is_dir():
        return ()
    found = [entry for entry in folder.iterdir() if entry.is_dir() and is_run_name(entry.name)]
    return tuple(entry.name for entry in sorted(found, key=_last_used, reverse=True))


def _take(directory: Path) -> Slot:
    try:
        return Slot(directory, FileLock.take(directory / LOCK))
    except OSError as error:
        raise IdentityError(f"cannot keep an identity in {directory}: {error.strerror}", "name another place") from error


def _last_used(folder: Path) -> float:
    return max((lock.stat().st_mtime for lock in folder.glob(f"*/{LOCK}")), default=0.0)
