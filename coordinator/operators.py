"""What operators ask: checked against the rights of their certificate, answered by the core or the shell, and written down.

Rule: every command of an operator that changes something, or is refused, ends up in the audit, and in the run's history, with who,
what, when and result before its answer leaves. Looking leaves no trace: a screen that is refreshed would drown the rest. Who is no
operator is refused before anything is written, and named in the history now and then.
Invites and credentials are made here because keys and tokens are the shell's, and events are read here because the journal keeps
them; all else is the core's. Neighbours: `performer` asks the core, `journal` keeps the audit, `enrolment` makes certificates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from shoal.coordinator.claims import Budget
from shoal.coordinator.enrolment import Registry
from shoal.coordinator.journal import Journal
from shoal.coordinator.performer import Performer
from shoal.protocol.admin import (
    AdminCommand,
    AdminError,
    AdminReply,
    Ban,
    Change,
    Done,
    Drain,
    Events,
    EventView,
    GetEvents,
    GetInvites,
    GetLeaderboard,
    GetPeers,
    GetRounds,
    GetSettings,
    GetStatus,
    Grant,
    Granted,
    Invitation,
    Kick,
    MakeInvite,
    Peers,
    PeerView,
    RevokeInvite,
    Unban,
)
from shoal.protocol.messages import PeerId
from shoal.protocol.tls import utc

Looks = GetStatus | GetPeers | GetRounds | GetEvents | GetSettings | GetLeaderboard | GetInvites
"""Commands that change nothing."""
LONGEST_INVITE_HOURS = 24.0 * 365 * 10
MOST_USES = 1_000_000
MOST_LINES = 10_000
REPLY_BYTES = 8 << 20
"""Of events in one answer."""
OPERATORS = frozenset({"admin", "observer"})


class Operators:
    """Carries out operators' commands. `certificate_until(peer)` says when a member's certificate ends (0: unknown); `owner` is the
    credential that `coordinator init` made, which nobody can ban."""

    def __init__(
        self,
        performer: Performer,
        journal: Journal,
        registry: Registry,
        certificate_until: Callable[[PeerId], float],
        owner: PeerId,
    ) -> None:
        self._performer = performer
        self._journal = journal
        self._registry = registry
        self._certificate_until = certificate_until
        self._owner = owner
        self._strangers = Budget()

    async def carry_out(self, by: PeerId, rights: frozenset[str], command: AdminCommand) -> AdminReply | AdminError:
        """The answer to one command."""
        if not rights & OPERATORS or self._registry.is_barred(by):
            return self._stranger(by)
        reply = await self._answer(by, rights, command)
        if isinstance(reply, AdminError) or not isinstance(command, Looks):
            await asyncio.to_thread(self._journal.audit, by, sentence(command), _result(reply))
        return reply

    async def _answer(self, by: PeerId, rights: frozenset[str], command: AdminCommand) -> AdminReply | AdminError:
        if why := self._why_not(by, rights, command):
            return why
        match command:
            case MakeInvite():
                return await self._invite(by, command)
            case GetInvites(spent):
                return await asyncio.to_thread(self._registry.invites, spent)
            case RevokeInvite(invite):
                return await asyncio.to_thread(self._registry.revoke, invite)
            case Grant():
                return await asyncio.to_thread(self._registry.grant, command, by)
            case GetEvents(limit, after):
                happened = await asyncio.to_thread(self._journal.events, min(max(1, limit), MOST_LINES), after)
                lines = [EventView(line.at, line.text, line.number, line.level) for line in happened]
                return Events(_that_fit(lines, after > 0))
            case _:
                reply = await self._performer.ask(by, command)
                return replace(reply, peers=tuple(map(self._with_certificate, reply.peers))) if isinstance(reply, Peers) else reply

    def _why_not(self, by: PeerId, rights: frozenset[str], command: AdminCommand) -> AdminError | None:
        if "admin" not in rights and not isinstance(command, Looks):
            return AdminError(f"the certificate of {by} has no admin right", _OTHER_CREDENTIAL)
        if isinstance(command, Ban) and command.peer in (by, self._owner):
            return AdminError("that is your own credential, or the one that the run was made with", "ban another")
        return None

    def _stranger(self, by: PeerId) -> AdminError:
        """Refuse who is no operator, whatever it asked; that costs next to nothing, because any volunteer could ask for ever."""
        allowed, left_out = self._strangers.spend(by, time.monotonic())
        banned = self._registry.is_barred(by)
        if allowed:
            more = f", and {left_out} times before" if left_out else ""
            self._performer.tell(f"{by} asked what operators ask{more}, and is {'banned' if banned else 'none'}", "warning")
        if banned:
            return AdminError(f"{by} is banned from this run", "ask the run's operator, who can take it back")
        return AdminError(f"the certificate of {by} has no admin or observer right", _OTHER_CREDENTIAL)

    def _with_certificate(self, peer: PeerView) -> PeerView:
        """The member with what the shell knows of its certificate, and a warning when its renewal is overdue."""
        ends = self._certificate_until(peer.peer)
        if not ends:
            return peer
        warning = ""
        if self._registry.overdue(ends):
            warning = (
                f"its certificate ends at {utc(ends)}, in {max(0.0, ends - time.time()):.0f} s, and was not renewed: "
                "it is cut off then; its log says why it cannot renew"
            )
        return replace(peer, certificate_until=ends, warning=warning)

    async def _invite(self, by: PeerId, command: MakeInvite) -> Invitation | AdminError:
        if not (1 <= command.uses <= MOST_USES and 0 < command.hours <= LONGEST_INVITE_HOURS):
            return AdminError(
                f"cannot make an invite for {command.uses} uses within {command.hours:g} hours",
                f"uses: 1 to {MOST_USES}; hours: above 0, at most {LONGEST_INVITE_HOURS:g}",
            )
        invite = await asyncio.to_thread(self._registry.invite, command.uses, command.hours, by)
        return Invitation(invite.line(), command.uses, command.hours, invite.id)


def _that_fit(events: list[EventView], oldest_first: bool) -> tuple[EventView, ...]:
    """As many as one message holds: of the newest ones, or, for who goes on from a number, of the next ones."""
    kept: list[EventView] = []
    room = REPLY_BYTES
    for event in events if oldest_first else reversed(events):
        room -= len(event.text.encode()) + 40
        if room < 0:
            break
        kept.append(event)
    return tuple(kept if oldest_first else reversed(kept))


_OTHER_CREDENTIAL = "use the admin credential in the coordinator's directory, or ask for one (shoal admin grant)"


def sentence(command: AdminCommand) -> str:
    """A command as the audit and the history tell it; what was said is cut, not hidden."""
    match command:
        case Kick(peer, reason) | Ban(peer, reason):
            return f"{type(command).__name__.lower()} {peer:.80}" + (f" ({reason:.200})" if reason else "")
        case Unban(peer) | Drain(peer):
            return f"{type(command).__name__.lower()} {peer:.80}"
        case Change(key, value):
            return f"set {key:.80} {value:.80}"
        case Grant(role, name):
            return f"grant {role:.40} to {name:.80}".rstrip()
        case RevokeInvite(invite):
            return f"revoke invite {invite:.80}"
        case MakeInvite(uses, hours):
            return f"invite for {uses} uses within {hours:g} h"
        case _:
            return type(command).__name__.removeprefix("Get").lower()


def _result(reply: AdminReply | AdminError) -> str:
    match reply:
        case AdminError(reason):
            return f"refused: {reason}"
        case Done(text):
            return text
        case Invitation(id=made):
            return f"made {made}"
        case Granted(peer, role):
            return f"{peer} is {role} now"
        case _:
            return "answered"
