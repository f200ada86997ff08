"""Nothing is lost to a codec over time, and nothing happens to a residual but by a commit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compression.codec import Codec, codec
from shoal.compression.feedback import corrected, left_out

SPANS = (70, 30)
CODECS = [codec("int8", 8), codec("int8", 64), codec("bf16"), codec("fp16")]


def progress_of(seed: int, scale: float) -> torch.Tensor:
    values = torch.randn(100, generator=torch.Generator().manual_seed(seed)) * scale
    values[seed % 100] *= 50  # an outlier makes the others of its block coarse
    return values


@settings(max_examples=60)
@given(
    coder=st.sampled_from(CODECS),
    rounds=st.lists(st.tuples(st.integers(0, 2**31), st.booleans()), min_size=1, max_size=20),
    scale=st.sampled_from((1e-3, 1.0, 30.0)),
)
def test_what_was_decoded_and_the_residual_are_what_was_put_in(coder: Codec, rounds: list[tuple[int, bool]], scale: float) -> None:
    """Rounds that do not count leave their progress pending, as the vault does."""
    put_in, decoded = torch.zeros(100, dtype=torch.float64), torch.zeros(100, dtype=torch.float64)
    pending, residual, moved = torch.zeros(100), torch.zeros(100), 0.0
    for seed, counted in rounds:
        progress = progress_of(seed, scale)
        pending += progress
        put_in += progress.double()
        moved += progress.abs().max().item()
        sent = coder.decode(coder.encode(corrected(pending, residual), SPANS), SPANS)
        before = residual.clone()
        if counted:
            decoded += sent.double()
            left_out(coder, SPANS, pending, residual, residual)
            pending.zero_()
        else:
            assert torch.equal(residual, before)
    error = (decoded + residual.double() + pending.double() - put_in).abs().max().item()
    assert error <= 4 * len(rounds) * 2**-24 * moved


@pytest.mark.parametrize(("coder", "step"), list(zip(CODECS, (1 / 127, 1 / 127, 2**-7, 2**-10), strict=True)), ids=repr)
def test_a_residual_is_codec_error_only(coder: Codec, step: float) -> None:
    """However many rounds: at most half of the codec's step, never progress."""
    residual, progress = torch.zeros(100), progress_of(7, 1.0)
    for _ in range(50):
        left_out(coder, SPANS, progress, residual, residual)
        assert 0 < residual.abs().max() <= 0.51 * step * progress.abs().max()


def test_values_below_the_codecs_resolution_arrive_in_the_end_only_with_feedback() -> None:
    coarse = codec("int8", 100)
    progress = torch.full((100,), 0.001)
    progress[0] = 1.0  # the others are a quarter of a step of 1/127
    residual, total, without = torch.zeros(100), torch.zeros(100), torch.zeros(100)
    for _ in range(100):
        total += coarse.decode(coarse.encode(corrected(progress, residual), (100,)), (100,))
        left_out(coarse, (100,), progress, residual, residual)
        without += coarse.decode(coarse.encode(progress, (100,)), (100,))
    assert without[1:].eq(0).all()
    assert torch.allclose(total[1:], torch.full((99,), 0.1), atol=1 / 127)


def test_nothing_is_left_out_of_what_the_codec_can_say() -> None:
    out = torch.full((100,), torch.nan)
    left_out(codec("bf16"), SPANS, torch.arange(100.0), torch.zeros(100), out)
    assert out.eq(0).all()
