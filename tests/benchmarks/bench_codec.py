"""How fast int8 encodes and decodes, against a plain copy of the same fp32 values. Run it, or call `run()`.

They are measured in turn, again and again, and compared by their medians, because other work on the machine comes and goes. A
daemon encodes into buffers that its threads keep, with its allocator settings; both are so here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from shoal.compression import Int8
from shoal.peer.allocator import settle_allocator

ENCODE_GOAL = 0.5
DECODE_ADD_GOAL = 0.8


def run(values: int = 64 << 20, part: int = 1 << 20, block: int = 1024, repeats: int = 7) -> list[dict[str, object]]:
    """Each result: name, value (times the speed of a memory copy, or GB/s of fp32), unit, goal (None: for information), met."""
    settle_allocator()
    codec = Int8(block)
    source = torch.randn(values)
    target = torch.zeros(values)
    spans = (part,)
    payloads = [codec.encode(source[at : at + part], spans) for at in range(0, values, part)]

    kept = [bytearray(codec.encoded_size(spans)) for _ in range(4)]

    def copy() -> None:
        target.copy_(source)

    def encode() -> None:
        for at in range(0, values, part):
            codec.encode(source[at : at + part], spans)

    def encode_into() -> None:
        for index, at in enumerate(range(0, values, part)):
            codec.encode_into(source[at : at + part], spans, kept[index % len(kept)])

    def decode_add() -> None:
        for index, payload in enumerate(payloads):
            codec.decode_add(payload, spans, target[index * part : (index + 1) * part], 0.5)

    def decode() -> None:
        for index, payload in enumerate(payloads):
            codec.decode(payload, spans, target[index * part : (index + 1) * part])

    jobs = {"copy": copy, "encode": encode, "encode into a kept buffer": encode_into, "decode_add": decode_add, "decode": decode}
    rate = _interleaved(jobs, 4 * values, repeats)
    return [
        _result("int8 encode against a memory copy", rate["encode into a kept buffer"] / rate["copy"], "x", ENCODE_GOAL),
        _result("int8 decode_add against a memory copy", rate["decode_add"] / rate["copy"], "x", DECODE_ADD_GOAL),
        _result("int8 encode into a fresh buffer against a memory copy", rate["encode"] / rate["copy"], "x", None),
        _result("int8 decode against a memory copy", rate["decode"] / rate["copy"], "x", None),
        *(_result(f"{name}, fp32 side", rate[name] / 1e9, "GB/s", None) for name in rate),
    ]


def _interleaved(jobs: dict[str, Callable[[], None]], moved_bytes: int, repeats: int) -> dict[str, float]:
    """Bytes per second of each job: the median over `repeats` turns, after one turn to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: moved_bytes / statistics.median(taken) for name, taken in seconds.items()}


def _result(name: str, value: float, unit: str, goal: float | None) -> dict[str, object]:
    return {"name": name, "value": round(value, 3), "unit": unit, "goal": goal, "met": goal is None or value >= goal}


if __name__ == "__main__":
    for result in run():
        print(result)
