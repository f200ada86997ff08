"""How a command fails: one line on stderr that says what happened and what to do, and an exit code that a script can test.

Rule: whoever notices a failure raises an error that carries both halves of the sentence; nobody prints and goes on. This module
is the one place that turns errors into words and codes, so that they read the same for every command. Neighbours:
`protocol.errors` holds the errors of the network; the two classes here are those that only a command line can make.
"""

from __future__ import annotations

import enum
import errno

from shoal.protocol.errors import (
    AddressError,
    IdentityError,
    InviteError,
    ListenError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    ShoalError,
    SpecError,
    UnreachableError,
)


class ExitCode(enum.IntEnum):
    """Exit codes of every `shoal` command."""

    DONE = 0
    """It did what was asked. Leaving a run with Ctrl-C counts as done."""
    UNEXPECTED = 1
    """A fault in shoal itself; `-v` shows the traceback."""
    SETTINGS = 2
    """The command line, a run spec, an invite or a data file given to `init` is not usable as given."""
    UNREACHABLE = 3
    """Nobody answered at the address."""
    REFUSED = 4
    """Somebody answered and said no, or speaks another version."""
    MACHINE = 5
    """This machine lacks something: a free port, disk, memory, a device, a key, a permission, the run's data files."""
    BROKEN_PROMISE = 6
    """`shoal demo` ran to its end, but a number in its table is not what it should be."""
    INTERRUPTED = 130
    """Ctrl-C before there was anything to leave, or twice."""


class SettingsError(ShoalError):
    """What was typed cannot be carried out: contradictory, missing or out of range."""


class MachineError(ShoalError):
    """This machine lacks what the command needs."""


class PromiseError(ShoalError):
    """A demonstration ended with numbers that it should not have."""


_CODES: tuple[tuple[type[ShoalError], ExitCode], ...] = (
    (SettingsError, ExitCode.SETTINGS),
    (SpecError, ExitCode.SETTINGS),
    (InviteError, ExitCode.SETTINGS),
    (AddressError, ExitCode.SETTINGS),
    (UnreachableError, ExitCode.UNREACHABLE),
    (RefusedError, ExitCode.REFUSED),
    (RemoteProtocolError, ExitCode.REFUSED),
    (ListenError, ExitCode.MACHINE),
    (IdentityError, ExitCode.MACHINE),
    (MachineError, ExitCode.MACHINE),
    (PromiseError, ExitCode.BROKEN_PROMISE),
    (LocalProtocolError, ExitCode.UNEXPECTED),
    (ShoalError, ExitCode.MACHINE),
)
"""The first that fits counts. The rooms' own errors (a vault that does not fit, a journal in use, a model that is not allowed
here) are about this machine."""

_LOOK_CLOSER = "run it again with -v to see more"
_FIXES = {
    errno.EADDRINUSE: "stop the program that holds it, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EACCES: "choose a place that this user may use",
    errno.EPERM: "choose a place that this user may use",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "free some space or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file, not a directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of a command that ends with `error`."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError | MemoryError):
        return ExitCode.MACHINE
    return ExitCode.UNEXPECTED


def sentence(error: BaseException) -> str:
    """The one line that a person reads: what happened — what to do."""
    if isinstance(error, ShoalError):
        what, fix = error.message, error.fix
        if not fix and " — " not in what:  # what another process said may hold both halves
            fix = _LOOK_CLOSER
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        what, fix = f"{where}{error.strerror or error}", _FIXES.get(error.errno or 0, _LOOK_CLOSER)
    elif isinstance(error, MemoryError):
        what, fix = "not enough memory", "close other programs or choose a smaller model"
    else:
        what, fix = f"unexpected {type(error).__name__}: {error}", "a fault in shoal; -v shows where"
    return " ".join((f"{what} — {fix}" if fix else what).split())
