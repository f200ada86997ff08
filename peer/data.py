"""Text, and which sample comes when.

A corpus is one long string of bytes, cut in two by hashing file names: what is trained on and what is held out. A *sample* is a
window of `length` + 1 bytes that starts every `length` bytes, so that each byte is a target exactly once; sample i is bytes
[i * length, (i + 1) * length + 1). The run's *stream* is endless: position p is sample `shuffle(p mod samples)` of epoch
`p // samples`, shuffled anew for every epoch by a keyed permutation that needs no memory. The coordinator leases spans of
positions, so that no two peers train the same sample within an epoch.

Its one rule: what position p means depends on the run spec and the corpus only, never on the machine.

Neighbours: `trainer` asks for batches, `evaluate` reads the held-out half.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.errors import ShoalError
from shoal.protocol.messages import Span
from shoal.protocol.spec import DataFile, RunSpec

Bytes = npt.NDArray[np.uint8]

SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"})
"""Folders of the standard library that are not in its corpus: test data is repetitive, `pydoc_data` is one huge page of the
manual, the others are not the library's."""
SKIPPED_PREFIXES = ("_sysconfigdata", "sitecustomize", "config-")
"""Names whose content depends on how this interpreter was built."""


class DataError(ShoalError):
    """The training data is missing, empty, or not what the run spec names."""


@dataclass(frozen=True)
class TextFile:
    """One file of a corpus under the name that all peers know it by."""

    name: str
    content: Bytes
    digest: bytes


class Text:
    """Many pieces of bytes read as one, cut into overlapping windows. Pieces may be memory-mapped."""

    def __init__(self, pieces: Sequence[Bytes], length: int) -> None:
        self.length = length
        self._pieces = [piece for piece in pieces if len(piece)]
        self._starts = np.cumsum([0, *(len(piece) for piece in self._pieces)]).tolist()

    @property
    def bytes(self) -> int:
        return int(self._starts[-1])

    @property
    def samples(self) -> int:
        return max(0, (self.bytes - 1) // self.length)

    def windows(self, samples: Sequence[int]) -> Tensor:
        """The windows of these samples: (len(samples), length + 1) int64."""
        out = np.empty((len(samples), self.length + 1), dtype=np.int64)
        for row, sample in zip(out, samples, strict=True):
            if not 0 <= sample < self.samples:
                raise IndexError(f"sample {sample} of {self.samples}")
            self._read(sample * self.length, row)
        return torch.from_numpy(out)

    def _read(self, start: int, row: npt.NDArray[np.int64]) -> None:
        piece = bisect.bisect_right(self._starts, start) - 1
        filled = 0
        while filled < len(row):
            offset = start + filled - self._starts[piece]
            chunk = self._pieces[piece][offset : offset + len(row) - filled]
            row[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
            piece += 1


@dataclass(frozen=True)
class Corpus:
    """What a run trains on and what it is judged by."""

    training: Text
    heldout: Text
    fingerprint: bytes
    """SHA-256 over names, sizes and digests of all files and over how they are cut: equal exactly where every position means
    the same."""


def open_corpus(spec: RunSpec, folder: Path | None) -> Corpus:
    """The run's data. `folder` holds its files when it has any. Raises DataError."""
    data = spec.data
    if data.source == "stdlib":
        return standard_library(data.sequence_length, data.heldout_fraction)
    if folder is None:
        raise DataError(
            f"the run's data are {len(data.files)} files that are not here", "give the folder that holds them with --data DIR"
        )
    return listed_files(data.files, folder, data.sequence_length, data.heldout_fraction)


def standard_library(length: int, heldout_fraction: float, root: Path | None = None) -> Corpus:
    """The source text of the running interpreter's standard library: real text that is on every machine."""
    root = root or Path(sysconfig.get_path("stdlib"))
    paths = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS and not name.startswith(SKIPPED_PREFIXES)]
        for name in files:
            if name.endswith(".py") and not name.startswith(SKIPPED_PREFIXES):
                path = Path(folder, name)
                paths[path.relative_to(root).as_posix()] = path
    texts = [text_file(name, paths[name]) for name in sorted(paths)]
    return corpus(texts, length, heldout_fraction, f"no Python sources under {root}")


def listed_files(files: Iterable[DataFile], folder: Path, length: int, heldout_fraction: float) -> Corpus:
    """The files that the run spec lists, in its order, found under `folder` and checked against size and digest.

    A file that the spec gives as an address is looked for under the address's path. That no path leads out of the folder was
    checked when the spec was read.
    """
    found = []
    for file in files:
        path = folder / file.path.removeprefix("https://").partition("/")[2] if "://" in file.path else folder / file.path
        if not path.is_file():
            raise DataError(f"{path}: not found", "give the folder that holds the run's files with --data DIR")
        size = path.stat().st_size
        if size != file.size:
            raise DataError(f"{path}: {size} bytes here, {file.size} in the run spec", "fetch the file again")
        text = text_file(file.path, path)
        if text.digest.hex() != file.sha256:
            raise DataError(f"{path}: SHA-256 {text.digest.hex()} here, {file.sha256} in the run spec", "fetch the file again")
        found.append(text)
    return corpus(found, length, heldout_fraction, "the run spec lists no data")


MAPPED_FROM_BYTES = 1 << 20
"""Files of this size or more are memory-mapped, smaller ones read."""


def text_file(name: str, path: Path) -> TextFile:
    """The file at `path`, known as `name`, with its digest. Reads it through once."""
    try:
        if path.stat().st_size >= MAPPED_FROM_BYTES:
            content: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
        else:
            content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        return TextFile(name, content, hashlib.sha256(content.data).digest())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def corpus(files: Sequence[TextFile], length: int, heldout_fraction: float, empty: str) -> Corpus:
    """Files as training and held-out text. Raises DataError, saying `empty`, when there is nothing to train on.

    A file is held out when the hash of its name falls below the fraction. Where that leaves one half without a single sample (a
    corpus of few files), the last `heldout_fraction` of all bytes is held out instead.
    """
    held = [file for file in files if is_held_out(file.name, heldout_fraction)]
    kept = [file for file in files if not is_held_out(file.name, heldout_fraction)]
    training, heldout = Text([file.content for file in kept], length), Text([file.content for file in held], length)
    cut = "names"
    if heldout_fraction > 0 and not (training.samples and heldout.samples):
        training, heldout = _cut_tail([file.content for file in files], length, heldout_fraction)
        cut = "tail"
    if not training.samples:
        total = sum(len(file.content) for file in files)
        raise DataError(
            f"{empty}: {len(files)} files with {total} bytes hold no sample of {length + 1} bytes to train on",
            "give more text or a smaller sequence length",
        )
    summary = hashlib.sha256(f"shoal-data-1|{length}|{heldout_fraction!r}|{cut}".encode())
    for file in files:
        summary.update(hashlib.sha256(file.name.encode()).digest() + len(file.content).to_bytes(8, "little") + file.digest)
    return Corpus(training, heldout, summary.digest())


def is_held_out(name: str, fraction: float) -> bool:
    """Whether the file of this name is held out: the first 8 bytes of its name's SHA-256, as a number in [0, 1), lie below
    `fraction`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 < fraction


def _cut_tail(pieces: Sequence[Bytes], length: int, fraction: float) -> tuple[Text, Text]:
    boundary = round(sum(len(piece) for piece in pieces) * (1 - fraction))
    head, tail, start = [], [], 0
    for piece in pieces:
        inside = min(max(boundary - start, 0), len(piece))
        head.append(piece[:inside])
        tail.append(piece[inside:])
        start += len(piece)
    return Text(head, length), Text(tail, length)


# --- which sample comes when ----------------------------------------------------------------------------------------------------

_MASK = (1 << 64) - 1
FEISTEL_ROUNDS = 6


class Permutation:
    """A keyed bijection of range(size) that needs no table: an alternating Feistel network on a grid with cycle walking.

    A number is a cell (row, column) of a rows x columns grid that is barely larger than `size`; each round adds a keyed hash of
    one coordinate to the other (modulo the grid), which can be undone, so the whole is a bijection of the grid. A result beyond
    `size` is sent through again until it lies inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """

    def __init__(self, size: int, key: bytes) -> None:
        if size < 1:
            raise ValueError("a permutation needs at least one element")
        self.size = size
        self._rows = isqrt(size - 1) + 1
        self._columns = -(-size // self._rows)
        digest = hashlib.shake_256(b"shoal-shuffle-1" + key).digest(8 * FEISTEL_ROUNDS)
        self._keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, len(digest), 8)]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(f"{index} is not in a permutation of {self.size}")
        index = self._once(index)
        while index >= self.size:
            index = self._once(index)
        return index

    def _once(self, index: int) -> int:
        row, column = divmod(index, self._columns)
        for i, key in enumerate(self._keys):
            if i % 2:
                column = (column + _mix(row ^ key)) % self._columns
            else:
                row = (row + _mix(column ^ key)) % self._rows
        return row * self._columns + column


def _mix(value: int) -> int:
    """Finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit moves every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@functools.lru_cache(maxsize=4)
def epoch_shuffle(samples: int, seed: int, epoch: int) -> Permutation:
    """The order of one epoch."""
    return Permutation(samples, f"{seed}/{epoch}".encode())


def sample_at(position: int, samples: int, seed: int) -> int:
    """Which sample stands at this position of the endless stream."""
    epoch, index = divmod(position, samples)
    return epoch_shuffle(samples, seed, epoch)[index]


def positions(lease: Iterable[Span], skip: int, count: int) -> Iterator[int]:
    """Positions of the leased spans in order, without the first `skip`, at most `count`."""
    for span in lease:
        start = span.start + min(skip, len(span))
        skip -= start - span.start
        stop = min(span.stop, start + count)
        yield from range(start, stop)
        count -= max(0, stop - start)


def batches(text: Text, lease: Iterable[Span], skip: int, count: int, batch: int, seed: int) -> Iterator[Tensor]:
    """The leased samples as batches (batch, length + 1) int64; the last one may be smaller."""
    rows: list[int] = []
    for position in positions(lease, skip, count):
        rows.append(sample_at(position, text.samples, seed))
        if len(rows) == batch:
            yield text.windows(rows)
            rows = []
    if rows:
        yield text.windows(rows)
