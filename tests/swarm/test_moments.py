"""Moments that chance rarely hits: a coordinator that dies between journaling and speaking, a peer left out of a round."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from shoal.coordinator.records import FingerprintAgreed, Record, RoundCommitted, SessionOpened
from shoal.protocol.admin import Stop
from tests.swarm.toyswarm import Swarms, finish, journal_of, same_models, status, toy_spec, working

pytestmark = pytest.mark.slow

LONG = 100_000
TOGETHER_S = 90.0


@pytest.mark.parametrize("moment", ["RoundOpened:3", "RoundCommitted:2", "SessionOpened:2", "FingerprintAgreed:2"])
def test_a_coordinator_that_dies_between_journaling_and_announcing_loses_nothing(swarms: Swarms, moment: str) -> None:
    swarm = swarms(toy_spec(LONG, values=300_000))
    swarm.environment["SHOAL_TOY_DIE_AFTER"] = moment
    coordinator = swarm.start_coordinator()
    del swarm.environment["SHOAL_TOY_DIE_AFTER"]
    for name, d in (("anna", "0.001"), ("ben", "0.003")):
        swarm.add_peer(name, environment={"SHOAL_TOY_D": d})
    assert coordinator.wait(TOGETHER_S) == 137
    swarm.start_coordinator()
    swarm.wait_for(lambda: status(swarm).version >= 4, TOGETHER_S, "rounds to go on")
    swarm.ask(Stop())
    assert same_models(finish(swarm))
    records = journal_of(swarm)
    committed = [record for record in records if isinstance(record, RoundCommitted)]
    assert [(record.base, record.version) for record in committed] == [(v, v + 1) for v in range(len(committed))]
    assert not any(record.flagged for record in records if isinstance(record, FingerprintAgreed))


def test_a_peer_left_out_of_a_round_contributes_what_it_had_and_what_it_makes_and_nothing_twice(swarms: Swarms) -> None:
    """Ben has 0.2 when a round closes without him and makes 0.1 more: he contributes 0.3, not 0.5."""
    swarm = swarms(
        toy_spec(
            LONG,
            train={"steps": 2},
            codec={"send": "raw", "return": "raw"},
            timing={"gather_s": 1.0, "join_wait_s": 8.0},
            run={"min_peers": 1},
        )
    )
    swarm.start_coordinator()
    swarm.add_peer("anna", environment={"SHOAL_TOY_D": "0.05"})
    swarm.add_peer("ben", environment={"SHOAL_TOY_D": "0.2,0.1", "SHOAL_TOY_STEP_S": "4,0.05"})
    swarm.wait_for(lambda: working(swarm) == {"anna", "ben"}, TOGETHER_S, "ben's work to be committed")
    swarm.ask(Stop())
    models = finish(swarm)
    assert same_models(models)
    rounds = contributions(journal_of(swarm))
    assert "ben" not in rounds[0]
    assert next(rate["ben"] for rate in rounds if "ben" in rate) == 2
    assert load_file(models["anna"])["w"].tolist() == pytest.approx([replayed(rounds)] * 8, rel=1e-5, abs=1e-5)


def contributions(records: list[Record]) -> list[dict[str, int]]:
    """Samples that each peer contributed, by name, for each committed round."""
    names = {record.peer: record.name for record in records if isinstance(record, SessionOpened)}
    return [
        {names[c.peer]: c.weight // 4 for c in record.contributions} for record in records if isinstance(record, RoundCommitted)
    ]


def replayed(rounds: list[dict[str, int]]) -> float:
    """Where w must be if everything that was made counts once."""
    w, momentum, left_out = 1.0, 0.0, 0.2 - 0.1
    for samples in rounds:
        made = {name: count * {"anna": 0.05, "ben": 0.1}[name] for name, count in samples.items()}
        if "ben" in made:
            made["ben"] += left_out
            left_out = 0.0
        mean = sum(made[name] * samples[name] for name in made) / sum(samples.values())
        momentum = 0.9 * momentum + mean
        w -= 0.7 * (mean + 0.9 * momentum)
    return w
