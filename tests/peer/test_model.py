"""The decoder is Hugging Face's Llama: names, sizes, and the maths, each checked against an independent way to compute it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from shoal.peer.model import Decoder, DecoderConfig, rotary_table, rotate

DEMO = DecoderConfig(vocab=256, width=64, layers=3, heads=4, kv_heads=4, ffn=192, init_std=0.08, max_positions=128)


def small(kv_heads: int = 2, tied: bool = False) -> Decoder:
    torch.manual_seed(3)
    return Decoder(
        DecoderConfig(vocab=11, width=16, layers=2, heads=4, kv_heads=kv_heads, ffn=24, init_std=0.3, max_positions=9, tied=tied)
    )


def test_names_and_shapes_are_those_of_hugging_faces_llama() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in small().state_dict().items()}
    block = {
        "input_layernorm.weight": (16,),
        "self_attn.q_proj.weight": (16, 16),
        "self_attn.k_proj.weight": (8, 16),
        "self_attn.v_proj.weight": (8, 16),
        "self_attn.o_proj.weight": (16, 16),
        "post_attention_layernorm.weight": (16,),
        "mlp.gate_proj.weight": (24, 16),
        "mlp.up_proj.weight": (24, 16),
        "mlp.down_proj.weight": (16, 24),
    }
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (11, 16),
        "model.norm.weight": (16,),
        "lm_head.weight": (11, 16),
    }
    expected |= {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in block.items()}
    assert shapes == expected


def test_the_demo_model_has_its_documented_size() -> None:
    assert sum(parameter.numel() for parameter in Decoder(DEMO).parameters()) == 192_960


def test_config_says_what_transformers_reads() -> None:
    config = small(tied=True).config.hugging_face()
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (16, 24, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 4)
    assert (config["tie_word_embeddings"], config["rms_norm_eps"], config["rope_theta"]) == (True, 1e-5, 10_000.0)


def test_a_later_token_does_not_change_earlier_logits() -> None:
    model = small()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    other = torch.tensor([[1, 2, 3, 9, 5, 6]])
    assert torch.equal(model(tokens)[:, :3], model(other)[:, :3])
    assert not torch.equal(model(tokens)[:, 3:], model(other)[:, 3:])


def test_rotation_is_multiplication_by_a_complex_number_of_the_position() -> None:
    config = small().config
    heads = torch.randn(2, 4, 7, 4, dtype=torch.float64)
    turned = rotate(heads, rotary_table(config)[:, :7].double())
    pairs = torch.complex(heads[..., :2], heads[..., 2:])
    frequencies = torch.tensor([1.0, 10_000.0 ** (-2 / 4)], dtype=torch.float64)
    angles = torch.arange(7, dtype=torch.float64)[:, None] * frequencies
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), -1), rtol=1e-6, atol=1e-6)


def test_logits_equal_a_plain_written_llama() -> None:
    model = small()
    tokens = torch.tensor([[1, 7, 0, 10, 3], [4, 4, 2, 9, 8]])
    torch.testing.assert_close(model(tokens), plain_llama(model, tokens), rtol=1e-4, atol=1e-5)


def test_tied_model_shares_one_tensor() -> None:
    model = small(tied=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(list(model.parameters())) == len(list(small().parameters())) - 1


def test_initial_weights_have_the_deviation_that_was_asked_for() -> None:
    torch.manual_seed(0)
    for name, parameter in Decoder(DEMO).named_parameters():
        if parameter.dim() == 2:
            assert float(parameter.detach().std()) == pytest.approx(0.08, rel=0.05), name
        else:
            assert torch.equal(parameter, torch.ones_like(parameter)), name


@pytest.mark.parametrize(("width", "heads", "kv_heads"), [(10, 4, 4), (12, 4, 4), (16, 4, 3), (16, 0, 1)])
def test_impossible_sizes_are_refused(width: int, heads: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match="decoder|multiple"):
        DecoderConfig(vocab=5, width=width, layers=1, heads=heads, kv_heads=kv_heads, ffn=8, init_std=0.1, max_positions=4)


def plain_llama(model: Decoder, tokens: Tensor) -> Tensor:
    """The same function with loops and no fused kernels, from the state dict."""
    weights, config = model.state_dict(), model.config
    length, size = tokens.shape[1], config.head_dim

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.norm_eps) * weight

    hidden = weights["model.embed_tokens.weight"][tokens]
    rotary = rotary_table(config)[:, :length]
    for layer in range(config.layers):
        w = {name.split(f"layers.{layer}.")[1]: tensor for name, tensor in weights.items() if f"layers.{layer}." in name}
        x = norm(hidden, w["input_layernorm.weight"])
        q, k, v = (x @ w[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        outputs = []
        for head in range(config.heads):
            group = head // (config.heads // config.kv_heads)
            qh = rotate(q[..., head * size : (head + 1) * size], rotary)
            kh = rotate(k[..., group * size : (group + 1) * size], rotary)
            scores = qh @ kh.transpose(1, 2) / math.sqrt(size)
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
            outputs.append(scores.softmax(-1) @ v[..., group * size : (group + 1) * size])
        hidden = hidden + torch.cat(outputs, -1) @ w["self_attn.o_proj.weight"].T
        x = norm(hidden, w["post_attention_layernorm.weight"])
        gate = x @ w["mlp.gate_proj.weight"].T
        hidden = hidden + (gate * torch.sigmoid(gate) * (x @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    logits: Tensor = norm(hidden, weights["model.norm.weight"]) @ weights["lm_head.weight"].T
    return logits
