"""One round of the trainer: what it trains, at what rate, and what is in the vault afterwards, whatever goes wrong on the way."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.compression.codec import codec
from shoal.optim.diloco import DiLoCo
from shoal.optim.inner import InnerTraining, inner_optimizer
from shoal.optim.schedule import Schedule
from shoal.peer import trainer as trainer_module
from shoal.peer.attach import Link, SmallerBatch, Stop, Told, ToTrainer, TrainerError, TrainerSettings
from shoal.peer.data import Corpus, DataAwayError, Text, sample_at
from shoal.peer.events import EvaluateState, Progressed, Published, Relabel, Train, WrapUp
from shoal.peer.task import Task
from shoal.peer.trainer import PROGRESS_EVERY_S, SHORT_ROUNDS, Score, Stopped, Superseded, Trainer
from shoal.peer.vault import Vault
from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.messages import Span, StopRule
from shoal.protocol.spec import RunSpec

LENGTH, BATCH, H = 4, 4, 5
TOKENS = BATCH * H * LENGTH
"""Of one round."""
CPU = torch.device("cpu")


# --- fakes ----------------------------------------------------------------------------------------------------------------------


class Bigram(nn.Module):
    """A table of logits, a parameter that never has a gradient, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(256, 256, bias=False)
        self.norm = nn.LayerNorm(256)
        self.unused = nn.Parameter(torch.linspace(1, 2, 7))
        self.frozen = nn.Parameter(torch.linspace(3, 4, 5), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.table.weight[tokens]))


@dataclass
class FakeTask:
    """A bigram model whose loss can be told to go wrong."""

    module: nn.Module = field(default_factory=Bigram)
    seen: list[Tensor] = field(default_factory=list)
    """Samples of every forward pass."""
    loss_is_nan_at: int = -1
    gradient_is_nan_at: int = -1
    out_of_memory_above: int = 1_000_000
    """Samples in one forward pass."""
    first_target: int = 0
    """Bytes below are no targets."""

    def logits(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.module(tokens))

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        if len(samples) > self.out_of_memory_above:
            raise torch.OutOfMemoryError("pretended")
        call = len(self.seen)
        self.seen.append(samples)
        targets = samples[:, 1:].reshape(-1)
        losses = F.cross_entropy(self.logits(samples[:, :-1]).reshape(len(targets), -1), targets, reduction="none")
        total = losses[targets >= self.first_target].sum()
        if call == self.loss_is_nan_at:
            total = total * math.nan
        if call == self.gradient_is_nan_at:
            total.register_hook(lambda gradient: gradient * math.nan)
        return total, int((targets >= self.first_target).sum())

    def config(self) -> dict[str, object]:
        return {}


class FakeLink:
    """Says one prepared list of messages before each step, and keeps what the trainer sends."""

    def __init__(self, *before_steps: list[ToTrainer]) -> None:
        self.script = deque(before_steps)
        self.inbox: deque[ToTrainer] = deque()
        self.sent: list[object] = []
        self.polls = 0

    def peek(self) -> ToTrainer | None:
        if not self.inbox and self.script:
            self.inbox.extend(self.script.popleft())
        return self.inbox[0] if self.inbox else None

    def receive(self) -> ToTrainer:
        return self.inbox.popleft()

    def send(self, message: object) -> None:
        self.sent.append(message)


def quiet(*before_steps: list[ToTrainer]) -> Link:
    return cast(Link, FakeLink(*before_steps))


def spec(**train: object) -> RunSpec:
    return RunSpec.of(
        run={"total_tokens": 40 * TOKENS, "seed": 3},
        data={"sequence_length": LENGTH},
        train={"batch": BATCH, "steps": H, "lr": 0.05, **train},
        evaluation={"samples": 6},
    )


def corpus() -> Corpus:
    bytes_ = np.random.default_rng(7).integers(0, 256, 4001, dtype=np.uint8)
    return Corpus(Text([bytes_], LENGTH), Text([bytes_[:401]], LENGTH), b"f" * 32)


@dataclass
class Bench:
    """A trainer and its vault at version 0."""

    trainer: Trainer
    vault: Vault

    @property
    def task(self) -> FakeTask:
        return cast(FakeTask, self.trainer.task)

    def train(self, order: Train | None = None, link: Link | None = None) -> Published:
        return self.trainer.train(order or ORDER, link or quiet(), self.vault)

    def local(self) -> Tensor:
        return self.trainer.layout.gather(self.trainer.task.module)


ORDER = Train(
    round=9,
    base=0,
    lease=(Span(100, 110), Span(300, 350)),
    trained=0,
    quota=BATCH * H,
    committed_tokens=0,
    expected_tokens=2 * TOKENS,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Vault] = []

    def make(settings: TrainerSettings | None = None, run: RunSpec | None = None, **task: object) -> Bench:
        def make_task(_: RunSpec) -> Task:
            torch.manual_seed(11)
            return FakeTask(**task)  # type: ignore[arg-type]

        trainer = Trainer(run or spec(), settings or TrainerSettings(), make_task, corpus(), CPU)
        layout = trainer.layout
        directory = tmp_path / f"vault{len(made)}"
        made.append(Vault.create(directory, "run", layout.values, layout.hash, layout.partition(codec("int8", 1024))))
        trainer.build_origin(made[-1])
        return Bench(trainer, made[-1])

    yield make
    for vault in made:
        vault.close(remove=True)


Make = Callable[..., Bench]


# --- a good round ---------------------------------------------------------------------------------------------------------------


def test_the_published_delta_is_base_minus_local_and_its_weight_the_tokens_behind_it(bench: Make) -> None:
    one = bench()
    done = one.train()
    assert (done.round, done.trained, done.weight, done.steps, done.note) == (9, BATCH * H, TOKENS, H, "")
    assert one.vault.trained == BATCH * H
    assert torch.equal(one.vault.pending, one.vault.theta - one.local())
    assert float(one.vault.pending.abs().max()) > 0.01


def test_the_leased_samples_are_trained_in_order_and_no_others(bench: Make) -> None:
    one = bench()
    one.train()
    found = torch.cat(one.task.seen)
    source = one.trainer.corpus.training
    expected = [sample_at(position, source.samples, 3) for position in [*range(100, 110), *range(300, 310)]]
    assert torch.equal(found, source.windows(expected))


def test_the_norm_of_the_delta_is_told_with_it(bench: Make) -> None:
    one = bench()
    assert one.train().norm == pytest.approx(float(one.vault.pending.double().square().sum().sqrt()), rel=1e-4)


@pytest.mark.parametrize(("seconds", "steps"), [(1e-6, 1), (1000.0, 15)])
def test_with_time_as_many_steps_are_done_as_fit_and_one_always_does(bench: Make, seconds: float, steps: int) -> None:
    done = bench().train(replace(ORDER, stop=StopRule.TIME, seconds=seconds))
    assert (done.steps, done.trained) == (steps, BATCH * steps), "the lease holds 60 samples, the quota is 20"


def test_a_step_fits_if_one_as_long_as_those_before_would_end_in_time() -> None:
    score = Score(LENGTH, time.perf_counter() - 9.0)
    assert score.another_step_fits(0.001)
    for _ in range(3):
        score.add(BATCH, 2.0)
    assert score.another_step_fits(12.5)
    assert not score.another_step_fits(11.9)


def test_with_samples_training_goes_on_until_it_is_wrapped_up(bench: Make) -> None:
    order = replace(ORDER, stop=StopRule.SAMPLES, trained=4)
    link = FakeLink([], [], [], [], [], [], [], [WrapUp()])
    done = bench().train(order, cast(Link, link))
    assert (done.steps, done.trained) == (7, 4 + 7 * BATCH)
    told = [sent for sent in link.sent if isinstance(sent, Progressed)]
    assert told[0].samples == 4 + BATCH
    assert bench().train(order).trained == 60


class ComesAndGoes:
    """A text that is away for a while."""

    def __init__(self, inner: Text, away: int) -> None:
        self.inner, self.away, self.length, self.samples = inner, away, inner.length, inner.samples

    def windows(self, samples: list[int]) -> Tensor:
        if self.away:
            self.away -= 1
            raise DataAwayError("/data/a.txt: cannot be read (Stale file handle)", "bring it back")
        return self.inner.windows(samples)


def test_data_that_are_away_are_waited_for_and_the_same_samples_trained(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_AGAIN_S", 0.001)
    one, other, link = bench(), bench(), FakeLink()
    source = one.trainer.corpus.training
    monkeypatch.setattr(one.trainer, "corpus", replace(one.trainer.corpus, training=cast(Text, ComesAndGoes(source, 5))))
    done = one.train(link=cast(Link, link))
    other.train()
    assert (done.trained, done.note) == (BATCH * H, "")
    assert torch.equal(one.vault.pending, other.vault.pending)
    assert [message.sentence for message in link.sent if isinstance(message, Told)] == [
        "training waits for its data: /data/a.txt: cannot be read (Stale file handle) — bring it back",
        "the data are back: training goes on",
    ]


def test_who_waits_for_data_wraps_up_when_told(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_AGAIN_S", 0.001)
    one = bench()
    source = one.trainer.corpus.training
    monkeypatch.setattr(one.trainer, "corpus", replace(one.trainer.corpus, training=cast(Text, ComesAndGoes(source, 10**9))))
    done = one.train(link=quiet([], [], [], [WrapUp()]))
    assert (done.trained, done.weight) == (0, 0)


def test_held_out_data_that_are_away_are_no_evaluation_and_no_failure(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench()
    away = cast(Text, ComesAndGoes(one.trainer.corpus.heldout, 1))
    monkeypatch.setattr(one.trainer, "corpus", replace(one.trainer.corpus, heldout=away))
    assert one.trainer.evaluate(one.vault, 0).tokens == 0
    assert one.trainer.evaluate(one.vault, 0).tokens > 0


def test_pending_work_is_loaded_and_the_lease_goes_on_behind_it(bench: Make) -> None:
    one = bench()
    one.train()
    after_first = one.local()
    done = one.train(replace(ORDER, round=10, trained=BATCH * H))
    assert (done.round, done.trained, done.weight) == (10, 2 * BATCH * H, 2 * TOKENS)
    positions = range(310, 330)
    expected = [sample_at(position, 1000, 3) for position in positions]
    assert torch.equal(torch.cat(one.task.seen[H:]), one.trainer.corpus.training.windows(expected))
    torch.testing.assert_close(one.trainer.base, one.vault.theta)
    torch.testing.assert_close(one.vault.theta - one.vault.pending, one.local())
    assert not torch.equal(after_first, one.local())


def test_a_round_equals_the_reference_bit_for_bit(bench: Make) -> None:
    one = bench()
    run = one.trainer.spec.train
    torch.manual_seed(11)
    task = FakeTask()
    schedule = Schedule(run.lr, 40 * TOKENS, run.warmup_fraction, run.final_lr_fraction, run.schedule)
    optimizer = inner_optimizer(task.module, betas=(run.beta1, run.beta2), eps=run.eps, weight_decay=run.weight_decay)
    reference = InnerTraining(task.module, optimizer, schedule, run.clip_norm, run.rewarm)
    for committed, round_id in ((0, 9), (3 * TOKENS, 10)):
        one.vault.drop_pending()
        one.train(replace(ORDER, round=round_id, committed_tokens=committed))
        one.trainer.layout.scatter(one.vault.theta, task.module)
        batches = [
            (len(samples), lambda samples=samples: task.loss(samples)[0] / (len(samples) * LENGTH))
            for samples in one.task.seen[-H:]
        ]
        for _ in reference.steps(batches, sample_tokens=LENGTH, quota=BATCH * H, committed=committed, expected=2 * TOKENS):
            pass
        assert torch.equal(one.trainer.layout.gather(task.module), one.local())


def test_the_same_order_gives_the_same_bytes(bench: Make) -> None:
    first, second = bench(), bench()
    for round_id in (9, 10):
        first.train(replace(ORDER, round=round_id))
        second.train(replace(ORDER, round=round_id))
    assert torch.equal(first.vault.pending, second.vault.pending)


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_micro_batches_do_not_change_the_maths(bench: Make, micro: int) -> None:
    whole, cut = bench(first_target=90), bench(TrainerSettings(micro_batch=micro), first_target=90)
    done, same = whole.train(), cut.train()
    assert max(len(samples) for samples in cut.task.seen) == micro
    assert len(cut.task.seen) > len(whole.task.seen)
    assert same.loss == pytest.approx(done.loss, rel=1e-5)
    torch.testing.assert_close(cut.vault.pending, whole.vault.pending, rtol=1e-3, atol=2e-5)


def test_parameters_without_a_gradient_contribute_exactly_zero_and_frozen_ones_are_not_there(bench: Make) -> None:
    one = bench()
    one.train()
    layout = one.trainer.layout
    slot = next(slot for slot in layout.slots if slot.name == "unused")
    assert not one.vault.pending[slot.start : slot.start + slot.size].any()
    assert "frozen" not in {slot.name for slot in layout.slots}
    assert torch.equal(one.trainer.task.module.get_parameter("frozen"), torch.linspace(3, 4, 5))


def test_a_batch_without_targets_moves_nothing(bench: Make) -> None:
    one = bench(first_target=256)
    done = one.train()
    assert (done.trained, done.note) == (BATCH * H, "")
    assert not one.vault.pending.any()


def test_the_strategy_says_what_is_published(bench: Make) -> None:
    class Doubled(DiLoCo):
        def publish(self, shared: Tensor, local: Tensor, out: Tensor) -> None:
            torch.sub(shared, local, out=out)
            out.mul_(2)

    one = bench()
    one.trainer.strategy = Doubled()
    one.train()
    assert torch.equal(one.vault.pending, 2 * (one.vault.theta - one.local()))


def test_asking_whether_progress_is_due_changes_nothing() -> None:
    score = Score(LENGTH, 0.0)
    assert [score.due(10.0), score.due(10.0)] == [True, True]
    score.told = 10.0
    assert [score.due(10.0 + 0.9 * PROGRESS_EVERY_S), score.due(10.0 + PROGRESS_EVERY_S)] == [False, True]


def test_the_rate_follows_committed_progress_and_includes_the_step_being_taken(bench: Make) -> None:
    one = bench(run=spec(rewarm_steps=1, warmup_fraction=0.5, lr=1.0))
    order = replace(ORDER, committed_tokens=3 * TOKENS, expected_tokens=2 * TOKENS)
    warmup = 20 * TOKENS
    assert one.trainer.rate(order, BATCH) == pytest.approx((3 + 2 / H) * TOKENS / warmup)
    assert one.trainer.rate(order, BATCH * H) == pytest.approx(5 * TOKENS / warmup)
    assert one.trainer.rate(order, 3 * BATCH * H) == pytest.approx(5 * TOKENS / warmup)


def test_an_optimizer_without_moments_starts_slowly(bench: Make) -> None:
    one = bench(run=spec(rewarm_steps=4))
    full = 0.05
    order = replace(ORDER, committed_tokens=2 * TOKENS, expected_tokens=0)
    rates = []
    for _ in range(5):
        rates.append(one.trainer.rate(order, BATCH))
        one.trainer.step(torch.arange(20).reshape(4, 5), 0.0)
    assert rates == pytest.approx([full / 4, full / 2, full * 3 / 4, full, full])


def test_a_short_lease_gives_a_short_round(bench: Make) -> None:
    done = bench().train(replace(ORDER, lease=(Span(5, 11),)))
    assert (done.steps, done.trained, done.weight) == (2, 6, 6 * LENGTH)


def test_loss_and_progress_are_told(bench: Make) -> None:
    one, link = bench(), FakeLink()
    done = one.train(link=cast(Link, link))
    assert done.loss == pytest.approx(math.log(256), rel=0.2)
    told = link.sent[0]
    assert isinstance(told, Progressed)
    assert (told.steps, told.tokens_per_s > 0) == (1, True)


# --- interruptions --------------------------------------------------------------------------------------------------------------


def test_wrap_up_ends_the_round_after_the_step_in_hand(bench: Make) -> None:
    one = bench()
    done = one.train(link=quiet([], [], [WrapUp()]))
    assert (done.steps, done.trained, one.vault.trained) == (2, 2 * BATCH, 2 * BATCH)
    assert torch.equal(one.vault.pending, one.vault.theta - one.local())


def test_wrap_up_before_the_first_step_publishes_what_is_pending(bench: Make) -> None:
    one = bench()
    one.train()
    pending = one.vault.pending.clone()
    done = one.train(replace(ORDER, round=10, trained=BATCH * H), quiet([WrapUp()]))
    assert (done.round, done.steps, done.trained, done.weight) == (10, 0, BATCH * H, TOKENS)
    torch.testing.assert_close(one.vault.pending, pending, rtol=0, atol=1e-6)


def test_a_relabelled_round_goes_on_under_its_new_name(bench: Make) -> None:
    one = bench()
    done = one.train(link=quiet([], [Relabel(12, 7, 8)]))
    assert (done.round, done.steps) == (12, H)


def test_a_new_order_makes_the_old_one_void(bench: Make) -> None:
    one = bench()
    link = FakeLink([], [replace(ORDER, round=13)])
    with pytest.raises(Superseded):
        one.train(link=cast(Link, link))
    assert one.vault.trained == 0
    assert link.receive() == replace(ORDER, round=13)


def test_stop_is_obeyed_within_a_step(bench: Make) -> None:
    one = bench()
    with pytest.raises(Stopped):
        one.train(link=quiet([], [], [Stop()]))
    assert len(one.task.seen) == 2


def test_another_command_waits_for_the_end_of_the_round(bench: Make) -> None:
    one = bench()
    link = FakeLink([], [EvaluateState(0)])
    assert one.train(link=cast(Link, link)).steps == H
    assert link.receive() == EvaluateState(0)


def test_training_from_a_version_that_is_not_there_is_refused(bench: Make) -> None:
    with pytest.raises(LocalProtocolError, match="from version 4, but the vault holds version 0"):
        bench().train(replace(ORDER, base=4))


# --- what is not finite ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "words"), [("loss_is_nan_at", "loss nan"), ("gradient_is_nan_at", "gradient norm nan")])
def test_nothing_that_is_not_finite_is_published_and_the_next_round_is_clean(bench: Make, fault: str, words: str) -> None:
    one = bench(**{fault: H + 2})
    one.train()
    assert one.vault.pending.any()
    bad = one.train(replace(ORDER, round=10, trained=BATCH * H))
    assert (bad.round, bad.trained, bad.weight, bad.steps) == (10, 0, 0, 2)
    assert words in bad.note
    assert "in step 3" in bad.note
    assert not one.vault.pending.any()
    assert one.vault.trained == 0
    assert not one.trainer.inner.optimizer.state
    good = one.train(replace(ORDER, round=11))
    assert (good.trained, good.note) == (BATCH * H, "")
    assert torch.isfinite(one.vault.pending).all()
    fresh = bench()
    fresh.train(replace(ORDER, round=11))
    assert torch.equal(one.vault.pending, fresh.vault.pending)


def test_a_delta_that_is_not_finite_is_named_by_tensor_and_count(bench: Make) -> None:
    one = bench()
    one.vault.begin_publish()[:] = 0
    slot = next(slot for slot in one.trainer.layout.slots if slot.name == "unused")
    one.vault.theta[slot.start + 2] = math.inf
    done = one.train()
    assert (done.trained, done.weight) == (0, 0)
    assert done.note == "unused: 1/7 non-finite"
    assert not one.vault.pending.any()


# --- memory that does not do ------------------------------------------------------------------------------------------------------


def test_a_step_that_runs_out_of_memory_skips_the_round_and_halves_the_micro_batch_until_it_fits(bench: Make) -> None:
    one, link = bench(out_of_memory_above=1), FakeLink()
    first = one.train(link=cast(Link, link))
    assert link.sent == [SmallerBatch(2)]
    assert (first.round, first.trained, first.weight, first.steps, one.trainer.micro_batch) == (9, 0, 0, 0, 2)
    assert first.note == "out of memory with 4 samples at a time; the next round is tried with 2"
    assert one.vault.trained == 0
    assert not one.vault.pending.any()
    second = one.train(replace(ORDER, round=10))
    assert (second.weight, one.trainer.micro_batch) == (0, 1)
    third = one.train(replace(ORDER, round=11))
    assert (third.trained, third.weight, third.note, one.trainer.micro_batch) == (BATCH * H, TOKENS, "", 1)


def test_after_a_round_without_enough_memory_the_next_one_is_what_it_would_have_been(bench: Make) -> None:
    whole, poor = bench(), bench()
    poor.train()  # so that there are moments, and pending work, to drop
    poor.task.out_of_memory_above = 3
    late = FakeLink([], [], [])
    poor.task.first_target = 0
    assert poor.train(replace(ORDER, round=10, trained=BATCH * H), cast(Link, late)).trained == 0
    assert not poor.trainer.inner.optimizer.state
    assert all(parameter.grad is None for parameter in poor.task.module.parameters())
    poor.train(replace(ORDER, round=11))
    whole.train(replace(ORDER, round=11))
    torch.testing.assert_close(poor.vault.pending, whole.vault.pending, rtol=1e-3, atol=2e-5)


def test_memory_that_ends_in_the_middle_of_the_optimizers_step_leaves_nothing_half_done(bench: Make) -> None:
    """AdamW makes its moments in its first step: what fails there has moved nothing, or some parameters and not others."""
    one = bench()
    optimizer = one.trainer.inner.optimizer

    def half_a_step() -> None:
        with torch.no_grad():
            one.task.module.get_parameter("table.weight").add_(1)
        optimizer.state[one.task.module.get_parameter("table.weight")]["step"] = torch.tensor(1.0)
        raise torch.OutOfMemoryError("pretended")

    optimizer.step = half_a_step  # type: ignore[method-assign,assignment]
    assert one.train().weight == 0
    good = one.train(replace(ORDER, round=10))
    fresh = bench(TrainerSettings(micro_batch=2))
    fresh.train(replace(ORDER, round=10))
    assert good.weight == TOKENS
    assert torch.equal(one.vault.pending, fresh.vault.pending)


def test_memory_for_not_even_one_sample_is_tried_a_few_rounds_and_then_one_clear_line(bench: Make) -> None:
    one = bench(TrainerSettings(micro_batch=1), out_of_memory_above=0)
    for round_id in range(1, SHORT_ROUNDS):
        assert "out of memory with a single sample" in one.train(replace(ORDER, round=round_id)).note
    with pytest.raises(TrainerError, match="the memory of cpu does not do for a single sample: pretended — end other programs"):
        one.train()


def test_rounds_that_fit_in_between_start_the_count_anew(bench: Make) -> None:
    one = bench(TrainerSettings(micro_batch=1))
    for above in (0, 0, 4, 0, 0, 4):
        one.task.out_of_memory_above = above
        assert (one.train().weight > 0) == (above > 0)


def test_another_runtime_error_is_not_taken_for_lack_of_memory(bench: Make) -> None:
    one = bench()

    def broken(_: Tensor) -> tuple[Tensor, int]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    one.task.loss = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="mat1"):
        one.train()
    assert one.trainer.micro_batch == BATCH


def test_an_evaluation_that_does_not_fit_claims_nothing_and_the_next_one_is_smaller(bench: Make) -> None:
    one = bench(out_of_memory_above=2)
    assert one.trainer.evaluate(one.vault, 0).tokens == 0
    assert one.task.module.training
    assert one.trainer.evaluate(one.vault, 0).tokens == 6 * LENGTH
    one.task.out_of_memory_above = 0
    assert [one.trainer.evaluate(one.vault, 0).tokens for _ in range(3)] == [0, 0, 0]
    assert one.trainer.micro_batch == 1


# --- between rounds -------------------------------------------------------------------------------------------------------------


def test_version_zero_is_the_seeded_initialisation_even_after_training(bench: Make) -> None:
    one = bench()
    before = one.vault.theta.clone()
    root = one.vault.root()
    one.train()
    ready = one.trainer.build_origin(one.vault)
    assert torch.equal(one.vault.theta, before)
    assert ready.root == root


def test_the_shared_state_is_evaluated_not_the_local_one(bench: Make) -> None:
    one = bench()
    before = one.trainer.evaluate(one.vault, 0)
    one.train()
    after = one.trainer.evaluate(one.vault, 0)
    assert before == after
    assert before.tokens == 6 * LENGTH
    assert before.bits_per_byte == pytest.approx(8, rel=0.2)


def test_a_version_that_is_gone_is_evaluated_as_nothing(bench: Make) -> None:
    assert bench().trainer.evaluate(bench().vault, 3).tokens == 0
