"""Strangers who send too much, too often or too much at once to a coordinator: its memory stays, and the run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest

from shoal.peer.enrol import come_in
from shoal.protocol.authority import coordinator_name
from shoal.protocol.channels import CONNECTIONS_LIMIT, Kind, split_address
from shoal.protocol.invites import Invite, parse
from shoal.protocol.services import ENROL, LOOK
from shoal.protocol.tls import enrolment_credentials
from tests.swarm.toyswarm import Swarms, status, toy_spec, working

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MORE_BYTES = 100 << 20
"""What the coordinator may take at most on account of strangers."""
CALLS = 10_000


def test_strangers_cost_the_coordinator_no_memory_and_nobody_a_round(swarms: Swarms, tmp_path: Path) -> None:
    swarm = swarms(toy_spec(100_000, peers=1))
    coordinator = psutil.Process(swarm.start_coordinator().pid)
    swarm.add_peer("anna")
    swarm.wait_for(lambda: working(swarm) == {"anna"}, 60, "anna's work to be committed")
    invite = parse(swarm.invite)
    limit = coordinator.memory_info().rss + MORE_BYTES
    for attack in (oversized_messages, compressed_bombs, endless_calls, silent_connections):
        before = status(swarm).version
        asyncio.run(attack(invite, lambda: coordinator.memory_info().rss < limit))
        swarm.wait_for(lambda: status(swarm).version > before, 30, f"a round in spite of {attack.__name__}")  # noqa: B023
    assert asyncio.run(come_in(tmp_path / "bob", invite)).run == invite.run, "and newcomers are let in"
    assert swarm.coordinator is not None
    assert swarm.coordinator.exit_code is None
    assert "Traceback" not in swarm.coordinator.log.read_text()


def dialled(invite: Invite, *more: tuple[str, int], compression: grpc.Compression | None = None) -> Any:
    """A channel to the enrolment port, which wants no certificate."""
    options = (("grpc.ssl_target_name_override", coordinator_name(invite.run)), ("grpc.max_send_message_length", -1), *more)
    credentials = enrolment_credentials(invite.ca_pem)
    return grpc.aio.secure_channel(f"dns:///{invite.enrol_addresses[0]}", credentials, options=options, compression=compression)


async def oversized_messages(invite: Invite, fits: Callable[[], bool]) -> None:
    """Many MB in one message: refused by the size that it announces."""
    async with dialled(invite) as channel:
        for path in (ENROL.path, LOOK.path):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(path)(bytes(128 << 20), timeout=60)
            assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
            assert fits()


async def compressed_bombs(invite: Invite, fits: Callable[[], bool]) -> None:
    """256 MB that gRPC's own compression made 256 kB of, which is less than the limit."""
    async with dialled(invite, compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(ENROL.path)(bytes(240 << 20), timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert fits()


async def endless_calls(invite: Invite, fits: Callable[[], bool]) -> None:
    """Calls without number that never say anything."""
    async with dialled(invite) as channel:
        calls = [channel.stream_unary(LOOK.path)() for _ in range(CALLS)]
        for _ in range(20):  # while they arrive
            await asyncio.sleep(0.1)
            assert fits()
        for call in calls:
            call.cancel()


async def silent_connections(invite: Invite, fits: Callable[[], bool]) -> None:
    """More connections than there may be, each with its TLS, on which nothing is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = split_address(invite.enrol_addresses[0])
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTIONS_LIMIT[Kind.ENROLMENT] + 50):
            plain = held.enter_context(socket.create_connection((host, port), timeout=10))
            with contextlib.suppress(OSError):  # one too many is hung up on
                held.enter_context(context.wrap_socket(plain, server_hostname=coordinator_name(invite.run)))
        assert fits()
