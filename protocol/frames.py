"""The bulk bytes on the wire: one part of one round per frame, behind a small fixed header.

Rule: a frame is refused before anything is allocated for it. Protobuf would cost a copy of every payload, so the header is a
struct. It says which run, term, group, round, part and attempt the payload belongs to; a receiver drops what is not its own.

    offset  size  what
         0     4  magic "shl1" (the digit is the format's version)
         4     1  section: 1 parameters, 2 buffers
         5     1  length of the run's name, bytes
         6     2  flags: bit 0, the payload is packed (zstd, one frame that says its size); the others are zero
         8     8  term
        16     8  round
        24     8  weight
        32     4  group
        36     4  fragment
        40     4  part
        44     4  attempt
        48     4  length of the payload, bytes
        52     n  the run's name, UTF-8
    52 + n        payload

All integers are little endian and unsigned.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocol.messages import PartKey, Section

MAGIC = b"shl1"
FRAME_LIMIT_BYTES = 2 << 20
"""A frame, header included: parts are at most 1 MiB encoded."""
RUN_LIMIT_BYTES = 64

Buffer = bytes | bytearray | memoryview

_FIXED = struct.Struct("<4sBBHQQQIIIII")
_SECTIONS = {Section.PARAMETERS: 1, Section.BUFFERS: 2}
_SECTION_OF = {number: section for section, number in _SECTIONS.items()}
_PACKED = 1
_BOUNDS = {"term": 63, "round": 63, "weight": 63, "group": 32, "fragment": 32, "part": 32, "attempt": 32}


@dataclass(frozen=True)
class FrameHeader:
    """ "This is part `part` of round `round`": a contribution with its weight, or (weight 0) the part's final bytes."""

    run: str
    term: int
    group: int
    fragment: int
    round: int
    section: Section
    part: int
    attempt: int
    weight: int = 0
    packed: bool = False
    """Whether the payload must be unpacked first. Only in runs whose spec has `codec.zstd`; a receiver refuses it in others."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.run.encode("utf-8", "surrogatepass")) <= RUN_LIMIT_BYTES or not self.run.isprintable():
            raise LocalProtocolError(f"a run's name is printable and has 1 to {RUN_LIMIT_BYTES} bytes, unlike {self.run!r:.80}")
        for name, bits in _BOUNDS.items():
            if not 0 <= getattr(self, name) < 1 << bits:
                raise LocalProtocolError(f"{name} {getattr(self, name)} of a frame is out of range")

    @property
    def key(self) -> PartKey:
        """The part that this frame belongs to."""
        return PartKey(self.round, self.section, self.part, self.attempt)


def encode(header: FrameHeader, *payload: Buffer) -> bytes:
    """One frame of the payload's buffers, joined. Copies each byte once."""
    run = header.run.encode()
    views = [memoryview(buffer).cast("B") for buffer in payload if memoryview(buffer).nbytes]
    size = sum(view.nbytes for view in views)
    if (total := _FIXED.size + len(run) + size) > FRAME_LIMIT_BYTES:
        raise LocalProtocolError(f"a frame of {total} bytes exceeds the limit of {FRAME_LIMIT_BYTES}")
    fixed = _FIXED.pack(
        MAGIC,
        _SECTIONS[header.section],
        len(run),
        _PACKED if header.packed else 0,
        header.term,
        header.round,
        header.weight,
        header.group,
        header.fragment,
        header.part,
        header.attempt,
        size,
    )
    return b"".join((fixed, run, *views))


def decode(frame: bytes) -> tuple[FrameHeader, memoryview]:
    """The header and a view (no copy) of the payload. Raises RemoteProtocolError."""
    if not _FIXED.size <= len(frame) <= FRAME_LIMIT_BYTES:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes; {_FIXED.size} to {FRAME_LIMIT_BYTES} are allowed")
    magic, section, run_size, flags, term, round_, weight, group, fragment, part, attempt, size = _FIXED.unpack_from(frame)
    if magic != MAGIC:
        raise RemoteProtocolError("not a frame of this protocol", "use the same version of shoal on both machines")
    if section not in _SECTION_OF or flags & ~_PACKED:
        raise RemoteProtocolError("a frame with an unknown section or flag", "use the same version of shoal on both machines")
    start = _FIXED.size + run_size
    if len(frame) != start + size:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes says that it has {start + size}")
    if flags and not size:
        raise RemoteProtocolError("a packed frame without a payload")
    try:
        run = bytes(frame[_FIXED.size : start]).decode()
        header = FrameHeader(run, term, group, fragment, round_, _SECTION_OF[section], part, attempt, weight, flags == _PACKED)
    except (UnicodeDecodeError, LocalProtocolError) as error:
        raise RemoteProtocolError(f"a frame with a bad header: {error}") from error
    return header, memoryview(frame)[start:]
