"""Identity slots: one live process per identity, and no more identities than needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.peer import slots
from shoal.protocol.errors import IdentityError


def test_peers_on_one_machine_take_different_identities_and_free_ones_are_used_again(tmp_path: Path) -> None:
    first, second, third = (slots.take_slot("demo", tmp_path) for _ in range(3))
    assert [slot.directory.name for slot in (first, second, third)] == ["1", "2", "3"]
    second.release()
    again = slots.take_slot("demo", tmp_path)
    assert again.directory == second.directory
    other = slots.take_slot("other", tmp_path)
    assert other.directory == tmp_path / "other" / "1"
    for slot in (first, again, third, other):
        slot.release()


def test_a_killed_peer_frees_its_identity(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom shoal.peer.slots import take_slot\n"
        "slot = take_slot('demo', Path(sys.argv[1]))\nprint(slot.directory.name, flush=True)\ntime.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        other = slots.take_slot("demo", tmp_path)
        assert other.directory.name == "2"
        other.release()
    finally:
        holder.kill()
        holder.communicate(timeout=10)
    slot = slots.take_slot("demo", tmp_path)
    assert slot.directory.name == "1"
    slot.release()


def test_a_named_identity_that_is_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    slot = slots.take_directory(tmp_path / "mine")
    with pytest.raises(IdentityError, match=rf"in use by process {os.getpid()}"):
        slots.take_directory(tmp_path / "mine")
    slot.release()


@pytest.mark.parametrize("run", ["../etc", "", "A", "a/b", "con"])
def test_a_run_whose_name_is_a_path_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="not the name of a run"):
        slots.take_slot(run, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_runs_are_listed_the_last_used_first(tmp_path: Path) -> None:
    assert slots.runs(tmp_path / "nothing") == ()
    for age, run in ((30, "old"), (10, "new"), (20, "middle")):
        slot = slots.take_slot(run, tmp_path)
        slot.release()
        lock = slot.directory / slots.LOCK
        os.utime(lock, (lock.stat().st_atime - age, lock.stat().st_mtime - age))
    assert slots.runs(tmp_path) == ("new", "middle", "old")


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="cannot keep an identity"):
        slots.take_slot("demo", tmp_path / "file")
