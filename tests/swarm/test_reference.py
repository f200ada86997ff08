"""A real run of four processes against the same run in one process: the same bytes after every version.

The one-process run is `optim.diloco.Swarm`, the specification in executable form; it has a loop of its own,
`InnerTraining.steps`, and is told by the journal only what a coordinator decides: who is a member, which samples are whose, who is
included.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shoal.compression.codec import codec
from shoal.coordinator.records import FingerprintAgreed, Record, RoundCommitted, RoundOpened, SessionOpened
from shoal.optim.diloco import Swarm, Train, train_in_batches
from shoal.optim.layout import ParameterLayout
from shoal.peer.data import Corpus, open_corpus, sample_at
from shoal.peer.evaluate import evaluate
from shoal.peer.sources import Places
from shoal.peer.task import Task, build_task
from shoal.peer.trainer import inner_training
from shoal.protocol.spec import RunSpec
from tests.swarm.toyswarm import Swarms, finish, journal_of, toy_spec

pytestmark = pytest.mark.slow

PEERS, ROUNDS, STEPS, BATCH, LENGTH = 4, 6, 6, 2, 64
CPU = torch.device("cpu")
UNHURRIED = {"heartbeat_s": 30.0, "lost_after_s": 90.0}
"""Nobody is asked for what it has before its last step, however busy the machine is."""


def decoder_spec(name: str) -> RunSpec:
    """A small real decoder on the standard library's sources."""
    run = {"min_peers": PEERS, "total_tokens": ROUNDS * PEERS * STEPS * BATCH * LENGTH, "seed": 7}
    return toy_spec(
        1,
        run=run,
        model={"kind": "decoder", "factory": "", "width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 0},
        data={"sequence_length": LENGTH},
        train={
            "batch": BATCH,
            "steps": STEPS,
            "inner": "adamw",
            "lr": 4e-3,
            "beta1": 0.9,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
            "warmup_fraction": 0.05,
            "schedule": "cosine",
            "rewarm_steps": 0,
        },
        outer={"lr": 0.7, "momentum": 0.6},
        codec={"send": name, "return": name},
        evaluation={"every": 3, "samples": 64},
        timing=UNHURRIED,
    )


def one_process(spec: RunSpec, records: list[Record]) -> tuple[dict[int, bytes], Tensor]:
    """Fingerprint of every version, and the last parameters, computed here from the same data, seeds and leases."""
    torch.set_num_threads(1)  # as each trainer of the swarm: sums inside a matrix product depend on it
    corpus = open_corpus(spec, Places())
    origin = build_task(spec)
    layout = ParameterLayout.of(origin.module)
    names = {record.session: record.peer for record in records if isinstance(record, SessionOpened)}
    swarm = Swarm(
        layout,
        layout.gather(origin.module),
        codec(spec.codec.send, spec.codec.block),
        codec(spec.codec.return_, spec.codec.block),
        sample_tokens=LENGTH,
        lr=spec.outer.lr,
        mu=spec.outer.momentum,
    )
    for peer in names.values():
        swarm.join(peer, peer_training(spec, corpus, layout))
    roots = {0: swarm.root()}
    opened = [record for record in records if isinstance(record, RoundOpened)]
    committed = {record.round: record for record in records if isinstance(record, RoundCommitted)}
    for record in opened:
        leases = {names[grant.session]: [(span.start, span.stop) for span in grant.spans] for grant in record.grants}
        outcome = committed[record.round]
        swarm.round(leases, quota=STEPS * BATCH, order=[c.peer for c in outcome.contributions], round=record.round)
        roots[swarm.version] = swarm.root()
    return roots, swarm.theta


def peer_training(spec: RunSpec, corpus: Corpus, layout: ParameterLayout) -> Train:
    """A virtual peer's inner phase: its own module and moments."""
    task: Task = build_task(spec)
    training = inner_training(task.module, spec)

    def loss_of(_: nn.Module, positions: tuple[int, ...]) -> Tensor:
        text = corpus.training
        loss, targets = task.loss(text.windows([sample_at(p, text.samples, spec.run.seed) for p in positions]))
        return loss / targets

    return train_in_batches(training, layout, loss_of, batch=BATCH, sample_tokens=LENGTH)


def bits_per_byte(spec: RunSpec, theta: Tensor) -> float:
    task = build_task(spec)
    ParameterLayout.of(task.module).scatter(theta, task.module)
    return evaluate(task, open_corpus(spec, Places()).heldout, 256, 16, CPU).bits_per_byte


def real_run(swarms: Swarms, spec: RunSpec) -> list[Record]:
    swarm = swarms(spec)
    swarm.start_coordinator()
    for name in ("anna", "ben", "carl", "dora"):
        swarm.add_peer(name)
    finish(swarm)
    return journal_of(swarm)


@pytest.mark.timeout(600)
def test_four_processes_end_with_the_bytes_of_the_same_run_in_one_process(swarms: Swarms) -> None:
    threads = torch.get_num_threads()
    ends = {}
    try:
        for name in ("raw", "int8"):
            spec = decoder_spec(name)
            records = real_run(swarms, spec)
            assert sum(isinstance(record, RoundCommitted) for record in records) == ROUNDS
            agreed = {record.version: record.root for record in records if isinstance(record, FingerprintAgreed)}
            roots, theta = one_process(spec, records)
            assert agreed.keys() >= set(range(1, ROUNDS + 1))
            assert {version: root.hex()[:16] for version, root in agreed.items()} == {
                version: roots[version].hex()[:16] for version in agreed
            }
            ends[name] = bits_per_byte(spec, theta)
    finally:
        torch.set_num_threads(threads)
    assert ends["int8"] == pytest.approx(ends["raw"], rel=0.005)
