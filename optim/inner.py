"""How one peer trains between two synchronisations: the inner optimizer and one inner step.

Rule: it knows the module, a loss and a learning rate; where the rate comes from is `schedule`'s business, when to stop the
trainer's. Moments belong to the peer: they are kept over rounds, never averaged, never shared. Weight decay applies to matrices
only. The same module, moments, batch and rate give the same bits if torch also uses as many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.optim.schedule import Schedule, learning_rate


def inner_optimizer(
    module: nn.Module,
    kind: str = "adamw",
    *,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> torch.optim.Optimizer:
    """A fresh optimizer over the trainable parameters: "adamw", or "sgd" with momentum `betas[0]`. `set_rate` before each step."""
    matrices, others = decay_groups(module)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError("the module has no trainable parameters")
    match kind:
        case "adamw":
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=betas[0], foreach=False)
        case _:
            raise ValueError(f"unknown inner optimizer {kind!r}; known: adamw, sgd")


def decay_groups(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters that decay (matrices), and those that do not (norms, biases, scalars, embeddings and their ties)."""
    spared = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) or "norm" in type(part).__name__.lower()
        for parameter in part.parameters(recurse=False)
    }
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (matrices if parameter.dim() >= 2 and id(parameter) not in spared else others).append(parameter)
    return matrices, others


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use this learning rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def rewarm_factor(steps_done: int, rewarm_steps: int) -> float:
    """min(1, (j+1)/rewarm_steps): what an optimizer that began without moments, `steps_done` steps ago, multiplies its rate by."""
    return min(1.0, (steps_done + 1) / rewarm_steps) if rewarm_steps > 0 else 1.0


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale the gradients down to a joint norm of `max_norm` (0: leave them). Returns the norm before that, which may be NaN."""
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    if max_norm <= 0.0:
        return float(nn.utils.get_total_norm([p.grad for p in with_gradient if p.grad is not None]))
    return float(nn.utils.clip_grad_norm_(with_gradient, max_norm, foreach=False))


def inner_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor], lr: float, clip_norm: float
) -> tuple[float, float]:
    """One step: loss, gradients, clipping, update. Gives the loss and the gradient's norm before clipping.

    If either is not finite, nothing moves: neither parameters nor moments.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = clip_gradients(module.parameters(), clip_norm)
    value = float(loss.detach())
    if abs(value) + norm < float("inf"):
        set_rate(optimizer, lr)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value, norm


@dataclass(frozen=True)
class StepDone:
    """One inner step: how many samples it took, its loss, the gradient's norm before clipping, and the rate it used."""

    samples: int
    loss: float
    norm: float
    lr: float


class InnerTraining:
    """A module in training with its optimizer; keeps what must last from round to round: the moments and how young they are."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, clip_norm: float = 1.0, rewarm_steps: int = 0
    ) -> None:
        """`rewarm_steps` 0: an optimizer without moments takes full steps at once."""
        self.module = module
        self.optimizer = optimizer
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.rewarm_steps = rewarm_steps
        self.steps_done = 0
        """Steps of this optimizer since it began without moments. Zero them together."""

    def rate(self, own: int, quota: int, committed: int, expected: int) -> float:
        """Learning rate of the next step, after which the peer has done `own` tokens of its `quota` (`schedule.learning_rate`)."""
        return learning_rate(self.schedule, committed, expected, own, quota) * rewarm_factor(self.steps_done, self.rewarm_steps)

    def step(self, loss_of: Callable[[], Tensor], lr: float) -> tuple[float, float]:
        """One inner step; loss and gradient's norm before clipping. If either is not finite, nothing moved. What `loss_of` raises
        leaves everything as it was."""
        done = inner_step(self.module, self.optimizer, loss_of, lr, self.clip_norm)
        self.steps_done += 1
        return done

    def steps(
        self,
        batches: Iterable[tuple[int, Callable[[], Tensor]]],
        *,
        sample_tokens: int,
        quota: int,
        committed: int,
        expected: int,
    ) -> Iterator[StepDone]:
        """One inner step per batch, given as (samples, loss of it); the caller stops by not asking for another.

        `quota` (samples) is the peer's share of the round; `sample_tokens` tokens in each sample; `committed` and `expected` tokens
        are the round's, as in `schedule.learning_rate`.
        """
        own = 0
        for samples, loss_of in batches:
            own += samples
            lr = self.rate(own * sample_tokens, quota * sample_tokens, committed, expected)
            loss, norm = self.step(loss_of, lr)
            yield StepDone(samples, loss, norm, lr)
