"""The toy run of the swarm tests, and how to see what became of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.coordinator.journal import Journal, journal_url
from shoal.coordinator.records import Record
from shoal.coordinator.setup import RunDirectory
from shoal.demo import file_digest
from shoal.localswarm import LocalSwarm
from shoal.protocol.admin import GetPeers, GetStatus, Peers, PeerView, Status
from shoal.protocol.spec import RunSpec

Swarms = Callable[..., LocalSwarm]
"""What the `swarms` fixture is."""
RUN_S = 90.0


WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw")
"""Part of the names of runs and directories: what other workers leave for a while is not ours (see tests/conftest.py)."""


def _run_name() -> str:
    return f"toy-{WORKER}x{secrets.token_hex(3)}"


def toy_spec(rounds: int, *, peers: int = 2, values: int = 0, **tables: dict[str, Any]) -> RunSpec:
    """A run in which w goes 1.0 -> 0.734 -> 0.3546 when the peers' d average 0.2: one SGD step of rate 1 per round."""
    still = {"beta1": 0.0, "weight_decay": 0.0, "clip_norm": 0.0, "warmup_fraction": 0.0, "rewarm_steps": 1}
    sections: dict[str, dict[str, Any]] = {
        "run": {
            "name": _run_name(),
            "min_peers": peers,
            "total_tokens": rounds * peers * 4,
        },
        "model": {"kind": "factory", "factory": "shoal_toy:task", "ffn": values, "layers": 1},
        "data": {"source": "stdlib", "sequence_length": 4},
        "train": {"batch": 1, "steps": 1, "inner": "sgd", "lr": 1.0, "schedule": "constant", **still},
        "outer": {"lr": 0.7, "momentum": 0.9},
        "evaluation": {"every": 1000, "samples": 4},
    }
    return RunSpec.of(**{name: {**sections.get(name, {}), **tables.get(name, {})} for name in {*sections, *tables}})


def finish(swarm: LocalSwarm) -> dict[str, Path]:
    """Wait until every peer has left by itself; the model that each wrote."""
    swarm.wait_for(lambda: all(peer.exit_code is not None for peer in swarm.peers.values()), RUN_S, "every peer to leave")
    assert {name: peer.exit_code for name, peer in swarm.peers.items()} == dict.fromkeys(swarm.peers, 0)
    return {name: next(swarm.state_of(name).rglob("model.safetensors")) for name in swarm.peers}


def same_models(models: dict[str, Path]) -> bool:
    """Whether all peers ended with the same bytes in every tensor."""
    return len({file_digest(path) for path in models.values()}) == 1


def journal_of(swarm: LocalSwarm) -> list[Record]:
    """Stop the coordinator and read what it remembers."""
    assert swarm.coordinator is not None
    swarm.coordinator.ask_to_leave()
    assert swarm.coordinator.wait(10) == 0
    journal = Journal.open(journal_url(RunDirectory(swarm.run_directory).journal))
    try:
        return list(journal.records())
    finally:
        journal.close()


def status(swarm: LocalSwarm) -> Status:
    reply = swarm.ask(GetStatus())
    assert isinstance(reply, Status)
    return reply


def working(swarm: LocalSwarm) -> set[str]:
    """Names of members with committed work."""
    return {peer.name for peer in members(swarm) if peer.committed_tokens > 0}


def members(swarm: LocalSwarm) -> tuple[PeerView, ...]:
    reply = swarm.ask(GetPeers())
    assert isinstance(reply, Peers)
    return reply.peers
