"""Where others are told to dial this peer, and what becomes of that when the machine moves."""

from __future__ import annotations

import asyncio
import socket

import pytest

from shoal.peer import whereabouts
from shoal.peer.whereabouts import Whereabouts, advertised, is_own
from shoal.protocol.errors import UnreachableError


@pytest.mark.parametrize(
    ("wanted", "listen", "address"),
    [
        ("example.org", "0.0.0.0:0", "example.org:7"),
        ("example.org:9", "0.0.0.0:0", "example.org:9"),
        ("2001:db8::1", "[::]:0", "[2001:db8::1]:7"),
        ("[2001:db8::1]", "[::]:0", "[2001:db8::1]:7"),
        ("[2001:db8::1]:9", "[::]:0", "[2001:db8::1]:9"),
        ("", "10.0.0.1:0", "10.0.0.1:7"),
        ("", "[::1]:0", "[::1]:7"),
        ("", "0.0.0.0:0", "127.0.0.1:7"),
    ],
)
def test_others_are_told_an_address_that_they_can_dial(wanted: str, listen: str, address: str) -> None:
    assert advertised(wanted, listen, 7, "127.0.0.1:1") == address


def test_an_address_that_is_none_and_a_network_that_is_away_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError, match="no valid host name"):
        advertised("not a host", "0.0.0.0:0", 7, "127.0.0.1:1")

    def away(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(whereabouts.socket, "getaddrinfo", away)
    with pytest.raises(UnreachableError, match="Temporary failure in name resolution — .*--advertise"):
        advertised("", "0.0.0.0:0", 7, "example.org:1")


async def test_the_machines_own_address_is_found_out_before_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def own(coordinator: str) -> str:
        asked.append(coordinator)
        return f"10.0.0.{len(asked)}"

    monkeypatch.setattr(whereabouts, "own_address", own)
    here = Whereabouts("", "0.0.0.0:0", 7)
    assert here.address == ""
    for number, coordinator in enumerate(("a.example:1", "b.example:1"), 1):
        assert await here.look(coordinator) is (number > 1)
        assert here.address == f"10.0.0.{number}:7"
    assert asked == ["a.example:1", "b.example:1"]


@pytest.mark.parametrize(
    ("wanted", "listen", "port", "address"),
    [("example.org", "0.0.0.0:0", 7, "example.org:7"), ("", "192.0.2.1:7", 7, "192.0.2.1:7"), ("example.org", "", 0, "")],
)
async def test_what_the_volunteer_says_is_never_replaced(wanted: str, listen: str, port: int, address: str) -> None:
    here = Whereabouts(wanted, listen, port)
    assert here.address == address
    assert await here.look("127.0.0.1:1") is False
    assert here.address == address
    assert not here.has_moved()


def test_an_address_that_is_none_is_refused_before_anything_is_dialled() -> None:
    with pytest.raises(UnreachableError, match="no valid host name"):
        Whereabouts("not a host", "0.0.0.0:0", 7)


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), ("192.0.2.77", False), ("2001:db8::77", False)])
def test_a_machine_knows_its_own_addresses(host: str, own: bool) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    assert is_own(host) is own


@pytest.mark.parametrize(("listen", "port"), [("0.0.0.0:0", 7), ("", 0)])
async def test_an_address_that_the_machine_lost_is_noticed(monkeypatch: pytest.MonkeyPatch, listen: str, port: int) -> None:
    """Also by a peer that accepts no connections: those that it opened are dead."""
    monkeypatch.setattr(whereabouts, "own_address", lambda coordinator: "127.0.0.1")
    here, lost = Whereabouts("", listen, port), asyncio.Event()
    assert not here.has_moved()  # none was told yet
    await here.look("c:1")
    watching = asyncio.create_task(here.watch(lost.set, look_s=0.01))
    assert not here.has_moved()
    here._own = "192.0.2.77"
    async with asyncio.timeout(20):
        await lost.wait()
    watching.cancel()
    assert await here.look("c:1") is True
    assert not here.has_moved()
