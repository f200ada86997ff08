"""What is trained: the seam between shoal's trainer and anybody's model.

A task is a module and the way to get a loss out of samples. The trainer knows nothing else of a model, so that a factory in a
volunteer's own package works like the built-in decoder. Its one rule: `loss` returns a *sum* over targets and their count,
never a mean, so that cutting a batch into micro-batches or spreading it over peers does not change the maths.

The coordinator cannot make a volunteer run code: a factory must lie in a package that the volunteer has installed and allowed.

Neighbours: `model` is the built-in decoder, `trainer` the only caller.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.optim.layout import ParameterLayout
from shoal.peer.model import Decoder, DecoderConfig
from shoal.protocol.errors import ShoalError
from shoal.protocol.spec import RunSpec


class TaskError(ShoalError):
    """The model that the run spec names cannot be built here."""


class Task(Protocol):
    """A model and its loss."""

    @property
    def module(self) -> nn.Module: ...

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        """Loss in nats *summed* over the targets of `samples` (batch, length + 1) int64, and how many targets those are."""
        ...

    def logits(self, tokens: Tensor) -> Tensor:
        """Next-token logits (batch, length, vocab) for tokens (batch, length): what a printed sample is drawn from."""
        ...

    def config(self) -> dict[str, object]:
        """What `config.json` beside exported weights says."""
        ...


class DecoderTask:
    """Next-byte prediction with the built-in decoder."""

    def __init__(self, config: DecoderConfig) -> None:
        self.module = Decoder(config)

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        logits = self.module(samples[:, :-1])
        targets = samples[:, 1:].reshape(-1)
        return F.cross_entropy(logits.reshape(targets.numel(), -1), targets, reduction="sum"), targets.numel()

    def logits(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.module(tokens)
        return logits

    def config(self) -> dict[str, object]:
        return self.module.config.hugging_face()


def build_task(spec: RunSpec, allowed: Collection[str] = ()) -> Task:
    """The spec's model with its seeded initialisation, trainable parameters in fp32. Raises TaskError.

    `allowed` names the packages from which a factory may come. A factory is called with the run spec and returns a Task.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.run.seed)
        task = _from_factory(spec, allowed) if spec.model.kind == "factory" else DecoderTask(decoder_config(spec))
    for parameter in task.module.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    if not any(parameter.requires_grad for parameter in task.module.parameters()):
        raise TaskError("the model has no trainable parameter")
    return task


def layout_of(spec: RunSpec, allowed: Collection[str] = ()) -> ParameterLayout:
    """How the spec's model lies in memory, for who holds and reduces it without running it. Raises TaskError."""
    if spec.model.kind == "factory":
        return ParameterLayout.of(build_task(spec, allowed).module)
    with torch.device("meta"):  # shapes only: no memory, no initialisation
        return ParameterLayout.of(Decoder(decoder_config(spec)))


def decoder_config(spec: RunSpec) -> DecoderConfig:
    """The decoder that a run spec describes, with its zeros resolved."""
    model = spec.model
    return DecoderConfig(
        vocab=model.vocab,
        width=model.width,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn_width,
        init_std=model.initial_std,
        max_positions=spec.data.sequence_length,
    )


def _from_factory(spec: RunSpec, allowed: Collection[str]) -> Task:
    where = spec.model.factory
    package, _, attribute = where.partition(":")
    top = package.split(".")[0]
    if top not in allowed:
        reason = f"the run's model comes from the package {top!r}, which is not allowed to run here"
        raise TaskError(reason, f"allow it with --allow {top} if you trust it")
    try:
        factory = getattr(importlib.import_module(package), attribute)
    except ImportError as error:
        raise TaskError(
            f"the run's model factory {where!r} cannot be imported: {error}", f"install {top!r} on this machine"
        ) from error
    except AttributeError as error:
        raise TaskError(f"the package {package!r} has no {attribute!r}, which the run names as its model factory") from error
    task: Task = factory(spec)
    return task
