"""What losses are given in, wherever a person reads one."""

from __future__ import annotations

BITS_PER_BYTE = "bits per byte"
"""Over text, whatever its tokens are."""
BITS_PER_TOKEN = "bits per token"
"""Over files of tokens, of which nobody knows how many bytes they stand for."""
