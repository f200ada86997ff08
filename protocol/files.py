"""Files that must be whole, private, or both: keys, certificates, log entries, models.

Rule: a file appears under its name only when all its bytes are written, and a key is never readable by others, not even for a
moment.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from pathlib import Path

from shoal.protocol.errors import IdentityError

KEY_FILE_LIMIT_BYTES = 1 << 20
PRIVATE = 0o600
PUBLIC = 0o644
"""Modes of files; the process's umask may take more away."""


def allow_many_open_files() -> None:
    """Raise this process's limit of open files to what the system allows it: connections and log entries are files, and the usual
    1024 is meant for programs that use select(2)."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS says "unlimited" and means less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def write_at(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """All of `content` at `offset` of an open file, however many writes it takes. Raises OSError."""
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, memoryview(content)[written:], offset + written)


def write_whole(path: Path, content: bytes, *, mode: int = PRIVATE, durable: bool = True, exclusive: bool = False) -> None:
    """Write `path` atomically. `durable`: it survives a power cut. `exclusive`: FileExistsError if it is there, whoever made it
    first. A process that is killed meanwhile may leave a hidden file beside it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if exclusive:
            os.link(temporary, path)
        else:
            os.replace(temporary, path)
        if durable:
            _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_private(path: Path) -> bytes:
    """The content of a key file. Raises IdentityError that names the file, also when others may read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
                raise IdentityError(f"{path} can be read by other users", f"chmod 600 {path}")
            content = file.read(KEY_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > KEY_FILE_LIMIT_BYTES:
        raise IdentityError(f"{path} is too large for a key or certificate")
    return content


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
