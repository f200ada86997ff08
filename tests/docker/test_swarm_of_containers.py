"""docker-compose.yml on a real engine: it trains, survives the loss of any container, and leaves nothing."""

from __future__ import annotations

import re
import time

import pytest

from tests.docker.composed import TINY, docker, inspect, log
from tests.docker.conftest import Composed

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]

START_S = 240.0
"""For containers that all import PyTorch at once, on a machine with two cores and other work."""

PRIVILEGES_OF_A_TRAINER = (
    "trainer=$(grep -l -a '[s]hoal.peer.trainer' /proc/[0-9]*/cmdline | head -n 1);"
    " grep -E '^(Uid|CapEff|CapBnd):' ${trainer%cmdline}status"
)


def test_three_peers_train_and_the_run_survives_the_death_of_a_peer_and_of_the_coordinator(composed: Composed) -> None:
    project = composed()
    project.up("--scale", "peer=3")
    project.wait(lambda: len(project.commits(contributors=3)) >= 3, START_S, "three commits of three peers")
    peers, members = project.containers("peer"), project.contributors()
    assert len(members) == 3, "three identities"
    assert sorted(members.values()) == sorted(container[:12] for container in peers), "each container is one of them"
    everybody = [*peers, *project.containers("coordinator")]
    for container in everybody:
        assert docker("exec", container, "id", "-u").strip() not in ("", "0"), "nothing runs as root"
    project.wait(lambda: {inspect(container, ".State.Health.Status") for container in everybody} == {"healthy"}, 60.0, "health")

    docker("kill", peers[0])
    project.wait(lambda: len(project.commits(contributors=2)) >= 3, 60.0, "commits without the killed peer")
    docker("start", peers[0])
    before = project.version()
    project.wait(lambda: project.newest(contributors=3) > before, START_S, "a commit with the peer that came back")
    assert project.contributors() == members, "it came back with its identity"

    project.compose("kill", "coordinator")
    project.up("--scale", "peer=3")
    resumed = re.findall(r"term 2: version (\d+), 3 members", project.compose("logs", "coordinator"))
    assert [int(version) for version in resumed] >= [before], "the journal goes on"
    project.wait(lambda: project.version() > int(resumed[0]), 60.0, "commits after the coordinator's death")
    assert set(project.contributors()) == set(members)
    assert project.containers("peer") == peers, "nobody else was started again"

    project.admin("stop")
    project.wait(lambda: all(inspect(container, ".State.Status") == "exited" for container in peers), 60.0, "the end of the run")
    assert {inspect(container, ".State.ExitCode") for container in peers} == {"0"}
    volumes = ("--volume", f"{project.name}_peers:/peers:ro", "--entrypoint", "sh", "shoal-peer")
    digests = docker("run", "--rm", *volumes, "-c", "sha256sum /peers/identities/*/*/model/model.safetensors").splitlines()
    assert len(digests) == 3
    assert len({line.split()[0] for line in digests}) == 1, "all wrote the same model"
    assert project.left()
    project.compose("down", "--volumes")
    assert not project.left()


def test_stop_is_quick_and_what_down_keeps_is_what_up_goes_on_from(composed: Composed) -> None:
    project = composed(SHOAL_PEERS="2")
    project.up()
    project.wait(lambda: project.version() >= 2, START_S, "two commits")
    containers = [*project.containers("peer"), *project.containers("coordinator")]
    assert len(containers) == 3
    started = time.monotonic()
    project.compose("stop")
    assert time.monotonic() - started < 2 * 20.0, "nobody was left to the end of its grace"
    assert {inspect(container, ".State.ExitCode") for container in containers} == {"0"}
    project.compose("down")
    assert sorted(project.left()) == [f"{project.name}_{volume}" for volume in ("invite", "peers", "run")]
    project.up()
    resumed = re.findall(r"term 2: version (\d+)", project.compose("logs", "coordinator"))
    assert int(resumed[0]) >= 2
    project.wait(lambda: project.version() > int(resumed[0]), START_S, "a commit after the pause")


def test_peers_of_the_wan_profile_train_behind_links_that_are_shaped(composed: Composed) -> None:
    project = composed(SHOAL_UP="16mbit", SHOAL_DOWN="64mbit")
    project.up("--scale", "wan=2", "wan")
    project.wait(lambda: len(project.commits(contributors=2)) >= 2, START_S, "commits over shaped links")
    assert project.containers("peer") == [], "only the service that was asked for"
    for container in project.containers("wan"):
        shaped = docker("exec", container, "tc", "qdisc", "show")
        assert "rate 16Mbit" in shaped
        assert "rate 64Mbit" in shaped or "no ifb" in log(container)
        privileges = docker("exec", container, "sh", "-c", PRIVILEGES_OF_A_TRAINER)
        assert re.findall(r"\w+", privileges) == ["Uid", *["10001"] * 4, "CapEff", "0" * 16, "CapBnd", "0" * 16]


def test_peers_of_the_churn_profile_die_and_come_back_while_the_run_goes_on(composed: Composed) -> None:
    project = composed(SHOAL_LIFE="40-50", SHOAL_AWAY="1-2", SHOAL_RUN=f"{TINY} --min-peers 1")
    project.up("--scale", "peer=1", "--scale", "churn=1", "coordinator", "peer", "churn")
    (restless,) = project.containers("churn")
    project.wait(lambda: bool(project.commits(contributors=2)), START_S, "a commit of both peers")
    project.wait(lambda: int(inspect(restless, ".RestartCount")) >= 1, 120.0, "the death of the restless peer")
    dead_at = project.version()
    project.wait(lambda: project.newest(contributors=2) > dead_at, START_S, "a commit with the peer that came back")
    assert len(project.contributors()) == 2, "with its identity"
    project.compose("stop", "churn")
    assert inspect(restless, ".State.Status") == "exited", "a stop is no death"


def test_a_peer_without_an_invite_says_what_it_waits_for_and_stops_at_once(compose: tuple[str, ...]) -> None:
    container = docker("run", "--detach", "--init", "shoal-peer").strip()
    try:
        deadline = time.monotonic() + 20.0
        while "waiting for the coordinator's invite" not in log(container):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        started = time.monotonic()
        docker("stop", "--time", "20", container)
        assert time.monotonic() - started < 10.0
    finally:
        docker("rm", "--force", container)


def test_the_coordinators_image_has_no_pytorch(compose: tuple[str, ...]) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('numpy'), bool(u.find_spec('shoal')))"
    assert docker("run", "--rm", "--entrypoint", "python", "shoal-coordinator", "-c", code).split() == ["None", "None", "True"]
