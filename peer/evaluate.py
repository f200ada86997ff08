"""How good the shared state is: bits per byte on a small set of held-out samples that never changes.

Its one rule: the figure is the total loss of all targets divided by their number, whatever the batch sizes, so that every peer
that evaluates a version makes the same claim up to rounding. Where tokens are not bytes, bytes per token turn the one into the
other; where those are not known (token files) the figure is bits per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from shoal.peer.data import Text
from shoal.peer.task import Task


@dataclass(frozen=True)
class Evaluation:
    """`tokens` 0: there was nothing to evaluate on."""

    bits_per_byte: float
    tokens: int


def evaluation_samples(text: Text, count: int) -> list[int]:
    """At most `count` samples, spread evenly over the text: the same ones in every run of the same corpus."""
    count = min(count, text.samples)
    return [i * text.samples // count for i in range(count)]


def evaluate(task: Task, text: Text, samples: int, batch: int, device: torch.device, bytes_per_token: float = 1.0) -> Evaluation:
    """Bits per byte of the module's present parameters on `samples` held-out samples, `batch` of them at a time."""
    chosen = evaluation_samples(text, samples)
    total, tokens = 0.0, 0
    was_training = task.module.training
    task.module.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(chosen), batch):
                loss, targets = task.loss(text.windows(chosen[start : start + batch]).to(device))
                total += float(loss)
                tokens += targets
    finally:
        task.module.train(was_training)
    return Evaluation(total / tokens / math.log(2) / bytes_per_token if tokens else math.nan, tokens)
