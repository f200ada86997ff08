"""A trained model on disk: `model.safetensors`, `config.json` and its tokenizer if it has one, loadable by Hugging Face's
transformers, and a sample of what it writes.

Its two rules: a file is there whole or not at all (it is written beside its place, forced to disk and renamed), and equal
parameters make equal files, so that peers can compare theirs with any tool.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from shoal.peer.task import Task
from shoal.peer.tokenizer import Tokenizer
from shoal.protocol.errors import ShoalError
from shoal.protocol.files import PUBLIC, write_whole

SAMPLE_PROMPT = b"\n"
"""What a sample continues, and is not part of: the run may train on anything, so no word suits it."""
SAMPLE_TOKENS = 160


class ExportError(ShoalError):
    """The model could not be written."""


def export(task: Task, directory: Path, version: int, tokenizer: Path | None = None) -> Path:
    """Write the module's present parameters as version `version` of the run, with its tokenizer if there is one. Returns
    `directory`. Raises ExportError."""
    weights = save(named_tensors(task.module), metadata={"format": "pt"})  # a second key would stand in random order
    config = json.dumps({**task.config(), "shoal_version": version}, indent=2).encode() + b"\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / "config.json", config, mode=PUBLIC)
        if tokenizer is not None:
            write_whole(directory / "tokenizer.json", tokenizer.read_bytes(), mode=PUBLIC)
        write_whole(directory / "model.safetensors", weights, mode=PUBLIC)
    except OSError as error:
        reason = f"the model cannot be written to {directory}: {error.strerror}"
        raise ExportError(reason, "free some disk space, or choose another directory") from error
    return directory


def named_tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    """What the module saves, by name, contiguous on the CPU; tied weights once, under their first name."""
    tensors: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in module.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        tensors[name] = tensor.detach().cpu().contiguous()
    return tensors


@dataclass(frozen=True)
class Voice:
    """How a model's tokens become text: a tokenizer, or bytes, or nothing known (then they are shown as numbers)."""

    tokenizer: Tokenizer | None = None
    is_text: bool = True

    @property
    def prompt(self) -> list[int]:
        """What a sample continues."""
        if self.tokenizer is not None:
            return self.tokenizer.encode(SAMPLE_PROMPT.decode()) or [0]
        return list(SAMPLE_PROMPT) if self.is_text else [0]

    @property
    def vocabulary(self) -> int | None:
        """Tokens that may be drawn; None: all that the model knows."""
        return self.tokenizer.vocabulary if self.tokenizer is not None else (256 if self.is_text else None)

    def say(self, tokens: list[int]) -> str:
        """The text of these tokens."""
        if self.tokenizer is not None:
            return self.tokenizer.decode(tokens)
        return bytes(tokens).decode(errors="ignore") if self.is_text else " ".join(map(str, tokens))


def sample_text(
    task: Task, device: torch.device, context: int, seed: int = 0, temperature: float = 0.8, voice: Voice | None = None
) -> str:
    """SAMPLE_TOKENS tokens that continue a prompt, drawn at `temperature` from the module, as text; what is no text is left out.
    `context`: the longest input. `voice`: bytes by default."""
    voice = voice or Voice()
    generator = torch.Generator().manual_seed(seed)
    prompt = voice.prompt
    tokens = list(prompt)
    was_training = task.module.training
    task.module.eval()
    with torch.no_grad():
        for _ in range(SAMPLE_TOKENS):
            logits = task.logits(torch.tensor([tokens[-context:]], device=device))[0, -1, : voice.vocabulary].float().cpu()
            chances = torch.softmax(logits / temperature, dim=-1)
            tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
    task.module.train(was_training)
    text = voice.say(tokens[len(prompt) :])
    return "".join(char for char in text if char.isprintable() or char in "\n\t")
