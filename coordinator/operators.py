"""What operators ask: checked against the rights of their certificate, answered by the core or the shell, and written down.

Rule: every command that changes something, and everything that is refused, ends up in the audit with who, what, when and result
before its answer leaves. Looking leaves no trace: a screen that is refreshed would drown the rest. Invites are made here because
tokens are the shell's; all else is the core's. Neighbours: `performer` asks the core, `journal` keeps the audit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from shoal.coordinator.journal import Journal
from shoal.coordinator.performer import Performer
from shoal.protocol.admin import (
    AdminCommand,
    AdminError,
    AdminReply,
    Done,
    Events,
    GetEvents,
    GetPeers,
    GetRounds,
    GetStatus,
    Invitation,
    MakeInvite,
)
from shoal.protocol.invites import Invite
from shoal.protocol.messages import PeerId

Looks = GetStatus | GetPeers | GetRounds | GetEvents
"""Commands that change nothing."""
LONGEST_INVITE_HOURS = 24.0 * 365 * 10
MOST_USES = 1_000_000


class Operators:
    """Carries out operators' commands. `make_invite(uses, hours, by)` blocks until the token is durable."""

    def __init__(self, performer: Performer, journal: Journal, make_invite: Callable[[int, float, PeerId], Invite]) -> None:
        self._performer = performer
        self._journal = journal
        self._make_invite = make_invite

    async def carry_out(self, by: PeerId, rights: frozenset[str], command: AdminCommand) -> AdminReply | AdminError:
        """The answer to one command."""
        reply = await self._answer(by, rights, command)
        if isinstance(reply, AdminError) or not isinstance(command, Looks):
            await asyncio.to_thread(self._journal.audit, by, repr(command), _result(reply))
        return reply

    async def _answer(self, by: PeerId, rights: frozenset[str], command: AdminCommand) -> AdminReply | AdminError:
        if not ("admin" in rights or (isinstance(command, Looks) and "observer" in rights)):
            return AdminError(
                f"the certificate of {by} has no admin right", "use the admin credential in the coordinator's directory"
            )
        if isinstance(command, MakeInvite):
            return await self._invite(by, command)
        reply = await self._performer.ask(by, command)
        if isinstance(reply, Events):
            started = time.time() - time.monotonic()  # the core's times are monotonic; people want the wall clock
            return Events(tuple(replace(event, at=started + event.at) for event in reply.events))
        return reply

    async def _invite(self, by: PeerId, command: MakeInvite) -> Invitation | AdminError:
        if not (1 <= command.uses <= MOST_USES and 0 < command.hours <= LONGEST_INVITE_HOURS):
            return AdminError(
                f"cannot make an invite for {command.uses} uses within {command.hours:g} hours",
                f"uses: 1 to {MOST_USES}; hours: above 0, at most {LONGEST_INVITE_HOURS:g}",
            )
        invite = await asyncio.to_thread(self._make_invite, command.uses, command.hours, by)
        return Invitation(invite.line(), command.uses, command.hours)


def _result(reply: AdminReply | AdminError) -> str:
    match reply:
        case AdminError(reason):
            return f"refused: {reason}"
        case Done(text):
            return text
        case Invitation(_, uses, hours):
            return f"invite for {uses} uses within {hours:g} h"
        case _:
            return "answered"
