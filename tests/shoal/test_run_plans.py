"""What `coordinator init` makes of flags, a TOML file and data files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shoal.failures import SettingsError
from shoal.protocol.errors import SpecError
from shoal.protocol.spec import RunSpec, example_toml
from shoal.runplan import DEFAULT_ROUNDS, FEW_ROUNDS, DataFlags, RunPlan, from_file, from_flags


def flags(**tables: object) -> RunPlan:
    return from_flags({name: table for name, table in tables.items() if isinstance(table, dict)}, [], None, None)


def toml(directory: Path, text: str) -> Path:
    path = directory / "plan.toml"
    path.write_text(text)
    return path


def test_without_flags_a_run_has_every_default_and_a_thousand_rounds() -> None:
    plan = from_flags({}, [], None, None)
    assert plan.rounds == DEFAULT_ROUNDS
    assert plan.spec == RunSpec.of(run={"total_tokens": DEFAULT_ROUNDS * 30 * 4 * 128})


def test_length_in_rounds_counts_the_tokens_of_all_planned_peers() -> None:
    plan = from_flags({"train": {"batch": 2, "steps": 5}, "data": {"sequence_length": 10}}, [], 300, 3)
    assert plan.spec.run.total_tokens == 300 * 3 * 2 * 5 * 10
    assert (plan.rounds, plan.peers) == (300, 3)


def test_planned_peers_default_to_those_without_which_the_run_waits() -> None:
    assert from_flags({"run": {"min_peers": 4}}, [], 250, None).peers == 4
    with pytest.raises(SettingsError, match="below the 4 peers"):
        from_flags({"run": {"min_peers": 4}}, [], 250, 3)


@pytest.mark.parametrize(("rounds", "momentum"), [(FEW_ROUNDS - 1, 0.6), (FEW_ROUNDS, 0.9)])
def test_few_rounds_get_a_lower_outer_momentum_and_a_remark_that_says_why(rounds: int, momentum: float) -> None:
    plan = from_flags({}, [], rounds, None)
    assert plan.spec.outer.momentum == momentum
    assert any(f"{rounds} rounds are planned" in remark for remark in plan.remarks) is (momentum == 0.6)


def test_few_rounds_are_also_noticed_when_the_length_is_given_in_tokens() -> None:
    per_round = 30 * 4 * 128
    assert flags(run={"total_tokens": (FEW_ROUNDS - 1) * per_round}).spec.outer.momentum == 0.6
    assert flags(run={"total_tokens": (FEW_ROUNDS - 1) * per_round + 1}).spec.outer.momentum == 0.9


def test_an_outer_momentum_that_was_given_is_kept(tmp_path: Path) -> None:
    assert from_flags({"outer": {"momentum": 0.9}}, [], 10, None).spec.outer.momentum == 0.9
    path = toml(tmp_path, "[run]\ntotal_tokens = 1000\n[outer]\nmomentum = 0.8\n")
    assert from_file(path, [], None, None).spec.outer.momentum == 0.8


def test_the_standard_library_as_data_earns_a_warning_and_own_text_does_not(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text")
    assert any("standard library" in remark for remark in from_flags({}, [], 300, None).remarks)
    assert not from_flags({}, [text], 300, None).remarks


def test_data_files_are_written_down_with_path_digest_and_size(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    one, two = tmp_path / "one.txt", tmp_path / "deep" / "two.txt"
    one.write_bytes(b"first")
    two.write_bytes(b"second!")
    plan = from_flags({}, [one, two], None, None)
    assert plan.spec.data.source == "files"
    assert [(file.path, file.sha256, file.size) for file in plan.spec.data.files] == [
        ("one.txt", hashlib.sha256(b"first").hexdigest(), 5),
        ("deep/two.txt", hashlib.sha256(b"second!").hexdigest(), 7),
    ]


def test_files_that_peers_fetch_are_written_down_below_their_address(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    one, two = tmp_path / "deep" / "one.txt", tmp_path / "tokenizer.json"
    one.write_bytes(b"first")
    two.write_bytes(b"{}")
    data = from_flags({}, [one], None, None, DataFlags("https://example.org/run/", two)).spec.data
    assert [file.path for file in (*data.files, *data.tokenizer)] == [
        "https://example.org/run/deep/one.txt",
        "https://example.org/run/tokenizer.json",
    ]
    assert data.tokenizer[0].sha256 == hashlib.sha256(b"{}").hexdigest()
    with pytest.raises(SettingsError, match="--data-url"):
        from_flags({}, [], None, None, DataFlags("https://example.org/run/"))
    path = toml(tmp_path, f'[data]\ntokenizer = [{{path = "b", sha256 = "{"0" * 64}", size = 1}}]\n')
    with pytest.raises(SettingsError, match=r"--tokenizer and data\.tokenizer"):
        from_file(path, [one], 7, None, DataFlags("", two))


def test_epochs_say_how_long_a_run_is_unless_something_shorter_does(tmp_path: Path) -> None:
    tokens = tmp_path / "a.bin"
    tokens.write_bytes(bytes(2 * 10_001))
    data = {"epochs": 3, "format": "uint16", "sequence_length": 10, "heldout_fraction": 0.0}
    flags: dict[str, dict[str, object]] = {"data": data, "train": {"steps": 2}}
    plan = from_flags(flags, [tokens], None, None)
    assert plan.spec.run.total_tokens == plan.spec.end_tokens == 30_000
    assert plan.rounds == 30_000 // (10 * 4 * 2)
    assert from_flags(flags, [tokens], 5, None).spec.end_tokens == 5 * 10 * 4 * 2


def test_one_data_file_lies_directly_in_the_data_directory(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text")
    assert from_flags({}, [text], None, None).spec.data.files[0].path == "a.txt"


@pytest.mark.parametrize(("name", "content", "complaint"), [("gone.txt", None, "No such file"), ("empty.txt", b"", "is empty")])
def test_a_missing_or_empty_data_file_is_named(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=complaint) as caught:
        from_flags({}, [path], None, None)
    assert name in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[run]\ntotal_tokens = 5\n[train]\nstep = 3\n", "train.steps"),
        ("[run]\ntotal_tokens = 5\n[timing]\nheartbeat_s = 20.0\n", "timing.heartbeat_s 20 is not below timing.lost_after_s 10"),
        ("[run\n", "is not valid TOML"),
        ("run = 3\n", "run"),
    ],
)
def test_a_wrong_spec_file_is_refused_by_its_name_and_the_wrong_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        from_file(path, [], None, None)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_missing_spec_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.toml cannot be read"):
        from_file(tmp_path / "nowhere.toml", [], None, None)


def test_a_spec_file_may_leave_length_and_data_to_the_command_line(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text")
    plan = from_file(toml(tmp_path, "[model]\nwidth = 32\n"), [text], 7, None)
    assert plan.spec.model.width == 32
    assert plan.spec.data.source == "files"
    assert plan.rounds == 7


def test_what_two_places_say_is_refused_with_both_names(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text")
    path = toml(
        tmp_path, f'[run]\ntotal_tokens = 5\n[data]\nsource = "files"\nfiles = [{{path = "b", sha256 = "{"0" * 64}", size = 1}}]\n'
    )
    with pytest.raises(SettingsError, match=r"--data and data\.files"):
        from_file(path, [text], None, None)
    with pytest.raises(SettingsError, match=r"--rounds and run\.total_tokens"):
        from_file(path, [], 7, None)
    with pytest.raises(SettingsError, match="--rounds and --tokens"):
        from_flags({"run": {"total_tokens": 9}}, [], 7, None)


def test_the_written_run_spec_reads_back_as_the_same_run(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text")
    plan = from_flags({"train": {"lr": 1e-3}}, [text], 20, None)
    path = toml(tmp_path, example_toml(plan.spec))
    assert RunSpec.load(path) == plan.spec
    assert from_file(path, [], None, None).spec == plan.spec
