"""Bulk frames: what was framed comes back, everything else is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.protocol import frames
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocol.frames import FRAME_LIMIT_BYTES, FrameHeader
from shoal.protocol.messages import PartKey, Section

HEADER = FrameHeader("shoal", 3, 0, 0, 17, Section.PARAMETERS, 5, 1, 61440)


def headers() -> st.SearchStrategy[FrameHeader]:
    long, short = st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)
    run = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
    return st.builds(FrameHeader, run, long, short, short, long, st.sampled_from(Section), short, short, long, st.booleans())


@given(headers(), st.lists(st.binary(max_size=50), max_size=4))
def test_a_frame_comes_back_as_it_went(header: FrameHeader, payload: list[bytes]) -> None:
    assume(not header.packed or any(payload))
    again, view = frames.decode(frames.encode(header, *payload))
    assert again == header
    assert bytes(view) == b"".join(payload)


@settings(max_examples=300)
@given(st.binary(max_size=120) | st.binary(max_size=120).map(lambda tail: frames.MAGIC + b"\x01\x05\1\0" + tail))
def test_random_bytes_are_a_frame_or_a_remote_protocol_error(data: bytes) -> None:
    try:
        header, payload = frames.decode(data)
    except RemoteProtocolError:
        return
    assert frames.encode(header, payload) == data


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_frame_is_a_frame_or_a_remote_protocol_error(data: st.DataObject) -> None:
    whole = bytearray(frames.encode(HEADER, b"payload"))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        header, payload = frames.decode(bytes(whole))
    except RemoteProtocolError:
        return
    assert frames.encode(header, payload) == bytes(whole)


def test_every_truncation_is_refused() -> None:
    whole = frames.encode(HEADER, b"0123456789")
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            frames.decode(whole[:size])
    with pytest.raises(RemoteProtocolError, match="says that it has"):
        frames.decode(whole + b"x")


def test_the_payload_is_a_view_and_not_a_copy() -> None:
    frame = frames.encode(HEADER, b"abc", memoryview(bytearray(b"de")))
    _, payload = frames.decode(frame)
    assert payload.obj is frame
    assert payload.readonly


def test_buffers_of_other_item_types_are_framed_as_bytes() -> None:
    numbers: Any = memoryview(bytearray(struct.pack("<3f", 1.0, 2.0, 3.0))).cast("f")
    _, payload = frames.decode(frames.encode(HEADER, memoryview(b""), numbers))
    assert struct.unpack("<3f", payload) == (1.0, 2.0, 3.0)


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    room = FRAME_LIMIT_BYTES - len(frames.encode(HEADER))
    assert len(frames.encode(HEADER, bytes(room))) == FRAME_LIMIT_BYTES
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        frames.encode(HEADER, bytes(room + 1))
    with pytest.raises(RemoteProtocolError, match="are allowed"):
        frames.decode(bytes(FRAME_LIMIT_BYTES + 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("term", -1),
        ("round", 1 << 63),
        ("weight", -1),
        ("group", 1 << 32),
        ("part", -1),
        ("attempt", 1 << 32),
        ("run", ""),
        ("run", "é" * 33),
    ],
)
def test_headers_out_of_range_cannot_be_built(field: str, value: int | str) -> None:
    good = {name: getattr(HEADER, name) for name in HEADER.__dataclass_fields__}
    with pytest.raises(LocalProtocolError):
        FrameHeader(**{**good, field: value})


def test_another_format_names_the_cause() -> None:
    frame = frames.encode(HEADER, b"x")
    with pytest.raises(RemoteProtocolError, match="same version of shoal"):
        frames.decode(b"shl2" + frame[4:])
    with pytest.raises(RemoteProtocolError, match="unknown section or flag"):
        frames.decode(frame[:6] + b"\2" + frame[7:])
    with pytest.raises(RemoteProtocolError, match="unknown section or flag"):
        frames.decode(frame[:7] + b"\1" + frame[8:])


def test_a_packed_frame_says_so_and_has_a_payload() -> None:
    packed = replace(HEADER, packed=True)
    header, _ = frames.decode(frames.encode(packed, b"x"))
    assert header.packed
    with pytest.raises(RemoteProtocolError, match="packed frame without a payload"):
        frames.decode(frames.encode(packed))


def test_a_header_knows_its_part() -> None:
    assert HEADER.key == PartKey(17, Section.PARAMETERS, 5, 1)
