"""Errors as words and codes."""

from __future__ import annotations

import errno

import pytest

from shoal.failures import ExitCode, MachineError, PromiseError, SettingsError, exit_code, sentence
from shoal.peer.vault import VaultError
from shoal.protocol.errors import (
    IdentityError,
    InviteError,
    ListenError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    SpecError,
    UnreachableError,
    VersionMismatchError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("a", "b"), 2),
        (SpecError("a", "b"), 2),
        (InviteError("a", "b"), 2),
        (UnreachableError("a", "b"), 3),
        (ListenError("a", "b"), 5),
        (RefusedError("code", "a", "b"), 4),
        (RemoteProtocolError("a", "b"), 4),
        (VersionMismatchError("a", "b"), 4),
        (IdentityError("a", "b"), 5),
        (MachineError("a", "b"), 5),
        (VaultError("a", "b"), 5),
        (OSError(errno.EADDRINUSE, "Address already in use"), 5),
        (MemoryError(), 5),
        (PromiseError("a", "b"), 6),
        (LocalProtocolError("a", "b"), 1),
        (KeyError("a"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code
    assert exit_code(error) in set(ExitCode)


def test_a_sentence_says_what_happened_and_what_to_do_on_one_line() -> None:
    assert sentence(UnreachableError("nobody answers\nat 10.0.0.1:7600", "check the address")) == (
        "nobody answers at 10.0.0.1:7600 — check the address"
    )


def test_what_another_process_said_whole_is_not_added_to() -> None:
    assert sentence(InviteError("this invite is used up — ask for a new one")) == "this invite is used up — ask for a new one"


@pytest.mark.parametrize(
    "error",
    [SpecError("no fix"), KeyError("x"), OSError(errno.EIO, "Input/output error"), MemoryError(), LocalProtocolError("oops")],
)
def test_even_an_unforeseen_failure_says_what_to_do(error: BaseException) -> None:
    what, dash, fix = sentence(error).partition(" — ")
    assert what
    assert dash
    assert fix


def test_an_operating_system_failure_names_the_file() -> None:
    assert sentence(FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere/a")).startswith(
        "/nowhere/a: No such file"
    )
