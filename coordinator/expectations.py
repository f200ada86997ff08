"""What a round should cost, to be compared with what it did. Pure arithmetic on a plan; nothing is decided by it.

Neighbours: `core` journals the numbers with the round, `shoal admin rounds` shows them beside the actual ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.messages import Plan, Section
from shoal.protocol.spec import RunSpec

_BYTES_PER_VALUE = {"raw": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0}
_SCALE_BYTES = 4


def bytes_per_value(codec: str, block: int) -> float:
    """What one value takes on its way, headers left out."""
    return _BYTES_PER_VALUE[codec] + (_SCALE_BYTES / block if codec == "int8" else 0.0)


def plan_bytes(plan: Plan, values: int, spec: RunSpec) -> int:
    """What all members send together: contributors everything but their own share, reducers their share to all the others."""
    shares = [share for share in plan.shares if share.section is Section.PARAMETERS]
    parts = sum(share.stop - share.start for share in shares)
    contributors = {contribution.peer for contribution in plan.contributions}
    kept = sum(share.stop - share.start for share in shares if share.reducer.peer in contributors) / parts
    sent = (len(contributors) - kept) * bytes_per_value(spec.codec.send, spec.codec.block)
    returned = (len(plan.members) - 1) * bytes_per_value(spec.codec.return_, spec.codec.block)
    return round(values * (sent + returned))


def gather_s(spec: RunSpec, speeds: Sequence[float]) -> float:
    """What members with these speeds (tokens per second; 0: not reported yet) need until the stop rule ends their training: the
    slowest for its steps, all together for the round's samples. 0: no speed is known."""
    known = [speed for speed in speeds if speed > 0]
    match spec.round.stop:
        case "time":
            return spec.round.seconds
        case "samples":
            needed = spec.round.samples * spec.data.sequence_length / sum(known) if known else 0.0
        case _:
            needed = max((spec.tokens_per_round / speed for speed in known), default=0.0)
    return min(needed, spec.timing.gather_s)
