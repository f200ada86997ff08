"""Error feedback: what a lossy codec left out of one contribution is added to the next (Seide et al. 2014; Karimireddy et al. 2019,
arXiv 1901.09847).

A contributor with residual e and progress x sends Q(x + e). When the commit says that this counts, e becomes x + e - Q(x + e);
until then nothing changes, so that a round that is abandoned, or made again, has no effect. Over any number of commits

    sum of what was decoded + e  =  sum of what was put in,      up to the rounding of fp32.

Rule: a residual holds codec error only, never progress: that is what pending is for. It belongs to one peer, and is 0 where its
shared state came from another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.compression.codec import Codec


def corrected(progress: Tensor, residual: Tensor) -> Tensor:
    """What to encode. New memory; neither is changed."""
    return torch.add(progress, residual)


def left_out(codec: Codec, spans: tuple[int, ...], progress: Tensor, residual: Tensor, out: Tensor) -> None:
    """out := the residual after the contribution made of these counted. Encodes once more: the same values give the same bytes, so
    that nothing has to be kept between sending and commit."""
    wanted = corrected(progress, residual)
    codec.decode(codec.encode(wanted, spans), spans, out)
    torch.sub(wanted, out, out=out)
