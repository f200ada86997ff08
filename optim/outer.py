"""The outer step: how one combined update moves the shared state, and the fingerprint of the result.

Rule: every replica ends with the same bits. The step is elementwise fp32 on the CPU, each multiplication and addition a kernel of
its own (no `alpha=`, no fused multiply-add, no reduction), so that neither threads nor slices nor the machine matter; `lr` and `mu`
come with the log entry and are rounded to fp32 once. A value whose update is always 0 keeps its bits.

With u = mu * m + delta this is `torch.optim.SGD(lr, momentum=mu, nesterov=True)` on the pseudo-gradient delta = base - local, which
is neither clipped nor decayed (DiLoCo, arXiv 2311.08105).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

SLICE_VALUES = 1 << 18
"""Values stepped at once, so that the passes stay in the cache. No result depends on it."""


def nesterov_step(theta: Tensor, momentum: Tensor, delta: Tensor, lr: float, mu: float, scratch: Tensor | None = None) -> None:
    """In place: m := mu*m + delta; theta := theta - lr*(mu*m + delta). All 1-D fp32 and equally long; `momentum` starts at 0.

    `delta` is only read. `scratch` is any fp32 tensor to work in (a temporary one is made otherwise).
    """
    values = theta.numel()
    if momentum.numel() != values or delta.numel() != values:
        raise ValueError(f"theta has {values} values, momentum {momentum.numel()}, delta {delta.numel()}")
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in (theta, momentum, delta)):
        raise ValueError("the outer step is fp32 on the CPU")
    if not values:
        return
    if scratch is None:
        scratch = torch.empty(min(values, SLICE_VALUES))
    width = min(scratch.numel(), SLICE_VALUES)
    for start in range(0, values, width):
        stop = min(start + width, values)
        m, d, u = momentum[start:stop], delta[start:stop], scratch[: stop - start]
        m.mul_(mu)
        m.add_(d)
        torch.mul(m, mu, out=u)
        u.add_(d)
        u.mul_(lr)
        theta[start:stop].sub_(u)


def fingerprint(version: int, layout_hash: bytes, theta: Tensor, momentum: Tensor) -> bytes:
    """SHA-256 of the shared state at `version`: version and layout hash, then theta and momentum as little-endian fp32."""
    digest = hashlib.sha256(b"shoal-state-1")
    digest.update(version.to_bytes(8, "little"))
    digest.update(layout_hash)
    for vector in (theta, momentum):
        if vector.dtype != torch.float32 or not vector.is_contiguous():
            raise ValueError("a fingerprint is of contiguous fp32 vectors")
        if vector.numel():
            digest.update(vector.detach().view(torch.uint8).numpy().data)
    return digest.digest()
