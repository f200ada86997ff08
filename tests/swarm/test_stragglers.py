"""A slow peer beside fast ones, through real processes: neither waited for without end nor thrown out, by every stop rule.

The toy's pseudo-gradient is what its environment says, so that a peer with wrong data is one with a negative d.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.coordinator.records import RoundCommitted, SessionEnded, SessionOpened
from shoal.protocol.admin import GetRounds, Rounds, RoundView
from tests.swarm.toyswarm import Swarms, finish, journal_of, same_models, toy_spec

pytestmark = pytest.mark.slow

TOGETHER_S = 90.0
FAST_S, SLOW_S = 0.05, 1.5


def rounds_of(reply: object) -> tuple[RoundView, ...]:
    assert isinstance(reply, Rounds)
    return reply.rounds


@pytest.mark.parametrize(
    "rule",
    [
        {"gather": "quorum"},
        {"stop": "time", "seconds": 0.5, "gather": "quorum"},
        {"stop": "samples", "samples": 20, "gather": "all"},
    ],
    ids=["steps", "time", "samples"],
)
def test_a_slow_peer_counts_with_what_it_has_and_holds_nobody_up(swarms: Swarms, rule: dict[str, object]) -> None:
    spec = toy_spec(
        160, peers=3, run={"min_peers": 2}, round=rule, train={"steps": 8}, timing={"heartbeat_s": 0.3, "lost_after_s": 10.0}
    )
    swarm = swarms(spec)
    swarm.start_coordinator()
    for name, step_s in {"anna": FAST_S, "ben": FAST_S, "slow": SLOW_S}.items():
        swarm.add_peer(name, environment={"SHOAL_TOY_STEP_S": str(step_s)})
    assert same_models(finish(swarm))
    records = journal_of(swarm)
    (slow,) = [record.peer for record in records if isinstance(record, SessionOpened) and record.name == "slow"]
    committed = [record for record in records if isinstance(record, RoundCommitted)]
    assert sum(slow in {c.peer for c in record.contributions} for record in committed) >= 2
    assert all("left" in record.reason for record in records if isinstance(record, SessionEnded)), "nobody was lost"
    assert sum(record.gather_s for record in committed[1:]) < len(committed) * 4 * SLOW_S, "eight slow steps would be twice that"
    assert all(showing.limit_s > 0 for record in committed for showing in record.showings)


def test_wrong_data_shows_in_admin_rounds(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(400, peers=3))
    swarm.start_coordinator()
    for name, d in {"anna": 0.2, "ben": 0.3, "odd": -0.1}.items():
        swarm.add_peer(name, environment={"SHOAL_TOY_D": str(d)})

    def told() -> RoundView | None:
        listed = rounds_of(swarm.ask(GetRounds(20)))
        return next((view for view in reversed(listed) if len(view.peers) == 3 and all(peer.norm for peer in view.peers)), None)

    swarm.wait_for(lambda: told() is not None, TOGETHER_S, "a round of which all three told norm and cosine")
    view = told()
    assert view is not None
    found = {peer.name: (peer.norm, peer.cosine) for peer in view.peers}
    assert found["anna"] == pytest.approx((0.2 * 8**0.5, 1.0), rel=0.02)
    assert found["ben"] == pytest.approx((0.3 * 8**0.5, 1.0), rel=0.02)
    assert found["odd"] == pytest.approx((0.1 * 8**0.5, -1.0), rel=0.02)
    shown = subprocess.run(
        [sys.executable, "-m", "shoal", "admin", "rounds", "--peers", "--limit", "20", "--dir", str(swarm.run_directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert any("odd" in line and "-1.000" in line for line in shown.splitlines()), shown
