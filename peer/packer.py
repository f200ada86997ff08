"""When to pack: zstd costs time and saves bytes, and which weighs more depends on the link and on the payload.

Rule: measured, not configured. Sending n bytes as they are takes n / rate; packing first takes n / speed + n / (gain * rate), and
pays where that is less: rate < speed * (1 - 1 / gain). Rates are measured per link from writes that had to wait, speed and gain per
kind of payload; unmeasured links get payloads as they are. One payload in PROBE_EVERY is packed to look again.

Neighbours: `compression.packing` does it, `exchange` asks.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from shoal.compression.packing import pack

KNOWN_BYTES = 4 << 20
"""A link's rate is known after this much: less may only have filled the buffers on the way."""
REMEMBERED_BYTES = 32 << 20
"""What was measured longer ago than about this much counts half."""
PROBE_EVERY = 64
FASTEST_LINK = 250e6
"""Bytes per second from which packing is not even tried: no payload of ours shrinks enough (1 GB/s and a third saved: 333e6 at
most)."""
LINKS_REMEMBERED = 512


@dataclass
class Rate:
    """Bytes per second, of late."""

    size: float = 0.0
    seconds: float = 0.0

    def add(self, size: float, seconds: float) -> None:
        """Something that took this long."""
        if self.size >= REMEMBERED_BYTES:
            self.size, self.seconds = self.size / 2, self.seconds / 2
        self.size, self.seconds = self.size + size, self.seconds + seconds

    @property
    def value(self) -> float:
        """0 while nothing is known."""
        return self.size / max(self.seconds, 1e-9) if self.size else 0.0


@dataclass
class Kind:
    """What packing does to one kind of payload."""

    speed: Rate = field(default_factory=Rate)
    packed: float = 0.0
    """Bytes that `speed.size` became."""
    asked: int = 0

    @property
    def gain(self) -> float:
        """Payload bytes per packed byte; 1 while nothing is known."""
        return self.speed.size / self.packed if self.packed else 1.0


class Packer:
    """What one daemon knows of its links and payloads. A link is any name; event loop and worker threads may ask."""

    def __init__(self) -> None:
        self._links: OrderedDict[str, Rate] = OrderedDict()
        self._kinds: dict[str, Kind] = {}
        self._lock = threading.Lock()

    def wrote(self, link: str, size: int, waited_s: float) -> None:
        """A link took `size` bytes, for which the writer waited so long."""
        with self._lock:
            self._links.setdefault(link, Rate()).add(size, waited_s)
            self._links.move_to_end(link)
            if len(self._links) > LINKS_REMEMBERED:
                self._links.popitem(last=False)

    def pays(self, link: str, kind: str) -> bool:
        """Whether the next payload of this kind should be packed for this link."""
        with self._lock:
            rate = self._links.get(link)
            if rate is None or rate.size < KNOWN_BYTES or rate.value > FASTEST_LINK:
                return False
            known = self._kinds.setdefault(kind, Kind())
            known.asked += 1
            return known.asked % PROBE_EVERY == 1 or rate.value < known.speed.value * (1.0 - 1.0 / known.gain)

    def pack(self, kind: str, payload: bytes | bytearray | memoryview) -> bytes | None:
        """In a worker thread: the packed payload, or None where that is not smaller."""
        began = time.perf_counter()
        packed = pack(payload)
        self.packed(kind, len(payload), len(packed), time.perf_counter() - began)
        return packed if len(packed) < len(payload) else None

    def packed(self, kind: str, size: int, packed: int, seconds: float) -> None:
        """What packing a payload brought."""
        with self._lock:
            known = self._kinds.setdefault(kind, Kind())
            if known.speed.size >= REMEMBERED_BYTES:
                known.packed /= 2
            known.speed.add(size, seconds)
            known.packed += packed
