"""Text becomes the same tokens everywhere, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from shoal.peer import tokenizer
from shoal.peer.sources import DataError
from shoal.peer.tokenizer import HuggingFace, tokenize, tokens_name


class Characters:
    """Every character is a token; remembers the pieces that it was given."""

    vocabulary = 1 << 21

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.pieces.append(text)
        return [ord(char) for char in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def test_pieces_end_with_a_line_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PIECE_BYTES", 10)
    text = "".join(f"zeile {index} ä\n" for index in range(20)) + "ende"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    characters = Characters()
    tokenize(tmp_path / "a.txt", characters, tmp_path / "cache" / "a.u32")
    assert characters.decode(np.fromfile(tmp_path / "cache" / "a.u32", dtype="<u4").tolist()) == text
    assert len(characters.pieces) > 5
    assert all(piece.endswith("\n") for piece in characters.pieces[:-1])
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a.u32"]


def test_a_line_without_end_is_cut_between_two_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PIECE_BYTES", 7)
    text = "äöü€𝄞" * 20
    (tmp_path / "a.txt").write_bytes(text.encode() + b"\xe2\x82")
    characters = Characters()
    tokenize(tmp_path / "a.txt", characters, tmp_path / "a.u32")
    assert characters.decode(np.fromfile(tmp_path / "a.u32", dtype="<u4").tolist()) == text + "\ufffd"
    assert max(map(len, characters.pieces)) <= 14


def test_a_tokenizer_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Characters, "encode", lambda self, text: [-1])
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(OverflowError):
        tokenize(tmp_path / "a.txt", Characters(), tmp_path / "cache" / "a.u32")
    assert not list((tmp_path / "cache").iterdir())


def test_tokens_are_kept_apart_by_text_and_tokenizer() -> None:
    names = {tokens_name(text, made_by) for text in ("a" * 64, "b" * 64) for made_by in ("c" * 64, "d" * 64)}
    assert len(names) == 4


def test_without_the_library_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(tokenizer.importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"tokenizers is not installed here — pip install 'shoal\[hf\]'"):
        HuggingFace(tmp_path / "tokenizer.json")


def test_a_hugging_face_file_is_read_and_anything_else_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "the": 1, "sea": 2, "is": 3}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    place = tmp_path / "tokenizer.json"
    place.write_text(json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model, "added_tokens": []}))
    found = HuggingFace(place)
    assert found.vocabulary == 4
    assert found.encode("the sea is deep") == [1, 2, 3, 0]
    assert found.decode([1, 2]) == "the sea"
    place.write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer"):
        HuggingFace(place)
