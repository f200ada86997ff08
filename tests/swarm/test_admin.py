"""Every admin verb on one running swarm, for people and as JSON, and where it cannot work: one line and a code that is not 0."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal import cli, narration
from shoal.localswarm import LocalSwarm
from shoal.peer.enrol import load
from shoal.peer.vault import shared_memory_directory
from shoal.protocol.admin import Events, GetEvents, GetSettings, RunSettings
from tests.swarm.conftest import swarm_factory
from tests.swarm.toyswarm import Swarms, members, status, toy_spec, working

pytestmark = pytest.mark.slow

LONG = 100_000
PEER_VERBS = ("kick", "ban", "unban", "drain")
LOOKS = ("status", "peers", "rounds", "leaderboard", "events", "set", "invites", "invites --all")
ACTS = ("invite", "revoke abcd", "pause", "resume", "stop", *PEER_VERBS, "set run.min_peers 1", "grant observer {new}")


@dataclass
class Stage:
    """A toy swarm that trains, with a member's and an observer's credential at hand."""

    swarm: LocalSwarm
    place: Path

    def run(self, words: str, *more: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
        """One command, as `shoal` runs it, but in this process: that is a second quicker."""
        wanted = [word.format(new=self.place / f"new-{time.monotonic_ns()}") for word in words.split()]
        line = ["admin", *wanted, *more, "--dir", str(directory or self.swarm.run_directory)]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run(line, verbose=False)
        return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())

    def says(self, words: str, *more: str, directory: Path | None = None) -> str:
        done = self.run(words, *more, directory=directory)
        assert done.returncode == 0, done.stderr
        assert done.stderr in ("", f"run {self.swarm.spec.run.name}:\n")
        return done.stdout

    def answers(self, words: str, directory: Path | None = None) -> Any:
        return json.loads(self.says(words, "--json", directory=directory))

    def refuses(self, words: str, code: int, directory: Path | None = None) -> str:
        """The one line of a command that cannot be carried out, which is the same with --json."""
        lines = set()
        for more in ((), ("--json",)):
            done = self.run(words, *more, directory=directory)
            assert done.returncode == code, done.stdout + done.stderr
            assert done.stdout == ""
            assert re.fullmatch(r"error: .+ — .+\n", done.stderr), done.stderr
            lines.add(done.stderr)
        [line] = lines
        return line

    @property
    def observer(self) -> Path:
        return self.place / "observer"

    def forget(self, name: str) -> None:
        """Remove the local copy that a dismissed peer kept, because it could not be sure that others hold the state."""
        peer = load(self.identity_of(name)).peer
        for kept in shared_memory_directory().glob(f"shoal-*-{self.swarm.spec.run.name}-{peer}"):
            shutil.rmtree(kept)

    def identity_of(self, name: str) -> Path:
        """A member's own credential: what a volunteer has."""
        return next(self.swarm.state_of(name).rglob("run.json")).parent


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What `cli.run` sets up for a process is taken back."""
    yield
    logger = logging.getLogger(narration.LOGGER)
    narrator = narration.current()
    if narrator is not None:
        logger.removeHandler(narrator)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with swarm_factory(lambda: bool(request.session.testsfailed)) as (make, top):
        swarm = make(toy_spec(LONG, peers=1))
        swarm.start_coordinator()
        swarm.add_peer("anna")
        swarm.add_peer("bert")
        swarm.wait_for(lambda: working(swarm) == {"anna", "bert"}, 60, "both peers' work to be committed")
        one = Stage(swarm, top)
        one.says(f"grant observer {one.observer}", "--name", "olga", "--days", "1")
        yield one


@pytest.fixture(scope="module")
def dead(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A run whose coordinator does not run."""
    with swarm_factory(lambda: bool(request.session.testsfailed)) as (make, top):
        yield Stage(make(toy_spec(LONG, peers=1)), top)


# --- where it cannot work -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*LOOKS, *(f"{verb} anna" if verb in PEER_VERBS else verb for verb in ACTS)])
def test_a_dead_coordinator_is_code_3_and_one_line(dead: Stage, words: str) -> None:
    assert "nobody listens at 127.0.0.1:" in dead.refuses(words, 3)


@pytest.mark.parametrize("words", [f"{verb} anna" if verb in PEER_VERBS else verb for verb in ACTS])
def test_an_observer_may_not_act(stage: Stage, words: str) -> None:
    assert "has no admin right" in stage.refuses(words, 4, directory=stage.observer)


@pytest.mark.parametrize("words", [*LOOKS, *(f"{verb} anna" if verb in PEER_VERBS else verb for verb in ACTS)])
def test_a_members_certificate_opens_nothing_here(stage: Stage, words: str) -> None:
    assert re.search("has no admin (or observer )?right", stage.refuses(words, 4, directory=stage.identity_of("anna")))


@pytest.mark.parametrize("words", LOOKS)
def test_an_observer_may_look_at_everything(stage: Stage, words: str) -> None:
    assert stage.says(words, directory=stage.observer)
    assert stage.answers(words, directory=stage.observer)["type"]


@pytest.mark.parametrize("verb", PEER_VERBS)
def test_an_unknown_peer_is_code_4_and_one_line(stage: Stage, verb: str) -> None:
    assert "no peer 'nobody' is" in stage.refuses(f"{verb} nobody", 4)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ("revoke 0000", 4, "no invite begins with 0000"),
        ("revoke ../x", 4, "'../x' is no invite's id"),
        ("revoke shoal-invite-1.AAAA", 2, "invite"),
    ],
)
def test_what_is_no_invite_is_not_revoked(stage: Stage, words: str, code: int, why: str) -> None:
    assert why in stage.refuses(words, code)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ("set run.min_peers many", 4, "'many' is not a number"),
        ("set train.lr 0.1", 4, "train.lr is fixed for this run"),
        ("set run.nothing 1", 4, "there is no setting 'run.nothing'"),
        ("set run.min_peers", 2, "run.min_peers is to be set to what?"),
        ("set timing.part_s 1000", 4, "timing.part_s 1000 exceeds timing.reduce_s 600"),
    ],
)
def test_what_cannot_be_set_is_one_line(stage: Stage, words: str, code: int, why: str) -> None:
    assert why in stage.refuses(words, code)


# --- what each does -------------------------------------------------------------------------------------------------------------


def test_every_look_is_a_table_and_json(stage: Stage) -> None:
    assert stage.says("peers").splitlines()[0].startswith("peer")
    assert {peer["name"] for peer in stage.answers("peers")["peers"]} >= {"anna", "bert"}
    certificates = [peer["certificate_until"] - time.time() for peer in stage.answers("peers")["peers"]]
    assert all(23 * 3600 < left <= 24 * 3600 for left in certificates)
    rounds = [entry for entry in stage.answers("rounds --limit 30")["rounds"] if entry["state"] == "committed"]
    assert all(entry["expected_weight"] == 4 * entry["members"] for entry in rounds)
    both = [entry for entry in rounds if entry["members"] == entry["contributors"] == 2]
    assert both
    assert all(entry["weight"] == entry["expected_weight"] == 8 for entry in both)
    assert any(entry["sent_bytes"] > 0 < entry["received_bytes"] for entry in both)
    assert " of " in stage.says("rounds")
    board = stage.answers("leaderboard")
    assert sum(row["tokens"] for row in board["contributors"]) == board["committed_tokens"]
    assert {row["name"] for row in board["contributors"]} >= {"anna", "bert"}
    assert all(row["sent_bytes"] > 0 for row in board["contributors"] if row["name"] in ("anna", "bert"))
    assert "share" in stage.says("leaderboard").splitlines()[0]


def test_an_invite_is_listed_until_it_is_revoked_by_its_id_or_its_line(stage: Stage) -> None:
    for name_it in (lambda made: made["id"], lambda made: made["line"], lambda made: made["id"][:6]):
        made = stage.answers("invite --uses 3 --hours 2")
        [mine] = [one for one in stage.answers("invites")["invites"] if one["id"] == made["id"]]
        assert (mine["state"], mine["uses_left"], mine["enrolled"]) == ("open", 3, 0)
        assert mine["expires_at"] - mine["made_at"] == pytest.approx(7200, abs=0.01)
        table = stage.says("invites").splitlines()
        assert table[0].split()[:3] == ["invite", "state", "uses"]
        assert any(line.startswith(made["id"]) for line in table)
        assert made["id"] in stage.says(f"revoke {name_it(made)}")
        assert made["id"] not in [one["id"] for one in stage.answers("invites")["invites"]]
        [gone] = [one for one in stage.answers("invites --all")["invites"] if one["id"] == made["id"]]
        assert gone["state"] == "revoked"
        told = [event["text"] for event in stage.answers("events")["events"]]
        assert any(f"asked: revoke invite {made['id'][:6]}" in text for text in told)
        assert not any(made["line"] in text for text in told), "which is a secret"
    first = stage.answers("invites --all")["invites"][0]
    assert first["enrolled"] == 2, "anna and bert came in with the one that init made"


def test_set_changes_a_setting_and_lists_them(stage: Stage) -> None:
    assert stage.answers("set evaluation.every 999") == {"type": "Done", "text": "evaluation.every is 999 from now on"}
    (row,) = [line.split() for line in stage.says("set").splitlines() if line.startswith("evaluation.every")]
    assert row[1:3] == ["999", "1000"]
    settings = stage.swarm.ask(GetSettings())
    assert isinstance(settings, RunSettings)


def test_drain_lets_a_peer_leave_in_good_order_and_kick_ends_it_now_and_both_may_return(stage: Stage) -> None:
    swarm = stage.swarm
    for verb, code, word in (("drain", 0, "draining carl"), ("kick", 4, "kicked carl")):
        carl = swarm.add_peer("carl")
        swarm.wait_for(lambda: "carl" in {peer.name for peer in members(swarm)}, 60, "carl to be a member")
        swarm.wait_for(lambda: "carl" in working(swarm), 60, "carl's work to be committed")
        assert word in (stage.says(f"{verb} carl") if verb == "drain" else stage.answers(f"{verb} carl")["text"])
        assert carl.wait(30) == code, carl.last_words(20)
        swarm.wait_for(lambda: "carl" not in {peer.name for peer in members(swarm)}, 10, "carl to be gone")
        stage.forget("carl")
    assert "was kicked by an operator" in carl.log.read_text()
    assert {"anna", "bert"} <= {peer.name for peer in members(swarm)}


def test_ban_keeps_an_identity_out_until_it_is_unbanned(stage: Stage) -> None:
    swarm = stage.swarm
    dora = swarm.add_peer("dora")
    swarm.wait_for(lambda: "dora" in working(swarm), 60, "dora's work to be committed")
    [identity] = [peer.peer for peer in members(swarm) if peer.name == "dora"]
    assert "banned dora" in stage.says(f"ban {identity[:12]}", "--reason", "noise")
    assert dora.wait(30) == 4
    assert "was banned by an operator (noise)" in dora.log.read_text()
    assert [row["banned"] for row in stage.answers("leaderboard")["contributors"] if row["peer"] == identity] == [True]
    dora = swarm.add_peer("dora")
    assert dora.wait(60) == 4
    assert f"{identity[:8]} is banned from run" in dora.log.read_text()
    assert "unbanned dora" in stage.answers("unban dora")["text"]
    dora = swarm.add_peer("dora")
    swarm.wait_for(lambda: "dora" in {peer.name for peer in members(swarm)}, 60, "dora to be back")
    stage.says("drain dora")
    assert dora.wait(30) == 0
    stage.forget("dora")


def test_events_are_followed_one_per_line_until_ctrl_c(stage: Stage) -> None:
    follow = subprocess.Popen(
        [sys.executable, "-u", "-m", "shoal", "admin", "events", "-f", "-n", "1", "--json", "--dir", str(stage.observer)],
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert follow.stdout is not None
        events = [json.loads(follow.stdout.readline())]
        stage.says("pause")
        stage.says("resume")
        while not events[-1]["text"].endswith("asked: resume: resumed"):
            events.append(json.loads(follow.stdout.readline()))
        follow.send_signal(signal.SIGINT)
        assert follow.wait(10) == 0
    finally:
        follow.kill()
        follow.wait()
        if follow.stdout is not None:
            follow.stdout.close()
    assert any(re.fullmatch(r"operator [0-9a-f]{8} asked: pause: paused.*", event["text"]) for event in events)
    numbers = [event["number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "none is left out and none comes twice"


def test_who_asked_for_what_outlives_a_coordinator_that_is_killed(swarms: Swarms, tmp_path: Path) -> None:
    swarm = swarms(toy_spec(LONG, peers=1))
    swarm.start_coordinator()
    one = Stage(swarm, tmp_path)
    one.says(f"grant observer {one.observer}", "--name", "olga")
    one.says("pause")
    one.refuses("resume", 4, directory=one.observer)
    before = swarm.ask(GetEvents(100))
    assert swarm.coordinator is not None
    os.kill(swarm.coordinator.pid, signal.SIGKILL)
    swarm.coordinator.wait(5)
    swarm.start_coordinator()
    after = swarm.ask(GetEvents(100))
    assert isinstance(before, Events)
    assert isinstance(after, Events)
    assert after.events[: len(before.events)] == before.events
    assert status(swarm).phase == "paused"
    shown = one.says("events", directory=one.observer)
    assert re.search(r"operator [0-9a-f]{8} asked: grant observer to olga: [0-9a-f]{32} is observer now", shown)
    assert re.search(r"observer olga \([0-9a-f]{8}\) asked: resume: refused: the certificate of [0-9a-f]{32} has no admin", shown)


def test_the_last_verb_ends_the_run(stage: Stage) -> None:
    swarm = stage.swarm
    assert stage.answers("invite --uses 2")["uses"] == 2
    assert "stopping" in stage.says("stop")
    swarm.wait_for(lambda: status(swarm).phase == "ended", 60, "the run to end")
    swarm.wait_for(lambda: all(swarm.peers[name].exit_code == 0 for name in ("anna", "bert")), 60, "the peers to leave")
    for words in ("pause", "resume", "stop", "kick anna", "drain anna", "set run.min_peers 1"):
        assert "the run ended at version" in stage.refuses(words, 4)


# --- certificates ---------------------------------------------------------------------------------------------------------------


def test_certificates_are_renewed_without_a_restart_while_rounds_go_on(swarms: Swarms) -> None:
    swarm = swarms(toy_spec(LONG, peers=2))
    life_s = 14.4
    swarm.coordinator_words = ("--certificate-hours", str(life_s / 3600))
    swarm.start_coordinator()
    for name in ("anna", "bert"):
        swarm.add_peer(name)
    swarm.wait_for(lambda: working(swarm) == {"anna", "bert"}, 60, "both peers' work to be committed")
    before = {peer.peer: peer for peer in members(swarm)}
    until = max(peer.certificate_until for peer in before.values()) + life_s
    swarm.wait_for(lambda: all(peer.certificate_until > until for peer in members(swarm)), 60, "two renewals of each")
    assert {peer.peer: peer.session for peer in members(swarm)} == {peer: view.session for peer, view in before.items()}
    version = status(swarm).version
    swarm.wait_for(lambda: status(swarm).version > version + 3, 30, "rounds after the first certificates ended")
    logs = "".join(child.log.read_text() for child in swarm.peers.values())
    assert "lost the coordinator" not in logs
    assert "expired" not in logs
