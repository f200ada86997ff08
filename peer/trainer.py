"""The trainer: the process that computes. This file is the whole story, top to bottom:

    load      local := shared - pending        shared state, without what this peer did and nobody has committed yet
    step      forward, backward, clip, AdamW   H times, at a rate that depends on committed progress only
    publish   delta := base - local            into the vault, whole or not at all (both by the run's strategy)
    wait      daemon and peers average the deltas and move the shared state; then again

Rule 1: nothing that is not finite is ever published. A loss, gradient or delta that is not ends the peer's round with weight 0:
local progress and moments are dropped and the next round starts from the shared state, so that a poisoned batch does not become
a poisoned model. Rule 2: parameters are fp32, and neither micro-batches nor the device's memory change the maths of the run's
batch: a step that runs out of memory may have moved some parameters and not others, so it ends the round in the same way, and
the next one is tried with half the micro-batch.

There is no network here. Commands come from the daemon over `attach.Link`, tensors lie in the vault, and when the daemon dies
this process ends. Neighbours: `attach` (the conversation), `vault` (shared memory), `task` (the model), `data` (which samples).

    python -m shoal.peer.trainer --socket PATH       what the daemon runs
    shoal.peer.trainer.attach(PATH, task=my_task)    the same from somebody's own script
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import psutil
import torch

from shoal.optim.diloco import DiLoCo
from shoal.optim.inner import InnerTraining, inner_optimizer
from shoal.optim.layout import ParameterLayout
from shoal.optim.likeness import norm_of
from shoal.optim.schedule import Schedule
from shoal.optim.strategy import Strategy
from shoal.peer.attach import (
    Attached,
    Built,
    Configure,
    Crashed,
    DaemonGone,
    Failed,
    Link,
    ModelWritten,
    SmallerBatch,
    Stop,
    Told,
    TrainerError,
    TrainerSettings,
    TurnedAway,
    UseVault,
)
from shoal.peer.data import Corpus, DataAwayError, batches, open_corpus
from shoal.peer.device import choose_device, free_memory, is_out_of_memory
from shoal.peer.evaluate import evaluate
from shoal.peer.events import (
    BuildState,
    EvaluateState,
    EvaluationDone,
    Export,
    OriginReady,
    Progressed,
    Published,
    Relabel,
    Train,
    WrapUp,
)
from shoal.peer.export import Voice, export, sample_text
from shoal.peer.sources import Places
from shoal.peer.task import Task, build_task
from shoal.peer.vault import Vault
from shoal.protocol.errors import LocalProtocolError, ShoalError
from shoal.protocol.messages import StopRule
from shoal.protocol.spec import RunSpec

MakeTask = Callable[[RunSpec], Task]

PROGRESS_EVERY_S = 0.5
STATE_PATIENCE_S = 30.0
"""How long a load waits for the daemon to finish changing the shared state."""
AWAY_TOLD_EVERY_S = 60.0
"""How often the volunteer hears that training data are away."""
LOOK_AGAIN_S = 0.5
"""Pause before data that are away are looked for again."""
SHORT_ROUNDS = 3
"""Rounds in a row for which memory did not even do for single samples, after which this trainer gives up."""


class Trainer:
    """Model, inner optimizer and data of one peer, and what its daemon can ask of them."""

    def __init__(
        self,
        spec: RunSpec,
        settings: TrainerSettings,
        make_task: MakeTask,
        corpus: Corpus,
        device: torch.device,
        strategy: Strategy | None = None,
    ) -> None:
        self.spec, self.settings, self.make_task, self.corpus, self.device = spec, settings, make_task, corpus, device
        self.strategy = strategy or DiLoCo()
        self.task = make_task(spec)
        self.task.module.to(device)
        self.layout = ParameterLayout.of(self.task.module)
        self.inner = inner_training(self.task.module, spec)
        self.micro_batch = settings.micro_batch or spec.train.batch
        self.base = torch.empty(self.layout.values)
        self.steps = 0
        self.short_rounds = 0
        """Rounds in a row that single samples were too large for."""

    # --- one round --------------------------------------------------------------------------------------------------------------

    def train(self, order: Train, link: Link, vault: Vault) -> Published:
        """Train the order's samples, or as many as the daemon leaves time for, and publish the pseudo-gradient."""
        self.load(vault, order.base)
        score = Score(self.spec.data.sequence_length, time.perf_counter())
        stream = batches(self.corpus.training, order.lease, order.trained, order.limit, self.spec.train.batch, self.spec.run.seed)
        trouble = ""
        for rows in stream:
            order, samples = self.read(rows, link, order, score)
            if samples is None:
                break
            rate = self.rate(order, score.samples + len(samples))  # the step being taken included
            try:
                loss, norm = self.step(samples, rate)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                trouble = self.too_large(len(samples), error)
                break  # what the step had in hand is only free once the exception is gone
            if not math.isfinite(loss) or not math.isfinite(norm):
                return self.give_up(order, vault, score, f"loss {loss}, gradient norm {norm} in step {score.steps + 1}")
            score.add(len(samples), loss)
            if score.due(now := time.perf_counter()):
                score.told = now
                link.send(Progressed(self.steps, score.loss, score.tokens_per_s, order.trained + score.samples))

        order, _ = listen(link, order)  # the round may have got another name during the last step
        if trouble:
            self.task.module.zero_grad(set_to_none=True)
            free_memory(self.device)
            link.send(SmallerBatch(self.micro_batch))
            return self.give_up(order, vault, score, trouble)
        self.short_rounds = 0
        delta = self.layout.gather(self.task.module, vault.begin_publish())
        self.strategy.publish(self.base, delta, delta)
        if trouble := self.layout.describe_non_finite(delta):
            return self.give_up(order, vault, score, trouble)
        trained = order.trained + score.samples
        vault.publish(trained)
        weight = trained * self.spec.data.sequence_length
        return Published(order.round, trained, weight, score.steps, score.loss, score.seconds, norm=norm_of(delta))

    def load(self, vault: Vault, version: int) -> None:
        """local := shared - pending. The base is kept, so that publishing does not depend on what the vault holds by then."""
        deadline = time.monotonic() + STATE_PATIENCE_S
        local = vault.begin_publish()  # free until something is published
        while vault.read_theta(version, self.base) is None or vault.read_local(version, local) is None:
            if time.monotonic() > deadline or (not vault.changing and vault.version != version):
                raise LocalProtocolError(f"told to train from version {version}, but the vault holds version {vault.version}")
            time.sleep(0.005)
        self.layout.scatter(local, self.task.module)

    def read(self, rows: list[int], link: Link, order: Train, score: Score) -> tuple[Train, torch.Tensor | None]:
        """These samples, as soon as they can be read; None when the round's time is over, or the daemon says to stop, first. The
        order is under the label that it has by then."""
        told_at = -math.inf
        while True:
            order, wrap_up = listen(link, order)
            if wrap_up or (order.stop is StopRule.TIME and not score.another_step_fits(order.seconds)):
                return order, None
            try:
                samples = self.corpus.training.windows(rows)
            except DataAwayError as error:
                if time.monotonic() >= told_at + AWAY_TOLD_EVERY_S:
                    told_at = time.monotonic()
                    link.send(Told(f"training waits for its data: {error}"))
                if score.due(now := time.perf_counter()):  # it does not hang
                    score.told = now
                    link.send(Progressed(self.steps, score.loss, score.tokens_per_s, order.trained + score.samples))
                time.sleep(LOOK_AGAIN_S)
                continue
            if told_at > -math.inf:
                link.send(Told("the data are back: training goes on"))
            return order, samples

    def rate(self, order: Train, own: int) -> float:
        """Learning rate of the step after which this peer has trained `own` samples of its quota in this round."""
        length = self.spec.data.sequence_length
        return self.inner.rate(own * length, order.quota * length, order.committed_tokens, order.expected_tokens)

    def step(self, samples: torch.Tensor, rate: float) -> tuple[float, float]:
        """One inner step on the run's batch (batch, length + 1). Returns the mean loss and the gradient's norm before clipping;
        nothing moved if either is not finite."""
        try:
            found = self.inner.step(lambda: self.batch_loss(samples), rate)
        except NoTargets:
            return 0.0, 0.0
        self.steps += 1
        return found

    def too_large(self, samples: int, error: Exception) -> str:
        """The memory did not do for a step: halve the micro-batch. Returns what to say about this round. Raises TrainerError when
        single samples were too large for several rounds."""
        tried = min(self.micro_batch, samples)
        if tried > 1:
            self.micro_batch = tried // 2
            return f"out of memory with {tried} samples at a time; the next round is tried with {self.micro_batch}"
        self.short_rounds += 1
        if self.short_rounds == SHORT_ROUNDS:
            reason = f"the memory of {self.device} does not do for a single sample: {str(error).splitlines()[0]:.200}"
            raise TrainerError(reason, "end other programs that use it, or take part with --device cpu") from error
        return "out of memory with a single sample; the next round is tried again"

    def batch_loss(self, samples: torch.Tensor) -> torch.Tensor:
        """Mean loss over all targets of the batch. All micro-batches but the last have left their gradients already, rightly
        scaled."""
        *earlier, last = torch.split(samples.to(self.device), self.micro_batch)
        done, targets = torch.zeros((), device=self.device), 0
        for micro in earlier:
            loss, some = self.task.loss(micro)
            loss.backward()  # type: ignore[no-untyped-call]
            done, targets = done + loss.detach(), targets + some
        loss, some = self.task.loss(last)
        targets += some
        if not targets:
            raise NoTargets
        if earlier:
            for parameter in self.task.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(targets)
        return (loss + done) / targets

    def give_up(self, order: Train, vault: Vault, score: Score, trouble: str) -> Published:
        """Drop local progress, pending included, and the moments; publish zeros of weight 0 and say why."""
        vault.begin_publish().zero_()
        vault.publish(0)
        self.inner = inner_training(self.task.module, self.spec)
        return Published(order.round, 0, 0, score.steps, 0.0, score.seconds, trouble)

    # --- between rounds -----------------------------------------------------------------------------------------------------------

    def build_origin(self, vault: Vault) -> OriginReady:
        """Write version 0, the seeded initialisation, into the vault."""
        self.layout.gather(self.make_task(self.spec).module, vault.begin_origin())
        vault.finish_origin()
        return OriginReady(vault.root())

    def evaluate(self, vault: Vault, version: int) -> EvaluationDone:
        """Held-out bits per byte of the shared state at `version`, if the vault still has it."""
        if vault.read_theta(version, self.base) is None:
            return EvaluationDone(version, 0.0, 0)
        self.layout.scatter(self.base, self.task.module)
        samples, unit = self.spec.evaluation.samples, self.corpus.bytes_per_token
        try:
            found = evaluate(self.task, self.corpus.heldout, samples, self.micro_batch, self.device, unit)
        except DataAwayError as error:
            print(f"trainer: version {version} is not evaluated: {error}", file=sys.stderr)
            return EvaluationDone(version, 0.0, 0)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.micro_batch = max(1, min(self.micro_batch, self.spec.train.batch) // 2)
            return EvaluationDone(version, 0.0, 0)
        return EvaluationDone(version, found.bits_per_byte if found.tokens else 0.0, found.tokens)

    def export(self, vault: Vault, version: int) -> ModelWritten:
        """Write the shared state at `version` as a model."""
        if vault.read_theta(version, self.base) is None:
            raise LocalProtocolError(f"told to export version {version}, but the vault holds version {vault.version}")
        self.layout.scatter(self.base, self.task.module)
        corpus = self.corpus
        where = export(self.task, Path(self.settings.export_dir), version, corpus.tokenizer_file)
        voice = Voice(corpus.tokenizer, corpus.is_text)
        return ModelWritten(str(where), sample_text(self.task, self.device, self.spec.data.sequence_length, voice=voice))


@dataclass
class Score:
    """What a round amounts to so far."""

    sample_tokens: int
    started: float
    steps: int = 0
    samples: int = 0
    total_loss: float = 0.0
    told: float = -math.inf
    """When the daemon was told last."""

    def add(self, samples: int, loss: float) -> None:
        self.steps += 1
        self.samples += samples
        self.total_loss += samples * loss

    def due(self, now: float) -> bool:
        """Whether it is time to tell the daemon again."""
        return now - self.told >= PROGRESS_EVERY_S

    def another_step_fits(self, seconds: float) -> bool:
        """Whether a step as long as those so far would end in time; there is always time for the first."""
        return not self.steps or self.seconds * (self.steps + 1) / self.steps <= seconds

    @property
    def loss(self) -> float:
        """Mean over the round's samples, nats per token."""
        return self.total_loss / self.samples if self.samples else 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def tokens_per_s(self) -> float:
        return self.samples * self.sample_tokens / max(self.seconds, 1e-9)


class NoTargets(Exception):
    """A batch without a single target: it contributes nothing."""


class Stopped(Exception):
    """The daemon said stop."""


class Superseded(Exception):
    """The daemon gave another order while this one was being carried out: what it began with is void."""


def listen(link: Link, order: Train) -> tuple[Train, bool]:
    """What the daemon said during the last step: the order, under another label perhaps, and whether to stop here. Never waits.

    Raises Superseded for a new order, which stays the next thing to be heard, and Stopped.
    """
    wrap_up = False
    while (message := link.peek()) is not None:
        match message:
            case Relabel(round_id, committed, expected):
                order = dataclasses.replace(order, round=round_id, committed_tokens=committed, expected_tokens=expected)
            case WrapUp():
                wrap_up = True
            case Stop():
                raise Stopped
            case Train():
                raise Superseded
            case _:
                return order, wrap_up  # its turn comes after this round
        link.receive()
    return order, wrap_up


def inner_training(module: torch.nn.Module, spec: RunSpec) -> InnerTraining:
    """The run's inner optimizer, without moments, and its learning rate over the run's tokens."""
    train = spec.train
    betas = (train.beta1, train.beta2)
    optimizer = inner_optimizer(module, train.inner, betas=betas, eps=train.eps, weight_decay=train.weight_decay)
    fractions = (train.warmup_fraction, train.final_lr_fraction)
    schedule = Schedule(train.lr, spec.end_tokens, *fractions, train.schedule, train.decay_fraction, train.decay_shape)
    return InnerTraining(module, optimizer, schedule, train.clip_norm, train.rewarm)


# === start and end of the process ===============================================================================================


def serve(link: Link, make_task: MakeTask | None = None) -> None:
    """Do what the daemon says until it says stop. `make_task` replaces the model that the run spec names."""
    configure = link.expect(Configure)
    spec, settings = RunSpec.from_json(configure.spec.encode()), configure.settings
    device, note = choose_device(settings.device)
    strategy = DiLoCo()
    torch.set_num_threads(settings.threads)
    folder, cache = (Path(place) if place else None for place in (settings.data_dir, settings.cache_dir))
    tell, reach, cap = (lambda sentence: link.send(Told(sentence))), settings.data_reach, settings.data_bytes_s
    corpus = open_corpus(spec, Places(folder, cache, tell, reach, cap_bytes_s=cap))
    if spec.data.format != "text":
        note = f"{note}; figures are bits per token of token files".removeprefix("; ")
    trainer = Trainer(spec, settings, make_task or (lambda spec: build_task(spec, settings.allowed)), corpus, device, strategy)
    link.send(Built(trainer.layout.to_json(), str(device), settings.threads, corpus.fingerprint, note))
    vault = Vault.attach(Path(link.expect(UseVault).directory), strategy)
    link.send(Attached())
    while True:
        match link.receive():
            case Train() as order:
                with contextlib.suppress(Superseded):
                    link.send(trainer.train(order, link, vault))
            case BuildState():
                link.send(trainer.build_origin(vault))
            case EvaluateState(version):
                link.send(trainer.evaluate(vault, version))
            case Export(version):
                link.send(trainer.export(vault, version))
            case Relabel() | WrapUp():
                pass  # crossed our Published on the way
            case Stop():
                return
            case Configure() | UseVault() | TurnedAway() as unexpected:
                raise LocalProtocolError(f"the daemon said {type(unexpected).__name__} too late")
            case never:
                assert_never(never)


def attach(socket_path: str, task: MakeTask | None = None) -> None:
    """Train for the daemon that listens on `socket_path`, with the run's own model or one of yours, until the daemon says stop.

    Raises DaemonGone when the daemon ends first, DaemonOccupied when it has another trainer.
    """
    link = Link(socket_path)
    try:
        run(link, task)
    finally:
        link.close()


def run(link: Link, make_task: MakeTask | None = None) -> None:
    """`serve`, and tell the daemon what went wrong. The one supervisor of this process: whatever it catches is reported and
    raised."""
    try:
        serve(link, make_task)
    except Stopped:
        return
    except DaemonGone:
        raise
    except LocalProtocolError as error:
        link.send(Crashed(str(error)))
        raise
    except ShoalError as error:
        link.send(Failed(error.message, error.fix))
        raise
    except Exception as error:
        link.send(Crashed(f"{type(error).__name__}: {error}".splitlines()[0]))
        raise


def stand_back(nice: int) -> None:
    """Let other programs of this machine go first: 0 not at all, 19 as much as there is."""
    if sys.platform == "win32":
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if nice < 10 else psutil.IDLE_PRIORITY_CLASS)
    else:
        os.nice(nice)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m shoal.peer.trainer", description="The compute process of a shoal peer.")
    parser.add_argument("--socket", required=True, help="where the daemon listens")
    parser.add_argument("--nice", type=int, default=0, help="how much this process stands back for others")
    arguments = parser.parse_args()
    if arguments.nice:
        stand_back(arguments.nice)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which decides what it means
    link = Link(arguments.socket, on_lost=lambda: os._exit(0))  # even in the middle of an endless step
    try:
        run(link)
    except DaemonGone:
        return 0
    except ShoalError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
