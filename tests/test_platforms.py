"""Every module imports, and `--help` answers, where what only POSIX systems have is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import builtins, importlib, os, signal, sys

ABSENT = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog", "uvloop"}
real = builtins.__import__

def as_elsewhere(name, globals=None, *more):
    who = (globals or {}).get("__name__", "")
    if name.partition(".")[0] in ABSENT and who.startswith("shoal"):
        raise ModuleNotFoundError(f"{who} needs {name}, which is not on every system")
    return real(name, globals, *more)

# These know themselves where they are.
import fsspec, grpc.aio, platformdirs, prometheus_client, psutil, pydantic, rich, sqlalchemy, torch, typer, zstandard
builtins.__import__ = as_elsewhere
for name in ("fork", "forkpty", "getuid", "geteuid", "getgid", "killpg", "setsid", "nice", "posix_fallocate", "sched_getaffinity"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1"):
    delattr(signal, name)

for name in sys.argv[1:]:
    importlib.import_module(name)
from shoal import cli
for words in ([], ["peer", "join"], ["admin"], ["coordinator", "serve"], ["doctor"]):
    assert cli.run([*words, "--help"], verbose=True) == 0
"""


ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("protocol", "compression", "optim", "coordinator", "peer", "shoal")
TOOLS = ("__main__", "generate")
"""Not imported by anybody."""


def modules() -> list[str]:
    """All of shoal's, by their dotted names."""
    found = [path.relative_to(ROOT).with_suffix("") for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    dotted = (
        ".".join(path.parts if path.parts[0] == "shoal" else ("shoal", *path.parts)) for path in found if path.name not in TOOLS
    )
    return sorted(name.removesuffix(".__init__") for name in dotted)


def test_nothing_of_posix_is_needed_to_import_and_to_explain() -> None:
    assert len(modules()) > 100
    done = subprocess.run([sys.executable, "-c", PROGRAM, *modules()], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Usage") == 5
