"""What the run waits for, in sentences that name what is there, what is needed and what would help.

Questions only. Rule: a wait of more than SILENCE_S is explained to everybody who waits. Neighbours: `core` asks whenever something
changed, and tells the members; `views` shows it to operators.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

from shoal.coordinator.claims import LINE_LIMIT
from shoal.coordinator.ledger import Ledger
from shoal.coordinator.roster import Roster
from shoal.coordinator.rounds import Round, RoundState
from shoal.protocol.messages import NO_VERSION, Notice
from shoal.protocol.spec import RunSpec

SILENCE_S = 5.0
"""A wait longer than this is explained to those who wait."""
NAMED = 5
"""Members that a wait names; the others are counted."""
ABANDON_PAUSE_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pause before the next round after so many abandoned ones in a row."""
REACHABLE_FIX = (
    "let one peer listen on an address that the others reach (--listen, --advertise), or start one that is dialable with"
    " `shoal peer join --helper`; the coordinator's machine can run it"
)


@dataclass(frozen=True)
class Waiting:
    """Why no round can open, and what would help. Empty `what`: nothing is missing."""

    what: str = ""
    have: int = 0
    need: int = 0
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.what[:LINE_LIMIT]} (have {self.have}, need {self.need}): {self.fix[:LINE_LIMIT]}" if self.what else ""

    def notice(self) -> Notice:
        """The same, for peers."""
        return Notice(self.what[:LINE_LIMIT], self.have, self.need, self.fix[:LINE_LIMIT])


PAUSED = Waiting("an operator to resume the run", 0, 1, "shoal admin resume")


@dataclass
class Backoff:
    """The pauses after rounds that were abandoned."""

    in_a_row: int = 0
    until: float = 0.0
    _since: float = 0.0
    _why: str = ""

    def abandoned(self, why: str, now: float) -> None:
        """Another one."""
        self.until = now + ABANDON_PAUSE_S[min(self.in_a_row, len(ABANDON_PAUSE_S) - 1)]
        self._since, self._why = now, why
        self.in_a_row += 1

    def waiting(self, now: float) -> Waiting:
        """Whether the next round waits for that, long enough to be said."""
        if self.until - self._since <= SILENCE_S or now >= self.until:
            return Waiting()
        return Waiting(f"the next round, because {self._why}", 0, 1, "it opens by itself; the members' own logs say more")


def in_round(round_: Round, ledger: Ledger, roster: Roster, now: float) -> Waiting:
    """Whom the round in flight waits for."""
    if round_.state is RoundState.GATHERING and now >= round_.explain_at:
        names = _names(roster, round_.members - round_.ready.keys())
        have, need = len(round_.ready), len(round_.members)
        return Waiting(f"{names or 'a reconnecting member'} to finish training in round {round_.id}", have, need, "nothing to do")
    if round_.state is RoundState.REDUCING and now >= round_.planned_at + SILENCE_S:
        parts, decided = len(round_.reducer_of), len(round_.decisions)
        if decided < parts:
            members = [ledger.member_of(peer) for peer in round_.undecided_reducers()]
            names = _names(roster, {member.session for member in members if member is not None})
            by = f" by {names}" if names else ""
            return Waiting(f"round {round_.id} to be reduced{by}", decided, parts, "nothing to do")
        names = _names(roster, round_.missing())
        have, need = len(round_.complete()), len(round_.collectors)
        return Waiting(f"{names or 'members'} to receive the result of round {round_.id}", have, need, "nothing to do")
    return Waiting()


def for_members(spec: RunSpec, ledger: Ledger, roster: Roster, seekers: Set[int]) -> Waiting:
    """Which members are missing before a round can open. `seekers`: sessions that look for the shared state in vain."""
    active, trainers, need = roster.active(), roster.trainers(), spec.run.min_peers
    if returning := sum(p.connection is None for p in roster):
        lost_after = f"they reconnect by themselves, or are lost after {spec.timing.lost_after_s:g} s"
        return Waiting(f"{returning} member{'s' if returning > 1 else ''} to come back", len(active), len(roster), lost_after)
    if len(trainers) >= need:
        return Waiting()
    here = [p for p in roster if p.connection is not None and not (p.goodbye or p.sent_off or ledger.members[p.session].helper)]
    if ledger.bound and not trainers and here and all(p.session in seekers for p in here):
        held = max(p.version for p in here)
        newest = f"newest here: {'none' if held < 0 else held}"
        fix = f"start a peer that still has its local copy ({newest})"
        return Waiting(f"a member that holds version {ledger.version}", 0, 1, fix)
    if active and any(p.session in seekers for p in here):
        return Waiting("a member that others can dial", 0, 1, REACHABLE_FIX)
    if len(here) >= need:
        fix = "they start their trainers or fetch the state by themselves"
        return Waiting("enough members to get ready", len(trainers), need, fix)
    more = need - len(here)
    fix = "invite more with `shoal admin invite`, or wait"
    return Waiting(f"{more} more peer{'s' if more > 1 else ''}", len(here), need, fix)


def for_reach(roster: Roster) -> Waiting:
    """Whether a member is missing that others can dial."""
    active = roster.active()
    if len(active) <= 1 or any(roster.dialable(p.session) for p in active):
        return Waiting()
    return Waiting("a member that others can dial", 0, 1, REACHABLE_FIX)


def for_state(ledger: Ledger, roster: Roster) -> Waiting:
    """What a member waits for that nobody can give the newest version to."""
    version = ledger.version
    if version == NO_VERSION:
        return Waiting("a peer that builds version 0", 0, 1, "a helper does not train: start a peer without --helper")
    if roster.active():
        fix = f"neither this peer nor those that hold it can be dialled: {REACHABLE_FIX}"
    else:
        held = max((p.version for p in roster), default=NO_VERSION)
        fix = f"start a peer that still has its local copy (newest here: {'none' if held < 0 else held})"
    return Waiting(f"a peer that can hand over version {version}", 0, 1, fix)


def _names(roster: Roster, sessions: Collection[int]) -> str:
    """Who these are, in a line that is never long: everybody hears it."""
    named = [roster.name(session) for session in sorted(sessions)[:NAMED]]
    return ", ".join(named) + (f" and {len(sessions) - NAMED} more" if len(sessions) > NAMED else "")
