"""Codecs: how a part of an update becomes bytes, and what everybody makes of those bytes.

A part is a range of a flat fp32 vector. Its *spans* are the lengths of the runs in it that lie in one tensor each; a codec's blocks
start anew at every span and never cross one, so that a part can be decoded without knowing where in the model it lies.

Rule 1: `decode(payload)` depends on the bytes alone: not on threads, slices, alignment or the machine. It is a conversion of each
value and at most one fp32 multiplication; int8 never makes a denormal number, so that not even a processor that flushes those to
zero differs. `decode_add` too gives the same bits everywhere: what it adds is exact in fp32, so that no processor's fused
multiply-add can differ from a multiplication and an addition.
Rule 2: what is not finite does not pass, in either direction. The limits below leave room for a sum of contributions: 2**15 values
of `LARGEST_CONTRIBUTION` times `LARGEST_WEIGHT` are still finite in fp32, so that no accepted contribution can spoil the others'.
Rule 3: all or nothing. A call that raises `CodecError` has changed no output.

Every codec must pass the conformance suite (`tests/compression/test_conformance.py`). Integers are little-endian.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Payload = bytes | bytearray | memoryview

SLICE_VALUES = 1 << 19
"""Values worked on at once: 2 MiB of fp32 scratch stay in the processor's cache, and a slice is long against the cost of starting
an operation on it (measured: half and double are slower). No result depends on it."""

LARGEST_CONTRIBUTION = 2.0**64
"""`decode_add` refuses magnitudes beyond this (nobody's pseudo-gradient reaches 1.8e19)."""
LARGEST_ENCODED = 2.0**65
"""`encode` refuses magnitudes beyond this: a mean of accepted contributions always encodes, whatever its rounding."""
LARGEST_DECODED = 2.0**66
"""`decode` refuses magnitudes beyond this: what encodes always decodes, whatever its rounding."""
LARGEST_WEIGHT = 2.0**48
"""`decode_add` refuses weights beyond this; weights are tokens."""

SMALLEST_NORMAL = 2.0**-126
LARGEST_DENORMAL = 2.0**-126 - 2.0**-149


class CodecError(ValueError):
    """Bytes that do not decode, or values that do not encode: wrong size, not finite, out of range. The message says which."""


class Codec(Protocol):
    """One way to write fp32 values as bytes. Stateless and safe to use from many threads."""

    @property
    def name(self) -> str:
        """What the run spec calls it."""

    @property
    def version(self) -> int:
        """Raised whenever the same values would give other bytes, or the same bytes other values."""

    @property
    def block(self) -> int:
        """A part may be cut within a span only at multiples of this many values."""

    def encoded_size(self, spans: tuple[int, ...]) -> int:
        """Bytes of a part with these spans: the sum over its spans, exact."""

    def encode(self, values: Tensor, spans: tuple[int, ...]) -> bytearray:
        """`values`: fp32, 1-D, contiguous, on the CPU, sum(spans) long; it is not changed."""

    def encode_into(self, values: Tensor, spans: tuple[int, ...], out: bytearray | memoryview) -> None:
        """The same into a writable buffer of exactly `encoded_size(spans)` bytes, which holds anything if CodecError is raised."""

    def check(self, payload: Payload, spans: tuple[int, ...], weight: float = 1.0) -> None:
        """Raises CodecError exactly if `decode_add` would; much cheaper than decoding where the format allows."""

    def decode(self, payload: Payload, spans: tuple[int, ...], out: Tensor | None = None) -> Tensor:
        """The fp32 values, in `out` if given. Reads `payload` only."""

    def decode_add(self, payload: Payload, spans: tuple[int, ...], into: Tensor, weight: float) -> None:
        """into := into + weight * decode(payload), each sum rounded to fp32 once. How `weight *` rounds is the codec's to say."""


def codec(name: str, block: int = 1024) -> Codec:
    """The codec that a run spec names; `block` (values per scale) concerns int8 only."""
    match name:
        case "int8":
            return Int8(block)
        case "raw":
            return Cast("raw")
        case "bf16" | "fp16":
            return Cast(name)
        case _:
            raise ValueError(f"unknown codec {name!r}; known: raw, int8, bf16, fp16")


def count_non_finite(values: Tensor) -> int:
    """How many of the values are NaN or infinite. Any shape and floating dtype; integers are always finite."""
    if not values.is_floating_point():
        return 0
    flat = values.reshape(-1)
    count = 0
    for start in range(0, flat.numel(), SLICE_VALUES):
        piece = flat[start : start + SLICE_VALUES]
        # The usual case costs one pass: NaN and infinity survive a maximum of magnitudes.
        if not math.isfinite(piece.abs().amax().item()):
            count += piece.numel() - int(torch.isfinite(piece).sum().item())
    return count


# --- int8 -----------------------------------------------------------------------------------------------------------------------


class Int8:
    """Symmetric 8-bit blocks: scale = absmax / 127, q = round-half-even(x / scale), x' = q * scale. 1 + 4/block bytes per value.

    Payload: the fp32 scales of all blocks, then the int8 values. A block whose scale would be denormal or zero (absmax below
    1.5e-36) is all zero. Error at most scale / 2 per value; no error feedback (at int8 no published run needs it).

    `decode_add` rounds weight * scale to 17 significant bits, relative error at most 2^-17: times a q of 7 bits that is exact in
    fp32's 24, so one pass may multiply and add, fused or not, and the sum is the same bits.
    """

    version = 1
    name = "int8"

    def __init__(self, block: int = 1024) -> None:
        if not 1 <= block <= 1 << 20:
            raise ValueError(f"int8 block of {block} values; must be 1..{1 << 20}")
        self.block = block

    def __repr__(self) -> str:
        return f"Int8({self.block})"

    def encoded_size(self, spans: tuple[int, ...]) -> int:
        return _tiling(spans, self.block).size

    def encode(self, values: Tensor, spans: tuple[int, ...]) -> bytearray:
        payload = bytearray(self.encoded_size(spans))
        self.encode_into(values, spans, payload)
        return payload

    def encode_into(self, values: Tensor, spans: tuple[int, ...], out: bytearray | memoryview) -> None:
        tiling = _tiling(spans, self.block)
        _check_vector(values, tiling.values)
        raw = _writable(out, tiling.size)
        if not tiling.values:
            return
        q = raw[4 * tiling.blocks :]  # (values,)
        scales, lows = torch.empty(tiling.blocks), torch.empty(tiling.blocks)
        for tile in tiling.tiles:
            x = values[tile.start : tile.stop].view(-1, tile.width)  # (rows, width)
            torch.amax(x, dim=1, out=scales[tile.block : tile.block + x.shape[0]])
            # Two reading passes are faster than one that writes magnitudes and one that reads them.
            torch.amin(x, dim=1, out=lows[tile.block : tile.block + x.shape[0]])
        torch.maximum(scales, lows.neg_(), out=scales)
        if not scales.amax().item() <= LARGEST_ENCODED:  # NaN compares false, too
            raise CodecError(f"int8: {_explain(values, LARGEST_ENCODED)}")
        scales.div_(127.0)
        torch.threshold_(scales, LARGEST_DENORMAL, 0.0)
        # Where the scale is 0, dividing by infinity makes the block zero.
        divisors = torch.threshold(scales, 0.0, math.inf)
        scratch = _scratch(tiling.widest)
        for tile in tiling.tiles:
            x = values[tile.start : tile.stop].view(-1, tile.width)
            work = scratch[: tile.stop - tile.start].view(-1, tile.width)
            torch.div(x, divisors[tile.block : tile.block + x.shape[0], None], out=work)
            work.round_()
            q[tile.start : tile.stop].view(-1, tile.width).copy_(work)
        raw[: 4 * tiling.blocks] = scales.view(torch.int8)

    def decode(self, payload: Payload, spans: tuple[int, ...], out: Tensor | None = None) -> Tensor:
        tiling = _tiling(spans, self.block)
        out = _output(out, tiling.values)
        scales, q = self._read(payload, tiling, LARGEST_DECODED)
        for tile in tiling.tiles:
            x = out[tile.start : tile.stop].view(-1, tile.width)
            x.copy_(q[tile.start : tile.stop].view(-1, tile.width))
            x.mul_(scales[tile.block : tile.block + x.shape[0], None])
        return out

    def decode_add(self, payload: Payload, spans: tuple[int, ...], into: Tensor, weight: float) -> None:
        tiling = _tiling(spans, self.block)
        _check_vector(into, tiling.values)
        _check_weight(weight)
        scales, q = self._read(payload, tiling, LARGEST_CONTRIBUTION)
        _round_to_17_bits(scales.mul_(weight))
        scratch = _scratch(tiling.widest)
        for tile in tiling.tiles:
            work = scratch[: tile.stop - tile.start].view(-1, tile.width)
            work.copy_(q[tile.start : tile.stop].view(-1, tile.width))
            into[tile.start : tile.stop].view(-1, tile.width).addcmul_(work, scales[tile.block : tile.block + work.shape[0], None])

    def check(self, payload: Payload, spans: tuple[int, ...], weight: float = 1.0) -> None:
        _check_weight(weight)
        self._read(payload, _tiling(spans, self.block), LARGEST_CONTRIBUTION)

    def _read(self, payload: Payload, tiling: _Tiling, largest: float) -> tuple[Tensor, Tensor]:
        """Scales (copied, so that they are aligned; checked) and values (a view) of a payload."""
        raw = _bytes_of(payload, tiling.size)
        scales = raw[: 4 * tiling.blocks].clone().view(torch.float32)
        # Each scale is 0 or normal and in range; NaN fails all comparisons. -128 times the largest stays in range, too.
        if tiling.blocks and scales.amin().item() >= SMALLEST_NORMAL and scales.amax().item() <= largest / 128.0:
            return scales, raw[4 * tiling.blocks :]
        good = ((scales >= SMALLEST_NORMAL) & (scales <= largest / 128.0)) | (scales == 0.0)
        if not bool(good.all()):
            at = int(torch.nonzero(~good)[0].item())
            bad = int((~good).sum().item())
            raise CodecError(f"int8: {bad}/{tiling.blocks} scales out of range, first {scales[at].item()!r} of block {at}")
        return scales, raw[4 * tiling.blocks :]


def _round_to_17_bits(scales: Tensor) -> None:
    """Round each finite, non-negative fp32 value, in place, to 17 significant bits, halves away from zero."""
    scales.view(torch.int32).add_(0x40).bitwise_and_(~0x7F)


class _Tile(NamedTuple):
    """Whole blocks of one width, next to each other: values [start, stop), the first of them block number `block`."""

    start: int
    stop: int
    width: int
    block: int


class _Tiling(NamedTuple):
    """How a part falls into blocks. `widest`: values of its largest tile."""

    values: int
    blocks: int
    size: int
    widest: int
    tiles: tuple[_Tile, ...]


@lru_cache(maxsize=4096)
def _tiling(spans: tuple[int, ...], block: int) -> _Tiling:
    """Tiles of at most about SLICE_VALUES. Full blocks of neighbouring spans share tiles; a span's short last block has its own."""
    runs: list[list[int]] = []  # [start, stop, width]
    position = 0
    for span in spans:
        if span < 0:
            raise ValueError(f"negative span {span}")
        whole = span - span % block
        if whole:
            if runs and runs[-1][1] == position and runs[-1][2] == block:
                runs[-1][1] += whole
            else:
                runs.append([position, position + whole, block])
        if whole < span:
            runs.append([position + whole, position + span, span - whole])
        position += span
    tiles: list[_Tile] = []
    blocks = 0
    for start, stop, width in runs:
        step = max(1, SLICE_VALUES // width) * width
        for at in range(start, stop, step):
            end = min(at + step, stop)
            tiles.append(_Tile(at, end, width, blocks))
            blocks += (end - at) // width
    widest = max((tile.stop - tile.start for tile in tiles), default=0)
    return _Tiling(position, blocks, 4 * blocks + position, widest, tuple(tiles))


# --- casts ----------------------------------------------------------------------------------------------------------------------


class Cast:
    """Every value in another dtype, rounded to nearest even. fp32 is exact; values that fp16 cannot hold (beyond 65504) are
    refused.

    Zero has no sign after decoding. Numbers that are denormal in fp32 travel as they are, in fp32 and bf16.
    """

    version = 1
    block = 1

    def __init__(self, name: str) -> None:
        self.name = name
        self._dtype, largest = {
            "raw": (torch.float32, LARGEST_ENCODED),
            "bf16": (torch.bfloat16, LARGEST_ENCODED),
            "fp16": (torch.float16, 65504.0),
        }[name]
        self._width = self._dtype.itemsize
        self._largest = largest

    def __repr__(self) -> str:
        return f"Cast({self.name!r})"

    def encoded_size(self, spans: tuple[int, ...]) -> int:
        return self._width * sum(spans)

    def encode(self, values: Tensor, spans: tuple[int, ...]) -> bytearray:
        payload = bytearray(self.encoded_size(spans))
        self.encode_into(values, spans, payload)
        return payload

    def encode_into(self, values: Tensor, spans: tuple[int, ...], out: bytearray | memoryview) -> None:
        _check_vector(values, sum(spans))
        raw = _writable(out, self.encoded_size(spans))
        if _largest_magnitude(values) > self._largest:
            raise CodecError(f"{self.name}: {_explain(values, self._largest)}")
        if raw.data_ptr() % self._width:
            raw.copy_(values.to(self._dtype).view(torch.int8))
        else:
            raw.view(self._dtype).copy_(values)

    def check(self, payload: Payload, spans: tuple[int, ...], weight: float = 1.0) -> None:
        _check_weight(weight)
        self._read(payload, spans, LARGEST_CONTRIBUTION)

    def decode(self, payload: Payload, spans: tuple[int, ...], out: Tensor | None = None) -> Tensor:
        out = _output(out, sum(spans))
        source = self._read(payload, spans, LARGEST_DECODED)
        return out.copy_(source).add_(0.0)  # -0 becomes 0, as in a sum

    def decode_add(self, payload: Payload, spans: tuple[int, ...], into: Tensor, weight: float) -> None:
        total = sum(spans)
        _check_vector(into, total)
        _check_weight(weight)
        source = self._read(payload, spans, LARGEST_CONTRIBUTION)
        scratch = _scratch(min(SLICE_VALUES, total))
        for start in range(0, total, SLICE_VALUES):
            piece = source[start : start + SLICE_VALUES]
            work = scratch[: piece.numel()]
            work.copy_(piece)
            if weight != 1.0:
                work.mul_(weight)
            into[start : start + SLICE_VALUES].add_(work)

    def _read(self, payload: Payload, spans: tuple[int, ...], largest: float) -> Tensor:
        raw = _bytes_of(payload, self.encoded_size(spans))
        if raw.data_ptr() % self._width:
            raw = raw.clone()
        source = raw.view(self._dtype)
        if _largest_magnitude(source) > largest:
            raise CodecError(f"{self.name}: {_explain(source, largest)}")
        return source


# --- what codecs share ----------------------------------------------------------------------------------------------------------


def _largest_magnitude(values: Tensor) -> float:
    """max |x|, infinity where there is a NaN, 0 for nothing."""
    scratch = _scratch(min(SLICE_VALUES, values.numel()))
    largest = 0.0
    for start in range(0, values.numel(), SLICE_VALUES):
        piece = values[start : start + SLICE_VALUES]
        top = scratch[: piece.numel()].copy_(piece).abs_().amax().item()
        largest = math.inf if math.isnan(top) else max(largest, top)
    return largest


def _explain(values: Tensor, largest: float) -> str:
    """Why these values were refused, with counts."""
    bad = count_non_finite(values)
    if bad:
        return f"{bad}/{values.numel()} values non-finite"
    beyond = int((values.abs() > largest).sum().item())
    return f"{beyond}/{values.numel()} values beyond {largest:g}"


def _bytes_of(payload: Payload, size: int) -> Tensor:
    """The payload as int8, without a copy. torch warns about read-only buffers even if they are only read; an address does not.

    The tensor is valid as long as the caller holds the payload.
    """
    view = memoryview(payload)
    if view.nbytes != size:
        raise CodecError(f"{view.nbytes} bytes where {size} were expected")
    if not view.c_contiguous:
        raise ValueError("payload is not contiguous")
    if size == 0:
        return torch.empty(0, dtype=torch.int8)
    if view.readonly:
        flat = torch.frombuffer((ctypes.c_int8 * size).from_address(_address(view)), dtype=torch.int8)
    else:
        flat = torch.frombuffer(view, dtype=torch.int8)
    return flat


def _writable(out: bytearray | memoryview, size: int) -> Tensor:
    """A buffer to encode into, as int8."""
    view = memoryview(out)
    if view.nbytes != size or view.readonly or not view.c_contiguous:
        raise ValueError(f"need a writable buffer of {size} bytes, not of {view.nbytes}")
    return torch.frombuffer(view, dtype=torch.int8) if size else torch.empty(0, dtype=torch.int8)


def _address(view: memoryview) -> int:
    import numpy

    return int(numpy.frombuffer(view, dtype=numpy.int8).__array_interface__["data"][0])


def _check_vector(values: Tensor, length: int) -> None:
    if values.dtype != torch.float32 or values.device.type != "cpu" or values.dim() != 1 or not values.is_contiguous():
        raise ValueError(
            f"need a contiguous 1-D fp32 tensor on the CPU, not {values.dtype} {tuple(values.shape)} on {values.device}"
        )
    if values.numel() != length:
        raise ValueError(f"{values.numel()} values where the spans hold {length}")


def _check_weight(weight: float) -> None:
    if not 0.0 <= weight <= LARGEST_WEIGHT:
        raise CodecError(f"weight {weight!r} is not in 0..{LARGEST_WEIGHT:g}")


def _output(out: Tensor | None, length: int) -> Tensor:
    if out is None:
        return torch.empty(length, dtype=torch.float32)
    _check_vector(out, length)
    return out


class _Scratch(threading.local):
    """One buffer per thread, so that no two encode into the same."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0, dtype=torch.float32)


_local = _Scratch()


def _scratch(length: int) -> Tensor:
    if _local.buffer.numel() < length:
        _local.buffer = torch.empty(length, dtype=torch.float32)
    return _local.buffer[:length]


if sys.byteorder != "little":
    raise ImportError("shoal's codecs are written for little-endian machines")
