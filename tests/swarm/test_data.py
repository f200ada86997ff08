"""A run on token files that its peers fetch themselves, from a source that fails at first."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from shoal.protocol.spec import RunSpec
from tests.peer.test_sources import Source, status
from tests.swarm.toyswarm import Swarms, finish, same_models

pytestmark = pytest.mark.slow

LENGTH, BATCH, STEPS, EPOCHS = 8, 2, 4, 2
SAMPLES = 128


def test_peers_fetch_tokens_wait_for_their_source_and_end_with_the_last_epoch(swarms: Swarms) -> None:
    numbers = np.random.default_rng(5).integers(0, 50, SAMPLES * LENGTH + 1, dtype="<u2")
    source = Source()
    source.content = numbers.tobytes()
    source.script = [status(503), lambda request: source.serve(request, stop=100)]
    file = {"path": source.url, "sha256": hashlib.sha256(source.content).hexdigest(), "size": len(source.content)}
    try:
        spec = RunSpec.of(
            run={"name": "tokens", "min_peers": 2, "total_tokens": 1 << 40},
            model={"vocab": 50, "width": 8, "layers": 1, "heads": 1, "kv_heads": 1},
            data={
                "source": "files",
                "files": [file],
                "format": "uint16",
                "epochs": EPOCHS,
                "sequence_length": LENGTH,
                "heldout_fraction": 0.0,
            },
            train={"batch": BATCH, "steps": STEPS, "schedule": "wsd"},
            codec={"error_feedback": True},
        )
        swarm = swarms(spec)
        swarm.start_coordinator()
        for name in ("anna", "ben"):
            swarm.add_peer(name)
        models = finish(swarm)
    finally:
        source.close()
    assert same_models(models)
    assert spec.end_tokens == EPOCHS * SAMPLES * LENGTH
    assert len(source.ranges) == 4
    assert source.ranges.count("bytes=100-") == 1
    told = [(swarm.directory / f"{name}.log").read_text() for name in models]
    assert any("503" in log and "trying again in 1 s" in log for log in told)
    assert all("figures are bits per token of token files" in log for log in told)
    assert all("training bits per token" in log and "bits per byte" not in log for log in told)
