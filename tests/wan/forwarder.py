"""A long wire between two TUN devices: what goes in at one end comes out at the other, later, and no faster than it may.

A process of its own, started by `internet` with the two devices as open files; it ends with its standard input. Kernels of
containers often have no netem, but nearly all have TUN. Rule: packets pass as they are, large unsegmented ones included (the
device's header says how the kernel would have cut them, and the wire counts the headers of each piece), so that 1 Gb/s is two
thousand packets a second and not ninety thousand.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
OFFLOADS = 0x1 | 0x2 | 0x4
"""Checksums and segmentation (TSO for IPv4 and IPv6) are left to whoever needs them: linux/if_tun.h, TUN_F_*."""
HEADER = struct.Struct("=BBHHHH")
"""struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""
LARGEST = 70_000
AT_ONCE = 32
"""Packets taken from one device before the other one is looked at."""


def open_tun(name: str) -> int:
    """A new TUN device of this namespace, as an open file; it lives as long as the file, wherever it is moved."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETOFFLOAD, OFFLOADS)
    return device


def wire_bytes(packet: bytes) -> int:
    """How long a packet is on the wire: each segment of a large one has headers of its own."""
    _, gso_type, headers, segment, _, _ = HEADER.unpack_from(packet)
    length = len(packet) - HEADER.size
    if not gso_type or not segment:
        return length
    segments = -(-(length - headers) // segment)
    return length + (segments - 1) * headers


class Wire:
    """One direction: a rate (bytes per second, 0: no limit), a delay, and a queue that drops what would wait longer than it may."""

    def __init__(self, bytes_s: float, delay_s: float, queue_s: float) -> None:
        self.bytes_s, self.delay_s, self.queue_s = bytes_s, delay_s, queue_s
        self._free_at = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()

    def put(self, packet: bytes, now: float) -> bool:
        """A packet goes in. Whether the queue took it."""
        starts = max(now, self._free_at)
        if starts - now > self.queue_s:
            return False
        self._free_at = starts + (wire_bytes(packet) / self.bytes_s if self.bytes_s else 0.0)
        self._under_way.append((self._free_at + self.delay_s, packet))
        return True

    def arrived(self, now: float) -> list[bytes]:
        """What comes out by now, in order."""
        packets = []
        while self._under_way and self._under_way[0][0] <= now:
            packets.append(self._under_way.popleft()[1])
        return packets

    def next_at(self) -> float | None:
        """When the next packet comes out."""
        return self._under_way[0][0] if self._under_way else None


def forward(ends: tuple[int, int], wires: tuple[Wire, Wire]) -> None:
    """Carry packets between two devices until standard input ends: the first wire leads from the first to the second."""
    while True:
        now = time.monotonic()
        for to, wire in zip(reversed(ends), wires, strict=True):
            for packet in wire.arrived(now):
                with contextlib.suppress(OSError):  # a device that is down loses packets, as anywhere
                    os.write(to, packet)
        times = [at for wire in wires if (at := wire.next_at()) is not None]
        patience_s = max(0.0, min(times) - time.monotonic()) if times else None
        readable, _, _ = select.select((*ends, sys.stdin.fileno()), (), (), patience_s)
        if sys.stdin.fileno() in readable:
            return
        for end in readable:
            wire = wires[ends.index(end)]
            for _ in range(AT_ONCE):
                try:
                    packet = os.read(end, LARGEST)
                except OSError:  # nothing is there, or nothing any more
                    break
                wire.put(packet, time.monotonic())


if __name__ == "__main__":
    first, second = int(sys.argv[1]), int(sys.argv[2])
    settings = tuple(float(word) for word in sys.argv[3:6])
    forward((first, second), (Wire(*settings), Wire(*settings)))
