"""Making a run's directory: whole or not at all, with ports that stay and addresses that others can use."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from shoal.coordinator import setup
from shoal.coordinator.journal import Journal, journal_url
from shoal.coordinator.records import RunCreated
from shoal.coordinator.setup import RunDirectory, Settings, SetupError, init, with_overrides
from shoal.peer.enrol import load
from shoal.protocol.channels import split_address
from shoal.protocol.errors import ListenError, ShoalError, UnreachableError
from shoal.protocol.invites import parse
from shoal.protocol.spec import RunSpec

SPEC = RunSpec.of(run={"name": "demo", "total_tokens": 1000})
LOOPBACK: dict[str, Any] = {"listen": "127.0.0.1:0", "enrol_listen": "127.0.0.1:0"}


def test_a_new_run_has_its_spec_its_operator_and_an_invite_that_survives_a_line(tmp_path: Path) -> None:
    invite = init(tmp_path / "run", SPEC, **LOOPBACK)
    place = RunDirectory(tmp_path / "run")
    assert parse(invite.line()) == invite
    journal = Journal.open(journal_url(place.journal))
    assert list(journal.records()) == [RunCreated("demo", SPEC.to_json())]
    for number in range(10):
        journal.enrol(f"peer{number}", invite.token, frozenset({"peer"}))
    with pytest.raises(ShoalError, match="used up"):
        journal.enrol("eleventh", invite.token, frozenset({"peer"}))
    journal.close()
    operator = load(place.admin)
    assert operator.credential.owner.rights == {"admin"}
    assert operator.session_addresses == invite.session_addresses
    assert RunSpec.load(place.spec) == SPEC


def test_the_first_invite_is_good_for_as_many_as_init_was_told_and_lies_in_the_directory(tmp_path: Path) -> None:
    invite = init(tmp_path / "run", SPEC, **LOOPBACK, uses=2, hours=48.0)
    place = RunDirectory(tmp_path / "run")
    assert place.invite.read_text() == f"{invite.line()}\n"
    assert place.invite.stat().st_mode & 0o077 == 0
    journal = Journal.open(journal_url(place.journal))
    for number in range(2):
        journal.enrol(f"peer{number}", invite.token, frozenset({"peer"}))
    with pytest.raises(ShoalError, match="used up"):
        journal.enrol("third", invite.token, frozenset({"peer"}))
    journal.close()
    with contextlib.closing(sqlite3.connect(place.journal)) as rows:
        assert rows.execute("SELECT expires_at - made_at FROM invites").fetchone() == (48 * 3600.0,)


def test_a_mount_point_is_refused_with_the_way_out() -> None:
    with pytest.raises(SetupError, match="/ is a mount point.*name a directory in it: /run"):
        init("/", SPEC, **LOOPBACK)


def test_a_port_of_0_becomes_a_real_one_that_is_kept(tmp_path: Path) -> None:
    invite = init(tmp_path / "run", SPEC, **LOOPBACK)
    settings = RunDirectory(tmp_path / "run").load_settings()
    ports = {split_address(address)[1] for address in (settings.listen, settings.enrol_listen)}
    assert len(ports) == 2
    assert 0 not in ports
    assert (settings.listen,) == invite.session_addresses
    assert (settings.enrol_listen,) == invite.enrol_addresses


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    init(tmp_path / "run", SPEC, **LOOPBACK)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    for key in (tmp_path / "run").rglob("*key*.pem"):
        assert key.stat().st_mode & 0o077 == 0


def test_an_empty_directory_may_be_used_and_a_full_one_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    init(tmp_path / "empty", SPEC, **LOOPBACK)
    with pytest.raises(SetupError, match="exists and is not empty"):
        init(tmp_path / "empty", SPEC, **LOOPBACK)
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="exists and is not empty"):
        init(tmp_path / "file", SPEC, **LOOPBACK)


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "save_settings", full)
    with pytest.raises(SetupError, match="No space left on device"):
        init(tmp_path / "run", SPEC, **LOOPBACK)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_not_this_machines_or_has_no_brackets_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 203\.0\.113\.7:0"):
        init(tmp_path / "a", SPEC, listen="203.0.113.7:0", enrol_listen="127.0.0.1:0")
    with pytest.raises(UnreachableError, match=r"IPv6 needs brackets"):
        init(tmp_path / "b", SPEC, listen="::1:7600", enrol_listen="127.0.0.1:0")
    with pytest.raises(SetupError, match="cannot share"):
        init(tmp_path / "c", SPEC, listen="127.0.0.1:7600", enrol_listen="127.0.0.1:7600")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("advertise", "session", "enrolment"),
    [
        (("swarm.example.org",), ("swarm.example.org:7600",), ("swarm.example.org:7601",)),
        (("10.0.0.5", "2001:db8::5"), ("10.0.0.5:7600", "[2001:db8::5]:7600"), ("10.0.0.5:7601", "[2001:db8::5]:7601")),
        (("home.example.org:9000",), ("home.example.org:9000",), ("home.example.org:9001",)),
        (("[2001:db8::5]:9000",), ("[2001:db8::5]:9000",), ("[2001:db8::5]:9001",)),
    ],
)
def test_advertised_hosts_are_what_invites_say(
    advertise: tuple[str, ...], session: tuple[str, ...], enrolment: tuple[str, ...]
) -> None:
    addresses = Settings("0.0.0.0:7600", "0.0.0.0:7601", advertise).addresses()
    assert addresses.session == session
    assert addresses.enrolment == enrolment


def test_without_advertise_a_wildcard_becomes_this_machines_address_and_a_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_own_hosts", lambda: ["192.168.1.9", "2001:db8::9"])
    assert Settings("0.0.0.0:7600", "[::]:7601").addresses().session == ("192.168.1.9:7600", "[2001:db8::9]:7600")
    assert Settings("127.0.0.1:7600", "[::1]:7601").addresses().enrolment == ("[::1]:7601",)


def test_this_machine_has_at_least_one_address() -> None:
    hosts = setup._own_hosts()
    assert hosts
    for host in hosts:
        socket.getaddrinfo(host, 1)


def test_what_serve_is_told_replaces_what_init_chose() -> None:
    kept = Settings("127.0.0.1:7600", "127.0.0.1:7601", ("a",))
    assert with_overrides(kept, "", "", "") == kept
    assert with_overrides(kept, "127.0.0.1:8000", "", "b, c") == Settings("127.0.0.1:8000", "127.0.0.1:7601", ("b", "c"))


def test_damaged_settings_are_named(tmp_path: Path) -> None:
    init(tmp_path / "run", SPEC, **LOOPBACK)
    (tmp_path / "run" / "settings.json").write_text("{")
    with pytest.raises(SetupError, match=r"settings\.json cannot be read"):
        RunDirectory(tmp_path / "run").load_settings()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_may_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SetupError, match="choose a place that this user may write"):
        init(tmp_path / "run", SPEC, **LOOPBACK)
    tmp_path.chmod(0o700)
