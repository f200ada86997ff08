"""Who measures its link, with whom and when."""

from __future__ import annotations

from shoal.coordinator.core import MEASURE_S, MEASURED_FROM
from shoal.coordinator.events import DialledBack
from shoal.protocol.messages import Contact, FragmentShape, Heartbeat, Layout, Measure, StateReady
from tests.coordinator.test_core import PARTS, Peer, Stage, root, spec

LARGE = Layout(b"L" * 32, MEASURED_FROM, (FragmentShape(PARTS),))
SMALL = Layout(b"L" * 32, MEASURED_FROM - 1, (FragmentShape(PARTS),))


def joins(stage: Stage, name: str, address: str | None = None, layout: Layout = LARGE, minor: int = 2) -> Peer:
    peer = stage.peer(name, address)
    peer.dial(minor=minor)
    peer.says(StateReady(0, root(0), layout))
    return peer


def fellows(peer: Peer) -> list[str]:
    """With whom it was asked to measure."""
    return [said.to.peer for said in peer.all(Measure)]


def test_one_link_after_the_other_is_measured_as_soon_as_there_are_two() -> None:
    stage = Stage(spec(min_peers=3))
    anna = joins(stage, "anna")
    assert not fellows(anna)
    ben = joins(stage, "ben")
    assert anna.last(Measure).to == Contact("ben", "ben:1")
    assert not fellows(ben), "two at once would share a link"
    anna.says(Heartbeat("measuring"))
    ben.says(Heartbeat("waiting"))
    assert not fellows(ben)
    anna.says(Heartbeat("waiting", up_bytes_s=1e6, down_bytes_s=2e6))
    assert fellows(ben) == ["anna"]
    ben.says(Heartbeat("waiting", up_bytes_s=1e6, down_bytes_s=2e6))
    anna.says(Heartbeat("waiting"))
    assert (fellows(anna), fellows(ben)) == (["ben"], ["anna"])


def test_one_that_never_says_what_it_measured_or_is_gone_holds_nobody_up() -> None:
    stage = Stage(spec(min_peers=4))
    anna, ben = joins(stage, "anna"), joins(stage, "ben")
    stage.now += MEASURE_S
    anna.says(Heartbeat("waiting"))
    assert (fellows(anna), fellows(ben)) == (["ben"], ["anna"])
    cleo = joins(stage, "cleo")
    stage.now += 1.0
    assert not fellows(cleo)
    ben.breaks()
    stage.wait(stage.spec.timing.grace_s)
    anna.says(Heartbeat("waiting"))
    assert fellows(cleo) == ["anna"]


def test_it_is_measured_with_the_fastest_of_those_that_were_reached_and_with_nobody_who_cannot_be_dialled() -> None:
    stage = Stage(spec(min_peers=5))
    known = {"anna": ("", 9e6), "ben": ("ben:1", 1e6), "cleo": ("cleo:1", 3e6), "dora": ("dora:1", 8e6)}
    for name, (address, rate) in known.items():
        peer = joins(stage, name, address)
        peer.says(Heartbeat("waiting", up_bytes_s=rate, down_bytes_s=rate))
        if address and name != "dora":
            stage.on(DialledBack(peer.connection, address))
    assert fellows(joins(stage, "eve")) == ["cleo"]


def test_nobody_is_asked_for_a_small_model_nor_by_a_word_that_it_does_not_know() -> None:
    small, old = Stage(spec(min_peers=3)), Stage(spec(min_peers=3))
    for peer in (joins(small, "anna", layout=SMALL), joins(small, "ben", layout=SMALL), joins(old, "anna", minor=1)):
        assert not fellows(peer)
    assert fellows(joins(old, "ben")) == ["anna"]
