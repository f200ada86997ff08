"""Where a run's coordinator directory is when nobody says: here, or where the last run was made on this machine.

Rule: a guess is always said aloud by the error when it is wrong. Neighbour: `command_coordinator` makes such directories.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.failures import SettingsError

SPEC_FILE = "run.toml"
CREDENTIAL_FILE = "run.json"
"""In a directory that holds a credential: which run it is for."""
_LAST = "last-run"


def normal(path: Path) -> Path:
    """The path as one would write it: `~` for the home directory is understood, "a/../b/." is "b"; the current directory by its
    whole name."""
    tidy = Path(os.path.normpath(path.expanduser()))
    return tidy if tidy.name else Path.cwd()


def remember(directory: Path) -> None:
    """Make this the directory that commands without `--dir` mean. A machine where that cannot be written just has no
    default."""
    try:
        _note().parent.mkdir(parents=True, exist_ok=True)
        _note().write_text(f"{directory.absolute()}\n", encoding="utf-8")
    except OSError:
        return


def find(given: Path | None) -> Path:
    """The coordinator directory to use: the given one, else the current directory, else the last one made here."""
    if given is not None:
        given = normal(given)
        if not is_run(given):
            raise SettingsError(f"{given} is not a coordinator directory", f"make one with `shoal coordinator init {given}`")
        return given
    if is_run(Path.cwd()):
        return Path.cwd()
    last = _last()
    if last is not None and is_run(last):
        return last
    raise SettingsError("no coordinator directory here and none was made on this machine", "name it with --dir DIR")


def find_operators(given: Path | None) -> Path:
    """Like `find`, for operators: the directory may also hold a credential alone."""
    if given is not None and (normal(given) / CREDENTIAL_FILE).is_file():
        return normal(given)
    if given is None and (Path.cwd() / CREDENTIAL_FILE).is_file():
        return Path.cwd()
    return find(given)


def is_run(directory: Path) -> bool:
    """Whether this is a coordinator directory."""
    return (directory / SPEC_FILE).is_file()


def _last() -> Path | None:
    try:
        return Path(_note().read_text(encoding="utf-8").strip())
    except OSError:
        return None


def _note() -> Path:
    import platformdirs

    return platformdirs.user_state_path("shoal") / _LAST
