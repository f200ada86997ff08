"""A byte-level language model that is not shoal's: an embedding, one GRU, and the embedding again as output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal import RunSpec


class ByteGru(nn.Module):
    """Logits of the next byte at every position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens))  # (batch, length, width)
        return F.linear(states, self.embedding.weight)


class GruTask:
    """What shoal needs to know of it."""

    def __init__(self, spec: RunSpec) -> None:
        self.module = ByteGru(spec.model.width)

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        targets = samples[:, 1:]
        logits = self.module(samples[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()

    def logits(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = self.module(tokens)
        return result

    def config(self) -> dict[str, object]:
        return {"model_type": "byte-gru", "hidden_size": self.module.gru.hidden_size}


def task(spec: RunSpec) -> GruTask:
    """The factory that `run.toml` names."""
    return GruTask(spec)
