"""The map from a module to its vector, and the cuts."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shoal.compression.codec import Codec, codec
from shoal.optim.layout import LayoutError, ParameterLayout, Part, Slot


class Odd(nn.Module):
    """Every awkward thing at once: 0-d, empty, non-contiguous, bf16, frozen, tied, buffers of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.empty(0, 8))
        self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).t())
        self.brain = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.fixed = nn.Parameter(torch.full((7,), 3.0), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(16_777_217))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("cache", torch.zeros(100), persistent=False)


def test_each_trainable_tensor_has_one_place_in_the_modules_own_order() -> None:
    layout = ParameterLayout.of(Odd())
    assert [(slot.name, slot.shape, slot.start, slot.size) for slot in layout.slots] == [
        ("temperature", (), 0, 1),
        ("empty", (0, 8), 1, 0),
        ("turned", (3, 2), 1, 6),
        ("brain", (4,), 7, 4),
        ("embedding.weight", (5, 3), 11, 15),
    ]
    assert layout.values == 26
    assert layout.ties == (("head.weight", "embedding.weight"),)


def test_frozen_parameters_and_saved_buffers_are_listed_apart() -> None:
    layout = ParameterLayout.of(Odd())
    assert [(entry.name, entry.kind) for entry in layout.frozen] == [("fixed", "float")]
    assert [(entry.name, entry.kind) for entry in layout.buffers] == [
        ("mean", "float"),
        ("count", "integer"),
        ("mask", "bool"),
        ("nothing", "float"),
    ]


def test_gather_and_scatter_keep_dtype_shape_strides_ties_and_requires_grad() -> None:
    module = Odd()
    layout = ParameterLayout.of(module)
    before = {name: (p.dtype, p.shape, p.stride(), p.requires_grad) for name, p in module.named_parameters()}
    vector = layout.gather(module)
    assert vector[1:7].tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    layout.scatter(torch.arange(26.0), module)
    assert {name: (p.dtype, p.shape, p.stride(), p.requires_grad) for name, p in module.named_parameters()} == before
    assert layout.gather(module).tolist() == list(range(26))
    assert module.head.weight.data_ptr() == module.embedding.weight.data_ptr()
    assert module.turned.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert float(module.temperature.detach()) == 0.0
    assert module.fixed.tolist() == [3.0] * 7


@pytest.mark.parametrize("name", ["int8", "raw", "bf16", "fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (0, 7), (3, 5)])
def test_a_tensor_of_any_dtype_and_shape_goes_through_every_codec(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    module = nn.Module()
    module.w = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype))
    layout, how = ParameterLayout.of(module), codec(name, 256)
    original, vector = module.w.detach().clone(), layout.gather(module)
    for part in layout.partition(how):
        piece = vector[part.start : part.stop]
        piece.copy_(how.decode(how.encode(piece.clone(), part.spans), part.spans))
    layout.scatter(vector, module)
    assert (module.w.dtype, module.w.shape, module.w.requires_grad) == (dtype, torch.Size(shape), True)
    assert torch.allclose(module.w.double(), original.double(), atol=0.02)
    if name == "raw" and dtype != torch.float64:
        assert torch.equal(module.w, original)


def test_a_frozen_parameter_is_never_in_the_vector_and_a_mostly_frozen_model_is_small() -> None:
    module = nn.Sequential(nn.Linear(300, 300), nn.Linear(10, 3))
    module[0].requires_grad_(False)
    layout = ParameterLayout.of(module)
    assert layout.values == 33
    assert len(layout.frozen) == 2


def test_tensors_are_ordered_by_fragment_and_each_fragment_is_cut_by_itself() -> None:
    module = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(3, 3, bias=False)])
    layout = ParameterLayout.of(module, {"0.weight": 1, "1.weight": 0, "2.weight": 1}.__getitem__)
    assert [(slot.name, slot.start, slot.fragment) for slot in layout.slots] == [
        ("1.weight", 0, 0),
        ("0.weight", 4, 1),
        ("2.weight", 20, 1),
    ]
    assert layout.fragments == 2
    int8 = codec("int8", 8)
    assert layout.partition(int8, 0) == (Part(0, 4, (4,)),)
    assert layout.partition(int8, 1) == (Part(4, 29, (16, 9)),)
    assert layout.partition(int8, 2) == ()


def test_the_hash_covers_the_model_and_not_the_machine() -> None:
    module = Odd()
    layout = ParameterLayout.of(module)
    assert len(layout.hash) == 32
    assert ParameterLayout.of(Odd().double()).hash == layout.hash
    variants = []
    for change in ("temperature", "fixed", "mean"):
        other = Odd()
        if change == "temperature":
            other.temperature = nn.Parameter(torch.ones(1))
        elif change == "fixed":
            other.fixed.requires_grad_(True)
        else:
            other.mean = torch.zeros(4)
        variants.append(ParameterLayout.of(other))
    untied = Odd()
    untied.head.weight = nn.Parameter(torch.zeros(5, 3))
    variants.append(ParameterLayout.of(untied))
    variants.append(ParameterLayout.of(Odd(), lambda name: int(name == "embedding.weight")))
    assert len({layout.hash, *(variant.hash for variant in variants)}) == 6
    assert layout.hash == ParameterLayout.of(Odd()).hash


def test_json_there_and_back_is_the_same_layout() -> None:
    layout = ParameterLayout.of(Odd(), lambda name: int(name == "brain"))
    again = ParameterLayout.from_json(layout.to_json())
    assert again == layout
    assert again.hash == layout.hash


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "{",
        '{"slots":[["w",[-1],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[["w",[1.5],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[["w",[true],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[[1,[1],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[["w",[4000000,4000000],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[["w",3,0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[["w",[1],0],["w",[1],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[["a",[1],1],["b",[1],0]],"frozen":[],"buffers":[],"ties":[]}',
        '{"slots":[],"frozen":[["a"]],"buffers":[],"ties":[]}',
        "[" * 5000,
    ],
)
def test_what_is_not_a_layout_is_refused(text: str) -> None:
    with pytest.raises(LayoutError):
        ParameterLayout.from_json(text)


def test_a_module_that_does_not_fit_is_refused_by_name() -> None:
    layout = ParameterLayout.of(Odd())
    smaller = Odd()
    smaller.brain = nn.Parameter(torch.ones(3))
    with pytest.raises(LayoutError, match=r"brain: shape \(3,\) in the module, \(4,\) in the layout"):
        layout.gather(smaller)
    untied = Odd()
    untied.head.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(LayoutError, match="tied in the layout, but not in this module"):
        layout.scatter(torch.zeros(26), untied)
    with pytest.raises(LayoutError, match="no parameter 'temperature'"):
        layout.gather(nn.Linear(2, 2))
    for vector in (torch.zeros(25), torch.zeros(26).double(), torch.zeros(52)[::2], torch.zeros(2, 13)):
        with pytest.raises(LayoutError, match="need 26 contiguous fp32"):
            layout.scatter(vector, Odd())


def test_non_finite_values_are_named_by_tensor_and_count() -> None:
    module = nn.Module()
    module.w = nn.Parameter(torch.ones(8))
    module.b = nn.Parameter(torch.ones(2))
    layout = ParameterLayout.of(module)
    vector = torch.ones(10)
    assert layout.describe_non_finite(vector) == ""
    vector[3] = float("nan")
    assert layout.describe_non_finite(vector) == "w: 1/8 non-finite"
    vector[8:] = float("inf")
    assert layout.describe_non_finite(vector) == "w: 1/8 non-finite, b: 2/2 non-finite"


def test_a_module_without_trainable_parameters_has_no_parts() -> None:
    layout = ParameterLayout.of(nn.Linear(2, 2).requires_grad_(False))
    assert layout.values == 0
    assert layout.fragments == 1
    assert layout.partition(codec("int8")) == ()
    assert ParameterLayout.from_json(layout.to_json()) == layout


def layout_of_sizes(sizes: list[int]) -> ParameterLayout:
    slots, start = [], 0
    for index, size in enumerate(sizes):
        slots.append(Slot(f"p{index}", (size,), start, size))
        start += size
    return ParameterLayout(tuple(slots))


CODECS: tuple[Codec, ...] = (codec("int8", 4), codec("int8", 7), codec("raw"), codec("bf16"))


@given(
    sizes=st.lists(st.integers(0, 60), max_size=12),
    how=st.sampled_from(CODECS),
    limit=st.integers(11, 200),
    seed=st.integers(0, 99),
)
@settings(max_examples=200)
def test_parts_cover_the_vector_once_within_the_limit_and_however_it_is_cut_the_values_are_the_same(
    sizes: list[int], how: Codec, limit: int, seed: int
) -> None:
    layout = layout_of_sizes(sizes)
    parts = layout.partition(how, limit_bytes=limit)
    position = 0
    for part in parts:
        assert part.start == position
        assert part.stop - part.start == sum(part.spans) > 0
        assert all(span > 0 for span in part.spans)
        assert how.encoded_size(part.spans) <= limit
        position = part.stop
    assert position == layout.values

    vector = torch.randn(layout.values, generator=torch.Generator().manual_seed(seed))
    whole = how.decode(how.encode(vector, tuple(sizes)), tuple(sizes))
    cut = [how.decode(how.encode(vector[part.start : part.stop], part.spans), part.spans) for part in parts]
    assert torch.equal(torch.cat([*cut, torch.empty(0)]), whole)


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=8))
@settings(max_examples=50)
def test_no_two_neighbouring_parts_would_fit_into_one(sizes: list[int]) -> None:
    how = codec("int8", 256)
    parts = layout_of_sizes(sizes).partition(how, limit_bytes=1024)
    for left, right in itertools.pairwise(parts):
        assert how.encoded_size(left.spans) + how.encoded_size(right.spans) > 1024 - 260


def test_a_mebibyte_part_of_one_large_tensor_holds_1020_blocks() -> None:
    parts = layout_of_sizes([3_000_000]).partition(codec("int8", 1024))
    assert [part.stop - part.start for part in parts] == [1020 * 1024, 1020 * 1024, 3_000_000 - 2 * 1020 * 1024]


def test_a_limit_below_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold one block of 1028"):
        layout_of_sizes([10]).partition(codec("int8", 1024), limit_bytes=1000)
