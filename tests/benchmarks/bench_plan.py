"""What a large entry costs the coordinator's core: 10,000 parts, 64 members that all reduce, on links of 64 different rates.

No socket, no disk: events in, effects out, and the bytes that the effects become. A round is opened, made ready (the last Ready is
answered with the plan), reduced part by part, reported as daemons report (a quarter of a second's parts at a time) and committed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

REDUCERS = 64
PARTS = 10_000
REPORTS = 40
"""In which a member says that it holds all parts."""
GOAL_S = 1.0


def run() -> list[dict[str, Any]]:
    """Rows; the goal is ours: a plan holds nobody up for longer than a heartbeat may be late."""
    from shoal.coordinator.core import Core
    from shoal.coordinator.events import Connected, Event, Said, Send, TimePassed
    from shoal.coordinator.records import RunCreated
    from shoal.protocol.messages import (
        NO_SESSION,
        NO_VERSION,
        PROTOCOL_MAJOR,
        PROTOCOL_MINOR,
        Commit,
        Envelope,
        FragmentShape,
        FromPeer,
        Have,
        Heartbeat,
        Held,
        Hello,
        Layout,
        PartClosed,
        PartKey,
        Plan,
        Ready,
        Section,
        StateReady,
    )
    from shoal.protocol.spec import RunSpec
    from shoal.protocol.wire import MESSAGE_LIMIT_BYTES, pack

    spec = RunSpec.of(run={"name": "bench", "total_tokens": 1 << 60, "min_peers": REDUCERS}, evaluation={"every": 0})
    core = Core(spec)
    core.replay(RunCreated("bench", spec.to_json()))
    now = 0.0
    core.start(now)
    layout = Layout(b"L" * 32, PARTS << 20, (FragmentShape(PARTS),))
    spent = {"seconds": 0.0, "longest": 0.0}
    sent: list[Any] = []
    peers = [f"{number:032x}" for number in range(1, REDUCERS + 1)]

    def on(event: Event) -> None:
        began = time.process_time()
        effects = core.on(event, now)
        took = time.process_time() - began
        spent["seconds"] += took
        spent["longest"] = max(spent["longest"], took)
        sent.extend(effect.envelope for effect in effects if isinstance(effect, Send))

    def says(number: int, body: FromPeer) -> None:
        on(Said(number, Envelope(number, 1, body)))

    for number, peer in enumerate(peers, start=1):
        on(Connected(number, peer, frozenset({"peer", "reducer"}), "10.0.0.1"))
        ours = ("bench", PROTOCOL_MAJOR, PROTOCOL_MINOR)
        hello = Hello(*ours, peer, NO_SESSION, NO_VERSION, b"", layout, f"10.0.0.1:{number}", peer)
        on(Said(number, Envelope(NO_SESSION, 0, hello)))
        says(number, StateReady(0, b"R" * 32, layout))
        says(number, Heartbeat("training", 1, 2.0, 1000.0, 1e6 * number, 2e6 * number))
    now += spec.timing.join_wait_s
    on(TimePassed())
    assert core.round is not None
    round_ = core.round.id
    ready = Ready(round_, spec.samples_per_round * spec.data.sequence_length, spec.samples_per_round)
    for number in range(1, REDUCERS):
        says(number, ready)
    spent |= {"seconds": 0.0}
    says(REDUCERS, ready)
    plan_s = spent["seconds"]
    plan = next(one for one in sent if isinstance(one.body, Plan))
    spent |= {"seconds": 0.0, "longest": 0.0}
    names = tuple(contribution.peer for contribution in plan.body.contributions)
    divisor = float(sum(contribution.weight for contribution in plan.body.contributions))
    digest = b"D" * 32
    for share in plan.body.shares:
        for part in range(share.start, share.stop):
            key = PartKey(round_, Section.PARAMETERS, part)
            says(peers.index(share.reducer.peer) + 1, PartClosed(key, names, divisor, digest))
    step = PARTS // REPORTS
    for start in range(0, PARTS, step):
        held = tuple(Held(Section.PARAMETERS, part, 0, digest) for part in range(start, start + step))
        for number in range(1, REDUCERS + 1):
            says(number, Have(round_, held))
    commit = next(one for one in sent if isinstance(one.body, Commit))
    tenth = replace(
        commit, body=replace(commit.body, parts=commit.body.parts[::10])
    )  # the whole may be more than one message holds
    commit_bytes = 10 * len(pack(tenth))
    what = f"{REDUCERS} reducers, {PARTS:,} parts"
    return [
        {
            "name": f"{what}: planned in",
            "value": 1000 * plan_s,
            "unit": "ms",
            "goal": f"at most {1000 * GOAL_S:g}",
            "met": plan_s <= GOAL_S,
        },
        {"name": f"{what}: the plan as bytes", "value": len(pack(plan)) / 1024, "unit": "KiB"},
        {"name": f"{what}: the core's whole round", "value": spent["seconds"], "unit": "s"},
        {"name": f"{what}: its longest event", "value": 1000 * spent["longest"], "unit": "ms"},
        {
            "name": f"{what}: the commit as bytes",
            "value": commit_bytes / 2**20,
            "unit": "MiB",
            "goal": f"at most {MESSAGE_LIMIT_BYTES >> 20}: one message",
            "met": commit_bytes <= MESSAGE_LIMIT_BYTES,
        },
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
