"""Looks at this machine and at the way to a run's coordinator, before anybody joins: `shoal doctor`.

Rule: looking changes nothing. No use of the invite is spent, no identity is made, ports are let go of at once, and each look ends
within seconds; what cannot be found out here is left out rather than guessed. Neighbours: `findings` judges what is measured here,
`peer.diagnosis` says what is wrong with an address, `coordinator.enrolment` answers `Look`.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import psutil

from shoal.findings import (
    Finding,
    TcpSettings,
    fail,
    judge_address,
    judge_clock,
    judge_disk,
    judge_files,
    judge_memory,
    judge_power,
    judge_rate,
    judge_shared_memory,
    judge_tcp,
    ok,
    warn,
)
from shoal.peer.diagnosis import explain, probe
from shoal.protocol.authority import CLOCK_SKEW, coordinator_name, head_start
from shoal.protocol.channels import Kind, open_channel, split_address
from shoal.protocol.enrolment import LOOK_LIMIT_BYTES, Look, Looked
from shoal.protocol.errors import RefusedError, ShoalError, UnreachableError
from shoal.protocol.invites import Invite
from shoal.protocol.services import LOOK
from shoal.protocol.tls import enrolment_credentials

ANSWER_S = 10.0
MEASURE_S = 2.0
"""How long each direction is measured, when one message does not take that long by itself."""
SLOW_ANSWER_S = 0.5
"""One message that takes longer says enough about the rate."""
AT_ONCE = 8
"""Messages under way while a rate is measured: enough for a long fast link."""
CLOCK_LOOKS = 3


@dataclass(frozen=True)
class Wanted:
    """How this machine would join."""

    state: Path
    listen: str = "0.0.0.0:0"
    advertise: str = ""
    device: str = "auto"
    invite: Invite | None = None
    """Where the coordinator is; its token may be one that admits nobody."""
    invited: bool = True
    """Whether somebody gave that invite, so that it has to be good."""


def examine(wanted: Wanted) -> Iterator[Finding]:
    """All findings, as they are made."""
    yield from machine(wanted)
    yield port(wanted.listen)
    trip_s = None
    if wanted.invite is None:
        yield warn("coordinator", "not looked for", "give the invite: shoal doctor INVITE")
    else:
        way = asyncio.run(Way(wanted.invite, wanted).look())
        yield from way.findings
        trip_s = way.trip_s
    if (settings := tcp_settings()) is not None:
        yield from judge_tcp(settings, trip_s)


# --- this machine ---------------------------------------------------------------------------------------------------------------


def machine(wanted: Wanted) -> Iterator[Finding]:
    """What is here, without any network."""
    import torch

    from shoal import __version__

    yield ok("software", f"shoal {__version__}, Python {sys.version.split()[0]}, PyTorch {torch.__version__}")
    yield device(wanted.device)
    yield judge_memory(available_memory())
    yield shared_memory()
    yield disk(wanted.state)
    yield judge_files(open_files())
    from shoal.peer.shifts import on_battery

    yield judge_power(on_battery())


def device(name: str) -> Finding:
    """What would be trained on."""
    import torch

    from shoal.peer.attach import default_threads
    from shoal.peer.device import choose_device

    try:
        chosen, note = choose_device(name)
    except ShoalError as error:
        return fail("device", error.message, error.fix)
    if name == "auto" and chosen.type == "cpu" and (Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi")):
        text = f"this machine has an NVIDIA GPU, but its PyTorch {torch.__version__} cannot use it: training on the CPU"
        return warn("device", text, "install a build for CUDA: https://pytorch.org/get-started/locally/")
    return ok("device", note or (f"cpu, {default_threads()} threads" if chosen.type == "cpu" else str(chosen)))


def available_memory() -> float:
    """Bytes that programs can have: the machine's, or what the container has left."""
    have = float(psutil.virtual_memory().available)
    place = Path("/sys/fs/cgroup")
    for limit, used, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        try:
            taken = float((place / used).read_text())
            given_back = next(line for line in (place / stat).read_text().splitlines() if line.startswith(f"{cache} "))
            have = min(have, float((place / limit).read_text()) - taken + float(given_back.split()[1]))
        except (OSError, ValueError, StopIteration):
            continue  # not there, or "max"
    return max(0.0, have)


def shared_memory() -> Finding:
    """Where the vault would lie."""
    from shoal.peer.vault import shared_memory_directory

    where = shared_memory_directory()
    return judge_shared_memory(str(where), shutil.disk_usage(where).free, str(where) == "/dev/shm" or sys.platform != "linux")


def disk(state: Path) -> Finding:
    """Where identities and models would lie."""
    there = next(place for place in (state, *state.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return judge_disk(str(state), None)
    return judge_disk(str(state), shutil.disk_usage(there).free)


def open_files() -> float:
    """The most files that a process may have open."""
    if sys.platform == "win32":
        return float("inf")
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if hard == resource.RLIM_INFINITY else float(hard)


def tcp_settings() -> TcpSettings | None:
    """What Linux says of TCP; None elsewhere."""
    place = Path("/proc/sys/net/ipv4")
    try:
        return TcpSettings(
            (place / "tcp_congestion_control").read_text().strip(),
            int((place / "tcp_wmem").read_text().split()[2]),
            int((place / "tcp_rmem").read_text().split()[2]),
            (place / "tcp_slow_start_after_idle").read_text().strip() == "1",
        )
    except (OSError, ValueError, IndexError):
        return None


def port(listen: str) -> Finding:
    """Whether the address that others would dial can be listened on."""
    if not listen:
        return ok("port", "none: this peer would accept no connections (--listen '')")
    try:
        host, number = split_address(listen)
        family, kind, protocol, _, where = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probing:
            if sys.platform != "win32":
                probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probing.bind(where)
            probing.listen(1)
    except UnreachableError as error:
        return fail("port", f"--listen {error.message}", error.fix)
    except OSError as error:
        return fail("port", f"cannot listen on {listen}: {error.strerror or error}", "name a free port of this machine: --listen")
    return ok("port", f"{listen} can be listened on" + ("" if number else " (port 0: any free one)"))


def _addresses_of(host: str) -> frozenset[str]:
    """What a name stands for; an address is its own name."""
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()


# --- the way to the coordinator ---------------------------------------------------------------------------------------------------


class Way:
    """Looks at one run's coordinator, address by address, and collects what it finds."""

    def __init__(self, invite: Invite, wanted: Wanted) -> None:
        self._invite, self._wanted = invite, wanted
        self._server_name = coordinator_name(invite.run)
        self.findings: list[Finding] = []
        self.trip_s: float | None = None
        self._explained: set[str] = set()
        """Addresses of which it is said what is wrong."""

    async def look(self) -> Way:
        """Everything; what cannot be looked at because something before it failed is left out."""
        invite = self._invite
        for kind, addresses in (("enrolment", invite.enrol_addresses), ("sessions", invite.session_addresses)):
            for address in addresses:
                began = time.perf_counter()
                trouble = await asyncio.to_thread(probe, address, invite.ca_pem.decode(), self._server_name)
                about = "clock" if trouble is not None and "clock says" in trouble.message else f"coordinator, {kind}"
                if trouble is not None:
                    self._explained.add(address)
                    self.findings.append(fail(about, trouble.message, trouble.fix))
                else:
                    self.findings.append(ok(about, f"{address} answers within {(time.perf_counter() - began) * 1000:.0f} ms"))
        for address in invite.enrol_addresses:
            if address not in self._explained and await self._ask(address):
                break
        return self

    async def _ask(self, address: str) -> bool:
        """Whether somebody answered."""
        channel = open_channel(Kind.ENROLMENT, address, enrolment_credentials(self._invite.ca_pem), self._server_name)
        async with channel:
            try:
                await self._judge(channel, address)
                return True
            except grpc.aio.AioRpcError as error:
                why = await explain(error, address, self._invite.ca_pem.decode(), self._server_name, "look around")
                if isinstance(why, RefusedError) and why.code == "wrong-port":
                    text = f"{address} does not tell its clock and the address it sees"
                    self.findings.append(warn("coordinator", text, "it runs an older shoal: its operator should update it"))
                    return True
                self.findings.append(fail("coordinator, enrolment", why.message, why.fix))
                return False

    async def _judge(self, channel: grpc.aio.Channel, address: str) -> None:
        await LOOK.call(channel, self._question(), ANSWER_S)  # so that what is timed next is not the connection's beginning
        best, ahead, seen = float("inf"), 0.0, Looked(0.0, "")
        for _ in range(CLOCK_LOOKS):
            asked = time.time()
            began = time.perf_counter()
            seen = await LOOK.call(channel, self._question(), ANSWER_S)
            took = time.perf_counter() - began
            if took < best:
                best, ahead = took, asked + took / 2 - seen.now
        self.trip_s = best
        lifetime = datetime.timedelta(seconds=seen.certificate_s)
        limits = (head_start(lifetime), lifetime) if lifetime else (CLOCK_SKEW, CLOCK_SKEW)
        self.findings.append(judge_clock(ahead, best / 2, *(limit.total_seconds() for limit in limits)))
        self.findings.append(self._address(seen.seen_from, address))
        if not self._wanted.invited:
            return
        if seen.trouble:
            what, _, fix = seen.trouble.partition(" — ")
            self.findings.append(fail("invite", what, fix or "ask the run's operator for a new one"))
            return
        self.findings.append(ok("invite", f"lets this machine into run {self._invite.run!r}"))
        for about, question in (
            ("upload", self._question(payload=bytes(LOOK_LIMIT_BYTES))),
            ("download", self._question(want_bytes=LOOK_LIMIT_BYTES)),
        ):
            self.findings.append(judge_rate(about, 8 * await self._rate(channel, question)))

    def _question(self, **more: Any) -> Look:
        return Look(self._invite.run, self._invite.token, **more)

    def _address(self, seen: str, coordinator: str) -> Finding:
        from shoal.peer.whereabouts import advertised

        if not self._wanted.listen:
            return judge_address("", seen, "", 0)
        _, number = split_address(self._wanted.listen)
        try:
            told, told_port = split_address(advertised(self._wanted.advertise, self._wanted.listen, number, coordinator))
            own, _ = split_address(advertised("", "0.0.0.0:0", 0, coordinator))
        except UnreachableError as error:
            return fail("address", error.message, error.fix)
        return judge_address(own, seen, told, told_port, _addresses_of(told))

    async def _rate(self, channel: grpc.aio.Channel, question: Look) -> float:
        """Bytes per second of payload."""
        began = time.perf_counter()
        await LOOK.call(channel, question, 6 * ANSWER_S)
        took = time.perf_counter() - began
        if took > SLOW_ANSWER_S:
            return LOOK_LIMIT_BYTES / max(took - (self.trip_s or 0.0), took / 2)
        began, done = time.perf_counter(), 0

        async def ask_again_and_again() -> None:
            nonlocal done
            while time.perf_counter() - began < MEASURE_S:
                await LOOK.call(channel, question, 6 * ANSWER_S)
                done += 1

        await asyncio.gather(*(ask_again_and_again() for _ in range(AT_ONCE)))
        return done * LOOK_LIMIT_BYTES / (time.perf_counter() - began)
