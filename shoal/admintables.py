"""How an operator's answers look to a person: lines and tables. `--json` prints the answers as they are instead.

Neighbour: `command_admin` asks, and prints these.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import assert_never

from shoal.panel import amount, bits, byte_count, duration
from shoal.protocol import admin
from shoal.protocol.units import BITS_PER_BYTE

ID = 8
"""Characters of an id that are shown; they name a peer in commands, too."""


def describe(reply: admin.AdminReply) -> list[str]:
    """The lines that a person reads."""
    match reply:
        case admin.Status():
            return _status(reply)
        case admin.Peers(peers=members):
            return _peers(members)
        case admin.Rounds(rounds=listed):
            return _rounds(listed)
        case admin.Events(events=happened):
            return [event_line(event) for event in happened] or ["nothing happened yet"]
        case admin.RunSettings(settings=settings):
            rows = [(entry.key, entry.value, entry.initial, entry.meaning) for entry in settings]
            return columns(("setting", "is", "was", "means"), rows)
        case admin.Leaderboard(contributors=contributors, committed_tokens=tokens):
            return _leaderboard(contributors, tokens)
        case admin.Granted():
            return [f"{reply.peer} is {reply.role} now"]
        case admin.Invitation():
            return [reply.line]
        case admin.Invites(invites=listed):
            return _invites(listed)
        case admin.Done():
            return [reply.text]
        case _:
            assert_never(reply)


def event_line(event: admin.EventView) -> str:
    """One line of history, with this machine's time of day."""
    mark = "" if event.level == "info" else f"{event.level}: "
    return f"{local_time(event.at)}  {mark}{event.text}"


def local_time(at: float) -> str:
    """A Unix time as this machine's clock on the wall shows it."""
    return f"{datetime.datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under their heads, each column as wide as its widest cell."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)]


def _status(status: admin.Status) -> list[str]:
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
        facts.append(
            ("held-out", f"{status.bits_per_byte:.3f} {status.unit or BITS_PER_BYTE} at version {status.evaluated_version}")
        )
    if status.root:
        facts.append(("fingerprint", status.root))
    if status.waiting_for:
        facts.append(("waiting for", status.waiting_for))
    return [f"{name:<12} {value}" for name, value in facts]


def _peers(members: Sequence[admin.PeerView]) -> list[str]:
    rows = [
        (
            peer.peer[:12],
            peer.name,
            f"{peer.state}, draining" if peer.draining else peer.state,
            peer.phase,
            str(peer.version) if peer.version >= 0 else "",
            bits(peer.loss) if peer.loss > 0 else "",
            amount(peer.tokens_per_s) if peer.tokens_per_s > 0 else "",
            amount(peer.committed_tokens),
            peer.device,
            peer.address or "outbound only",
            peer.reach if peer.address else "",
            _link(peer),
            duration(peer.silent_s),
        )
        for peer in members
    ]
    heads = (
        "peer",
        "name",
        "state",
        "phase",
        "version",
        "bits",
        "tokens/s",
        "tokens",
        "device",
        "address",
        "dialled",
        "up/down",
        "silent",
    )
    warnings = [f"warning: {peer.name or peer.peer[:ID]}: {peer.warning}" for peer in members if peer.warning]
    return [*columns(heads, rows), *warnings] if rows else ["no peers"]


def _link(peer: admin.PeerView) -> str:
    """What its link carries, out and in, as far as it was measured."""
    rates = (peer.up_bytes_s, peer.down_bytes_s)
    return "/".join(f"{rate * 8 / 1e6:.3g}" if rate else "?" for rate in rates) + " Mb/s" if any(rates) else ""


def _rounds(listed: Sequence[admin.RoundView]) -> list[str]:
    rows = [
        (
            str(entry.round),
            str(entry.version) if entry.version >= 0 else "",
            entry.state,
            f"{entry.contributors}/{entry.members}",
            _against(amount(entry.weight), amount(entry.expected_weight) if entry.expected_weight else ""),
            _against(byte_count(entry.sent_bytes), byte_count(entry.expected_bytes) if entry.expected_bytes else ""),
            f"{entry.train_s / (entry.train_s + entry.wait_s):.0%}" if entry.train_s > 0 else "",
            _against(f"{entry.gather_s:.2f}", f"{entry.expected_gather_s:.2f}" if entry.expected_gather_s else ""),
            f"{entry.reduce_s:.2f}",
            f"{entry.commit_s:.2f}",
            entry.reason or ("without " + ", ".join(peer[:ID] for peer in entry.absent) if entry.absent else ""),
        )
        for entry in listed
    ]
    heads = ("round", "version", "state", "in", "tokens", "sent", "training", "gather s", "reduce s", "commit s", "remark")
    return columns(heads, rows) if rows else ["no rounds yet"]


def peers_of_rounds(reply: admin.Rounds) -> list[str]:
    """Each round's deadlines, and a line for each peer that was asked to take part."""
    lines = []
    for entry in reply.rounds:
        limits = (
            ("gather", entry.gather_s, entry.usual_gather_s, entry.gather_limit_s),
            ("reduce", entry.reduce_s, entry.usual_reduce_s, entry.reduce_limit_s),
            ("commit", entry.commit_s, entry.usual_commit_s, entry.delivery_limit_s),
        )
        took = [f"{what} {actual:.2f} s{_patience(usual, limit)}" for what, actual, usual, limit in limits]
        made = f"version {entry.version}" if entry.version >= 0 else entry.state
        rows = [
            (
                peer.peer[:ID],
                peer.name,
                peer.outcome,
                amount(peer.weight),
                f"{peer.ready_s:.2f}" if peer.ready_s else "",
                f"{peer.limit_s:.2f}",
                f"{peer.norm:.4g}" if peer.norm else "",
                f"{peer.cosine:+.3f}" if peer.norm and peer.cosine else "",
            )
            for peer in entry.peers
        ]
        lines.append(f"round {entry.round}, {made}: {'; '.join(took)}")
        heads = ("peer", "name", "work", "tokens", "ready s", "asked at", "norm", "cosine")
        lines += [f"  {line}" for line in columns(heads, rows)] if rows else []
    claims = "norm of a peer's update, and its cosine to the mean of the round: what that peer says of itself"
    return [*lines, claims] if lines else ["no rounds yet"]


def _patience(usual: float, limit: float) -> str:
    """What a step of a round usually takes, and takes at most."""
    known = [f"usually {usual:.2f}"] * bool(usual) + [f"at most {limit:.3g}"] * bool(limit)
    return f" ({', '.join(known)})" if known else ""


def _against(actual: str, expected: str) -> str:
    """What was, and what was to be."""
    return f"{actual} of {expected}" if expected else actual


def _invites(listed: Sequence[admin.InviteView]) -> list[str]:
    rows = [
        (
            entry.id,
            entry.state,
            str(entry.uses_left),
            str(entry.enrolled),
            local_time(entry.made_at),
            entry.made_by,
            local_time(entry.expires_at),
        )
        for entry in listed
    ]
    heads = ("invite", "state", "uses left", "came in", "made", "by", "ends")
    return columns(heads, rows) if rows else ["no invite lets anybody in; make one with `shoal admin invite`"]


def _leaderboard(contributors: Sequence[admin.Contributor], tokens: int) -> list[str]:
    rows = [
        (
            str(place),
            row.name,
            row.peer[:12],
            amount(row.tokens),
            f"{row.tokens / tokens:.1%}" if tokens else "",
            str(row.rounds),
            byte_count(row.sent_bytes),
            byte_count(row.received_bytes),
            "banned" if row.banned else ("here" if row.here else ""),
        )
        for place, row in enumerate(contributors, 1)
    ]
    heads = ("place", "name", "peer", "tokens", "share", "rounds", "sent", "received", "now")
    return columns(heads, rows) if rows else ["nobody was here yet"]
