"""What operators see of a run. Questions only: nothing here changes anything.

Neighbours: `core` answers operators with these; `shoal admin` shows them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shoal.coordinator.ledger import Ledger, RoundSummary
from shoal.coordinator.pace import KEPT
from shoal.coordinator.records import Showing
from shoal.coordinator.roster import Presence, Roster
from shoal.coordinator.rounds import Round, RoundState
from shoal.coordinator.waits import Waiting
from shoal.protocol.admin import Contributor, Leaderboard, Peers, PeerView, RoundPeerView, Rounds, RoundView, Status
from shoal.protocol.messages import NO_VERSION, PeerId
from shoal.protocol.spec import RunSpec

LINES_LIMIT = 20_000
"""Lines about single peers in one answer about rounds; the newest rounds have theirs. One message holds no more."""
ABSENT_LISTED = 16
PEERS_AT_ONCE = 1000
"""Members in one answer: whatever they say of themselves, one message holds them, and the core is not kept from others for long."""


def phase(ledger: Ledger, round_: Round | None) -> str:
    """Where the run is, in a word."""
    if ledger.ended is not None:
        return "ended"
    if ledger.stopping is not None:
        return "stopping"
    if round_ is not None:
        return "training" if round_.state is RoundState.GATHERING else "reducing"
    return "paused" if ledger.paused else "waiting"


def status(spec: RunSpec, ledger: Ledger, round_: Round | None, roster: Roster, waiting: Waiting) -> Status:
    """The run at a glance."""
    evaluation = ledger.evaluation
    agreed = next(reversed(ledger.fingerprints.values()), None)
    return Status(
        ledger.run,
        ledger.term,
        phase(ledger, round_),
        str(waiting),
        ledger.version,
        round_.id if round_ is not None else ledger.next_round - 1,
        len(roster.trainers()),
        spec.run.min_peers,
        ledger.committed_tokens,
        spec.end_tokens,
        evaluation.bits_per_byte if evaluation else 0.0,
        evaluation.version if evaluation else NO_VERSION,
        agreed.root.hex() if agreed else "",
        spec.data.unit,
    )


def peers(ledger: Ledger, roster: Roster, now: float, after: int = 0) -> Peers:
    """Members of sessions after that one, as many as one answer holds."""
    later = sorted((presence for presence in roster if presence.session > after), key=lambda presence: presence.session)
    return Peers(tuple(_peer(ledger, presence, now) for presence in later[:PEERS_AT_ONCE]), len(later) > PEERS_AT_ONCE)


def rounds(ledger: Ledger, limit: int) -> Rounds:
    """The last rounds, newest last, each with what the ones before it let expect."""
    history = list(ledger.history)
    first = max(0, len(history) - max(1, limit))
    names = {peer: did.name for peer, did in ledger.contributions.items()}
    names |= {member.peer: member.name for member in (*ledger.limbo.values(), *ledger.members.values())}
    views: list[RoundView] = []
    room = LINES_LIMIT
    for at in reversed(range(first, len(history))):
        view = _round(history[at], history[max(0, at - KEPT) : at], names)
        room -= len(view.peers)
        views.append(view if room >= 0 else replace(view, peers=()))
    return Rounds(tuple(reversed(views)))


def leaderboard(ledger: Ledger, limit: int) -> Leaderboard:
    """Who did most, most first."""
    here = {member.peer for member in ledger.members.values()}
    ranked = sorted(ledger.contributions.items(), key=lambda item: (-item[1].tokens, item[0]))[: max(1, limit)]
    rows = (
        Contributor(peer, did.name, did.tokens, did.rounds, did.sent_bytes, did.received_bytes, peer in here, peer in ledger.banned)
        for peer, did in ranked
    )
    return Leaderboard(tuple(rows), ledger.committed_tokens)


def _round(summary: RoundSummary, before: Sequence[RoundSummary], names: Mapping[PeerId, str]) -> RoundView:
    committed = [earlier for earlier in before if earlier.state == "committed"]

    def usual(times: Iterable[float]) -> float:
        return statistics.median(found) if (found := list(times)) else 0.0

    limits = summary.limits
    absent = (
        tuple(peer for peer in summary.who if peer not in summary.included)[:ABSENT_LISTED] if summary.version != NO_VERSION else ()
    )
    return RoundView(
        summary.round,
        summary.version,
        summary.state,
        len(summary.who),
        len(summary.included),
        summary.weight,
        summary.sent_bytes,
        summary.train_s,
        summary.wait_s,
        summary.gather_s,
        summary.reduce_s,
        summary.commit_s,
        summary.reason,
        summary.received_bytes,
        summary.expected_weight,
        summary.expected_bytes,
        summary.expected_gather_s,
        absent,
        gather_limit_s=limits.gather_s,
        part_limit_s=limits.part_s,
        reduce_limit_s=limits.reduce_s,
        delivery_limit_s=limits.delivery_s,
        usual_gather_s=usual(earlier.gather_s for earlier in committed),
        usual_reduce_s=usual(earlier.reduce_s for earlier in committed),
        usual_commit_s=usual(earlier.commit_s for earlier in committed),
        peers=tuple(
            _shown(showing, names.get(showing.peer, ""), *summary.claims.get(showing.peer, (0.0, 0.0)))
            for showing in summary.showings
        ),
    )


def _shown(showing: Showing, name: str, norm: float, cosine: float) -> RoundPeerView:
    """What a peer said when it was ready, and then, when it had applied the entry, of the parts that contain its work."""
    return RoundPeerView(
        showing.peer,
        name,
        showing.outcome,
        showing.weight,
        showing.ready_s,
        showing.limit_s,
        norm or showing.norm,
        cosine,
    )


def _peer(ledger: Ledger, presence: Presence, now: float) -> PeerView:
    member, beat = ledger.members[presence.session], presence.heartbeat
    return PeerView(
        member.peer,
        member.name,
        member.session,
        presence.standing.value if presence.connection is not None else "reconnecting",
        member.address,
        member.device,
        presence.version,
        beat.phase,
        max(0.0, now - presence.last_heard),
        beat.tokens_per_s,
        beat.loss,
        member.committed_tokens,
        member.software,
        member.session in ledger.draining,
        reach=presence.way.reach.value,
        helper=member.helper,
        up_bytes_s=beat.up_bytes_s,
        down_bytes_s=beat.down_bytes_s,
        seen_from=presence.way.seen_from if presence.connection is not None else "",
    )
