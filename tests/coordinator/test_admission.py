"""What speaks against a peer's Hello, and against the model and data that it brings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.coordinator import admission
from shoal.coordinator.ledger import Ledger
from shoal.coordinator.records import OriginBuilt, RoundAbandoned, RoundOpened, RunCreated, RunEnded, SessionOpened
from shoal.protocol.messages import NO_SESSION, NO_VERSION, PROTOCOL_MINOR, FragmentShape, Hello, Layout, Refused, StateReady

PEER = frozenset({"peer"})
LAYOUT = Layout(b"L" * 32, 30, (FragmentShape(3),))
ORIGIN, DATA = b"r" * 32, b"d" * 32
HELLO = Hello("run", 1, 0, "instance", NO_SESSION, NO_VERSION, b"", None, "ada:1")


def ledger(bound: bool = True, data: bytes = DATA) -> Ledger:
    folded = Ledger()
    for record in (RunCreated("run", b"{}"), SessionOpened(1, "ada", "i", "ada:1"), OriginBuilt(1, LAYOUT, ORIGIN, data)):
        folded.apply(record)
    if bound:
        folded.apply(RoundOpened(0, 0, 0, 0, (1,), ()))
    return folded


def why_not(folded: Ledger, rights: frozenset[str], hello: Hello, somebody_has_it: bool = True) -> Refused | None:
    return admission.why_not(folded, rights, hello, somebody_has_it)


def code(refusal: Refused | None) -> str:
    return refusal.code if refusal is not None else ""


def test_a_peer_of_this_run_and_version_is_welcome() -> None:
    assert why_not(ledger(), PEER, HELLO) is None


@pytest.mark.parametrize(
    "rights", [frozenset(), frozenset({"admin"}), frozenset({"observer", "reducer"})], ids=["none", "admin", "observer and reducer"]
)
def test_a_certificate_without_the_right_to_join_is_refused_first(rights: frozenset[str]) -> None:
    assert code(why_not(ledger(), rights, replace(HELLO, run="another", major=9))) == "NO_RIGHT"


def test_a_peer_of_another_run_is_told_both_names() -> None:
    refusal = why_not(ledger(), PEER, replace(HELLO, run="reef", major=9))
    assert refusal == Refused("WRONG_RUN", "this coordinator serves run run, not reef", "join with this run's own invite")


def test_another_major_version_is_refused_and_another_minor_one_is_not() -> None:
    refusal = why_not(ledger(), PEER, replace(HELLO, major=2, minor=7))
    assert refusal == Refused(
        "VERSION", f"the coordinator speaks protocol 1.{PROTOCOL_MINOR}, this peer 2.7", "install the same shoal on both"
    )
    assert why_not(ledger(), PEER, replace(HELLO, minor=7)) is None


def test_a_peer_ahead_of_the_journal_stops_with_an_explanation() -> None:
    refusal = why_not(ledger(), PEER, replace(HELLO, version=1))
    assert refusal is not None
    assert (refusal.code, refusal.reason) == ("AHEAD", "this peer holds version 1, but the journal ends at 0")
    assert "restored from an older journal" in refusal.fix


def test_before_a_round_binds_version_0_a_version_0_of_its_own_is_not_ahead() -> None:
    for folded in (Ledger(), ledger(bound=False)):
        folded.run = "run"
        assert why_not(folded, PEER, replace(HELLO, version=0)) is None
        assert code(why_not(folded, PEER, replace(HELLO, version=1))) == "AHEAD"


def test_a_run_that_ended_is_entered_only_by_who_has_its_model_or_can_get_it() -> None:
    folded = ledger()
    folded.apply(RoundAbandoned(0, "why"))
    folded.apply(RunEnded(0, "stopped by an operator"))
    assert why_not(folded, PEER, HELLO) is None
    assert why_not(folded, PEER, replace(HELLO, version=0), somebody_has_it=False) is None
    refusal = why_not(folded, PEER, HELLO, somebody_has_it=False)
    assert refusal is not None
    assert (refusal.code, "the run ended at version 0 (stopped by an operator)" in refusal.reason) == ("ENDED", True)


READY = StateReady(0, ORIGIN, LAYOUT, DATA)


def test_the_runs_own_model_and_data_fit() -> None:
    assert admission.why_unfit(ledger(), READY) is None


def test_another_layout_is_refused_with_both_sizes() -> None:
    refusal = admission.why_unfit(ledger(), replace(READY, layout=Layout(b"M" * 32, 31, (FragmentShape(3),))))
    assert refusal is not None
    assert refusal.code == "LAYOUT"
    assert "31 values (layout 4d4d4d4d4d4d), the run's has 30 (4c4c4c4c4c4c)" in refusal.reason


def test_other_data_is_refused_and_data_of_ones_own_is_not() -> None:
    refusal = admission.why_unfit(ledger(), replace(READY, data=b"e" * 32))
    assert code(refusal) == "DATA"
    assert admission.why_unfit(ledger(), replace(READY, data=b"")) is None
    assert admission.why_unfit(ledger(data=b""), replace(READY, data=b"e" * 32)) is None


def test_everything_fits_until_a_round_binds_version_0() -> None:
    other = StateReady(0, b"s" * 32, Layout(b"M" * 32, 31, (FragmentShape(3),)), b"e" * 32)
    assert admission.why_unfit(ledger(bound=False), other) is None
    assert admission.why_unfit(Ledger(), other) is None


@pytest.mark.parametrize(
    "fragments",
    [(), (FragmentShape(0),), (FragmentShape(1 << 40),), (FragmentShape(3, 1 << 40),)],
    ids=["no fragment", "no parts", "too many parts", "too many buffers"],
)
def test_a_layout_that_no_entry_can_carry_is_refused_even_before_it_binds(fragments: tuple[FragmentShape, ...]) -> None:
    shapeless = replace(READY, layout=Layout(b"M" * 32, 31, fragments))
    for folded in (Ledger(), ledger(bound=False), ledger()):
        assert code(admission.why_unfit(folded, shapeless)) == "LAYOUT"


@pytest.mark.parametrize("address", ["unix:/tmp/socket", "host", "host:0", "http://host:1", "::1:50051", "h" * 300 + ":1", "a b:1"])
def test_what_nobody_could_dial_is_no_address(address: str) -> None:
    refusal = why_not(ledger(), PEER, replace(HELLO, address=address))
    assert refusal is not None
    assert refusal.code == "ADDRESS"
    assert "--advertise" in refusal.fix


@pytest.mark.parametrize("address", ["", "host:1", "10.0.0.1:50051", "[2001:db8::1]:50051"])
def test_an_address_or_none_is_fine(address: str) -> None:
    assert why_not(ledger(), PEER, replace(HELLO, address=address)) is None
