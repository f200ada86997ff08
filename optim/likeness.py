"""How one peer's update compares with the mean that everybody applies: where wrong data or a broken GPU show first.

Rule: this is for people's eyes. Nothing that moves shared state depends on it, so sums may round as they like; what is not finite
or not there is 0. Neighbours: `vault` adds part by part while it applies an entry, the engine reports the result as its own claim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def norm_of(values: Tensor) -> float:
    """Euclidean norm; 0 where it is not finite. Any shape."""
    norm = float(torch.linalg.vector_norm(values))
    return norm if math.isfinite(norm) else 0.0


class Likeness:
    """Norm of an update and its cosine to another one, from slices of both."""

    def __init__(self) -> None:
        self._own = self._other = self._both = 0.0

    def add(self, own: Tensor, other: Tensor) -> None:
        """One slice of both, 1-D and equally long."""
        self._own += float(torch.dot(own, own))
        self._other += float(torch.dot(other, other))
        self._both += float(torch.dot(own, other))

    @property
    def norm(self) -> float:
        """Of the own update, over the slices that were added."""
        return math.sqrt(self._own) if math.isfinite(self._own) else 0.0

    @property
    def cosine(self) -> float:
        """From -1 to 1; 0 where either update is 0."""
        size = self.norm * math.sqrt(self._other)
        return max(-1.0, min(1.0, self._both / size)) if size > 0.0 and math.isfinite(size) and math.isfinite(self._both) else 0.0
