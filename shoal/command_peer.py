"""`shoal peer join`: this machine takes part in a run, until the run ends or Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.failures import SettingsError
from shoal.options import LOG_JSON, METRICS, TENSORBOARD, WANDB, check_address

if TYPE_CHECKING:
    from shoal.peer.shifts import Shifts

PREFIX = "shoal-invite-"

app = typer.Typer(help="Take part in a run.", no_args_is_help=False)


@app.command()
def join(
    invite: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INVITE",
            help="The line that the run's operator gave you, or a file that holds it. Not needed to come back to a run.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for what this peer keeps: its identity, the finished model. Default: a place of this user.",
            show_default=False,
        ),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory of the identity to use, instead of the first free one of this run.", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory that holds the run's data files; needed each time, unless the run has none, or peers fetch them.",
            show_default=False,
        ),
    ] = None,
    data_lan: Annotated[
        bool,
        typer.Option("--data-lan", help="Let the run fetch its data also from addresses of private networks."),
    ] = False,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads to train with; 0: the machine's cores shared among its trainers.", min=0)
    ] = 0,
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Take no more than this (800M, 2G) for the local copy, the log and contributions; what the trainer needs comes on "
            "top. Default: what the run needs.",
            show_default=False,
        ),
    ] = "",
    micro_batch: Annotated[
        int, typer.Option(metavar="N", help="Samples per forward pass; 0: as many as the run's batch.", min=0)
    ] = 0,
    nice: Annotated[
        int,
        typer.Option(
            metavar="N", help="How much training stands back for other programs here: 0 not at all, 19 most.", min=0, max=19
        ),
    ] = 10,
    hours: Annotated[
        str,
        typer.Option(
            metavar="FROM-TO",
            help="Work in these hours of the day only, local time: 22-7, or 22:30-6:45. Rests, and says so, in the others.",
            show_default=False,
        ),
    ] = "",
    pause_on_battery: Annotated[
        bool, typer.Option("--pause-on-battery", help="Rest while this machine runs on its battery.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="Package, installed here, whose model and training code the run may use. May be repeated.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where other peers may dial in. Port 0: any free one; empty: accept no connections."
        ),
    ] = "0.0.0.0:0",
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="The address that others reach this peer at, when it differs from --listen.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="What others see beside this peer's id. Default: the host's name.", show_default=False),
    ] = "",
    metrics: Annotated[str, METRICS] = "",
    tensorboard: Annotated[Path | None, TENSORBOARD] = None,
    wandb: Annotated[str, WANDB] = "",
    log_json: Annotated[bool, LOG_JSON] = False,
    helper: Annotated[
        bool,
        typer.Option("--helper", help="Train nothing: reduce for peers that cannot be dialled, and hold the run's state for them."),
    ] = False,
    max_upload: Annotated[
        str, typer.Option(metavar="RATE", help="Most that bulk traffic may send, like 10Mbit or 1MiB/s.", show_default=False)
    ] = "",
    max_download: Annotated[
        str, typer.Option(metavar="RATE", help="Most that bulk traffic, and fetching data, may receive.", show_default=False)
    ] = "",
    leashed: Annotated[bool, typer.Option("--leashed", hidden=True)] = False,
) -> None:
    """Join a run and train until it ends. Ctrl-C leaves: finished work stays in the run, and `shoal peer join --data .` comes
    back."""
    import asyncio

    from shoal import leash, observers, panel
    from shoal.peer.allocator import settle_allocator

    settle_allocator()
    if leashed:
        leash.wear()
    data, identity = (path.expanduser() if path is not None else None for path in (data, identity))
    shifts, memory_bytes = check(data, identity, device, hours, pause_on_battery, listen, advertise, metrics, memory)
    if helper and not listen:
        raise SettingsError("--helper with --listen '': a helper is there to be dialled", "let it listen")
    line = invite_line(invite or ())

    from shoal.peer.daemon import PeerSettings, run_peer

    settings = PeerSettings(
        state_dir=(state or default_state()).expanduser().absolute(),
        invite=line,
        identity=identity.absolute() if identity else None,
        data_dir=data.absolute() if data else None,
        data_lan=data_lan,
        device=device,
        threads=threads,
        allow=tuple(allow or ()),
        listen=listen,
        advertise=advertise,
        name=name or _host_name(),
        micro_batch=micro_batch,
        helper=helper,
        max_upload=_rate("--max-upload", max_upload),
        max_download=_rate("--max-download", max_download),
        nice=nice,
        memory_bytes=memory_bytes,
        shifts=shifts,
    )
    wanted = observers.Wanted(metrics, tensorboard, wandb, settings.name)
    with panel.open_view(_title(settings.name, line, settings.state_dir), log_json) as view:

        async def work() -> int:
            async with observers.of_peer(wanted, view.watch) as watch:
                return await run_peer(settings, watch)

        code = asyncio.run(work())
    raise typer.Exit(code)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def service(
    context: typer.Context,
    system: Annotated[
        bool, typer.Option("--system", help="A unit of the machine, which runs as this user, instead of one of this user's own.")
    ] = False,
    unit: Annotated[str, typer.Option(metavar="NAME", help="Name of the unit.")] = "shoal-peer",
) -> None:
    """Print a systemd unit that joins with the machine's start. Takes the options of `shoal peer join`, and the invite as a
    file."""
    from shoal import service as units
    from shoal.protocol.names import is_run_name

    if not is_run_name(unit):
        raise SettingsError(f"--unit {unit!r} is not a name", "use letters, digits and hyphens")
    words = units.absolute(context.args)
    command = typer.main.get_command(app).commands["join"]  # type: ignore[attr-defined]
    with command.make_context(
        "join", list(words), parent=context.parent
    ) as parsed:  # what join would not take is refused here, too
        options = parsed.params
    given = options["invite"] or ()
    if given:
        if invite_line(given) == "".join(given):
            raise SettingsError(
                "every user of this machine can read a unit, so the invite does not belong there",
                "keep it in a file that only you can read, and name the file",
            )
        words = [units.absolute_path(word) if word == given[0] else word for word in words]
    names = ("data", "identity", "device", "hours", "pause_on_battery", "listen", "advertise", "metrics", "memory")
    check(*(options[name] for name in names))
    typer.echo(units.unit(words, unit, system), nl=False)


def check(
    data: Path | None,
    identity: Path | None,
    device: str,
    hours: str,
    pause_on_battery: bool,
    listen: str,
    advertise: str,
    metrics: str,
    memory: str,
) -> tuple[Shifts, int]:
    """Raise SettingsError, or TrainerError, for what cannot be joined with, before anybody is asked to let this peer in. The result
    is when it works, and the memory that it may take."""
    if data is not None and not data.is_dir():
        raise SettingsError(f"--data {data}: no such directory", "name the directory that holds the run's data files")
    if identity is not None and not identity.is_dir():
        raise SettingsError(
            f"--identity {identity}: no such directory", "name the directory of an identity made by an earlier `shoal peer join`"
        )
    check_address("--metrics", metrics)
    if advertise and not listen:
        raise SettingsError("--advertise names an address, but --listen '' accepts no connections", "drop one of the two")
    if device not in ("auto", "cpu"):
        from shoal.peer.device import device_named

        device_named(device)
    from shoal.peer.budget import parse_size
    from shoal.peer.shifts import Hours, Shifts

    try:
        memory_bytes = parse_size(memory) if memory else 0
    except ValueError as error:
        raise SettingsError(f"--memory {memory}: {error}", "write a size like 800M or 2G") from error
    try:
        return Shifts(Hours.parse(hours) if hours else None, pause_on_battery), memory_bytes
    except ValueError as error:
        raise SettingsError(f"--hours {hours}: {error}", "write when to begin and when to end, like 22-7 or 22:30-6:45") from error


def _rate(option: str, text: str) -> float:
    """Bytes per second; 0 where nothing was said."""
    from shoal.peer.lanes import rate

    try:
        return rate(text) if text else 0.0
    except ValueError as error:
        raise SettingsError(f"{option}: {error}", "leave it out to use all of the link") from error


def invite_line(words: Sequence[str]) -> str | None:
    """The invite that was typed: a line, which a paste may have split into several words, or a file that holds it."""
    given = "".join(words)
    if not words or given.lstrip("\"'`<").startswith(PREFIX):
        return given if words else None
    path = Path(words[0]).expanduser()
    if len(words) == 1 and len(given) < 256 and path.is_file():
        return path.read_text(encoding="utf-8", errors="replace").strip()
    if len(words) == 1 and ("/" in given or path.suffix):
        raise SettingsError(f"{given}: no such file", "name the file that holds the invite, or paste its whole line")
    return given


def _title(name: str, invite: str | None, state: Path) -> str:
    """The peer and, as far as it is known before anybody answers, its run."""
    from shoal.peer.slots import runs
    from shoal.protocol.invites import parse

    known = (parse(invite).run,) if invite else runs(state / "identities")
    return f"shoal peer {name}, run {known[0]}" if known else f"shoal peer {name}"


def default_state() -> Path:
    """Where this user's identities and models are kept."""
    import platformdirs

    return platformdirs.user_state_path("shoal")


def _host_name() -> str:
    import platform

    return platform.node() or "peer"
