"""How long the command takes to answer: `shoal --help` must not load what it does not need."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

RUNS = 7


def seconds(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return time.perf_counter() - started


def run() -> list[dict[str, Any]]:
    bare, answers = [], []
    for _ in range(RUNS):  # interleaved, so that a busy machine slows both
        bare.append(seconds(sys.executable, "-c", "pass"))
        answers.append(seconds(sys.executable, "-m", "shoal", "--help"))
    answer_s = statistics.median(answers)
    return [
        {"name": "shoal --help", "value": answer_s, "unit": "s", "goal": "under 1", "met": answer_s < 1},
        {"name": "python -c pass, for comparison", "value": statistics.median(bare), "unit": "s"},
    ]
