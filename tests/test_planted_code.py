"""A pickle that runs code when it is loaded, planted wherever bytes from outside are read: it never runs."""

from __future__ import annotations

import base64
import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch

from shoal.compression.codec import CodecError, codec
from shoal.compression.packing import PackingError, unpack
from shoal.coordinator.journal import Journal, journal_url
from shoal.coordinator.records import RunCreated
from shoal.coordinator.setup import RunDirectory, init
from shoal.optim.layout import LayoutError, ParameterLayout, Part
from shoal.peer import attach, enrol
from shoal.peer.vault import Vault
from shoal.protocol import frames, invites, wire
from shoal.protocol.authority import Authority
from shoal.protocol.enrolment import Enrol, Enrolled, Look, Renew
from shoal.protocol.errors import ShoalError
from shoal.protocol.identity import Identity, load_tls_public_key, verify_binding
from shoal.protocol.messages import Section
from shoal.protocol.spec import RunSpec
from shoal.protocol.tls import read_certificate
from shoal.protocol.transfers import PartRequest, Ping, PushOpening, PushRequest, StateOffer, StateRequest

TYPED = (ShoalError, CodecError, LayoutError, PackingError)
RAW, INT8 = codec("raw"), codec("int8", 64)


class Planted:
    """Whoever unpickles it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self._mark), "w")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "pwned"


@pytest.fixture
def planted(mark: Path) -> bytes:
    return pickle.dumps(Planted(mark))


def read_header(data: bytes) -> object:
    """A frame whose header is right and whose payload is the plant."""
    header = frames.FrameHeader("run", 1, 0, 0, 1, Section.PARAMETERS, 0, 0, 1)
    return frames.decode(frames.encode(header, data)[:-1])


READERS: dict[str, Callable[[bytes], object]] = {
    "a message of a peer": wire.unpack_from_peer,
    "a message of a coordinator": wire.unpack_from_coordinator,
    "an operator's command": wire.unpack_command,
    "an answer to an operator": wire.unpack_reply,
    **{
        f"a request or an answer: {kind.__name__}": lambda data, kind=kind: wire.unpack_message(kind, data)  # type: ignore[misc]
        for kind in (Enrol, Enrolled, Renew, Look, PartRequest, StateRequest, StateOffer, Ping, PushOpening, PushRequest)
    },
    "a frame": frames.decode,
    "a frame's payload, cut": read_header,
    "a packed part": lambda data: unpack(data, 1000),
    "a raw contribution": lambda data: RAW.decode(data, (100,)),
    "an int8 contribution": lambda data: INT8.decode(data, (64, 3)),
    "a run spec from a coordinator": RunSpec.from_json,
    "a run spec from a file": lambda data: RunSpec.parse(data.decode("latin-1")),
    "a layout": ParameterLayout.from_json,
    "an invite": lambda data: invites.parse("shoal-invite-1." + base64.urlsafe_b64encode(data).decode()),
    "a message of a daemon": attach.to_trainer,
    "a message of a trainer": attach.from_trainer,
    "a certificate": read_certificate,
    "a TLS key": load_tls_public_key,
    "an identity's binding": lambda data: verify_binding("run", data, data, data),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_sent_is_never_unpickled(reader: str, planted: bytes, mark: Path) -> None:
    with pytest.raises(TYPED) as refused:
        READERS[reader](planted)
    assert str(refused.value)
    assert not mark.exists()
    pickle.loads(planted).close()  # noqa: S301 - its own
    assert mark.exists(), "the plant itself works"


def test_what_lies_in_files_is_never_unpickled(planted: bytes, mark: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    init(run.root, RunSpec.of(run={"name": "demo", "total_tokens": 1000}), listen="127.0.0.1:0", enrol_listen="127.0.0.1:0")
    readers: list[tuple[Callable[[], object], Path]] = [
        (lambda: Authority.load(run.authority), run.authority),
        (run.load_settings, run.root),
        (lambda: Identity.load(run.admin), run.admin),
        (lambda: enrol.load(run.admin), run.admin),
    ]
    for read, directory in readers:
        read()
        for path in [path for path in directory.iterdir() if path.is_file() and path.suffix in (".pem", ".json", ".toml")]:
            before = path.read_bytes()
            path.write_bytes(planted)
            with contextlib.suppress(ShoalError):  # not every file is read by every reader
                read()
            path.write_bytes(before)
    assert not mark.exists()


def test_what_lies_in_a_journal_is_never_unpickled(planted: bytes, mark: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal.open(journal_url(path))
    journal.append([RunCreated("demo", b"{}")])
    with sa.create_engine(journal_url(path)).begin() as connection:
        connection.execute(sa.text("update records set body = :body"), {"body": planted})
    with pytest.raises(ShoalError, match="record 1 .* is damaged"):
        list(journal.records())
    journal.close()
    assert not mark.exists()


def test_what_lies_in_a_vault_is_never_unpickled(planted: bytes, mark: Path, tmp_path: Path) -> None:
    place = tmp_path / "vault"
    vault = Vault.create(place, "run", 100, b"L" * 32, (Part(0, 100, (100,)),))
    vault.begin_origin().copy_(torch.arange(100.0))
    vault.finish_origin()
    vault.close()
    for path in sorted(path for path in place.rglob("*") if path.is_file() and path.name != "lock"):
        before = path.read_bytes()
        path.write_bytes((planted + before[len(planted) :]) if path.suffix != ".json" else planted)
        with contextlib.suppress(ShoalError):
            Vault.open(place, "run").close()
        path.write_bytes(before)
    (place / "entries").mkdir(exist_ok=True)
    (place / "entries" / "1.json").write_bytes(planted)
    Vault.open(place, "run").close()
    assert not (place / "entries" / "1.json").exists(), "an entry that makes no sense is removed"
    assert not mark.exists()
