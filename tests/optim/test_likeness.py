"""How an update compares with another: numbers for people's eyes, never NaN."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.optim.likeness import Likeness, norm_of


def likeness(*slices: tuple[list[float], list[float]]) -> Likeness:
    found = Likeness()
    for own, other in slices:
        found.add(torch.tensor(own), torch.tensor(other))
    return found


def test_slices_add_up() -> None:
    found = likeness(([3.0], [1.0]), ([0.0, 4.0], [2.0, 2.0]))
    assert found.norm == 5.0
    assert found.cosine == pytest.approx(11 / 15)


@pytest.mark.parametrize(("scale", "cosine"), [(7.0, 1.0), (-0.001, -1.0)])
def test_only_the_direction_counts(scale: float, cosine: float) -> None:
    values = torch.linspace(-1, 2, 1001)
    found = Likeness()
    found.add(values, scale * values)
    assert found.cosine == pytest.approx(cosine)
    assert -1.0 <= found.cosine <= 1.0


@pytest.mark.parametrize(
    ("own", "other"), [([0.0], [1.0]), ([1.0], [0.0]), ([math.nan], [1.0]), ([1e30], [1.0]), ([1.0], [math.inf])]
)
def test_what_is_nothing_or_not_finite_is_like_nothing(own: list[float], other: list[float]) -> None:
    found = likeness((own, other))
    assert found.cosine == 0.0
    assert math.isfinite(found.norm)
    assert math.isfinite(norm_of(torch.tensor(own)))
