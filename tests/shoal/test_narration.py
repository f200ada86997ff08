"""What a process says, for people and for programs."""

from __future__ import annotations

import datetime
import json
import logging
import math
from collections.abc import Iterator

import pytest

from shoal import narration
from shoal.narration import json_line
from shoal.panel import PROGRESS, JsonLines, open_view
from shoal.peer.daemon import PeerProgress


@pytest.fixture
def narrator() -> Iterator[narration.Narrator]:
    logger = logging.getLogger("shoal")
    before = (list(logger.handlers), logger.level, logger.propagate)
    logger.handlers.clear()
    yield narration.begin(False)
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_json_line_is_one_line_whatever_is_in_it() -> None:
    line = json_line("info", "said", 'two\nlines, "quotes", \x1b[31mred', {"loss": math.nan, "speed": math.inf, "round": 3})
    assert "\n" not in line
    assert "\x1b" not in line
    said = json.loads(line)
    assert (said["text"], said["loss"], said["speed"], said["round"]) == ('two\nlines, "quotes", \x1b[31mred', None, None, 3)
    at = datetime.datetime.fromisoformat(said["time"])
    assert abs((datetime.datetime.now(datetime.UTC) - at).total_seconds()) < 60


def test_records_and_progress_are_json_on_standard_output(narrator: narration.Narrator, capsys: pytest.CaptureFixture[str]) -> None:
    with open_view("title", as_json=True) as view:
        logging.getLogger("shoal.peer").warning("lost %s", "anna")
        view.watch(PeerProgress("training", 4, 3, 2, 90, 1.5, 640.0))
    out, err = capsys.readouterr()
    assert err == ""
    said, progress = map(json.loads, out.splitlines())
    assert (said["level"], said["event"], said["text"]) == ("warning", "said", "lost anna")
    assert (progress["level"], progress["event"]) == ("info", "progress")
    assert {name: progress[name] for name in PROGRESS} == {
        **dict.fromkeys(PROGRESS, 0),
        "phase": "training",
        "round": 4,
        "version": 3,
        "members": 2,
        "steps": 90,
        "loss": 1.5,
        "tokens_per_s": 640.0,
        "waiting_for": "",
        "unit": "bits per byte",
    }
    assert progress["text"].startswith("phase training  round 4  version 3")
    logging.getLogger("shoal.peer").warning("for people again")
    assert "warning: for people again" in capsys.readouterr().err


def test_a_long_wait_is_json_too() -> None:
    written: list[str] = []
    JsonLines(written.append).watch(PeerProgress("waiting", waiting_for="1 more peer", waiting_s=6.0))
    said = json.loads(written[0])
    assert (said["waiting_for"], said["waiting_s"]) == ("1 more peer", 6.0)
    assert said["text"].startswith("still waiting after 6 s for 1 more peer")


def test_a_coordinator_says_json_too(narrator: narration.Narrator, capsys: pytest.CaptureFixture[str]) -> None:
    narration.speak_json()
    logging.getLogger("shoal.coordinator").info("anna joined")
    assert json.loads(capsys.readouterr().out)["text"] == "anna joined"
