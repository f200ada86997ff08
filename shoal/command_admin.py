"""`shoal admin ...`: look at a run and steer it. Every command takes `--json`, which prints the coordinator's answer as it
is."""

from __future__ import annotations

import enum
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.protocol.admin import AdminCommand, AdminReply, Events

app = typer.Typer(help="Look at a run and steer it.")

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "-d",
        metavar="DIR",
        help="The coordinator's directory, or a credential's (see grant). Default: this one, or the last made here.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Peer = Annotated[str, typer.Argument(metavar="PEER", help="Its name, its id, or the first 4 or more characters of that.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; the peer and the history are told.")]
FOLLOW_EVERY_S = 1.0
FOLLOWED_AT_ONCE = 1000


class Role(enum.StrEnum):
    """What an operator may do."""

    OBSERVER = "observer"
    ADMIN = "admin"


Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many, newest last.")]


@app.command()
def status(directory: Directory = None, as_json: Json = False) -> None:
    """Say how the run is: phase, version, members, progress, and what it waits for."""
    from shoal.protocol.admin import GetStatus

    _do(directory, GetStatus(), as_json)


@app.command()
def peers(directory: Directory = None, as_json: Json = False) -> None:
    """List the members: what each does, how far it is, how fast."""
    from shoal.protocol.admin import GetPeers

    _do(directory, GetPeers(), as_json)


@app.command()
def rounds(
    directory: Directory = None,
    limit: Limit = 20,
    of_peers: Annotated[
        bool, typer.Option("--peers", help="Show each round's deadlines, and what each peer did: late or in, norm and cosine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the last rounds: who contributed, weight, bytes, times, each beside what was expected."""
    from shoal.protocol.admin import GetRounds

    _do(directory, GetRounds(limit), as_json, of_peers)


@app.command()
def leaderboard(directory: Directory = None, limit: Limit = 50, as_json: Json = False) -> None:
    """List who contributed most: tokens, rounds, bytes, over all times that each was here."""
    from shoal.protocol.admin import GetLeaderboard

    _do(directory, GetLeaderboard(limit), as_json)


@app.command()
def events(
    directory: Directory = None,
    limit: Limit = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """List what happened lately, who asked for what included. With --follow --json: one event per line."""
    from shoal.protocol.admin import GetEvents

    if follow:
        _follow(directory, limit, as_json)
    else:
        _do(directory, GetEvents(limit), as_json)


@app.command()
def invite(
    directory: Directory = None,
    uses: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many peers may enrol with it.")] = 1,
    hours: Annotated[float, typer.Option(metavar="X", min=0.01, max=87_600, help="How long it may be used.")] = 24.0,
    as_json: Json = False,
) -> None:
    """Print a line with which more peers may join."""
    from shoal.protocol.admin import MakeInvite

    _do(directory, MakeInvite(uses, hours), as_json)


@app.command()
def invites(
    directory: Directory = None,
    spent: Annotated[bool, typer.Option("--all", help="Those that let nobody in any more, too.")] = False,
    as_json: Json = False,
) -> None:
    """List the invites that let somebody in: uses left, who made them, until when."""
    from shoal.protocol.admin import GetInvites

    _do(directory, GetInvites(spent), as_json)


@app.command()
def revoke(
    invite: Annotated[str, typer.Argument(metavar="INVITE", help="Its id (see invites), or the line itself.", show_default=False)],
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Let nobody in with an invite any more; who came in with it stays."""
    from shoal.protocol.admin import RevokeInvite
    from shoal.protocol.invites import PREFIX, parse

    _do(directory, RevokeInvite(parse(invite).id if invite.startswith(PREFIX) else invite), as_json)


@app.command()
def pause(directory: Directory = None, as_json: Json = False) -> None:
    """Open no further rounds; the one in flight finishes."""
    from shoal.protocol.admin import Pause

    _do(directory, Pause(), as_json)


@app.command()
def resume(directory: Directory = None, as_json: Json = False) -> None:
    """Open rounds again."""
    from shoal.protocol.admin import Resume

    _do(directory, Resume(), as_json)


@app.command()
def stop(directory: Directory = None, as_json: Json = False) -> None:
    """End the run after one last synchronisation; every peer writes the model and leaves."""
    from shoal.protocol.admin import Stop

    _do(directory, Stop(), as_json)


@app.command()
def kick(peer: Peer, reason: Reason = "", directory: Directory = None, as_json: Json = False) -> None:
    """End a peer's membership now; it may return when its owner joins again."""
    from shoal.protocol.admin import Kick

    _do(directory, Kick(peer, reason), as_json)


@app.command()
def ban(peer: Peer, reason: Reason = "", directory: Directory = None, as_json: Json = False) -> None:
    """End a peer's membership now, and never let its identity return; also ends an operator's credential, by its whole id."""
    from shoal.protocol.admin import Ban

    _do(directory, Ban(peer, reason), as_json)


@app.command()
def unban(peer: Peer, directory: Directory = None, as_json: Json = False) -> None:
    """Let a banned identity return."""
    from shoal.protocol.admin import Unban

    _do(directory, Unban(peer), as_json)


@app.command()
def drain(peer: Peer, directory: Directory = None, as_json: Json = False) -> None:
    """Let a peer leave in good order when its round is over."""
    from shoal.protocol.admin import Drain

    _do(directory, Drain(peer), as_json)


@app.command("set")
def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A setting, such as run.min_peers.", show_default=False)] = "",
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What it is from now on.", show_default=False)] = "",
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Change a setting while the run goes on; without KEY and VALUE, list those that can be changed."""
    from shoal.failures import SettingsError
    from shoal.protocol.admin import Change, GetSettings

    if key and not value:
        raise SettingsError(f"{key} is to be set to what?", "shoal admin set KEY VALUE; without both, the settings are listed")
    _do(directory, Change(key, value) if key else GetSettings(), as_json)


@app.command()
def grant(
    role: Annotated[Role, typer.Argument(help="An observer may look, an admin may act.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="Where the credential is made; it must not exist yet, or be empty.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Whose it is; the history says so.")] = "",
    days: Annotated[float, typer.Option(metavar="X", min=0.001, max=365, help="How long it is good for.")] = 30.0,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Make a credential for another operator: a directory to hand over, and to name with --dir."""
    from shoal import rundirs
    from shoal.adminclient import grant as make

    granted = make(rundirs.find_operators(directory), role.value, rundirs.normal(to), name, days)
    if as_json:
        _print_json(granted)
    else:
        typer.echo(f"{granted.peer} is {granted.role} for {days:g} days. Hand {to} over by a safe way: it holds a private key.")
        typer.echo(f"with it: shoal admin status --dir {to}; to take it back: shoal admin ban {granted.peer}")


def _do(directory: Path | None, command: AdminCommand, as_json: bool, of_peers: bool = False) -> None:
    from shoal import rundirs

    found = rundirs.find_operators(directory)

    from shoal.adminclient import call, run_of

    run, reply = run_of(found), call(found, command)
    if as_json:
        _print_json(reply)
    else:
        from shoal.admintables import describe, peers_of_rounds
        from shoal.narration import printable
        from shoal.protocol import admin

        if not isinstance(reply, admin.Status):  # which says it itself
            typer.echo(f"run {run}:", err=True)
        for line in peers_of_rounds(reply) if of_peers and isinstance(reply, admin.Rounds) else describe(reply):
            typer.echo(printable(line))


def _print_json(reply: AdminReply) -> None:
    from shoal.protocol.plain import to_plain

    typer.echo(json.dumps(to_plain(reply), indent=2))


def _follow(directory: Path | None, limit: int, as_json: bool) -> None:
    """Print events as they come. A coordinator that goes away meanwhile is waited for, and said once."""
    from shoal import rundirs
    from shoal.adminclient import call
    from shoal.protocol.admin import Events, GetEvents
    from shoal.protocol.errors import UnreachableError

    found = rundirs.find_operators(directory)
    newest, lost = 0, False
    reply = call(found, GetEvents(limit))
    try:
        while True:
            assert isinstance(reply, Events)
            newest = _print_events(reply, as_json, newest)
            time.sleep(FOLLOW_EVERY_S)
            try:
                reply, lost = call(found, GetEvents(FOLLOWED_AT_ONCE if newest else limit, newest)), False
            except UnreachableError as error:
                if not lost:
                    typer.echo(f"{error}; tried again until it is back", err=True)
                reply, lost = Events(()), True
    except KeyboardInterrupt:
        return  # the way to end it


def _print_events(reply: Events, as_json: bool, newest: int) -> int:
    """Returns the number of the newest event so far."""
    from shoal.admintables import event_line
    from shoal.narration import printable
    from shoal.protocol.plain import to_plain

    for event in reply.events:
        typer.echo(json.dumps(to_plain(event)) if as_json else printable(event_line(event)))
        newest = max(newest, event.number)
    return newest
