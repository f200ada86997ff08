"""`shoal coordinator init` makes a run, `shoal coordinator serve` keeps it going."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.options import LOG_JSON, METRICS, TENSORBOARD, WANDB, check_address

if TYPE_CHECKING:
    from shoal.runplan import RunPlan

app = typer.Typer(help="Make a run and serve it.")

THE_RUN = "The run"
ADDRESSES = "Addresses"
INVITE = "First invite"


def _flag(text: str, default: object = None, **more: Any) -> Any:
    """A setting of the run: None unless it is given, so that a flag can be told from a default."""
    shown = f"{text} (default {default})" if default is not None else text
    return typer.Option(help=shown, show_default=False, rich_help_panel=THE_RUN, **more)


def _invite(text: str, metavar: str, least: float, most: float) -> Any:
    return typer.Option(help=text, metavar=metavar, min=least, max=most, rich_help_panel=INVITE)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory; it must not exist yet, or be empty.")],
    more_files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="More files for --data.", show_default=False)
    ] = None,
    spec: Annotated[Path | None, _flag("A whole run spec (TOML), instead of the flags below.", metavar="FILE")] = None,
    name: Annotated[str | None, _flag("Name of the run.", "the directory's, if it can be one", metavar="NAME")] = None,
    data: Annotated[list[Path] | None, _flag("Text files to train on: --data a.txt b.txt.", metavar="FILE...")] = None,
    data_format: Annotated[
        str | None, _flag("What they hold: text, uint16 or uint32 (token files).", "text", metavar="FORM")
    ] = None,
    data_url: Annotated[str, _flag("Address below which peers fetch them, instead of bringing them.", metavar="URL")] = "",
    tokenizer: Annotated[
        Path | None, _flag("A tokenizer.json for the text; without one a token is a byte.", metavar="FILE")
    ] = None,
    epochs: Annotated[int | None, _flag("End after so many passes over the data.", "none", min=1, metavar="N")] = None,
    min_peers: Annotated[int | None, _flag("Peers without which the run waits.", 1, metavar="N")] = None,
    peers: Annotated[int | None, _flag("Peers to plan the length of the run for.", "--min-peers", min=1, metavar="N")] = None,
    rounds: Annotated[int | None, _flag("Length of the run in rounds.", 1000, min=1, metavar="N")] = None,
    tokens: Annotated[int | None, _flag("Length of the run in tokens of all peers.", metavar="N")] = None,
    seed: Annotated[int | None, _flag("Seed of the weights and of the order of samples.", 1, metavar="N")] = None,
    vocab: Annotated[int | None, _flag("Distinct tokens.", 256, metavar="N")] = None,
    width: Annotated[int | None, _flag("Width of the model.", 64, metavar="N")] = None,
    layers: Annotated[int | None, _flag("Layers of the model.", 3, metavar="N")] = None,
    heads: Annotated[int | None, _flag("Attention heads; as many for keys and values.", 4, metavar="N")] = None,
    sequence_length: Annotated[int | None, _flag("Tokens per sample.", 128, metavar="N")] = None,
    batch: Annotated[int | None, _flag("Samples per inner step.", 4, metavar="N")] = None,
    steps: Annotated[int | None, _flag("Inner steps per round.", 30, metavar="N")] = None,
    lr: Annotated[float | None, _flag("Inner learning rate.", 0.004, metavar="X")] = None,
    outer_lr: Annotated[float | None, _flag("Outer learning rate.", 0.7, metavar="X")] = None,
    outer_momentum: Annotated[float | None, _flag("Outer momentum.", "0.9; 0.6 below 200 rounds", metavar="X")] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where `serve` listens for peers, host:port.", rich_help_panel=ADDRESSES)
    ] = "0.0.0.0:7600",
    enrol_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where `serve` listens for peers that come with an invite.", rich_help_panel=ADDRESSES
        ),
    ] = "0.0.0.0:7601",
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="This machine's name or address as peers reach it. Default: found out.",
            show_default=False,
            rich_help_panel=ADDRESSES,
        ),
    ] = "",
    invite_uses: Annotated[int, _invite("How many peers may enrol with the first invite.", "N", 1, 100_000)] = 10,
    invite_hours: Annotated[float, _invite("How long it may be used.", "X", 0.01, 87_600)] = 24.0,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Leave a run that DIR holds already as it is.")] = False,
) -> None:
    """Make a run: its keys, its run spec, its journal. Prints an invite for peers and the next command."""
    from shoal import rundirs, runplan
    from shoal.failures import SettingsError
    from shoal.protocol.names import is_run_name

    if more_files and not data:
        raise SettingsError(f"unexpected argument {more_files[0]}", "data files follow --data")
    directory = rundirs.normal(directory)
    if if_missing and rundirs.is_run(directory):
        _leave(directory)
        return
    own_name = directory.name if spec is None and is_run_name(directory.name) else None
    flags: dict[str, dict[str, Any]] = {
        "run": {"name": name or own_name, "min_peers": min_peers, "total_tokens": tokens, "seed": seed},
        "model": {"width": width, "layers": layers, "heads": heads, "kv_heads": heads, "vocab": vocab},
        "data": {"sequence_length": sequence_length, "format": data_format, "epochs": epochs},
        "train": {"batch": batch, "steps": steps, "lr": lr},
        "outer": {"lr": outer_lr, "momentum": outer_momentum},
    }
    files, more = [*(data or ()), *(more_files or ())], runplan.DataFlags(data_url, tokenizer)
    if spec is None:
        plan = runplan.from_flags(flags, files, rounds, peers, more)
    else:
        doubled = [f"{table}.{key}" for table, values in flags.items() for key, value in values.items() if value is not None]
        if doubled:
            raise SettingsError(f"--spec and the flag for {doubled[0]} both set the run", f"put it into {spec}, or give no --spec")
        plan = runplan.from_file(spec, files, rounds, peers, more)

    from shoal.coordinator import setup

    try:
        invite = setup.init(
            directory,
            plan.spec,
            listen=listen,
            enrol_listen=enrol_listen,
            advertise=advertise,
            uses=invite_uses,
            hours=invite_hours,
        )
    except setup.SetupError:
        if not (if_missing and rundirs.is_run(directory)):
            raise
        _leave(directory)  # another process made it at the same time
        return
    rundirs.remember(directory)
    for remark in plan.remarks:
        typer.echo(remark, err=True)
    for line in summary(directory, plan, invite.line(), f"{invite_uses} uses within {invite_hours:g} hours"):
        typer.echo(line)


def _leave(directory: Path) -> None:
    from shoal import rundirs

    typer.echo(f"{directory} holds a run; it stays as it is, whatever the other options say", err=True)
    rundirs.remember(directory)


def summary(directory: Path, plan: RunPlan, invite: str, terms: str) -> list[str]:
    """What an operator should know after `init`, and the next commands. `terms` says how long and how often the invite is good."""
    from shoal.coordinator.setup import RunDirectory
    from shoal.panel import amount

    spec, place = plan.spec, RunDirectory(directory)
    words = ["shoal", "peer", "join"]
    brought = [file.name for file in (*spec.data.files, *spec.data.tokenizer) if not file.url]
    if brought:
        words += ["--data", "."]
    if spec.model.factory:
        words += ["--allow", spec.model.factory.partition(":")[0].partition(".")[0]]
    where = f", in a directory with {_listed(brought)}" if brought else ""
    return [
        f"run {spec.run.name!r} is made in {directory}",
        f"  {amount(spec.end_tokens)} tokens: about {plan.rounds} rounds of {spec.train.steps} steps with {plan.peers} "
        f"peer{'s' if plan.peers > 1 else ''}; it waits while there are fewer than {spec.run.min_peers}",
        f"  every setting, with what it means, is in {place.spec} (it is fixed now)",
        "",
        "start the coordinator:",
        f"  shoal coordinator serve {shlex.quote(str(directory))}",
        "",
        f"whoever shall join runs this line{where} ({terms};",
        f"more with `shoal admin invite`; the invite is in {place.invite}, too, and join takes that file):",
        f"  {' '.join(words)} {invite}",
    ]


def _listed(names: Sequence[str], most: int = 3) -> str:
    """ "a.txt, b.txt and c.txt", or the first few and how many more."""
    shown = [*names[:most], *([f"{len(names) - most} more files"] if len(names) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


@app.command()
def serve(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Listen here instead of where init said.", show_default=False)
    ] = "",
    enrol_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Listen here for peers with an invite.", show_default=False)
    ] = "",
    certificate_hours: Annotated[
        float,
        typer.Option(metavar="X", min=0.001, max=8760, help="How long peers' certificates are good for; they renew them in time."),
    ] = 24.0,
    metrics: Annotated[str, METRICS] = "",
    tensorboard: Annotated[Path | None, TENSORBOARD] = None,
    wandb: Annotated[str, WANDB] = "",
    log_json: Annotated[bool, LOG_JSON] = False,
    leashed: Annotated[bool, typer.Option("--leashed", hidden=True)] = False,
) -> None:
    """Serve a run: members, order of the log, invites. Ctrl-C stops it; peers wait and come back when it is served again."""
    import asyncio
    import datetime

    from shoal import leash, narration, observers, rundirs

    if leashed:
        leash.wear()
    if log_json:
        narration.speak_json()
    check_address("--metrics", metrics)
    found = rundirs.find(directory)

    from shoal.coordinator.server import serve as run_server
    from shoal.protocol.files import allow_many_open_files

    allow_many_open_files()
    wanted = observers.Wanted(metrics, tensorboard, wandb, "coordinator")
    asyncio.run(
        run_server(
            found,
            listen=listen,
            enrol_listen=enrol_listen,
            certificate_lifetime=datetime.timedelta(hours=certificate_hours),
            beside=(lambda ask: observers.of_coordinator(wanted, ask)) if wanted else None,
        )
    )
