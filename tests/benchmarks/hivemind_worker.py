"""One peer of hivemind's all-reduce, for `bench_hivemind`. It runs where hivemind is, and imports nothing of shoal.

Words on standard input: "match" forms the group, "go" reduces; each is answered with a line of JSON. Hivemind's 8-bit codec fails
without a word beside numpy 2.3, so the mean is looked at.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

PEERS = 4
MATCHING_S = 10.0
LIMIT_S = 200.0


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def main(home: int, host: str, parameters: int, first: str) -> None:
    import hivemind  # type: ignore[import-not-found]
    import torch
    from hivemind.averaging.control import AveragingStage  # type: ignore[import-not-found]
    from hivemind.compression import Uniform8BitQuantization  # type: ignore[import-not-found]
    from hivemind.utils import get_dht_time  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    peers = [first] if first else []
    dht = hivemind.DHT(host_maddrs=[f"/ip4/{host}/tcp/0"], initial_peers=peers, use_ipfs=False, start=True)
    value = torch.randn(parameters, generator=torch.Generator().manual_seed(home))
    averager = hivemind.DecentralizedAverager(
        [value.clone()],
        dht,
        start=True,
        prefix="bench",
        target_group_size=PEERS,
        min_matchmaking_time=MATCHING_S,
        request_timeout=MATCHING_S / 2,
        compression=Uniform8BitQuantization(),
        bandwidth=1.0,
    )
    say(address=str(dht.get_visible_maddrs()[0]))
    sample = slice(0, 10_000)
    mean = sum(torch.randn(parameters, generator=torch.Generator().manual_seed(at))[sample] for at in range(PEERS)) / PEERS
    for word in map(str.strip, sys.stdin):
        assert word == "match", word
        with averager.get_tensors() as tensors:
            tensors[0][:] = value
        when = get_dht_time() + MATCHING_S
        control = averager.step(scheduled_time=when, timeout=LIMIT_S, allow_retries=False, require_trigger=True, wait=False)
        while control.stage is not AveragingStage.AWAITING_TRIGGER and not control.done():
            time.sleep(0.05)
        say(matched=not control.done())
        assert sys.stdin.readline().strip() == "go"
        began = time.perf_counter()
        control.allow_allreduce()
        group = control.result(LIMIT_S)
        took_s = time.perf_counter() - began
        with averager.get_tensors() as tensors:
            error = float((tensors[0][sample] - mean).square().mean().sqrt())
        say(seconds=took_s, group=len(group or ()), error=error)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
