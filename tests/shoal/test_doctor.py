"""What `shoal doctor` finds on this machine, with the parts of it that are missing or taken pretended."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal import doctor
from shoal.doctor import Wanted


def shoal(*words: str, code: int) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-m", "shoal", "doctor", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout, done.stderr


def found(*words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    report = json.loads(shoal("--json", *words, code=code)[0])
    assert report["worst"] in ("ok", "warn", "fail")
    return {item["about"]: item for item in report["findings"]}


def test_this_machine_is_looked_at_for_people_and_as_json(tmp_path: Path) -> None:
    report = found("--state", str(tmp_path))
    for about in ("software", "device", "memory", "shared memory", "disk", "open files", "power", "port", "coordinator"):
        assert report[about]["level"] in ("ok", "warn"), report[about]
        assert bool(report[about]["fix"]) == (report[about]["level"] == "warn")
    assert report["coordinator"]["level"] == "warn"
    lines, errors = shoal("--state", str(tmp_path), code=0)
    assert errors == ""
    assert re.search(r"^ok    software +shoal ", lines)
    assert re.search(r"^warn  coordinator +not looked for\n +→ give the invite", lines, flags=re.MULTILINE)


def test_what_would_keep_it_from_joining_fails_with_its_fix_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        report = found("--listen", listen, "--state", str(tmp_path / "file" / "state"), "--device", "quantum", code=5)
        _, errors = shoal("--listen", listen, "--state", str(tmp_path), code=5)
    assert {about for about, item in report.items() if item["level"] == "fail"} == {"port", "disk", "device"}
    assert report["port"]["text"] == f"cannot listen on {listen}: Address already in use"
    assert report["disk"]["fix"] == "name another place with --state DIR"
    assert errors == "error: this machine is not ready to join: port — what to do stands beside each\n"


def test_an_invite_that_is_none_is_one_line(tmp_path: Path) -> None:
    _, errors = shoal("--state", str(tmp_path), "shoal-invite-1.damaged", code=2)
    assert re.fullmatch(r"error: the invite .* — .*\n", errors)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    shoal("--state", str(tmp_path / "state"), code=0)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_pytorch_cannot_use_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report: a silent fall-back to the CPU was noticed after a day."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None)
    finding = doctor.device("auto")
    assert finding.level == "warn"
    assert "has an NVIDIA GPU, but its PyTorch" in finding.text
    assert doctor.device("cpu").level == "ok"
    assert doctor.device("cuda").level == "fail"


def test_a_containers_limit_counts_as_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {
        "/sys/fs/cgroup/memory.max": "300000000\n",
        "/sys/fs/cgroup/memory.current": "250000000\n",
        "/sys/fs/cgroup/memory.stat": "anon 50000000\ninactive_file 200000000\nactive_file 0\n",
    }

    def read(path: Path, *_: object, **__: object) -> str:
        if str(path) in contents:
            return contents[str(path)]
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", read)
    assert doctor.available_memory() == 250e6  # what files are cached with is given back when somebody needs it
    contents["/sys/fs/cgroup/memory.max"] = "max\n"
    assert doctor.available_memory() > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert doctor.disk(tmp_path / "state").level == "fail"


def test_settings_of_another_system_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, *_: object, **__: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert doctor.tcp_settings() is None


def test_without_an_invite_and_a_run_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    abouts = [item.about for item in doctor.examine(Wanted(tmp_path, listen=""))]
    assert abouts[:3] == ["software", "device", "memory"]
    assert "coordinator" in abouts
