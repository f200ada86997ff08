"""The simulation from the command line: `python -m tests.simulation` (see `--help`).

One seed shows its story; many run in parallel and end with one line, "500 seeds, 0 violations". Exit code 1 when a promise was
broken.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.simulation.story import Outcome, play, report


def outcomes(seeds: range, processes: int, tail: int) -> Iterator[Outcome]:
    """What became of each seed, in any order."""
    play_one = functools.partial(play, tail=tail)
    if processes == 1:
        yield from map(play_one, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(play_one, seeds, chunksize=4)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Many whole runs on a virtual clock.")
    parser.add_argument("--seed", type=int, help="replay this seed only, and show the end of its trace")
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds (default 500)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them (default 0)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tail", type=int, default=150, help="lines of trace to show of a violation")
    parser.add_argument(
        "--about", nargs="*", default=[], help="with --seed: only these machines' lines, and the coordinator's decisions"
    )
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = play(arguments.seed, tail=arguments.tail, about=arguments.about, always=bool(arguments.about))
        print(report(outcome))
        return 1 if outcome.problem else 0
    started = time.perf_counter()
    violations = versions = events = 0
    for outcome in outcomes(range(arguments.first, arguments.first + arguments.seeds), arguments.processes, arguments.tail):
        versions, events = versions + outcome.versions, events + outcome.events
        if outcome.problem:
            violations += 1
            print(report(outcome) if violations == 1 else f"VIOLATION with --seed {outcome.seed}: {outcome.problem}", flush=True)
    seconds = time.perf_counter() - started
    speed = arguments.seeds / seconds
    print(f"{versions} versions, {events} events, {seconds:.0f} s, {speed:.1f} seeds/s")
    print(f"{arguments.seeds} seeds, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
