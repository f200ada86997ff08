"""The systemd unit: what systemd says about it, and that no word of it means something else to systemd than to the shell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import service

SHOAL = (sys.executable, "-m", "shoal", "peer", "service")


def printed(*words: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run([*SHOAL, *words], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def line(unit: str, key: str) -> str:
    (found,) = [text.partition("=")[2] for text in unit.splitlines() if text.startswith(f"{key}=")]
    return found


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("a;b", '"a;b"'),
    ],
)
def test_a_word_is_quoted_for_systemd(word: str, written: str) -> None:
    assert service.quoted(word) == written


def test_paths_become_absolute_and_other_words_stay() -> None:
    here = Path.cwd()
    words = ["--data", "d", "--state=~/s", "--name", "d", "--identity", "/i", "--tensorboard", "t"]
    expected = ["--data", f"{here}/d", f"--state={Path.home()}/s", "--name", "d", "--identity", "/i", "--tensorboard", f"{here}/t"]
    assert service.absolute(words) == expected


def test_the_unit_joins_with_the_same_words_and_stays_away_when_it_is_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "my invite.txt").write_text("shoal-invite-1.x")
    unit = printed("my invite.txt", "--data", ".", "--hours", "22-7", "--nice", "19", cwd=tmp_path)
    assert line(unit, "ExecStart") == (
        f'{sys.executable} -P -m shoal peer join "{tmp_path}/my invite.txt" --data {tmp_path} --hours 22-7 --nice 19'
    )
    assert line(unit, "RestartPreventExitStatus") == "2 4"
    assert line(unit, "WantedBy") == "default.target"
    assert "systemctl --user enable --now shoal-peer" in unit
    of_machine = printed("--system", "--unit", "night", cwd=tmp_path)
    assert line(of_machine, "WantedBy") == "multi-user.target"
    assert line(of_machine, "User")
    assert "systemctl enable --now night" in of_machine


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--colour", "red"), "No such option: --colour"),
        (("--nice", "40"), "--nice.* 19 .*see `shoal peer join --help`"),
        (("shoal-invite-1.abc",), "error: every user of this machine can read a unit, .* — keep it in a file"),
        (("no/such/file",), "no such file"),
        (("--unit", "a/b"), "'a/b' is not a name"),
        (("--hours", "25-99"), "--hours 25-99: these are not two times of day"),
        (("--data", "nowhere"), "/nowhere: no such directory"),
        (("--name", "two\nExecStart=/bin/false"), "has a character that a unit cannot hold"),
    ],
)
def test_what_would_not_join_is_one_line_and_no_unit(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    error = printed(*words, cwd=tmp_path, code=2)
    assert re.search(said, error)
    assert len(error.splitlines()) == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("system", [True, False])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, system: bool) -> None:
    path = tmp_path / "shoal-peer.service"
    (tmp_path / "100% $mine").mkdir()
    path.write_text(printed("--data", "100% $mine", *(["--system"] if system else []), cwd=tmp_path))
    manager = [] if system else ["--user"]
    environment = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["systemd-analyze", *manager, "verify", str(path)], capture_output=True, text=True, timeout=60, env=environment
    )
    about_ours = [text for text in done.stderr.splitlines() if "shoal-peer" in text]
    assert about_ours == [], done.stderr
    assert done.returncode == 0, done.stderr
