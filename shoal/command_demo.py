"""`shoal demo`: the whole thing on one machine, in a few minutes, with nothing to set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep the run's files and logs in this directory, which must not exist yet.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(min=6, max=1000, help="Rounds of 30 steps; fewer than 40 learn too little.")] = 40,
) -> None:
    """Train a small language model with a whole swarm on this machine: real processes, real mTLS, a peer killed and one
    joining."""
    from shoal import demo as story
    from shoal import demoview
    from shoal.failures import PromiseError, SettingsError
    from shoal.localswarm import LocalSwarm
    from shoal.workplace import interrupted_by_signals, workplace

    if keep is not None and keep.exists():
        raise SettingsError(f"--keep {keep}: exists already", "name a directory that does not exist yet")
    with (
        interrupted_by_signals(),
        workplace(keep) as directory,
        LocalSwarm(directory, story.run_spec(rounds), peer_words=("--threads", "1")) as swarm,
        demoview.open_audience() as audience,
    ):
        results = story.Demo(swarm, audience, rounds).perform()
    demoview.print_results(results)
    broken = [result for result in results if not result.kept]
    if broken:
        raise PromiseError(
            f"{len(broken)} of {len(results)} promises not kept, the first: {broken[0].what} {broken[0].value}",
            "run it again with --keep DIR and look at the logs there",
        )
