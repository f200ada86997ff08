"""What programs ask a coordinator: lists that come in pieces are put together."""

from __future__ import annotations

from dataclasses import replace

from shoal.adminclient import everybody
from shoal.protocol.admin import AdminCommand, AdminError, GetPeers, Peers, PeerView

MEMBER = PeerView("p", "", 1, "active", "", "cpu", 0, "", 0.0, 0.0, 0.0, 0, "")
MEMBERS = tuple(replace(MEMBER, session=session) for session in (3, 4, 7, 8, 12))


async def two_at_once(command: AdminCommand) -> Peers | AdminError:
    assert isinstance(command, GetPeers)
    later = [member for member in MEMBERS if member.session > command.after]
    return Peers(tuple(later[:2]), len(later) > 2)


async def test_all_members_are_asked_for_piece_by_piece() -> None:
    assert await everybody(two_at_once) == Peers(MEMBERS)


async def test_a_refusal_is_the_answer() -> None:
    refusal = AdminError("not you")

    async def refused(command: AdminCommand) -> Peers | AdminError:
        return refusal

    assert await everybody(refused) is refusal


async def test_an_empty_piece_is_the_last_one_whatever_it_says() -> None:
    async def wrong(command: AdminCommand) -> Peers | AdminError:
        return Peers((), more=True)

    assert await everybody(wrong) == Peers(())
