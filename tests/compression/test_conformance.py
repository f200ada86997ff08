"""What every codec must keep, whatever its format. A new codec is added to `CODECS` and nowhere else."""

from __future__ import annotations

import concurrent.futures
import math
import re
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import shoal.compression.codec as codec_module
from shoal.compression.codec import LARGEST_WEIGHT, Codec, CodecError, codec, count_non_finite

CODECS: dict[str, Codec] = {
    "int8/256": codec("int8", 256),
    "int8/1024": codec("int8", 1024),
    "int8/1": codec("int8", 1),
    "int8/7": codec("int8", 7),
    "raw": codec("raw"),
    "bf16": codec("bf16"),
    "fp16": codec("fp16"),
}
FUNNY_SIZES = (1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 127, 255, 256, 257, 1000, 4095, 4097)


@pytest.fixture(params=CODECS)
def any_codec(request: pytest.FixtureRequest) -> Codec:
    return CODECS[request.param]


def normal(size: int, seed: int = 0, scale: float = 1e-3) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def allowed_error(any_codec: Codec, values: Tensor, spans: tuple[int, ...]) -> Tensor:
    """Half a step of each value's quantisation grid, with a hair for fp32 rounding; written without the codec's own code."""
    if any_codec.name == "raw":
        return torch.zeros_like(values)
    if any_codec.name == "bf16":
        return values.abs() * 2.0**-8 + 1e-38
    if any_codec.name == "fp16":
        return values.abs() * 2.0**-11 + 2.0**-25
    bound = torch.empty_like(values)
    at = 0
    for span in spans:
        for start in range(at, at + span, any_codec.block):
            stop = min(start + any_codec.block, at + span)
            bound[start:stop] = values[start:stop].abs().max() / 127 * 0.50001 + 1.6e-36
        at += span
    return bound


def bits(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()


span_lists = st.lists(st.one_of(st.integers(0, 40), st.sampled_from(FUNNY_SIZES)), max_size=6).map(tuple)


@pytest.mark.parametrize("name", CODECS)
@given(spans=span_lists, seed=st.integers(0, 1000), exponent=st.integers(-30, 4))
@settings(max_examples=40)
def test_what_comes_back_is_near_what_went_in_and_the_size_is_as_announced(
    name: str, spans: tuple[int, ...], seed: int, exponent: int
) -> None:
    any_codec = CODECS[name]
    values = normal(sum(spans), seed, 10.0**exponent)
    before = bits(values)
    payload = any_codec.encode(values, spans)
    assert bits(values) == before
    assert len(payload) == any_codec.encoded_size(spans) == sum(any_codec.encoded_size((span,)) for span in spans)
    decoded = any_codec.decode(payload, spans)
    assert decoded.dtype == torch.float32
    assert decoded.shape == values.shape
    assert bool(((decoded - values).abs() <= allowed_error(any_codec, values, spans)).all())


@pytest.mark.parametrize("name", CODECS)
@given(spans=span_lists, seed=st.integers(0, 1000), weight=st.sampled_from((0.0, 1.0, 0.3, 3.0, 15360.0, 2.0**40)))
@settings(max_examples=40)
def test_decode_add_rounds_the_product_and_then_the_sum_and_nothing_else(
    name: str, spans: tuple[int, ...], seed: int, weight: float
) -> None:
    any_codec = CODECS[name]
    payload = any_codec.encode(normal(sum(spans), seed), spans)
    product = torch.zeros(sum(spans))
    any_codec.decode_add(payload, spans, product, weight)
    wanted = any_codec.decode(payload, spans) * weight + 0.0
    if name.startswith("int8"):
        assert bool(((product - wanted).abs() <= wanted.abs() * 2.0**-16.9).all())
    else:
        assert bits(product) == bits(wanted)
    start = normal(sum(spans), seed + 1)
    into = start.clone()
    any_codec.decode_add(payload, spans, into, weight)
    assert bits(into) == bits(start + product)


def test_encoding_into_a_buffer_gives_the_same_bytes_at_any_alignment(any_codec: Codec) -> None:
    values, spans = normal(1500), (1493, 7)
    payload = any_codec.encode(values, spans)
    for offset in range(5):
        frame = bytearray(b"\xaa" * (len(payload) + offset + 3))
        any_codec.encode_into(values, spans, memoryview(frame)[offset : offset + len(payload)])
        assert frame == b"\xaa" * offset + payload + b"\xaa" * 3
    for wrong in (bytearray(len(payload) + 1), bytearray(), memoryview(bytes(len(payload)))):
        with pytest.raises(ValueError, match="writable buffer"):
            any_codec.encode_into(values, spans, wrong)


def test_threads_and_slices_and_alignment_change_no_bit(any_codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = (200_000, 3, 70_001, 1024 * 5, 1024 * 3, 0, 1)
    values = normal(sum(spans))
    results = set()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for size in (1, 1000, 1 << 15, 1 << 18, 1 << 22):
                if size == 1 and any_codec.block < 256:
                    continue  # a few values at a time take too long
                monkeypatch.setattr(codec_module, "SLICE_VALUES", size)
                codec_module._tiling.cache_clear()
                payload = bytes(any_codec.encode(values, spans))
                shifted = memoryview(b"xyz" + payload)[3:]
                into = torch.zeros(sum(spans))
                any_codec.decode_add(shifted, spans, into, 1.0)
                results.add((payload, bits(any_codec.decode(shifted, spans)), bits(into)))
    finally:
        torch.set_num_threads(threads)
        monkeypatch.undo()
        codec_module._tiling.cache_clear()
    assert len(results) == 1


def test_cutting_between_blocks_changes_no_value(any_codec: Codec) -> None:
    size = 3 * any_codec.block + 2
    values = normal(size, scale=1.0)
    whole = any_codec.decode(any_codec.encode(values, (size,)), (size,))
    cut = 2 * any_codec.block
    first = any_codec.decode(any_codec.encode(values[:cut].clone(), (cut,)), (cut,))
    second = any_codec.decode(any_codec.encode(values[cut:].clone(), (size - cut,)), (size - cut,))
    assert bits(whole) == bits(torch.cat([first, second]))


def test_a_large_value_does_not_coarsen_the_neighbouring_tensor(any_codec: Codec) -> None:
    values = torch.tensor([1e4, 3.0, 0.0, 1e-3, 2e-3, -5e-4])
    decoded = any_codec.decode(any_codec.encode(values, (3, 3)), (3, 3))
    assert decoded[3:].tolist() == pytest.approx([1e-3, 2e-3, -5e-4], abs=1e-5)


def test_zero_maps_to_zero_whatever_is_beside_it(any_codec: Codec) -> None:
    for zero in (0.0, -0.0):
        values = torch.full((300,), zero)
        decoded = any_codec.decode(any_codec.encode(values, (300,)), (300,))
        assert decoded.tolist() == [0.0] * 300
    beside = torch.cat([torch.zeros(256), torch.full((256,), 1e4)])
    decoded = any_codec.decode(any_codec.encode(beside, (256, 256)), (256, 256))
    assert decoded[:256].tolist() == [0.0] * 256
    assert decoded[256:].tolist() == pytest.approx([1e4] * 256, rel=0.004)


def test_zero_has_no_sign_after_decoding(any_codec: Codec) -> None:
    values = torch.tensor([-0.0] * 4 + [-0.0, -1e-30, 1e-30, 100.0])
    decoded = any_codec.decode(any_codec.encode(values, (8,)), (8,))
    assert not bool(torch.signbit(decoded[decoded == 0.0]).any())


def test_a_constant_comes_back_to_a_millionth(any_codec: Codec) -> None:
    decoded = any_codec.decode(any_codec.encode(torch.full((1000,), 7.25), (1000,)), (1000,))
    assert decoded.tolist() == pytest.approx([7.25] * 1000, abs=1e-6)


@pytest.mark.parametrize("tiny", [1e-44, -1e-44, 1.4e-45, 1.17e-38, 1e-37, 1.4e-36, 1.5e-36])
def test_denormal_values_stay_finite_and_no_larger(any_codec: Codec, tiny: float) -> None:
    values = torch.full((300,), tiny)
    decoded = any_codec.decode(any_codec.encode(values, (300,)), (300,))
    assert bool((decoded.abs() <= values.abs() * 1.01).all())
    assert bool((decoded * values >= 0).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**66, -3e38])
@pytest.mark.parametrize("at", [0, 255, 256, 700])
def test_values_that_are_not_finite_or_absurd_do_not_encode(any_codec: Codec, bad: float, at: int) -> None:
    values = normal(701)
    values[at] = bad
    with pytest.raises(CodecError, match=r"1/701 values"):
        any_codec.encode(values, (600, 101))


def test_the_error_counts_what_is_not_finite(any_codec: Codec) -> None:
    values = normal(8)
    values[3], values[5] = math.nan, math.inf
    with pytest.raises(CodecError, match="2/8 values non-finite"):
        any_codec.encode(values, (8,))


def test_payloads_of_another_size_are_refused_and_change_nothing(any_codec: Codec) -> None:
    spans = (300, 5)
    good = bytes(any_codec.encode(normal(305), spans))
    for payload in (b"", good[:-1], good + b"\0", good * 2, good[: len(good) // 2]):
        into, out = torch.ones(305), torch.ones(305)
        with pytest.raises(CodecError, match="bytes where"):
            any_codec.decode(payload, spans, out)
        with pytest.raises(CodecError, match="bytes where"):
            any_codec.decode_add(payload, spans, into, 1.0)
        assert into.tolist() == out.tolist() == [1.0] * 305


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
@settings(max_examples=60)
def test_whatever_the_bytes_are_the_result_is_finite_and_bounded_or_an_error_that_changed_nothing(
    name: str, data: st.DataObject
) -> None:
    any_codec = CODECS[name]
    spans = data.draw(span_lists.filter(lambda spans: sum(spans) < 2000))
    size = any_codec.encoded_size(spans)
    seed = data.draw(st.binary(min_size=1, max_size=64))
    payload = (seed * (size // len(seed) + 1))[:size]
    into = torch.ones(sum(spans))
    try:
        any_codec.decode_add(payload, spans, into, LARGEST_WEIGHT)
    except CodecError as error:
        with pytest.raises(CodecError, match=re.escape(str(error))):
            any_codec.check(payload, spans, LARGEST_WEIGHT)
        assert into.tolist() == [1.0] * sum(spans)
    else:
        any_codec.check(payload, spans, LARGEST_WEIGHT)
        assert bool((into.abs() <= 2.0**112 * 1.001).all())
    out = torch.ones(sum(spans))
    try:
        any_codec.decode(payload, spans, out)
    except CodecError:
        assert out.tolist() == [1.0] * sum(spans)
    else:
        assert bool(torch.isfinite(out).all())


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, 1e308, 2.0**49])
def test_impossible_weights_are_refused(any_codec: Codec, weight: float) -> None:
    into = torch.ones(8)
    with pytest.raises(CodecError, match="weight"):
        any_codec.decode_add(any_codec.encode(normal(8), (8,)), (8,), into, weight)
    with pytest.raises(CodecError, match="weight"):
        any_codec.check(any_codec.encode(normal(8), (8,)), (8,), weight)
    assert into.tolist() == [1.0] * 8


def test_a_mean_of_the_largest_accepted_contributions_still_encodes_and_decodes(any_codec: Codec) -> None:
    largest = 60000.0 if any_codec.name == "fp16" else 2.0**64 * 0.99
    payload = any_codec.encode(torch.full((16,), largest), (16,))
    total = torch.zeros(16)
    for _ in range(64):
        any_codec.decode_add(payload, (16,), total, LARGEST_WEIGHT)
    total.div_(64 * LARGEST_WEIGHT)
    decoded = any_codec.decode(any_codec.encode(total, (16,)), (16,))
    assert decoded.tolist() == pytest.approx([largest] * 16, rel=0.005)


def test_nothing_at_all_is_fine(any_codec: Codec) -> None:
    for spans in ((), (0,), (0, 0, 0)):
        payload = any_codec.encode(torch.empty(0), spans)
        assert len(payload) == any_codec.encoded_size(spans) == 0
        assert any_codec.decode(payload, spans).numel() == 0
        any_codec.decode_add(payload, spans, torch.empty(0), 1.0)


def test_our_own_mistakes_are_value_errors_and_not_the_peers_fault(any_codec: Codec) -> None:
    good = any_codec.encode(normal(8), (8,))
    wrong: list[tuple[Tensor, tuple[int, ...]]] = [
        (normal(8), (7,)),
        (normal(8).double(), (8,)),
        (normal(16)[::2], (8,)),
        (normal(8).view(2, 4), (8,)),
    ]
    for values, spans in wrong:
        with pytest.raises(ValueError) as caught:
            any_codec.encode(values, spans)
        assert not isinstance(caught.value, CodecError)
    for into in (torch.zeros(7), torch.zeros(8, dtype=torch.float64), torch.zeros(16)[::2]):
        with pytest.raises(ValueError) as caught:
            any_codec.decode_add(good, (8,), into, 1.0)
        assert not isinstance(caught.value, CodecError)


def test_many_threads_at_once_do_not_share_scratch(any_codec: Codec) -> None:
    spans = (50_000, 17)
    inputs = [normal(sum(spans), seed) for seed in range(8)]
    alone = [(bytes(any_codec.encode(values, spans))) for values in inputs]

    def there_and_back(index: int) -> tuple[bytes, bytes]:
        payload = bytes(any_codec.encode(inputs[index % 8], spans))
        into = torch.zeros(sum(spans))
        any_codec.decode_add(payload, spans, into, 1.0)
        return payload, bits(into)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(there_and_back, range(32)))
    for index, (payload, into) in enumerate(together):
        assert payload == alone[index % 8]
        expected = torch.zeros(sum(spans))
        any_codec.decode_add(payload, spans, expected, 1.0)
        assert into == bits(expected)


def test_bytes_bytearrays_and_memoryviews_all_decode_alike(any_codec: Codec) -> None:
    payload = any_codec.encode(normal(1500), (1500,))
    results = {
        bits(any_codec.decode(form, (1500,))) for form in (payload, bytes(payload), memoryview(payload), memoryview(bytes(payload)))
    }
    assert len(results) == 1


@pytest.mark.parametrize("peers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("size", FUNNY_SIZES)
def test_the_reduced_mean_is_within_half_a_step_of_each_quantisation(size: int, peers: int) -> None:
    int8 = CODECS["int8/256"]
    inputs = [normal(size, seed, 10.0**-seed) for seed in range(peers)]
    total = torch.zeros(size)
    for values in inputs:
        int8.decode_add(int8.encode(values, (size,)), (size,), total, 1.0)
    total.div_(peers)
    result = int8.decode(int8.encode(total, (size,)), (size,))
    exact = torch.stack(inputs).double().mean(0)
    bound = torch.stack([allowed_error(int8, values, (size,)) for values in inputs]).mean(0) + allowed_error(int8, total, (size,))
    assert result.numel() == size
    assert bool(((result.double() - exact).abs() <= bound.double() * 1.001 + 1e-9).all())


def test_two_peers_with_zeros_and_one_with_a_third_make_a_tenth(any_codec: Codec) -> None:
    total = torch.zeros(64)
    for value in (0.0, 0.0, 0.3):
        any_codec.decode_add(any_codec.encode(torch.full((64,), value), (64,)), (64,), total, 1.0)
    total.div_(3.0)
    decoded = any_codec.decode(any_codec.encode(total, (64,)), (64,))
    assert decoded.tolist() == pytest.approx([0.1] * 64, abs=0.002)


def test_count_non_finite_counts_in_every_dtype_and_shape() -> None:
    assert count_non_finite(torch.tensor([1.0, math.nan, math.inf, -math.inf])) == 3
    assert count_non_finite(torch.empty(0)) == 0
    assert count_non_finite(torch.empty(0, 7)) == 0
    assert count_non_finite(torch.tensor(math.nan, dtype=torch.bfloat16)) == 1
    assert count_non_finite(torch.arange(5)) == 0
    assert count_non_finite(torch.full((2, 3), 3e38).t()) == 0
    long = torch.zeros((1 << 18) + 5)
    long[-1] = long[0] = math.nan
    assert count_non_finite(long) == 2


# --- formats, byte by byte ------------------------------------------------------------------------------------------------------


def test_int8_bytes_are_the_scales_of_all_blocks_and_then_the_values() -> None:
    # Two spans, blocks of 2: (254, -1), (127), (0, 0): absmax 254, 127, 0 -> scales 2, 1, 0.
    values = torch.tensor([254.0, -1.0, 127.0, 0.0, 0.0])
    payload = codec("int8", 2).encode(values, (3, 2))
    # -1/2 = -0.5 rounds half to even: 0.
    assert bytes(payload) == struct.pack("<3f5b", 2.0, 1.0, 0.0, 127, 0, 127, 0, 0)
    assert codec("int8", 2).decode(payload, (3, 2)).tolist() == [254.0, 0.0, 127.0, 0.0, 0.0]


def test_int8_rounds_half_to_even_and_is_symmetric() -> None:
    values = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0])
    decoded = codec("int8", 8).decode(codec("int8", 8).encode(values, (8,)), (8,))
    assert decoded.tolist() == [127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0, -127.0]


def test_int8_costs_one_byte_per_value_and_four_per_block() -> None:
    assert codec("int8", 1024).encoded_size((1024, 1025, 1)) == 2050 + 4 * 4


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -1.0, 1e-40, -1e-40, 2.0**60, 3e38])
def test_int8_scales_out_of_range_are_refused_with_the_block(scale: float) -> None:
    payload = struct.pack("<2f2b", 1.0, scale, 1, 1)
    into = torch.ones(2)
    with pytest.raises(CodecError, match="1/2 scales out of range, first .* of block 1"):
        codec("int8", 1).decode(payload, (2,), into)
    with pytest.raises(CodecError, match="1/2 scales out of range"):
        codec("int8", 1).decode_add(payload, (2,), into, 1.0)
    assert into.tolist() == [1.0, 1.0]


def test_int8_of_a_denormal_block_is_zero_and_above_it_is_not() -> None:
    int8 = codec("int8", 4)
    assert bytes(int8.encode(torch.full((4,), 1e-44), (4,))) == bytes(8)
    smallest = 127 * 2.0**-126
    assert int8.decode(int8.encode(torch.full((4,), smallest * 0.99), (4,)), (4,)).tolist() == [0.0] * 4
    assert int8.decode(int8.encode(torch.full((4,), smallest * 1.01), (4,)), (4,)).tolist() == pytest.approx([smallest * 1.01] * 4)


def test_raw_is_the_values_and_bf16_two_bytes_each() -> None:
    values = torch.tensor([1.0, -2.5, 1e-44])
    assert bytes(codec("raw").encode(values, (3,))) == struct.pack("<3f", 1.0, -2.5, 1e-44)
    assert bytes(codec("bf16").encode(torch.tensor([1.0, -2.0]), (2,))) == bytes.fromhex("803f00c0")


def test_fp16_refuses_what_it_cannot_hold_and_sums_in_fp32() -> None:
    fp16 = codec("fp16")
    with pytest.raises(CodecError, match="1/2 values beyond 65504"):
        fp16.encode(torch.tensor([70000.0, 1.0]), (2,))
    payload = fp16.encode(torch.tensor([40000.0]), (1,))
    total = torch.zeros(1)
    for _ in range(2):
        fp16.decode_add(payload, (1,), total, 1.0)
    total.div_(2.0)
    assert total.tolist() == [40000.0]
    assert fp16.decode(fp16.encode(torch.tensor([1e-8]), (1,)), (1,)).tolist() == [0.0]


def test_unknown_codecs_and_impossible_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown codec 'int9'"):
        codec("int9")
    for block in (0, -1, 1 << 21):
        with pytest.raises(ValueError, match="block"):
            codec("int8", block)


def test_one_file_of_scratch_per_thread_is_bounded_by_a_slice() -> None:
    int8 = codec("int8", 1024)
    size = 3 << 18
    values = torch.ones(size)
    int8.decode_add(int8.encode(values, (size,)), (size,), torch.zeros(size), 2.0)
    assert codec_module._local.buffer.numel() <= max(codec_module.SLICE_VALUES, 1 << 20)
