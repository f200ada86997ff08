"""The run spec: what it accepts, what it says about what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol.errors import SpecError
from shoal.protocol.spec import SPEC_LIMIT_BYTES, RunSpec, example_toml

RUN = {"total_tokens": 1000}
FILE = {"path": "books/a.txt", "sha256": "0" * 64, "size": 5}


def test_the_example_loads_as_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(example_toml())
    assert RunSpec.load(tmp_path / "run.toml") == RunSpec.of(run={"total_tokens": 10_000_000})


def test_the_example_documents_every_key_with_its_default() -> None:
    lines = example_toml().splitlines()
    keys = 0
    for section, table in RunSpec.model_fields.items():
        place = lines.index(f"[{section}]")
        assert lines[place - 1].startswith("# ")
        assert isinstance(table.annotation, type)
        for name, field in table.annotation.model_fields.items():
            keys += 1
            assert field.description, f"{section}.{name}"
            at = next(i for i in range(place, len(lines)) if lines[i].startswith(f"{field.alias or name} = "))
            assert lines[at - 1].startswith("# ")
            assert lines[at - 1].endswith(("(required)", ")"))
            if name.endswith("_s"):
                assert "Seconds" in lines[at - 1], "its unit"
    assert keys == sum(line.partition(" = ")[0].isidentifier() for line in lines)


def test_any_spec_can_be_written_and_read_back() -> None:
    spec = RunSpec.of(
        run={"total_tokens": 5, "name": "my-run"},
        data={"source": "files", "files": [FILE, {**FILE, "path": "https://example.org/ü b.txt"}]},
        codec={"return": "fp16"},
        outer={"momentum": 0.6},
        train={"lr": 1e-5},
    )
    assert RunSpec.parse(example_toml(spec)) == spec
    assert RunSpec.from_json(spec.to_json()) == spec


def test_json_is_canonical() -> None:
    left = RunSpec.of(run={"name": "a", "total_tokens": 7}, timing={"grace_s": 1})
    right = RunSpec.of(timing={"grace_s": 1.0}, run={"total_tokens": 7, "name": "a"})
    assert left.to_json() == right.to_json()
    assert json.loads(left.to_json())["codec"]["return"] == "int8"
    assert b" " not in left.to_json()


def test_a_spec_cannot_be_changed() -> None:
    spec = RunSpec.of(run=RUN)
    with pytest.raises(pydantic.ValidationError):
        spec.run.total_tokens = 3


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"run": RUN, "train": {"stpes": 3}}, r'unknown key "train.stpes" — did you mean train.steps\?'),
        ({"run": RUN, "trian": {}}, r'unknown key "trian" — did you mean train\?'),
        ({"run": {**RUN, "momentum": 0.5}}, r'unknown key "run.momentum" — did you mean outer.momentum\?'),
        ({"run": {**RUN, "lr": 1}}, r"did you mean train.lr or outer.lr\?"),
        ({"run": {"total_tokns": 3}}, r'unknown key "run.total_tokns".* — did you mean run.total_tokens\?'),
        ({"run": RUN, "codec": {"retrun": "int8"}}, r"did you mean codec.return\?"),
        ({"run": RUN, "data": {"source": "files", "files": [{**FILE, "sise": 1}]}}, r"did you mean data.files.0.size\?"),
        ({}, '"run" is missing'),
        ({"run": {}}, '"run.total_tokens" is missing'),
        ({"run": {"total_tokens": "5"}}, "\"run.total_tokens\" is '5', but input should be a valid integer"),
        ({"run": {"total_tokens": True}}, "valid integer"),
        ({"run": {"total_tokens": 1.5}}, "valid integer"),
        ({"run": {"total_tokens": 0}}, "greater than or equal to 1"),
        ({"run": RUN, "train": {"schedule": "cosin"}}, "'rsqrt' or 'constant'"),
        ({"run": RUN, "train": {"lr": float("nan")}}, "train.lr"),
        ({"run": RUN, "train": {"lr": float("inf")}}, "train.lr"),
        ({"run": {**RUN, "name": "../x"}}, "run.name"),
        ({"run": 3}, '"run" is 3'),
    ],
)
def test_a_mistake_is_named_with_what_was_probably_meant(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        RunSpec.of(**tables)


@pytest.mark.parametrize(
    ("tables", "both"),
    [
        ({"timing": {"heartbeat_s": 20}}, ("timing.heartbeat_s 20", "timing.lost_after_s 10")),
        ({"timing": {"lost_after_s": 2.0}}, ("timing.heartbeat_s", "timing.lost_after_s")),
        ({"timing": {"grace_s": 11}}, ("timing.grace_s 11", "timing.lost_after_s 10")),
        ({"timing": {"part_s": 700}}, ("timing.part_s 700", "timing.reduce_s 600")),
        ({"model": {"width": 66}}, ("model.width 66", "model.heads 4")),
        ({"model": {"kv_heads": 3}}, ("model.heads 4", "model.kv_heads 3")),
        ({"model": {"vocab": 100}}, ("model.vocab 100", "model.kind")),
        ({"model": {"kind": "factory"}}, ("model.kind", "model.factory")),
        ({"model": {"factory": "a.b:c"}}, ("model.factory", "model.kind")),
        ({"model": {"kind": "factory", "factory": "os.system('x'):y"}}, ("model.kind", "model.factory")),
        ({"data": {"source": "files"}}, ("data.source", "data.files")),
        ({"data": {"files": [FILE]}}, ("data.files", "data.source")),
        ({"round": {"stop": "time"}}, ("round.stop", "round.seconds")),
        ({"round": {"seconds": 5.0}}, ("round.seconds", "round.stop")),
        ({"round": {"stop": "samples", "seconds": 5.0}}, ("round.seconds", "round.stop")),
        ({"round": {"stop": "time", "seconds": 5.0, "samples": 8}}, ("round.samples", "round.stop")),
        ({"round": {"quorum": 0.9}}, ("round.quorum", "round.gather")),
        ({"round": {"stop": "time", "seconds": 600.0}}, ("round.seconds 600", "timing.gather_s 600")),
        ({"data": {"format": "uint16"}}, ("data.format", "data.source")),
        ({"data": {"tokenizer": [FILE]}}, ("data.tokenizer", "data.source")),
        ({"data": {"source": "files", "files": [FILE], "format": "uint16"}}, ("books/a.txt of 5 bytes", "data.format")),
        ({"data": {"epochs": 2}}, ("data.epochs 2", "data.source")),
        ({"data": {"source": "files", "files": [FILE], "tokenizer": [FILE], "epochs": 2}}, ("data.epochs 2", "data.tokenizer")),
        (
            {"data": {"source": "files", "files": [{**FILE, "size": 6}], "format": "uint16"}, "model": {"vocab": 70_000}},
            ("model.vocab 70000", "data.format"),
        ),
        ({"train": {"schedule": "constant", "final_lr_fraction": 0.5}}, ("train.final_lr_fraction", "train.schedule")),
        ({"codec": {"send": "raw", "error_feedback": True}}, ("codec.error_feedback", "codec.send")),
        ({"train": {"schedule": "wsd", "decay_fraction": 0.0}}, ("train.decay_fraction", "train.schedule")),
        ({"train": {"decay_fraction": 0.5}}, ("train.decay_fraction", "train.schedule")),
        ({"train": {"schedule": "linear", "decay_shape": "sqrt"}}, ("train.decay_shape", "train.schedule")),
        (
            {"train": {"schedule": "wsd", "warmup_fraction": 0.6, "decay_fraction": 0.5}},
            ("train.warmup_fraction 0.6", "train.decay_fraction 0.5"),
        ),
        ({"train": {"schedule": "rsqrt", "warmup_fraction": 0.0}}, ("train.schedule", "train.warmup_fraction")),
    ],
)
def test_contradicting_settings_are_both_named(tables: dict[str, Any], both: tuple[str, str]) -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.of(run=RUN, **tables)
    assert all(name in str(caught.value) for name in both)
    assert "\n" not in str(caught.value)


def test_a_file_has_an_address_or_not_and_always_a_name() -> None:
    plain, web = (RunSpec.of(run=RUN, data={"source": "files", "files": [{**FILE, "path": path}]}).data.files[0] for path in PATHS)
    assert (plain.url, plain.name) == ("", "books/a.txt")
    assert (web.url, web.name) == ("http://127.0.0.1:80/books/a.txt", "books/a.txt")


PATHS = ("books/a.txt", "http://127.0.0.1:80/books/a.txt")


def test_a_run_ends_with_its_tokens_or_with_its_last_epoch() -> None:
    def end(total: int, epochs: int) -> int:
        data = {"source": "files", "files": [{**FILE, "size": 1001}], "sequence_length": 10, "heldout_fraction": 0.0}
        return RunSpec.of(run={"total_tokens": total}, data={**data, "epochs": epochs}).end_tokens

    assert [end(5000, 0), end(5000, 1), end(5000, 4), end(5000, 5), end(5000, 6)] == [5000, 1000, 4000, 5000, 5000]


def test_token_files_may_have_a_small_vocabulary() -> None:
    data = {"source": "files", "files": [{**FILE, "size": 8}], "format": "uint32"}
    assert RunSpec.of(run=RUN, data=data, model={"vocab": 10}).model.vocab == 10


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../b",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "http://a@b/c",
        "https://x",
        "https://a b/c",
        "",
    ],
)
def test_files_stay_below_the_data_directory(path: str) -> None:
    with pytest.raises(SpecError, match=r"data\.files path"):
        RunSpec.of(run=RUN, data={"source": "files", "files": [{**FILE, "path": path}]})


def test_the_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for content, problem in ((b"[run\n", "not valid TOML"), (b"\xff", "cannot be read"), (b"[run]\nnmae='x'", "unknown key")):
        path.write_bytes(content)
        with pytest.raises(SpecError, match=rf"mine\.toml.*{problem}"):
            RunSpec.load(path)
    with pytest.raises(SpecError, match=r"none\.toml cannot be read"):
        RunSpec.load(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="no place in a run spec"):
        RunSpec.parse("[run]\ntotal_tokens = 5\nname = 2020-01-01")


@settings(max_examples=200)
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["run", "model", "data", "files", "path", "total_tokens", "x"]), inner, max_size=4)
        ),
    ).map(lambda data: json.dumps(data).encode())
)
def test_any_bytes_are_a_spec_or_a_spec_error(data: bytes) -> None:
    try:
        spec = RunSpec.from_json(data)
    except SpecError:
        return
    assert RunSpec.from_json(spec.to_json()) == spec


def test_a_huge_spec_is_refused_unread() -> None:
    with pytest.raises(SpecError, match="exceeds the limit"):
        RunSpec.from_json(b" " * (SPEC_LIMIT_BYTES + 1))
    with pytest.raises(SpecError):
        RunSpec.from_json(b"[" * 100_000)


def test_derived_values() -> None:
    spec = RunSpec.of(run=RUN)
    assert (spec.samples_per_round, spec.tokens_per_round) == (120, 15_360)
    assert (spec.model.ffn_width, spec.model.initial_std, spec.train.rewarm) == (192, 0.075, 15)
    assert RunSpec.of(run=RUN, model={"ffn": 100}).model.ffn_width == 100
