"""Golden numbers through real processes: what two peers with known pseudo-gradients must arrive at, to the bit, on each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shoal.compression.codec import codec as codec_named
from shoal.coordinator.records import FingerprintAgreed, RoundCommitted
from shoal.optim.layout import ParameterLayout
from shoal.optim.outer import fingerprint, nesterov_step
from tests.swarm.toyswarm import Swarms, finish, journal_of, same_models, status, toy_spec, working

pytestmark = pytest.mark.slow

TOGETHER_S = 90.0
NEAR = 1e-5
"""How far int8's rounding may lie from the exact number."""


def toy(values: int) -> torch.nn.Module:
    """The model that the peers train."""
    sys.path.insert(0, str(Path(__file__).parent / "packages"))
    try:
        from shoal_toy import Toy  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    module: torch.nn.Module = Toy(values)
    return module


def reference(values: int, gradients: list[float], codec: str, rounds: int) -> tuple[torch.Tensor, list[bytes]]:
    """Parameters after so many rounds, and the fingerprint after each, computed here without a network."""
    module = toy(values)
    layout = ParameterLayout.of(module)
    theta = torch.empty(layout.values)
    layout.gather(module, theta)
    slope = torch.ones(layout.values)
    for slot in layout.slots:
        if slot.name == "v":
            slope[slot.start : slot.start + slot.size] = torch.linspace(-1.0, 1.0, values)
    momentum, roots = torch.zeros_like(theta), []
    coder = codec_named(codec, 1024)
    parts = layout.partition(coder)
    for version in range(1, rounds + 1):
        mean = torch.empty_like(theta)
        for part in parts:
            base, shape = theta[part.start : part.stop], part.spans
            total = torch.zeros_like(base)
            for d in gradients:
                local = base - slope[part.start : part.stop] * d
                coder.decode_add(coder.encode((base - local).contiguous(), shape), shape, total, 4.0)
            total.div_(4.0 * len(gradients))
            mean[part.start : part.stop] = coder.decode(coder.encode(total, shape), shape)
        nesterov_step(theta, momentum, mean, 0.7, 0.9)
        roots.append(fingerprint(version, layout.hash, theta, momentum))
    return theta, roots


@pytest.mark.parametrize(("codec", "values"), [("raw", 0), ("int8", 0), ("raw", 600_000), ("int8", 600_000)])
def test_two_peers_reach_the_golden_numbers_with_equal_bytes_after_every_round(swarms: Swarms, codec: str, values: int) -> None:
    swarm = swarms(toy_spec(2, values=values, codec={"send": codec, "return": codec}))
    swarm.start_coordinator()
    gradients = {"anna": 0.1, "ben": 0.3}
    for name, d in gradients.items():
        swarm.add_peer(name, environment={"SHOAL_TOY_D": str(d)})
    models = finish(swarm)
    assert same_models(models)
    w = load_file(models["anna"])["w"]
    assert w.tolist() == pytest.approx([0.3546] * 8, abs=1e-6 if codec == "raw" else NEAR)

    records = journal_of(swarm)
    committed = [record for record in records if isinstance(record, RoundCommitted)]
    assert [record.version for record in committed] == [1, 2]
    assert all({len(part.contributors) for part in record.decisions} == {2} for record in committed)
    theta, roots = reference(values, [0.1, 0.3], codec, 2)
    agreed = [record for record in records if isinstance(record, FingerprintAgreed)]
    assert [(a.version, a.root, a.votes == a.voters, a.flagged) for a in agreed if a.version > 0] == [
        (1, roots[0], True, False),
        (2, roots[1], True, False),
    ]
    assert torch.equal(w, theta[: len(w)])


def test_the_first_round_ends_at_the_first_golden_number(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(1))
    swarm.start_coordinator()
    swarm.add_peer("anna", environment={"SHOAL_TOY_D": "0.1"})
    swarm.add_peer("ben", environment={"SHOAL_TOY_D": "0.3"})
    for path in finish(swarm).values():
        assert load_file(path)["w"].tolist() == pytest.approx([0.734] * 8, abs=NEAR)


def test_one_peer_alone_is_a_run_too(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(2, peers=1))
    swarm.start_coordinator()
    swarm.add_peer("anna", environment={"SHOAL_TOY_D": "0.2"})
    assert load_file(finish(swarm)["anna"])["w"].tolist() == pytest.approx([0.3546] * 8, abs=NEAR)


def test_a_run_below_its_minimum_waits_says_for_what_and_goes_on_by_itself(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(2))
    swarm.start_coordinator()
    anna = swarm.add_peer("anna")
    swarm.wait_for(lambda: status(swarm).members == 1, TOGETHER_S, "one member")
    assert "1 more peer" in status(swarm).waiting_for
    assert "(have 1, need 2)" in status(swarm).waiting_for
    swarm.wait_for(lambda: "waiting for 1 more peer" in anna.last_words(), 10, "the peer to say what it waits for")
    swarm.add_peer("ben")
    assert len(finish(swarm)) == 2


def test_a_joiner_takes_the_state_over_and_counts(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(400, peers=1, values=300_000))
    swarm.start_coordinator()
    swarm.add_peer("anna")
    swarm.wait_for(lambda: status(swarm).version >= 3, TOGETHER_S, "version 3")
    swarm.add_peer("ben")
    swarm.wait_for(lambda: "ben" in working(swarm), TOGETHER_S, "ben's work to be committed")
    models = finish(swarm)
    assert same_models(models)
    agreed = [record for record in journal_of(swarm) if isinstance(record, FingerprintAgreed)]
    assert any(record.voters == 2 for record in agreed)
    assert all(record.votes == record.voters and not record.flagged for record in agreed)
