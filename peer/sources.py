"""Where a run's files come from: the volunteer's folder, or the address that the run spec names.

Rule 1: a file counts only when its size and SHA-256 are those of the run spec; whatever differs is named with both.
Rule 2: what is fetched goes to a cache under its digest, so that runs and peers of one machine share it. What was interrupted goes
on where it stopped. A source that stalls, refuses or is not there is tried again for as long as it takes, and every wait is said.
Rule 3: a run spec is a stranger's word. Only http and https are spoken, nothing is sent but the request, never more is stored than
the run spec's size, a GB of the disk is left free, and `reach` says whom a run may make this machine ask.

Neighbours: `data` reads what is found here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.peer.reach import Reach, opener
from shoal.protocol.errors import ShoalError
from shoal.protocol.locks import FileLock, LockHeldError
from shoal.protocol.spec import DataFile

Tell = Callable[[str], None]
"""Takes a sentence for the volunteer."""
READ_BYTES = 1 << 20
LEFT_FREE_BYTES = 1 << 30
CAPPED_READS_S = 10
"""Reads per second under a cap."""
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class DataError(ShoalError):
    """The training data is missing, empty, or not what the run spec names."""


@dataclass(frozen=True)
class Patience:
    """How long a fetch waits for what."""

    stall_s: float = 30.0
    """A source that brings less than `least_bytes` within this time has stalled."""
    least_bytes: int = 16 << 10
    first_pause_s: float = 1.0
    """Before the next try; doubles, up to `longest_pause_s`, until something comes."""
    longest_pause_s: float = 60.0
    tell_every_s: float = 10.0
    """Between two sentences about how far a fetch is."""


@dataclass(frozen=True)
class Places:
    """Where files may be, and how they get there."""

    folder: Path | None = None
    """The volunteer's."""
    cache: Path | None = None
    """Where fetched files go; None: nothing is fetched."""
    tell: Tell = lambda sentence: None
    reach: Reach = Reach.INTERNET
    patience: Patience = Patience()
    cap_bytes_s: float = 0.0
    """Most that a fetch may receive; 0: as fast as it goes."""

    def find(self, file: DataFile) -> Path:
        """Where the file is on this machine, fetched if it has an address and is not in the folder. Its content is not checked
        yet, if it was not fetched. Raises DataError."""
        if self.folder is not None and ((here := self.folder / file.name).is_file() or not file.url):
            if not here.is_file():
                raise DataError(f"{here}: not found", "give the folder that holds the run's files with --data DIR")
            return here
        if not file.url:
            raise DataError(f"the run's file {file.path} is not here", "give the folder that holds the run's files with --data DIR")
        if self.cache is None:
            raise DataError(f"the run's file {file.path} is not here, and there is no place to fetch it to", "give --data DIR")
        return fetch(file, self.cache, self.tell, self.patience, self.reach, self.cap_bytes_s)

    def check_room(self, files: Sequence[DataFile]) -> None:
        """Raises DataError when what must be fetched does not fit, a GB left free."""
        if self.cache is None:
            return
        missing = [file for file in files if file.url and not (self.folder is not None and (self.folder / file.name).is_file())]
        need = sum(
            file.size - max(_size(self.cache / file.sha256), _size(self.cache / f"{file.sha256}.partial")) for file in missing
        )
        self.cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.cache).free - LEFT_FREE_BYTES
        if need > 0 and need > free:
            raise DataError(
                f"the run's files take {need >> 20} MiB more, {max(0, free) >> 20} MiB are free in {self.cache} beside a spare GB",
                "make room there, or bring the files with --data DIR",
            )


def check(file: DataFile, path: Path, size: int, digest: str) -> None:
    """Raises DataError with both figures unless these are the file's."""
    if size != file.size:
        raise DataError(f"{path}: {size} bytes here, {file.size} in the run spec", "fetch the file again")
    if digest != file.sha256:
        raise DataError(f"{path}: SHA-256 {digest} here, {file.sha256} in the run spec", "fetch the file again")


def fetch(
    file: DataFile, cache: Path, tell: Tell, patience: Patience, reach: Reach = Reach.INTERNET, cap_bytes_s: float = 0.0
) -> Path:
    """The file in the cache, from its address if it is not there; waits for as long as it takes. Raises DataError for a source
    that has something else or must not be asked, and for a full disk."""
    place = cache / file.sha256
    partial = cache / f"{file.sha256}.partial"
    pause_s = patience.first_pause_s
    while not (place.is_file() and place.stat().st_size == file.size):
        before = _size(partial)
        try:
            with FileLock.take(cache / f"{file.sha256}.lock"):
                if not place.exists():
                    _download(file, partial, tell, patience, reach, cap_bytes_s)
                    _accept(file, partial, place, resumed=before > 0)
                elif place.stat().st_size != file.size:
                    place.unlink()
        except LockHeldError:
            tell(f"another peer on this machine is fetching {file.path}: waiting for it")
            time.sleep(pause_s)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise DataError(f"{file.path} cannot be kept in {cache}: {error.strerror}", "make room there") from error
            pause_s = patience.first_pause_s if _size(partial) > before else pause_s
            have = f"{_size(partial)} of {file.size} bytes are here"
            tell(f"{file.path}: {_why(error)}; {have}; trying again in {pause_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, patience.longest_pause_s)
    return place


def _accept(file: DataFile, partial: Path, place: Path, resumed: bool) -> None:
    """Keep what was fetched if it is the file. What was put together from several answers is tried once more as a whole."""
    digest = hashlib.sha256()
    with partial.open("rb") as content:
        while chunk := content.read(READ_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != file.sha256:
        partial.unlink()
        if resumed:
            raise ConnectionError("what was put together has another digest: beginning anew")
        raise DataError(
            f"{file.path}: SHA-256 {digest.hexdigest()} there, {file.sha256} in the run spec", "tell the run's operator"
        )
    os.replace(partial, place)


def _download(file: DataFile, partial: Path, tell: Tell, patience: Patience, reach: Reach, cap_bytes_s: float) -> None:
    """Fetch what is missing of the file. Raises OSError or HTTPException when the source fails, DataError when it has more."""
    have = _size(partial)
    if have == file.size:
        partial.touch()
        return
    request = urllib.request.Request(_quoted(file.url), headers={"User-Agent": "shoal", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = opener(file.url, reach).open(request, timeout=patience.stall_s)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            partial.unlink(missing_ok=True)
        raise
    with contextlib.closing(answer):
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT or not _continues(answer, have):
            have = 0
        with partial.open("r+b" if have else "wb") as content:
            content.seek(have)
            began = told = counted_at = time.monotonic()
            counted = have
            while chunk := answer.read1(min(READ_BYTES, int(cap_bytes_s / CAPPED_READS_S)) if cap_bytes_s else READ_BYTES):
                have += len(chunk)
                if cap_bytes_s:  # what is not read fills the buffers on the way, and the source waits
                    time.sleep(len(chunk) / cap_bytes_s)
                if have > file.size:
                    raise DataError(f"{file.path}: more than the {file.size} bytes of the run spec are there", "tell its operator")
                content.write(chunk)
                now = time.monotonic()
                if have - counted >= patience.least_bytes:
                    counted, counted_at = have, now
                elif now > counted_at + patience.stall_s:
                    raise TimeoutError(f"only {have - counted} bytes within {patience.stall_s:g} s")
                if now > told + patience.tell_every_s:
                    tell(f"fetching {file.path}: {have} of {file.size} bytes after {now - began:.0f} s")
                    told = now
    if have < file.size:
        raise ConnectionError("the source ended early")


def _continues(answer: Any, have: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")


def _quoted(url: str) -> str:
    return urllib.parse.quote(url, safe=":/%?=&+,;@!$'()*~-._[]")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _why(error: BaseException) -> str:
    """One sentence about a fetch that failed."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be fetched ({getattr(error.reason, 'strerror', None) or error.reason})"
    if isinstance(error, TimeoutError):
        return f"the source stalls ({error})"
    return f"the fetch broke off ({getattr(error, 'strerror', None) or str(error) or type(error).__name__})"
