"""`shoal peer service`: a systemd unit that starts this machine's peer with the machine and keeps it going.

Rule: the unit holds no secret, because every user of the machine can read it, and nothing that depends on the shell or the
directory it was made in: paths are absolute, every word is quoted for systemd, which reads `%`, `$` and quotes in ways of its own
(systemd.service(5), "Command lines"). Neighbour: `command_peer` has the options, which are those of `shoal peer join`.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.failures import ExitCode, SettingsError

STOP_WITHIN_S = 15
"""Leaving takes 5 s; a machine that shuts down under load gets more."""
RESTART_AFTER_S = 30

_PATHS = ("--state", "--identity", "--data", "--tensorboard")
"""Options of `shoal peer join` that name a place."""


def absolute(words: Sequence[str]) -> list[str]:
    """The words of a `shoal peer join` with every path made absolute."""
    made = []
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if before in _PATHS:
            made.append(absolute_path(word))
        elif equals and option in _PATHS:
            made.append(f"{option}={absolute_path(value)}")
        else:
            made.append(word)
    return made


def absolute_path(path: str) -> str:
    """The same place, said so that it does not depend on where one is."""
    return str(Path(path).expanduser().absolute())


def quoted(word: str) -> str:
    """One word of a command line as systemd reads it. Raises SettingsError for one that would not stay in its line."""
    if any(not char.isprintable() for char in word):
        raise SettingsError(f"{word!r} has a character that a unit cannot hold", "use another name")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not escaped or any(char in escaped for char in " \t\"'\\;") else escaped


def unit(words: Sequence[str], name: str, system: bool) -> str:
    """The unit's text. `words` follow `shoal peer join`; with `system` it is one of the machine's, run as this user, else one of
    this user's own."""
    command = " ".join(quoted(word) for word in (sys.executable, "-P", "-m", "shoal", "peer", "join", *words))
    no_use = " ".join(str(int(code)) for code in (ExitCode.SETTINGS, ExitCode.REFUSED))
    place = f"/etc/systemd/system/{name}.service" if system else f"~/.config/systemd/user/{name}.service"
    how = (
        ["sudo systemctl daemon-reload", f"sudo systemctl enable --now {name}"]
        if system
        else [
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {name}",
            "loginctl enable-linger  # so that it also works while you are logged out",
        ]
    )
    network = "Wants=network-online.target\nAfter=network-online.target\n" if system else ""
    user = f"User={getpass.getuser()}\n" if system else ""
    return f"""\
# A peer of a shoal run. Keep this as {place}, then:
{chr(10).join(f"#   {line}" for line in how)}
[Unit]
Description=shoal peer
{network}StartLimitIntervalSec=0

[Service]
Type=exec
{user}ExecStart={command}
WorkingDirectory={quoted(str(Path.home()))}
# Leaving in good order takes a few seconds; the trainer is ended by the peer, or at the end of this time.
KillMode=mixed
TimeoutStopSec={STOP_WITHIN_S}
# Come back after a crash, but not when the run is over, this peer is banned or its settings are wrong.
Restart=on-failure
RestartSec={RESTART_AFTER_S}
RestartPreventExitStatus={no_use}
NoNewPrivileges=yes

[Install]
WantedBy={"multi-user.target" if system else "default.target"}
"""
