"""Frozen dataclasses as plain JSON-able values and back: the form of the journal, of `--json` and of the vault's small files.

Rule: the type hints are the schema. `from_plain` builds nothing that they do not allow: an unknown, missing or ill-typed field is a
`RemoteProtocolError` that names the path to it. Neighbour: `wire` does the same for protobuf.

How values look:

- a dataclass is an object of its fields; at the top, and wherever the declared type is a union of dataclasses, it carries its class
  name under "type";
- an enum is its value, bytes are hex, tuples are lists, frozensets are sorted lists;
- a float that JSON cannot write is "nan", "inf" or "-inf".

A field with a default may be absent, so that an old journal stays readable when a record gains a field.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from typing import Any, TypeVar, cast

from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError

T = TypeVar("T")
TAG = "type"
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """The resolved type of every field of a dataclass, in order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def required_fields(cls: type) -> frozenset[str]:
    """Fields without a default."""
    missing = dataclasses.MISSING
    return frozenset(f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing)


@functools.cache
def union_members(kind: Any) -> tuple[Any, ...]:
    """The members of a union type, None included as `NoneType`; empty for any other type."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return typing.get_args(kind)
    return ()


def to_plain(value: Any) -> Any:
    """Dicts, lists, strings, numbers, booleans and None that say the same as `value`, a dataclass instance or a field's value."""
    return _to_plain(value, tagged=True)


def _to_plain(value: Any, tagged: bool) -> Any:
    match value:
        case None | bool() | str():
            return value
        case enum.Enum():
            return value.value
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case tuple() | list():
            return [_to_plain(item, tagged) for item in value]
        case frozenset() | set():
            return sorted(_to_plain(item, tagged) for item in value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            plain: dict[str, Any] = {TAG: type(value).__name__} if tagged else {}
            for name, kind in field_types(type(value)).items():
                plain[name] = _to_plain(getattr(value, name), _needs_tag(kind))
            return plain
        case _:
            raise LocalProtocolError(f"a {type(value).__name__} has no plain form")


@functools.cache
def _needs_tag(kind: Any) -> bool:
    """Whether a value of this declared type could be of more than one dataclass."""
    members = [member for member in union_members(kind) if dataclasses.is_dataclass(member)]
    return len(members) > 1 or any(_needs_tag(arg) for arg in typing.get_args(kind) if not union_members(kind))


def from_plain(cls: type[T], data: Any) -> T:
    """The value of type `cls` (a dataclass, or a union of them) that `data` describes. Raises RemoteProtocolError."""
    return cast(T, _from_plain(cls, data, "value"))


def _from_plain(kind: Any, data: Any, where: str) -> Any:
    if members := union_members(kind):
        return _union(members, data, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(cast(type, kind), data, where)
    origin = typing.get_origin(kind)
    if origin in (tuple, frozenset):
        return _sequence(origin, typing.get_args(kind), data, where)
    if isinstance(kind, type):
        return _scalar(kind, data, where)
    raise LocalProtocolError(f"{where}: no plain form for type {kind}")


def _union(members: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in members:
        return None
    classes = [member for member in members if member is not type(None)]
    if len(classes) == 1:
        return _from_plain(classes[0], data, where)
    if not isinstance(data, dict) or TAG not in data:
        raise RemoteProtocolError(f'{where}: no "{TAG}" says which kind of object this is')
    for cls in classes:
        if cls.__name__ == data[TAG]:
            return _from_plain(cls, data, where)
    raise RemoteProtocolError(f"{where}: unknown type {data[TAG]!r:.80}")


def _dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise RemoteProtocolError(f"{where}: {cls.__name__} expected, found {type(data).__name__}")
    if data.get(TAG, cls.__name__) != cls.__name__:
        raise RemoteProtocolError(f"{where}: {cls.__name__} expected, found {data[TAG]!r:.80}")
    fields = field_types(cls)
    if unknown := [name for name in data if name not in fields and name != TAG]:
        raise RemoteProtocolError(f"{where}: {cls.__name__} has no field {unknown[0]!r:.80}")
    if missing := required_fields(cls) - data.keys():
        raise RemoteProtocolError(f"{where}: {cls.__name__} lacks {min(missing)!r}")
    values = {name: _from_plain(kind, data[name], f"{where}.{name}") for name, kind in fields.items() if name in data}
    try:
        return cls(**values)
    except LocalProtocolError as error:
        raise RemoteProtocolError(f"{where}: {error}") from error


def _sequence(origin: type, args: tuple[Any, ...], data: Any, where: str) -> Any:
    if not isinstance(data, list | tuple):
        raise RemoteProtocolError(f"{where}: list expected, found {type(data).__name__}")
    if origin is tuple and args[-1] is not Ellipsis:
        if len(data) != len(args):
            raise RemoteProtocolError(f"{where}: {len(args)} items expected, found {len(data)}")
        return tuple(_from_plain(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(args, data, strict=True)))
    return origin(_from_plain(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))


def _scalar(kind: type, data: Any, where: str) -> Any:
    if issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            raise RemoteProtocolError(f"{where}: {data!r:.80} is no {kind.__name__}") from None
    if kind is bytes and isinstance(data, str):
        try:
            return bytes.fromhex(data)
        except ValueError:
            raise RemoteProtocolError(f"{where}: not hexadecimal") from None
    if kind is float:
        if isinstance(data, str) and data in _NON_FINITE:
            return _NON_FINITE[data]
        if isinstance(data, int | float) and not isinstance(data, bool):
            try:
                return float(data)
            except OverflowError:
                raise RemoteProtocolError(f"{where}: number out of range") from None
    elif kind is not bytes and type(data) is kind:
        return data
    raise RemoteProtocolError(f"{where}: {kind.__name__} expected, found {type(data).__name__}")
