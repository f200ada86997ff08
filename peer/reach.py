"""Whom a run may make a volunteer's machine ask over http: strangers of the internet, not its own network.

Rule: an address is looked at when the connection is made, whatever name led to it, after redirections too. A run whose coordinator
is in a private network, or on this machine, is no stranger there. Link-local addresses, where clouds keep secrets, are asked by
nobody. Where the volunteer's environment names a proxy, it is the proxy that looks names up and connects, and what it may reach is
its owner's business.

Neighbours: `sources` fetches through this.
"""

from __future__ import annotations

import enum
import http.client
import ipaddress
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from shoal.protocol.errors import ShoalError

Connect = Callable[..., socket.socket]


class Reach(enum.StrEnum):
    """What a run may make this machine ask."""

    INTERNET = "internet"
    """Public addresses."""
    LAN = "lan"
    """Private networks, too."""
    MACHINE = "machine"
    """This machine, too."""


class OutOfReachError(ShoalError):
    """A run's data lead to where the run may make nobody ask."""


_PLACES = {Reach.INTERNET: "the internet", Reach.LAN: "a private network", Reach.MACHINE: "this machine"}


def reach_of(hosts: Sequence[str]) -> Reach:
    """The reach of a run whose coordinator is at all of these hosts."""
    kinds = {kind_of(host) for host in hosts}
    if kinds == {Reach.MACHINE}:
        return Reach.MACHINE
    return Reach.LAN if kinds and kinds <= {Reach.MACHINE, Reach.LAN} else Reach.INTERNET


def kind_of(host: str) -> Reach | None:
    """The narrowest reach that this address needs; None: no reach is wide enough. A name that is no address counts as one of the
    internet's, but "localhost"."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return Reach.MACHINE if host == "localhost" else Reach.INTERNET
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return Reach.MACHINE
    if found.is_link_local or found.is_multicast or found.is_unspecified:
        return None
    return Reach.INTERNET if found.is_global else Reach.LAN


def check(host: str, address: str, reach: Reach) -> None:
    """Raises OutOfReachError unless this address of the host may be asked."""
    kind, widening = kind_of(address), list(Reach)
    if kind is None or widening.index(kind) > widening.index(reach):
        where = "no address of the internet" if kind is None else _PLACES[kind]
        raise OutOfReachError(
            f"the run's data lead to {host} ({address}), which is {where}",
            "say --data-lan if the run's operator may make this machine ask there, or bring the files with --data DIR",
        )


class Http(http.client.HTTPConnection):
    """A connection that is made by `connect`."""

    def __init__(self, connect: Connect, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = connect


class Https(http.client.HTTPSConnection):
    """The same with TLS."""

    def __init__(self, connect: Connect, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = connect


class Handler(urllib.request.HTTPSHandler):
    """Opens http and https through `connect`."""

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Named by urllib."""
        return self.do_open(lambda *args, **options: Http(self._connect, *args, **options), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Named by urllib."""
        return self.do_open(lambda *args, **options: Https(self._connect, *args, **options), req)

    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_


def opener(url: str, reach: Reach) -> urllib.request.OpenerDirector:
    """Speaks http and https only, and only to where `reach` allows; asks no proxy for this machine's own addresses."""
    proxies = {} if kind_of(urllib.parse.urlsplit(url).hostname or "") is Reach.MACHINE else urllib.request.getproxies()
    trusted = {urllib.parse.urlsplit(proxy).hostname for proxy in proxies.values()}

    def connect(place: tuple[str, int], timeout: float | None = None, source: tuple[str, int] | None = None) -> socket.socket:
        host, port = place
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if host not in trusted:
            for address in found:
                check(host, address, reach)
        failure = OSError(f"{host} has no address")
        for address in found:
            try:
                return socket.create_connection((address, port), timeout, source)
            except OSError as error:
                failure = error
        raise failure

    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        Handler(connect),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        director.add_handler(handler)
    return director
