"""Sinks that hang, raise, are slow or are not there: nobody who feeds them notices."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal import sinks
from shoal.metrics import RunSeen
from shoal.peer.daemon import PeerProgress, Totals
from shoal.protocol.admin import Status
from shoal.sinks import Feed, Feeds, Point, Sink, open_feeds


class Notebook:
    """A sink that keeps everything, and can be told to misbehave."""

    def __init__(self, fails_at: int = -1, hold: threading.Event | None = None) -> None:
        self.points: list[Point] = []
        self.seen = 0
        self.closed = False
        self.fails_at, self.hold = fails_at, hold

    def write(self, point: Point) -> None:
        self.seen += 1
        if self.hold is not None:
            self.hold.wait()
        if self.seen - 1 == self.fails_at:
            raise OSError("500 Internal Server Error")
        self.points.append(point)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def points(count: int) -> list[Point]:
    return [Point(version, {"loss": 0.5 + version}) for version in range(count)]


def test_every_point_arrives_in_order_and_the_sink_is_closed() -> None:
    said: list[str] = []
    sink = Notebook()
    feed = Feed("notes", lambda: sink, said.append)
    for point in points(20):
        feed.offer(point)
    feed.close()
    assert (sink.points, sink.closed, feed.dropped, said) == (points(20), True, 0, [])


def test_a_sink_that_raises_is_said_once_loses_that_point_and_gets_the_others() -> None:
    said: list[str] = []
    sink = Notebook(fails_at=3)
    feed = Feed("notes", lambda: sink, said.append)
    for point in points(10):
        feed.offer(point)
    feed.close()
    assert [point.version for point in sink.points] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert feed.dropped == 1
    assert said == ["notes failed (OSError: 500 Internal Server Error); what it does not take is dropped, training goes on"]


def test_a_sink_that_always_raises_is_still_said_once() -> None:
    class Broken(Notebook):
        def write(self, point: Point) -> None:
            raise ValueError(f"no {point.version}\nof this")

        def close(self) -> None:
            raise ValueError("nor this")

    said: list[str] = []
    feed = Feed("notes", Broken, said.append)
    for point in points(30):
        feed.offer(point)
    feed.close()
    assert feed.dropped == 30
    assert len(said) == 1
    assert "\n" not in said[0]


def test_a_sink_that_hangs_holds_nobody_up_and_its_queue_stays_short(
    hold: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USE-12 of a report: the endpoint takes 10 s for an answer; the round does not."""
    monkeypatch.setattr(sinks, "STUCK_AFTER_S", 0.05)
    said: list[str] = []
    sink = Notebook(hold=hold)
    feed = Feed("notes", lambda: sink, said.append, room=4)
    began = time.monotonic()
    for point in points(1000):
        feed.offer(point)
    assert time.monotonic() - began < 1
    assert 1000 - feed.dropped <= 4 + 1
    time.sleep(0.1)
    feed.offer(Point(1000, {}))
    feed.offer(Point(1001, {}))
    assert len(said) == 1
    assert "has taken nothing for" in said[0]
    began = time.monotonic()
    feed.close(0.2)
    assert time.monotonic() - began < 1


def test_a_sink_that_hangs_while_it_opens_holds_nobody_up(hold: threading.Event) -> None:
    def login() -> Sink:
        hold.wait()
        return Notebook()

    began = time.monotonic()
    feed = Feed("notes", login, lambda _: None, room=2)
    for point in points(5):
        feed.offer(point)
    feed.close(0.2)
    assert time.monotonic() - began < 1
    assert feed.dropped >= 3


def test_what_is_not_installed_is_said_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    said: list[str] = []
    feeds = open_feeds(tmp_path, "project", "anna", said.append)
    feeds.peer(PeerProgress("training", version=3, loss=1.5))
    feeds.close()
    assert sorted(text.split(" is not used")[0] for text in said) == ["TensorBoard", "Weights & Biases"]
    assert any("pip install 'shoal[wandb]'" in text for text in said)
    assert any("pip install 'shoal[tensorboard]'" in text for text in said)


class Pretended:
    """Stands in for both packages, with the calls that ours use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        board, wandb = ModuleType("torch.utils.tensorboard"), ModuleType("wandb")
        board.SummaryWriter = lambda directory: SimpleNamespace(  # type: ignore[attr-defined]
            add_scalar=lambda *scalar: self.calls.append(("scalar", *scalar)),
            flush=lambda: None,
            close=lambda: self.calls.append(("close", directory)),
        )
        wandb.Settings = dict  # type: ignore[attr-defined]
        wandb.init = lambda **about: SimpleNamespace(  # type: ignore[attr-defined]
            log=lambda numbers: self.calls.append(("log", numbers)),
            finish=lambda: self.calls.append(("finish", about["project"], about["name"])),
        )
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
        monkeypatch.setitem(sys.modules, "wandb", wandb)


def test_a_peer_pushes_a_point_for_each_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = Pretended(monkeypatch)
    feeds = open_feeds(tmp_path, "", "anna", pytest.fail)
    told = PeerProgress("training", 4, 3, 2, 90, 1.5, 640.0, 0.0, totals=Totals(sent_bytes=10))
    for progress in (PeerProgress("joining"), told, told, PeerProgress("training", version=4, loss=1.25)):
        feeds.peer(progress)
    feeds.close()
    assert there.calls == [
        ("scalar", "loss", 1.5, 3),
        ("scalar", "tokens_per_second", 640.0, 3),
        ("scalar", "members", 2.0, 3),
        ("scalar", "sent_bytes", 10.0, 3),
        ("scalar", "loss", 1.25, 4),
        ("close", str(tmp_path / "anna")),
    ]


def test_a_run_that_goes_back_to_an_older_version_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-12: progress went backwards, and something underflowed."""
    there = Pretended(monkeypatch)
    feeds = open_feeds(None, "shoal", "coordinator", pytest.fail)
    for version in (7, 3):
        status = Status("demo", 1, "training", "", version, 9, 2, 1, 100 * version, 9999, 2.5, 0, "")
        feeds.run(RunSeen(status, ()))
    feeds.close()
    assert [call[1]["version"] for call in there.calls if call[0] == "log"] == [7, 3]
    assert there.calls[0][1] == {"heldout_bits_per_byte": 2.5, "committed_tokens": 700.0, "members": 2.0, "version": 7}
    assert there.calls[-1] == ("finish", "shoal", "coordinator")


def test_without_sinks_there_is_nothing_to_feed() -> None:
    assert not Feeds([])
    assert not open_feeds(None, "", "x", pytest.fail)
