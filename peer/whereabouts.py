"""Where others can dial this peer, now: a laptop that wakes up in another network has another address.

Rule: the address is found out anew before every stream to the coordinator is opened, and is said in that stream's Hello. When the
machine loses it, that stream ends, so that the next one says where the peer is; and connections that were made from it are dead,
though TCP takes a minute to say so. What the volunteer names with --advertise, or listens on, is never replaced. Neighbours:
`daemon` wires it between `session` and `engine`; whether the address leads here is the coordinator's to try.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from shoal.protocol.channels import join_address, split_address
from shoal.protocol.errors import UnreachableError

LOOK_S = 5.0
"""How often it is looked whether this machine still has the address."""
_ANY = ("0.0.0.0", "::")


class Whereabouts:
    """The address of a peer that listens at `listen`, on `port`; of one that does not listen (port 0), always ""."""

    def __init__(self, wanted: str, listen: str, port: int) -> None:
        """`wanted`: host, or host:port, that others are to be told; empty: what the machine itself knows. Raises UnreachableError
        when that is no address."""
        self._wanted, self._listen, self._port = wanted, listen, port
        self._found = bool(port) and not wanted and split_address(listen)[0] in _ANY
        self.address = advertised(wanted, listen, port, "") if port and not self._found else ""
        self._own = ""

    async def look(self, coordinator: str) -> bool:
        """Find out this machine's address on the way to the coordinator. Whether it is another one than before. Raises
        UnreachableError."""
        before, self._own = self._own, await asyncio.to_thread(own_address, coordinator)
        if self._found:
            self.address = join_address(self._own, self._port)
        return before not in ("", self._own)

    def has_moved(self) -> bool:
        """Whether this machine no longer has the address that it found."""
        return bool(self._own) and not is_own(self._own)

    async def watch(self, moved: Callable[[], None], look_s: float = LOOK_S) -> None:
        """For ever: call `moved` whenever that is so."""
        while True:
            await asyncio.sleep(look_s)
            if self.has_moved():
                moved()


def advertised(wanted: str, listen: str, port: int, coordinator: str) -> str:
    """The address that others dial: `wanted` (host, or host:port), else where this peer listens, else this machine's own on the way
    to the coordinator. Raises UnreachableError."""
    try:
        return join_address(*split_address(wanted))
    except UnreachableError:
        host = wanted.strip("[]") or split_address(listen)[0]
    if host in _ANY:
        host = own_address(coordinator)
    return join_address(*split_address(join_address(host, port)))


def own_address(coordinator: str) -> str:
    """The address of this machine on the way to the coordinator. Nothing is sent. Raises UnreachableError."""
    host, port = split_address(coordinator)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UnreachableError(
            f"cannot find out this machine's address on the way to {coordinator}: {error.strerror or error}",
            "check the network, or say with --advertise what address others reach this peer at",
        ) from error


def is_own(host: str) -> bool:
    """Whether this machine has this IP address; what cannot be found out counts as yes."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
