"""1,000 peers on the merge tree: traffic depends on a peer's degree, not on the number of peers."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from murmurate.core.message import Push
from murmurate.errors import PromiseBroken
from murmurate.study.sim.options import Options
from murmurate.study.sim.world import World

SMALL, LARGE = 32, 1000
MESH = 200
"""The full mesh is simulated up to this many: a payload to each of the others for every update."""
PACE_S = 0.5
"""An edge of the tree carries at most one push in this time; each peer publishes once in it."""
RATIO_MAX = 2.0


@dataclass(slots=True)
class ScaleResult:
    """Payloads (each the size of the model) that peers sent while all updates reached everyone."""

    peers: int
    topology: str
    updates: int
    applied: int
    sent_mean: float
    """Payloads per peer and pace interval, until all have all."""
    sent_max: float
    staleness_mean: float
    settle_s: float
    wall_s: float


class ScaleWorld(World):
    """Calm weather, everybody publishes once or twice; counts what each peer sends."""

    def __init__(self, seed: int, peers: int, topology: str) -> None:
        tree = topology == "tree"
        options = Options(
            nodes=(peers, peers),
            topology=topology,
            faults=False,
            faults_s=2 * PACE_S,
            updates_per_node=2,
            compact=False,
            exact=True,
            drain=False,
            pace_s=PACE_S if tree else 0.0,
            as_joined=False,
            form="",
            digest_interval_s=120.0,
            settle_s_max=120.0,
        )
        super().__init__(seed, options)
        self.sent: Counter[str] = Counter()

    def transmit(self, source: str, target: str, message: Any, time: float) -> None:
        if isinstance(message, Push):
            self.sent[source] += 1
        super().transmit(source, target, message, time)


def run(peers: int, topology: str, seed: int = 0) -> ScaleResult:
    started = time.monotonic()
    world = ScaleWorld(seed, peers, topology)
    end = world.run()
    sent = [world.sent[name] for name in world.nodes]
    updates = len(world.truth.names)
    intervals = end.virtual_s / PACE_S
    if end.applied != updates * peers:
        raise PromiseBroken("P5", f"{end.applied} applications of {updates} updates at {peers}")
    return ScaleResult(
        peers=peers,
        topology=topology,
        updates=updates,
        applied=end.applied,
        sent_mean=statistics.mean(sent) / intervals,
        sent_max=max(sent) / intervals,
        staleness_mean=world.truth.staleness_sum / end.applied,
        settle_s=end.settle_s,
        wall_s=time.monotonic() - started,
    )


def report(seed: int = 0, large: int = LARGE) -> Table:
    """The tree at both sizes, and the full mesh beside it."""
    results = [
        run(SMALL, "tree", seed),
        run(large, "tree", seed),
        run(SMALL, "full", seed),
        run(min(large, MESH), "full", seed),
    ]
    table = Table(
        "peers",
        "topology",
        "updates",
        "applied",
        "sent",
        "most",
        "staleness",
        "settled",
        title="scale",
    )
    for r in results:
        table.add_row(
            f"{r.peers:,}",
            r.topology,
            f"{r.updates:,}",
            f"{r.applied:,}",
            f"{r.sent_mean:.1f}",
            f"{r.sent_max:.1f}",
            f"{r.staleness_mean:.1f}",
            f"{r.settle_s:.1f}",
        )
    small, big = results[0], results[1]
    ratio = big.sent_mean / small.sent_mean
    if ratio > RATIO_MAX:
        raise PromiseBroken("scale", f"{ratio:.1f} times the traffic of {SMALL} peers")
    table.caption = (
        "sent, most: payloads per peer in 0.5 s, mean and largest; settled: virtual seconds"
        f" until all have all.\nTree: {ratio:.2f} times the traffic per peer of {SMALL} peers."
        f" Full mesh: {large - 1} payloads for each update at {large} peers."
    )
    return table
