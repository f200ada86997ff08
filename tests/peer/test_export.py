"""An exported model is whole, loads again, and holds tied weights once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from shoal.peer.export import SAMPLE_TOKENS, ExportError, export, sample_text
from shoal.peer.model import DecoderConfig
from shoal.peer.task import DecoderTask

CPU = torch.device("cpu")


def decoder(tied: bool = False, std: float = 0.2) -> DecoderTask:
    torch.manual_seed(5)
    return DecoderTask(DecoderConfig(256, 16, 2, 2, 1, 24, std, 12, tied=tied))


def test_weights_and_config_come_back_as_they_were(tmp_path: Path) -> None:
    task = decoder()
    assert export(task, tmp_path / "model", version=7) == tmp_path / "model"
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    weights = load_file(tmp_path / "model" / "model.safetensors")
    expected = task.module.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == {**task.config(), "shoal_version": 7}


def test_equal_parameters_make_equal_files(tmp_path: Path) -> None:
    paths = [export(decoder(), tmp_path / str(version), version) / "model.safetensors" for version in range(4)]
    assert len({path.read_bytes() for path in paths}) == 1
    assert b'"__metadata__":{"format":"pt"}' in paths[0].read_bytes()


def test_tied_weights_are_written_once_and_fit_again(tmp_path: Path) -> None:
    task = decoder(tied=True)
    export(task, tmp_path, version=0)
    weights = load_file(tmp_path / "model.safetensors")
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights
    again = decoder(tied=True, std=0.3)
    assert again.module.load_state_dict(weights, strict=False).missing_keys == ["lm_head.weight"]
    assert torch.equal(again.module.lm_head.weight, task.module.lm_head.weight)


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    export(decoder(), tmp_path, version=1)
    export(decoder(std=0.4), tmp_path, version=2)
    weights = load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], decoder(std=0.4).module.lm_head.weight)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_export_that_fails_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(decoder(), tmp_path, version=1)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match=r"cannot be written to .*: No space left on device — free some disk space"):
        export(decoder(std=0.4), tmp_path, version=2)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2, "nothing half written stays"


def test_a_folder_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export(decoder(), tmp_path / "file" / "model", version=1)


def test_a_sample_is_the_same_each_time_and_safe_to_print() -> None:
    task = decoder()
    sample = sample_text(task, CPU, context=12)
    assert sample == sample_text(task, CPU, context=12)
    assert all(char.isprintable() or char in "\n\t" for char in sample)
    assert task.module.training


class Counting:
    """Predicts the byte after the last one, and remembers the longest input."""

    def __init__(self) -> None:
        self.module = nn.Linear(1, 1)
        self.longest = 0

    def loss(self, samples: Tensor) -> tuple[Tensor, int]:
        raise NotImplementedError

    def logits(self, tokens: Tensor) -> Tensor:
        self.longest = max(self.longest, tokens.shape[1])
        return 100.0 * torch.nn.functional.one_hot((tokens + 1) % 128, 300).float()

    def config(self) -> dict[str, object]:
        return {}


def test_a_sample_follows_the_model_and_never_exceeds_its_context() -> None:
    task = Counting()
    sample = sample_text(task, CPU, context=9)
    assert task.longest == 9
    expected = (chr((ord("\n") + 1 + i) % 128) for i in range(SAMPLE_TOKENS))
    assert sample == "".join(char for char in expected if char.isprintable() or char in "\n\t")
