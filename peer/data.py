"""Text or tokens, and which sample comes when.

A corpus is one long string of tokens (bytes, unless the run has a tokenizer or token files), cut in two by hashing file names: what
is trained on and what is held out. A *sample* is a window of `length` + 1 tokens that starts every `length` tokens, so that each
token is a target exactly once; sample i is tokens [i * length, (i + 1) * length + 1). The run's *stream* is endless: position p is
sample `shuffle(p mod samples)` of epoch `p // samples`, shuffled anew for every epoch by a keyed permutation that needs no memory.
The coordinator leases spans of positions, so that no two peers train the same sample within an epoch.

Its one rule: what position p means depends on the run spec and the corpus only, never on the machine. Files are read when they are
needed; one that went away, or became another, is a `DataAwayError`, which passes when it is back.

Neighbours: `sources` finds or fetches the files, `tokenizer` makes tokens of text, `trainer` asks for batches, `evaluate` reads
the held-out half.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.peer.sources import READ_BYTES, DataError, Places, Tell, check
from shoal.peer.tokenizer import HuggingFace, Tokenizer, tokenize, tokens_name
from shoal.protocol.messages import Span
from shoal.protocol.spec import DataFile, RunSpec, is_held_out

Tokens = npt.NDArray[Any]
"""Unsigned integers of any width."""

SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"})
"""Folders of the standard library that are not in its corpus: test data is repetitive, `pydoc_data` is one huge page of the
manual, the others are not the library's."""
SKIPPED_PREFIXES = ("_sysconfigdata", "sitecustomize", "config-")
"""Names whose content depends on how this interpreter was built."""


class DataAwayError(DataError):
    """Data that were here cannot be read now."""


class StoredTokens:
    """A file's tokens, or a range of them, read when they are asked for."""

    def __init__(self, path: Path, dtype: str, digest: bytes, stamp: tuple[int, int], start: int, stop: int) -> None:
        """`digest` and `stamp` (size, time of change): of the whole file when it was checked."""
        self._path = path
        self._dtype = np.dtype(dtype)
        self._digest = digest
        self._stamp = stamp
        self._start, self._stop = start, stop
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._stop - self._start

    def part(self, start: int, stop: int) -> StoredTokens:
        """A range of these, still in the file."""
        return StoredTokens(
            self._path, self._dtype.str, self._digest, self._stamp, self._start + start, min(self._stop, self._start + stop)
        )

    def __getitem__(self, where: slice) -> Tokens:
        """Read these. Raises DataAwayError."""
        start, stop, _ = where.indices(len(self))
        width = self._dtype.itemsize
        try:
            with self._path.open("rb", buffering=0) as file:
                self._recognise(os.fstat(file.fileno()))
                file.seek((self._start + start) * width)
                content = file.read((stop - start) * width) or b""
        except OSError as error:
            raise DataAwayError(f"{self._path}: cannot be read ({error.strerror or error})", "bring it back") from error
        if len(content) != (stop - start) * width:
            raise DataAwayError(f"{self._path}: cut off", "bring it back")
        return np.frombuffer(content, dtype=self._dtype)

    def _recognise(self, found: os.stat_result) -> None:
        """The file is as it was when it was checked; another one under its name is checked again."""
        stamp = (found.st_size, found.st_mtime_ns)
        if stamp == self._stamp:
            return
        with self._lock:
            digest = file_digest(self._path)
            if digest != self._digest:
                reason = f"{self._path}: SHA-256 {digest.hex()} now, {self._digest.hex()} when it was checked"
                raise DataAwayError(reason, "bring the file back as it was")
            self._stamp = stamp


Piece = Tokens | StoredTokens


@dataclass(frozen=True)
class TextFile:
    """One file of a corpus under the name that all peers know it by."""

    name: str
    content: Piece
    digest: bytes
    largest: int = 255
    """No token is larger."""


class Text:
    """Many pieces of tokens read as one, cut into overlapping windows."""

    def __init__(self, pieces: Sequence[Piece], length: int) -> None:
        self.length = length
        self._pieces = [piece for piece in pieces if len(piece)]
        self._starts = np.cumsum([0, *(len(piece) for piece in self._pieces)]).tolist()

    @property
    def tokens(self) -> int:
        return int(self._starts[-1])

    @property
    def samples(self) -> int:
        return max(0, (self.tokens - 1) // self.length)

    def windows(self, samples: Sequence[int]) -> Tensor:
        """The windows of these samples: (len(samples), length + 1) int64. Raises DataAwayError."""
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
    """SHA-256 over names, sizes and digests of all files and over how they are read and cut: equal exactly where every position
    means the same."""
    bytes_per_token: float = 1.0
    """Of text: by it figures become bits per byte. Where only tokens are known they stay bits per token."""
    tokenizer: Tokenizer | None = None
    """None: tokens are bytes, or numbers of which no text is known."""
    tokenizer_file: Path | None = None
    """Goes with the finished model."""
    is_text: bool = True
    """Whether tokens stand for text that can be shown."""


def open_corpus(spec: RunSpec, places: Places) -> Corpus:
    """The run's data: files of the volunteer's folder, or fetched from their addresses, however long that takes. Raises
    DataError."""
    data = spec.data
    if data.source == "stdlib":
        return standard_library(data.sequence_length, data.heldout_fraction)

    places.check_room([*data.files, *data.tokenizer])
    memory = Memory()

    def read(file: DataFile, dtype: str) -> TextFile:
        path = places.find(file)
        try:
            return checked_file(file, path, dtype, memory)
        except DataError as error:
            if places.cache is None or path.parent != places.cache:
                raise
            places.tell(f"{error}: fetching it again")
            path.unlink(missing_ok=True)
            return checked_file(file, places.find(file), dtype, memory)

    files = [read(file, {"text": "u1", "uint16": "<u2", "uint32": "<u4"}[data.format]) for file in data.files]
    tokenizer, tokenizer_file, bytes_per_token = None, None, 1.0
    reading: str = "" if data.format == "text" else data.format
    if data.tokenizer:
        read(data.tokenizer[0], "u1")
        tokenizer_file = places.find(data.tokenizer[0])
        tokenizer = HuggingFace(tokenizer_file)
    if tokenizer is not None and data.format == "text":
        if places.cache is None:
            raise DataError("there is no place to keep the tokens that the run's text is turned into", "give a state directory")
        size, digest, kept = sum(len(file.content) for file in files), data.tokenizer[0].sha256, Memory()
        files = [
            tokenized(found, places.find(file), tokenizer, digest, places.cache, places.tell, kept)
            for found, file in zip(files, data.files, strict=True)
        ]
        bytes_per_token = size / max(1, sum(len(file.content) for file in files))
        reading = f"tokenizer {digest}"
    if spec.model.kind == "decoder" and (worst := max(files, key=lambda file: file.largest)).largest >= spec.model.vocab:
        raise DataError(
            f"{worst.name} holds token {worst.largest}, but model.vocab is {spec.model.vocab}", "tell the run's operator"
        )
    found = corpus(files, data.sequence_length, data.heldout_fraction, "the run spec lists no data", reading)
    known = data.format == "text" or tokenizer is not None
    return replace(found, bytes_per_token=bytes_per_token, tokenizer=tokenizer, tokenizer_file=tokenizer_file, is_text=known)


def tokenized(
    file: TextFile, path: Path, tokenizer: Tokenizer, tokenizer_digest: str, cache: Path, tell: Tell, memory: Memory
) -> TextFile:
    """The tokens of a text file, made once and kept in the cache."""
    place = cache / tokens_name(file.digest.hex(), tokenizer_digest)
    if not place.exists():
        tell(f"turning {file.name} into tokens")
        try:
            tokenize(path, tokenizer, place)
        except OSError as error:
            raise DataError(f"the tokens of {file.name} cannot be kept in {cache}: {error.strerror}", "make room there") from error
    return text_file(file.name, place, "<u4", memory)


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
    memory = Memory()
    texts = [text_file(name, paths[name], memory=memory) for name in sorted(paths)]
    return corpus(texts, length, heldout_fraction, f"no Python sources under {root}")


def listed_files(files: Iterable[DataFile], folder: Path, length: int, heldout_fraction: float) -> Corpus:
    """The text files that the run spec lists, in its order, found under `folder` and checked against size and digest."""
    places, memory = Places(folder), Memory()
    found = [checked_file(file, places.find(file), "u1", memory) for file in files]
    return corpus(found, length, heldout_fraction, "the run spec lists no data")


def checked_file(file: DataFile, path: Path, dtype: str, memory: Memory) -> TextFile:
    """The run's file at `path`, if it is that. Raises DataError."""
    check(file, path, path.stat().st_size, file.sha256)
    found = text_file(file.path, path, dtype, memory)
    check(file, path, file.size, found.digest.hex())
    return found


KEPT_BELOW_BYTES = 1 << 20
"""Smaller files stay in memory, as long as there is room; others are read when they are needed."""
KEPT_BYTES = 64 << 20


@dataclass
class Memory:
    """How much of a corpus stays in memory."""

    left: int = KEPT_BYTES

    def takes(self, size: int) -> bool:
        """Whether a file of this size stays; if so it counts."""
        if size >= KEPT_BELOW_BYTES or size > self.left:
            return False
        self.left -= size
        return True


def text_file(name: str, path: Path, dtype: str = "u1", memory: Memory | None = None) -> TextFile:
    """The file at `path`, known as `name`, with its digest. Reads it through once."""
    digest, largest, kept = hashlib.sha256(), 0, []
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            stays = (memory or Memory()).takes(status.st_size)
            while chunk := file.read(READ_BYTES):
                digest.update(chunk)
                if dtype != "u1":
                    largest = max(largest, int(np.frombuffer(chunk, dtype=dtype).max()))
                if stays:
                    kept.append(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    content: Piece
    if stays:
        content = np.frombuffer(b"".join(kept), dtype=dtype)
    else:
        stop = status.st_size // np.dtype(dtype).itemsize
        content = StoredTokens(path, dtype, digest.digest(), (status.st_size, status.st_mtime_ns), 0, stop)
    return TextFile(name, content, digest.digest(), largest if dtype != "u1" else 255)


def file_digest(path: Path) -> bytes:
    """SHA-256 of what the file holds now. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def corpus(files: Sequence[TextFile], length: int, heldout_fraction: float, empty: str, reading: str = "") -> Corpus:
    """Files as training and held-out text. Raises DataError, saying `empty`, when there is nothing to train on. `reading`: how
    tokens are made, if not one of each byte.

    A file is held out when the hash of its name falls below the fraction. Where that leaves one half without a single sample (a
    corpus of few files), the last `heldout_fraction` of all tokens is held out instead.
    """
    held = [file for file in files if is_held_out(file.name, heldout_fraction)]
    kept = [file for file in files if not is_held_out(file.name, heldout_fraction)]
    training, heldout = Text([file.content for file in kept], length), Text([file.content for file in held], length)
    cut = "names"
    if heldout_fraction > 0 and not (training.samples and heldout.samples):
        training, heldout = _cut_tail([file.content for file in files], length, heldout_fraction)
        cut = "tail"
    if not training.samples:
        total, unit = sum(len(file.content) for file in files), "tokens" if reading else "bytes"
        raise DataError(
            f"{empty}: {len(files)} files with {total} {unit} hold no sample of {length + 1} {unit} to train on",
            "give more text or a smaller sequence length",
        )
    summary = hashlib.sha256(f"shoal-data-1|{length}|{heldout_fraction!r}|{cut}{reading and '|'}{reading}".encode())
    for file in files:
        summary.update(hashlib.sha256(file.name.encode()).digest() + len(file.content).to_bytes(8, "little") + file.digest)
    return Corpus(training, heldout, summary.digest())


def _cut_tail(pieces: Sequence[Piece], length: int, fraction: float) -> tuple[Text, Text]:
    boundary = round(sum(len(piece) for piece in pieces) * (1 - fraction))
    head, tail, start = [], [], 0
    for piece in pieces:
        inside = min(max(boundary - start, 0), len(piece))
        head.append(_range(piece, 0, inside))
        tail.append(_range(piece, inside, len(piece)))
        start += len(piece)
    return Text(head, length), Text(tail, length)


def _range(piece: Piece, start: int, stop: int) -> Piece:
    return piece.part(start, stop) if isinstance(piece, StoredTokens) else piece[start:stop]


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


def batches(text: Text, lease: Iterable[Span], skip: int, count: int, batch: int, seed: int) -> Iterator[list[int]]:
    """The leased samples as batches of sample numbers, to be read with `text.windows`; the last one may be smaller."""
    rows: list[int] = []
    for position in positions(lease, skip, count):
        rows.append(sample_at(position, text.samples, seed))
        if len(rows) == batch:
            yield rows
            rows = []
    if rows:
        yield rows
