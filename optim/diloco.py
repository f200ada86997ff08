"""DiLoCo: train alone for many steps, exchange how far you came, step together. And a whole run of it in one process.

Rule: `Swarm` is the specification of a run in executable form. Real peers that get the same model, seeds, leases, order and outcome
of each round end with the same bytes, because both use the same codecs, parts, order of summation and outer step. It knows
nothing of sockets, and so of failures only their outcome: who is included in which part, or that a round was abandoned.

    local := theta - pending;  train;  delta := theta - local                       each peer (pending is inside delta)
    sum   := sum of weight_i * decode(encode(delta_i)), in plan order               per part, by its reducer
    bytes := encode_back(sum / (sum of the weights included))                       once; everybody applies decode(bytes)
    m := mu*m + d;  theta := theta - lr*(mu*m + d)                                  see `outer`

Source: DiLoCo, arXiv 2311.08105 (algorithm 1; the sign is old minus new, the outer optimizer Nesterov); weights in tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from shoal.optim.inner import InnerTraining
from shoal.optim.layout import ParameterLayout, Part
from shoal.optim.outer import fingerprint, nesterov_step
from shoal.optim.strategy import Strategy

Payload = bytes | bytearray | memoryview


class PartCodec(Protocol):
    """What a run needs of a codec (see `compression.codec`)."""

    @property
    def block(self) -> int: ...

    def encoded_size(self, spans: tuple[int, ...]) -> int: ...

    def encode(self, values: Tensor, spans: tuple[int, ...]) -> Payload: ...

    def decode(self, payload: Payload, spans: tuple[int, ...], out: Tensor | None = None) -> Tensor: ...

    def decode_add(self, payload: Payload, spans: tuple[int, ...], into: Tensor, weight: float) -> None: ...


class DiLoCo:
    """Pseudo-gradient theta - local, Nesterov on its weighted mean, moments of the inner optimizer kept."""

    name = "diloco"

    def publish(self, shared: Tensor, local: Tensor, out: Tensor) -> None:
        torch.sub(shared, local, out=out)

    def load(self, shared: Tensor, pending: Tensor, out: Tensor) -> None:
        torch.sub(shared, pending, out=out)

    def step(self, theta: Tensor, momentum: Tensor, update: Tensor, lr: float, mu: float, scratch: Tensor | None = None) -> None:
        nesterov_step(theta, momentum, update, lr, mu, scratch)


def reduce_part(
    send: PartCodec, back: PartCodec, spans: tuple[int, ...], contributions: Sequence[tuple[Payload, float]]
) -> Payload:
    """A part's final bytes: the weighted mean of encoded contributions (payload, weight), added in this order, encoded once.

    Raises ValueError if the weights sum to 0: such a part cannot close.
    """
    divisor = float(sum(weight for _, weight in contributions))
    if not divisor > 0.0:
        raise ValueError("a part of total weight 0 cannot close")
    total = torch.zeros(sum(spans))
    for payload, weight in contributions:
        send.decode_add(payload, spans, total, float(weight))
    total.div_(divisor)
    return back.encode(total, spans)


# --- a run in one process -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """What one peer trains in one round: these positions of the sample stream, in order; tokens as in `schedule.learning_rate`."""

    round: int
    positions: tuple[int, ...]
    quota: int
    committed_tokens: int
    expected_tokens: int


Train = Callable[[Tensor, Assignment], Tensor]
"""From the local parameters (values,) to begin with, to those after training on the assignment. Keeps its moments to itself."""


@dataclass
class Member:
    """A virtual peer: private state only."""

    train: Train
    pending: Tensor
    """(values,) own progress that is in no committed entry."""
    trained: int = 0
    """Samples behind `pending`: the front of the peer's lease."""


@dataclass(frozen=True)
class PartOutcome:
    """What a log entry says of one part."""

    contributors: tuple[str, ...]
    divisor: float
    digest: bytes
    """SHA-256 of the part's final bytes."""


@dataclass(frozen=True)
class Entry:
    """The entry that made `version`."""

    version: int
    round: int
    parts: tuple[PartOutcome, ...]
    weights: tuple[tuple[str, int], ...]
    """Tokens of everybody in at least one part, in order of summation."""
    committed_tokens: int
    """P after this entry."""


class Swarm:
    """N virtual peers and one shared state. Every peer's copy is the same bytes, so one copy stands for all."""

    def __init__(
        self,
        layout: ParameterLayout,
        theta: Tensor,
        send: PartCodec,
        back: PartCodec,
        *,
        sample_tokens: int,
        lr: float = 0.7,
        mu: float = 0.9,
        part_bytes: int = 1 << 20,
        strategy: Strategy | None = None,
    ) -> None:
        """`theta`: version 0, copied. `sample_tokens`: tokens in a sample. `part_bytes`: a part's limit, encoded for sending."""
        self.layout = layout
        self.theta = theta.clone()
        self.momentum = torch.zeros_like(self.theta)
        self.version = 0
        self.rounds = 0
        self.committed_tokens = 0
        self.parts: tuple[Part, ...] = layout.partition(send, 0, part_bytes)
        self.members: dict[str, Member] = {}
        self._send, self._back = send, back
        self._sample_tokens, self._lr, self._mu = sample_tokens, lr, mu
        self._strategy = strategy or DiLoCo()

    def join(self, name: str, train: Train) -> None:
        """A peer joins, or comes back as a new member: it has the shared state and nothing pending."""
        self.members[name] = Member(train, torch.zeros_like(self.theta))

    def leave(self, name: str) -> None:
        """A peer is gone, with whatever was pending."""
        del self.members[name]

    def root(self) -> bytes:
        """Fingerprint of the shared state."""
        return fingerprint(self.version, self.layout.hash, self.theta, self.momentum)

    def round(
        self,
        leases: Mapping[str, Sequence[tuple[int, int]]],
        *,
        quota: int,
        expected_tokens: int | None = None,
        order: Sequence[str] | None = None,
        missing: Mapping[str, Sequence[int]] | None = None,
        abandoned: bool = False,
        round: int | None = None,
    ) -> Entry | None:
        """Everybody named in `leases` trains `quota` samples further along its uncommitted lease; then one entry, or none.

        `leases`: spans [start, stop) of sample positions, pending work at the front. `expected_tokens`: by default all members'
        quotas. `order`: of summation (by default that of `leases`); who is not in it is excluded. `missing`: parts that a peer's
        contribution did not reach. None comes back if the round was abandoned or a part had no weight; all work stays pending.
        """
        number = self.rounds + 1 if round is None else round
        self.rounds = number
        if expected_tokens is None:
            expected_tokens = len(leases) * quota * self._sample_tokens
        deltas: dict[str, Tensor] = {}
        weights: dict[str, int] = {}
        for name, lease in leases.items():
            assignment = Assignment(number, (), quota, self.committed_tokens, expected_tokens)
            deltas[name] = self._train(self.members[name], lease, assignment)
            weights[name] = self.members[name].trained * self._sample_tokens
        working = [name for name in (order if order is not None else leases) if weights[name] > 0]
        if abandoned or not working:
            return None
        entry = self._combine(number, working, deltas, weights, missing or {})
        if entry is not None:
            self.version, self.committed_tokens = entry.version, entry.committed_tokens
        return entry

    def _train(self, member: Member, lease: Sequence[tuple[int, int]], assignment: Assignment) -> Tensor:
        positions = tuple(position for start, stop in lease for position in range(start, stop))
        positions = positions[member.trained : member.trained + assignment.quota]
        local = torch.empty_like(self.theta)
        self._strategy.load(self.theta, member.pending, local)
        if positions:
            local = member.train(local, replace(assignment, positions=positions))
        delta = torch.empty_like(self.theta)
        self._strategy.publish(self.theta, local, delta)
        if torch.isfinite(delta).all():
            member.trained += len(positions)
        else:  # the peer drops all its progress and has nothing to contribute
            delta.zero_()
            member.trained = 0
        member.pending.copy_(delta)
        return delta

    def _combine(
        self,
        number: int,
        working: Sequence[str],
        deltas: Mapping[str, Tensor],
        weights: Mapping[str, int],
        missing: Mapping[str, Sequence[int]],
    ) -> Entry | None:
        included = [tuple(name for name in working if index not in missing.get(name, ())) for index in range(len(self.parts))]
        if not all(included):
            return None  # a part of total weight 0 cannot close
        outcomes = []
        results = []
        for part, names in zip(self.parts, included, strict=True):
            contributions = [
                (self._send.encode(deltas[name][part.start : part.stop], part.spans), float(weights[name])) for name in names
            ]
            payload = reduce_part(self._send, self._back, part.spans, contributions)
            results.append(payload)
            outcomes.append(PartOutcome(names, float(sum(weights[name] for name in names)), hashlib.sha256(payload).digest()))
        for part, names, payload in zip(self.parts, included, results, strict=True):
            self._strategy.step(
                self.theta[part.start : part.stop],
                self.momentum[part.start : part.stop],
                self._back.decode(payload, part.spans),
                self._lr,
                self._mu,
            )
            for name in names:
                self.members[name].pending[part.start : part.stop].zero_()
        counted = tuple((name, weights[name]) for name in working if any(name in names for names in included))
        for name, _ in counted:
            self.members[name].trained = 0
        committed = self.committed_tokens + sum(weight for _, weight in counted)
        return Entry(self.version + 1, number, tuple(outcomes), counted, committed)


def train_in_batches(
    training: InnerTraining,
    layout: ParameterLayout,
    loss_of: Callable[[nn.Module, tuple[int, ...]], Tensor],
    *,
    batch: int,
    sample_tokens: int,
) -> Train:
    """The ordinary inner phase as a `Train`: `batch` positions per inner step (the last may be shorter), loss by `loss_of`."""

    def train(local: Tensor, assignment: Assignment) -> Tensor:
        layout.scatter(local, training.module)
        pieces = [assignment.positions[at : at + batch] for at in range(0, len(assignment.positions), batch)]
        batches = ((len(piece), lambda piece=piece: loss_of(training.module, piece)) for piece in pieces)
        for _ in training.steps(
            batches,
            sample_tokens=sample_tokens,
            quota=assignment.quota,
            committed=assignment.committed_tokens,
            expected=assignment.expected_tokens,
        ):
            pass
        return layout.gather(training.module)

    return train
