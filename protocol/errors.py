"""What can go wrong between processes, and whose fault it is.

Rule: every error says what happened and, when there is something to do, what to do (`fix`). Errors of foreign libraries are
translated into these at the boundary and nowhere else; a peer that fails is data for the state machines, never an exception.

    ShoalError
    ├── LocalProtocolError      we were about to say something that the protocol does not allow: our bug
    ├── RemoteProtocolError     bytes or sentences from outside are malformed, unknown, too large or out of range: their fault
    │   └── VersionMismatchError    they speak another version of the protocol
    ├── IdentityError           a key or certificate is missing, damaged, expired, or does not belong to who shows it
    ├── InviteError             an invitation line cannot be used
    ├── SpecError               the run spec is not valid
    ├── UnreachableError        nobody answers at an address
    │   └── AddressError            what should be an address is none
    ├── ListenError             an address of this machine cannot be listened on
    └── RefusedError            somebody answered and said no
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of all errors that a user may see. `str()` is one line: what happened, then " — " and what to do about it."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} — {self.fix}" if self.fix else self.message


class LocalProtocolError(ShoalError):
    """This side was about to break the protocol."""


class RemoteProtocolError(ShoalError):
    """The other side, or a file written elsewhere, broke the protocol."""


class VersionMismatchError(RemoteProtocolError):
    """The other side speaks another version of the protocol."""


class IdentityError(ShoalError):
    """A key or certificate is missing, damaged, expired, or belongs to somebody else."""


class InviteError(ShoalError):
    """An invitation line cannot be used."""


class SpecError(ShoalError):
    """The run spec is not valid."""


class UnreachableError(ShoalError):
    """Nobody answered at an address."""


class AddressError(UnreachableError):
    """A text that is not an address."""


class ListenError(ShoalError):
    """A port of this machine is taken, or the address is not its own."""


class RefusedError(ShoalError):
    """Somebody answered, and said no. `code` is a word for programs ("banned", "wrong-run"), `reason` a sentence for people."""

    def __init__(self, code: str, reason: str, fix: str = "") -> None:
        super().__init__(reason, fix)
        self.args = (code, reason, fix)
        self.code = code
        self.reason = reason
