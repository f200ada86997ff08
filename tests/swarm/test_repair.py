"""A peer that dies, or stands still, at each point of a round: the others finish that very round, and nothing is abandoned."""

from __future__ import annotations

import pytest

from shoal.coordinator.records import RoundAbandoned, RoundCommitted, SessionEnded
from shoal.protocol.admin import Stop
from tests.swarm.toyswarm import Swarms, finish, journal_of, members, same_models, status, toy_spec

pytestmark = pytest.mark.slow

ROUND = 2
"""In which it happens."""
LONG = 100_000
TOGETHER_S = 90.0


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        ("BeginReduce", "KILL"),
        ("ClosePart", "KILL"),
        ("Have", "KILL"),
        ("ContributionArrived", "STOP"),
    ],
    ids=["before its first byte", "before it closed", "results sent", "frozen"],
)
def test_the_others_finish_the_round_in_which_a_reducer_dies(swarms: Swarms, moment: str, how: str) -> None:
    spec = toy_spec(LONG, peers=3, values=1 << 20, model={"layers": 6}, run={"min_peers": 2}, timing={"lost_after_s": 6.0})
    swarm = swarms(spec)
    swarm.start_coordinator()
    for number, name in enumerate(("anna", "ben", "cleo"), 1):
        end = {"SHOAL_TOY_PEER_DIES": f"{moment}:{ROUND}:{how}"} if name == "ben" else {}
        swarm.add_peer(name, environment={"SHOAL_TOY_D": str(number / 1000), **end})
    swarm.wait_for(lambda: status(swarm).version >= ROUND + 3, TOGETHER_S, "the others to go on")
    swarm.peers["ben"].kill()
    swarm.add_peer("ben")
    swarm.wait_for(lambda: "ben" in {member.name for member in members(swarm)}, TOGETHER_S, "ben to come back")
    swarm.ask(Stop())
    assert same_models(finish(swarm))
    records = journal_of(swarm)
    assert any(isinstance(record, SessionEnded) and "lost" in record.reason for record in records)
    committed = {record.round: record for record in records if isinstance(record, RoundCommitted)}
    assert committed[ROUND].version == ROUND + 1
    attempts = {part.attempt for part in committed[ROUND].parts}
    assert 0 in attempts  # what the others had in hand was not done again
    assert moment == "Have" or 1 in attempts
    assert not any(isinstance(record, RoundAbandoned) and record.round <= ROUND for record in records)
