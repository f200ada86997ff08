"""Sums of contributions: in order, exact, and in bounded memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shoal.compression.codec import Codec, CodecError, codec
from shoal.peer.allocator import MALLOC_ENVIRONMENT, malloc_environment
from shoal.peer.partstore import PartStore
from shoal.peer.reduction import CLOSING_SUMS, Addition, Reduced, Reducer
from shoal.peer.workers import Workers, part_threads
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import PartKey, Section

FP32 = codec("raw")
SPANS = (30, 20)


class Closed:
    """What a reducer said."""

    def __init__(self) -> None:
        self.parts: dict[PartKey, Reduced] = {}
        self.errors: list[BaseException] = []
        self.changed = asyncio.Event()

    def closed(self, key: PartKey, reduced: Reduced) -> None:
        self.parts[key] = reduced
        self.changed.set()

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.changed.set()

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.parts) + len(self.errors) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(2)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PartStore]:
    made = PartStore(tmp_path / "parts")
    yield made
    made.close()


def key(part: int, round_id: int = 1) -> PartKey:
    return PartKey(round_id, Section.PARAMETERS, part)


def values(seed: int) -> torch.Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 10.0**seed


def addition(seed: int, weight: int, codec: Codec = FP32) -> Addition:
    return Addition(f"peer{seed}", memoryview(codec.encode(values(seed), SPANS)), weight)


async def test_the_order_of_the_plan_decides_the_bits(workers: Workers, store: PartStore) -> None:
    """Magnitudes differ so much that another order of summation gives other bits."""
    said = Closed()
    reducer = Reducer(workers, (FP32, FP32), said.closed, said.failed)
    orders = ((0, 5, 7, 3), (7, 5, 3, 0))
    for part, order in enumerate(orders):
        for seed in order:
            reducer.add(key(part), SPANS, store, addition(seed, seed + 1))
        reducer.close(key(part), SPANS, store, 19.0)
    await said.heard(2)
    results = []
    for part, order in enumerate(orders):
        total = torch.zeros(50)
        for seed in order:
            total += values(seed) * float(seed + 1)
        results.append(total / 19.0)
        got = said.parts[key(part)]
        assert bytes(got.payload) == results[part].numpy().tobytes()
        assert got.digest == hashlib.sha256(got.payload).digest()
        stored = store.find(got.digest, 1)
        assert stored is not None
        assert store.read(stored) == bytes(got.payload)
    assert not torch.equal(*results)


async def test_sums_beyond_the_limit_wait_encoded_and_all_parts_close(workers: Workers, store: PartStore) -> None:
    said = Closed()
    reducer = Reducer(workers, (FP32, FP32), said.closed, said.failed, open_limit=2)
    for part in range(10):
        reducer.add(key(part), SPANS, store, addition(part % 3, 1))
        assert reducer.open_sums <= 2
    for part in reversed(range(10)):
        reducer.add(key(part), SPANS, store, addition(3, 1))
        reducer.close(key(part), SPANS, store, 2.0)
        assert reducer.open_sums <= 2 + CLOSING_SUMS
    await said.heard(10)
    assert reducer.open_sums == 0
    for part in range(10):
        assert torch.equal(FP32.decode(said.parts[key(part)].payload, SPANS), (values(part % 3) + values(3)) / 2.0)


async def test_additions_that_are_not_urgent_wait_for_the_part_to_close_or_for_as_many_as_a_sum_takes(
    workers: Workers, store: PartStore
) -> None:
    """An encoded contribution takes about a byte per value, a sum four."""
    int8 = codec("int8", 64)
    said = Closed()
    reducer = Reducer(workers, (int8, FP32), said.closed, said.failed)
    for seed in range(3):
        reducer.add(key(0), SPANS, store, addition(seed, 1, int8), urgent=False)
        assert reducer.open_sums == 0
    reducer.add(key(1), SPANS, store, addition(0, 1, int8), urgent=False)
    reducer.add(key(0), SPANS, store, addition(3, 1, int8), urgent=False)
    assert reducer.open_sums == 1
    reducer.add(key(1), SPANS, store, addition(1, 1, int8))
    assert reducer.open_sums == 2
    reducer.add(key(0), SPANS, store, addition(4, 1, int8), urgent=False)
    for part in range(2):
        reducer.close(key(part), SPANS, store, 1.0)
    await said.heard(2)
    for part, seeds in enumerate((range(5), range(2))):
        total = torch.zeros(50)
        for seed in seeds:
            int8.decode_add(int8.encode(values(seed), SPANS), SPANS, total, 1.0)
        assert bytes(said.parts[key(part)].payload) == total.numpy().tobytes()


async def test_a_sum_starts_from_zero_in_memory_that_was_used_before(workers: Workers, store: PartStore) -> None:
    said = Closed()
    reducer = Reducer(workers, (FP32, FP32), said.closed, said.failed, open_limit=1)
    for part in range(3):
        reducer.add(key(part), SPANS, store, addition(part, 1))
        reducer.close(key(part), SPANS, store, 1.0)
        await said.heard(part + 1)
        assert torch.equal(FP32.decode(said.parts[key(part)].payload, SPANS), values(part))


async def test_dropping_a_round_frees_its_sums_for_others(workers: Workers, store: PartStore) -> None:
    said = Closed()
    reducer = Reducer(workers, (FP32, FP32), said.closed, said.failed, open_limit=1)
    reducer.add(key(0, 1), SPANS, store, addition(0, 1))
    reducer.add(key(0, 2), SPANS, store, addition(1, 1))
    reducer.drop_round(1)
    reducer.add(key(0, 2), SPANS, store, addition(2, 1))
    reducer.close(key(0, 2), SPANS, store, 2.0)
    await said.heard(1)
    assert set(said.parts) == {key(0, 2)}
    assert torch.equal(FP32.decode(said.parts[key(0, 2)].payload, SPANS), (values(1) + values(2)) / 2.0)


async def test_what_makes_no_sense_is_our_bug(workers: Workers, store: PartStore) -> None:
    said = Closed()
    reducer = Reducer(workers, (FP32, FP32), said.closed, said.failed)
    with pytest.raises(LocalProtocolError, match="total weight of 0"):
        reducer.close(key(0), SPANS, store, 0.0)
    reducer.add(key(1), SPANS, store, Addition("peer", memoryview(b"short"), 1))
    await said.heard(1)
    assert isinstance(said.errors[0], CodecError)


def test_launchers_get_the_allocator_settings_and_can_override_them() -> None:
    assert malloc_environment({"PATH": "/bin"}) == {**MALLOC_ENVIRONMENT, "PATH": "/bin"}
    assert malloc_environment({"MALLOC_ARENA_MAX": "8"})["MALLOC_ARENA_MAX"] == "8"
    assert 1 <= part_threads() <= 4


MAPPED = """
import ctypes, {first}
class Info(ctypes.Structure):
    _fields_ = [("before", ctypes.c_size_t * 3), ("hblks", ctypes.c_size_t), ("after", ctypes.c_size_t * 6)]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype, libc.malloc.argtypes = Info, ctypes.c_void_p, [ctypes.c_size_t]
{then}
before = libc.mallinfo2().hblks
libc.malloc(20 << 20)
print(libc.mallinfo2().hblks - before)
"""
"""Says how many mappings a large buffer took."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_a_daemon_keeps_large_buffers_in_its_heap_unless_its_environment_says_otherwise() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    settled = MAPPED.format(first="shoal.peer.allocator as allocator", then="allocator.settle_allocator()")
    for script, environment, mappings in (
        (MAPPED.format(first="sys", then=""), plain, 1),
        (settled, plain, 0),
        (settled, plain | {"MALLOC_MMAP_THRESHOLD_": "1000000"}, 1),
        (MAPPED.format(first="sys", then=""), malloc_environment(plain), 0),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert int(done.stdout) == mappings, (script, environment)
