"""Addresses, options and limits of connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.channels import (
    Kind,
    Options,
    channel_options,
    join_address,
    listen,
    new_server,
    open_channel,
    server_options,
    split_address,
    target,
)
from shoal.protocol.errors import AddressError, ListenError, UnreachableError
from shoal.protocol.services import REDUCE, handlers


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("example.org:50051", "example.org", 50051),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("[::1]:50051", "::1", 50051),
        ("[2001:DB8:0::5]:7", "2001:db8::5", 7),
        ("coordinator_1:65535", "coordinator_1", 65535),
        ("0.0.0.0:0", "0.0.0.0", 0),
    ],
)
def test_addresses_are_split_and_joined(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("::1:50051", r'IPv6 needs brackets: write "\[::1\]:50051"'),
        ("2001:db8::5", 'IPv6 needs brackets|add the port: write "\\[2001:db8::5\\]:50051"'),
        ("[::1]", r'add the port: write "\[::1\]:50051"'),
        ("example.org", 'add the port: write "example.org:50051"'),
        ("https://example.org:5", 'leave out "https://"'),
        ("example.org:70000", "ports end at 65535"),
        ("[example]:5", "no IPv6 address between its brackets"),
        ("unix:/var/run/docker.sock", "is not an address"),
        ("dns:///example.org:5", "leave out"),
        ("a b:5", "no valid host name"),
        (":5", "no valid host name"),
        ("a..b:5", "no valid host name"),
        ("host:", "is not an address"),
        ("host:٣", "is not an address"),
        ("host:5\n", "is not an address"),
        ("x" * 300 + ":5", "too long"),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(address: str, hint: str) -> None:
    with pytest.raises(AddressError, match=hint):
        split_address(address)


@given(st.text(max_size=30) | st.from_regex(r"[a-z0-9.:\[\]/-]{1,30}", fullmatch=True))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        host, port = split_address(text)
    except AddressError:
        return
    assert 0 <= port <= 65535
    assert "/" not in host
    assert split_address(join_address(host, port)) == (host, port)


def test_a_target_is_a_host_and_a_port_and_nothing_else() -> None:
    assert target("example.org:5") == "dns:///example.org:5"
    assert target("[::1]:5") == "dns:///[::1]:5"
    with pytest.raises(UnreachableError, match="port 0"):
        target("example.org:0")


@pytest.mark.parametrize("kind", list(Kind))
def test_what_one_side_may_send_the_other_accepts(kind: Kind) -> None:
    client, server = dict(channel_options(kind, "name")), dict(server_options(kind))
    assert client["grpc.max_send_message_length"] == server["grpc.max_receive_message_length"]
    assert server["grpc.max_send_message_length"] == client["grpc.max_receive_message_length"]
    assert client["grpc.enable_http_proxy"] == 0
    assert client["grpc.ssl_target_name_override"] == "name"


async def silent(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Answers each frame; between two of them it is as silent as its caller."""
    async for frame in requests:
        yield frame


class Link:
    """A TCP relay whose cable can be cut: from then on both ends hear nothing, and no connection is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.cut = False
        self.small_packets = 0
        """Packets of 17 bytes from the client, which is the size of an HTTP/2 ping."""

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        self._tasks.add(asyncio.create_task(self._pump(reader, far_writer, 1)))
        self._tasks.add(asyncio.create_task(self._pump(far_reader, writer, 0)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: int) -> None:
        while data := await reader.read(1 << 16):
            self.small_packets += counted * (len(data) == 17)
            if not self.cut:
                writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def echoing(settings: Options, silence_s: float = 1.0, timeout_s: float = 5.0) -> AsyncIterator[tuple[Any, Link]]:
    """An open stream over a link, from a client that pings after `silence_s` to a server with these settings."""
    server = grpc.aio.server(options=settings)
    server.add_generic_rpc_handlers(handlers(REDUCE.serve(silent)))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = channel_options(Kind.BULK, "unused", silence_s, timeout_s)
    try:
        async with Link(port) as link, grpc.aio.insecure_channel(f"127.0.0.1:{link.port}", options=options) as channel:
            call = REDUCE.stub(channel)(timeout=30)
            await call.write(b"first")
            assert await call.read() == b"first"
            yield call, link
            call.cancel()
    finally:
        await server.stop(0)


async def test_keepalive_is_never_taken_for_abuse() -> None:
    """A silent stream is pinged again and again: a server with gRPC's own settings ends the connection, ours does not."""

    ended = asyncio.Event()

    async def survives(settings: Options, patience_s: float, until: asyncio.Event | None = None) -> tuple[str, int]:
        async with echoing(settings) as (call, link):
            reading = asyncio.ensure_future(call.read())
            over = asyncio.ensure_future(until.wait() if until is not None else asyncio.sleep(patience_s))
            done, _ = await asyncio.wait([reading, over], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            ended.set()
            if reading in done:
                assert isinstance(reading.exception(), grpc.aio.AioRpcError)
                return await call.details(), link.small_packets
            await call.write(b"second")
            assert await reading == b"second"
            return "alive", link.small_packets

    # The strict server's end is the sign that enough pings were sent; on a busy machine that takes longer.
    theirs: Options = [("grpc.so_reuseport", 0)]
    (ours, pings), (strict, _) = await asyncio.gather(survives(server_options(Kind.BULK), 30.0, ended), survives(theirs, 30.0))
    assert ours == "alive"
    assert pings >= 3
    assert "too many pings" in strict.lower().replace("_", " "), "so many pings are abuse where nobody permits them"


async def test_a_cut_cable_is_noticed_within_the_keepalive_times() -> None:
    async with echoing(server_options(Kind.BULK), silence_s=1.0, timeout_s=0.5) as (call, link):
        link.cut = True
        async with asyncio.timeout(6):
            with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
                await call.read()


async def test_a_port_is_never_shared_and_a_taken_one_is_an_error() -> None:
    import datetime

    from shoal.protocol.authority import Authority
    from shoal.protocol.identity import Identity
    from shoal.protocol.tls import Credential, server_credentials

    authority, mine = Authority.generate("shoal"), Identity.generate()
    certificate = authority.issue(mine.tls_public_key, mine.peer_id, ["peer"], datetime.timedelta(hours=1))
    credentials = server_credentials(Credential(mine.tls_key_pem, certificate, authority.ca_pem))
    first, second = new_server(Kind.SESSION), new_server(Kind.SESSION)
    port = listen(first, "127.0.0.1:0", credentials)
    await first.start()
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port} — another program has the port"):
        listen(second, f"127.0.0.1:{port}", credentials)
    await first.stop(0)


async def test_a_closed_channel_leaves_no_connection_behind() -> None:
    """Each channel is one connection of its own, gone when the channel is."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    server.settimeout(5)
    connections = []
    for _ in range(2):
        channel = open_channel(Kind.BULK, f"127.0.0.1:{port}", grpc.ssl_channel_credentials(), "x")
        channel.get_state(try_to_connect=True)
        connections.append((await asyncio.to_thread(server.accept))[0])
        await channel.close()
    for connection in connections:
        connection.settimeout(5)
        received = await asyncio.to_thread(connection.recv, 1 << 16)
        while received:
            try:
                received = await asyncio.to_thread(connection.recv, 1 << 16)
            except (ConnectionResetError, ssl.SSLError):
                break
        connection.close()
    server.close()


def test_a_ping_may_wait_behind_bulk_bytes_on_a_slow_link_and_not_on_a_session() -> None:
    for options in (lambda kind: channel_options(kind, "name"), server_options):
        told = {kind: dict(options(kind)) for kind in Kind}
        for name in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
            assert told[Kind.BULK][name] == 60_000
            assert told[Kind.SESSION][name] == told[Kind.ENROLMENT][name] == 10_000
