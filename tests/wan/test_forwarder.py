"""Long wires: what they carry arrives late, whole, in order and no faster than it may."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.wan.forwarder import HEADER, Wire, wire_bytes
from tests.wan.internet import Internet


def plain(length: int) -> bytes:
    """A packet of so many bytes."""
    return HEADER.pack(0, 0, 0, 0, 0, 0) + bytes([length % 251]) * length


def test_a_packet_arrives_after_its_own_length_and_the_delay() -> None:
    wire = Wire(bytes_s=1000.0, delay_s=0.5, queue_s=10.0)
    assert wire.put(plain(100), now=5.0)
    assert wire.next_at() == pytest.approx(5.6)
    assert wire.arrived(5.59) == []
    assert wire.arrived(5.61) == [plain(100)]
    assert wire.next_at() is None


def test_packets_wait_for_one_another_and_not_for_the_delay_of_another() -> None:
    wire = Wire(bytes_s=1000.0, delay_s=0.5, queue_s=10.0)
    for length in (100, 200, 300):
        wire.put(plain(length), now=0.0)
    assert wire.arrived(0.5 + 0.3 + 1e-9) == [plain(100), plain(200)]
    assert wire.next_at() == pytest.approx(0.5 + 0.6)


def test_a_full_queue_drops_what_comes_last() -> None:
    wire = Wire(bytes_s=1000.0, delay_s=0.0, queue_s=0.25)
    assert [wire.put(plain(100), now=0.0) for _ in range(5)] == [True, True, True, False, False]
    assert wire.put(plain(100), now=0.2)


def test_a_wire_without_a_rate_only_delays() -> None:
    wire = Wire(bytes_s=0.0, delay_s=0.1, queue_s=0.0)
    assert all(wire.put(plain(1500), now=1.0) for _ in range(100))
    assert len(wire.arrived(1.1)) == 100


def test_each_segment_of_a_large_packet_has_headers_of_its_own_on_the_wire() -> None:
    headers, segment = 52, 1448
    large = HEADER.pack(1, 1, headers, segment, 0, 0) + b"x" * (headers + 10 * segment + 1)
    assert wire_bytes(large) == 11 * headers + 10 * segment + 1
    assert wire_bytes(plain(1500)) == 1500


@pytest.mark.network
def test_a_round_trip_between_far_homes_takes_four_times_the_delay_of_a_link(internet: Internet) -> None:
    """Never less; how much more is the machine's affair. And what is sent arrives as it was."""
    there = internet.home("there", mbit=100, delay_ms=20)
    internet.home("here", mbit=100, delay_ms=20)
    serve = (
        "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True); c = s.accept()[0]\n"
        "while data := c.recv(1 << 16): c.sendall(data)"
    )
    with internet.inside("there"):
        server = subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        ask = (
            "import os, socket, threading, time\n"
            f"began = time.monotonic(); c = socket.create_connection(({there!r}, 7000), 20); connected = time.monotonic() - began\n"
            "data = os.urandom(1 << 20); threading.Thread(target=c.sendall, args=(data,)).start(); back = b''\n"
            "while len(back) < len(data): back += c.recv(1 << 16)\n"
            "assert back == data; print(connected, time.monotonic() - began)"
        )
        with internet.inside("here"):
            said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
        connected_s, all_s = map(float, said.stdout.split())
        assert connected_s >= 0.08
        assert all_s >= connected_s + 0.08 + 2**20 / 12_500_000
    finally:
        server.kill()
        server.communicate()
