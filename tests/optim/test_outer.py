"""The outer step against numbers made by hand, against torch's SGD, and against itself in other slices."""

from __future__ import annotations

import hashlib
import struct

import numpy
import pytest
import torch
from torch import Tensor

import shoal.optim.outer as outer
from shoal.optim.outer import fingerprint, nesterov_step


def walk(updates: list[float], theta: float = 0.0, lr: float = 0.7, mu: float = 0.9) -> list[float]:
    position, momentum = torch.tensor([theta]), torch.zeros(1)
    positions = []
    for update in updates:
        nesterov_step(position, momentum, torch.tensor([update]), lr, mu)
        positions.append(round(float(position), 6))
    return positions


def test_the_toy_goes_from_one_to_0734_to_03546() -> None:
    assert walk([0.2, 0.2], theta=1.0) == [0.734, 0.3546]


def test_the_first_step_moves_by_133_percent_of_the_update() -> None:
    assert walk([0.15], theta=1.0) == [0.8005]


def test_a_constant_update_gathers_speed() -> None:
    assert walk([1.0, 1.0, 1.0]) == [-1.33, -3.227, -5.6343]


def test_an_impulse_rolls_on_to_seven_times_its_size() -> None:
    assert walk([1.0, 0.0, 0.0]) == [-1.33, -1.897, -2.4073]
    assert walk([1.0] + [0.0] * 300)[-1] == pytest.approx(-7.0, abs=1e-5)


def test_without_momentum_and_rate_one_it_is_the_mean_of_the_peers() -> None:
    assert walk([0.15], theta=1.0, lr=1.0, mu=0.0) == [0.85]


def test_one_peer_without_momentum_interpolates() -> None:
    # theta 1, local .5, rate .7: .3 * 1 + .7 * .5
    assert walk([0.5], theta=1.0, lr=0.7, mu=0.0) == [0.65]


def test_it_is_torchs_nesterov_sgd_up_to_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    theta, momentum = torch.randn(50, generator=generator), torch.zeros(50)
    parameter = torch.nn.Parameter(theta.clone())
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        update = torch.randn(50, generator=generator)
        parameter.grad = update.clone()
        sgd.step()
        nesterov_step(theta, momentum, update, 0.7, 0.9)
    assert torch.allclose(theta, parameter.detach(), atol=1e-5)


def random_state(values: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    theta, momentum, delta = (torch.randn(values, generator=generator) for _ in range(3))
    return theta, momentum, delta


def test_every_operation_is_rounded_by_itself_as_numpy_does() -> None:
    theta, momentum, delta = random_state(100_003)
    t, m, d = theta.numpy().copy(), momentum.numpy().copy(), delta.numpy()
    mu, lr = numpy.float32(0.9), numpy.float32(0.7)
    m = m * mu
    m = m + d
    u = m * mu
    u = u + d
    u = u * lr
    t = t - u
    nesterov_step(theta, momentum, delta, 0.7, 0.9)
    assert theta.numpy().tobytes() == t.tobytes()
    assert momentum.numpy().tobytes() == m.tobytes()


def test_threads_slices_parts_and_scratch_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = set()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for width, cuts, scratch in (
                (1 << 18, (), None),
                (1000, (), None),
                (1 << 18, (17, 50_001), None),
                (1 << 18, (), torch.empty(333)),
                (1 << 18, (3,), torch.empty(500_000)),
            ):
                monkeypatch.setattr(outer, "SLICE_VALUES", width)
                theta, momentum, delta = random_state(400_001)
                before = delta.numpy().tobytes()
                for start, stop in zip((0, *cuts), (*cuts, 400_001), strict=True):
                    nesterov_step(theta[start:stop], momentum[start:stop], delta[start:stop], 0.7, 0.9, scratch)
                assert delta.numpy().tobytes() == before
                results.add((theta.numpy().tobytes(), momentum.numpy().tobytes()))
    finally:
        torch.set_num_threads(threads)
    assert len(results) == 1


def test_what_nobody_ever_moved_keeps_its_bits() -> None:
    theta = torch.tensor([1.0, -0.0, 0.0, 1e-44, -3.4e38, 0.1])
    before = theta.numpy().tobytes()
    momentum = torch.zeros(6)
    for _ in range(10):
        nesterov_step(theta, momentum, torch.zeros(6), 0.7, 0.9)
    assert theta.numpy().tobytes() == before
    assert momentum.tolist() == [0.0] * 6


def test_nothing_to_step_and_wrong_shapes() -> None:
    nesterov_step(torch.empty(0), torch.empty(0), torch.empty(0), 0.7, 0.9)
    with pytest.raises(ValueError, match="momentum 2"):
        nesterov_step(torch.zeros(3), torch.zeros(2), torch.zeros(3), 0.7, 0.9)
    with pytest.raises(ValueError, match="fp32"):
        nesterov_step(torch.zeros(3).bfloat16(), torch.zeros(3), torch.zeros(3), 0.7, 0.9)


def test_the_fingerprint_is_a_hash_of_version_layout_theta_and_momentum() -> None:
    layout = bytes(range(32))
    plain = b"shoal-state-1" + struct.pack("<Q", 3) + layout + struct.pack("<4f", 1.0, 2.0, 0.5, -0.5)
    expected = hashlib.sha256(plain).digest()
    assert fingerprint(3, layout, torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.5])) == expected
    assert fingerprint(4, layout, torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.5])) != expected
    assert fingerprint(3, layout, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.5])) != expected
    assert fingerprint(3, layout, torch.empty(0), torch.empty(0)) == hashlib.sha256(plain[:-16]).digest()
    with pytest.raises(ValueError, match="contiguous"):
        fingerprint(3, layout, torch.zeros(4)[::2], torch.zeros(2))
