"""A storm of `kill -9`: whoever has its folder comes back as itself, and nothing is applied twice.

A node that is killed is started again at once, at the same address, with its checkpoints; while it
imports torch the next one is killed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.conftest import Figure, size
from tests.chaos.lab import START_S, Lab, Process, free_ports
from tests.chaos.test_cut import same_weights

NODES = 8
EVERY_S = 3.0
SAME_S = 15.0


def test_a_storm_of_kills(lab: Callable[..., Lab], figure: Figure, tmp_path: Path) -> None:
    seconds = size("STORM_S", 20, 120)
    here = lab(seconds + 500)
    rng = random.Random(0)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(NODES)]

    def start(i: int, *, peers: list[str]) -> Process:
        options: dict[str, Any] = {"checkpoint": str(tmp_path / f"disk{i}"), "checkpoint_s": 2.0}
        return here.start(
            f"n{i}", listen=addresses[i], peers=peers, shard=(i, NODES), slow_s=0.05, join=options
        )

    nodes = [start(i, peers=addresses[:1] if i else []) for i in range(NODES)]
    here.wait(lambda: all(n.last("joined") for n in nodes), "joining", START_S)
    here.wait(lambda: all(here.knows(n, nodes) for n in nodes), "meeting", 60)
    here.rest(3.0)
    began = time.monotonic()
    kills = 0
    back_s: list[float] = []
    at = began
    while time.monotonic() < began + seconds:
        up = [i for i in range(NODES) if nodes[i].last("joined")]
        if len(up) > NODES // 2:  # a majority stays, else nobody has anything to come back to
            i = rng.choice(up)
            at = nodes[i].kill()
            kills += 1
            nodes[i] = start(i, peers=[a for j, a in enumerate(addresses) if j != i])
        here.rest(EVERY_S)
    here.wait(lambda: all(n.last("joined") for n in nodes), "coming back", START_S)
    for process in here.nodes:
        joining, joined = process.last("joining"), process.last("joined")
        if process.options["out"].endswith(".1.jsonl") or joining is None or joined is None:
            continue
        back_s.append(joined["at"] - joining["at"])
        assert joined["name"] == process.name, "it came back as somebody else"
    back = max(n.last("joined")["at"] for n in nodes)  # type: ignore[index]
    for node in nodes:
        node.tell("stop")
    same = here.wait(lambda: here.same_set(nodes), "the same set", 60)
    here.end(nodes)
    apart = same_weights(nodes, tmp_path)
    broken = here.broken()
    figure(
        "kill storm",
        f"{kills} kills of {NODES} in {seconds:g} s: {len(broken)} double applies, all came back as"
        f" themselves, in at most {max(back_s):.1f} s once they could listen; the same set"
        f" {same - at:.1f} s after the last kill, {same - back:.1f} s after the last had joined;"
        f" weights differ by {apart:.0e}",
        kills=kills,
        seconds=seconds,
        broken=len(broken),
        back_s=back_s,
        same_s=same - at,
        same_after_join_s=same - back,
        apart=apart,
    )
    assert not broken
    assert apart < 1e-4
    assert same - at <= SAME_S
