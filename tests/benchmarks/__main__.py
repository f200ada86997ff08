"""Runs the benchmarks: `make bench`, or `make bench ONLY=name` for those of `bench_name.py`.

A benchmark is a module `bench_*.py` beside this file with `run() -> list[dict]`; each dict is one line of the table, a `Result`.
The table goes to the terminal, everything also to `.bench/results.json`, a list of results (those of benchmarks that were not run
now are kept from the last time, with their date). `--write` puts the whole table into docs/benchmarks.md. The exit code is 1 when a
goal was missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict, cast

import psutil
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE, PAGE_MARK = ROOT / "docs" / "benchmarks.md", "## The last full run"
STORE = ROOT / ".bench" / "results.json"


class Result(TypedDict):
    """One measured number."""

    name: str
    value: float
    unit: str
    goal: str
    """What is asked of it, in words ("at most 1.5"); empty: nothing, it is only watched."""
    met: bool | None
    """None: not applicable."""


class Kept(Result):
    """A result as it is stored: which benchmark's, and where it comes from."""

    benchmark: str
    at: str
    commit: str
    machine: str


def available() -> dict[str, Path]:
    """The benchmarks, by name."""
    return {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}


def load(path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The `run` function of a benchmark module."""
    spec = importlib.util.spec_from_file_location(f"tests.benchmarks.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that a benchmark's own worker processes can import what it defines
    spec.loader.exec_module(module)
    return cast("Callable[[], list[dict[str, Any]]]", module.run)


def checked(rows: Iterable[dict[str, Any]], source: str) -> list[Result]:
    """The rows of one benchmark, complete and of the right types."""
    results = []
    for row in rows:
        unknown = set(row) - set(Result.__annotations__)
        if unknown or not {"name", "value", "unit"} <= set(row):
            raise SystemExit(f"bench_{source}: a result needs name, value and unit, and may have goal and met; got {sorted(row)}")
        met = row.get("met")
        results.append(
            Result(
                name=str(row["name"]),
                value=float(row["value"]),
                unit=str(row["unit"]),
                goal=str(row.get("goal") or ""),
                met=None if met is None else bool(met),
            )
        )
    return results


def machine() -> str:
    """What was measured on, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    memory = psutil.virtual_memory().total / 2**30
    software = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {software}"


def commit() -> str:
    """The checkout's commit, with a + when files differ from it; empty outside git."""
    done = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def stored() -> list[Kept]:
    """What is stored, of the benchmarks that there still are."""
    if not STORE.exists():
        return []
    rows = cast("list[Kept]", json.loads(STORE.read_text()))
    return [row for row in rows if row["benchmark"] in available()]


def keep(results: list[Kept]) -> None:
    """Stores the results; called after every benchmark, so that a later one that fails costs nothing."""
    STORE.parent.mkdir(exist_ok=True)
    partial = STORE.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(STORE)


def shown(value: float) -> str:
    """Three significant digits, whole from 1000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def verdict(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "NO"


def print_table(results: list[Kept], console: Console) -> None:
    table = Table("benchmark", "what", "value", "unit", "goal", "met", title="shoal benchmarks")
    for row in results:
        colour = "red" if row["met"] is False else ""
        table.add_row(
            row["benchmark"], row["name"], shown(row["value"]), row["unit"], row["goal"], verdict(row["met"]), style=colour
        )
    console.print(table)


def markdown(results: list[Kept]) -> str:
    """The table as a page shows it."""
    lines = ["| benchmark | what | value | unit | goal | met |", "|---|---|---|---|---|---|"]
    for row in sorted(results, key=lambda row: row["benchmark"]):
        cells = (row["benchmark"], row["name"], shown(row["value"]), row["unit"], row["goal"], verdict(row["met"]))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_page(results: list[Kept]) -> None:
    """Replaces the table in docs/benchmarks.md, with what it was measured on and when."""
    measured = sorted({(row["machine"], row["commit"], row["at"][:10]) for row in results})
    origin = "\n".join(f"Measured on {machine}, at commit {commit}, {day}." for machine, commit, day in measured)
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(PAGE_MARK)
    PAGE.write_text(f"{head.rstrip()}\n\n{PAGE_MARK}\n\n{origin}\n\n{markdown(results)}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("names", nargs="*", help="which ones; default: all")
    parser.add_argument("--markdown", action="store_true", help="print the stored table, run nothing")
    parser.add_argument("--write", action="store_true", help="put the stored table into docs/benchmarks.md, run nothing")
    parser.add_argument("--list", action="store_true", help="print the names")
    arguments = parser.parse_args()
    benches = available()
    if arguments.list:
        print("\n".join(benches))
        return 0
    if arguments.markdown:
        print(markdown(stored()))
        return 0
    if arguments.write:
        write_page(stored())
        return 0
    unknown = [name for name in arguments.names if name not in benches]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(benches)}", file=sys.stderr)
        return 2

    console = Console()
    command = "make bench" + (f" ONLY={' '.join(arguments.names)!r}" if arguments.names else "")
    console.print(f"machine: {machine()}\ncommit:  {commit()}\ncommand: {command}\n", highlight=False)
    run_now: list[Kept] = []
    for name in arguments.names or benches:
        console.print(f"{name} ...", highlight=False)
        origin = {"benchmark": name, "commit": commit(), "machine": machine()}
        results = checked(load(benches[name])(), name)
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        run_now += [cast("Kept", row | origin | {"at": at}) for row in results]
        keep([row for row in stored() if row["benchmark"] != name] + [row for row in run_now if row["benchmark"] == name])
    print_table(run_now, console)
    failed = [f"{row['benchmark']}: {row['name']}" for row in run_now if row["met"] is False]
    if failed:
        print(f"{len(failed)} goal(s) missed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
