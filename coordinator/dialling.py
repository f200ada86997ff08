"""Whether others can dial a member, as far as the coordinator can tell: it dials back, at the address that the member advertises
and at the one that it sees the member under.

    untested ──── answered at the advertised address ──────────────────────────► proven
        │   ───── answered elsewhere: others are told that address instead ────► proven
        └──────── answered nowhere ───► failed, tried again after a pause

Rule: a failed test is a doubt and no verdict. The coordinator may stand where the member cannot be reached from, and its fellows
where it can (one local network, say): so a member that failed reduces only where none is proven, and its fellows' complaints decide
then. Pure. Neighbours: `core` asks and believes, `roster` counts on it, `dialback` dials.
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass

from shoal.protocol.channels import join_address, split_address
from shoal.protocol.messages import Reachability

FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 900.0
"""Between tests of a member that failed: the second pause is twice the first, and so on."""


class Reach(enum.Enum):
    """What is known of the way to a member; its value is the word for operators."""

    OUTBOUND = "outbound only"
    """It says itself that it accepts no connections."""
    UNTESTED = "not tried yet"
    PROVEN = "yes"
    FAILED = "no"


@dataclass
class Way:
    """The way to one member. `advertised` is what its Hello said, `seen_from` the host that its stream comes from, if known."""

    advertised: str = ""
    seen_from: str = ""
    reach: Reach = Reach.UNTESTED
    pause_s: float = 0.0
    """Before the next test, if the last one failed."""
    under_test: bool = False

    def after_hello(self, advertised: str, seen_from: str) -> Way:
        """The way to a member that says Hello again: what was found out holds until the next test, if it is the same way."""
        if (self.advertised, self.seen_from) != (advertised, seen_from):
            return Way(advertised, seen_from, Reach.UNTESTED if advertised else Reach.OUTBOUND)
        return Way(advertised, seen_from, self.reach if advertised else Reach.OUTBOUND, self.pause_s)

    @property
    def places(self) -> tuple[str, ...]:
        """Where to dial, in this order. Not where the answer would say nothing: another machine's own loopback, or link-local
        addresses, where clouds keep secrets."""
        if not self.advertised:
            return ()
        host, port = split_address(self.advertised)
        hosts = [host, self.seen_from] if self.seen_from else [host]
        if _is_loopback(host) and self.seen_from and not _is_loopback(self.seen_from):
            hosts = [self.seen_from]
        return tuple(dict.fromkeys(join_address(each, port) for each in hosts if not _is_link_local(each)))

    def answered(self) -> None:
        """The member was reached."""
        self.reach, self.pause_s, self.under_test = Reach.PROVEN, 0.0, False

    def failed(self) -> None:
        """It was not; `pause_s` is how long to wait before the next test."""
        self.under_test = False
        self.reach, self.pause_s = Reach.FAILED, min(max(FIRST_PAUSE_S, 2 * self.pause_s), LONGEST_PAUSE_S)

    def correction(self, address: str) -> Reachability:
        """What a member hears whose address was corrected."""
        said = f"others are told to dial this peer at {address}, where the coordinator reached it, and not at {self.advertised}"
        return Reachability(address, said, f"say so yourself: --advertise {address}")

    def refusal(self) -> Reachability:
        """What a member hears that was not reached."""
        tried = " and ".join(self.places) or self.advertised
        said = f"the coordinator could not dial this peer at {tried}, so others may not either: it goes on, and reduces no parts"
        host, port = split_address(self.advertised)
        if self.seen_from in ("", host):
            return Reachability("", said, f"let firewalls pass port {port}, or join with --listen ''")
        there = join_address(self.seen_from, port)
        join = f"join with --listen 0.0.0.0:{port} --advertise {there}"
        fix = f"if a router lies between, let it map port {port} to this machine and {join}; or join with --listen ''"
        return Reachability("", said, fix)


def _is_loopback(host: str) -> bool:
    address = _ip(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_link_local(host: str) -> bool:
    address = _ip(host)
    return address is not None and (address.is_link_local or address.is_unspecified or address.is_multicast)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
