"""Mutual TLS over loopback, for real: who comes in, who does not, and as whom."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

from shoal.protocol.authority import Authority, coordinator_name
from shoal.protocol.channels import Kind, listen, new_server, open_channel
from shoal.protocol.errors import IdentityError
from shoal.protocol.identity import Identity
from shoal.protocol.services import ENROL, FETCH_PART, PING, REDUCE, handlers
from shoal.protocol.tls import (
    Caller,
    Credential,
    Renewal,
    caller_of,
    client_credentials,
    enrolment_credentials,
    server_credentials,
)
from shoal.protocol.transfers import PartRequest, Ping, Pong

HOUR = datetime.timedelta(hours=1)
NOW = datetime.datetime.now(datetime.UTC)


def credential(
    authority: Authority, *rights: str, name: str = "", trusts: Authority | None = None, not_before: datetime.datetime | None = None
) -> Credential:
    identity = Identity.generate()
    certificate = authority.issue(identity.tls_public_key, name or identity.peer_id, rights or ("peer",), HOUR, not_before)
    return Credential(identity.tls_key_pem, certificate, (trusts or authority).ca_pem)


@dataclass
class Running:
    """A server that answers Ping with the caller's name, and remembers who called."""

    authority: Authority
    credential: Credential
    port: int
    callers: list[Caller]

    @property
    def name(self) -> str:
        return self.credential.owner.peer

    async def ping(self, credentials: grpc.ChannelCredentials, name: str = "", host: str = "127.0.0.1") -> Pong:
        async with open_channel(Kind.BULK, f"{host}:{self.port}", credentials, name or self.name) as channel:
            return await PING.call(channel, Ping("shoal", 4), timeout_s=5)

    async def refuses(self, credentials: grpc.ChannelCredentials, name: str = "") -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ping(credentials, name)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert self.callers == [], "nothing reached a method"
        return caught.value.details() or ""


async def serve(authority: Authority, own: Credential, source: Any = None, address: str = "127.0.0.1:0", ask: bool = True) -> Any:
    callers: list[Caller] = []

    async def ping(request: Ping, context: Any) -> Pong:
        callers.append(caller_of(context))
        return Pong(caller_of(context).peer, request.nonce)

    server = new_server(Kind.BULK)
    server.add_generic_rpc_handlers(handlers(PING.serve(ping)))
    port = listen(server, address, server_credentials(source or own, ask))
    await server.start()
    return server, Running(authority, own, port, callers)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    authority = Authority.generate("shoal")
    server, running = await serve(authority, credential(authority))
    yield running
    await server.stop(0)


async def test_a_peer_of_the_run_comes_in_under_the_name_and_rights_of_its_certificate(running: Running) -> None:
    own = credential(running.authority, "peer", "reducer")
    assert await running.ping(client_credentials(own)) == Pong(own.owner.peer, 4)
    [caller] = running.callers
    assert caller.rights == {"peer", "reducer"}
    assert caller.peer == own.owner.peer
    assert len(caller.peer) == 32
    assert abs(caller.expires_at - NOW - HOUR) < datetime.timedelta(minutes=5)


async def test_the_certificate_of_another_runs_authority_is_refused(running: Running) -> None:
    other = Authority.generate("shoal")
    await running.refuses(client_credentials(credential(other, trusts=running.authority)))


async def test_a_caller_without_a_certificate_is_refused(running: Running) -> None:
    await running.refuses(enrolment_credentials(running.authority.ca_pem))


async def test_an_expired_certificate_is_refused(running: Running) -> None:
    await running.refuses(client_credentials(credential(running.authority, not_before=NOW - 2 * HOUR)))


async def test_a_certificate_that_is_not_valid_yet_is_refused(running: Running) -> None:
    await running.refuses(client_credentials(credential(running.authority, not_before=NOW + HOUR)))


async def test_a_client_refuses_a_server_of_another_authority(running: Running) -> None:
    own = credential(running.authority, trusts=Authority.generate("shoal"))
    await running.refuses(client_credentials(own))


async def test_a_client_refuses_a_peer_of_its_run_that_is_not_the_one_it_dialled(running: Running) -> None:
    own = credential(running.authority)
    assert "Hostname Verification Check failed" in await running.refuses(client_credentials(own), name="0" * 32)
    await running.refuses(client_credentials(own), name=coordinator_name("shoal"))


async def test_plain_text_is_refused(running: Running) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await PING.call(channel, Ping("shoal"), timeout_s=3)
    assert running.callers == []


async def test_an_operators_certificate_cannot_serve(running: Running) -> None:
    admin = credential(running.authority, "admin", name="admin.shoal")
    assert (await running.ping(client_credentials(admin))).peer == "admin.shoal", "as a client it is who it says"
    running.callers.clear()
    server, posing = await serve(running.authority, admin)
    await posing.refuses(client_credentials(credential(running.authority)))
    await server.stop(0)


async def test_names_do_not_depend_on_addresses_and_ipv6_works() -> None:
    authority = Authority.generate("shoal")
    server, running = await serve(
        authority, credential(authority, "coordinator", name=coordinator_name("shoal")), address="[::1]:0"
    )
    own = credential(authority)
    for host in ("[::1]", "localhost"):
        assert (await running.ping(client_credentials(own), host=host)).peer == own.owner.peer
    await server.stop(0)


async def test_proxy_variables_do_not_matter(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert (await running.ping(client_credentials(credential(running.authority)), host="localhost")).nonce == 4


async def test_a_renewed_certificate_is_shown_without_a_restart() -> None:
    authority = Authority.generate("shoal")
    stale = credential(authority, not_before=NOW - 2 * HOUR, name="coordinator.shoal")
    fresh = credential(authority, name="coordinator.shoal")
    current = [stale]
    server, running = await serve(authority, stale, source=lambda: current[0])
    own = client_credentials(credential(authority))
    await running.refuses(own)
    current[0] = fresh
    assert (await running.ping(own)).nonce == 4
    await server.stop(0)


async def test_the_enrolment_port_asks_for_no_certificate_and_reads_none() -> None:
    authority = Authority.generate("shoal")
    own = credential(authority, "coordinator", name=coordinator_name("shoal"))
    seen: list[str] = []

    async def enrol(request: Any, context: Any) -> Any:
        seen.append(request.token)
        with pytest.raises(IdentityError, match="no certificate"):
            caller_of(context)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the invite is used up")

    server = new_server(Kind.ENROLMENT)
    server.add_generic_rpc_handlers(handlers(ENROL.serve(enrol)))
    port = listen(server, "127.0.0.1:0", server_credentials(own, ask_for_certificate=False))
    await server.start()
    stranger = Identity.generate()
    request = ENROL.unpack_request(ENROL.pack_request(_enrol(stranger)))
    channel = open_channel(Kind.ENROLMENT, f"127.0.0.1:{port}", enrolment_credentials(authority.ca_pem), coordinator_name("shoal"))
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError, match="used up"):
            await ENROL.call(channel, request, timeout_s=5)
    assert seen == ["token"]
    await server.stop(0)


def _enrol(identity: Identity) -> Any:
    from shoal.protocol.enrolment import Enrol

    return Enrol("shoal", "token", identity.public_key, identity.tls_public_key, identity.binding("shoal"))


async def test_malformed_requests_are_refused_before_the_method_is_asked(running: Running) -> None:
    async with open_channel(
        Kind.BULK, f"127.0.0.1:{running.port}", client_credentials(credential(running.authority)), running.name
    ) as channel:
        raw: Any = channel
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.unary_unary(PING.path)(b"\xff\xff\xff", timeout=5)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.unary_unary("/shoal.v1.Peer/Nothing")(b"", timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.unary_unary(PING.path)(bytes((2 << 20) + 1), timeout=5)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert running.callers == []


async def test_bulk_methods_carry_bytes_as_they_are() -> None:
    authority = Authority.generate("shoal")
    own = credential(authority)

    async def reduce(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for frame in requests:
            yield frame[::-1]

    async def fetch_part(request: PartRequest, context: Any) -> AsyncGenerator[bytes]:
        for piece in range(3):
            yield request.digest[piece : piece + 1] * 5

    server = new_server(Kind.BULK)
    server.add_generic_rpc_handlers(handlers(REDUCE.serve(reduce), FETCH_PART.serve(fetch_part, progress_s=5)))
    port = listen(server, "127.0.0.1:0", server_credentials(own))
    await server.start()
    channel = open_channel(Kind.BULK, f"127.0.0.1:{port}", client_credentials(credential(authority)), own.owner.peer)
    async with channel:
        call = REDUCE.stub(channel)(timeout=10)
        for frame in (b"abc", bytes(1 << 20), b"\x00\xff"):
            await call.write(frame)
            assert await call.read() == frame[::-1]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        request = PartRequest("shoal", bytes(range(32)))
        assert [chunk async for chunk in FETCH_PART.open(channel, request, timeout_s=5)] == [b"\0" * 5, b"\1" * 5, b"\2" * 5]
        raw: Any = channel
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [chunk async for chunk in raw.unary_stream(FETCH_PART.path)(b"\xff", timeout=5)]
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await server.stop(0)


async def test_a_download_that_nobody_takes_is_ended_and_lets_go_of_what_it_held() -> None:
    authority = Authority.generate("shoal")
    own = credential(authority)
    released = asyncio.Event()

    async def endless(request: PartRequest, context: Any) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            released.set()

    server = new_server(Kind.BULK)
    server.add_generic_rpc_handlers(handlers(FETCH_PART.serve(endless, progress_s=0.3)))
    port = listen(server, "127.0.0.1:0", server_credentials(own))
    await server.start()
    channel = open_channel(Kind.BULK, f"127.0.0.1:{port}", client_credentials(credential(authority)), own.owner.peer)
    async with channel:
        call = FETCH_PART.open(channel, PartRequest("shoal", bytes(32)))
        assert len(await call.read()) == 1 << 20
        async with asyncio.timeout(10):
            await released.wait()

        async def read_on() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        with pytest.raises(grpc.aio.AioRpcError, match=r"nothing was taken for 0\.3 s"):
            await read_on()
    await server.stop(0)


def test_a_server_port_is_given_a_certificate_only_when_it_changed() -> None:
    """gRPC frees what another connection uses whenever it is given one."""
    authority = Authority.generate("shoal")
    current = [credential(authority)]
    renewal = Renewal(lambda: current[0], True)
    assert [renewal.changed() for _ in range(3)] == [None] * 3
    current[0] = credential(authority)
    assert renewal.changed() is not None
    assert [renewal.changed() for _ in range(3)] == [None] * 3


STORM = """
import asyncio, datetime, socket, ssl, sys, threading, time
from shoal.protocol import channels, tls
from shoal.protocol.authority import Authority
from shoal.protocol.identity import Identity

run, me = Authority.generate("storm"), Identity.generate()
shown = run.issue(me.tls_public_key, me.peer_id, {"peer"}, datetime.timedelta(days=1))
kept = tls.Credential(me.tls_key_pem, shown, run.ca_pem)
done = [0]


def dial(port, end):
    context = ssl.create_default_context(cadata=run.ca_pem.decode())
    context.set_alpn_protocols(["h2"])
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as raw, context.wrap_socket(raw, server_hostname=me.peer_id):
                done[0] += 1
        except OSError:
            pass


async def main():
    server = channels.new_server(channels.Kind.BULK)
    port = channels.listen(server, "127.0.0.1:0", tls.server_credentials(lambda: kept))
    await server.start()
    callers = [threading.Thread(target=dial, args=(port, time.monotonic() + 8)) for _ in range(8)]
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        await asyncio.sleep(0.1)
    await server.stop(0)
    print(done[0])


asyncio.run(main())
"""


@pytest.mark.slow
def test_strangers_who_dial_at_the_same_moment_do_not_bring_a_server_down() -> None:
    storm = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60)
    assert storm.returncode == 0, storm.stderr[-2000:]
    assert int(storm.stdout) > 50
