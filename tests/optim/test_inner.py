"""The inner optimizer and one inner step."""

from __future__ import annotations

import math
from collections.abc import Generator

import pytest
import torch
from torch import Tensor, nn

from shoal.optim.inner import InnerTraining, clip_gradients, decay_groups, inner_optimizer, inner_step, rewarm_factor, set_rate
from shoal.optim.schedule import Schedule


class RMSNorm(nn.Module):
    """A home-made norm with a matrix of gains."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.ones(2, 3))


def names_in(module: nn.Module, parameters: list[nn.Parameter]) -> set[str]:
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, parameter in module.named_parameters() if id(parameter) in wanted}


def test_only_matrices_decay() -> None:
    module = nn.ModuleDict(
        {
            "embedding": nn.Embedding(4, 3),
            "head": nn.Linear(3, 4, bias=False),
            "middle": nn.Linear(3, 3),
            "norm": nn.LayerNorm((2, 3)),
        }
    )
    module["own"] = RMSNorm()
    module["frozen"] = nn.Linear(2, 2).requires_grad_(False)
    matrices, others = decay_groups(module)
    assert names_in(module, matrices) == {"head.weight", "middle.weight"}
    assert names_in(module, others) == {"embedding.weight", "middle.bias", "norm.weight", "norm.bias", "own.gains"}


def test_a_head_that_is_tied_to_the_embedding_does_not_decay_and_is_stepped_once() -> None:
    module = nn.ModuleDict({"head": nn.Linear(3, 4, bias=False), "embedding": nn.Embedding(4, 3)})
    module["head"].weight = module["embedding"].weight
    matrices, others = decay_groups(module)
    assert (len(matrices), len(others)) == (0, 1)


def test_defaults_are_those_of_the_design() -> None:
    adamw = inner_optimizer(nn.Linear(2, 2))
    assert type(adamw) is torch.optim.AdamW
    assert [(group["betas"], group["eps"], group["weight_decay"]) for group in adamw.param_groups] == [
        ((0.9, 0.95), 1e-8, 0.1),
        ((0.9, 0.95), 1e-8, 0.0),
    ]
    sgd = inner_optimizer(nn.Linear(2, 2), "sgd", weight_decay=0.0)
    assert type(sgd) is torch.optim.SGD
    with pytest.raises(ValueError, match="unknown inner optimizer 'adam'"):
        inner_optimizer(nn.Linear(2, 2), "adam")
    with pytest.raises(ValueError, match="no trainable"):
        inner_optimizer(nn.Linear(2, 2).requires_grad_(False))


def test_decay_pulls_a_matrix_and_leaves_a_bias() -> None:
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(1.0)
    optimizer = inner_optimizer(module, weight_decay=0.1)
    set_rate(optimizer, 0.5)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert module.weight.item() == pytest.approx(0.95)  # 1 - .5 * .1
    assert module.bias.item() == 1.0


def test_gradients_are_clipped_to_their_joint_norm() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip_gradients([a, b, nn.Parameter(torch.zeros(2))], 1.0) == pytest.approx(5.0)
    assert [a.grad.item(), b.grad.item()] == pytest.approx([0.6, 0.8], abs=1e-5)
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip_gradients([a, b], 0.0) == pytest.approx(5.0)
    assert (a.grad.item(), b.grad.item()) == (3.0, 4.0)
    assert clip_gradients([], 1.0) == clip_gradients([], 0.0) == 0.0


def test_rewarming_grows_to_one_and_never_beyond() -> None:
    assert [rewarm_factor(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rewarm_factor(0, 0) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_moves_neither_parameters_nor_moments(bad: float, where: str) -> None:
    module = nn.Linear(2, 1, bias=False)
    optimizer = inner_optimizer(module)
    inner_step(module, optimizer, lambda: module(torch.ones(2)).sum(), 0.1, 1.0)
    before = module.weight.detach().clone()
    moments = [value.clone() for value in optimizer.state[module.weight].values()]

    def loss() -> Tensor:
        if where == "loss":
            return module(torch.ones(2)).sum() + bad
        return (module.weight * torch.tensor([bad, 1.0])).sum().clamp(max=1.0) * (module.weight.sum() * 0 + bad)

    value, norm = inner_step(module, optimizer, loss, 0.1, 1.0)
    assert not math.isfinite(value) or not math.isfinite(norm)
    assert torch.equal(module.weight, before)
    assert all(torch.equal(a, b) for a, b in zip(moments, optimizer.state[module.weight].values(), strict=True))
    inner_step(module, optimizer, lambda: module(torch.ones(2)).sum(), 0.1, 1.0)
    assert bool(torch.isfinite(module.weight).all())
    assert not torch.equal(module.weight, before)


def test_each_step_uses_the_rate_that_includes_it_times_the_rewarming() -> None:
    module = nn.Linear(1, 1, bias=False)
    schedule = Schedule(peak=1.0, total_tokens=1000, warmup_fraction=1.0)
    training = InnerTraining(module, inner_optimizer(module, "sgd"), schedule, clip_norm=0.0, rewarm_steps=4)
    loss = lambda: module.weight.sum() * 0.0  # noqa: E731
    done = list(training.steps([(2, loss), (2, loss), (1, loss)], sample_tokens=10, quota=5, committed=100, expected=200))
    # Progress 100 + 200 * (.4, .8, 1) of 1000; re-warming 1/4, 2/4, 3/4.
    assert [step.lr for step in done] == pytest.approx([0.18 * 0.25, 0.26 * 0.5, 0.3 * 0.75])
    assert [step.samples for step in done] == [2, 2, 1]
    again = list(training.steps([(5, loss), (5, loss)], sample_tokens=10, quota=5, committed=300, expected=200))
    assert [step.lr for step in again] == pytest.approx([0.5, 0.5])


def test_the_caller_stops_by_not_asking_for_another_step() -> None:
    module = nn.Linear(1, 1)
    training = InnerTraining(module, inner_optimizer(module), Schedule(0.1, 100))
    steps = training.steps(
        ((1, lambda: module(torch.ones(1)).sum()) for _ in range(100)), sample_tokens=1, quota=100, committed=0, expected=100
    )
    next(steps)
    next(steps)
    assert isinstance(steps, Generator)
    steps.close()
    assert training.steps_done == 2
