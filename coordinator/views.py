"""What operators see of a run. Questions only: nothing here changes anything.

Neighbours: `core` answers operators with these; `shoal admin` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.coordinator.ledger import Ledger
from shoal.coordinator.roster import Presence, Roster
from shoal.coordinator.rounds import Round, RoundState
from shoal.protocol.admin import Peers, PeerView, Rounds, RoundView, Status
from shoal.protocol.messages import NO_VERSION, Notice
from shoal.protocol.spec import RunSpec


@dataclass(frozen=True)
class Waiting:
    """Why no round can open, and what would help. Empty `what`: nothing is missing."""

    what: str = ""
    have: int = 0
    need: int = 0
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.what} (have {self.have}, need {self.need}): {self.fix}" if self.what else ""

    def notice(self) -> Notice:
        """The same, for peers."""
        return Notice(self.what, self.have, self.need, self.fix)


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
        len(roster.active()),
        spec.run.min_peers,
        ledger.committed_tokens,
        spec.run.total_tokens,
        evaluation.bits_per_byte if evaluation else 0.0,
        evaluation.version if evaluation else NO_VERSION,
        agreed.root.hex() if agreed else "",
    )


def peers(ledger: Ledger, roster: Roster, now: float) -> Peers:
    """All members."""
    return Peers(tuple(_peer(ledger, presence, now) for presence in roster))


def rounds(ledger: Ledger, limit: int) -> Rounds:
    """The last rounds, newest last."""
    return Rounds(tuple(RoundView(**vars(summary)) for summary in list(ledger.history)[-max(1, limit) :]))


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
    )
