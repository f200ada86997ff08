"""What operators may do to a run, and what follows from it.

Rule: nothing is changed here. A `Ruling` is the answer, with what makes it true: records to journal and memberships to end; or the
answer is an error, and nothing follows. Neighbours: `core` obeys the ruling, `naming` finds whom an operator means, `settings` says
what may be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from shoal.coordinator import naming, settings
from shoal.coordinator.ledger import Ledger, Member
from shoal.coordinator.records import (
    DrainAsked,
    PauseSet,
    PeerBanned,
    PeerKicked,
    PeerUnbanned,
    Record,
    RunStopping,
    SettingChanged,
)
from shoal.coordinator.roster import Roster
from shoal.protocol.admin import AdminError, Ban, Change, Done, Drain, Kick, Pause, Resume, Stop, Unban
from shoal.protocol.messages import PeerId
from shoal.protocol.spec import RunSpec

BANS_LIMIT = 10_000
"""Banned identities; every peer keeps the list."""

Verb = Pause | Resume | Stop | Kick | Ban | Unban | Drain | Change


@dataclass(frozen=True)
class Ruling:
    """An operator's answer, and what makes it true."""

    reply: Done | AdminError
    records: tuple[Record, ...] = ()
    ends: tuple[tuple[int, str], ...] = ()
    """Sessions that are over, and why; their peers do not come back by themselves."""


def rule(verb: Verb, by: PeerId, spec: RunSpec, ledger: Ledger, roster: Roster) -> Ruling:
    """What operator `by` is answered. `spec`: the run's as it was made, without what was set since."""
    match verb:
        case Ban(text, reason):
            return _ban(text, by, reason, ledger)
        case Unban(text):
            return _unban(text, by, ledger)
        case _ if ledger.ended is not None:
            return Ruling(
                AdminError(f"the run ended at version {ledger.ended.version}", "start a new run with `shoal coordinator init`")
            )
        case Pause():
            done = Done("paused: the round in flight finishes, no other opens")
            return Ruling(done, () if ledger.paused else (PauseSet(True, by),))
        case Resume():
            return Ruling(Done("resumed"), (PauseSet(False, by),) if ledger.paused else ())
        case Stop():
            stopping = Done("stopping: one last synchronisation, then every peer writes the model and leaves")
            done = stopping if len(roster) else Done("stopped: nobody was in the run")
            return Ruling(done, () if ledger.stopping else (RunStopping(by, "stopped by an operator"),))
        case Kick(text, reason):
            return _kick(text, by, reason, ledger, roster)
        case Drain(text):
            return _drain(text, by, ledger, roster)
        case Change(key, value):
            return _change(key, value, by, spec, ledger)
        case _:
            assert_never(verb)


def _kick(text: str, by: PeerId, reason: str, ledger: Ledger, roster: Roster) -> Ruling:
    member = _member_meant(text, ledger)
    if isinstance(member, AdminError):
        return Ruling(member)
    why = f"was kicked by an operator{_because(reason)}; it may join again"
    done = Done(f"kicked {roster.name(member.session)}: it may return when its owner joins again")
    return Ruling(done, (PeerKicked(member.peer, by, reason),), ((member.session, why),))


def _ban(text: str, by: PeerId, reason: str, ledger: Ledger) -> Ruling:
    names = {peer: did.name for peer, did in ledger.contributions.items()}
    found = naming.find(text, names, "known in this run")
    peer = text if isinstance(found, AdminError) and naming.is_whole_id(text) else found
    if isinstance(peer, AdminError):
        return Ruling(peer)
    if len(ledger.banned) >= BANS_LIMIT:
        return Ruling(AdminError(f"{BANS_LIMIT} identities are banned already", "take some back with `shoal admin unban`"))
    records = () if peer in ledger.banned else (PeerBanned(peer, by, reason),)
    member = ledger.member_of(peer)
    ends = ((member.session, f"was banned by an operator{_because(reason)}"),) if member is not None else ()
    label = naming.label(peer, names.get(peer, ""))
    return Ruling(Done(f"banned {label}: this identity never returns, unless it is unbanned"), records, ends)


def _unban(text: str, by: PeerId, ledger: Ledger) -> Ruling:
    known = ledger.contributions
    names = {peer: known[peer].name if peer in known else "" for peer in ledger.banned}
    peer = naming.find(text, names, "banned")
    if isinstance(peer, AdminError):
        return Ruling(peer)
    return Ruling(Done(f"unbanned {naming.label(peer, names[peer])}: it may join again"), (PeerUnbanned(peer, by),))


def _drain(text: str, by: PeerId, ledger: Ledger, roster: Roster) -> Ruling:
    member = _member_meant(text, ledger)
    if isinstance(member, AdminError):
        return Ruling(member)
    done = Done(f"draining {roster.name(member.session)}: it leaves when its round is over")
    return Ruling(done, () if member.session in ledger.draining else (DrainAsked(member.session, by),))


def _change(key: str, value: str, by: PeerId, spec: RunSpec, ledger: Ledger) -> Ruling:
    if ledger.stopping is not None:
        return Ruling(AdminError(f"the run is ending: {ledger.stopping.reason}", "start a new run with `shoal coordinator init`"))
    refused = settings.why_not(spec, ledger.settings, key, value, ledger.committed_tokens)
    if refused is not None:
        return Ruling(refused)
    return Ruling(Done(f"{key} is {value} from now on"), (SettingChanged(key, value, by),))


def _member_meant(text: str, ledger: Ledger) -> Member | AdminError:
    """The member that an operator names."""
    members = ledger.members.values()
    peer = naming.find(text, {member.peer: member.name for member in members}, "in the run now")
    return peer if isinstance(peer, AdminError) else next(member for member in members if member.peer == peer)


def _because(reason: str) -> str:
    """An operator's reason, as the end of a sentence."""
    return f" ({reason:.200})" if reason else ""
