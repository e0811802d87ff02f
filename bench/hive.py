"""One peer of a hivemind averaging group: runs in the environment of `make bench-peers`.

    .venv-peers/bin/python bench/hive.py --bytes N [--peers MADDR …]

Says where it is, then does one exchange for each order on its standard input. The group is found
before (`require_trigger`), as hivemind's own optimizer does it ahead of time: timed is the
all-reduce alone, from `allow_allreduce()` to its result in the tensor.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import hivemind
import torch
from actors import orders, say
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage
from report import tree_cpu_s

LIMIT_S = 60.0
MATCHMAKING_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--part-bytes", type=int, default=4 << 20)
    parser.add_argument("--peers", nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    dht = hivemind.DHT(
        initial_peers=options.peers,
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        start=True,
        use_ipfs=False,
    )
    averager = DecentralizedAverager(
        [torch.zeros(options.bytes // 4)],
        dht,
        start=True,
        prefix="bench",
        target_group_size=2,
        min_group_size=2,
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=MATCHMAKING_S / 2,
        part_size_bytes=options.part_bytes,
        allow_state_sharing=False,
    )
    say(peers=[str(maddr) for maddr in dht.get_visible_maddrs()], version=hivemind.__version__)
    for order in orders():
        with averager.get_tensors() as (tensor,):
            tensor.copy_(torch.linspace(0.0, 1.0, tensor.numel()))
            tensor.mul_(1.0 + order["number"]).add_(2.0 * order["rank"] - 1.0)
            right = torch.linspace(0.0, 1.0, tensor.numel()).mul_(1.0 + order["number"])
        step = averager.step(wait=False, require_trigger=True, timeout=LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while step.stage is not AveragingStage.AWAITING_TRIGGER:
            assert time.monotonic() < deadline, "no group was found"
            time.sleep(0.005)
        say(armed=order["number"])
        sys.stdin.readline()  # both are
        cpu_s, began = tree_cpu_s(os.getpid()), time.monotonic()
        step.allow_allreduce()
        met = step.result(LIMIT_S)
        ended = time.monotonic()
        cpu_s = tree_cpu_s(os.getpid()) - cpu_s
        assert len(met or ()) == 2, f"averaged with {met}"
        with averager.get_tensors() as (tensor,):
            off = float((tensor - right).abs().max() / right.abs().max())
        say(began=began, ended=ended, off=off, cpu_s=cpu_s)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
