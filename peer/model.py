"""The built-in model: a Llama-style decoder that Hugging Face's `LlamaForCausalLM` would load without a change.

RMSNorm before each half of a block, rotary positions, SwiGLU, grouped-query attention, no biases (Touvron et al. 2023,
arXiv 2302.13971). Its one rule: parameter names, shapes and the meaning of every number in `config.json` are Hugging Face's, so
that an exported model needs no conversion. Rotary halves are split as there (first half with second half), not interleaved as
in the paper.

Neighbours: `task` turns a run spec into a `DecoderConfig`, `export` writes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder. `ffn` and `init_std` must be resolved (positive) here."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    init_std: float
    max_positions: int
    tied: bool = False
    """The output matrix is the embedding matrix."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        counts = (self.vocab, self.width, self.layers, self.heads, self.kv_heads, self.ffn, self.max_positions)
        if min(counts) < 1 or not self.init_std > 0:
            raise ValueError(f"every size and the initialisation of a decoder must be positive: {self}")
        if self.width % self.heads or self.heads % self.kv_heads or (self.width // self.heads) % 2:
            sizes = f"width {self.width}, heads {self.heads}, kv_heads {self.kv_heads}"
            raise ValueError(f"width must be an even multiple of heads, and heads a multiple of kv_heads: {sizes}")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def hugging_face(self) -> dict[str, object]:
        """`config.json` for `transformers.LlamaForCausalLM`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "initializer_range": self.init_std,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": self.tied,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "torch_dtype": "float32",
        }


class Decoder(nn.Module):
    """tokens (batch, length) int64 -> logits (batch, length, vocab)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.width, config.vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.init_std)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.lm_head(self.model(tokens)))


class Trunk(nn.Module):
    """Everything but the output matrix, under the prefix "model." as in Hugging Face's checkpoints."""

    rotary: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config)
        self.register_buffer("rotary", rotary_table(config), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed_tokens(tokens)  # (batch, length, width)
        rotary = self.rotary[:, : tokens.shape[1]]
        for block in self.layers:
            hidden = block(hidden, rotary)
        return cast(Tensor, self.norm(hidden))


class Block(nn.Module):
    """Attention, then the feed-forward network, each on a normalised copy and added back."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config)
        self.mlp = SwiGLU(config)

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary)
        return cast(Tensor, hidden + self.mlp(self.post_attention_layernorm(hidden)))


class Attention(nn.Module):
    """Causal attention; each key/value head serves heads / kv_heads query heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.q_proj = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query = rotate(self.q_proj(hidden).view(batch, length, self.heads, self.head_dim).transpose(1, 2), rotary)
        key = rotate(self.k_proj(hidden).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2), rotary)
        value = self.v_proj(hidden).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        grouped = self.kv_heads != self.heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim)))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), Shazeer 2020, arXiv 2002.05202."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden)))


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width))
        self.eps = config.norm_eps

    def forward(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


def rotary_table(config: DecoderConfig) -> Tensor:
    """Cosines and sines of every position: (2, max_positions, head_dim), computed in fp64 so that all machines agree."""
    frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    angles = torch.outer(torch.arange(config.max_positions, dtype=torch.float64), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(heads: Tensor, rotary: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim/2) of `heads` (batch, heads, length, head_dim) by its position's angle (RoPE, arXiv
    2104.09864)."""
    first, second = heads.chunk(2, dim=-1)
    return heads * rotary[0] + torch.cat((-second, first), dim=-1) * rotary[1]
