"""The command as a person meets it: help, misuse, failures, in this process and in fresh ones."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import cli, narration, rundirs
from shoal.command_coordinator import summary
from shoal.command_peer import invite_line
from shoal.coordinator import setup
from shoal.coordinator.setup import init
from shoal.protocol.invites import Invite
from shoal.protocol.spec import RunSpec
from shoal.runplan import from_flags

GROUPS: tuple[list[str], ...] = (
    [],
    ["demo"],
    ["coordinator"],
    ["coordinator", "init"],
    ["coordinator", "serve"],
    ["peer"],
    ["peer", "join"],
    ["admin"],
)
ADMIN = ("status", "peers", "rounds", "leaderboard", "events", "invite", "pause", "resume", "stop")
STEERING = ("kick", "ban", "unban", "drain", "set", "grant")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What `run` sets up for a process is taken back."""
    yield
    logger = logging.getLogger(narration.LOGGER)
    narrator = narration.current()
    if narrator is not None:
        logger.removeHandler(narrator)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def shoal(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.parametrize("words", GROUPS, ids=lambda words: "-".join(words) or "shoal")
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*words, "--help"], verbose=False) == 0
    assert "Usage: shoal" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*ADMIN, *STEERING])
def test_every_admin_command_takes_json_and_a_directory(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["admin", name, "--help"], verbose=False) == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert "--dir" in out


def test_help_is_there_in_well_under_a_second_without_anything_heavy() -> None:
    best = min(_help_s() for _ in range(3))
    assert best < 1.0, f"{best:.2f} s"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, shoal.cli; print(sorted(m for m in sys.modules if m in {'torch','grpc','pydantic','numpy','sqlalchemy'}))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def _help_s() -> float:
    """Seconds of processor time, which a busy machine hardly changes."""
    before = os.times()
    assert shoal("--help").returncode == 0
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


@pytest.mark.parametrize(
    ("group", "command"), [([], "coordinator"), (["coordinator"], "serve"), (["peer"], "join"), (["admin"], "stop")]
)
def test_without_a_command_the_commands_are_listed(group: list[str], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(group, verbose=False) == 2
    said = capsys.readouterr()
    assert command in said.out
    assert said.err == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["demo", "--round", "3"], "No such option: --round"),
        (["demo", "--rounds", "many"], "--rounds"),
        (["frobnicate"], "frobnicate"),
        (["coordinator", "init"], "DIR"),
        (["admin", "invite", "--uses", "0"], "--uses"),
    ],
)
def test_misuse_is_one_line_that_names_the_help(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(words, verbose=False) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: .+ — see `shoal[^`]* --help`\n", error), error
    assert complaint in error


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["peer", "join", "x", "--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (["peer", "join", "/nowhere/invite.txt"], "/nowhere/invite.txt: no such file"),
        (["peer", "join", "invite.txt"], "invite.txt: no such file"),
        (["peer", "join", "shoal-invite-1.AAAA", "AAAAAAAAAAAA"], "checksum"),
        (["peer", "join", "x", "--identity", "/nowhere/at/all"], "/nowhere/at/all"),
        (["peer", "join", "x", "--listen", "", "--advertise", "a:1"], "--advertise"),
        (["coordinator", "init", "unused", "stray.txt"], "stray.txt"),
        (["coordinator", "init", "unused", "--spec", "/nowhere.toml"], "/nowhere.toml"),
        (["coordinator", "init", "unused", "--spec", "a.toml", "--width", "8"], "model.width"),
        (["coordinator", "init", "unused", "--data", "/nowhere.txt"], "/nowhere.txt"),
        (["coordinator", "init", "unused", "--rounds", "3", "--tokens", "9"], "--rounds and --tokens"),
        (["coordinator", "init", "unused", "--name", "Not A Name"], "run.name"),
        (["coordinator", "init", "unused", "--listen", "1:2:3"], "'1:2:3' is not an address"),
        (["coordinator", "init", "unused", "--advertise", "bad host!"], "bad host!"),
        (["coordinator", "init", "bytes\udcff"], "is not text in UTF-8"),
        (["coordinator", "serve", "/nowhere/at/all"], "/nowhere/at/all"),
        (["admin", "status", "--dir", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line_with_a_fix_and_code_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(words, verbose=False) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: .+ — .+\n", error), error
    assert complaint in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_a_device_that_is_not_here_is_refused_before_anybody_is_dialled(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["peer", "join", "x", "--device", device], verbose=False) == 5
    assert device in capsys.readouterr().err


def test_verbose_shows_the_traceback_wherever_it_stands() -> None:
    for words in (["-v", "admin", "status", "--dir", "/nowhere"], ["admin", "status", "--dir", "/nowhere", "--verbose"]):
        done = shoal(*words)
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in shoal("admin", "status", "--dir", "/nowhere").stderr


def test_an_init_directory_that_is_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("keep me")
    assert cli.run(["coordinator", "init", str(tmp_path)], verbose=False) == 5
    said = capsys.readouterr().err
    assert "not empty" in said
    assert "warning" not in said, "the error is what counts"
    assert (tmp_path / "precious").read_text() == "keep me"


def test_init_if_missing_makes_a_run_once_and_then_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    anywhere = ["--listen", "127.0.0.1:0", "--enrol-listen", "127.0.0.1:0"]
    words = ["coordinator", "init", str(tmp_path / "run"), "--if-missing", *anywhere]
    assert cli.run([*words, "--invite-uses", "3", "--invite-hours", "48"], verbose=False) == 0
    assert "(3 uses within 48 hours;" in capsys.readouterr().out
    made = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert cli.run(["coordinator", "init", str(tmp_path / "other"), *anywhere], verbose=False) == 0
    assert rundirs.find(None) == tmp_path / "other"
    capsys.readouterr()
    assert cli.run([*words, "--width", "128"], verbose=False) == 0
    said = capsys.readouterr()
    assert "stays as it is" in said.err
    assert said.out == ""
    assert made == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert rundirs.find(None) == tmp_path / "run", "the run that was asked for is the one that commands mean"


def test_of_two_that_make_a_missing_run_at_once_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    winner = setup.init

    def lose(*given: Any, **named: Any) -> Invite:
        winner(*given, **named)
        return winner(*given, **named)

    monkeypatch.setattr(setup, "init", lose)
    anywhere = ["--listen", "127.0.0.1:0", "--enrol-listen", "127.0.0.1:0"]
    assert cli.run(["coordinator", "init", str(tmp_path / "run"), "--if-missing", *anywhere], verbose=False) == 0
    assert "stays as it is" in capsys.readouterr().err
    assert cli.run(["coordinator", "init", str(tmp_path / "other"), *anywhere], verbose=False) == 5


def test_init_if_missing_still_refuses_a_directory_with_something_else_in_it(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    assert cli.run(["coordinator", "init", str(tmp_path), "--if-missing"], verbose=False) == 5


def test_the_defaults_that_the_flags_show_are_those_of_the_run_spec(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    spec = RunSpec.of(run={"total_tokens": 1})
    cli.run(["coordinator", "init", "--help"], verbose=False)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for flag, value in (
        ("--min-peers", spec.run.min_peers),
        ("--seed", spec.run.seed),
        ("--width", spec.model.width),
        ("--layers", spec.model.layers),
        ("--heads", spec.model.heads),
        ("--sequence-length", spec.data.sequence_length),
        ("--batch", spec.train.batch),
        ("--steps", spec.train.steps),
        ("--lr", spec.train.lr),
        ("--outer-lr", spec.outer.lr),
        ("--outer-momentum", spec.outer.momentum),
    ):
        assert re.search(rf"{flag} [^()]*\(default {value}[);]", shown), flag


@pytest.mark.parametrize("words", [["one"], ["shoal-inv", "ite"], ["FILE"]])
def test_an_invite_is_a_line_or_its_pieces_or_a_file(words: list[str], tmp_path: Path) -> None:
    line = "shoal-invite-1.abcdef"
    path = tmp_path / "my invite.txt"
    path.write_text(f"{line}\n")
    given = {"one": [line], "shoal-inv": [line[:9], line[9:16], line[16:]], "FILE": [str(path)]}[words[0]]
    assert invite_line(given) == line
    assert invite_line(()) is None


def test_what_init_prints_for_others_says_nothing_of_this_machine(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text " * 100)
    plan = from_flags({}, [tmp_path / "x" / ".." / "a.txt", tmp_path / "b.txt"], 300, None)
    lines = summary(Path("my run"), plan, "INVITE", "3 uses within 24 hours")
    assert lines[-1] == "  shoal peer join --data . INVITE"
    assert any("in a directory with a.txt and b.txt" in line for line in lines)
    assert "  shoal coordinator serve 'my run'" in lines
    assert any("(3 uses within 24 hours;" in line for line in lines)
    assert not any(str(tmp_path) in line for line in lines)
    own = from_flags({"model": {"kind": "factory", "factory": "bytegru.models:task"}}, [], 300, None)
    assert summary(Path("run"), own, "INVITE", "one use")[-1] == "  shoal peer join --allow bytegru INVITE"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ["--version"]),
        (2, ["coordinator", "init", "unused", "--data", "/nowhere.txt"]),
        (3, ["admin", "status", "--dir", "RUN"]),
        (5, ["coordinator", "serve", "RUN"]),
    ],
)
def test_the_exit_codes_are_those_of_the_table(code: int, words: list[str], tmp_path: Path) -> None:
    """4 and 5 for peers are tests/swarm/test_bad_input.py's, 6 and 130 tests/swarm/test_demo.py's."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        if "RUN" in words:
            init(
                tmp_path / "run",
                RunSpec.of(run={"total_tokens": 1}),
                listen="127.0.0.1:0",
                enrol_listen=taken,
                advertise="127.0.0.1",
            )
        done = shoal(*(str(tmp_path / "run") if word == "RUN" else word for word in words))
    assert done.returncode == code
    assert re.fullmatch(r"" if code == 0 else r"error: .+ — .+\n", done.stderr), done.stderr


def test_ctrl_c_in_the_first_instants_leaves_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "shoal", "admin", "status"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "click" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in error


def test_python_dash_m_shoal_and_the_version() -> None:
    done = shoal("--version")
    assert re.fullmatch(r"shoal \d+\.\d+\.\d+\S*\n", done.stdout)


def test_the_public_names_are_there_and_loaded_late() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, shoal; assert not {'torch', 'grpc', 'pydantic'} & set(sys.modules); "
            "assert shoal.RunSpec.of(run={'total_tokens': 1}); assert 'RunSpec' in dir(shoal); "
            "assert issubclass(shoal.ShoalError, Exception)",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a file that is always full")
def test_nobody_reading_along_is_no_reason_to_stop_working(tmp_path: Path) -> None:
    """The narration of a peer or a coordinator goes to a full disk, and to a pipe that nobody reads."""
    script = (
        "import logging, sys\n"
        "from shoal import cli, narration\n"
        "def work(words, prog_name, standalone_mode):\n"
        "    for i in range(3):\n"
        "        logging.getLogger('shoal.peer').info('line %d', i)\n"
        "        narration.write('seen', sys.stdout)\n"
        "    open(sys.argv[1], 'w').write('worked')\n"
        "    return 0\n"
        "cli.app = work\n"
        "cli.main([])\n"
    )
    done = tmp_path / "done"
    with open("/dev/full", "wb") as full:
        reader, writer = os.pipe()
        os.close(reader)
        for stream in (full.fileno(), writer):
            ended = subprocess.run([sys.executable, "-c", script, str(done)], stdout=stream, stderr=stream, timeout=60)
            assert ended.returncode == 0
            assert done.read_text() == "worked"
            done.unlink()
        os.close(writer)


@pytest.mark.parametrize(
    ("words", "code"),
    [("--version", 0), ("admin status --dir /nowhere/at/all", 2), ("peer join nonsense", 2)],
    ids=["0", "2", "2b"],
)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(words: str, code: int, closed: str) -> None:
    done = subprocess.run(["sh", "-c", f"exec {sys.executable} -m shoal {words} {closed}"], capture_output=True, timeout=60)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_strangers_cannot_steer_the_terminal() -> None:
    assert narration.printable("a\x1b[2Jb\r\nc") == "a\ufffd[2Jb\ufffd\ufffdc"


def test_a_message_of_several_lines_cannot_pass_for_several_messages() -> None:
    shown: list[str] = []
    narrator = narration.begin(verbose=False)
    narrator.show = shown.append
    logging.getLogger("shoal.peer").info("the model writes:\n12:00:00 error: all is lost")
    assert [line[:9].strip() != "" for line in "".join(shown).splitlines()] == [True, False]


def test_a_shell_completes_commands_options_and_roles() -> None:
    for line, expected in (
        ("shoal admin ki", ["kick"]),
        ("shoal pe", ["peer"]),
        ("shoal admin events --fo", ["--follow"]),
        ("shoal admin grant ob", ["observer"]),
    ):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_SHOAL_COMPLETE": "complete_bash"}
        done = shoal(environment=words)
        assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr


def test_the_completion_of_bash_is_a_script_that_bash_understands() -> None:
    script = shoal("--show-completion", "bash", environment={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert script.returncode == 0, script.stderr
    assert "_SHOAL_COMPLETE=complete_bash" in script.stdout
    if bash := shutil.which("bash"):
        assert subprocess.run([bash, "-n"], input=script.stdout, text=True, timeout=30).returncode == 0
