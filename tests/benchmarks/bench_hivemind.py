"""The all-reduce of hivemind 1.1.12 with 8-bit codec beside ours, among the same four homes: on fast links and on long ones.

Optional: it runs where hivemind has an environment of its own, because its dependencies do not go with ours:
`python3.11 -m venv .bench/hivemind && .bench/hivemind/bin/pip install 'hivemind==1.1.12' 'numpy<2.3'`. Only its all-reduce is
measured, from when the group is formed; a turn whose result is not the mean, or whose group is not all four, does not count.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_wan import Setting, turns
from tests.benchmarks.hivemind_worker import PEERS

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".bench" / "hivemind" / "bin" / "python"
SETTINGS = (
    Setting("25 M, four homes on fast links", (0.0,) * PEERS, 25_000_000, 0.25),
    Setting("25 M, four homes at 100 Mb/s and 100 ms", (100.0,) * PEERS, 25_000_000, 0.25, 100.0),
)
TURNS = 3
LEAVE_S = 20.0
LARGEST_ERROR = 0.2
"""Root mean square, of means of four normal values; who keeps its own values instead is 0.87 away."""


def run() -> list[dict[str, Any]]:
    """Rows of the goal: ours takes at most a quarter of its time."""
    from tests.wan.internet import why_not

    reason = why_not() or ("" if PYTHON.exists() else f"no {PYTHON.relative_to(ROOT)}; see docs/benchmarks.md")
    if reason:
        print(f"bench_hivemind measures nothing here: {reason}", file=sys.stderr)
        return []
    return [row for setting in SETTINGS for row in measured(setting)]


def measured(setting: Setting) -> list[dict[str, Any]]:
    """Both, one after the other."""
    theirs = [said for said in _theirs(setting) if said["group"] == PEERS and said["error"] <= LARGEST_ERROR]
    _, *ours = turns(setting)
    name = f"all-reduce {setting.name}"
    rows: list[dict[str, Any]] = [
        {"name": f"{name}: shoal", "value": statistics.median(ours), "unit": "s"},
        {"name": f"{name}: hivemind's turns that gave the mean, of {TURNS}", "value": len(theirs), "unit": ""},
    ]
    if theirs:
        seconds = statistics.median(said["seconds"] for said in theirs)
        ratio = statistics.median(ours) / seconds
        goal = {"goal": f"at most {setting.goal:g}", "met": ratio <= setting.goal}
        rows.append({"name": f"{name}: hivemind", "value": seconds, "unit": "s"})
        rows.append({"name": f"{name}: shoal against hivemind", "value": ratio, "unit": "x", **goal})
    return rows


def _theirs(setting: Setting) -> list[dict[str, Any]]:
    """What its slowest peer said of each turn, with the worst that any said of the result."""
    from tests.wan.internet import Internet

    workers: list[subprocess.Popen[str]] = []

    def hear(worker: subprocess.Popen[str]) -> Any:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError(f"a hivemind worker ended with {worker.wait(10)}")
        return json.loads(line)

    def tell(word: str) -> None:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{word}\n")
            worker.stdin.flush()

    shared = Path("/dev/shm")
    before = set(shared.iterdir())
    try:
        with Internet() as internet:
            first: list[str] = []
            for home, mbit in enumerate(setting.mbit):
                host = internet.home(str(home), mbit, delay_ms=setting.round_trip_ms / 4)
                command = [str(PYTHON), "-W", "ignore", str(ROOT / "tests" / "benchmarks" / "hivemind_worker.py")]
                command += [str(home), host, str(setting.parameters), *first]
                with internet.inside(str(home)):
                    workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
                first = first or [hear(workers[0])["address"]]
            for worker in workers[1:]:
                hear(worker)
            turns_said = []
            for _ in range(TURNS):
                tell("match")
                for worker in workers:
                    hear(worker)
                tell("go")
                said = [hear(worker) for worker in workers]
                print(f"hivemind: {said}")
                worst = {"group": min(one["group"] for one in said), "error": max(one["error"] for one in said)}
                turns_said.append(worst | {"seconds": max(one["seconds"] for one in said)})
            return turns_said
    finally:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()  # it ends its own processes, which would outlive it otherwise
        for worker in workers:
            try:
                worker.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for left in set(shared.iterdir()) - before:  # tensors that its processes leave when they are ended
            if left.name.startswith("torch_"):
                left.unlink(missing_ok=True)


if __name__ == "__main__":
    for row in run():
        print(row)
