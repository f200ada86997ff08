"""A run spec becomes a model: seeded, in fp32, and never from a package that the volunteer did not allow."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from shoal.optim.layout import ParameterLayout
from shoal.peer.task import TaskError, build_task, layout_of
from shoal.protocol.spec import RunSpec

FACTORY = """
import torch
loaded = True
class Task:
    def __init__(self, spec):
        self.module = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
        self.module.bias.requires_grad_(False)
def make(spec):
    return Task(spec)
def make_frozen(spec):
    task = Task(spec)
    task.module.requires_grad_(False)
    return task
"""


def spec(seed: int = 1, factory: str = "") -> RunSpec:
    model = {"kind": "factory", "factory": factory} if factory else {"width": 16, "layers": 1, "heads": 2, "kv_heads": 2}
    return RunSpec.of(run={"total_tokens": 1000, "seed": seed}, model=model)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"volunteer_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def test_the_seed_decides_the_initial_weights_and_nothing_else() -> None:
    def vector(seed: int) -> torch.Tensor:
        module = build_task(spec(seed)).module
        return ParameterLayout.of(module).gather(module)

    state = torch.random.get_rng_state()
    first = vector(1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(vector(1), first)
    assert not torch.equal(vector(2), first)


def test_the_loss_is_a_sum_over_targets() -> None:
    task = build_task(spec())
    samples = torch.arange(40).reshape(4, 10)
    loss, targets = task.loss(samples)
    assert targets == 36
    parts = [task.loss(samples[i : i + 1]) for i in range(4)]
    assert loss.item() == pytest.approx(sum(part.item() for part, _ in parts), rel=1e-6)
    assert loss.item() / targets == pytest.approx(math.log(256), rel=0.2)


def test_a_factory_runs_only_if_its_package_is_allowed(package: str) -> None:
    with pytest.raises(TaskError, match=rf"package '{package}', which is not allowed .* --allow {package}"):
        build_task(spec(factory=f"{package}:make"))
    assert package not in sys.modules
    module = build_task(spec(factory=f"{package}:make"), allowed=(package,)).module
    assert isinstance(module, torch.nn.Linear)
    assert module.weight.dtype == torch.float32
    assert module.bias.dtype == torch.bfloat16


def test_a_factory_that_is_not_there_is_named(package: str) -> None:
    with pytest.raises(TaskError, match="has no 'unknown'"):
        build_task(spec(factory=f"{package}:unknown"), allowed=(package,))
    with pytest.raises(TaskError, match="'not_installed_anywhere:make' cannot be imported"):
        build_task(spec(factory="not_installed_anywhere:make"), allowed=("not_installed_anywhere",))


def test_a_model_without_trainable_parameters_is_refused(package: str) -> None:
    with pytest.raises(TaskError, match="no trainable parameter"):
        build_task(spec(factory=f"{package}:make_frozen"), allowed=(package,))


def test_who_holds_a_model_without_running_it_knows_how_it_lies_in_memory(package: str) -> None:
    assert layout_of(spec()) == ParameterLayout.of(build_task(spec()).module)
    made = spec(factory=f"{package}:make")
    assert layout_of(made, allowed=(package,)) == ParameterLayout.of(build_task(made, allowed=(package,)).module)
    with pytest.raises(TaskError, match="not allowed"):
        layout_of(made)
