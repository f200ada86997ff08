"""`shoal admin ...`: look at a run and steer it. Every command takes `--json`, which prints the coordinator's answer as it
is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

if TYPE_CHECKING:
    from shoal.protocol import admin
    from shoal.protocol.admin import AdminCommand, AdminReply

app = typer.Typer(help="Look at a run and steer it.")

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "-d",
        metavar="DIR",
        help="The coordinator's directory. Default: this one, or the last made here.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
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
def rounds(directory: Directory = None, limit: Limit = 20, as_json: Json = False) -> None:
    """List the last rounds: outcome, contributors, bytes, times."""
    from shoal.protocol.admin import GetRounds

    _do(directory, GetRounds(limit), as_json)


@app.command()
def events(directory: Directory = None, limit: Limit = 50, as_json: Json = False) -> None:
    """List what happened lately."""
    from shoal.protocol.admin import GetEvents

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


def _do(directory: Path | None, command: AdminCommand, as_json: bool) -> None:
    from shoal import rundirs

    found = rundirs.find(directory)

    from shoal.adminclient import call, run_of

    run, reply = run_of(found), call(found, command)
    if as_json:
        from shoal.protocol.plain import to_plain

        typer.echo(json.dumps(to_plain(reply), indent=2))
    else:
        from shoal.narration import printable
        from shoal.protocol import admin

        if not isinstance(reply, admin.Status):  # which says it itself
            typer.echo(f"run {run}:", err=True)
        for line in describe(reply):
            typer.echo(printable(line))


def describe(reply: AdminReply) -> list[str]:
    """The lines that a person reads."""
    from shoal.protocol import admin

    match reply:
        case admin.Status():
            return _status_lines(reply)
        case admin.Peers(peers=members):
            return _peer_lines(members)
        case admin.Rounds(rounds=listed):
            return _round_lines(listed)
        case admin.Events(events=happened):
            return [f"{_clock(event.at)}  {event.text}" for event in happened] or ["nothing happened yet"]
        case admin.Invitation():
            return [reply.line]
        case admin.Done():
            return [reply.text]
        case _:
            assert_never(reply)


def _status_lines(status: admin.Status) -> list[str]:
    from shoal.panel import amount

    share = status.committed_tokens / status.total_tokens if status.total_tokens else 0.0
    facts = [
        ("run", status.run),
        ("phase", status.phase),
        ("version", str(status.version) if status.version >= 0 else "none yet"),
        ("round", str(status.round)),
        ("members", f"{status.members} (needs {status.min_peers})"),
        ("tokens", f"{amount(status.committed_tokens)} of {amount(status.total_tokens)} ({share:.0%})"),
    ]
    if status.bits_per_byte > 0:
        facts.append(("held-out", f"{status.bits_per_byte:.3f} bits per byte at version {status.evaluated_version}"))
    if status.root:
        facts.append(("fingerprint", status.root))
    if status.waiting_for:
        facts.append(("waiting for", status.waiting_for))
    return [f"{name:<12} {value}" for name, value in facts]


def _peer_lines(members: Sequence[admin.PeerView]) -> list[str]:
    from shoal.panel import amount, bits, duration

    rows = [
        (
            peer.peer[:12],
            peer.name,
            peer.state,
            peer.phase,
            str(peer.version) if peer.version >= 0 else "",
            bits(peer.loss) if peer.loss > 0 else "",
            amount(peer.tokens_per_s) if peer.tokens_per_s > 0 else "",
            amount(peer.committed_tokens),
            peer.device,
            peer.address or "outbound only",
            duration(peer.silent_s),
        )
        for peer in members
    ]
    heads = ("peer", "name", "state", "phase", "version", "bits/byte", "tokens/s", "tokens", "device", "address", "silent")
    return columns(heads, rows) if rows else ["no peers"]


def _round_lines(listed: Sequence[admin.RoundView]) -> list[str]:
    from shoal.panel import amount, byte_count

    rows = [
        (
            str(entry.round),
            str(entry.version) if entry.version >= 0 else "",
            entry.state,
            f"{entry.contributors}/{entry.members}",
            amount(entry.weight),
            byte_count(entry.sent_bytes),
            f"{entry.train_s / (entry.train_s + entry.wait_s):.0%}" if entry.train_s > 0 else "",
            f"{entry.gather_s:.2f}",
            f"{entry.reduce_s:.2f}",
            f"{entry.commit_s:.2f}",
            entry.reason,
        )
        for entry in listed
    ]
    heads = ("round", "version", "state", "in", "tokens", "sent", "training", "gather s", "reduce s", "commit s", "reason")
    return columns(heads, rows) if rows else ["no rounds yet"]


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under their heads, each column as wide as its widest cell."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)]


def _clock(at: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
