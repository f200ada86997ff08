"""How long the demo takes from the command to the last line, and what it learned."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Any

LIMIT_S = 900


def run() -> list[dict[str, Any]]:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "shoal", "demo"], capture_output=True, text=True, timeout=LIMIT_S)
    took_s = time.perf_counter() - started
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    found = re.search(r"held-out bits per byte.*→ ([0-9.]+)", done.stdout)
    rows: list[dict[str, Any]] = [
        {"name": "shoal demo", "value": took_s, "unit": "s", "goal": "at most 300", "met": took_s <= 300 and done.returncode == 0},
        {"name": "exit code", "value": done.returncode, "unit": "", "goal": "0", "met": done.returncode == 0},
    ]
    if found:
        rows.append({"name": "held-out loss at its end", "value": float(found[1]), "unit": "bits per byte"})
    return rows
