"""Every message survives the wire; nothing else gets through it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import typing
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shoal.protocol import admin, enrolment, messages, transfers, wire
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocol.generated import coordinator_pb2, peer_pb2
from shoal.protocol.messages import (
    FASTEST_BYTES_S,
    BuildOrigin,
    CatchUp,
    Commit,
    Decision,
    Envelope,
    Finish,
    FromCoordinator,
    FromPeer,
    Have,
    Heartbeat,
    Held,
    Hello,
    Open,
    Section,
    Span,
    StateReady,
    Welcome,
)
from shoal.protocol.plain import field_types, union_members

WHOLE = st.integers(0, 2**63 - 1)
DIGEST = st.binary(min_size=32, max_size=32)
SIGNED_NAMES = {"version", "base", "evaluated_version"}
SIGNED_OTHERS = {("Heartbeat", "round"), ("Status", "round")}
"""Besides versions, what may be -1 for "none"."""
BODIES = typing.get_args(FromPeer) + typing.get_args(FromCoordinator)
OTHERS = tuple(
    cls for module in (enrolment, transfers) for cls in vars(module).values() if getattr(cls, "__module__", "") == module.__name__
)


def values(kind: Any, name: str, signed: bool = False) -> st.SearchStrategy[Any]:
    """Everything that the wire promises to carry in a field of this name and type."""
    members = union_members(kind)
    if members:
        return st.one_of([st.none() if member is type(None) else values(member, name) for member in members])
    if typing.get_origin(kind) is tuple:
        return st.lists(values(typing.get_args(kind)[0], name), max_size=3).map(tuple)
    if kind is Span:
        return st.tuples(st.integers(0, 2**62), st.integers(1, 2**62)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))
    if dataclasses.is_dataclass(kind):
        return instances(kind)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-1, 2**63 - 1) if signed else WHOLE
    if kind is float and name in ("up_bytes_s", "down_bytes_s"):
        return st.floats(0, FASTEST_BYTES_S)
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=name in ("loss", "bits_per_byte"))
    if kind is bytes:
        return {"digest": DIGEST, "root": DIGEST | st.just(b"")}.get(name, st.binary(max_size=64))
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def is_signed(cls: Any, name: str) -> bool:
    return name in SIGNED_NAMES or (cls.__name__, name) in SIGNED_OTHERS


def instances(cls: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: values(kind, name, is_signed(cls, name)) for name, kind in field_types(cls).items()})


def envelopes() -> st.SearchStrategy[Envelope]:
    return st.builds(Envelope, WHOLE, WHOLE, st.one_of([instances(body) for body in BODIES]))


QUICK = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
THOROUGH = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("body", BODIES, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_as_it_went(body: Any) -> None:
    @QUICK
    @given(WHOLE, WHOLE, instances(body))
    def check(session: int, term: int, message: Any) -> None:
        envelope = Envelope(session, term, message)
        assert wire.unpack(wire.pack(envelope)) == envelope

    check()


@pytest.mark.parametrize("command", typing.get_args(admin.AdminCommand), ids=lambda cls: cls.__name__)
def test_every_command_comes_back_as_it_went(command: Any) -> None:
    @QUICK
    @given(instances(command))
    def check(value: Any) -> None:
        assert wire.unpack_command(wire.pack_command(value)) == value

    check()


@pytest.mark.parametrize("reply", [*typing.get_args(admin.AdminReply), admin.AdminError], ids=lambda cls: cls.__name__)
def test_every_reply_comes_back_as_it_went(reply: Any) -> None:
    @QUICK
    @given(instances(reply))
    def check(value: Any) -> None:
        assert wire.unpack_reply(wire.pack_reply(value)) == value

    check()


@pytest.mark.parametrize("cls", OTHERS, ids=lambda cls: cls.__name__)
def test_every_single_message_comes_back_as_it_went(cls: Any) -> None:
    @QUICK
    @given(instances(cls))
    def check(value: Any) -> None:
        assert wire.unpack_message(cls, wire.pack_message(value)) == value

    check()


UNPACKERS = [
    wire.unpack,
    wire.unpack_from_peer,
    wire.unpack_from_coordinator,
    wire.unpack_command,
    wire.unpack_reply,
    *[lambda data, cls=cls: wire.unpack_message(cls, data) for cls in OTHERS],
]


@pytest.mark.parametrize("unpack", UNPACKERS)
def test_random_bytes_give_a_message_or_a_remote_protocol_error(unpack: Any) -> None:
    @THOROUGH
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        with contextlib.suppress(RemoteProtocolError):
            unpack(data)

    check()


@THOROUGH
@given(envelopes(), st.data())
def test_a_damaged_message_gives_a_message_or_a_remote_protocol_error(envelope: Envelope, data: st.DataObject) -> None:
    damaged = bytearray(wire.pack(envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        again = wire.unpack(bytes(damaged))
    except RemoteProtocolError:
        return
    repacked = wire.pack(again)
    assert wire.pack(wire.unpack(repacked)) == repacked, "what came through is itself valid"


@THOROUGH
@given(st.recursive(st.integers() | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@example({"type": "Commit"})
def test_nothing_but_dataclasses_can_be_packed(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        wire.pack(value)


def mirrored() -> list[Any]:
    found = []
    for module in (messages, admin, enrolment, transfers):
        found += [cls for cls in vars(module).values() if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__]
    return found


@pytest.mark.parametrize("cls", mirrored(), ids=lambda cls: cls.__name__)
def test_a_dataclass_and_its_proto_message_have_the_same_fields(cls: Any) -> None:
    file = peer_pb2 if cls.__module__ == transfers.__name__ else coordinator_pb2
    descriptor: Any = file.DESCRIPTOR.message_types_by_name[cls.__name__]
    expected = set(field_types(cls))
    if cls is Envelope:
        assert {field.message_type.name for field in descriptor.oneofs_by_name["body"].fields} == {body.__name__ for body in BODIES}
        expected -= {"body"}
        expected |= {field.name for field in descriptor.oneofs_by_name["body"].fields}
    assert {field.name for field in descriptor.fields} == expected
    signed = {field.name for field in descriptor.fields if field.type == FieldDescriptor.TYPE_SINT64}
    assert signed == {name for name, kind in field_types(cls).items() if kind is int and is_signed(cls, name)}


def test_the_unions_of_commands_and_replies_are_complete() -> None:
    for name, union in (("AdminCommand", admin.AdminCommand), ("AdminReply", admin.AdminReply | admin.AdminError)):
        fields: Any = coordinator_pb2.DESCRIPTOR.message_types_by_name[name].oneofs_by_name["body"].fields
        assert {field.message_type.name for field in fields} == {cls.__name__ for cls in typing.get_args(union)}


def test_a_peer_may_not_speak_as_the_coordinator_nor_the_other_way_round() -> None:
    from_peer, from_coordinator = wire.pack(Envelope(1, 1, Heartbeat())), wire.pack(Envelope(1, 1, Finish(3, "done")))
    assert wire.unpack_from_peer(from_peer).body == Heartbeat()
    assert wire.unpack_from_coordinator(from_coordinator).body == Finish(3, "done")
    with pytest.raises(RemoteProtocolError, match="a peer may not say Finish"):
        wire.unpack_from_peer(from_coordinator)
    with pytest.raises(RemoteProtocolError, match="a coordinator may not say Heartbeat"):
        wire.unpack_from_coordinator(from_peer)


def test_an_empty_envelope_and_an_unknown_body_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="nothing that this version knows"):
        wire.unpack(b"")
    with pytest.raises(RemoteProtocolError, match="nothing that this version knows"):
        wire.unpack(bytes([0xFA, 0x7F, 0]))  # field 2047, length-delimited, empty
    with pytest.raises(RemoteProtocolError, match="nothing"):
        wire.unpack_command(b"")


def test_fields_of_a_newer_minor_version_are_ignored() -> None:
    data = wire.pack(Envelope(7, 8, BuildOrigin()))
    assert wire.unpack(data + bytes([0x98, 0x06, 5])) == Envelope(7, 8, BuildOrigin())  # field 99, varint


def test_a_missing_message_is_refused_unless_it_is_optional() -> None:
    proto = coordinator_pb2.Envelope()
    proto.state_ready.version = 3
    with pytest.raises(RemoteProtocolError, match=r"StateReady\.layout is missing"):
        wire.unpack(proto.SerializeToString())
    hello = coordinator_pb2.Envelope()
    hello.hello.run = "r"
    body = wire.unpack(hello.SerializeToString()).body
    assert isinstance(body, Hello)
    assert body.layout is None


def refused(proto: Any, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        wire.unpack(proto.SerializeToString())


def test_numbers_out_of_range_are_refused() -> None:
    proto = coordinator_pb2.Envelope()
    proto.ready.round = 2**63
    refused(proto, r"Ready\.round: 9223372036854775808 is out of range")
    proto = coordinator_pb2.Envelope()
    proto.applied.version = -2
    refused(proto, r"Applied\.version: -2 is out of range")
    proto = coordinator_pb2.Envelope(session=2**64 - 1)
    proto.build_origin.SetInParent()
    refused(proto, "session")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_a_loss_may_be_non_finite(value: float) -> None:
    body = wire.unpack(wire.pack(Envelope(1, 1, Heartbeat(loss=value)))).body
    assert isinstance(body, Heartbeat)
    assert repr(body.loss) == repr(value)
    with pytest.raises(LocalProtocolError, match="not finite"):
        wire.pack(Envelope(1, 1, Heartbeat(tokens_per_s=value)))
    proto = coordinator_pb2.Envelope()
    proto.part_closed.key.section = coordinator_pb2.SECTION_PARAMETERS
    proto.part_closed.digest = bytes(32)
    proto.part_closed.divisor = value
    refused(proto, r"PartClosed\.divisor: .* is not finite")


def test_unknown_and_unspecified_sections_are_refused() -> None:
    for number in (0, 3, 77):
        proto: Any = coordinator_pb2.Envelope()
        proto.have.items.add(section=number, digest=bytes(32))
        refused(proto, f"unknown value {number}")


def test_values_that_the_dataclass_refuses_are_the_senders_fault() -> None:
    proto: Any = coordinator_pb2.Envelope()
    proto.open.stop = 1
    proto.open.lease.add(start=5, stop=5)
    refused(proto, "empty or negative span 5..5")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_digests_have_32_bytes(size: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"{size} bytes, not 32"):
        wire.pack(Envelope(1, 1, Have(1, (Held(Section.BUFFERS, 0, 0, bytes(size)),))))


def test_sizes_are_bounded_both_ways() -> None:
    with pytest.raises(LocalProtocolError, match=r"Heartbeat\.phase: 16385 bytes"):
        wire.pack(Envelope(1, 1, Heartbeat(phase="x" * 16385)))
    with pytest.raises(LocalProtocolError, match="16386 bytes"):
        wire.pack(Envelope(1, 1, Heartbeat(phase="é" * 8193)))
    proto = coordinator_pb2.Envelope()
    proto.heartbeat.phase = "x" * 16385
    refused(proto, "at most 16384 are allowed")
    proto = coordinator_pb2.Envelope()
    for _ in range((1 << 16) + 1):
        proto.donors.contacts.add()
    refused(proto, "65537 items; at most 65536 are allowed")
    with pytest.raises(RemoteProtocolError, match="at most 16777216"):
        wire.unpack(bytes((16 << 20) + 1))
    with pytest.raises(RemoteProtocolError, match="at most 4194304"):
        wire.unpack_from_peer(bytes((4 << 20) + 1))
    spec = bytes(range(256)) * 1024
    welcome = Envelope(1, 1, Welcome(1, 1, False, -1, spec, 2.0, 10.0))
    assert wire.unpack(wire.pack(welcome)) == welcome, "a run spec may be long"


def test_wrong_types_are_our_own_fault() -> None:
    for body in (Heartbeat(phase=3), Heartbeat(steps="3"), Heartbeat(steps=True), Heartbeat(loss="x"), StateReady(1, b"", None)):  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError):
            wire.pack(Envelope(1, 1, body))
    with pytest.raises(LocalProtocolError, match="carries no Span"):
        wire.pack(Envelope(1, 1, Span(1, 2)))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        wire.pack(Envelope(1, 1, Heartbeat(phase="\ud800")))


def test_a_large_commit_fits_into_one_message() -> None:
    peers = tuple(f"{i:032x}" for i in range(40))
    parts = tuple(Decision(Section.PARAMETERS, i, 0, i.to_bytes(32, "big"), peers, 1.5) for i in range(5000))
    envelope = Envelope(1, 1, CatchUp((Commit(1, 1, 0, 0, 0, parts, 5, 0.7, 0.9),), ()))
    assert wire.unpack(wire.pack(envelope)) == envelope


def test_an_open_round_keeps_the_order_of_its_lease() -> None:
    lease = (Span(50, 60), Span(0, 10), Span(20, 21))
    envelope = Envelope(1, 1, Open(1, 0, 0, 0, lease, 4, 0, 100, 2))
    body = wire.unpack(wire.pack(envelope)).body
    assert isinstance(body, Open)
    assert body.lease == lease


@pytest.mark.parametrize("rate", [-1.0, 1e13, float("inf"), float("nan")])
def test_a_link_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(LocalProtocolError):
        Heartbeat("training", up_bytes_s=rate)
