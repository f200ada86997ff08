"""The promises, checked after every event: what was journaled, what was sent, what moved, and whether it all adds up.

Rule: the judge believes nothing that a core or an engine says. It folds the journal by itself, computes every entry again from
the contributions that were really sent, follows every piece of work from its training to the one entry that may contain it, and
compares each part of each vault with the one lineage. Neighbours: `meeting` and `machine` report to it; `story` asks it at the
end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.coordinator.events import Said
from shoal.coordinator.records import (
    FingerprintAgreed,
    OriginBuilt,
    Record,
    RoundAbandoned,
    RoundCommitted,
    RoundOpened,
    RunEnded,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    TermRaised,
)
from shoal.peer.events import Effect, Event, FetchState, HangUp, Tell, Train
from shoal.protocol.entries import whole_commit
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    CatchUp,
    Commit,
    Complaint,
    Dismissed,
    Envelope,
    FromPeer,
    Have,
    Hello,
    Open,
    PartClosed,
    PartKey,
    PeerId,
    Plan,
    Ready,
    Refused,
    Replan,
    Span,
    Welcome,
)
from tests.simulation import values
from tests.simulation.machine import Machine, Vault, Work, positions
from tests.simulation.streams import SessionStream
from tests.simulation.values import Model, PartState, State
from tests.simulation.world import Violation, World

BURN_PAUSE_S = 40.0
"""After the loss of a machine with its vault, the coordinator needs this long to see that a holder is gone."""


@dataclass
class Session:
    """One membership, as the journal tells it."""

    session: int
    peer: PeerId
    lease: list[int] = field(default_factory=list)
    live: bool = True


@dataclass
class Contributed:
    """What one peer really sent for one part of one round."""

    payload: bytes
    work: tuple[Work, ...]
    attempts: set[int] = field(default_factory=set)


class Judge:
    """Follows everything, raises Violation."""

    def __init__(self, world: World, model: Model, tokens_per_sample: int) -> None:
        self.world, self.model, self.tokens_per_sample = world, model, tokens_per_sample
        self.term = 0
        self.sessions: dict[int, Session] = {}
        self.session_of: dict[PeerId, int] = {}
        self.opened: RoundOpened | None = None
        self.members: set[PeerId] = set()
        """Who takes part in the last round that was opened."""
        self.bound = False
        self.plans: dict[int, Plan] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.reducers: dict[tuple[int, int, int], PeerId] = {}
        self.commits: dict[int, RoundCommitted] = {}
        self.rounds_decided: set[int] = set()
        self.lineage: dict[int, State] = {}
        self.roots: dict[int, bytes] = {}
        self.version = NO_VERSION
        self.tokens = 0
        self.ended: RunEnded | None = None
        self.holder: dict[int, int] = {}
        """Which session holds a sample."""
        self.spent: set[int] = set()
        self.limbo: list[int] = []
        self.origins: dict[bytes, State] = {}
        self.contributed: dict[tuple[int, PeerId, int], Contributed] = {}
        self.machines: Mapping[PeerId, Machine] = {}
        self.burned_at = -1e9
        self.rot_won = False
        """A rotten copy was declared to be the truth: it was most of what was left."""
        self.plan_sessions: dict[int, dict[PeerId, int]] = {}
        self.works = 0
        self.works_of: dict[PeerId, list[Work]] = {}
        self.abandoned = 0
        self.exit_codes: dict[str, int] = {}
        self._heard: dict[PeerId, list[Envelope]] = {}
        self._welcomed: dict[PeerId, tuple[int, int]] = {}

    def fail(self, why: str) -> None:
        raise Violation(why)

    # --- the journal ------------------------------------------------------------------------------------------------------------

    def journaled(self, record: Record) -> None:
        """A record became durable."""
        match record:
            case TermRaised(term):
                if term <= self.term:
                    self.fail(f"term {term} after term {self.term}")
                self.term = term
            case SessionOpened(session, peer):
                if session in self.sessions:
                    self.fail(f"session {session} is used twice")
                if peer in self.session_of:
                    self.fail(f"{peer} has two sessions: {self.session_of[peer]} and {session}")
                self.sessions[session] = Session(session, peer)
                self.session_of[peer] = session
            case SessionResumed(session):
                if not self.sessions[session].live:
                    self.fail(f"session {session} resumed after its end")
            case SessionEnded(session):
                ended = self.sessions[session]
                if not ended.live:
                    self.fail(f"session {session} ended twice")
                ended.live = False
                del self.session_of[ended.peer]
                if self.opened is not None and session in self.opened.members:
                    self.limbo.append(session)
                else:
                    self._free(session)
            case OriginBuilt(_, _, root):
                if self.bound:
                    self.fail("version 0 was replaced after a round had opened")
                if root not in self.origins:
                    self.fail("version 0 has a root that nobody built")
                self.lineage, self.roots, self.version = {0: self.origins[root]}, {0: root}, 0
            case RoundOpened():
                self._round_opens(record)
            case RoundCommitted():
                self._round_commits(record)
            case RoundAbandoned(round_id):
                if self.opened is None or self.opened.round != round_id:
                    self.fail(f"round {round_id} was abandoned, but it is not in flight")
                self.abandoned += 1
                self._round_is_over(round_id)
            case FingerprintAgreed(version, root):
                if version in self.roots and root != self.roots[version]:
                    if any(machine.vault.rotten for machine in self.machines.values()):
                        self.rot_won = True  # among those who were asked, the rotten copy was the majority, or was declared
                        return
                    self.fail(f"version {version} was agreed to have a root that the log does not give")
            case RunEnded(version):
                if version != self.version:
                    self.fail(f"the run ended at version {version}, the log at {self.version}")
                self.ended = record
            case _:
                pass

    def _free(self, session: int) -> None:
        for sample in self.sessions[session].lease:
            del self.holder[sample]
        self.sessions[session].lease = []

    def _round_opens(self, record: RoundOpened) -> None:
        if self.opened is not None:
            self.fail(f"round {record.round} opened while round {self.opened.round} is in flight")
        if record.round in self.rounds_decided:
            self.fail(f"round {record.round} is used twice")
        if record.base != self.version:
            self.fail(f"round {record.round} is based on version {record.base}, the newest is {self.version}")
        for session in record.members:
            if not self.sessions[session].live:
                self.fail(f"round {record.round} opened with session {session}, which is over")
        for grant in record.grants:
            holder = self.sessions[grant.session]
            for sample in positions(grant.spans):
                if sample in self.spent:
                    self.fail(f"sample {sample} was leased again after it had been committed")
                if sample in self.holder:
                    self.fail(f"sample {sample} is leased to session {grant.session} and to session {self.holder[sample]}")
                self.holder[sample] = grant.session
                holder.lease.append(sample)
        self.bound = True
        self.opened = record
        self.members = {self.sessions[session].peer for session in record.members}

    def _round_is_over(self, round_id: int) -> None:
        self.rounds_decided.add(round_id)
        self.opened = None
        for session in self.limbo:
            self._free(session)
        self.limbo = []

    def _round_commits(self, record: RoundCommitted) -> None:
        if record.version != self.version + 1 or record.base != self.version:
            self.fail(f"entry {record.version} on base {record.base} follows version {self.version}")
        if self.opened is None or self.opened.round != record.round:
            self.fail(f"round {record.round} was committed, but it is not in flight")
        plan = self.plans.get(record.round)
        if plan is None:
            self.fail(f"round {record.round} was committed without a plan")
            return
        if [decision.part for decision in record.decisions] != list(range(self.model.parts)):
            self.fail(f"entry {record.version} has parts {[decision.part for decision in record.decisions]}")
        order = [contribution.peer for contribution in plan.contributions]
        weights = {contribution.peer: contribution.weight for contribution in plan.contributions}
        state = []
        counted: dict[PeerId, None] = {}
        for decision, part in zip(record.decisions, self.lineage[self.version], strict=True):
            where = f"part {decision.part} of round {record.round}"
            if decision.attempt != self.attempts[record.round, decision.part]:
                self.fail(f"{where} was decided by attempt {decision.attempt}, which is dead")
            if [peer for peer in order if peer in decision.contributors] != list(decision.contributors):
                self.fail(f"{where} lists contributors {decision.contributors}, the plan's order is {order}")
            if decision.divisor != sum(weights[peer] for peer in decision.contributors):
                self.fail(f"{where} is divided by {decision.divisor}, which is not the weight included")
            terms = []
            for peer in decision.contributors:
                sent = self.contributed.get((record.round, peer, decision.part))
                if sent is None or decision.attempt not in sent.attempts:
                    self.fail(f"{where} counts {peer}, who sent nothing")
                    return
                terms.append((float(weights[peer]), sent.payload))
                counted[peer] = None
                for work in sent.work:
                    if work.committed[decision.part] is not None:
                        self.fail(f"{work} is in entries {work.committed[decision.part]} and {record.version}, {where}")
                    work.committed[decision.part] = record.version
            payload = values.weighted_mean(terms, decision.divisor)
            if values.sha256(payload) != decision.digest:
                self.fail(f"{where} is not the weighted mean of what {decision.contributors} sent")
            self._is_held(decision.digest, where, record.round)
            state.append(values.outer_step(part, payload, record.outer_lr, record.outer_momentum))
        self._work_is_spent(record, list(counted))
        self.version = record.version
        self.lineage[record.version] = tuple(state)
        self.roots[record.version] = values.root(record.version, state)
        self.commits[record.version] = record
        self._round_is_over(record.round)

    def _is_held(self, digest: bytes, where: str, round_id: int) -> None:
        """More than one live member really holds what is committed, if there is more than one."""
        live = [peer for peer, session in self.plan_sessions[round_id].items() if self.session_of.get(peer) == session]
        holders = [peer for peer in live if self.machines[peer].vault.payload(digest) is not None]
        if len(holders) < min(2, len(live)) and self.world.now > self.burned_at + BURN_PAUSE_S:
            self.fail(f"{where} was committed, but of its live members {live} only {holders} hold its bytes")

    def _work_is_spent(self, record: RoundCommitted, counted: Sequence[PeerId]) -> None:
        if {contribution.peer for contribution in record.contributions} != set(counted):
            self.fail(f"entry {record.version} lists other contributors than its parts do")
        by_peer = {self.sessions[item.session].peer: item for item in record.spent}
        if by_peer.keys() != set(counted) or len(record.spent) != len(counted):
            self.fail(f"entry {record.version} spends the leases of {sorted(by_peer)}, its contributors are {sorted(counted)}")
        for peer, item in by_peer.items():
            session = self.sessions[item.session]
            samples, session.lease = session.lease[: item.samples], session.lease[item.samples :]
            if len(samples) != item.samples or item.weight != item.samples * self.tokens_per_sample:
                self.fail(f"{peer} spends {item.samples} samples as {item.weight} tokens, its lease held {len(samples)}")
            for sample in samples:
                if sample in self.spent:
                    self.fail(f"sample {sample} is committed twice")
                self.spent.add(sample)
                del self.holder[sample]
            trained: list[int] = []
            seen: set[int] = set()
            for part in range(self.model.parts):
                sent = self.contributed.get((record.round, peer, part))
                for work in sent.work if sent is not None else ():
                    if work.id not in seen and work.spent is None:
                        seen.add(work.id)
                        trained += work.samples
                        work.spent = record.version
            if sorted(trained) != sorted(samples):
                self.fail(f"{peer} trained on {sorted(trained)} for entry {record.version}, but {sorted(samples)} were spent")
            self.tokens += item.weight
        if record.committed_tokens != self.tokens:
            self.fail(f"entry {record.version} says {record.committed_tokens} tokens are committed; it is {self.tokens}")

    # --- what the coordinator says ----------------------------------------------------------------------------------------------

    def coordinator_sends(self, peer: PeerId, envelope: Envelope) -> None:
        """A message leaves the coordinator, after everything that was journaled before it."""
        body = envelope.body
        if not isinstance(body, Refused) and envelope.term != self.term:
            self.fail(f"{type(body).__name__} was sent under term {envelope.term}, the journal says {self.term}")
        match body:
            case Welcome(session, term):
                if session not in self.sessions or not self.sessions[session].live or self.sessions[session].peer != peer:
                    self.fail(f"{peer} was welcomed as session {session}, which the journal does not know")
                if term != self.term:
                    self.fail(f"{peer} was welcomed under term {term}, the journal says {self.term}")
            case Open(round_id, lease=lease):
                if self.opened is None or self.opened.round != round_id:
                    self.fail(f"{peer} was told that round {round_id} is open; the journal does not say so")
                if list(positions(lease)) != self.sessions[envelope.session].lease:
                    self.fail(f"{peer} was told of a lease that the journal does not know")
            case Plan():
                known = self.plans.setdefault(body.round, body)
                if known != body:
                    self.fail(f"round {body.round} has two plans")
                self.plan_sessions.setdefault(body.round, {p: self.session_of[p] for p in body.members if p in self.session_of})
                for share in body.shares:
                    for part in range(share.start, share.stop):
                        self.attempts.setdefault((body.round, part), share.attempt)
                        self.reducers[body.round, part, share.attempt] = share.reducer.peer
            case Replan(round_id, shares):
                for share in shares:
                    for part in range(share.start, share.stop):
                        if share.attempt < self.attempts[round_id, part]:
                            self.fail(f"part {part} of round {round_id} goes back to attempt {share.attempt}")
                        self.attempts[round_id, part] = share.attempt
                        self.reducers[round_id, part, share.attempt] = share.reducer.peer
            case Commit():
                self._agrees_with_journal(body)
            case CatchUp(commits):
                for commit in commits:
                    self._agrees_with_journal(commit)
            case _:
                pass
        heard = self._heard.setdefault(peer, [])
        if len(heard) < 400:
            heard.append(envelope)

    def _agrees_with_journal(self, commit: Commit) -> None:
        record = self.commits.get(commit.version)
        if record is None:
            self.fail(f"entry {commit.version} was announced before it was journaled")
            return
        said = (
            commit.round,
            commit.base,
            whole_commit(commit).parts,
            commit.committed_tokens,
            commit.outer_lr,
            commit.outer_momentum,
        )
        if said != (record.round, record.base, record.decisions, record.committed_tokens, record.outer_lr, record.outer_momentum):
            self.fail(f"entry {commit.version} was announced with other content than was journaled")

    def is_stale(self, peer: PeerId, envelope: Envelope) -> bool:
        """Whether a message of this peer belongs to a membership or a term that is over."""
        return envelope.term != self.term or envelope.session != self.session_of.get(peer, NO_SESSION)

    def is_void(self, said: Said, streams: Mapping[int, SessionStream]) -> bool:
        """Whether a message to the coordinator belongs to an attempt, round, session or term that is over, or that never was."""
        stream, body = streams.get(said.connection), said.envelope.body
        if stream is None or isinstance(body, Hello):
            return False
        if self.is_stale(stream.peer, said.envelope):
            return True
        if isinstance(body, PartClosed):
            key = body.key
            return self.opened is None or key.round != self.opened.round or self.attempts.get((key.round, key.part)) != key.attempt
        return isinstance(body, Ready | Have | Complaint) and (self.opened is None or body.round != self.opened.round)

    # --- what a peer does -------------------------------------------------------------------------------------------------------

    def old_message_for(self, machine: Machine) -> Envelope | None:
        """Now and then: a message of an earlier session or term, to be heard again."""
        if not self.world.chance(self.world.weather.replay):
            return None
        heard = self._heard.get(machine.peer)
        known = self._welcomed.get(machine.peer)
        if not heard or known is None:
            return None
        old = self.world.random.choice(heard)
        stale = isinstance(old.body, Refused | Dismissed | Welcome) or (old.session, old.term) == known
        return None if stale else old

    def stale_reaction(self, machine: Machine, event: Event, effects: list[Effect]) -> None:
        """The engine heard a message of a dead session or term."""
        for effect in effects:
            if not isinstance(effect, Tell | HangUp):
                self.fail(f"{machine.peer} answers a message of a dead session or term with {effect}: {event}")

    def hears(self, machine: Machine, envelope: Envelope) -> None:
        """Keep count of which conversation a peer is in."""
        if isinstance(envelope.body, Welcome):
            self._welcomed[machine.peer] = (envelope.body.session, envelope.body.term)

    def peer_says(self, machine: Machine, body: FromPeer) -> None:
        """A message leaves a peer."""
        if isinstance(body, Ready) and body.weight:
            unspent = len(self._unspent(machine.vault))
            if body.weight != unspent * self.tokens_per_sample:
                self.fail(f"{machine.peer} says weight {body.weight}, behind its pending work are {unspent} samples")

    def _unspent(self, vault: Vault) -> list[int]:
        """Samples behind pending work that no entry up to the vault's version has counted."""
        seen = {w.id: w for pending in vault.pending for w in pending if w.spent is None or w.spent > vault.version}
        return sorted(sample for work in seen.values() for sample in work.samples)

    def uncounted(self, machine: Machine) -> list[Work]:
        """Pieces of a machine's pending work that no entry has counted."""
        seen = {w.id: w for pending in machine.vault.pending for w in pending if w.spent is None and not w.dropped}
        return list(seen.values())

    def session_heard(self, machine: Machine) -> int:
        """The session that the last Welcome gave to this peer."""
        return self._welcomed.get(machine.peer, (NO_SESSION, 0))[0]

    def trained(self, machine: Machine, session: int, samples: tuple[int, ...]) -> tuple[Work]:
        """A trainer made progress on every part: different for every peer, training and part."""
        for pending in machine.vault.pending:
            for work in pending:
                if work.spent is None and set(work.samples) & set(samples):
                    self.fail(
                        f"{machine.peer} trains on samples {sorted(set(work.samples) & set(samples))} that are pending already"
                    )
        self.works += 1
        made = tuple(
            tuple(float(self.world.random.randint(-1000, 1000)) + 0.125 * (part + 1) for _ in range(width))
            for part, width in enumerate(self.model.widths)
        )
        work = Work(self.works, machine.peer, session, samples, made, [None] * self.model.parts)
        self.works_of.setdefault(machine.peer, []).append(work)
        return (work,)

    def train_ordered(self, machine: Machine, order: Train) -> None:
        """An engine orders training from `base`."""
        vault = machine.vault
        if vault.version != order.base or vault.applying is not None:
            self.fail(f"{machine.peer} trains from version {order.base} but holds {vault.version}")
        self.compare(machine)
        behind = self._unspent(vault)
        if order.trained != len(behind):
            self.fail(f"{machine.peer} is told that {order.trained} samples are behind its pending work; it is {len(behind)}")
        first = list(positions(order.lease))[: order.trained]
        if sorted(first) != behind:
            self.fail(f"{machine.peer} holds pending work on samples {behind}, the front of its lease is {first}")

    def contributes(self, machine: Machine, key: PartKey, payload: bytes) -> None:
        """A peer sends its pseudo-gradient of one part to a reducer."""
        plan = self.plans.get(key.round)
        if plan is None:
            self.fail(f"{machine.peer} contributes to round {key.round}, which has no plan")
            return
        work = tuple(machine.vault.pending[key.part])
        for piece in work:
            if piece.dropped:
                self.fail(f"{machine.peer} sends {piece} in round {key.round}, which it had given up")
            if piece.committed[key.part] is not None:
                self.fail(f"{machine.peer} sends {piece} in round {key.round}: entry {piece.committed[key.part]} has it already")
        sent = self.contributed.get((key.round, machine.peer, key.part))
        if sent is None:
            sent = self.contributed[key.round, machine.peer, key.part] = Contributed(payload, work)
            weight = next((c.weight for c in plan.contributions if c.peer == machine.peer), None)
            unspent = len(self._unspent(machine.vault)) * self.tokens_per_sample
            if weight != unspent:
                self.fail(f"{machine.peer} contributes {unspent} tokens to round {key.round}, the plan weighs them {weight}")
        if sent.payload != payload:
            self.fail(f"{machine.peer} sends two different contributions to part {key.part} of round {key.round}")
        sent.attempts.add(key.attempt)

    def drops_pending(self, machine: Machine, effects_to_come: Sequence[Effect]) -> None:
        """Pending work is given up: only for a membership that is over, or because a whole state replaces what the peer has."""
        replaced = any(isinstance(effect, FetchState) for effect in effects_to_come)
        for pending in machine.vault.pending:
            for work in pending:
                if all(version is not None for version in work.committed):
                    continue
                if self.session_of.get(machine.peer) == work.session and not replaced:
                    self.fail(f"{machine.peer} drops {work} although its session {work.session} goes on")
                work.dropped = True

    def trainer_drops(self, machine: Machine) -> None:
        """A trainer found its progress not finite and says so."""
        for pending in machine.vault.pending:
            for work in pending:
                work.dropped = True

    # --- shared state -----------------------------------------------------------------------------------------------------------

    def built(self, machine: Machine, state: State) -> bytes:
        """A peer built version 0."""
        root = values.root(0, state)
        self.origins[root] = state
        return root

    def apply_begins(self, machine: Machine, commit: Commit) -> None:
        """A peer is about to change shared state."""
        record = self.commits.get(commit.version)
        if record is None or record.decisions != commit.parts:
            self.fail(f"{machine.peer} applies version {commit.version}, which the journal does not know")

    def applied(self, machine: Machine, commit: Commit, included: tuple[bool, ...]) -> None:
        """A vault is at `commit.version` now."""
        self.compare(machine)
        for decision, mine in zip(commit.parts, included, strict=True):
            if mine and machine.peer not in decision.contributors:
                self.fail(f"{machine.peer} forgets its work on part {decision.part}, which entry {commit.version} does not contain")
        self.account(machine)
        self.nothing_is_missing(machine)
        self.works_of[machine.peer] = [w for w in self.works_of.get(machine.peer, ()) if not w.dropped and None in w.committed]

    def is_sound(self, vault: Vault) -> bool:
        """Whether a vault holds the run's state, and not a version 0 of its own, nor bytes that rotted."""
        return not vault.rotten and (vault.version != 0 or tuple(vault.state) == self.lineage.get(0))

    def may_rot(self, machine: Machine) -> bool:
        """Rot is only fair where a clear majority of sound copies can outvote it."""
        sound = [m for m in self.machines.values() if m.alive and m.vault.version >= self.version - 1 and not m.vault.rotten]
        return len(sound) > 3 and not any(m.vault.rotten for m in self.machines.values())

    def installed(self, machine: Machine) -> None:
        """A fetched state is in a vault."""
        self.compare(machine)

    def compare(self, machine: Machine) -> None:
        """Members at a version hold the same bytes."""
        vault = machine.vault
        if vault.version == NO_VERSION or (vault.version == 0 and not self.bound) or vault.rotten:
            return
        truth = self.lineage.get(vault.version)
        if truth is None:
            self.fail(f"{machine.peer} is at version {vault.version}, the log ends at {self.version}")
            return
        expected: list[PartState] = list(truth)
        if vault.applying is not None:
            expected[: vault.progress] = self.lineage[vault.applying.commit.version][: vault.progress]
        if vault.state != expected:
            different = [part for part, (mine, true) in enumerate(zip(vault.state, expected, strict=True)) if mine != true]
            self.fail(f"{machine.peer}'s version {vault.version} differs from the log's in parts {different}")

    def account(self, machine: Machine) -> None:
        """What a vault holds as pending is in no entry that the vault has applied."""
        vault = machine.vault
        for part, pending in enumerate(vault.pending):
            for work in pending:
                version = work.committed[part]
                if version is not None and version <= vault.version:
                    self.fail(
                        f"{machine.peer} is at version {vault.version} and holds {work} as pending, which is in entry {version}"
                    )

    def nothing_is_missing(self, machine: Machine) -> None:
        """Every piece of work is committed, pending or given up, per part."""
        vault = machine.vault
        for work in self.works_of.get(machine.peer, ()):
            for part in range(self.model.parts):
                if work.committed[part] is None and not work.dropped and work not in vault.pending[part]:
                    self.fail(f"{work}: part {part} is in no entry, not pending, and was never dropped")

    def vault_lost(self, vault: Vault) -> None:
        """A machine burned down."""
        for pending in vault.pending:
            for work in pending:
                work.dropped = True

    def exits(self, machine: Machine, code: int, reason: str) -> None:
        """A daemon ended: on purpose, or because the coordinator still hears its predecessor.

        It outwaits a predecessor that it knows of, except a coordinator that stands still longer than it is patient. Who cannot
        fetch the last version of a run that is over fails, too, as does everybody when it was stopped before there was any.
        """
        excused = machine.vault.session == NO_SESSION or self.world.weather.freeze_every_s > 0
        over = self.ended.version if self.ended is not None else None
        too_late = over is not None and (machine.vault.version < over or over == NO_VERSION)
        if code != 0 and not too_late and not (excused and "is a member already" in reason):
            self.fail(f"{machine.peer} gives up: {reason}")
        if code == 0 and self.ended is not None and not (machine.exports or machine.helper or machine.leaving):
            self.fail(f"the run is over, and {machine.peer} leaves without having written the model: {reason}")
        self.exit_codes[reason] = self.exit_codes.get(reason, 0) + 1


def spans(samples: Sequence[int]) -> tuple[Span, ...]:
    """Samples as spans, for messages to people."""
    result: list[Span] = []
    for sample in samples:
        if result and result[-1].stop == sample:
            result[-1] = Span(result[-1].start, sample + 1)
        else:
            result.append(Span(sample, sample + 1))
    return tuple(result)
