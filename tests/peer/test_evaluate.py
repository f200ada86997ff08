"""Bits per byte are total loss over total targets, on samples that never change."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.peer.data import Text
from shoal.peer.evaluate import evaluate, evaluation_samples

CPU = torch.device("cpu")


def text(size: int, length: int = 4) -> Text:
    return Text([np.arange(size, dtype=np.uint64).astype(np.uint8)], length)


class Bigram:
    """A table of logits. Targets below `ignored` do not count."""

    def __init__(self, table: Tensor, ignored: int = 0) -> None:
        self.module = nn.Embedding(len(table), table.shape[1], _weight=table, _freeze=True)
        self.ignored = ignored
        self.modes: list[bool] = []

    def logits(self, tokens: Tensor) -> Tensor:
        self.modes.append(self.module.training)
        logits: Tensor = self.module(tokens)
        return logits

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        targets = samples[:, 1:].reshape(-1)
        losses = F.cross_entropy(self.logits(samples[:, :-1]).reshape(len(targets), -1), targets, reduction="none")
        counted = targets >= self.ignored
        return losses[counted].sum(), int(counted.sum())

    def config(self) -> dict[str, object]:
        return {}


def test_a_model_that_knows_nothing_needs_eight_bits() -> None:
    found = evaluate(Bigram(torch.zeros(256, 256)), text(1001), 10, 3, CPU)
    assert found.bits_per_byte == pytest.approx(8.0, abs=1e-6)
    assert found.tokens == 40


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 50])
def test_every_token_weighs_the_same_whatever_the_batches(batch: int) -> None:
    torch.manual_seed(0)
    table, source = torch.randn(256, 256), text(1001)
    found = evaluate(Bigram(table, ignored=77), source, 7, batch, CPU)
    total, tokens = 0.0, 0
    for row in source.windows(evaluation_samples(source, 7)).tolist():
        for before, after in itertools.pairwise(row):
            if after >= 77:
                total += float(torch.logsumexp(table[before], 0) - table[before, after])
                tokens += 1
    assert 0 < tokens < 28
    assert found.tokens == tokens
    assert found.bits_per_byte == pytest.approx(total / tokens / math.log(2), rel=1e-6)


def test_samples_are_distinct_and_spread_over_the_whole_text() -> None:
    source = text(4001)
    chosen = evaluation_samples(source, 100)
    assert chosen == list(range(0, 1000, 10))
    assert evaluation_samples(text(41), 100) == list(range(10))


def test_nothing_held_out_is_reported_as_no_tokens() -> None:
    assert evaluate(Bigram(torch.zeros(256, 256)), text(0), 10, 3, CPU).tokens == 0


def test_evaluation_leaves_gradients_and_mode_as_they_were() -> None:
    task = Bigram(torch.zeros(256, 256))
    task.module.weight.requires_grad_(True)
    task.module.train()
    evaluate(task, text(401), 5, 2, CPU)
    assert task.modes == [False, False, False]
    assert task.module.training
    assert task.module.weight.grad is None
