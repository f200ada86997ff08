"""Loaded by every Python of a swarm test when it starts: kills a process at a moment that no signal could hit.

SHOAL_TOY_DIE_AFTER=RoundCommitted:3 ends a coordinator, as kill -9 does, when the third such record is durable and nothing that
follows from it was said. SHOAL_TOY_PEER_DIES=PartReduced:2:KILL sends a daemon SIGKILL when its engine has had such an event, or
wants such an effect or message, in round 2 or later, and nothing that follows from it was done; STOP freezes it.
"""

import os
import signal

_moment = os.environ.get("SHOAL_TOY_DIE_AFTER")
if _moment:
    from shoal.coordinator.journal import Journal

    _kind, _, _count = _moment.partition(":")
    _left = int(_count)
    _append = Journal.append

    def _append_and_die(journal, records, told=()):
        global _left
        _append(journal, records, told)
        _left -= sum(type(record).__name__ == _kind for record in records)
        if _left <= 0:
            os._exit(137)

    Journal.append = _append_and_die  # type: ignore[method-assign]

_end = os.environ.get("SHOAL_TOY_PEER_DIES")
if _end:
    from shoal.peer.engine import Engine

    _what, _round, _signal = _end.split(":")
    _on = Engine.on

    def _on_and_die(engine, event, now):
        effects = _on(engine, event, now)
        names = {type(thing).__name__ for thing in (event, *effects)} | {type(getattr(e, "body", None)).__name__ for e in effects}
        if _what in names and engine.reduction is not None and engine.reduction.round >= int(_round):
            os.kill(os.getpid(), getattr(signal, "SIG" + _signal))
        return effects

    Engine.on = _on_and_die  # type: ignore[method-assign]
