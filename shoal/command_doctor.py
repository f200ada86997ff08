"""`shoal doctor`: would this machine do as a peer, and what should be put right before it joins?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.findings import Finding
    from shoal.protocol.invites import Invite

COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(
    invite: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INVITE",
            help="The line that the run's operator gave you, or a file that holds it; not spent. Without it, the run that this "
            "machine was in last.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="As for `shoal peer join`.")] = "0.0.0.0:0",
    advertise: Annotated[str, typer.Option(metavar="HOST[:PORT]", help="As for `shoal peer join`.", show_default=False)] = "",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="As for `shoal peer join`.")] = "auto",
    state: Annotated[Path | None, typer.Option(metavar="DIR", help="As for `shoal peer join`.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at this machine and the way to the coordinator before joining: ports, address, clock, speed, memory, device, TCP. Each
    line says ok, warn or fail and, if need be, what to do; exits with 5 if any fails."""
    from shoal.command_peer import default_state, invite_line
    from shoal.doctor import Wanted, examine
    from shoal.failures import MachineError
    from shoal.protocol.invites import parse

    place = (state or default_state()).expanduser().absolute()
    line = invite_line(invite or ())
    known = parse(line) if line else _last_run(place)
    findings = examine(Wanted(place, listen, advertise, device, known, invited=line is not None))
    found = list(findings) if as_json else list(_shown(findings))
    if as_json:
        _print_json(found)
    if failed := list(dict.fromkeys(item.about for item in found if item.level == "fail")):
        raise MachineError(f"this machine is not ready to join: {', '.join(failed)}", "what to do stands beside each")


def _last_run(state: Path) -> Invite | None:
    """Where the coordinator of the run that this machine was in last is."""
    from shoal.peer.enrol import enrolled_in, load
    from shoal.peer.slots import runs
    from shoal.protocol.errors import IdentityError
    from shoal.protocol.invites import Invite

    root = state / "identities"
    for run in runs(root):
        for directory in sorted((root / run).iterdir()):
            if enrolled_in(directory):
                try:
                    mine = load(directory)
                except IdentityError:
                    continue
                return Invite(mine.run, mine.enrol_addresses, mine.session_addresses, mine.credential.ca, "none")
    return None


def _shown(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Print each as it is found: some take seconds."""
    for item in findings:
        level = typer.style(f"{item.level.value:<5}", fg=COLOURS[item.level.value], bold=item.level != "ok")
        typer.echo(f"{level} {item.about:<23} {item.text}")
        if item.fix:
            typer.echo(f"{'':<29} → {item.fix}")
        yield item


def _print_json(findings: list[Finding]) -> None:
    import dataclasses
    import json

    levels = [item.level.value for item in findings]
    worst = next((level for level in ("fail", "warn") if level in levels), "ok")
    typer.echo(json.dumps({"worst": worst, "findings": [dataclasses.asdict(item) for item in findings]}, indent=2))
