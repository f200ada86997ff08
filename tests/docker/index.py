"""Whether PyTorch's own package index can be reached from here: `python -m tests.docker.index` exits with 0 or 1.

Where it cannot, images are built with `SHOAL_TORCH_INDEX` empty, from docker/wheels and from wherever pip looks by itself.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_S = 10.0


def reachable() -> bool:
    """Whether the page that lists PyTorch's wheels for CPUs can be had."""
    try:
        urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=ANSWER_S).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(not reachable())
