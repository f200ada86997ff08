"""What a volunteer or an operator can get wrong, against a real coordinator: one line on stderr, the fault and the way out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from shoal.coordinator import setup
from shoal.localswarm import LOOPBACK, LocalSwarm
from shoal.protocol import invites
from shoal.protocol.admin import Invitation, MakeInvite
from shoal.protocol.invites import Invite
from shoal.runplan import from_flags
from tests.swarm.toyswarm import Swarms, toy_spec

pytestmark = pytest.mark.slow

QUICK_S = 75.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSwarm]:
    """One coordinator for the whole table."""
    with LocalSwarm(tmp_path_factory.mktemp("served"), toy_spec(5)) as swarm:
        swarm.create()
        swarm.start_coordinator()
        yield swarm


@pytest.fixture(scope="module")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Invite:
    """An invite of another run, with another certificate authority, which nobody serves."""
    anywhere = f"{LOOPBACK}:0"
    return setup.init(
        tmp_path_factory.mktemp("other") / "run", toy_spec(5), listen=anywhere, enrol_listen=anywhere, advertise=LOOPBACK
    )


@dataclass(frozen=True)
class Outcome:
    code: int
    error: str


def shoal(directory: Path, *words: str, timeout_s: float = QUICK_S) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "XDG_STATE_HOME": str(directory / "state")},
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert not re.search(r"^[EWI]\d{4}|\.cc:\d+", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert len(errors) == 1, done.stderr + done.stdout
    assert re.fullmatch(r"error: .+ — .+", errors[0]), errors
    return Outcome(done.returncode, errors[0])


def join(directory: Path, *words: str) -> Outcome:
    return shoal(directory, "peer", "join", *words, "--state", str(directory / "peer"), "--listen", f"{LOOPBACK}:0")


@pytest.mark.parametrize("line", ["hello", "shoal-invite-1.AAAA", "shoal-invite-9.AAAA", ""])
def test_a_line_that_is_no_invite(tmp_path: Path, line: str) -> None:
    outcome = join(tmp_path, line)
    assert outcome.code == 2
    assert "the line that the run's operator gave you" in outcome.error or "invite" in outcome.error


def test_an_invite_cut_in_the_middle(served: LocalSwarm, tmp_path: Path) -> None:
    outcome = join(tmp_path, served.invite[: len(served.invite) // 2])
    assert outcome.code == 2
    assert "cut off" in outcome.error


def test_no_invite_and_no_identity(tmp_path: Path) -> None:
    outcome = join(tmp_path)
    assert outcome.code == 2
    assert "the line that the run's operator gave you" in outcome.error


def test_an_invite_that_is_used_up(served: LocalSwarm, tmp_path: Path) -> None:
    reply = served.ask(MakeInvite(uses=1))
    assert isinstance(reply, Invitation)
    served.add_peer("first", invite=reply.line)
    served.wait_for(lambda: enrolled(served, "first"), 30, "first to enrol")
    outcome = join(tmp_path, reply.line)
    assert outcome.code == 2
    assert "used" in outcome.error
    served.peers["first"].ask_to_leave()
    assert served.peers["first"].wait(20) is not None


def enrolled(swarm: LocalSwarm, name: str) -> bool:
    return any(swarm.state_of(name).rglob("certificate.pem"))


def test_an_invite_whose_coordinator_shows_another_authority(served: LocalSwarm, other_run: Invite, tmp_path: Path) -> None:
    mine = invites.parse(served.invite)
    forged = dataclasses.replace(mine, ca_pem=other_run.ca_pem)
    outcome = join(tmp_path, forged.line())
    assert outcome.code in (3, 4, 5)
    assert mine.enrol_addresses[0] in outcome.error


def test_nobody_listens_where_the_invite_says(other_run: Invite, tmp_path: Path) -> None:
    outcome = join(tmp_path, other_run.line())
    assert outcome.code == 3
    assert other_run.enrol_addresses[0] in outcome.error


def test_the_wrong_one_of_the_two_ports(served: LocalSwarm, tmp_path: Path) -> None:
    mine = invites.parse(served.invite)
    swapped = dataclasses.replace(mine, enrol_addresses=mine.session_addresses)
    outcome = join(tmp_path, swapped.line())
    assert outcome.code in (3, 4, 5)
    assert mine.session_addresses[0] in outcome.error


def test_a_host_name_that_nobody_knows(served: LocalSwarm, tmp_path: Path) -> None:
    lost = dataclasses.replace(invites.parse(served.invite), enrol_addresses=("no-such-host.invalid:7601",))
    outcome = join(tmp_path, lost.line())
    assert outcome.code == 3
    assert "no-such-host.invalid" in outcome.error


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there(served: LocalSwarm, tmp_path: Path) -> None:
    outcome = join(tmp_path, served.invite, "--allow", "shoal_toy", "--device", "cuda")
    assert outcome.code != 0
    assert "cuda" in outcome.error.lower()


def test_a_model_from_a_package_that_was_not_allowed(served: LocalSwarm, tmp_path: Path) -> None:
    outcome = join(tmp_path, served.invite)
    assert outcome.code == 5
    assert "--allow shoal_toy" in outcome.error


def test_data_files_that_are_not_there_or_differ(tmp_path: Path, swarms: Swarms) -> None:
    text, elsewhere = tmp_path / "text", tmp_path / "elsewhere"
    for directory in (text, elsewhere):
        directory.mkdir()
    (text / "a.txt").write_text("the real text " * 100)
    plan = from_flags({"run": {"name": f"files-{secrets.token_hex(3)}"}}, [text / "a.txt"], 3, 1)
    swarm = swarms(plan.spec)
    swarm.start_coordinator()
    missing = join(tmp_path, swarm.invite, "--data", str(elsewhere))
    assert missing.code == 5
    assert "a.txt" in missing.error
    (elsewhere / "a.txt").write_text("another text  " * 100)
    differing = join(tmp_path, swarm.invite, "--data", str(elsewhere))
    assert differing.code == 5
    assert "a.txt" in differing.error
    for digest in (hashlib.sha256((text / "a.txt").read_bytes()), hashlib.sha256((elsewhere / "a.txt").read_bytes())):
        assert digest.hexdigest()[:8] in differing.error


def test_a_port_that_a_peer_cannot_have(served: LocalSwarm, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen()
        taken = f"{LOOPBACK}:{holder.getsockname()[1]}"
        outcome = shoal(
            tmp_path, *("peer", "join", served.invite, "--state", str(tmp_path / "peer"), "--allow", "shoal_toy", "--listen", taken)
        )
    assert outcome.code == 5
    assert taken in outcome.error


def test_a_port_that_the_coordinator_cannot_have(served: LocalSwarm, tmp_path: Path) -> None:
    setup.init(tmp_path / "run", toy_spec(5), listen=served.address, enrol_listen=f"{LOOPBACK}:1", advertise=LOOPBACK)
    outcome = shoal(tmp_path, "coordinator", "serve", str(tmp_path / "run"))
    assert outcome.code == 5
    assert served.address in outcome.error


def test_two_coordinators_of_one_run(served: LocalSwarm, tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "coordinator", "serve", str(served.run_directory))
    assert outcome.code == 5
    assert str(served.run_directory) in outcome.error


def test_asking_a_coordinator_that_does_not_run(tmp_path: Path) -> None:
    invite = setup.init(tmp_path / "run", toy_spec(5), listen=f"{LOOPBACK}:0", enrol_listen=f"{LOOPBACK}:0", advertise=LOOPBACK)
    outcome = shoal(tmp_path, "admin", "status", "--dir", str(tmp_path / "run"))
    assert outcome.code == 3
    assert invite.session_addresses[0] in outcome.error
