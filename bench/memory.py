"""Peak memory of a node, against a process that only imported torch and made an optimizer step.

Fresh interpreters, so that the peak is of nothing else. Two nodes train a model of the given size
with plain SGD; `alone` is the same loop without murmurate: parameters, gradients, activations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 2**20
STEPS = 40
WIDTH = 1024
LIMIT_S = 900.0


def peak_bytes() -> int:
    """The most this process ever had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def perceptron(parameters_bytes: int) -> Any:
    """Square layers up to about that size; a small batch, so that activations are nothing."""
    import torch

    torch.manual_seed(0)
    width = min(WIDTH, int((parameters_bytes / 4) ** 0.5))
    layers = max(1, round(parameters_bytes / 4 / width**2))
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))), width


def node(argv: list[str]) -> None:
    """One process: prints its address, reads its peers, trains, prints its peak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("torch", "alone", "node"))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--rule", default="sum")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--peer")
    options = parser.parse_args(argv)
    import torch

    # Any optimizer's first step loads torch's compiler (71 MiB): it is there in all three.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]).step()
    report: dict[str, Any] = {}
    if options.kind != "torch":
        torch.set_num_threads(1)
        model, width = perceptron(options.bytes)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=options.momentum)
        report["model"] = sum(p.numel() * p.element_size() for p in model.parameters())
        x = torch.randn(4, width)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        if options.kind == "alone":
            for _ in range(STEPS):
                step()
        else:
            report |= _swarm(options, model, optimizer, step)
    report["peak"] = peak_bytes()
    print(json.dumps(report), flush=True)


def _swarm(options: Any, model: Any, optimizer: Any, step: Any) -> dict[str, Any]:
    import murmurate
    from murmurate.core.codecs import following

    if options.narrow:  # whatever an update takes is too long: the codec follows
        following.STEPS_LONG = following.STEPS_SHORT = 0
    peers = [options.peer] if options.peer else []
    name = f"node-{options.rank}"
    with murmurate.join(
        model, optimizer, run="bench", name=name, peers=peers, rule=options.rule
    ) as swarm:
        print(swarm.address, flush=True)
        assert swarm.follow(lambda: len(swarm.members) == 2, LIMIT_S)
        before = peak_bytes()
        for _ in range(STEPS):
            step()
        assert swarm.settle(LIMIT_S)
        assert swarm.finish(LIMIT_S)
        mine = swarm.progress()
        others = [p for p in swarm.board if p.name != mine.name]
        # Some of the first steps may have come with the snapshot: they are in the clock.
        made = mine.published + sum(p.published for p in others)
        assert len(swarm.clock) == made, (swarm.clock, swarm.board)
        return {"joined": before, "published": mine.published}


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
    )


def _last(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def repetition(
    model_bytes: int, rule: str = "sum", momentum: float = 0.0, *, narrow: bool = False
) -> dict[str, float]:
    """MiB above a bare `import torch`, and in sizes of the model; the larger of two nodes.

    `narrow`: as if links were, so that updates go through a codec.
    """
    how = ("--bytes", str(model_bytes), "--rule", rule, "--momentum", str(momentum))
    how += ("--narrow",) if narrow else ()
    bare = _last(_start("torch"))["peak"]
    alone = _last(_start("alone", *how))["peak"]
    first = _start("node", *how)
    assert first.stdout is not None
    address = first.stdout.readline().strip()
    second = _start("node", "--rank", "1", *how, "--peer", address)
    reports = [_last(second), _last(first)]
    model, peak = reports[0]["model"], max(report["peak"] for report in reports)
    return {
        "model_mib": model / MIB,
        "extra_mib": (peak - bare) / MIB,
        "extra_models": (peak - bare) / model,
        "alone_mib": (alone - bare) / MIB,
        "beside_models": (peak - alone) / model,
        "over_goal_mib": (peak - bare - 4 * model) / MIB - 64,
        "published": min(report["published"] for report in reports),
    }


if __name__ == "__main__":
    node(sys.argv[1:])
