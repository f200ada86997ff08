"""Whole runs on a virtual clock: whatever fails, and in whatever order, every promise that `judge` watches is kept.

`pytest tests/simulation --seed N` replays one run; `python -m tests.simulation` runs many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.coordinator.records import SessionEnded
from tests.simulation import __main__ as runner
from tests.simulation.bugs import BUGS
from tests.simulation.story import Story, play, report
from tests.simulation.world import CALM, Weather, words

ROOT = Path(__file__).resolve().parents[2]
FEW = range(12)
MANY = range(1000, 1150)
STRIDE = 15


def must_hold(seed: int, weather: Weather | None = None) -> None:
    outcome = play(seed, weather=weather)
    assert not outcome.problem, report(outcome)


def history(story: Story) -> str:
    return "\n".join(f"{now!r} {who} {what} {words(thing)}" for now, who, what, thing in story.world.trace)


def test_promises_hold_whatever_fails(seed: int | None) -> None:
    for number in FEW if seed is None else [seed]:
        must_hold(number)


@pytest.mark.slow
@pytest.mark.parametrize("first", MANY[::STRIDE])
def test_promises_hold_in_many_worlds(first: int) -> None:
    for number in range(first, first + STRIDE):
        must_hold(number)


def test_a_run_without_faults_abandons_no_round() -> None:
    for number in range(6):
        outcome = play(number, weather=CALM)
        assert not outcome.problem, report(outcome)
        assert outcome.versions >= 1
        assert outcome.abandoned == 0, f"seed {number} abandoned {outcome.abandoned} rounds in calm"


def test_a_coordinator_that_stood_still_loses_nobody() -> None:
    for number in range(6):
        story = Story(number, weather=Weather(), peers=5)
        for at_s, for_s in ((20.0, 12.0), (60.0, 25.0)):
            story.world.after(at_s, story.meeting.freeze, for_s)
        story.run()
        ended = [record for record in story.meeting.journal if isinstance(record, SessionEnded)]
        assert not ended, f"seed {number}: {ended}"


def test_a_seed_is_one_history() -> None:
    first, second = Story(3), Story(3)
    first.run()
    second.run()
    assert history(first) == history(second)


def test_a_seed_is_one_history_in_every_process() -> None:
    program = "from tests.simulation.story import play; import sys; sys.stdout.write(repr(play(5)))"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(told) == 1


def test_the_runner_ends_with_one_line_and_tells_of_failure_by_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "2", "--from", "0", "--processes", "1"])
    assert runner.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 seeds, 0 violations"
    broken = next(bug for bug in BUGS if "before it has journaled" in bug.name)
    with broken.plant():
        assert runner.main() == 1
        told = capsys.readouterr().out
        assert told.splitlines()[-1] == "2 seeds, 2 violations"
        assert "VIOLATION with --seed 0:" in told
        monkeypatch.setattr(sys, "argv", ["simulation", "--seed", "0"])
        assert runner.main() == 1
        assert "coordinator" in capsys.readouterr().out
