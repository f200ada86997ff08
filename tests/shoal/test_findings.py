"""What a doctor says of numbers, and where ok ends and warn and fail begin."""

from __future__ import annotations

import pytest

from shoal.findings import (
    Finding,
    TcpSettings,
    judge_address,
    judge_clock,
    judge_disk,
    judge_files,
    judge_memory,
    judge_power,
    judge_rate,
    judge_shared_memory,
    judge_tcp,
)

HOUR, DAY = 3600.0, 86400.0
BBR = TcpSettings("bbr", 4 << 20, 6 << 20, False)


@pytest.mark.parametrize(
    ("finding", "level", "words"),
    [
        (judge_memory(16e9), "ok", "16.0 GB to be had: a model of at most about 364 M parameters"),
        (judge_memory(1.2e9), "warn", "1.2 GB"),
        (judge_memory(0.3e9), "fail", "300 MB to be had"),
        (judge_shared_memory("/dev/shm", 8e9, True), "ok", "8.0 GB free in /dev/shm: a model of at most about 400 M"),
        (judge_shared_memory("/dev/shm", 64e6, True), "warn", "64 MB free in /dev/shm: a model of at most about 3 M"),
        (judge_shared_memory("/dev/shm", 1e6, True), "fail", "1 MB free"),
        (judge_shared_memory("/tmp", 8e9, False), "warn", "it is no shared memory"),
        (judge_disk("/s", 5e9), "ok", "5.0 GB free for /s"),
        (judge_disk("/s", 0.5e9), "warn", "500 MB free"),
        (judge_disk("/s", 1e6), "fail", "1 MB free"),
        (judge_disk("/s", None), "fail", "/s cannot be written"),
        (judge_files(4096), "ok", "at most 4096"),
        (judge_files(float("inf")), "ok", "as many as it takes"),
        (judge_files(200), "fail", "at most 200"),
        (judge_power(True), "warn", "on battery"),
        (judge_power(False), "ok", "plugged in"),
        (judge_power(None), "ok", "no battery"),
        (judge_clock(0.02, 0.01, HOUR, DAY), "ok", "0.0 s ahead of the coordinator's"),
        (judge_clock(-29.0, 0.5, HOUR, DAY), "ok", "29.0 s behind the coordinator's, give or take 0.5 s"),
        (judge_clock(-600.0, 0.5, HOUR, DAY), "warn", "600.0 s behind"),
        (judge_clock(600.0, 0.5, HOUR, DAY), "warn", "600.0 s ahead"),
        (judge_clock(-HOUR - 1, 0.5, HOUR, DAY), "fail", "its certificates are not valid yet"),
        (judge_clock(-HOUR - 1, 5.0, HOUR, DAY), "warn", "give or take 5.0 s"),
        (judge_clock(HOUR + 1, 0.5, HOUR, DAY), "warn", "3601.0 s ahead"),
        (judge_clock(DAY + 1, 0.5, HOUR, DAY), "fail", "its certificates are valid no longer"),
        (judge_rate("upload", 40e6), "ok", "40.0 Mb/s: about 0.4 s per round for each million parameters"),
        (judge_rate("upload", 1e6), "warn", "1.0 Mb/s: about 16 s"),
        (judge_address("127.0.0.1", "127.0.0.1", "127.0.0.1", 0), "ok", "only programs of this machine reach this peer"),
        (judge_address("198.51.100.7", "198.51.100.7", "198.51.100.7", 0), "ok", "reach this peer at 198.51.100.7"),
        (judge_address("8.8.4.4", "8.8.4.4", "8.8.4.4", 0), "ok", "others reach this peer at 8.8.4.4"),
        (judge_address("192.168.1.5", "192.168.1.5", "192.168.1.5", 0), "ok", "only machines of the same network reach this peer"),
        (
            judge_address("10.0.0.5", "8.8.4.4", "my.name.org", 7700, frozenset({"8.8.4.4"})),
            "ok",
            "others reach this peer at my.name",
        ),
        (judge_address("10.0.0.5", "8.8.4.4", "my.name.org", 7700, frozenset({"8.8.8.8"})), "warn", "the coordinator sees 8.8.4.4"),
        (judge_address("192.168.1.5", "203.0.113.9", "203.0.113.9", 7700), "ok", "203.0.113.9"),
        (judge_address("192.168.1.5", "203.0.113.9", "192.168.1.5", 0), "warn", "a router lies between"),
        (judge_address("192.168.1.5", "203.0.113.9", "198.51.100.1", 0), "warn", "the coordinator sees 203.0.113.9"),
        (judge_address("", "203.0.113.9", "", 0), "warn", "others cannot dial in"),
    ],
)
def test_a_number_is_judged(finding: Finding, level: str, words: str) -> None:
    assert finding.level == level
    assert words in finding.text
    assert bool(finding.fix) == (level != "ok")


def test_a_peer_behind_a_router_is_told_what_to_join_with() -> None:
    fixed = judge_address("192.168.1.5", "203.0.113.9", "192.168.1.5", 7700).fix
    assert "--listen 0.0.0.0:7700 --advertise 203.0.113.9:7700" in fixed
    assert "--advertise 203.0.113.9:PORT" in judge_address("192.168.1.5", "203.0.113.9", "192.168.1.5", 0).fix


def levels(settings: TcpSettings, trip_s: float | None) -> list[tuple[str, str]]:
    return [(item.about, item.level.value) for item in judge_tcp(settings, trip_s)]


def test_tcp_settings_are_judged_by_what_they_cost_on_this_link() -> None:
    assert levels(BBR, None) == [("tcp", "ok"), ("tcp buffers", "ok")]
    assert "at most 221 Mb/s per connection at 100 ms" in judge_tcp(BBR, None)[1].text
    cubic = TcpSettings("cubic", 212_992, 6 << 20, True)
    assert levels(cubic, None) == [("tcp", "warn"), ("tcp buffers", "warn"), ("tcp idle", "warn")]
    assert ("tcp buffers", "ok") in levels(cubic, 0.01)
    assert "cubic" in judge_tcp(cubic, None)[0].text
    assert "2 of 100 Mb/s" in judge_tcp(cubic, None)[0].text
