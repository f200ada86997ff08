"""How weights move: the parameter layout, inner and outer optimisers, schedules, strategies. Pure: torch only, no I/O, no clock.

Rule: nothing here knows that there is a network. Reading order: `layout` (where a parameter lies), `schedule` and `inner` (how a
peer trains alone), `outer` (how a combined update moves the shared state), `diloco` (a whole run of it in one process).
"""
