"""`murmurate plan`: what happens if so many peers are added, before they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from murmurate.errors import ConfigError
from murmurate.study.plan.advice import advice
from murmurate.study.plan.prediction import (
    Circumstances,
    Forecast,
    Peers,
    gossip,
    hub,
    synchronous,
)
from murmurate.study.virtual.costs import parse_costs

PLAIN_WIDTH = 140
PEERS_MAX = 10_000


def parse_peers(option: str, text: str) -> Peers:
    """`4`, or `4@0.25`: so many of that speed."""
    match = re.fullmatch(r"(\d+)(?:@(\d+\.?\d*|\.\d+))?", text)
    if match is None or not 1 <= int(match[1]) <= PEERS_MAX or float(match[2] or 1) <= 0:
        raise ConfigError(f"{option} {text!r}: N[@SPEED], such as 4 or 4@0.25")
    return Peers(count=int(match[1]), speed=float(match[2] or 1))


def circumstances(
    *,
    peers: Sequence[str],
    step: str,
    fold: str | None,
    batch_size: int,
    parameters: int,
    delay_s: float,
    link_bytes_s: float | None,
    every: int,
    flops: float | None = None,
) -> Circumstances:
    costs = parse_costs(step, fold)
    if costs.step is None or costs.fold_s is None:
        raise ConfigError("--step-s, --fold-s measured: only with --workload")
    return Circumstances(
        peers=[parse_peers("--peers", each) for each in peers],
        step_s=costs.step[0] + costs.step[1] * batch_size,
        batch_size=batch_size,
        parameters=parameters,
        fold_s=costs.fold_s,
        delay_s=delay_s,
        link_bytes_s=link_bytes_s,
        every=every,
        flops_per_sample=flops,
    )


def of_workload(name: str, data: str | None, batch_size: int | None) -> dict[str, Any]:
    """Parameters, batch, operations, and a calibration: what a workload can say of itself."""
    import torch

    from murmurate.study.virtual.calibration import calibrate
    from murmurate.workloads import DataShare, load, parse_split
    from murmurate.workloads.flops import flops_per_sample

    workload = load(name, data=data, batch_size=batch_size)
    torch.manual_seed(0)
    model = workload.model()
    share = DataShare(
        index=0, count=1, split=parse_split("none"), seed=0, batch_size=workload.batch_size
    )
    costs = calibrate(workload)
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "batch_size": workload.batch_size,
        "flops": flops_per_sample(workload, model, next(workload.batches(share))) or None,
        "step": f"{costs.step_s:.3g}+{costs.sample_s:.3g}",
        "fold": f"{costs.fold_s:.3g}",
    }


def of_status(status: dict[str, Any], batch_size: int) -> Circumstances:
    """A running swarm as it is now: rates are measured, so speeds are relative to the fastest."""
    rows = [row for row in status["members"] if row["state"] == "alive" and row["samples_per_s"]]
    if not rows:
        raise ConfigError("nobody has trained yet: ask again in a moment")
    fastest = max(row["samples_per_s"] for row in rows)
    delays = [row["delay_s"] for row in rows if row.get("delay_s") is not None]
    return Circumstances(
        peers=[Peers(count=1, speed=row["samples_per_s"] / fastest) for row in rows],
        step_s=batch_size / fastest,
        batch_size=batch_size,
        parameters=status["parameters"],
        delay_s=sum(delays) / len(delays) if delays else 0.0,
    )


def forecasts(told: Circumstances) -> dict[str, Forecast]:
    made = {
        "gossip": gossip(told),
        "hub, K = 1": hub(told),
        f"hub, K = {told.n}": hub(told, k=told.n),
        "in step": synchronous(told),
    }
    return dict(list(made.items())[:1]) if told.n == 1 else made


def tell(now: Circumstances, then: Circumstances | None, *, as_json: bool) -> int:
    both = [("now", now)] + ([("then", then)] if then is not None else [])
    if as_json:
        made = {
            name: {
                "peers": told.n,
                "cc_ratio": told.cc_ratio,
                "forecast": {mode: asdict(each) for mode, each in forecasts(told).items()},
                "advice": advice(told),
            }
            for name, told in both
        }
        print(json.dumps(made, indent=2))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH, soft_wrap=True)
    for name, told in both:
        title = f"{name}: {told.n} peers, a model of {told.model_bytes / 1e6:,.3g} MB"
        if told.cc_ratio is not None:
            title += f", CC ratio {told.cc_ratio:,.0f}"
        table = Table(title=title, title_justify="left", box=None)
        table.add_column("mode")
        heads = ("samples/s", "updates/s", "staleness", "out MB/s", "in MB/s", "memory MB")
        for head in heads:
            table.add_column(head, justify="right")
        table.add_column("limit")
        for mode, each in forecasts(told).items():
            stale = "-" if each.staleness is None else f"{each.staleness:.2f}"
            table.add_row(
                mode,
                f"{each.samples_per_s:,.1f}",
                f"{each.updates_per_s:,.2f}",
                stale,
                f"{each.bytes_out_s / 1e6:,.2f}",
                f"{each.bytes_in_s / 1e6:,.2f}",
                f"{each.memory_bytes / 1e6:,.0f}",
                each.limit,
            )
        console.print(table)
        for sentence in advice(told):
            console.print(f"- {sentence}")
    return 0


def added(now: Circumstances, more: Sequence[str]) -> Circumstances | None:
    if not more:
        return None
    return replace(now, peers=[*now.peers, *(parse_peers("--add", each) for each in more)])
