"""`shoal peer join`: this machine takes part in a run, until the run ends or Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Take part in a run.", no_args_is_help=False)


@app.command()
def join(
    invite: Annotated[
        str | None,
        typer.Argument(
            metavar="INVITE",
            help="The line that the coordinator gave you, or a file that holds it. Not needed to come back to a run.",
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
        Path | None, typer.Option(metavar="DIR", help="Directory that holds the run's data files.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    threads: Annotated[
        int, typer.Option(help="Threads to train with; 0: the machine's cores shared among its trainers.", min=0)
    ] = 0,
    micro_batch: Annotated[int, typer.Option(help="Samples per forward pass; 0: as many as the run's batch.", min=0)] = 0,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="Package, installed here, whose model and training code the run may use. May be repeated.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Where other peers may dial in: host:port; port 0: any free one; empty: accept no connections.")
    ] = "0.0.0.0:0",
    advertise: Annotated[
        str,
        typer.Option(
            help="The address that others reach this peer at, when it differs from --listen: host or host:port.", show_default=False
        ),
    ] = "",
    name: Annotated[
        str, typer.Option(help="What others see beside this peer's id. Default: the host's name.", show_default=False)
    ] = "",
    leashed: Annotated[bool, typer.Option("--leashed", hidden=True)] = False,
) -> None:
    """Join a run and train until it ends. Ctrl-C leaves: finished work stays in the run, and the same command comes back."""
    import asyncio

    from shoal import leash, panel
    from shoal.failures import SettingsError
    from shoal.peer.allocator import settle_allocator

    settle_allocator()
    if leashed:
        leash.wear()
    if data is not None and not data.is_dir():
        raise SettingsError(f"--data {data}: no such directory", "name the directory that holds the run's data files")
    if identity is not None and not identity.is_dir():
        raise SettingsError(
            f"--identity {identity}: no such directory", "name the directory of an identity made by an earlier `shoal peer join`"
        )
    if advertise and not listen:
        raise SettingsError("--advertise names an address, but --listen '' accepts no connections", "drop one of the two")
    line = _invite_line(invite)
    if device not in ("auto", "cpu"):
        from shoal.peer.trainer import choose_device

        choose_device(device)  # a device that is not here is said before anybody is asked to let this peer in

    from shoal.peer.daemon import PeerSettings, run_peer

    settings = PeerSettings(
        state_dir=(state or _default_state()).expanduser().absolute(),
        invite=line,
        identity=identity,
        data_dir=data,
        device=device,
        threads=threads,
        allow=tuple(allow or ()),
        listen=listen,
        advertise=advertise,
        name=name or _host_name(),
        micro_batch=micro_batch,
    )
    with panel.open_view(f"shoal peer {settings.name}") as view:
        code = asyncio.run(run_peer(settings, view.watch))
    raise typer.Exit(code)


def _invite_line(given: str | None) -> str | None:
    """An invite is one long line; a path to a file that holds it is easier to type."""
    if given is None:
        return None
    if len(given) < 256 and Path(given).is_file():
        return Path(given).read_text(encoding="utf-8").strip()
    return given


def _default_state() -> Path:
    import platformdirs

    return platformdirs.user_state_path("shoal")


def _host_name() -> str:
    import platform

    return platform.node() or "peer"
