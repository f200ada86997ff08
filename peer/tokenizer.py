"""Text as tokens, where the run spec names a tokenizer; without one a token is a byte.

Rule: a tokenizer is a Hugging Face `tokenizer.json`, read by the library that defines the format (the extra `hf`). Text is encoded
in pieces that end with a line, whose bounds do not depend on the machine, so that all peers get the same tokens; should two
versions of the library differ after all, the digest of the tokens tells them apart.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.peer.sources import DataError

PIECE_BYTES = 1 << 20
"""Text is encoded in pieces of about this size; a line that goes on for longer is cut between two characters."""


class Tokenizer(Protocol):
    """What is asked of one."""

    @property
    def vocabulary(self) -> int:
        """Tokens lie below this."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any that are not in it."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class HuggingFace:
    """One that a `tokenizer.json` describes."""

    def __init__(self, path: Path) -> None:
        try:
            library = importlib.import_module("tokenizers")
        except ImportError as error:
            reason = "the run has a tokenizer, and the package tokenizers is not installed here"
            raise DataError(reason, "pip install 'shoal[hf]'") from error
        try:
            self._inner: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # what the library raises is a bare Exception
            raise DataError(f"{path} is not a tokenizer: {error}", "tell the run's operator") from error

    @property
    def vocabulary(self) -> int:
        return int(self._inner.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._inner.decode(list(tokens)))


def tokenize(text: Path, tokenizer: Tokenizer, place: Path) -> None:
    """Write the text's tokens to `place`, whole or not at all, as little-endian 32-bit numbers. Bytes that are no UTF-8 become
    replacement characters."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with text.open("rb") as source, partial.open("wb") as target:
            while piece := source.read(PIECE_BYTES):
                piece += source.readline(PIECE_BYTES)
                target.write(np.asarray(tokenizer.encode(decoder.decode(piece)), dtype="<u4").tobytes())
            if rest := decoder.decode(b"", final=True):
                target.write(np.asarray(tokenizer.encode(rest), dtype="<u4").tobytes())
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)


def tokens_name(text_digest: str, tokenizer_digest: str) -> str:
    """What the tokens of a text are called in a cache."""
    return hashlib.sha256(f"shoal-tokens-1|{text_digest}|{tokenizer_digest}".encode()).hexdigest() + ".u32"
