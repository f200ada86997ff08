"""What a synchronisation strategy decides: what peers send, what they load, and how the shared state moves.

Rule: a strategy is arithmetic on slices of flat fp32 vectors, and the same for everybody. It is handed the combined update and
never asks how it was combined. Private state (moments, pending work) stays with the peer; shared state is theta and momentum.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Strategy(Protocol):
    """One way to synchronise. Every method works on any slice of the vectors, in place, and allocates nothing that it is given."""

    @property
    def name(self) -> str:
        """What the run spec calls it."""

    def publish(self, shared: Tensor, local: Tensor, out: Tensor) -> None:
        """out := what a peer that trained from `shared` to `local` has to contribute. All (values,)."""

    def load(self, shared: Tensor, pending: Tensor, out: Tensor) -> None:
        """out := where a peer goes on from, with its `pending` work that is in no committed entry."""

    def step(self, theta: Tensor, momentum: Tensor, update: Tensor, lr: float, mu: float, scratch: Tensor | None = None) -> None:
        """Move shared state by the combined update of a committed entry; bit-identical everywhere."""
