"""Between frozen messages and protobuf bytes, by field names: dataclasses are the schema, the .proto files its shape on the wire.

Rule: `unpack` is the wall. Whatever bytes come in, it returns a message that is valid by construction or raises
RemoteProtocolError; sizes are checked before anything is built. `pack` holds us to the same limits and raises LocalProtocolError.
Fields that a newer minor version added are ignored; messages and enum values that this version does not know are refused.

Limits, beyond those of the dataclasses: whole numbers from 0 (versions from -1) to 2^63 - 1; finite floats, except where a diverged
model speaks (`loss`, `bits_per_byte`); digests of 32 bytes; text and lists as below. `plain` does the same for JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import typing
from collections.abc import Callable
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from shoal.protocol.admin import AdminCommand, AdminError, AdminReply
from shoal.protocol.enrolment import LOOK_LIMIT_BYTES
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.protocol.generated import coordinator_pb2, peer_pb2
from shoal.protocol.messages import DIGEST_BYTES, Envelope, FromCoordinator, FromPeer
from shoal.protocol.plain import field_types, union_members

__all__ = [
    "pack",
    "pack_command",
    "pack_message",
    "pack_reply",
    "unpack",
    "unpack_command",
    "unpack_from_coordinator",
    "unpack_from_peer",
    "unpack_message",
    "unpack_reply",
]

T = TypeVar("T")
_Descriptor = Any
"""Of a message or a field: the classes of protobuf's C and Python implementations have no common base."""

MESSAGE_LIMIT_BYTES = 16 << 20
"""Any message. A commit of 10 000 parts with 40 contributors each fits."""
PEER_MESSAGE_LIMIT_BYTES = 4 << 20
"""What a peer may say at once; its largest message lists the parts that it holds."""
TEXT_LIMIT_BYTES = 16 << 10
BYTES_LIMIT = 1 << 10
LIST_LIMIT = 1 << 16
"""Items of one list: parts of an entry, members, commits to catch up."""
_LONG = {"spec": 4 << 20, "certificate": 64 << 10, "ca": 64 << 10, "payload": LOOK_LIMIT_BYTES}
_DIGESTS = {"digest": (DIGEST_BYTES,), "root": (0, DIGEST_BYTES)}
_MAY_DIVERGE = {"loss", "bits_per_byte"}
_WHOLE_MAX = (1 << 63) - 1
_SIGNED = {FieldDescriptor.TYPE_SINT64}


def pack(envelope: Envelope) -> bytes:
    """An envelope as the bytes of one message of the session stream."""
    return pack_message(envelope)


def unpack(data: bytes) -> Envelope:
    """The envelope in one message of the session stream, whoever sent it."""
    return unpack_message(Envelope, data)


def unpack_from_peer(data: bytes) -> Envelope:
    """The envelope that a peer sent; what only a coordinator may say is refused."""
    return _said_by(typing.get_args(FromPeer), "peer", unpack_message(Envelope, data, PEER_MESSAGE_LIMIT_BYTES))


def unpack_from_coordinator(data: bytes) -> Envelope:
    """The envelope that the coordinator sent; what only a peer may say is refused."""
    return _said_by(typing.get_args(FromCoordinator), "coordinator", unpack(data))


def pack_command(command: AdminCommand) -> bytes:
    """An operator's command."""
    return _pack_choice(coordinator_pb2.AdminCommand.DESCRIPTOR, command)


def unpack_command(data: bytes) -> AdminCommand:
    """An operator's command."""
    return cast(AdminCommand, _unpack_choice(coordinator_pb2.AdminCommand.DESCRIPTOR, AdminCommand, data, PEER_MESSAGE_LIMIT_BYTES))


def pack_reply(reply: AdminReply | AdminError) -> bytes:
    """The answer to an operator."""
    return _pack_choice(coordinator_pb2.AdminReply.DESCRIPTOR, reply)


def unpack_reply(data: bytes) -> AdminReply | AdminError:
    """The answer to an operator."""
    kind = AdminReply | AdminError
    return cast(AdminReply | AdminError, _unpack_choice(coordinator_pb2.AdminReply.DESCRIPTOR, kind, data, MESSAGE_LIMIT_BYTES))


def pack_message(message: Any) -> bytes:
    """Any dataclass that a .proto file mirrors."""
    descriptor = _descriptor(_class_of(message))
    proto = GetMessageClass(descriptor)()
    _fill(proto, message)
    return _serialized(proto)


def unpack_message(cls: type[T], data: bytes, limit_bytes: int = MESSAGE_LIMIT_BYTES) -> T:
    """The dataclass `cls` in these bytes."""
    kind: Any = cls
    return cast(T, _build(kind, _parsed(_descriptor(kind), data, limit_bytes)))


def _said_by(kinds: tuple[type, ...], sender: str, envelope: Envelope) -> Envelope:
    if not isinstance(envelope.body, kinds):
        raise RemoteProtocolError(f"a {sender} may not say {type(envelope.body).__name__}")
    return envelope


def _pack_choice(descriptor: _Descriptor, value: Any) -> bytes:
    proto = GetMessageClass(descriptor)()
    choice = getattr(proto, _choice(descriptor, "body", _class_of(value)))
    choice.SetInParent()
    _fill(choice, value)
    return _serialized(proto)


def _unpack_choice(descriptor: _Descriptor, union: Any, data: bytes, limit_bytes: int) -> Any:
    proto = _parsed(descriptor, data, limit_bytes)
    return _build_choice(union_members(union), proto, "body", descriptor.name)


def _class_of(value: Any) -> Any:
    return type(value)


# --- the schema, looked up once -------------------------------------------------------------------------------------------------


@functools.cache
def _descriptor(cls: Any) -> _Descriptor:
    for module in (coordinator_pb2, peer_pb2):
        if found := module.DESCRIPTOR.message_types_by_name.get(cls.__name__):
            return found
    raise LocalProtocolError(f"{cls.__name__} has no form on the wire")


@functools.cache
def _choice(descriptor: _Descriptor, oneof: str, cls: Any) -> str:
    """The name of the oneof's field that carries this class."""
    for field in descriptor.oneofs_by_name[oneof].fields:
        if field.message_type.name == cls.__name__:
            return cast(str, field.name)
    raise LocalProtocolError(f"{descriptor.name} carries no {cls.__name__}")


@dataclasses.dataclass(frozen=True)
class _Field:
    """How one field of a dataclass is written and read."""

    name: str
    write: Callable[[Message, Any], None]
    read: Callable[[Message], Any]


@functools.cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    descriptor = _descriptor(cls)
    return tuple(_field(cls, descriptor, name, kind) for name, kind in field_types(cls).items())


def _field(cls: type, descriptor: _Descriptor, name: str, kind: Any) -> _Field:
    where = f"{cls.__name__}.{name}"
    members = union_members(kind)
    classes = [member for member in members if member is not type(None)]
    if name in descriptor.oneofs_by_name:
        return _Field(name, _write_choice(descriptor, name), lambda proto: _build_choice(tuple(classes), proto, name, where))
    if name not in descriptor.fields_by_name:
        raise LocalProtocolError(f"{where} has no form on the wire", "add it to the .proto file and run make proto")
    field = descriptor.fields_by_name[name]
    if typing.get_origin(kind) is tuple:
        return _list_field(field, name, typing.get_args(kind)[0], where)
    optional = len(classes) < len(members)
    item = classes[0] if members else kind
    if dataclasses.is_dataclass(item):
        return _message_field(name, cast(type, item), optional, where)
    to_wire, from_wire = _scalar(field, name, item, where)
    return _Field(name, lambda proto, value: setattr(proto, name, to_wire(value)), lambda proto: from_wire(getattr(proto, name)))


def _message_field(name: str, item: type, optional: bool, where: str) -> _Field:
    def write(proto: Message, value: Any) -> None:
        if value is None and optional:
            return
        if type(value) is not item:
            raise LocalProtocolError(f"{where} is a {type(value).__name__}, not a {item.__name__}")
        part = getattr(proto, name)
        part.SetInParent()
        _fill(part, value)

    def read(proto: Message) -> Any:
        if proto.HasField(name):
            return _build(item, getattr(proto, name))
        if optional:
            return None
        raise RemoteProtocolError(f"{where} is missing")

    return _Field(name, write, read)


def _list_field(field: _Descriptor, name: str, item: Any, where: str) -> _Field:
    if dataclasses.is_dataclass(item):
        cls = cast(type, item)

        def add(items: Any, value: Any) -> None:
            if type(value) is not cls:
                raise LocalProtocolError(f"{where} holds a {type(value).__name__}, not a {cls.__name__}")
            _fill(items.add(), value)

        def build(value: Any) -> Any:
            return _build(cls, value)
    else:
        to_wire, from_wire = _scalar(field, name, item, where)

        def build(value: Any) -> Any:
            return from_wire(value)

        def add(items: Any, value: Any) -> None:
            items.append(to_wire(value))

    def write(proto: Message, value: Any) -> None:
        _check(len(value) <= LIST_LIMIT, LocalProtocolError, where, f"{len(value)} items; at most {LIST_LIMIT} are allowed")
        items = getattr(proto, name)
        for element in value:
            add(items, element)

    def read(proto: Message) -> Any:
        items = getattr(proto, name)
        _check(len(items) <= LIST_LIMIT, RemoteProtocolError, where, f"{len(items)} items; at most {LIST_LIMIT} are allowed")
        return tuple([build(element) for element in items])

    return _Field(name, write, read)


def _write_choice(descriptor: _Descriptor, oneof: str) -> Callable[[Message, Any], None]:
    def write(proto: Message, value: Any) -> None:
        choice = getattr(proto, _choice(descriptor, oneof, _class_of(value)))
        choice.SetInParent()
        _fill(choice, value)

    return write


def _scalar(field: _Descriptor, name: str, kind: type, where: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How a value that is not a message goes to the wire and comes back; both ways checked alike."""
    if issubclass(kind, enum.Enum):
        return _enum(field, kind, where)
    valid = _validator(field, name, kind)

    def to_wire(value: Any) -> Any:
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise LocalProtocolError(f"{where} is a {type(value).__name__}, not a {kind.__name__}")
        if problem := valid(value):
            raise LocalProtocolError(f"{where}: {problem}")
        return value

    def from_wire(value: Any) -> Any:
        if problem := valid(value):
            raise RemoteProtocolError(f"{where}: {problem}")
        return value

    return to_wire, from_wire


def _validator(field: _Descriptor, name: str, kind: type) -> Callable[[Any], str]:
    """A function that says what is wrong with a value, or ""."""
    if kind is int:
        lowest = -1 if field.type in _SIGNED else 0
        return lambda value: "" if lowest <= value <= _WHOLE_MAX else f"{value} is out of range"
    if kind is float:
        return lambda value: "" if math.isfinite(value) or name in _MAY_DIVERGE else f"{value} is not finite"
    if kind is bytes and name in _DIGESTS:
        sizes = _DIGESTS[name]
        return lambda value: "" if len(value) in sizes else f"{len(value)} bytes, not {DIGEST_BYTES}"
    if kind is bytes:
        limit = _LONG.get(name, BYTES_LIMIT)
        return lambda value: "" if len(value) <= limit else f"{len(value)} bytes; at most {limit} are allowed"
    if kind is str:
        return _text_validator(_LONG.get(name, TEXT_LIMIT_BYTES))
    return lambda value: ""


def _text_validator(limit: int) -> Callable[[str], str]:
    def problem(text: str) -> str:
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            return "not text that UTF-8 can carry"
        return "" if size <= limit else f"{size} bytes; at most {limit} are allowed"

    return problem


def _enum(field: _Descriptor, kind: type[enum.Enum], where: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """By name: member STEPS of StopRule is STOP_RULE_STEPS; number 0 is never a member."""
    ending = {value.name: value.number for value in field.enum_type.values if value.number != 0}
    numbers: dict[enum.Enum, int] = {
        member: number for member in kind for name, number in ending.items() if name.endswith(f"_{member.name}")
    }
    members = {number: member for member, number in numbers.items()}

    def to_wire(value: Any) -> int:
        if not isinstance(value, kind):
            raise LocalProtocolError(f"{where}: {value!r:.80} is no {kind.__name__}")
        return numbers[value]

    def from_wire(value: int) -> enum.Enum:
        if value not in members:
            raise RemoteProtocolError(f"{where}: unknown value {value}", "update shoal on this machine")
        return members[value]

    return to_wire, from_wire


# --- the conversion -------------------------------------------------------------------------------------------------------------


def _fill(proto: Message, message: Any) -> None:
    for field in _fields(_class_of(message)):
        field.write(proto, getattr(message, field.name))


def _build(cls: Any, proto: Message) -> Any:
    values = {field.name: field.read(proto) for field in _fields(cls)}
    try:
        return cls(**values)
    except LocalProtocolError as error:
        raise RemoteProtocolError(f"{cls.__name__}: {error}") from error


def _build_choice(classes: tuple[Any, ...], proto: Message, oneof: str, where: str) -> Any:
    chosen = proto.WhichOneof(oneof)
    if chosen is None:
        raise RemoteProtocolError(f"{where}: nothing that this version knows", "update shoal on this machine")
    value = getattr(proto, chosen)
    for cls in classes:
        if cls.__name__ == value.DESCRIPTOR.name:
            return _build(cls, value)
    raise RemoteProtocolError(f"{where}: unexpected {value.DESCRIPTOR.name}")


def _serialized(proto: Message) -> bytes:
    try:
        data = proto.SerializeToString()
    except (EncodeError, UnicodeError, ValueError) as error:
        raise LocalProtocolError(f"{proto.DESCRIPTOR.name} cannot be written: {error}") from error
    _check(len(data) <= MESSAGE_LIMIT_BYTES, LocalProtocolError, proto.DESCRIPTOR.name, f"{len(data)} bytes are too many")
    return data


def _parsed(descriptor: _Descriptor, data: bytes, limit_bytes: int) -> Message:
    _check(len(data) <= limit_bytes, RemoteProtocolError, descriptor.name, f"{len(data)} bytes; at most {limit_bytes} are allowed")
    proto = GetMessageClass(descriptor)()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"{descriptor.name}: malformed bytes") from error
    return proto


def _check(allowed: bool, error: type[ShoalError], where: str, problem: str) -> None:
    if not allowed:
        raise error(f"{where}: {problem}")
