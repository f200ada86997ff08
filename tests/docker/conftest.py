"""Finds a Docker engine and builds the images, once; every project that a test starts is ended, volumes included."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.docker import index
from tests.docker.composed import ROOT, Project, said

BASE = "python:3.11-slim-bookworm"
BUILD_S = 1500.0
Composed = Callable[..., Project]


def answers(*words: str, limit_s: float = 30.0) -> bool:
    """Whether the command is there and succeeds."""
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL).returncode == 0


@pytest.fixture(scope="session")
def compose() -> tuple[str, ...]:
    """The words that start docker-compose here, with both images built from this checkout."""
    if not answers("docker", "info"):
        pytest.skip("no Docker engine answers (`docker info` fails)")
    spoken = [words for words in (("docker", "compose"), ("docker-compose",)) if answers(*words, "version")]
    if not spoken:
        pytest.skip("neither `docker compose` nor `docker-compose` is installed")
    if not (answers("docker", "image", "inspect", BASE) or answers("docker", "pull", BASE, limit_s=300.0)):
        pytest.skip(f"the image {BASE} is not here and cannot be pulled")
    build = (*spoken[0], "--project-directory", str(ROOT), "--file", str(ROOT / "docker-compose.yml"), "build")
    torch = {} if "SHOAL_TORCH_INDEX" in os.environ or index.reachable() else {"SHOAL_TORCH_INDEX": ""}
    said((*build, "coordinator", "peer"), torch, BUILD_S)
    return spoken[0]


@pytest.fixture
def composed(compose: tuple[str, ...]) -> Iterator[Composed]:
    """Makes projects: `composed(SHOAL_RUN="--rounds 9")`."""
    made: list[Project] = []

    def make(**environment: str) -> Project:
        made.append(Project(compose, environment))
        return made[-1]

    yield make
    for project in made:
        project.compose("--profile", "wan", "--profile", "churn", "down", "--volumes", "--remove-orphans", "--timeout", "20")
        assert not project.left()
