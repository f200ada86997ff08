"""Which bytes a sample is, which sample a position is, and what is refused before training starts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.peer.data import (
    Corpus,
    DataAwayError,
    Memory,
    Permutation,
    StoredTokens,
    Text,
    batches,
    corpus,
    listed_files,
    open_corpus,
    positions,
    sample_at,
    standard_library,
    text_file,
)
from shoal.peer.reach import Reach
from shoal.peer.sources import DataError, Places
from shoal.protocol.messages import Span
from shoal.protocol.spec import DataFile, RunSpec, is_held_out
from tests.peer.test_sources import Source


def text(*pieces: bytes, length: int = 4) -> Text:
    return Text([np.frombuffer(piece, dtype=np.uint8) for piece in pieces], length)


def write(folder: Path, **contents: bytes) -> list[DataFile]:
    files = []
    for name, content in contents.items():
        (folder / f"{name}.txt").write_bytes(content)
        files.append(DataFile(path=f"{name}.txt", sha256=hashlib.sha256(content).hexdigest(), size=len(content)))
    return files


# --- samples --------------------------------------------------------------------------------------------------------------------


def test_windows_run_over_the_borders_of_pieces() -> None:
    found = text(b"ab", b"", b"cdefg", b"hijk").windows([0, 1])
    assert [bytes(row.tolist()) for row in found] == [b"abcde", b"efghi"]


def test_every_byte_but_the_first_is_a_target_exactly_once() -> None:
    content = bytes(range(200))
    source = text(content[:70], content[70:], length=7)
    targets = source.windows(range(source.samples))[:, 1:].reshape(-1).tolist()
    assert targets == list(range(1, 1 + source.samples * 7))
    assert 200 - len(targets) - 1 < 7


def test_a_sample_beyond_the_end_is_an_error() -> None:
    with pytest.raises(IndexError, match="sample 2 of 2"):
        text(b"123456789").windows([2])


@pytest.mark.parametrize(("size", "samples"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_samples_are_counted_without_overrun(size: int, samples: int) -> None:
    assert text(bytes(size)).samples == samples


# --- the order of samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 10, 63, 64, 65, 100, 1000, 4097])
def test_an_epoch_is_a_permutation_at_every_size(size: int) -> None:
    shuffle = Permutation(size, b"key")
    assert sorted(shuffle[i] for i in range(size)) == list(range(size))


def test_epochs_have_different_orders_and_the_seed_decides_them() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        return [sample_at(number * 50 + i, 50, seed) for i in range(50)]

    orders = [epoch(1, 0), epoch(1, 1), epoch(1, 2), epoch(2, 0)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert epoch(1, 1) == orders[1]


def test_the_order_is_the_same_on_every_machine_for_ever() -> None:
    assert [sample_at(position, 1000, 7) for position in range(6)] == [501, 26, 704, 132, 719, 382]


def test_neighbours_do_not_stay_neighbours() -> None:
    shuffle = Permutation(10_000, b"k")
    steps = np.diff([shuffle[i] for i in range(10_000)])
    assert abs(np.corrcoef(steps[:-1], steps[1:])[0, 1] + 0.5) < 0.05  # -1/2: what steps between independent positions have
    assert np.mean(np.abs(steps)) == pytest.approx(10_000 / 3, rel=0.05)


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        Permutation(5, b"")[5]
    with pytest.raises(ValueError):
        Permutation(0, b"")


@pytest.mark.parametrize(
    ("skip", "count", "expected"),
    [
        (0, 99, [3, 4, 10, 11, 12]),
        (1, 99, [4, 10, 11, 12]),
        (2, 2, [10, 11]),
        (3, 1, [11]),
        (1, 2, [4, 10]),
        (5, 9, []),
        (0, 0, []),
    ],
)
def test_positions_follow_the_lease_after_what_is_trained(skip: int, count: int, expected: list[int]) -> None:
    assert list(positions((Span(3, 5), Span(10, 13)), skip, count)) == expected


def test_batches_are_full_but_for_the_last() -> None:
    source = text(bytes(range(101)), length=4)
    found = [source.windows(rows) for rows in batches(source, (Span(0, 3), Span(20, 24)), 0, 7, 3, seed=1)]
    assert [tuple(batch.shape) for batch in found] == [(3, 5), (3, 5), (1, 5)]
    firsts = [int(row[0]) // 4 for batch in found for row in batch]
    assert firsts == [sample_at(position, source.samples, 1) for position in (0, 1, 2, 20, 21, 22, 23)]


def test_disjoint_leases_never_share_a_sample_within_an_epoch() -> None:
    leases = [(Span(0, 300), Span(900, 950)), (Span(300, 600),), (Span(600, 900), Span(950, 1000))]
    trained = [{sample_at(p, 1000, 5) for p in positions(lease, 0, 1000)} for lease in leases]
    assert set.union(*trained) == set(range(1000))
    assert sum(map(len, trained)) == 1000


# --- corpora --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Corpus:
    return standard_library(128, 0.05)


def test_the_standard_library_gives_megabytes_and_holds_some_files_out(library: Corpus) -> None:
    assert library.training.tokens > 5_000_000
    share = library.heldout.tokens / (library.training.tokens + library.heldout.tokens)
    assert 0.01 < share < 0.12


def test_the_standard_library_is_the_same_corpus_each_time(library: Corpus) -> None:
    assert standard_library(128, 0.05).fingerprint == library.fingerprint
    assert standard_library(64, 0.05).fingerprint != library.fingerprint


def test_tests_packages_and_build_settings_are_not_in_the_corpus(tmp_path: Path) -> None:
    for name in ("a.py", "test/t.py", "json/tests/t.py", "site-packages/p.py", "_sysconfigdata_x.py", "json/b.py", "c.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(name.encode() * 20)
    found = standard_library(4, 0, tmp_path)
    assert found.training.tokens == 20 * (len("a.py") + len("json/b.py"))
    assert found.heldout.samples == 0


def test_about_one_file_in_twenty_is_held_out_by_its_name() -> None:
    held = sum(is_held_out(f"folder/file{i}.py", 0.05) for i in range(20_000))
    assert held == pytest.approx(1000, rel=0.1)
    assert not is_held_out("anything", 0)


def test_held_out_files_do_not_depend_on_content_or_order(tmp_path: Path) -> None:
    files = write(tmp_path, **{f"f{i}": bytes([i]) * 50 for i in range(60)})
    found = listed_files(files, tmp_path, 4, 0.2)
    backwards = listed_files(files[::-1], tmp_path, 4, 0.2)

    def values(source: Text) -> set[int]:
        return set(source.windows(range(source.samples)).reshape(-1).tolist())

    held = {i for i in range(60) if is_held_out(f"f{i}.txt", 0.2)}
    assert values(found.heldout) == values(backwards.heldout) == held
    assert values(found.training) == set(range(60)) - held
    assert found.fingerprint != backwards.fingerprint


def test_a_single_file_has_its_end_held_out(tmp_path: Path) -> None:
    content = bytes(range(200))
    found = listed_files(write(tmp_path, only=content), tmp_path, 4, 0.25)
    assert (found.training.tokens, found.heldout.tokens) == (150, 50)
    assert bytes(found.heldout.windows([0])[0].tolist()) == content[150:155]


def test_large_files_are_read_when_needed_and_alike(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
    (tmp_path / "big").write_bytes(content)
    found = text_file("big", tmp_path / "big")
    assert isinstance(found.content, StoredTokens)
    assert found.digest == hashlib.sha256(content).digest()
    assert bytes(Text([found.content], 100).windows([29_000])[0].tolist()) == content[2_900_000:2_900_101]


def test_a_changed_file_is_named_with_both_digests(tmp_path: Path) -> None:
    files = write(tmp_path, good=b"x" * 100, bad=b"y" * 100)
    (tmp_path / "bad.txt").write_bytes(b"z" * 100)
    with pytest.raises(DataError) as caught:
        listed_files(files, tmp_path, 4, 0)
    message = str(caught.value)
    assert "bad.txt" in message
    assert files[1].sha256 in message
    assert hashlib.sha256(b"z" * 100).hexdigest() in message
    assert "\n" not in message


def test_a_file_of_another_size_is_named_with_both_sizes(tmp_path: Path) -> None:
    files = write(tmp_path, one=b"x" * 100)
    (tmp_path / "one.txt").write_bytes(b"x" * 99)
    with pytest.raises(DataError, match=r"one\.txt: 99 bytes here, 100 in the run spec"):
        listed_files(files, tmp_path, 4, 0)


def test_a_missing_file_or_folder_says_how_to_give_it(tmp_path: Path) -> None:
    file = DataFile(path="gone.txt", sha256="0" * 64, size=3)
    with pytest.raises(DataError, match=r"gone\.txt: not found .* --data DIR"):
        listed_files([file], tmp_path, 4, 0)
    spec = RunSpec.of(run={"total_tokens": 100}, data={"source": "files", "files": [file.model_dump()]})
    with pytest.raises(DataError, match="--data DIR"):
        open_corpus(spec, Places())


@pytest.mark.parametrize("contents", [{}, {"empty": b""}, {"short": b"1234"}])
def test_data_without_a_single_sample_are_refused(tmp_path: Path, contents: dict[str, bytes]) -> None:
    with pytest.raises(DataError, match="no sample of 5 bytes"):
        listed_files(write(tmp_path, **contents), tmp_path, 4, 0)


def test_any_change_of_the_data_changes_the_fingerprint(tmp_path: Path) -> None:
    def fingerprint(contents: dict[str, bytes], length: int = 4, fraction: float = 0.0) -> bytes:
        write(tmp_path, **contents)
        files = [text_file(name, tmp_path / f"{name}.txt") for name in contents]
        return corpus(files, length, fraction, "").fingerprint

    base = {"a": b"1" * 50, "b": b"2" * 50}
    prints = [
        fingerprint(base),
        fingerprint(base | {"b": b"3" * 50}),
        fingerprint({"b": base["b"], "a": base["a"]}),
        fingerprint({"c": base["a"], "b": base["b"]}),
        fingerprint(base, length=5),
        fingerprint(base, fraction=0.1),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint(base) == prints[0]


# --- files that come and go -----------------------------------------------------------------------------------------------------


def stored(tmp_path: Path, content: bytes, dtype: str = "u1") -> tuple[Path, StoredTokens]:
    path = tmp_path / "large"
    path.write_bytes(content)
    found = text_file("large", path, dtype).content
    assert isinstance(found, StoredTokens)
    return path, found


def test_a_file_that_disappears_is_away_and_comes_back(tmp_path: Path) -> None:
    content = np.random.default_rng(2).integers(0, 256, 2_000_000, dtype=np.uint8).tobytes()
    path, tokens = stored(tmp_path, content)
    source = Text([tokens], 100)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(DataAwayError, match=r"large: cannot be read \(No such file"):
        source.windows([7])
    path.write_bytes(content[:-1] + b"!")
    with pytest.raises(DataAwayError) as caught:
        source.windows([7])
    assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert hashlib.sha256(content[:-1] + b"!").hexdigest() in str(caught.value)
    path.write_bytes(content[:1000])
    with pytest.raises(DataAwayError):
        source.windows([7])
    path.write_bytes(content)
    assert bytes(source.windows([7])[0].tolist()) == content[700:801]


def test_a_range_of_a_stored_file_reads_that_range(tmp_path: Path) -> None:
    numbers = np.arange(600_000, dtype="<u2")
    _, tokens = stored(tmp_path, numbers.tobytes(), "<u2")
    part = tokens.part(1000, 500_000).part(10, 10**9)
    assert len(part) == 498_990
    assert part[5:8].tolist() == [1015, 1016, 1017]


@pytest.mark.parametrize(("form", "dtype"), [("uint16", "<u2"), ("uint32", "<u4")])
def test_token_files_are_read_as_numbers(tmp_path: Path, form: str, dtype: str) -> None:
    numbers = (np.arange(1000) * 61 % 50_000).astype(dtype)
    spec = token_run(tmp_path, numbers, form)
    found = open_corpus(spec, Places(tmp_path))
    assert found.training.windows([3])[0].tolist() == numbers[12:17].tolist()
    assert found.heldout.tokens == 100
    assert not found.is_text
    assert found.training.samples == spec.data.training_samples
    other = open_corpus(token_run(tmp_path, np.frombuffer(numbers.tobytes(), dtype="<u2"), "uint16"), Places(tmp_path))
    assert (other.fingerprint == found.fingerprint) == (form == "uint16")


def token_run(tmp_path: Path, numbers: np.typing.NDArray[np.generic], form: str, vocab: int = 50_000) -> RunSpec:
    content = numbers.tobytes()
    (tmp_path / "a.bin").write_bytes(content)
    file = {"path": "a.bin", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    data = {"source": "files", "files": [file], "format": form, "sequence_length": 4, "heldout_fraction": 0.1}
    return RunSpec.of(run={"total_tokens": 100}, model={"vocab": vocab}, data=data)


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    spec = token_run(tmp_path, np.arange(1000, dtype="<u2"), "uint16", vocab=999)
    with pytest.raises(DataError, match=r"a\.bin holds token 999, but model.vocab is 999"):
        open_corpus(spec, Places(tmp_path))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    length=st.integers(1, 9),
    fraction=st.sampled_from((0.0, 0.1, 0.5, 0.9)),
    form=st.sampled_from(("text", "uint16")),
)
def test_the_run_spec_knows_how_long_an_epoch_is(tmp_path: Path, sizes: list[int], length: int, fraction: float, form: str) -> None:
    files = []
    for index, size in enumerate(sizes):
        content = bytes(2 * size)
        (tmp_path / f"{index}").write_bytes(content)
        files.append({"path": f"{index}", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)})
    data = {"source": "files", "files": files, "format": form, "sequence_length": length, "heldout_fraction": fraction}
    spec = RunSpec.of(run={"total_tokens": 100}, data=data)
    try:
        samples = open_corpus(spec, Places(tmp_path)).training.samples
    except DataError:
        samples = 0
    assert spec.data.training_samples == samples


def test_a_damaged_copy_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    content = bytes(range(200))
    source = Source()
    source.content = content
    try:
        file = {"path": source.url.replace("%20", " "), "sha256": hashlib.sha256(content).hexdigest(), "size": 200}
        data = {"source": "files", "files": [file], "sequence_length": 4}
        spec, said = RunSpec.of(run={"total_tokens": 100}, data=data), list[str]()
        (tmp_path / hashlib.sha256(content).hexdigest()).write_bytes(bytes(200))
        found = open_corpus(spec, Places(None, tmp_path, said.append, Reach.MACHINE))
        assert found.training.windows([1])[0].tolist() == [4, 5, 6, 7, 8]
        assert len(said) == 1
        assert hashlib.sha256(bytes(200)).hexdigest() in said[0]
        open_corpus(spec, Places(None, tmp_path, pytest.fail, Reach.MACHINE))
        assert len(source.ranges) == 1
    finally:
        source.close()


class Halves:
    """A tokenizer that names pairs of bytes: as many tokens as half of the text."""

    vocabulary = 1 << 16

    def __init__(self, path: Path) -> None:
        assert path.read_bytes() == b"{}"

    def encode(self, text: str) -> list[int]:
        raw = text.encode()
        return [first * 256 + second for first, second in zip(raw[::2], raw[1::2], strict=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(token.to_bytes(2, "big") for token in tokens).decode()


def test_text_becomes_tokens_once_and_figures_stay_per_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.peer.data.HuggingFace", Halves)
    content = "".join(f"line {index:04d}\n" for index in range(100)).encode()
    (tmp_path / "t.json").write_bytes(b"{}")
    (tmp_path / "a.txt").write_bytes(content)
    cache, said = tmp_path / "cache", list[str]()
    data = {
        "source": "files",
        "files": [{"path": "a.txt", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}],
        "tokenizer": [{"path": "t.json", "sha256": hashlib.sha256(b"{}").hexdigest(), "size": 2}],
        "sequence_length": 4,
        "heldout_fraction": 0.0,
    }
    spec = RunSpec.of(run={"total_tokens": 100}, data=data, model={"vocab": 1 << 16})
    found = open_corpus(spec, Places(tmp_path, cache, said.append))
    assert found.bytes_per_token == 2.0
    assert found.tokenizer is not None
    assert found.tokenizer.decode(found.training.windows([1])[0].tolist()) == content[8:18].decode()
    assert found.tokenizer_file == tmp_path / "t.json"
    assert said == ["turning a.txt into tokens"]
    assert open_corpus(spec, Places(tmp_path, cache, pytest.fail)).fingerprint == found.fingerprint
    plain = open_corpus(RunSpec.of(run={"total_tokens": 100}, data={**data, "tokenizer": []}), Places(tmp_path))
    assert plain.fingerprint != found.fingerprint
    with pytest.raises(DataError, match="holds token"):
        open_corpus(RunSpec.of(run={"total_tokens": 100}, data=data, model={"vocab": 300}), Places(tmp_path, cache))
    (tmp_path / "t.json").write_bytes(b"[]")
    with pytest.raises(DataError) as caught:
        open_corpus(spec, Places(tmp_path, cache))
    assert all(hashlib.sha256(some).hexdigest() in str(caught.value) for some in (b"{}", b"[]"))


def test_many_small_files_do_not_fill_the_memory(tmp_path: Path) -> None:
    memory = Memory(left=250)
    kinds = []
    for index in range(4):
        (tmp_path / str(index)).write_bytes(bytes([index]) * 100)
        found = text_file(str(index), tmp_path / str(index), memory=memory)
        kinds.append(isinstance(found.content, StoredTokens))
        assert found.content[3:5].tolist() == [index, index]
    assert kinds == [False, False, True, True]
