"""A peer whose engine is a few lines: enough to drive vault and bulk plane through real rounds over real mutual TLS.

It adds in plan order, closes a part when every planned contribution is in (or refused), returns results at once, and says when it
holds them all. Used by the tests of the data plane and by its benchmark.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal.compression.codec import Codec
from shoal.optim.layout import Part
from shoal.peer import events as ev
from shoal.peer.bulk import BulkPlane
from shoal.peer.exchange import Limits
from shoal.peer.packer import Packer
from shoal.peer.vault import Vault
from shoal.peer.workers import Workers
from shoal.protocol.authority import Authority
from shoal.protocol.identity import Identity
from shoal.protocol.messages import Commit, Contact, Contribution, Decision, PartKey, PeerId, Plan, Section, Share
from shoal.protocol.tls import Credential

RUN = "shoal-test"
LAYOUT = b"L" * 32


def credential(
    authority: Authority, rights: Sequence[str] = ("peer", "reducer"), lifetime: datetime.timedelta = datetime.timedelta(hours=1)
) -> Credential:
    """A new identity with a certificate."""
    identity = Identity.generate()
    certificate = authority.issue(identity.tls_public_key, identity.peer_id, rights, lifetime)
    return Credential(identity.tls_key_pem, certificate, authority.ca_pem)


@dataclass
class Closing:
    """One part that this peer reduces."""

    arrived: set[PeerId] = field(default_factory=set)
    refused: set[PeerId] = field(default_factory=set)
    added: list[PeerId] = field(default_factory=list)
    closed: bool = False


class ScriptedPeer:
    """One daemon's data plane and the script that drives it."""

    def __init__(
        self,
        directory: Path,
        credential: Credential,
        codecs: tuple[Codec, Codec],
        limits: Limits | None = None,
        threads: int | None = 2,
        packer: Packer | None = None,
    ) -> None:
        self.codecs = codecs
        self.packer = packer
        self.directory = directory
        self.workers = Workers(threads)
        self.plane = BulkPlane(RUN, credential, self.workers, self.emit, limits)
        self.me = self.plane.me
        self.vault: Vault
        self.address = ""
        self.events: list[ev.Event] = []
        self.happened = asyncio.Event()
        self.plan: Plan | None = None
        self.closing: dict[PartKey, Closing] = {}
        self.results: dict[PartKey, bytes] = {}
        self.decided: dict[PartKey, tuple[tuple[PeerId, ...], float]] = {}
        self.mute = False
        """Only record events."""

    @property
    def contact(self) -> Contact:
        return Contact(self.me, self.address)

    async def start(
        self,
        parts: Sequence[Part],
        theta: torch.Tensor | None,
        keep_entries: int = 8,
        feedback: Codec | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Make the vault, at version 0 when `theta` is given, and listen."""
        self.address = f"{host}:{await self.plane.listen(f'{host}:0')}"
        self.vault = Vault.create(self.directory, RUN, parts[-1].stop, LAYOUT, parts, feedback=feedback)
        if theta is not None:
            self.vault.begin_origin().copy_(theta)
            self.vault.finish_origin()
        self.plane.attach(self.vault, *self.codecs, keep_entries, self.packer)

    async def stop(self) -> None:
        await self.plane.close()
        self.workers.close()
        self.vault.close(remove=True)

    def publish(self, delta: torch.Tensor, round_id: int) -> None:
        self.vault.begin_publish().copy_(delta)
        self.vault.publish(trained=1)

    # --- the script -------------------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Take part in a round: send to all reducers, reduce, collect."""
        self.plan = plan
        self.results, self.closing, self.decided = {}, {}, {}
        self.plane.perform(ev.BeginReduce(plan))
        for share in plan.shares:
            if share.reducer.peer != self.me:
                self.plane.perform(ev.Collect(plan.round, share.reducer))
        if any(entry.peer == self.me and entry.weight for entry in plan.contributions):
            longest = max(share.stop - share.start for share in plan.shares)
            for offset in range(longest):
                for share in plan.shares:
                    if share.start + offset < share.stop:
                        key = PartKey(plan.round, share.section, share.start + offset, share.attempt)
                        self.plane.perform(ev.SendPart(key, share.reducer.peer))

    def emit(self, event: ev.Event) -> None:
        self.events.append(event)
        if not self.mute:
            self.react(event)
        self.happened.set()

    def react(self, event: ev.Event) -> None:
        match event:
            case ev.ContributionArrived(key, peer):
                self.closing.setdefault(key, Closing()).arrived.add(peer)
                self.advance(key)
            case ev.ContributionRefused(key, peer):
                self.closing.setdefault(key, Closing()).refused.add(peer)
                self.advance(key)
            case ev.PartReduced(key, digest):
                self.results[key] = digest
                assert self.plan is not None
                self.plane.perform(ev.ReturnPart(key, tuple(peer for peer in self.plan.members if peer != self.me)))
            case ev.ResultArrived(key, digest):
                self.results[key] = digest
            case _:
                pass

    def advance(self, key: PartKey) -> None:
        """Add what is next in the plan's order; close when nothing is missing."""
        assert self.plan is not None
        part = self.closing[key]
        weights = {entry.peer: entry.weight for entry in self.plan.contributions if entry.weight}
        for peer in weights:
            if peer in part.refused or peer in part.added:
                continue
            if peer not in part.arrived:
                return
            self.plane.perform(ev.Add(key, peer, weights[peer]))
            part.added.append(peer)
        if not part.closed:
            part.closed = True
            divisor = float(sum(weights[peer] for peer in part.added))
            self.decided[key] = (tuple(part.added), divisor)
            self.plane.perform(ev.ClosePart(key, divisor))

    # --- waiting ----------------------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], limit_s: float = 30.0) -> None:
        """Wait for something that events bring about, or counters show; a bug in the plane ends the wait."""
        async with asyncio.timeout(limit_s):
            while not condition():
                self.happened.clear()
                waiting = asyncio.ensure_future(self.happened.wait())
                either: list[asyncio.Future[Any]] = [waiting, self.plane.broken]
                await asyncio.wait(either, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self.plane.broken.done():
                    self.plane.broken.result()

    async def wait_for(self, kind: type[ev.Event], limit_s: float = 30.0) -> ev.Event:
        """The first event of a kind, past or to come."""
        await self.until(lambda: any(isinstance(event, kind) for event in self.events), limit_s)
        return next(event for event in self.events if isinstance(event, kind))

    async def collected(self) -> None:
        """All parts of the round are here."""
        count = len(self.vault.parts)
        await self.until(lambda: len(self.results) == count)


def plan_for(
    peers: Sequence[ScriptedPeer],
    round_id: int,
    weights: Sequence[int],
    shares: Sequence[Share] | None = None,
    deadline_s: float = 30.0,
) -> Plan:
    """All peers contribute and reduce equal shares, unless shares are given."""
    parts = len(peers[0].vault.parts)
    bounds = [round(index * parts / len(peers)) for index in range(len(peers) + 1)]
    if shares is None:
        shares = [
            Share(peer.contact, Section.PARAMETERS, start, stop)
            for peer, start, stop in zip(peers, bounds, bounds[1:], strict=False)
            if start < stop
        ]
    contributions = tuple(Contribution(peer.me, weight) for peer, weight in zip(peers, weights, strict=True) if weight)
    return Plan(round_id, 1, 0, 0, 0, contributions, tuple(peer.me for peer in peers), tuple(shares), deadline_s)


def commit_of(peers: Sequence[ScriptedPeer], plan: Plan, version: int) -> Commit:
    """What the coordinator would say: the reducers' decisions."""
    decisions = [
        Decision(key.section, key.part, key.attempt, peer.results[key], *peer.decided[key])
        for peer in peers
        for key in peer.decided
    ]
    decisions.sort(key=lambda decision: decision.part)
    return Commit(version, plan.round, 0, 0, version - 1, tuple(decisions), 0, 0.7, 0.9)


async def apply(peer: ScriptedPeer, commit: Commit) -> None:
    """Apply the entry and forget its round."""
    included = tuple(peer.me in decision.contributors for decision in commit.parts)
    peer.plane.perform(ev.Apply(commit, included, 0))
    await peer.until(lambda: ev.EntryApplied(commit.version) in [without_bytes(event) for event in peer.events])
    peer.plane.perform(ev.DropRound(commit.round))


def without_bytes(event: ev.Event) -> ev.Event:
    return ev.EntryApplied(event.version) if isinstance(event, ev.EntryApplied) else event
