"""The examples do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from shoal.coordinator.records import PeerEvaluated
from shoal.protocol.spec import RunSpec
from shoal.runplan import from_file
from tests.swarm.toyswarm import Swarms, finish, journal_of, same_models

pytestmark = pytest.mark.slow

OWN_MODEL = Path(__file__).parents[2] / "examples" / "own_model"


def test_a_model_of_ones_own_is_trained_by_a_swarm(swarms: Swarms) -> None:
    tables = from_file(OWN_MODEL / "run.toml", [], None, None).spec.model_dump(mode="json", by_alias=True)
    tables["run"].update(name="gru-test", total_tokens=3 * 2 * 20 * 8 * 128)
    swarm = swarms(RunSpec.of(**tables), "--allow", "bytegru", PYTHONPATH=str(OWN_MODEL))
    swarm.start_coordinator()
    for name in ("anna", "ben"):
        swarm.add_peer(name)
    models = finish(swarm)
    assert same_models(models)
    assert load_file(models["anna"])["gru.weight_ih_l0"].shape == (3 * 96, 96)
    evaluations = [record for record in journal_of(swarm) if isinstance(record, PeerEvaluated)]
    assert evaluations[-1].bits_per_byte < evaluations[0].bits_per_byte - 2
