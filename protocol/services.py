"""The methods that cross the network: their paths, from the descriptors, and how to call and serve them.

Rule: gRPC sees bytes only. Messages are packed and unpacked here or, on streams, by whoever reads them, so that malformed bytes
become a `RemoteProtocolError` in our hands and not a traceback in gRPC's; bulk bytes are never copied by a serializer.

    ENROL, LOOK, RENEW,
    ADMIN, PING                 one message each way: `await ADMIN.call(channel, GetStatus(), timeout_s=10)`
    SESSION                     a stream of packed envelopes each way (wire.pack, wire.unpack_from_...): `SESSION.stub(channel)`
    REDUCE                      a stream of frames each way
    FETCH_PART, FETCH_STATE     a packed request, then a stream of raw bytes
    PUSH                        packed requests one way, raw bytes the other

Serving: `handlers(ENROL.serve(enrol))` gives generic handlers for `server.add_generic_rpc_handlers`, where `enrol` is
`async (request, context) -> reply` for the first group and takes and yields bytes for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
import grpc.aio

from shoal.protocol import wire
from shoal.protocol.admin import AdminCommand, AdminError, AdminReply
from shoal.protocol.enrolment import Enrol, Enrolled, Look, Looked, Renew
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.generated import coordinator_pb2, peer_pb2
from shoal.protocol.transfers import PartRequest, Ping, Pong, StateRequest

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Served(NamedTuple):
    """A method and what answers it, for `handlers`."""

    path: str
    handler: grpc.RpcMethodHandler[Any, Any]


@dataclass(frozen=True)
class UnaryMethod(Generic[Request, Reply]):
    """One message each way."""

    path: str
    pack_request: Callable[[Request], bytes]
    unpack_request: Callable[[bytes], Request]
    pack_reply: Callable[[Reply], bytes]
    unpack_reply: Callable[[bytes], Reply]

    async def call(self, channel: grpc.aio.Channel, request: Request, timeout_s: float) -> Reply:
        """The reply. Raises grpc.aio.AioRpcError as gRPC does, and RemoteProtocolError for a reply that is none."""
        reply: bytes = await _raw(channel).unary_unary(self.path)(self.pack_request(request), timeout=timeout_s)
        return self.unpack_reply(reply)

    def serve(self, behaviour: Callable[[Request, Any], Awaitable[Reply]]) -> Served:
        """A handler that refuses malformed requests (INVALID_ARGUMENT) before `behaviour` is asked."""

        async def answer(data: bytes, context: Any) -> bytes:
            try:
                request = self.unpack_request(data)
            except RemoteProtocolError as error:
                return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))  # type: ignore[no-any-return]
            return self.pack_reply(await behaviour(request, context))

        return Served(self.path, grpc.unary_unary_rpc_method_handler(answer))


@dataclass(frozen=True)
class DownloadMethod(Generic[Request]):
    """A message, answered with a stream of raw bytes."""

    path: str
    pack_request: Callable[[Request], bytes]
    unpack_request: Callable[[bytes], Request]

    def open(self, channel: grpc.aio.Channel, request: Request, timeout_s: float | None = None) -> Any:
        """The running call: iterate over it for `bytes`, `cancel()` it to stop."""
        return _raw(channel).unary_stream(self.path)(self.pack_request(request), timeout=timeout_s)

    def serve(self, behaviour: Callable[[Request, Any], AsyncGenerator[bytes]], progress_s: float) -> Served:
        """A handler that refuses malformed requests (INVALID_ARGUMENT) before `behaviour` is asked, and ends a download of which
        nothing is taken for `progress_s` (DEADLINE_EXCEEDED), so that whoever stops reading holds nothing here."""

        async def answer(data: bytes, context: Any) -> None:
            try:
                request = self.unpack_request(data)
            except RemoteProtocolError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                return
            try:
                async with aclosing(behaviour(request, context)) as chunks:
                    async for chunk in chunks:
                        async with asyncio.timeout(progress_s):
                            await context.write(chunk)
            except TimeoutError:  # the status, too, waits until somebody reads or the connection ends; but nothing else does
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"nothing was taken for {progress_s:g} s")

        return Served(self.path, grpc.unary_stream_rpc_method_handler(answer))


@dataclass(frozen=True)
class StreamMethod:
    """Bytes both ways for as long as both like."""

    path: str

    def stub(self, channel: grpc.aio.Channel) -> Any:
        """The multi-callable: `stub()` opens a call with `read`, `write`, `done_writing`, `cancel`."""
        return _raw(channel).stream_stream(self.path)

    def serve(self, behaviour: Callable[..., Any]) -> Served:
        """`behaviour(requests, context)`: an async generator of bytes, or a coroutine that uses the context's read and write."""
        return Served(self.path, grpc.stream_stream_rpc_method_handler(behaviour))


Behaviour = Callable[[Any, Any], Awaitable[Any]]
"""What answers a call: `await behaviour(request, context)`; for streams, the request is an iterator that need not be used."""


def around(served: Served, wrapper: Callable[[Behaviour, Any, Any], Awaitable[Any]]) -> Served:
    """The same method, answered by `wrapper(behaviour, request, context)`. Behaviours must be coroutines."""
    for kind in ("unary_unary", "unary_stream", "stream_stream"):
        behaviour = getattr(served.handler, kind)
        if behaviour is not None:

            async def answer(request: Any, context: Any, behaviour: Behaviour = behaviour) -> Any:
                return await wrapper(behaviour, request, context)

            return Served(served.path, getattr(grpc, f"{kind}_rpc_method_handler")(answer))
    raise ValueError(f"{served.path} has no behaviour")


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(handler_call_details.method)


def handlers(*served: Served) -> tuple[Any, ...]:
    """What `server.add_generic_rpc_handlers` wants. Methods that are not served answer UNIMPLEMENTED."""
    return (_Handlers(dict(served)),)


def _raw(channel: grpc.aio.Channel) -> Any:
    """The channel as it is: without serializers it takes and gives bytes, which its type stubs do not say."""
    return channel


def _path(file: Any, service: str, method: str) -> str:
    found = file.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    return f"/{found.containing_service.full_name}/{found.name}"


def _unpacker(cls: type[Request]) -> Callable[[bytes], Request]:
    return lambda data: wire.unpack_message(cls, data)


ENROL: UnaryMethod[Enrol, Enrolled] = UnaryMethod(
    _path(coordinator_pb2, "Enrolment", "Enrol"), wire.pack_message, _unpacker(Enrol), wire.pack_message, _unpacker(Enrolled)
)
LOOK: UnaryMethod[Look, Looked] = UnaryMethod(
    _path(coordinator_pb2, "Enrolment", "Look"), wire.pack_message, _unpacker(Look), wire.pack_message, _unpacker(Looked)
)
RENEW: UnaryMethod[Renew, Enrolled] = UnaryMethod(
    _path(coordinator_pb2, "Coordinator", "Renew"), wire.pack_message, _unpacker(Renew), wire.pack_message, _unpacker(Enrolled)
)
ADMIN: UnaryMethod[AdminCommand, AdminReply | AdminError] = UnaryMethod(
    _path(coordinator_pb2, "Coordinator", "Admin"), wire.pack_command, wire.unpack_command, wire.pack_reply, wire.unpack_reply
)
SESSION = StreamMethod(_path(coordinator_pb2, "Coordinator", "Session"))
SESSION_OPEN = (("shoal-session", "open"),)
"""Initial metadata of a session stream that is served. A call that failed has none, and looks alike otherwise until it is read."""
REDUCE = StreamMethod(_path(peer_pb2, "Peer", "Reduce"))
PUSH = StreamMethod(_path(peer_pb2, "Peer", "Push"))
FETCH_PART: DownloadMethod[PartRequest] = DownloadMethod(
    _path(peer_pb2, "Peer", "FetchPart"), wire.pack_message, _unpacker(PartRequest)
)
FETCH_STATE: DownloadMethod[StateRequest] = DownloadMethod(
    _path(peer_pb2, "Peer", "FetchState"), wire.pack_message, _unpacker(StateRequest)
)
PING: UnaryMethod[Ping, Pong] = UnaryMethod(
    _path(peer_pb2, "Peer", "Ping"), wire.pack_message, _unpacker(Ping), wire.pack_message, _unpacker(Pong)
)
