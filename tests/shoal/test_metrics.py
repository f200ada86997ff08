"""What Prometheus gets: over HTTP, from a peer's progress and a coordinator's answers, name by name as docs/metrics.md says."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.metrics import COORDINATOR, PEER, PEER_PHASES, RUN_PHASES, serve_coordinator, serve_peer
from shoal.peer.daemon import PeerProgress, Totals
from shoal.peer.events import EntryApplied, Offline, Published, TrainerLost
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply, GetPeers, GetStatus, Peers, PeerView, Status
from shoal.protocol.errors import ListenError
from tests.test_docs import ROOT

PROGRESS = PeerProgress(
    "training", 9, 8, 3, 120, 2.5, 640.0, 2.25, "", 0.0, "demo", "p" * 52, 'a "b"', "shoal 1", Totals(7, 1, 8, 1000, 2000, 2)
)
STATUS = Status("demo", 3, "training", "", 8, 10, 2, 1, 4096, 8192, 2.125, 8, "ab")
ANNA = PeerView("p" * 52, "anna", 5, "active", "a:1", "cpu", 8, "training", 0.5, 640.0, 2.5, 2048, "shoal 1")

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(url: str) -> tuple[set[str], Series]:
    """Names of all families, and every sample."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        text = reply.read().decode()
    families = list(text_string_to_metric_families(text))
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    names = {name for name in names if not name.endswith("_created")}  # part of a histogram
    return names, {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


async def answers(command: AdminCommand) -> AdminReply | AdminError:
    match command:
        case GetStatus():
            return STATUS
        case GetPeers():
            return Peers((ANNA,))
    return AdminError("not asked here")


async def peer_page() -> tuple[set[str], Series]:
    async with serve_peer("127.0.0.1:0", lambda: PROGRESS) as url:
        return await asyncio.to_thread(scraped, url)


async def coordinator_page() -> tuple[set[str], Series]:
    async with serve_coordinator("127.0.0.1:0", answers) as url:
        return await asyncio.to_thread(scraped, url)


def documented(who: str) -> set[str]:
    """Names in the tables of docs/metrics.md that are about this and about both."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    names = set()
    for heading in (who, "Both", *(["Any process"] if sys.platform == "linux" else [])):
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
        names |= set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
    return names


async def test_a_peer_shows_exactly_the_documented_metrics() -> None:
    names, _ = await peer_page()
    assert names == documented("A peer")


async def test_a_coordinator_shows_exactly_the_documented_metrics() -> None:
    names, _ = await coordinator_page()
    assert names == documented("A coordinator")


@pytest.mark.parametrize("number", [*PEER, *COORDINATOR], ids=lambda number: number.name)
def test_names_follow_the_convention(number: object) -> None:
    name, text = vars(number)["name"], vars(number)["text"]
    assert re.fullmatch(r"shoal_[a-z]+(_[a-z]+)*", name)
    assert text[0].isupper() or text[0].isdigit()
    assert text.endswith(".")
    assert not re.search(r"_(ms|kb|mb|gb|percent|count|time|milliseconds)(_|$)", name)


async def test_a_peers_numbers_are_those_of_its_progress() -> None:
    _, found = await peer_page()
    info = (("name", 'a "b"'), ("peer", "p" * 52), ("run", "demo"), ("software", "shoal 1"))
    assert found["shoal_peer_info", info] == 1
    for name, value in (
        ("version", 8),
        ("round", 9),
        ("members", 3),
        ("loss", 2.5),
        ("heldout_bits_per_byte", 2.25),
        ("tokens_per_second", 640),
        ("waiting_seconds", 0),
        ("inner_steps_total", 120),
        ("entries_applied_total", 8),
        ("sent_bytes_total", 1000),
        ("received_bytes_total", 2000),
        ("trainer_losses_total", 2),
    ):
        assert found[f"shoal_peer_{name}", ()] == value, name
    assert {key[1][0][1]: value for key, value in found.items() if key[0] == "shoal_peer_rounds_total"} == {
        "contributed": 7,
        "skipped": 1,
    }
    phases = {key[1][0][1]: value for key, value in found.items() if key[0] == "shoal_peer_phase"}
    assert phases == {**dict.fromkeys(PEER_PHASES, 0), "training": 1}


async def test_a_coordinators_numbers_are_its_answers() -> None:
    _, found = await coordinator_page()
    for name, value in (
        ("run_version", 8),
        ("run_members", 2),
        ("run_min_members", 1),
        ("run_rounds_opened_total", 11),
        ("run_rounds_committed_total", 8),
        ("run_committed_tokens_total", 4096),
        ("run_planned_tokens", 8192),
        ("coordinator_starts_total", 3),
    ):
        assert found[f"shoal_{name}", ()] == value, name
    about = (("device", "cpu"), ("name", "anna"), ("peer", "p" * 52), ("software", "shoal 1"))
    assert found["shoal_member_info", about] == 1
    anna = (("peer", "p" * 52),)
    assert found["shoal_member_tokens_per_second", anna] == 640
    assert found["shoal_member_committed_tokens_total", anna] == 2048
    phases = {key[1][0][1]: value for key, value in found.items() if key[0] == "shoal_run_phase"}
    assert phases == {**dict.fromkeys(RUN_PHASES, 0), "training": 1}


async def test_a_blocked_event_loop_shows_as_lag() -> None:
    """PER-03 of a report: heartbeats starve while something holds the loop."""
    async with serve_peer("127.0.0.1:0", lambda: PROGRESS) as url:
        await asyncio.sleep(0.1)
        time.sleep(1.2)
        await asyncio.sleep(0.1)
        _, found = await asyncio.to_thread(scraped, url)
    assert found["shoal_event_loop_lag_seconds_count", ()] >= 1
    assert 0.5 < found["shoal_event_loop_lag_seconds_sum", ()] < 10


async def test_a_core_that_does_not_answer_fails_the_scrape_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.metrics.ANSWER_S", 0.2)

    async def silent(_: AdminCommand) -> AdminReply | AdminError:
        await asyncio.sleep(60)
        raise AssertionError

    async with serve_coordinator("127.0.0.1:0", silent) as url:
        with pytest.raises((urllib.error.URLError, OSError)):
            await asyncio.to_thread(scraped, url)
        async with asyncio.timeout(3):
            await asyncio.sleep(0)


async def test_an_address_that_is_taken_is_one_clear_line() -> None:
    async with serve_peer("127.0.0.1:0", lambda: PROGRESS) as url:
        address = url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(ListenError, match=f"cannot show metrics at {address}: .* — choose another port"):
            async with serve_peer(address, lambda: PROGRESS):
                pass
    async with serve_peer(address, lambda: PROGRESS):
        pass  # the first one let go of it


def test_what_happened_is_counted() -> None:
    totals = Totals()
    for event in (
        Published(1, 4, 40, 2, 1.0, 1.0),
        Published(2, 0, 0, 2, 1.0, 1.0, "out of memory"),
        EntryApplied(1, 10, 20),
        EntryApplied(2, 1, 2),
        TrainerLost("killed"),
        Offline("gone"),
    ):
        totals = totals.after(event)
    assert totals == Totals(1, 1, 2, 11, 22, 1)


def test_phases_of_the_page_are_those_that_the_engine_and_the_core_have() -> None:
    engine = (ROOT / "peer" / "engine.py").read_text()
    body = engine[engine.index("def phase(self)") :]
    body = body[body.index('"""', body.index('"""') + 3) : body.index("# --- the stream")]
    said = set(re.findall(r'"([a-z][a-z ]+)"', body))
    said |= set(re.findall(r'PeerProgress\("(\w+)"', (ROOT / "peer" / "daemon.py").read_text()))
    assert said == set(PEER_PHASES)
    views = Path(ROOT / "coordinator" / "views.py").read_text()
    body = views[views.index("def phase(") :]
    assert set(re.findall(r'"([a-z]+)"', body[: body.index("\ndef ")])) == set(RUN_PHASES)
