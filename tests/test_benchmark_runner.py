"""The benchmark runner finds every benchmark, refuses unknown names and malformed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import available, checked, load, shown

ROOT = Path(__file__).resolve().parent.parent


def test_every_benchmark_has_a_run_function() -> None:
    assert available()
    for path in available().values():
        assert callable(load(path)), path


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "no-such"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "command" in done.stderr


def test_a_result_without_a_unit_is_refused() -> None:
    with pytest.raises(SystemExit, match="needs name, value and unit"):
        checked([{"name": "a", "value": 1}], "a")


def test_a_result_keeps_false_apart_from_not_applicable() -> None:
    rows = checked([{"name": "a", "value": 0, "unit": "s", "met": False}, {"name": "b", "value": 0, "unit": "s"}], "a")
    assert [row["met"] for row in rows] == [False, None]


@pytest.mark.parametrize(("value", "text"), [(0.012345, "0.0123"), (12345.6, "12,346"), (1.5, "1.5"), (0, "0")])
def test_numbers_are_shown_with_three_digits(value: float, text: str) -> None:
    assert shown(value) == text
