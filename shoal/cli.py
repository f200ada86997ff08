"""The `shoal` command: a table of contents. Each group of commands lives in a module of its own.

Rule: nothing heavy is imported here or at the top of a command module; a command imports what it needs when it runs, so that
`shoal --help` answers at once. Every failure comes back through `main`, which prints one line and sets the exit code
(`failures`).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shoal import command_admin, command_coordinator, command_demo, command_doctor, command_peer

USAGE_CODE = 2
INTERRUPTED_CODE = 130
_VERBOSE = ("-v", "--verbose")

app = typer.Typer(
    help="Train one model on many people's machines, over the ordinary internet, while machines come and go.",
    epilog="Exit codes: 0 done, 1 a fault in shoal, 2 settings, 3 unreachable, 4 refused, 5 this machine, "
    "6 demo below its promises, 130 Ctrl-C.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(command_demo.demo)
app.command("doctor")(command_doctor.doctor)


def _help_alone(context: typer.Context) -> None:
    """A group without a command says which commands there are."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE_CODE)


for _name, _group in (("coordinator", command_coordinator.app), ("peer", command_peer.app), ("admin", command_admin.app)):
    _group.callback(invoke_without_command=True, help=_group.info.help)(_help_alone)
    app.add_typer(_group, name=_name)


def _show_version(wanted: bool) -> None:
    if wanted:
        import shoal

        typer.echo(f"shoal {shoal.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def shoal(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option(*_VERBOSE, help="Say more, and show tracebacks. May stand anywhere.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """What happens before any command."""
    _help_alone(context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C is tidied up after
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed by whoever started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines about strangers' handshakes would fill the log
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words
    verbose = any(word in _VERBOSE for word in own)
    words = [word for word in own if word not in _VERBOSE] + words[len(own) :]
    code = run(words, verbose)
    from shoal import narration

    narration.finish()
    sys.exit(code)


def run(words: Sequence[str], verbose: bool) -> int:
    """Run one command; the one place that catches broadly, because what it catches ends the process."""
    try:
        from shoal import narration

        for word in words:
            if not _is_text(word):
                return _complain(f"the argument {word!r} is not text in UTF-8 — rename what it names", USAGE_CODE)
        narration.begin(verbose)
        code: Any = app(list(words), prog_name="shoal", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED_CODE
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001 - the supervisor of the process: what it catches becomes the exit code
        if _is_misuse(error):
            return _complain(_misuse_line(error), USAGE_CODE)
        if verbose:
            traceback.print_exception(error)
        from shoal import failures

        return _complain(failures.sentence(error), failures.exit_code(error))
    return code if isinstance(code, int) else 0


def _is_text(word: str) -> bool:
    """Python lets bytes that are no text through as lone surrogates, which no file of ours could hold."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complain(line: str, code: int) -> int:
    from shoal.narration import printable, write

    write(f"error: {printable(line)}", sys.stderr)
    return int(code)


def _is_misuse(error: Exception) -> bool:
    """Whether the command line itself was wrong; typer's own class for that has moved between its releases, its base has
    not."""
    return isinstance(error, typer.BadParameter.__mro__[2])


def _misuse_line(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "shoal"
    what = " ".join(str(error.format_message()).split()).rstrip(".")
    return f"{what} — see `{path} --help`"
