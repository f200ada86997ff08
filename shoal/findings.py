"""What a machine is like for a swarm, judged: each function takes what was measured and says ok, warn or fail, and what to do.

Rule: no function here looks at the machine (`doctor` does), so that every sentence can be tested. "fail" means that joining would
not work; "warn" that it would work badly, or for some only. Sizes are powers of ten, rates Mb/s, as they are sold.
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass

VAULT_BYTES, TRAINER_BYTES = 20, 24
"""Per parameter: in shared memory (16 in a run without error feedback); and for parameters, gradients, two moments, the base and
some more in the trainer."""

LONG_TRIP_S = 0.1
"""The round trip that a connection is judged by when none was measured: between continents."""
USABLE_WINDOW = 0.66
"""Of a socket buffer of which the kernel keeps its books, too: measured, 221 Mb/s at 100 ms and 4 MiB."""


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of a doctor's report."""

    about: str
    level: Level
    text: str
    fix: str = ""


def ok(about: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(about, Level.OK, text)


def warn(about: str, text: str, fix: str) -> Finding:
    """It will work, but."""
    return Finding(about, Level.WARN, text, fix)


def fail(about: str, text: str, fix: str) -> Finding:
    """It will not work."""
    return Finding(about, Level.FAIL, text, fix)


def size(count: float) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def parameters(count: float) -> str:
    """ "12 M parameters"."""
    return f"{count / 1e9:.1f} G parameters" if count >= 1e9 else f"{count / 1e6:.0f} M parameters"


# --- this machine ---------------------------------------------------------------------------------------------------------------


def judge_memory(available: float) -> Finding:
    """Memory that programs can have now, in bytes."""
    fits = available / (VAULT_BYTES + TRAINER_BYTES)
    text = f"{size(available)} to be had: a model of at most about {parameters(fits)}, on the CPU"
    fix = "close other programs, or give the container more"
    if available < 0.5e9:
        return fail("memory", f"{size(available)} to be had, of which PyTorch alone takes half a GB", fix)
    return warn("memory", text, fix) if available < 2e9 else ok("memory", text)


def judge_shared_memory(where: str, free: float, is_memory: bool) -> Finding:
    """Where the local copy of the model lies, and the bytes that are free there."""
    text = f"{size(free)} free in {where}: a model of at most about {parameters(free / VAULT_BYTES)}"
    if free < 16e6:
        return fail("shared memory", text, "remove what is left there (ls /dev/shm), or enlarge it (Docker: --shm-size 2g)")
    if not is_memory:
        return warn("shared memory", f"{text}; it is no shared memory, so it may be slow", "mount a tmpfs at /dev/shm")
    if free < 256e6:
        return warn("shared memory", text, "enlarge it: docker run --shm-size 2g, or mount -o remount,size=4G /dev/shm")
    return ok("shared memory", text)


def judge_disk(where: str, free: float | None) -> Finding:
    """The state directory and the bytes that are free there; None: it cannot be written."""
    if free is None:
        return fail("disk", f"{where} cannot be written", "name another place with --state DIR")
    text = f"{size(free)} free for {where}"
    fix = "make room, or name another place with --state DIR"
    if free < 50e6:
        return fail("disk", text, fix)
    return warn("disk", f"{text}: the finished model and a last copy lie there", fix) if free < 1e9 else ok("disk", text)


def judge_files(limit: float) -> Finding:
    """How many files (connections, too) a process may have open at most."""
    if limit < 256:
        return fail("open files", f"at most {limit:.0f}", "raise the limit: ulimit -Hn 4096")
    return ok("open files", f"at most {limit:.0f}" if limit < 1e9 else "as many as it takes")


def judge_power(on_battery: bool | None) -> Finding:
    """Where the power comes from."""
    if on_battery:
        return warn("power", "on battery", "plug it in; --pause-on-battery rests by itself")
    return ok("power", "no battery that tells" if on_battery is None else "plugged in")


# --- the network ----------------------------------------------------------------------------------------------------------------


def judge_clock(ahead_s: float, doubt_s: float, behind_limit_s: float, ahead_limit_s: float) -> Finding:
    """How far this machine's clock is ahead of the coordinator's, give or take, and how far off clocks may be for certificates that
    the coordinator gives now to be valid."""
    off = abs(ahead_s)
    text = f"{off:.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the coordinator's, give or take {doubt_s:.1f} s"
    fix = "set it right: timedatectl set-ntp true (or the coordinator's, if that is the wrong one)"
    if off - doubt_s > (ahead_limit_s if ahead_s > 0 else behind_limit_s):
        return fail("clock", f"{text}: here its certificates are {'valid no longer' if ahead_s > 0 else 'not valid yet'}", fix)
    return warn("clock", text, fix) if off - doubt_s > 30.0 else ok("clock", text)


def judge_rate(about: str, bits_per_s: float) -> Finding:
    """A rate to or from the coordinator."""
    million_s = 16e6 / bits_per_s  # a million parameters, a byte each, there and back by the lower bound
    text = f"{bits_per_s / 1e6:.1f} Mb/s: about {million_s:.2g} s per round for each million parameters"
    return warn(about, text, "use a cable, or leave long rounds to others") if bits_per_s < 5e6 else ok(about, text)


def judge_address(own: str, seen: str, advertised: str, port: int, leads_to: frozenset[str] = frozenset()) -> Finding:
    """This machine's address on the way to the coordinator, the one that the coordinator saw, and the host that others are told
    (empty: no inbound connections), which may be a name that leads to some addresses."""
    about = "address"
    if not advertised:
        return warn(
            about,
            "others cannot dial in: this peer only opens connections itself",
            "that is enough as long as one member can be dialled",
        )
    if advertised == seen or seen in leads_to:
        who = "others"
        if _is(seen, "is_loopback"):
            who = "only programs of this machine"
        elif _is(seen, "is_private"):
            who = "only machines of the same network"
        return ok(about, f"{who} reach this peer at {advertised}, the address that the coordinator sees it under")
    if own != advertised:
        fix = "check --advertise: does it lead here?" if leads_to else "check --advertise: this name leads nowhere"
        return warn(about, f"others are told {advertised}, the coordinator sees {seen}", fix)
    known = f":{port}" if port else ":PORT"
    return warn(
        about,
        f"others are told {own}, but the coordinator sees {seen}: a router lies between, and they cannot dial in",
        f"let it map a port to this machine and join with --listen 0.0.0.0{known} --advertise {seen}{known}, or with --listen ''",
    )


def _is(address: str, what: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(address), what))
    except ValueError:
        return False


@dataclass(frozen=True)
class TcpSettings:
    """What Linux does with long links."""

    congestion_control: str
    send_buffer: int
    """Largest, in bytes; so is the next."""
    receive_buffer: int
    slow_start_after_idle: bool


def judge_tcp(settings: TcpSettings, trip_s: float | None) -> list[Finding]:
    """The system's TCP settings, for a round trip that was measured or else a long one."""
    found = []
    if settings.congestion_control.startswith("bbr"):
        found.append(ok("tcp", f"congestion control {settings.congestion_control}"))
    else:
        found.append(
            warn(
                "tcp",
                f"congestion control {settings.congestion_control}: where 1 % of the packets are lost, a connection falls to "
                "about 2 of 100 Mb/s (bbr keeps 92)",
                "sudo modprobe tcp_bbr && sudo sysctl -w net.ipv4.tcp_congestion_control=bbr",
            )
        )
    trip = trip_s if trip_s is not None and trip_s > 0.001 else LONG_TRIP_S
    window = min(settings.send_buffer, settings.receive_buffer)
    rate = USABLE_WINDOW * window * 8 / trip
    text = f"buffers of {window / 2**20:.1f} MiB: at most {rate / 1e6:.0f} Mb/s per connection at {trip * 1000:.0f} ms"
    if rate < 50e6:
        sizes = '"4096 131072 16777216"'
        fix = f"sudo sysctl -w net.ipv4.tcp_wmem={sizes} net.ipv4.tcp_rmem={sizes}"
        found.append(warn("tcp buffers", text, fix))
    else:
        found.append(ok("tcp buffers", text))
    if settings.slow_start_after_idle:
        fix = "sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0"
        found.append(warn("tcp idle", "connections start slowly again after each round's training", fix))
    return found
