"""The authority, identities and their files."""

from __future__ import annotations

import datetime
import os
import re
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol import identity as identity_module
from shoal.protocol.authority import Authority
from shoal.protocol.errors import IdentityError
from shoal.protocol.files import PUBLIC, read_private, write_whole
from shoal.protocol.identity import Identity, peer_id_of, verify_binding
from shoal.protocol.names import is_run_name, why_not_relative
from shoal.protocol.tls import read_certificate

HOUR = datetime.timedelta(hours=1)


def test_a_peer_id_is_the_hash_of_the_public_key() -> None:
    assert peer_id_of(bytes(32)) == "66687aadf862bd776c8fc18b8e9f8e20"
    assert re.fullmatch("[0-9a-f]{32}", Identity.generate().peer_id)
    with pytest.raises(IdentityError, match="32 bytes, not 31"):
        peer_id_of(bytes(31))


def test_an_identity_is_the_same_after_loading(tmp_path: Path) -> None:
    made = Identity.load_or_create(tmp_path / "slot")
    loaded = Identity.load_or_create(tmp_path / "slot")
    assert (loaded.peer_id, loaded.public_key, loaded.tls_public_key) == (made.peer_id, made.public_key, made.tls_public_key)
    assert loaded.tls_key_pem == made.tls_key_pem
    assert verify_binding("shoal", made.public_key, loaded.tls_public_key, loaded.binding("shoal")) == made.peer_id
    assert "PRIVATE" not in repr(made)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_keys_are_private_from_the_first_moment_and_refused_when_not(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    Authority.create(tmp_path / "ca", "shoal")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    (tmp_path / identity_module.KEY_FILE).chmod(0o640)
    with pytest.raises(IdentityError, match=r"can be read by other users — chmod 600 .*identity\.pem"):
        Identity.load(tmp_path)


def test_of_two_creators_at_one_moment_one_wins_and_nothing_is_left_over(tmp_path: Path) -> None:
    results: list[str] = []

    def create() -> None:
        try:
            results.append(Identity.create(tmp_path).peer_id)
        except IdentityError:
            results.append("refused")

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    winners = [result for result in results if result != "refused"]
    assert winners == [Identity.load(tmp_path).peer_id]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity.pem", "tls-key.pem"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
@pytest.mark.parametrize("name", [identity_module.KEY_FILE, identity_module.TLS_KEY_FILE])
def test_a_damaged_key_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    Identity.create(tmp_path)
    write_whole(tmp_path / name, content)
    with pytest.raises(IdentityError, match=name):
        Identity.load(tmp_path)


def test_keys_of_the_wrong_kind_and_missing_ones_are_named(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    write_whole(tmp_path / identity_module.KEY_FILE, read_private(tmp_path / identity_module.TLS_KEY_FILE))
    with pytest.raises(IdentityError, match="not an Ed25519 key"):
        Identity.load(tmp_path)
    with pytest.raises(IdentityError, match="cannot be read: No such file"):
        Identity.load(tmp_path / "nowhere")


def test_a_binding_holds_for_one_run_one_key_and_one_identity() -> None:
    mine, other = Identity.generate(), Identity.generate()
    binding = mine.binding("shoal")
    assert verify_binding("shoal", mine.public_key, mine.tls_public_key, binding) == mine.peer_id
    for run, public, tls, signature in (
        ("shoal2", mine.public_key, mine.tls_public_key, binding),
        ("shoal", other.public_key, mine.tls_public_key, binding),
        ("shoal", mine.public_key, other.tls_public_key, binding),
        ("shoal", mine.public_key, mine.tls_public_key, other.binding("shoal")),
        ("shoal", mine.public_key, mine.tls_public_key, b""),
        ("shoal", mine.public_key, mine.tls_public_key, bytes(64)),
    ):
        with pytest.raises(IdentityError, match="not signed by identity"):
            verify_binding(run, public, tls, signature)


def der(key: object) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key", [b"", b"x" * 91, bytes(2000), der(generate_private_key(SECP384R1())), der(Ed25519PrivateKey.generate())], ids=len
)
def test_only_p256_keys_are_certified(key: bytes) -> None:
    mine = Identity.generate()
    with pytest.raises(IdentityError):
        verify_binding("shoal", mine.public_key, key, bytes(64))
    with pytest.raises(IdentityError):
        Authority.generate("shoal").issue(key, mine.peer_id, ["peer"], HOUR)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.binary(max_size=80), st.binary(max_size=40) | st.binary(min_size=32, max_size=32))
def test_random_bytes_are_never_a_binding(tls_key: bytes, binding: bytes, public: bytes) -> None:
    with pytest.raises(IdentityError):
        verify_binding("shoal", public, tls_key, binding)


def test_a_certificate_says_who_what_and_until_when() -> None:
    authority, mine = Authority.generate("shoal"), Identity.generate()
    before = datetime.datetime.now(datetime.UTC)
    caller = read_certificate(authority.issue(mine.tls_public_key, mine.peer_id, {"reducer", "peer"}, datetime.timedelta(days=7)))
    assert (caller.peer, caller.rights) == (mine.peer_id, frozenset({"peer", "reducer"}))
    second = datetime.timedelta(seconds=2)
    assert abs(caller.not_before - (before - HOUR)) < second + second
    assert abs(caller.expires_at - (before + datetime.timedelta(days=7))) < second + second


def test_a_certificate_never_outlives_its_authority() -> None:
    authority, mine = Authority.generate("shoal"), Identity.generate()
    caller = read_certificate(authority.issue(mine.tls_public_key, mine.peer_id, ["peer"], datetime.timedelta(days=36500)))
    assert caller.expires_at == x509.load_pem_x509_certificate(authority.ca_pem).not_valid_after_utc


@pytest.mark.parametrize("name", ["", "UPPER", "a b", "a/../b", "x" * 254, "*.shoal", "-a", "a\n", "é"])
def test_names_that_are_no_names_are_not_certified(name: str) -> None:
    with pytest.raises(IdentityError, match="cannot be a name"):
        Authority.generate("shoal").issue(Identity.generate().tls_public_key, name, ["peer"], HOUR)


def test_unknown_rights_are_not_certified() -> None:
    with pytest.raises(IdentityError, match=r"unknown rights \['root'\] — there are admin, "):
        Authority.generate("shoal").issue(Identity.generate().tls_public_key, "x", ["root", "peer"], HOUR)


def test_an_authority_is_the_same_after_loading_and_is_never_replaced(tmp_path: Path) -> None:
    made = Authority.create(tmp_path, "my-run")
    loaded = Authority.load(tmp_path)
    assert (loaded.run, loaded.ca_pem) == ("my-run", made.ca_pem)
    issued = x509.load_pem_x509_certificate(loaded.issue(Identity.generate().tls_public_key, "x", ["peer"], HOUR))
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(made.ca_pem))
    with pytest.raises(IdentityError, match="holds a certificate authority already"):
        Authority.create(tmp_path, "my-run")
    other = Authority.generate("my-run")
    write_whole(tmp_path / "ca.pem", other.ca_pem)
    with pytest.raises(IdentityError, match="do not belong together"):
        Authority.load(tmp_path)
    with pytest.raises(IdentityError, match="cannot be the name of a run"):
        Authority.create(tmp_path / "x", "../run")


@pytest.mark.parametrize("pem", [b"", b"x", bytes(70_000), Authority.generate("shoal").ca_pem])
def test_what_is_no_certificate_of_an_authority_is_refused(pem: bytes) -> None:
    with pytest.raises(IdentityError):
        read_certificate(pem)


def test_a_private_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "key", b"old")
    monkeypatch.setattr(os, "fsync", _disk_full)
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "key", b"new")
    assert (tmp_path / "key").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_file_has_the_mode_that_it_is_given_and_is_forced_to_disk_only_when_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "key", b"key")
        write_whole(tmp_path / "model", b"model", mode=PUBLIC)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("key", "model")] == [0o600, 0o644]
    monkeypatch.setattr(os, "fsync", _disk_full)
    write_whole(tmp_path / "key", b"newer", durable=False)
    assert (tmp_path / "key").read_bytes() == b"newer"


def _disk_full(descriptor: int) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("path", ["a", "a/b.txt", "data/über 1.txt", "..a/b"])
def test_plain_relative_paths_may_be_joined(path: str) -> None:
    assert why_not_relative(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "a/./b",
        "~/x",
        "c:x",
        "a\\b",
        "a\0b",
        "a\nb",
        "con",
        "a/NUL.txt",
        "a. ",
        "x" * 1025,
    ],
)
def test_paths_that_lead_elsewhere_may_not(path: str) -> None:
    assert why_not_relative(path)


@given(st.text(max_size=20))
def test_no_accepted_path_leaves_its_directory(path: str) -> None:
    if not why_not_relative(path):
        base = Path("/base")
        assert Path(os.path.normpath(base / path)).is_relative_to(base)
        assert os.path.normpath(base / path) != str(base)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "..", "nul", "x" * 41, "é", "a\n"])
def test_run_names_are_plain(name: str) -> None:
    assert not is_run_name(name)
    assert is_run_name("run-2")
