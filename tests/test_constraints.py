"""constraints.txt is the tested set: it pins every dependency, within the ranges that pyproject.toml promises, for any index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINS = {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in LINES)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
WANTED = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS]]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_dependency_is_pinned_inside_its_range(wanted: Requirement) -> None:
    assert canonicalize_name(wanted.name) in PINS, "add it to constraints.txt"
    assert PINS[canonicalize_name(wanted.name)] in wanted.specifier


def test_a_pin_is_a_plain_release_that_any_index_has() -> None:
    for line in LINES:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9.]*(post[0-9]+)?", line), line
