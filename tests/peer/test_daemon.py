"""What the daemon works out for itself: which identity, which local copy. How it lives is for the swarm tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.optim.diloco import DiLoCo
from shoal.optim.layout import Part
from shoal.peer import daemon
from shoal.peer.daemon import Daemon, PeerSettings
from shoal.peer.engine import Kept
from shoal.peer.enrol import RUN_FILE
from shoal.peer.slots import take_slot
from shoal.peer.vault import Vault, VaultBusyError, copy_whole
from shoal.protocol.errors import InviteError


def test_without_an_invite_the_last_runs_identity_is_taken_if_it_is_free(tmp_path: Path) -> None:
    settings = PeerSettings(state_dir=tmp_path)
    with pytest.raises(InviteError, match="in no run yet"):
        daemon._take_identity(settings)
    first = take_slot("demo", tmp_path / "identities")
    (first.directory / RUN_FILE).write_text("{}")
    with pytest.raises(InviteError, match="no identity that this machine has in run 'demo' is free"):
        daemon._take_identity(settings)
    first.release()
    taken, invite = daemon._take_identity(settings)
    assert (taken.directory, invite) == (first.directory, None)
    taken.release()


def at(folder: Path, run_id: str = "demo a") -> Any:
    """As much of a daemon as looking for a local copy takes."""
    return SimpleNamespace(
        _last_copy=folder / "last-copy", _vault_directory=folder / "vault", _run_id=run_id, _vault=None, _strategy=DiLoCo()
    )


def test_the_copy_of_the_last_member_to_leave_is_used_and_stays_until_a_later_leave(tmp_path: Path) -> None:
    made = Vault.create(tmp_path / "vault", "demo a", 4, b"l" * 32, (Part(0, 4, (4,)),))
    made.begin_origin().fill_(3.0)
    made.finish_origin()
    root = made.root()
    copy_whole(made.directory, tmp_path / "last-copy")
    with pytest.raises(VaultBusyError):  # and what another daemon has open is left alone
        Daemon._find_vault(at(tmp_path))
    assert (tmp_path / "vault" / "vault.json").exists()
    made.close(remove=True)
    for _ in range(2):  # the machine restarts in between
        one = at(tmp_path)
        assert Daemon._find_vault(one) == Kept(0, 0, 0, root)
        one._vault.close(remove=True)
    assert Daemon._find_vault(at(tmp_path, "demo of another authority")) == Kept()
    assert [path.name for path in tmp_path.iterdir()] == []
