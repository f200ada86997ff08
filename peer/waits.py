"""When a long wait is said again: soon at first, then ever more rarely, so that an outage of a weekend fills no disk."""

from __future__ import annotations

SAID_AFTER_S = (5.0, 30.0, 300.0)
SAID_EVERY_S = 3600.0
"""After the last of SAID_AFTER_S."""


def said_again_s(times: int) -> float:
    """How long a wait has lasted, in seconds, when it is said once more after it was said so many times."""
    beyond = times + 1 - len(SAID_AFTER_S)
    return SAID_AFTER_S[times] if beyond <= 0 else SAID_AFTER_S[-1] + beyond * SAID_EVERY_S
