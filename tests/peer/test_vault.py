"""The vault keeps one whole state, whatever kills the process that changes it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.compression.codec import Codec, codec
from shoal.optim.diloco import DiLoCo
from shoal.optim.layout import Part
from shoal.optim.outer import fingerprint, nesterov_step
from shoal.peer import partstore
from shoal.peer import vault as vault_module
from shoal.peer.partstore import PartStore, StorageFullError
from shoal.peer.vault import Vault, VaultBusyError, VaultError, copy_whole, log_bytes
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocol.messages import NO_VERSION, Commit, Decision, PartKey, Section

RUN = "shoal-test"
LAYOUT = hashlib.sha256(b"layout").digest()
PARTS = (Part(0, 100, (60, 40)), Part(100, 228, (128,)), Part(228, 300, (1, 71)))
VALUES = 300
INT8 = codec("int8", 32)


def make(directory: Path, feedback: Codec | None = None) -> Vault:
    vault = Vault.create(directory, RUN, VALUES, LAYOUT, PARTS, feedback=feedback)
    vault.begin_origin().copy_(torch.arange(VALUES) / 7)
    vault.finish_origin()
    return vault


def delta_of(version: int) -> torch.Tensor:
    return torch.randn(VALUES, generator=torch.Generator().manual_seed(version))


def entry(vault: Vault, version: int) -> Commit:
    """Store the parts of one entry, as if they had been reduced, and return its commit."""
    decisions = []
    for index, part in enumerate(PARTS):
        payload = bytes(INT8.encode(delta_of(version)[part.start : part.stop], part.spans))
        digest = hashlib.sha256(payload).digest()
        vault.store.put(PartKey(100 + version, Section.PARAMETERS, index), digest, payload)
        decisions.append(Decision(Section.PARAMETERS, index, 0, digest, ("a",), 8.0))
    return Commit(version, 100 + version, 0, 0, version - 1, tuple(decisions), 8 * version, 0.7, 0.9)


def expected(versions: int, included: tuple[bool, ...], pending: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same arithmetic without a vault."""
    theta, momentum, pending = torch.arange(VALUES) / 7, torch.zeros(VALUES), pending.clone()
    for version in range(1, versions + 1):
        for part, counted in zip(PARTS, included, strict=True):
            payload = INT8.encode(delta_of(version)[part.start : part.stop], part.spans)
            slice_ = slice(part.start, part.stop)
            nesterov_step(theta[slice_], momentum[slice_], INT8.decode(payload, part.spans), 0.7, 0.9)
            if counted:
                pending[slice_] = 0
    return theta, momentum, pending


def assert_state(vault: Vault, versions: int, included: tuple[bool, ...], pending: torch.Tensor) -> None:
    theta, momentum, rest = expected(versions, included, pending)
    assert vault.version == versions
    assert not vault.changing
    assert torch.equal(vault.theta, theta)
    assert torch.equal(vault.momentum, momentum)
    assert torch.equal(vault.pending, rest)


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    made = make(tmp_path / "vault")
    yield made
    made.close(remove=True)


def test_a_new_vault_has_no_version_and_no_root(tmp_path: Path) -> None:
    vault = Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS)
    assert vault.version == NO_VERSION
    assert vault.read_theta(NO_VERSION) is None
    with pytest.raises(VaultError, match="no whole shared state"):
        vault.root()
    vault.close(remove=True)
    assert not (tmp_path / "vault").exists()


def test_own_work_is_compared_with_the_update_over_the_parts_that_contain_it(vault: Vault) -> None:
    pending = torch.linspace(1, 2, VALUES)
    vault.begin_publish().copy_(pending)
    vault.publish(trained=30)
    likeness = vault.apply(entry(vault, 1), (True, False, True), INT8)
    update = torch.cat([INT8.decode(INT8.encode(delta_of(1)[p.start : p.stop], p.spans), p.spans) for p in (PARTS[0], PARTS[2])])
    own = torch.cat([pending[PARTS[0].start : PARTS[0].stop], pending[PARTS[2].start : PARTS[2].stop]])
    assert likeness.norm == pytest.approx(float(own.norm()), rel=1e-5)
    assert likeness.cosine == pytest.approx(float(torch.dot(own, update) / own.norm() / update.norm()), abs=1e-5)
    nothing = vault.apply(entry(vault, 2), (False, False, False), INT8)
    assert (nothing.norm, nothing.cosine) == (0.0, 0.0)


def test_entries_move_the_state_and_clear_pending_only_where_included(vault: Vault) -> None:
    pending = torch.linspace(1, 2, VALUES)
    vault.begin_publish().copy_(pending)
    vault.publish(trained=30)
    included = (True, False, True)
    vault.apply(entry(vault, 1), included, INT8)
    vault.apply(entry(vault, 2), included, INT8)
    assert_state(vault, 2, included, pending)
    assert vault.root() == fingerprint(2, LAYOUT, vault.theta, vault.momentum)
    local = vault.read_local(2)
    assert local is not None
    assert torch.equal(local, vault.theta - vault.pending)
    assert [kept.commit.version for kept in vault.entries] == [1, 2]


def residual_after(pending: torch.Tensor, residual: torch.Tensor, included: tuple[bool, ...]) -> torch.Tensor:
    """The same arithmetic without a vault: what the codec left out where the peer's work counted."""
    after = residual.clone()
    for part, counted in zip(PARTS, included, strict=True):
        if counted:
            wanted = (pending + residual)[part.start : part.stop]
            after[part.start : part.stop] = wanted - INT8.decode(INT8.encode(wanted, part.spans), part.spans)
    return after


def test_what_the_codec_left_out_joins_the_next_contribution_where_it_counted(tmp_path: Path) -> None:
    vault = make(tmp_path / "vault", INT8)
    pending, residual = delta_of(-1), torch.zeros(VALUES)
    for version, included in ((1, (True, False, True)), (2, (False, False, False)), (3, (True, True, False))):
        vault.begin_publish().copy_(pending)
        vault.publish(trained=30)
        for part in PARTS:
            wanted = (pending + residual)[part.start : part.stop]
            assert torch.equal(vault.contribution(part), wanted)
        assert torch.equal(vault.residual, residual), "sending changes nothing"
        vault.apply(entry(vault, version), included, INT8)
        residual = residual_after(pending, residual, included)
        assert torch.equal(vault.residual, residual)
        assert residual.ne(0).any()
        for part, counted in zip(PARTS, included, strict=True):
            if counted:
                pending[part.start : part.stop] = 0
        assert torch.equal(vault.pending, pending)
        pending = pending + delta_of(-version - 1)
    vault.drop_pending()
    assert torch.equal(vault.residual, residual)
    assert torch.equal(vault.theta, expected(3, (False,) * 3, torch.zeros(VALUES))[0]), "shared state knows no residuals"
    vault.close(remove=True)


@pytest.mark.parametrize("held", [True, False])
def test_a_state_from_elsewhere_ends_residuals(tmp_path: Path, held: bool) -> None:
    vault = make(tmp_path / "vault", INT8) if held else Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS, feedback=INT8)
    vault.residual.fill_(1)
    content, root = state(5)
    incoming = vault.incoming(5, root)
    incoming.write(content)
    assert vault.residual.eq(1).all()
    vault.install(incoming)
    assert vault.residual.eq(0).all()
    vault.close(remove=True)


def test_a_vault_without_feedback_has_no_residuals_and_no_room_for_them(vault: Vault) -> None:
    vault.begin_publish().copy_(delta_of(-1))
    vault.publish(trained=1)
    assert torch.equal(vault.contribution(PARTS[1]), delta_of(-1)[100:228])
    assert not (vault.directory / "residual.f32").exists()


def test_an_entry_that_does_not_continue_the_state_is_refused_and_an_old_one_ignored(vault: Vault) -> None:
    first, third = entry(vault, 1), entry(vault, 3)
    with pytest.raises(LocalProtocolError, match="continues version 2, the vault is at 0"):
        vault.apply(third, (True,) * 3, INT8)
    vault.apply(first, (True,) * 3, INT8)
    before = vault.theta.clone()
    vault.apply(first, (True,) * 3, INT8)
    assert torch.equal(vault.theta, before)


def test_an_entry_whose_bytes_are_missing_changes_nothing(vault: Vault) -> None:
    commit = entry(vault, 1)
    vault.store.drop(commit.round)
    before = vault.root()
    with pytest.raises(LocalProtocolError, match="part 0 of entry 1 are not in the vault"):
        vault.apply(commit, (True,) * 3, INT8)
    assert vault.root() == before == fingerprint(0, LAYOUT, vault.theta, vault.momentum)


def test_a_reader_never_gets_a_state_that_is_being_changed(vault: Vault) -> None:
    commit = entry(vault, 1)
    seen: dict[str, list[torch.Tensor | None]] = {}

    def observe(step: str) -> None:
        seen[step] = [vault.read_theta(0), vault.read_theta(1), vault.read_local(0)]

    vault.observe = observe
    vault.apply(commit, (True,) * 3, INT8)
    assert torch.equal(seen.pop("entry written")[0], torch.arange(VALUES) / 7)  # type: ignore[arg-type]
    assert set(seen) > {"applying", "half copied", "version raised", "mark cleared"}
    assert all(reads == [None, None, None] for reads in seen.values())
    assert vault.read_theta(0) is None
    assert torch.equal(vault.read_theta(1), vault.theta)  # type: ignore[arg-type]


def test_a_trainer_publishes_into_the_slot_that_nobody_reads(vault: Vault) -> None:
    trainer = Vault.attach(vault.directory)
    trainer.begin_publish().fill_(3)
    assert vault.pending.eq(0).all()
    trainer.publish(trained=12)
    assert vault.pending.eq(3).all()
    assert vault.trained == 12
    trainer.begin_publish().fill_(5)
    assert vault.pending.eq(3).all()
    with pytest.raises(LocalProtocolError, match="only the daemon"):
        _ = trainer.store
    vault.drop_pending()
    assert trainer.pending.eq(0).all()
    assert vault.trained == 0
    trainer.close()


def test_a_second_daemon_cannot_open_the_vault(vault: Vault) -> None:
    with pytest.raises(VaultBusyError, match=rf"another daemon \(process {os.getpid()}\) has the vault"):
        Vault.open(vault.directory, RUN)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vault.json", b"{"),
        ("vault.json", b'{"format": 1}'),
        ("vault.json", b"[1]"),
        ("control", b"short"),
        ("theta.f32", b"\x00" * (4 * VALUES - 1)),
        ("entries/1.json", b"[]"),
        ("parts/101.index", b""),
    ],
)
def test_a_damaged_vault_is_an_error_that_names_it_and_never_a_state_of_zeros(tmp_path: Path, name: str, content: bytes) -> None:
    vault = make(tmp_path / "vault")
    commit = entry(vault, 1)

    def stop(step: str) -> None:
        if step == "applying":
            raise InterruptedError

    vault.observe = stop
    with pytest.raises(InterruptedError):
        vault.apply(commit, (True,) * 3, INT8)
    vault.close()
    (tmp_path / "vault" / name).write_bytes(content)
    with pytest.raises(VaultError, match=str(tmp_path / "vault")):
        Vault.open(tmp_path / "vault", RUN)
    Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS).close(remove=True)


def test_a_vault_that_cannot_be_read_now_is_not_a_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = make(tmp_path / "vault")
    vault.apply(entry(vault, 1), (True,) * 3, INT8)
    vault.close()
    real, opened = os.open, len(os.listdir("/proc/self/fd"))

    def too_many(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path).endswith(".index"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(partstore.os, "open", too_many)
        with pytest.raises(OSError, match="Too many open files"):
            Vault.open(tmp_path / "vault", RUN)
    assert len(os.listdir("/proc/self/fd")) == opened
    again = Vault.open(tmp_path / "vault", RUN)
    assert again.version == 1
    again.close(remove=True)


def test_a_copy_of_a_vault_is_whole_or_not_there(vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.apply(entry(vault, 1), (True,) * 3, INT8)
    place = tmp_path / "last-copy"
    copy_whole(vault.directory, place)
    vault.apply(entry(vault, 2), (True,) * 3, INT8)

    def full(source: Path, target: Path, ignore: object) -> None:
        target.mkdir()
        (target / "vault.json").write_bytes((source / "vault.json").read_bytes())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(vault_module.shutil, "copytree", full)
        with pytest.raises(VaultError, match="No space left"):
            copy_whole(vault.directory, place)
    assert not place.with_name("last-copy.partial").exists()
    old = Vault.open(place, RUN)
    assert_state(old, 1, (True,) * 3, torch.zeros(VALUES))
    old.close()
    copy_whole(vault.directory, place)
    new = Vault.open(place, RUN)
    assert_state(new, 2, (True,) * 3, torch.zeros(VALUES))
    new.close(remove=True)


def test_a_directory_that_is_not_this_users_own_is_not_used_and_nothing_in_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    (tmp_path / "vault").symlink_to(tmp_path / "home")
    with pytest.raises(VaultError, match="not a directory of this user's"):
        Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter"]
    somebody = os.getuid() + 1
    monkeypatch.setattr(vault_module.os, "getuid", lambda: somebody)
    with pytest.raises(VaultError, match="not a directory of this user's"):
        Vault.create(tmp_path / "home", RUN, VALUES, LAYOUT, PARTS)


def test_a_vault_of_another_run_or_model_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "vault").close()
    for run, layout in (("other", LAYOUT), (RUN, hashlib.sha256(b"other").digest())):
        with pytest.raises(VaultError, match="another run or model"):
            Vault.open(tmp_path / "vault", run, layout)
    Vault.open(tmp_path / "vault", RUN, LAYOUT).close(remove=True)


def test_a_full_file_system_is_one_error_with_have_and_need(tmp_path: Path) -> None:
    values = 1 << 44
    with pytest.raises(StorageFullError, match=r"have [\d,]+ MiB, need [\d,]+ MiB.*--shm-size"):
        Vault.create(tmp_path / "vault", RUN, values, LAYOUT, (Part(0, values, (values,)),))
    assert not list((tmp_path / "vault").glob("*.f32"))


def test_room_that_vanishes_while_files_are_allocated_is_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vault_module.os, "posix_fallocate", full)
    with pytest.raises(StorageFullError, match=r"need [\d,]+ MiB"):
        Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS)


def test_a_full_file_system_while_storing_a_part_is_an_error_and_the_part_does_not_exist(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: object, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partstore.os, "pwrite", full)
    with pytest.raises(StorageFullError, match="part 4 of round 9"):
        vault.store.put(PartKey(9, Section.PARAMETERS, 4), b"d" * 32, b"payload")
    assert vault.store.find(b"d" * 32) is None


def test_a_record_that_was_written_in_pieces_or_in_part_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = PartStore(tmp_path / "parts"), [PartKey(9, Section.PARAMETERS, index) for index in range(3)]
    whole, room = os.pwrite, 1000

    def hesitant(descriptor: int, data: memoryview, offset: int) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        written = whole(descriptor, data[: min(10, room)], offset)
        room -= written
        return written

    monkeypatch.setattr(partstore.os, "pwrite", hesitant)
    store.put(keys[0], b"0" * 32, b"x")
    room = 15
    with pytest.raises(StorageFullError):
        store.put(keys[1], b"1" * 32, b"y")
    room = 1000
    store.put(keys[2], b"2" * 32, b"third")
    store.close()
    again = PartStore(tmp_path / "parts")
    found = [again.find(digest * 32) for digest in (b"0", b"1", b"2")]
    assert [None if part is None else (part.key, again.read(part)) for part in found] == [
        (keys[0], b"x"),
        None,
        (keys[2], b"third"),
    ]
    again.close()


@pytest.mark.parametrize("name", ["int8", "raw"])
def test_the_room_for_the_log_is_what_its_entries_take(vault: Vault, name: str) -> None:
    used = codec(name, 32)
    for version in (1, 2, 3):
        for index, part in enumerate(PARTS):
            payload = bytes(used.encode(delta_of(version)[part.start : part.stop], part.spans))
            vault.store.put(PartKey(version, Section.PARAMETERS, index), hashlib.sha256(payload).digest(), payload)
    assert log_bytes(PARTS, used, 3) == vault.store.nbytes()


def test_a_vault_is_not_made_where_its_log_has_no_room(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match="300 parameters and the log"):
        Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS, log_bytes=1 << 60)


def test_the_strategy_moves_the_state_and_says_where_members_go_on(tmp_path: Path) -> None:
    class Other(DiLoCo):
        def load(self, shared: torch.Tensor, pending: torch.Tensor, out: torch.Tensor) -> None:
            torch.add(shared, pending, out=out)

        def step(
            self,
            theta: torch.Tensor,
            momentum: torch.Tensor,
            update: torch.Tensor,
            lr: float,
            mu: float,
            scratch: torch.Tensor | None = None,
        ) -> None:
            theta.add_(update)

    make(tmp_path / "vault").close()
    vault = Vault.open(tmp_path / "vault", RUN, strategy=Other())
    vault.begin_publish().fill_(2)
    vault.publish(trained=1)
    before = vault.theta.clone()
    local = vault.read_local(0)
    assert local is not None
    assert torch.equal(local, before + 2)
    vault.apply(entry(vault, 1), (False,) * 3, INT8)
    moved = [INT8.decode(INT8.encode(delta_of(1)[part.start : part.stop], part.spans), part.spans) for part in PARTS]
    assert torch.equal(vault.theta, before + torch.cat(moved))
    assert vault.momentum.eq(0).all()
    vault.close(remove=True)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((Part(0, 100, (100,)), Part(101, 300, (199,))), "does not continue"),
        ((Part(0, 100, (100,)),), "cover 100 of 300"),
        ((Part(0, 300, (299,)),), "does not continue"),
    ],
)
def test_a_partition_with_holes_is_refused(tmp_path: Path, parts: tuple[Part, ...], message: str) -> None:
    with pytest.raises(VaultError, match=message):
        Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, parts)


def test_old_entries_are_forgotten_with_their_bytes_and_rounds_in_flight_are_not(vault: Vault) -> None:
    for version in (1, 2, 3):
        vault.apply(entry(vault, version), (False,) * 3, INT8)
    flying = PartKey(200, Section.PARAMETERS, 0)
    vault.store.put(flying, b"x" * 32, b"result")
    vault.drop_round(103)
    vault.keep_entries(2, rounds=(200,))
    assert vault.store.rounds() == {102, 103, 200}
    assert [kept.commit.version for kept in vault.entries] == [2, 3]
    vault.drop_round(200)
    assert vault.store.rounds() == {102, 103}
    vault.keep_entries(0)
    assert [path.name for path in (vault.directory / "parts").iterdir()] == ["spare"]
    assert not list((vault.directory / "entries").iterdir())


def test_what_a_killed_writer_left_beside_the_log_is_removed(tmp_path: Path) -> None:
    vault = make(tmp_path / "vault")
    vault.apply(entry(vault, 1), (True,) * 3, INT8)
    vault.close()
    (tmp_path / "vault" / "entries" / ".2.json.0123").write_bytes(b"{")
    again = Vault.open(tmp_path / "vault", RUN)
    assert [path.name for path in (tmp_path / "vault" / "entries").iterdir()] == ["1.json"]
    assert [kept.commit.version for kept in again.entries] == [1]
    again.close(remove=True)


def test_parts_and_entries_survive_a_restart(tmp_path: Path) -> None:
    vault = make(tmp_path / "vault")
    vault.apply(entry(vault, 1), (False,) * 3, INT8)
    key = PartKey(200, Section.PARAMETERS, 2, 3)
    vault.store.put(key, b"x" * 32, b"result")
    vault.close()
    with open(tmp_path / "vault/parts/200.index", "ab") as index:
        index.write(b"torn record")
    vault = Vault.open(tmp_path / "vault", RUN)
    stored = vault.store.find(b"x" * 32)
    assert stored is not None
    assert stored.key == key
    assert vault.store.read(stored) == b"result"
    vault.store.put(PartKey(200, Section.PARAMETERS, 1), b"y" * 32, b"another")
    assert vault.entries[0].commit.version == 1
    vault.close()
    vault = Vault.open(tmp_path / "vault", RUN)
    assert [vault.store.read(vault.store.find(name * 32)) for name in (b"x", b"y")] == [b"result", b"another"]  # type: ignore[arg-type]
    vault.close(remove=True)


def test_a_damaged_log_entry_costs_that_entry_and_not_the_state(tmp_path: Path) -> None:
    vault = make(tmp_path / "vault")
    for version in (1, 2):
        vault.apply(entry(vault, version), (True,) * 3, INT8)
    root = vault.root()
    vault.close()
    (tmp_path / "vault" / "entries" / "1.json").write_text("{garbage")
    again = Vault.open(tmp_path / "vault", RUN)
    assert (again.version, again.root()) == (2, root)
    assert [kept.commit.version for kept in again.entries] == [2]
    again.close(remove=True)


def test_the_memory_of_a_dropped_round_serves_the_next_one_and_its_bytes_are_never_read(vault: Vault) -> None:
    store = vault.store
    store.put(PartKey(1, Section.PARAMETERS, 0), b"a" * 32, b"old bytes of round 1")
    store.put(PartKey(2, Section.PARAMETERS, 0), b"b" * 32, b"old bytes of round 2")
    memory = (vault.directory / "parts/2.bytes").stat().st_ino
    store.drop(1)
    store.drop(2)
    assert store.find(b"a" * 32) is store.find(b"b" * 32) is None
    store.put(PartKey(3, Section.PARAMETERS, 5), b"c" * 32, b"new")
    assert (vault.directory / "parts/3.bytes").stat().st_ino == memory
    assert store.nbytes() == 3
    again = partstore.PartStore(vault.directory / "parts")
    again.put(PartKey(3, Section.PARAMETERS, 6), b"d" * 32, b"newer")
    assert [again.read(again.find(name * 32)) for name in (b"c", b"d")] == [b"new", b"newer"]  # type: ignore[arg-type]
    assert again.find(b"b" * 32) is None
    again.close()


def test_bytes_that_are_still_being_written_when_their_round_is_dropped_do_not_end_up_in_the_next_round(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = vault.store, os.pwrite
    late, early = PartKey(1, Section.PARAMETERS, 0), PartKey(2, Section.PARAMETERS, 0)

    def overtaken(descriptor: int, data: memoryview, offset: int) -> int:
        monkeypatch.setattr(partstore.os, "pwrite", write)
        store.drop(1)
        store.put(early, b"b" * 32, b"round 2")
        return write(descriptor, data, offset)

    store.put(PartKey(1, Section.PARAMETERS, 1), b"c" * 32, b"")
    monkeypatch.setattr(partstore.os, "pwrite", overtaken)
    store.put(late, b"a" * 32, b"round 1")
    assert store.find(b"a" * 32) is None
    stored = store.find(b"b" * 32)
    assert stored is not None
    assert store.read(stored) == b"round 2"
    store.drop(2)
    assert [path.name for path in (vault.directory / "parts").iterdir()] == ["spare"]


# --- a state from elsewhere -----------------------------------------------------------------------------------------------------


def state(version: int) -> tuple[bytes, bytes]:
    theta, momentum = torch.randn(2, VALUES, generator=torch.Generator().manual_seed(1000 + version))
    return theta.numpy().tobytes() + momentum.numpy().tobytes(), fingerprint(version, LAYOUT, theta, momentum)


@pytest.mark.parametrize("held", [True, False])
def test_a_fetched_state_is_installed_when_it_is_whole_and_has_its_root(tmp_path: Path, held: bool) -> None:
    vault = make(tmp_path / "vault") if held else Vault.create(tmp_path / "vault", RUN, VALUES, LAYOUT, PARTS)
    content, root = state(5)
    incoming = vault.incoming(5, root)
    for start in range(0, len(content), 777):
        incoming = vault.incoming(5, root)
        assert incoming.received == start
        incoming.write(content[start : start + 777])
        assert vault.version == (0 if held else NO_VERSION)
    vault.install(incoming)
    assert vault.version == 5
    assert vault.root() == root == fingerprint(5, LAYOUT, vault.theta, vault.momentum)
    assert not (vault.directory / "incoming.f32").exists()
    vault.close(remove=True)


def test_a_full_file_system_while_a_state_is_fetched_is_the_same_error(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vault_module.os, "posix_fallocate", full)
    with pytest.raises(StorageFullError, match="the state that is fetched"):
        vault.incoming(5, b"r" * 32)
    assert not (vault.directory / "incoming.f32").exists()
    assert vault.version == 0


def test_a_fetched_state_with_another_root_is_forgotten_and_the_old_state_stays(vault: Vault) -> None:
    before = vault.root()
    content, root = state(5)
    incoming = vault.incoming(5, root)
    incoming.write(b"\x01" + content[1:])
    with pytest.raises(RemoteProtocolError, match="does not have the root"):
        vault.install(incoming)
    assert vault.interrupted() is None
    assert (vault.version, vault.root()) == (0, before)
    with pytest.raises(RemoteProtocolError, match="more came"):
        vault.incoming(5, root).write(content + b"\x00")


def test_a_newer_state_replaces_one_that_was_interrupted(vault: Vault) -> None:
    vault.incoming(5, state(5)[1]).write(state(5)[0][:99])
    content, root = state(6)
    incoming = vault.incoming(6, root)
    assert incoming.received == 0
    incoming.write(content)
    vault.install(incoming)
    assert vault.root() == root


# --- kill -9 ----------------------------------------------------------------------------------------------------------------------


class KilledError(BaseException):
    """Stands for the end of a process at one step."""


def die_at(count: int) -> object:
    left = [count]

    def observe(step: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError(step)

    return observe


def steps_of_apply(tmp_path: Path) -> int:
    vault = make(tmp_path / "counting", INT8)
    steps: list[str] = []
    vault.observe = steps.append
    vault.apply(entry(vault, 1), (True, False, True), INT8)
    vault.close(remove=True)
    return len(steps)


@pytest.mark.parametrize("feedback", [None, INT8], ids=repr)
def test_apply_ends_with_the_same_bytes_wherever_it_is_cut(tmp_path: Path, feedback: Codec | None) -> None:
    pending = torch.linspace(1, 2, VALUES)
    included = (True, False, True)
    steps = steps_of_apply(tmp_path)
    assert steps >= 3 * 5
    for count in range(steps):
        vault = make(tmp_path / "vault", feedback)
        vault.begin_publish().copy_(pending)
        vault.publish(trained=30)
        commit = entry(vault, 1)
        vault.observe = die_at(count)  # type: ignore[assignment]
        with pytest.raises(KilledError):
            vault.apply(commit, included, INT8)
        vault.close()
        vault = Vault.open(tmp_path / "vault", RUN)
        if vault.version == 0:
            assert count <= 1, "only an entry that was not begun may be missing"
            vault.apply(commit, included, INT8)
        assert_state(vault, 1, included, pending)
        if feedback:
            assert torch.equal(vault.residual, residual_after(pending, torch.zeros(VALUES), included))
        vault.apply(entry(vault, 2), included, INT8)
        assert_state(vault, 2, included, pending)
        vault.close(remove=True)


def test_a_part_torn_between_two_steps_is_repaired(tmp_path: Path) -> None:
    """A kill inside a copy leaves some new and some old values: the copy is done again from scratch."""
    included = (True, True, True)
    for torn in ("theta", "momentum", "pending", "residual"):
        vault = make(tmp_path / "vault", INT8)
        vault.begin_publish().fill_(1)
        vault.publish(trained=30)
        commit = entry(vault, 1)

        def observe(step: str, vault: Vault = vault, torn: str = torn) -> None:
            if step == "copying":
                getattr(vault, torn)[3:50] = torch.nan
                raise KilledError

        vault.observe = observe
        with pytest.raises(KilledError):
            vault.apply(commit, included, INT8)
        vault.close()
        vault = Vault.open(tmp_path / "vault", RUN)
        assert_state(vault, 1, included, torch.ones(VALUES))
        assert torch.equal(vault.residual, residual_after(torch.ones(VALUES), torch.zeros(VALUES), included))
        vault.close(remove=True)


def test_install_over_a_state_ends_whole_wherever_it_is_cut(tmp_path: Path) -> None:
    content, root = state(5)
    outcomes = set()
    for count in range(8):
        vault = make(tmp_path / "vault")
        incoming = vault.incoming(5, root)
        incoming.write(content)
        vault.observe = die_at(count)  # type: ignore[assignment]
        with contextlib.suppress(KilledError):
            vault.install(incoming)
        vault.close()
        vault = Vault.open(tmp_path / "vault", RUN)
        outcomes.add(vault.version)
        assert vault.version == (0 if count == 0 else 5)
        assert vault.version == 0 or vault.root() == root
        assert not vault.changing
        vault.close(remove=True)
    assert outcomes == {0, 5}


def test_dropping_pending_is_finished_after_a_kill(tmp_path: Path) -> None:
    for count in range(2):
        vault = make(tmp_path / "vault")
        vault.begin_publish().fill_(2)
        vault.publish(trained=3)
        vault.observe = die_at(count)  # type: ignore[assignment]
        with pytest.raises(KilledError):
            vault.drop_pending()
        vault.close()
        vault = Vault.open(tmp_path / "vault", RUN)
        assert vault.pending.eq(0).all()
        assert vault.trained == 0
        vault.close(remove=True)


VICTIM = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
import test_vault_victim as t
vault = t.Vault.open(pathlib.Path(sys.argv[1]), t.RUN)
print("open", flush=True)
while True:
    version = vault.version + 1
    commit = t.entry(vault, version)
    vault.begin_publish().copy_(t.delta_of(-version))
    vault.publish(trained=version)
    vault.apply(commit, (version % 2 == 0, True, version % 3 == 0), t.INT8)
    vault.keep_entries(3)
"""


@pytest.mark.slow
def test_a_process_killed_at_random_moments_never_leaves_a_torn_state(tmp_path: Path) -> None:
    """Children apply entries as fast as they can and are really killed; each state found afterwards is the one computed here."""
    (tmp_path / "test_vault_victim.py").write_text(Path(__file__).read_text())
    vault = make(tmp_path / "vault")
    vault.close()
    theta, momentum, reached = torch.arange(VALUES) / 7, torch.zeros(VALUES), 0
    chance = random.Random(5)
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(tmp_path / "vault"), str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        time.sleep(chance.uniform(0, 0.06))
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        child.stdout.close()
        vault = Vault.open(tmp_path / "vault", RUN)
        assert not vault.changing
        for version in range(reached + 1, vault.version + 1):
            for part in PARTS:
                slice_ = slice(part.start, part.stop)
                payload = INT8.encode(delta_of(version)[slice_], part.spans)
                nesterov_step(theta[slice_], momentum[slice_], INT8.decode(payload, part.spans), 0.7, 0.9)
        reached = vault.version
        assert torch.equal(vault.theta, theta)
        assert torch.equal(vault.momentum, momentum)
        vault.close()
    assert reached > 12
    Vault.open(tmp_path / "vault", RUN).close(remove=True)
