"""`shoal demo`: the whole thing on one machine, in a few minutes, with nothing to set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the run's files and logs in this directory, which must not exist yet.", show_default=False
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(metavar="N", min=6, max=1000, help="Rounds of 30 steps; fewer than 40 learn less than the table promises."),
    ] = 40,
) -> None:
    """Train a small language model with a whole swarm on this machine: real processes, real mTLS, a peer killed and one
    joining."""
    from shoal import demo as story
    from shoal import demoview
    from shoal.failures import PromiseError, SettingsError
    from shoal.localswarm import LocalSwarm
    from shoal.workplace import interrupted_by_signals, workplace

    if keep is not None:
        keep = keep.expanduser().absolute()
        if keep.exists():
            raise SettingsError(f"--keep {keep}: exists already", "name a directory that does not exist yet")
    try:
        with (
            interrupted_by_signals(),
            workplace(keep) as directory,
            LocalSwarm(directory, story.run_spec(rounds), peer_words=("--threads", "1")) as swarm,
            demoview.open_audience() as audience,
        ):
            if keep is None:
                swarm.advice = "run it again with --keep DIR and look at the logs there"
            results = story.Demo(swarm, audience, rounds).perform()
    except KeyboardInterrupt:
        kept = f"; what it wrote so far is in {keep}" if keep is not None else ""
        typer.echo(f"interrupted, tidied up{kept}", err=True)
        raise
    demoview.print_results(results)
    if keep is not None:
        typer.echo(f"the models, logs and the coordinator's directory are in {keep}")
    broken = [result for result in results if not result.kept]
    if broken:
        raise PromiseError(
            f"{len(broken)} of {len(results)} promises not kept, the first: {broken[0].what} {broken[0].value}", swarm.advice
        )
