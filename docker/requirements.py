"""Prints what pip installs into an image: the dependencies in pyproject.toml, for the coordinator without those of peers.

    python requirements.py coordinator|peer

Rule: nothing is listed twice. A new dependency is in both images until it is named here. Neighbour: the Dockerfile.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ONLY_PEERS = frozenset({"torch", "numpy", "safetensors", "zstandard", "fsspec"})
"""What no command that the coordinator's image runs ever imports."""


def requirements(dependencies: Sequence[str], image: str) -> list[str]:
    """Those of pyproject's `dependencies` that this image needs."""
    left_out = ONLY_PEERS if image == "coordinator" else frozenset()
    return [line for line in dependencies if re.split(r"[^\w.-]", line, maxsplit=1)[0] not in left_out]


if __name__ == "__main__":
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(requirements(project["dependencies"], sys.argv[1])))
