"""Where each parameter lies in the one flat vector that peers exchange, and how that vector is cut into parts.

Rule: the vector holds every trainable parameter once, in fp32, tensors ordered by fragment and then as the module names them; tied
weights share one place. Frozen parameters and buffers are listed, but are not in the vector. Two peers may exchange updates exactly
if their layouts have the same `hash`, which covers names, shapes, fragments, ties, frozen parameters and buffers, and leaves out
what belongs to the machine (dtype, device, strides).

A *part* is a range of the vector that fits one message. It is cut only where a codec allows, and its *spans* are the lengths of the
runs in it that lie in one tensor each (see `compression.codec`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]

LARGEST_VECTOR = 1 << 42
"""Values that a layout from outside may claim."""


class LayoutError(ValueError):
    """A module, vector or description does not fit the layout. The message says where."""


class Sizing(Protocol):
    """What `partition` asks of a codec: sizes that add up over spans and blocks."""

    @property
    def block(self) -> int: ...

    def encoded_size(self, spans: tuple[int, ...]) -> int: ...


@dataclass(frozen=True)
class Slot:
    """One trainable tensor's place: values [start, start + size) of the vector, in row-major order."""

    name: str
    shape: Shape
    start: int
    size: int
    fragment: int = 0


@dataclass(frozen=True)
class Part:
    """Values [start, stop) of the vector; `spans` sum to stop - start."""

    start: int
    stop: int
    spans: tuple[int, ...]


@dataclass(frozen=True)
class Bystander:
    """A frozen parameter or a buffer: part of the model, but not of the vector. `kind`: "float", "integer" or "bool"."""

    name: str
    shape: Shape
    kind: str


@dataclass(frozen=True)
class ParameterLayout:
    """The map from a module to its vector. Built by `of`, or read from another peer's `to_json`."""

    slots: tuple[Slot, ...]
    frozen: tuple[Bystander, ...] = ()
    buffers: tuple[Bystander, ...] = ()
    """Buffers that the module saves (persistent ones)."""
    ties: tuple[tuple[str, str], ...] = field(default=())
    """(other name, name in `slots` or `frozen`) of each parameter that is there under several names."""

    def __post_init__(self) -> None:
        end, fragment = 0, 0
        for slot in self.slots:
            if slot.start != end or slot.size != math.prod(slot.shape) or slot.fragment < fragment:
                raise LayoutError(f"slot {slot.name!r} is out of place")
            end, fragment = slot.start + slot.size, slot.fragment
        if len({slot.name for slot in self.slots}) != len(self.slots):
            raise LayoutError("two slots have one name")

    @classmethod
    def of(cls, module: nn.Module, fragment_of: Callable[[str], int] | None = None) -> ParameterLayout:
        """The layout of a module; `fragment_of(name)` says which fragment a parameter belongs to (all to 0 by default)."""
        first_names: dict[int, str] = {}
        trainable: list[tuple[int, str, Shape]] = []
        frozen: list[Bystander] = []
        ties: list[tuple[str, str]] = []
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in first_names:
                ties.append((name, first_names[id(parameter)]))
                continue
            first_names[id(parameter)] = name
            if parameter.requires_grad:
                if not parameter.is_floating_point():
                    raise LayoutError(f"{name}: {parameter.dtype} parameters cannot be trained by real-valued updates")
                trainable.append((fragment_of(name) if fragment_of else 0, name, tuple(parameter.shape)))
            else:
                frozen.append(Bystander(name, tuple(parameter.shape), _kind(parameter)))
        trainable.sort(key=lambda entry: entry[0])  # stable: the module's own order within a fragment
        slots, start = [], 0
        for fragment, name, shape in trainable:
            size = math.prod(shape)
            slots.append(Slot(name, shape, start, size, fragment))
            start += size
        saved = module.state_dict(keep_vars=True)
        buffers = tuple(
            Bystander(name, tuple(buffer.shape), _kind(buffer)) for name, buffer in module.named_buffers() if name in saved
        )
        return cls(tuple(slots), tuple(frozen), buffers, tuple(ties))

    # --- description ------------------------------------------------------------------------------------------------------------

    @property
    def values(self) -> int:
        """Length of the vector."""
        return self.slots[-1].start + self.slots[-1].size if self.slots else 0

    @property
    def fragments(self) -> int:
        """Number of fragments, at least one."""
        return self.slots[-1].fragment + 1 if self.slots else 1

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of `to_json`."""
        return hashlib.sha256(b"shoal-layout-1" + self.to_json().encode()).digest()

    def to_json(self) -> str:
        """Canonical: equal layouts give equal strings."""
        plain = {
            "slots": [[s.name, list(s.shape), s.fragment] for s in self.slots],
            "frozen": [[b.name, list(b.shape), b.kind] for b in self.frozen],
            "buffers": [[b.name, list(b.shape), b.kind] for b in self.buffers],
            "ties": [list(tie) for tie in self.ties],
        }
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ParameterLayout:
        """Inverse of `to_json`; LayoutError for anything else."""
        try:
            plain = json.loads(text)
            slots, start = [], 0
            for name, shape, fragment in plain["slots"]:
                size = math.prod(_shape(shape))
                slots.append(Slot(_text(name), _shape(shape), start, size, _count(fragment)))
                start += size
            if start > LARGEST_VECTOR:
                raise LayoutError(f"{start} values; at most {LARGEST_VECTOR}")
            return cls(
                tuple(slots),
                tuple(Bystander(_text(n), _shape(s), _text(k)) for n, s, k in plain["frozen"]),
                tuple(Bystander(_text(n), _shape(s), _text(k)) for n, s, k in plain["buffers"]),
                tuple((_text(a), _text(b)) for a, b in plain["ties"]),
            )
        except LayoutError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise LayoutError(f"not a layout: {error}") from error

    # --- moving values ----------------------------------------------------------------------------------------------------------

    def gather(self, module: nn.Module, out: Tensor | None = None) -> Tensor:
        """Copy the module's trainable parameters into `out` (values,) fp32: any dtype, strides and device."""
        out = self._vector(out)
        for slot, parameter in self._pairs(module):
            out[slot.start : slot.start + slot.size].view(slot.shape).copy_(parameter.detach())
        return out

    def scatter(self, vector: Tensor, module: nn.Module) -> None:
        """Copy the vector into the module's parameters, in place: dtype, strides, ties and requires_grad of each stay."""
        vector = self._vector(vector)
        with torch.no_grad():
            for slot, parameter in self._pairs(module):
                parameter.copy_(vector[slot.start : slot.start + slot.size].view(slot.shape))

    def describe_non_finite(self, vector: Tensor) -> str:
        """Which parameters hold values that are not finite, and how many: "w: 1/8 non-finite". "" if all are finite."""
        found = []
        for slot in self.slots:
            bad = slot.size - int(torch.isfinite(vector[slot.start : slot.start + slot.size]).sum().item())
            if bad:
                found.append(f"{slot.name}: {bad}/{slot.size} non-finite")
        return ", ".join(found[:3]) + (f", and {len(found) - 3} more tensors" if len(found) > 3 else "")

    def _pairs(self, module: nn.Module) -> list[tuple[Slot, nn.Parameter]]:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for alias, name in self.ties:
            if parameters.get(alias) is not parameters.get(name):
                raise LayoutError(f"{alias} and {name} are tied in the layout, but not in this module")
        pairs = []
        for slot in self.slots:
            parameter = parameters.get(slot.name)
            if parameter is None:
                raise LayoutError(f"the module has no parameter {slot.name!r}")
            if tuple(parameter.shape) != slot.shape:
                raise LayoutError(f"{slot.name}: shape {tuple(parameter.shape)} in the module, {slot.shape} in the layout")
            pairs.append((slot, parameter))
        return pairs

    def _vector(self, vector: Tensor | None) -> Tensor:
        if vector is None:
            return torch.empty(self.values, dtype=torch.float32)
        if vector.dtype != torch.float32 or vector.dim() != 1 or vector.numel() != self.values or not vector.is_contiguous():
            raise LayoutError(f"need {self.values} contiguous fp32 values, not {vector.dtype} {tuple(vector.shape)}")
        return vector

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def partition(self, codec: Sizing, fragment: int = 0, limit_bytes: int = 1 << 20) -> tuple[Part, ...]:
        """Cut a fragment into parts of at most `limit_bytes` encoded, in order, without gaps; none for an empty fragment.

        A span is cut only at a multiple of the codec's block, so that blocks are the same however the vector is cut.
        """
        block_bytes = codec.encoded_size((codec.block,))
        if block_bytes > limit_bytes:
            raise ValueError(f"a part of {limit_bytes} bytes cannot hold one block of {block_bytes}")
        parts: list[Part] = []
        spans: list[int] = []
        start = position = next((slot.start for slot in self.slots if slot.fragment == fragment), 0)
        room = limit_bytes
        for slot in self.slots:
            if slot.fragment != fragment:
                continue
            left = slot.size
            while left:
                take = left if codec.encoded_size((left,)) <= room else room // block_bytes * codec.block
                if take == 0:
                    parts.append(Part(start, position, tuple(spans)))
                    start, spans, room = position, [], limit_bytes
                    continue
                take = min(take, left)
                spans.append(take)
                room -= codec.encoded_size((take,))
                position += take
                left -= take
        if spans:
            parts.append(Part(start, position, tuple(spans)))
        return tuple(parts)


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "integer"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise LayoutError(f"{value!r} where a name was expected")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise LayoutError(f"{value!r} where a count was expected")
    return value


def _shape(value: Any) -> Shape:
    if not isinstance(value, list):
        raise LayoutError(f"{value!r} where a shape was expected")
    return tuple(_count(size) for size in value)
