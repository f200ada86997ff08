"""Loaded by every Python of a swarm test when it starts: kills a coordinator at a moment that no signal could hit.

SHOAL_TOY_DIE_AFTER=RoundCommitted:3 ends the process, as kill -9 does, when the third such record is durable and nothing that
follows from it was said.
"""

import os

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
