"""What was packed unpacks to the same bytes, and nothing else unpacks, however it was made."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compression.packing import PackingError, pack, unpack


@settings(max_examples=200)
@given(st.binary(max_size=5000) | st.binary(min_size=1, max_size=20).map(lambda unit: unit * 700))
def test_what_was_packed_comes_back(payload: bytes) -> None:
    assert unpack(pack(memoryview(payload)), len(payload)) == payload


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_random_bytes_do_not_unpack_to_a_wrong_size(data: bytes, size: int) -> None:
    with contextlib.suppress(PackingError):
        assert len(unpack(data, size)) == size


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_payload_has_the_right_size_or_is_refused(data: st.DataObject) -> None:
    packed = bytearray(pack(bytes(range(256)) * 8))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PackingError):
        assert len(unpack(packed, 2048)) == 2048


@pytest.mark.parametrize("size", [0, 99, 101, 1 << 30])
def test_another_size_than_expected_is_refused_with_both(size: int) -> None:
    with pytest.raises(PackingError, match=rf"holds 100 bytes, where {size} were expected"):
        unpack(pack(bytes(100)), size)


def test_a_bomb_is_refused_without_taking_its_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(64 << 20))
    assert len(bomb) < 64 << 10
    tracemalloc.start()
    with pytest.raises(PackingError, match="67108864 bytes, where 1000 were expected"):
        unpack(bomb, 1000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_bomb_that_hides_its_size_is_refused() -> None:
    hiding = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    with pytest.raises(PackingError, match="an unknown number of bytes"):
        unpack(hiding, 1000)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1000)))
    at = frame.index((1000 - 256).to_bytes(2, "little"))
    frame[at : at + 2] = (500 - 256).to_bytes(2, "little")
    with pytest.raises(PackingError):
        unpack(frame, 500)


def test_what_follows_the_frame_is_refused() -> None:
    with pytest.raises(PackingError, match="does not unpack"):
        unpack(pack(bytes(100)) + b"x", 100)
