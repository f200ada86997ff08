"""Who comes too late, or with more than the journal knows, is told so instead of waiting."""

from __future__ import annotations

import pytest

from shoal.coordinator.admission import why_not
from shoal.coordinator.ledger import Ledger
from shoal.coordinator.records import RunCreated, RunEnded
from shoal.protocol.messages import NO_SESSION, NO_VERSION, PROTOCOL_MAJOR, PROTOCOL_MINOR, Hello

RIGHTS = frozenset({"peer", "reducer"})


def hello(version: int) -> Hello:
    return Hello("reef", PROTOCOL_MAJOR, PROTOCOL_MINOR, "instance", NO_SESSION, version, b"", None, "127.0.0.1:9")


def ledger(version: int, *, bound: bool, ended: bool) -> Ledger:
    made = Ledger()
    made.apply(RunCreated("reef", b"{}"))
    made.version, made.bound = version, bound
    if ended:
        made.apply(RunEnded(version, "stopped by an operator"))
    return made


@pytest.mark.parametrize(("version", "said"), [(NO_VERSION, "nothing was trained"), (15, "its model is with those who took part")])
def test_who_joins_a_run_that_ended_hears_that_it_ended(version: int, said: str) -> None:
    refused = why_not(ledger(version, bound=version > 0, ended=True), RIGHTS, hello(NO_VERSION), somebody_has_it=False)
    assert refused is not None
    assert (refused.code, said in refused.reason) == ("ENDED", True)


@pytest.mark.parametrize(("version", "somebody_has_it"), [(15, False), (14, True), (NO_VERSION, True)])
def test_who_still_can_have_the_last_version_may_come_in_for_it(version: int, somebody_has_it: bool) -> None:
    assert why_not(ledger(15, bound=True, ended=True), RIGHTS, hello(version), somebody_has_it) is None


@pytest.mark.parametrize(("bound", "journal", "holds"), [(True, 4, 5), (False, NO_VERSION, 1), (False, 0, 97)])
def test_a_peer_that_is_ahead_of_the_journal_is_refused_even_before_version_0_is_bound(
    bound: bool, journal: int, holds: int
) -> None:
    refused = why_not(ledger(journal, bound=bound, ended=False), RIGHTS, hello(holds), somebody_has_it=True)
    assert refused is not None
    assert refused.code == "AHEAD"


def test_a_version_0_of_ones_own_is_no_contradiction_before_version_0_is_bound() -> None:
    assert why_not(ledger(NO_VERSION, bound=False, ended=False), RIGHTS, hello(0), somebody_has_it=False) is None
