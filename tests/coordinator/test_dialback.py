"""Members are dialled back for real: over TLS, at ports where they, somebody else, or nobody answers."""

from __future__ import annotations

import asyncio
import datetime
import socket
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from shoal.coordinator import dialback
from shoal.coordinator.dialback import DialBacks
from shoal.coordinator.events import DialBack, DialledBack
from shoal.peer.bulk import BulkPlane
from shoal.peer.workers import Workers
from shoal.protocol.authority import Authority, coordinator_name
from shoal.protocol.channels import Kind, open_channel
from shoal.protocol.identity import Identity
from shoal.protocol.services import FETCH_STATE, PING
from shoal.protocol.tls import Credential, client_credentials
from shoal.protocol.transfers import Ping, StateRequest
from tests.peer.scripted import RUN, credential

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.generate(RUN)


@pytest.fixture(scope="module")
def own(authority: Authority) -> Credential:
    """The coordinator's certificate."""
    identity = Identity.generate()
    lifetime = datetime.timedelta(hours=1)
    certificate = authority.issue(identity.tls_public_key, coordinator_name(RUN), {"coordinator"}, lifetime)
    return Credential(identity.tls_key_pem, certificate, authority.ca_pem)


class Scene:
    """Dialling, and what was found."""

    def __init__(self, own: Credential) -> None:
        self.found: asyncio.Queue[DialledBack] = asyncio.Queue()
        self.tests = DialBacks(RUN, lambda: own, self.found.put_nowait)

    async def dial(self, peer: str, *addresses: str, connection: int = 1) -> DialledBack:
        self.tests.dial(DialBack(connection, peer, addresses))
        async with asyncio.timeout(LIMIT_S):
            return await self.found.get()


@pytest.fixture
async def scene(own: Credential) -> AsyncIterator[Scene]:
    made = Scene(own)
    yield made
    await made.tests.close()


@pytest.fixture
async def there(authority: Authority) -> AsyncIterator[tuple[BulkPlane, str]]:
    """A peer's bulk plane, and its address."""
    workers = Workers(1)
    plane = BulkPlane(RUN, credential(authority), workers, lambda event: None)
    yield plane, f"127.0.0.1:{await plane.listen('127.0.0.1:0')}"
    await plane.close()
    workers.close()


async def test_a_member_answers_where_it_is_and_the_first_such_address_is_named(
    scene: Scene, there: tuple[BulkPlane, str], unused_tcp_port: int
) -> None:
    plane, address = there
    nobody = f"127.0.0.1:{unused_tcp_port}"
    assert await scene.dial(plane.me, nobody, address, f"localhost:{address.rpartition(':')[2]}") == DialledBack(1, address)


async def test_somebody_else_who_answers_there_proves_nothing(scene: Scene, there: tuple[BulkPlane, str]) -> None:
    _, address = there
    found = await scene.dial(Identity.generate().peer_id, address)
    assert found.address == ""
    assert found.reason.startswith(f"{address}: unavailable")


async def test_where_nobody_answers_each_address_is_named_with_what_was_seen(scene: Scene, unused_tcp_port: int) -> None:
    found = await scene.dial("f" * 32, f"127.0.0.1:{unused_tcp_port}", "127.0.0.1:0")
    assert found.address == ""
    assert found.reason.startswith(f"127.0.0.1:{unused_tcp_port}: unavailable")
    assert "; 127.0.0.1:0: '127.0.0.1:0' has port 0" in found.reason


async def test_an_address_that_swallows_everything_does_not_hold_the_others_up(
    scene: Scene, there: tuple[BulkPlane, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialback, "ANSWER_S", 0.2)
    monkeypatch.setattr(dialback, "AT_ONCE", 1)
    plane, address = there
    with socket.create_server(("127.0.0.1", 0)) as hole:
        silent = f"127.0.0.1:{hole.getsockname()[1]}"
        found = await scene.dial(plane.me, silent)
        assert (found.address, "deadline_exceeded" in found.reason) == ("", True)
        monkeypatch.setattr(dialback, "ANSWER_S", LIMIT_S)
        assert (await scene.dial(plane.me, address)).address == address


async def test_a_test_that_fails_in_itself_proves_nothing_and_is_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dialback.channels, "open_channel", None)
    assert await scene.dial("f" * 32, "127.0.0.1:7") == DialledBack(1, "", "the test itself failed: TypeError")
    assert "a dial-back failed in itself" in caplog.text


async def test_a_test_is_replaced_by_a_later_one_of_its_stream_and_forgotten_with_it(
    scene: Scene, there: tuple[BulkPlane, str]
) -> None:
    plane, address = there
    for connection in (1, 2):
        scene.tests.dial(DialBack(connection, plane.me, (address,), after_s=3600.0))
    assert await scene.dial(plane.me, address, connection=1) == DialledBack(1, address)
    scene.tests.forget(2)
    await asyncio.sleep(0)
    assert scene.found.empty()
    assert 2 not in scene.tests._tests


async def test_the_coordinator_may_ping_peers_and_ask_them_for_nothing_else(there: tuple[BulkPlane, str], own: Credential) -> None:
    plane, address = there
    async with open_channel(Kind.BULK, address, client_credentials(own), plane.me) as channel:
        assert (await PING.call(channel, Ping(RUN, 7), LIMIT_S)).nonce == 7
        with pytest.raises(grpc.aio.AioRpcError, match="is no peer of this run"):
            await FETCH_STATE.open(channel, StateRequest(RUN, 0), LIMIT_S).read()


async def test_a_peer_of_an_older_release_that_turns_the_coordinator_away_is_there_all_the_same(
    scene: Scene, there: tuple[BulkPlane, str], authority: Authority
) -> None:
    plane, address = there
    visitor = credential(authority, ("observer",))
    scene.tests._credential = lambda: visitor
    assert await scene.dial(plane.me, address) == DialledBack(1, address)
