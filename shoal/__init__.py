"""The front door: the names that a program uses, each loaded when it is first asked for.

Rule: importing `shoal` costs nothing. Neither torch nor gRPC is loaded until a name that needs it is touched, so that `shoal
--help` answers at once. Neighbours: `cli` is the same door for people; the rooms behind it are `protocol`, `coordinator`,
`peer`, `optim` and `compression`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.protocol.errors import ShoalError as ShoalError
    from shoal.protocol.invites import Invite as Invite
    from shoal.protocol.spec import RunSpec as RunSpec

    __version__: str

_HOMES = {
    "Invite": "shoal.protocol.invites",
    "RunSpec": "shoal.protocol.spec",
    "ShoalError": "shoal.protocol.errors",
}

__all__ = ["Invite", "RunSpec", "ShoalError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("shoal")
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}") from None
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
