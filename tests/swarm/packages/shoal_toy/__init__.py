"""The toy model of the swarm tests, as a volunteer would install it: a peer's pseudo-gradient is exactly what its environment says.

`w` is 8 ones. With plain SGD of rate 1 and one inner step per round a peer ends a round at w - d, where d is its own SHOAL_TOY_D,
so that its pseudo-gradient is d. `v`, as long as the run spec's `model.ffn` times `model.layers`, moves by d times a ramp, a
different value per element. With SHOAL_TOY_STEP_S a step takes so many seconds, so that a test can hit a round in the middle; with
SHOAL_TOY_DEAF_S it does, and holds the interpreter's lock all the time. Each may be a list, "0.2,0.1": one value per step of the
process, the last one for all that follow. With SHOAL_TOY_ROOM a forward pass has room for so many samples; more run out of memory,
as on a GPU.
"""

from __future__ import annotations

import ctypes
import os
import time

import torch
from torch import Tensor, nn

from shoal.protocol.spec import RunSpec

VALUES = 8


class Toy(nn.Module):
    """One vector of ones, and perhaps a long one."""

    ramp: Tensor

    def __init__(self, long_values: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(VALUES))
        self.v = nn.Parameter(torch.ones(long_values)) if long_values else None
        self.register_buffer("ramp", torch.linspace(-1.0, 1.0, max(1, long_values)), persistent=False)


class ToyTask:
    """Sum of all values times d, per target."""

    def __init__(self, spec: RunSpec) -> None:
        self.module = Toy(spec.model.ffn * spec.model.layers)
        self._d = [float(d) for d in os.environ.get("SHOAL_TOY_D", "0.2").split(",")]
        self._step_s = [float(s) for s in os.environ.get("SHOAL_TOY_STEP_S", "0").split(",")]
        self._deaf_s = [float(s) for s in os.environ.get("SHOAL_TOY_DEAF_S", "0").split(",")]
        self._room = int(os.environ.get("SHOAL_TOY_ROOM", "1000000"))

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        if len(samples) > self._room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB, as the test wants it")
        if step_s := _next(self._step_s):
            time.sleep(step_s)
        for _ in range(round(10 * _next(self._deaf_s))):
            ctypes.PyDLL(None).usleep(100_000)  # which, unlike CDLL, keeps the lock
        targets = samples[:, 1:].numel()
        total = self.module.w.sum()
        if self.module.v is not None:
            total = total + (self.module.v * self.module.ramp).sum()
        d = _next(self._d) if torch.is_grad_enabled() else self._d[0]
        return total * d * targets, targets

    def logits(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 256)

    def config(self) -> dict[str, object]:
        return {"model_type": "toy"}


def _next(values: list[float]) -> float:
    """The value of this step; the last one stays."""
    return values.pop(0) if len(values) > 1 else values[0]


def task(spec: RunSpec) -> ToyTask:
    """The factory that a run spec names as "shoal_toy:task"."""
    return ToyTask(spec)
