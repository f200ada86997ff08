"""A whole run in one process: hand-made numbers, equivalences, and the fate of work that was not included."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shoal.compression.codec import codec
from shoal.optim.diloco import Assignment, DiLoCo, Swarm, Train, reduce_part, train_in_batches
from shoal.optim.inner import InnerTraining, inner_optimizer
from shoal.optim.layout import ParameterLayout, Slot
from shoal.optim.outer import fingerprint
from shoal.optim.schedule import Schedule
from shoal.optim.strategy import Strategy

TOY = ParameterLayout((Slot("w", (8,), 0, 8),))


def minus(d: float | Tensor) -> Train:
    """An inner loop that always comes d further down."""
    return lambda local, assignment: local - d


def toy(lr: float = 0.7, mu: float = 0.9, name: str = "int8", part_bytes: int = 1 << 20, **peers: float | Tensor) -> Swarm:
    swarm = Swarm(TOY, torch.ones(8), codec(name, 4), codec(name, 4), sample_tokens=1, lr=lr, mu=mu, part_bytes=part_bytes)
    for peer, d in peers.items():
        swarm.join(peer, minus(d))
    return swarm


def every(swarm: Swarm, samples: int = 1) -> dict[str, list[tuple[int, int]]]:
    """A lease for each member: its own stretch, long enough for the test."""
    return {name: [(1000 * index, 1000 * index + samples)] for index, name in enumerate(swarm.members)}


def w(swarm: Swarm) -> list[float]:
    return [round(value, 4) for value in swarm.theta.tolist()]


@pytest.mark.parametrize("name", ["int8", "raw"])
def test_the_toy_swarm_goes_from_one_to_0734_to_03546(name: str) -> None:
    swarm = toy(a=0.1, b=0.3, name=name)
    swarm.round(every(swarm), quota=1)
    assert w(swarm) == [0.734] * 8
    swarm.round(every(swarm), quota=1)
    assert w(swarm) == [0.3546] * 8
    assert swarm.version == 2


def test_the_first_step_of_two_peers_at_08_and_09() -> None:
    swarm = toy(a=0.2, b=0.1)
    swarm.round(every(swarm), quota=1)
    assert w(swarm) == [0.8005] * 8
    mean = toy(a=0.2, b=0.1, lr=1.0, mu=0.0)
    mean.round(every(mean), quota=1)
    assert w(mean) == [0.85] * 8


def test_work_is_weighted_by_its_tokens() -> None:
    swarm = toy(a=1.0, b=5.0, lr=1.0, mu=0.0)
    entry = swarm.round({"a": [(0, 30)], "b": [(30, 40)]}, quota=30)
    assert w(swarm) == [-1.0] * 8  # 1 - (30*1 + 10*5) / 40
    assert entry is not None
    assert entry.weights == (("a", 30), ("b", 10))
    assert [part.divisor for part in entry.parts] == [40.0]
    assert swarm.committed_tokens == 40


def test_a_contribution_that_is_not_finite_counts_for_nothing_and_its_peer_goes_on() -> None:
    poison = torch.full((8,), 0.5)
    poison[3] = float("nan")
    swarm = toy(a=0.1, b=0.3, c=poison)
    entry = swarm.round(every(swarm), quota=1)
    assert w(swarm) == [0.734] * 8
    assert entry is not None
    assert entry.parts[0].contributors == ("a", "b")
    assert swarm.members["c"].pending.tolist() == [0.0] * 8
    swarm.members["c"].train = minus(0.2)
    swarm.round(every(swarm), quota=1)
    assert w(swarm) == [0.3546] * 8


def test_a_round_without_work_or_that_is_abandoned_has_no_effect() -> None:
    swarm = toy(a=0.2, b=0.2)
    root = swarm.root()
    assert swarm.round({"a": [], "b": []}, quota=1) is None
    assert swarm.round(every(swarm), quota=1, abandoned=True) is None
    assert swarm.root() == root
    assert swarm.version == 0
    assert swarm.committed_tokens == 0


def test_abandoned_work_stays_pending_and_counts_with_all_its_tokens_later() -> None:
    swarm = toy(a=0.1, b=0.1)
    assert swarm.round(every(swarm, 1), quota=1, abandoned=True) is None
    assert swarm.members["a"].trained == 1
    entry = swarm.round(every(swarm, 2), quota=1)  # each has come 0.2 by now
    assert w(swarm) == [0.734] * 8
    assert entry is not None
    assert entry.weights == (("a", 2), ("b", 2))
    assert swarm.members["a"].trained == 0
    assert swarm.members["a"].pending.tolist() == [0.0] * 8


def test_an_excluded_peer_goes_on_from_the_new_state_minus_its_own_pending_work() -> None:
    starts: list[Tensor] = []

    def watched(local: Tensor, assignment: Assignment) -> Tensor:
        starts.append(local.clone())
        return local - 0.5

    swarm = toy(a=0.2, name="raw")
    swarm.join("b", watched)
    leases = every(swarm, 2)
    entry = swarm.round(leases, quota=1, order=["a"])
    assert entry is not None
    assert entry.weights == (("a", 1),)
    assert w(swarm) == [0.734] * 8
    swarm.round(leases, quota=1, order=["b"])
    assert starts[1].tolist() == pytest.approx([0.734 - 0.5] * 8)
    # b contributes both halves: m = .9*.2 + 1, theta = .734 - .7 * (.9*1.18 + 1)
    assert swarm.theta.tolist() == pytest.approx([0.734 - 0.7 * (0.9 * 1.18 + 1.0)] * 8)


def test_a_part_that_missed_a_peer_is_divided_by_what_it_has_and_stays_pending_there() -> None:
    swarm = toy(a=0.1, b=0.3, part_bytes=8)  # two parts of four values
    assert len(swarm.parts) == 2
    entry = swarm.round(every(swarm, 1), quota=1, missing={"b": [1]})
    assert entry is not None
    assert [part.contributors for part in entry.parts] == [("a", "b"), ("a",)]
    assert [part.divisor for part in entry.parts] == [2.0, 1.0]
    assert w(swarm) == [0.734] * 4 + [round(1 - 1.33 * 0.1, 4)] * 4
    assert swarm.members["b"].pending.tolist() == pytest.approx([0.0] * 4 + [0.3] * 4)
    assert swarm.members["b"].trained == 0  # the lease is spent: part of the work is in
    assert swarm.committed_tokens == 2


def test_a_peer_that_joins_brings_nothing_into_its_first_round_unless_it_trained() -> None:
    swarm = toy(a=0.2)
    swarm.round(every(swarm), quota=1)
    swarm.join("late", minus(9.0))
    entry = swarm.round({"a": [(0, 1)], "late": []}, quota=1)
    assert entry is not None
    assert entry.weights == (("a", 1),)
    assert w(swarm) == [0.3546] * 8
    swarm.leave("late")
    assert list(swarm.members) == ["a"]


def test_the_order_of_summation_is_the_plans_and_changes_only_rounding() -> None:
    generator = torch.Generator().manual_seed(3)
    deltas = {name: torch.randn(8, generator=generator) for name in "abcde"}
    roots = set()
    for order in ("abcde", "edcba"):
        swarm = toy(name="raw", **deltas)  # type: ignore[arg-type]  # none of the names is another argument's
        swarm.round(every(swarm), quota=1, order=list(order))
        roots.add(swarm.root())
        expected = 1.0 - 1.33 * torch.stack(list(deltas.values())).mean(0)
        assert torch.allclose(swarm.theta, expected, atol=1e-5)
    assert len(roots) == 2


def test_a_reduced_part_is_the_mean_encoded_once_and_needs_weight() -> None:
    int8 = codec("int8", 8)
    payloads = [(int8.encode(torch.full((8,), value), (8,)), weight) for value, weight in ((1.0, 30.0), (5.0, 10.0))]
    assert int8.decode(reduce_part(int8, int8, (8,), payloads), (8,)).tolist() == pytest.approx([2.0] * 8)
    for none in ([], [(payloads[0][0], 0.0)]):
        with pytest.raises(ValueError, match="total weight 0"):
            reduce_part(int8, int8, (8,), none)


def test_digests_of_an_entry_are_those_of_the_bytes_everybody_applies() -> None:
    swarm = toy(a=0.25, lr=1.0, mu=0.0)
    entry = swarm.round(every(swarm), quota=1)
    int8 = codec("int8", 4)
    assert entry is not None
    weight = float(entry.weights[0][1])
    total = torch.zeros(8)
    int8.decode_add(int8.encode(torch.full((8,), 0.25), (8,)), (8,), total, weight)
    payload = int8.encode(total / weight, (8,))
    assert entry.parts[0].digest == hashlib.sha256(payload).digest()


# --- with a real module and inner optimizer ---------------------------------------------------------------------------------------


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def sample(position: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, generator=torch.Generator().manual_seed(position))
    return x, x.sum() / 3


def squared_error(module: nn.Module, positions: tuple[int, ...]) -> Tensor:
    x, y = (torch.stack(column) for column in zip(*(sample(position) for position in positions), strict=True))
    error: Tensor = (module(x).squeeze(-1) - y).square().mean()
    return error


def learner(kind: str = "adamw", lr: float = 0.02, batch: int = 4, rewarm_steps: int = 0) -> Train:
    module = network()
    schedule = Schedule(lr, 10**6, warmup_fraction=0.0, shape="constant")
    training = InnerTraining(
        module, inner_optimizer(module, kind, weight_decay=0.0), schedule, 1.0 if kind == "adamw" else 0.0, rewarm_steps
    )
    return train_in_batches(training, ParameterLayout.of(module), squared_error, batch=batch, sample_tokens=1)


def real_swarm(
    peers: int, name: str = "int8", part_bytes: int = 1 << 20, make: Callable[[], Train] = learner, **outer: float
) -> Swarm:
    module = network()
    layout = ParameterLayout.of(module)
    swarm = Swarm(layout, layout.gather(module), codec(name, 64), codec(name, 64), sample_tokens=1, part_bytes=part_bytes, **outer)  # type: ignore[arg-type]
    for index in range(peers):
        swarm.join(f"peer{index}", make())
    return swarm


def go(swarm: Swarm, rounds: int, quota: int = 20, same: bool = False) -> list[bytes]:
    roots, at = [], 0
    for _ in range(rounds):
        leases = {}
        for name in swarm.members:
            leases[name] = [(at, at + quota)]
            at += 0 if same else quota
        at += quota if same else 0
        assert swarm.round(leases, quota=quota) is not None
        roots.append(swarm.root())
    return roots


def loss_of(swarm: Swarm) -> float:
    module = network()
    swarm.layout.scatter(swarm.theta, module)
    return float(squared_error(module, tuple(range(10_000, 10_200))).detach())


def test_a_run_is_reproducible_to_the_bit_and_learns() -> None:
    first, second = real_swarm(3, mu=0.5), real_swarm(3, mu=0.5)
    before = loss_of(first)
    assert go(first, 10) == go(second, 10)
    assert first.root() == fingerprint(10, first.layout.hash, second.theta, second.momentum)
    assert loss_of(first) < 0.6 * before


def test_cutting_into_other_parts_changes_no_bit() -> None:
    results = set()
    for part_bytes in (1 << 20, 200, 68):
        swarm = real_swarm(3, part_bytes=part_bytes)
        go(swarm, 3)
        results.add(swarm.root())
    assert len(results) == 1


def test_peers_with_identical_data_move_as_one_peer_alone() -> None:
    alone, together = real_swarm(1), real_swarm(2)
    # A mean of two equal values is exact.
    assert go(alone, 3, same=True) == go(together, 3, same=True)


def test_one_inner_sgd_step_and_plain_averaging_is_data_parallel_sgd() -> None:
    swarm = real_swarm(4, "raw", make=lambda: learner("sgd", lr=0.1, batch=5), lr=1.0, mu=0.0)
    go(swarm, 1, quota=5)
    module = network()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    squared_error(module, tuple(range(20))).backward()
    sgd.step()
    assert torch.allclose(swarm.theta, swarm.layout.gather(module), atol=1e-6)


def test_int8_stays_within_its_rounding_of_fp32() -> None:
    int8, fp32 = real_swarm(3, "int8"), real_swarm(3, "raw")
    go(int8, 3)
    go(fp32, 3)
    assert not torch.equal(int8.theta, fp32.theta)
    moved = (fp32.theta - ParameterLayout.of(network()).gather(network())).norm()
    assert float((int8.theta - fp32.theta).norm() / moved) < 0.05


def test_the_learning_rate_follows_progress_and_a_short_last_batch_trains() -> None:
    seen: list[Assignment] = []
    inner = learner(batch=3)

    def watching(local: Tensor, assignment: Assignment) -> Tensor:
        seen.append(assignment)
        return inner(local, assignment)

    swarm = real_swarm(1, make=lambda: watching)
    go(swarm, 2, quota=7)
    assert seen[0] == Assignment(1, tuple(range(7)), 7, 0, 7)
    assert seen[1] == Assignment(2, tuple(range(7, 14)), 7, 7, 7)


def test_leases_in_several_spans_are_trained_from_where_the_pending_work_ends() -> None:
    seen: list[tuple[int, ...]] = []

    def watching(local: Tensor, assignment: Assignment) -> Tensor:
        seen.append(assignment.positions)
        return local - 0.1

    swarm = toy()
    swarm.join("a", watching)
    swarm.round({"a": [(0, 2), (10, 12)]}, quota=3, abandoned=True)
    swarm.round({"a": [(0, 2), (10, 12), (20, 25)]}, quota=3)
    assert seen == [(0, 1, 10), (11, 20, 21)]
    assert swarm.committed_tokens == 6


class Embedded(nn.Module):
    """Tied, frozen and unused parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(4))
        self.q = nn.Parameter(torch.ones(4))
        self.r = nn.Parameter(torch.full((4,), 0.3), requires_grad=False)
        self.gate = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.empty(0, 8))
        self.tied = self.p


def test_unused_parameters_contribute_zero_and_frozen_ones_are_not_sent() -> None:
    def branch(which: str) -> Train:
        module = Embedded()
        training = InnerTraining(module, inner_optimizer(module), Schedule(0.1, 100, 0.0, shape="constant"))
        layout = ParameterLayout.of(module)
        return train_in_batches(
            training, layout, lambda m, positions: m.get_parameter(which).sum() * m.get_parameter("gate"), batch=1, sample_tokens=1
        )

    module = Embedded()
    layout = ParameterLayout.of(module)
    swarm = Swarm(layout, layout.gather(module), codec("int8", 256), codec("int8", 256), sample_tokens=1)
    swarm.join("a", branch("p"))
    swarm.join("b", branch("q"))
    for at in range(3):
        assert swarm.round({"a": [(at, at + 1)], "b": [(100 + at, 101 + at)]}, quota=1) is not None
    assert layout.values == 4 + 4 + 1
    assert layout.ties == (("tied", "p"),)
    layout.scatter(swarm.theta, module)
    assert module.r.tolist() == pytest.approx([0.3] * 4)
    assert module.p.data_ptr() == module.tied.data_ptr()
    assert module.p.detach().max() < 1.0
    assert module.q.detach().max() < 1.0
    # After one round p has moved by half of what a alone would do: Adam's first step is the learning rate, 0.1.
    fresh = Swarm(layout, layout.gather(Embedded()), codec("int8", 256), codec("int8", 256), sample_tokens=1, lr=1.0, mu=0.0)
    fresh.join("a", branch("p"))
    fresh.join("b", branch("q"))
    fresh.round({"a": [(0, 1)], "b": [(1, 2)]}, quota=1)
    assert fresh.theta.tolist() == pytest.approx([0.95] * 8 + [0.9], abs=1e-4)


def test_diloco_is_a_strategy() -> None:
    strategy: Strategy = DiLoCo()
    out = torch.empty(2)
    strategy.publish(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 2.5]), out)
    assert out.tolist() == [0.5, -0.5]
    strategy.load(torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.5]), out)
    assert out.tolist() == [0.5, 2.5]
    assert strategy.name == "diloco"
