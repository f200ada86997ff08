"""The simulation is tested too: each planted bug must be found, and the same worlds are fine without it."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS, Bug
from tests.simulation.story import play, report


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name.replace(" ", "-") for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with bug.plant():
        found = next((seed for seed in range(bug.within) if play(seed, weather=bug.weather, peers=bug.peers).problem), None)
    assert found is not None, f"{bug.within} seeds did not show that {bug.name}"
    outcome = play(found, weather=bug.weather, peers=bug.peers)
    assert not outcome.problem, report(outcome)
