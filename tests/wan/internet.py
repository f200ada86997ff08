"""A small internet of network namespaces: homes with access links of their own, some behind a router that masquerades.

    home ns ──veth (up, down shaped)── backbone ns ──veth── this machine's own namespace: coordinator, helpers
    10.77.k.2                  10.77.k.1      10.77.255.1    10.77.255.2

Rule: processes are started *in* a home (`inside`), and everything that speaks gRPC in this process stays outside, because threads
keep the namespace that they were made in. Rates are shaped by the kernel's token bucket (`tc tbf`). A home that is far away has, in
the place of the veth pair, two TUN devices and a `forwarder` between them, which shapes and delays. Needs root, iproute2 and
iptables.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.wan import forwarder
from tests.wan.forwarder import open_tun

CLONE_NEWNET = 0x40000000
HUB = "10.77.255.2"
"""This machine's address in that internet."""
ROUTER = "10.77.255.1"
"""The address under which homes that masquerade are seen, all of them."""
QUEUE_MS = 200
_TOOLS = ("ip", "tc", "iptables")


def why_not() -> str:
    """What is missing to make one; "" when nothing is."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if not Path("/dev/net/tun").exists():
        return "no TUN devices here (/dev/net/tun)"
    probe = subprocess.run(["ip", "netns", "add", "shoal-probe"], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", "shoal-probe"], capture_output=True, check=False)
    return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode else ""


class Internet:
    """A context manager: leaving it removes every namespace and link that it made."""

    def __init__(self) -> None:
        self._tag = f"sh{os.getpid() % 100_000}"
        self._core = f"{self._tag}core"
        self._homes: dict[str, str] = {}
        self._wires: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Internet:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        core = self._core
        _run("ip", "netns", "add", core)
        self._in(core, "ip", "link", "set", "lo", "up")
        self._in(core, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._link(f"{self._tag}h", core, f"{self._tag}b")
        _run("ip", "addr", "add", f"{HUB}/24", "dev", f"{self._tag}h")
        _run("ip", "link", "set", f"{self._tag}h", "up")
        self._in(core, "ip", "addr", "add", "10.77.255.1/24", "dev", f"{self._tag}b")
        self._in(core, "ip", "link", "set", f"{self._tag}b", "up")
        _run("ip", "route", "replace", "10.77.0.0/16", "via", "10.77.255.1")

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.communicate()
        for namespace in (*self._homes.values(), self._core):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}h"], capture_output=True, check=False)

    def home(self, name: str, mbit: float = 0.0, masquerade: bool = False, delay_ms: float = 0.0) -> str:
        """A new home; its address. `mbit`: what its link carries each way, 0 as much as there is. `delay_ms`: how long its link
        takes, each way, so that between two such homes a round trip is four times that. With `masquerade` it can dial out, and
        nobody can dial in."""
        number = len(self._homes) + 1
        namespace = self._homes[name] = f"{self._tag}n{number}"
        inner, outer, net = f"{self._tag}i{number}", f"{self._tag}o{number}", f"10.77.{number}"
        _run("ip", "netns", "add", namespace)
        if delay_ms:
            self._stretch((inner, namespace), (outer, self._core), mbit, delay_ms)
        else:
            _run("ip", "link", "add", outer, "netns", self._core, "type", "veth", "peer", "name", inner, "netns", namespace)
        for where, device, address in ((namespace, inner, f"{net}.2"), (self._core, outer, f"{net}.1")):
            self._in(where, "ip", "addr", "add", f"{address}/24", "dev", device)
            self._in(where, "ip", "link", "set", device, "up")
            if mbit and not delay_ms:
                shape = ("rate", f"{mbit:g}mbit", "burst", f"{max(16_000, round(mbit * 1250))}", "latency", f"{QUEUE_MS}ms")
                self._in(where, "tc", "qdisc", "add", "dev", device, "root", "tbf", *shape)
        self._in(namespace, "ip", "link", "set", "lo", "up")
        self._in(namespace, "ip", "route", "add", "default", "via", f"{net}.1")
        if masquerade:
            self._in(self._core, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", f"{net}.0/24", "-j", "MASQUERADE")
            refuse = ("-m", "conntrack", "--ctstate", "NEW", "-j", "REJECT")
            self._in(self._core, "iptables", "-A", "FORWARD", "-d", f"{net}.0/24", *refuse)
        return f"{net}.2"

    def forward(self, name: str, port: int) -> str:
        """Let the router of a home that masquerades map a port to it; where that port is reached."""
        inside, outside = f"10.77.{list(self._homes).index(name) + 1}.2", ROUTER
        place = ("-p", "tcp", "--dport", str(port))
        self._in(
            self._core, "iptables", "-t", "nat", "-A", "PREROUTING", "-d", outside, *place, "-j", "DNAT", "--to-destination", inside
        )
        mapped = ("-m", "conntrack", "--ctstate", "DNAT")  # and nobody who dials the home's own address
        self._in(self._core, "iptables", "-I", "FORWARD", "-d", inside, *mapped, "-j", "ACCEPT")
        return f"{outside}:{port}"

    def move(self, name: str) -> str:
        """Give a home another address, in the place of the first one; which."""
        net = f"10.77.{list(self._homes).index(name) + 1}"
        device = f"{self._tag}i{net.rpartition('.')[2]}"
        self._in(self._homes[name], "ip", "addr", "del", f"{net}.2/24", "dev", device)
        self._in(self._homes[name], "ip", "addr", "add", f"{net}.3/24", "dev", device)
        self._in(self._homes[name], "ip", "route", "replace", "default", "via", f"{net}.1")
        return f"{net}.3"

    def _stretch(self, home: tuple[str, str], core: tuple[str, str], mbit: float, delay_ms: float) -> None:
        """A long wire between two new devices (name, namespace)."""
        ends = []
        try:
            for device, namespace in (home, core):
                ends.append(open_tun(device))
                _run("ip", "link", "set", device, "netns", namespace)
            numbers = (*ends, mbit * 125_000, delay_ms / 1000, QUEUE_MS / 1000)
            command = [sys.executable, forwarder.__file__, *map(str, numbers)]
            self._wires.append(subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=ends))
        finally:
            for end in ends:
                os.close(end)

    def cut(self, name: str) -> None:
        """From now on every packet from and to a home is lost without a word, as behind a cable that was pulled."""
        self._drop("-I", name)

    def mend(self, name: str) -> None:
        """The opposite of `cut`."""
        self._drop("-D", name)

    def _drop(self, action: str, name: str) -> None:
        net = f"10.77.{list(self._homes).index(name) + 1}.0/24"
        for direction in ("-s", "-d"):
            self._in(self._core, "iptables", action, "FORWARD", direction, net, "-j", "DROP")

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Processes that this thread starts meanwhile are in that home."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as outside, Path(f"/run/netns/{self._homes[name]}").open() as there:
            if libc.setns(there.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(outside.fileno(), CLONE_NEWNET)

    def _link(self, near: str, namespace: str, far: str) -> None:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)

    def _in(self, namespace: str, *command: str) -> None:
        _run("ip", "netns", "exec", namespace, *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
