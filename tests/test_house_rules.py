"""The house rules of conftest.py are themselves tested: each must fail a test that breaks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).with_name("conftest.py")


def run_pytest(folder: Path, source: str, *arguments: str) -> str:
    """Runs `source` as a test module beside a copy of our conftest, returns pytest's output."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_inner.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    soak: x\ntimeout = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments, "test_inner.py"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_a_child_process_left_behind_fails_the_test_and_is_ended(tmp_path: Path) -> None:
    source = "import subprocess, sys\n\ndef test_it():\n    subprocess.Popen(['sleep', '61'])\n"
    output = run_pytest(tmp_path, source, "-o", "timeout=30")
    assert "left behind: process" in output
    assert "sleep 61" in output


def test_an_orphan_left_behind_by_a_child_fails_the_test_and_is_ended(tmp_path: Path) -> None:
    source = "import subprocess\n\ndef test_it():\n    subprocess.run(['sh', '-c', 'sleep 62 >/dev/null 2>&1 &'], timeout=9)\n"
    output = run_pytest(tmp_path, source, "-o", "timeout=30")
    assert "left behind: process" in output
    assert "sleep 62" in output


def test_a_file_left_in_a_shoal_directory_fails_the_test(tmp_path: Path) -> None:
    source = "import tempfile, pathlib\n\ndef test_it():\n    pathlib.Path(tempfile.gettempdir(), 'shoal-x').mkdir()\n"
    output = run_pytest(tmp_path, source, "-o", "timeout=30")
    assert "left behind:" in output
    assert "shoal-x" in output


def test_a_hanging_test_fails_at_its_limit_with_the_stacks_of_its_threads(tmp_path: Path) -> None:
    source = "import threading\n\ndef test_it():\n    threading.Event().wait(50)\n"
    output = run_pytest(tmp_path, source)
    assert "Timeout" in output
    assert "threading.Event().wait(50)" in output


def test_a_test_that_tidies_up_passes(tmp_path: Path) -> None:
    source = "import subprocess\n\ndef test_it():\n    subprocess.Popen(['true']).wait()\n"
    assert "1 passed" in run_pytest(tmp_path, source, "-o", "timeout=30")


def test_the_seed_option_reaches_the_test(tmp_path: Path) -> None:
    source = "def test_it(seed):\n    assert seed == 7\n"
    assert "1 passed" in run_pytest(tmp_path, source, "-o", "timeout=30", "--seed", "7")
