"""What goes into the images, without an engine: dependencies by image, and scripts that a shell can read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docker.composed import ROOT

DEPENDENCIES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
SCRIPTS = sorted((ROOT / "docker").glob("*.sh"))

WITHOUT_PEERS_PACKAGES = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from shoal.cli import main
sys.argv = ["shoal", *sys.argv[1:]]
sys.exit(main())
"""


def required(image: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "docker/requirements.py", image], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.splitlines()


def left_out() -> set[str]:
    """Names of the packages that the coordinator's image does not have."""
    return {line.partition(">")[0] for line in set(DEPENDENCIES) - set(required("coordinator"))}


def test_peers_get_every_dependency_and_the_coordinator_all_but_those_of_tensors() -> None:
    assert required("peer") == DEPENDENCIES
    assert left_out() == {"torch", "numpy", "safetensors", "zstandard", "fsspec"}


def test_the_coordinator_makes_serves_and_asks_a_run_without_the_packages_of_peers(tmp_path: Path) -> None:
    def command(*words: str) -> list[str]:
        return [sys.executable, "-c", WITHOUT_PEERS_PACKAGES.replace("{names}", repr(left_out())), *words]

    surroundings = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    run = str(tmp_path / "run")
    listen = ("--listen", "127.0.0.1:0", "--enrol-listen", "127.0.0.1:0", "--advertise", "127.0.0.1")
    made = subprocess.run(
        command("coordinator", "init", run, *listen), env=surroundings, capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    with subprocess.Popen(command("coordinator", "serve", run), env=surroundings, stderr=subprocess.PIPE, text=True) as coordinator:
        try:
            assert coordinator.stderr is not None
            assert any("sessions at" in line for line in coordinator.stderr)
            asked = subprocess.run(
                command("admin", "status", "--dir", run), env=surroundings, capture_output=True, text=True, timeout=60
            )
            assert "needs 1" in asked.stdout, asked.stderr
        finally:
            coordinator.send_signal(signal.SIGTERM)
            coordinator.communicate(timeout=30)
    assert coordinator.returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_executable_and_can_be_read_by_a_plain_shell(script: Path) -> None:
    assert os.access(script, os.X_OK), "the image takes the mode from here"
    assert script.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=30)
