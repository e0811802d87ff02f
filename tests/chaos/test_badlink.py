"""Two nodes over a link that delays, loses, doubles and reorders: they learn what they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.chaos.badlink import CALM, Link, Weather
from tests.chaos.conftest import Figure, size
from tests.chaos.figures import verdicts
from tests.chaos.lab import START_S, Lab

BAD = Weather()
SAMPLES = 320_000
POINT = 0.01


def test_the_link_does_what_it_says() -> None:
    """Counted on 20,000 packets, without a network."""
    link = Link(BAD)
    link.rng.seed(1)
    arrived: list[tuple[float, int]] = []
    for number in range(20_000):
        now = number / 1000
        link.enter(0, number.to_bytes(4, "big"), now)
        arrived += [(now - int.from_bytes(p, "big") / 1000, s) for s, p in link.leave(now)]
    count = link.counts
    assert abs(count["lost"] / count["in"] - 0.10) < 0.01
    assert abs(count["doubled"] / count["in"] - 0.045) < 0.01  # 5 % of those that were not lost
    assert abs(count["held"] / count["in"] - 0.0945) < 0.01
    assert {side for _, side in arrived} == {1}
    delays = sorted(delay for delay, _ in arrived)
    assert 0.039 < delays[0] < 0.045
    assert 0.048 < delays[len(delays) // 2] < 0.062


def test_a_calm_link_changes_nothing() -> None:
    link = Link(CALM)
    for number in range(100):
        link.enter(1, bytes([number]), 0.0)
    assert link.leave(0.0) == [(0, bytes([number])) for number in range(100)]


def test_learns_over_a_bad_link(lab: Callable[..., Lab], figure: Figure, tmp_path: Path) -> None:
    seeds = int(size("SEEDS", 2, 4))
    runs: dict[str, list[dict[str, Any]]] = {"calm": [], "bad": []}
    for seed in range(seeds):
        for weather in runs:  # taking turns
            with lab(400, net=True) as here:
                folder = here.folder = tmp_path / f"{weather}{seed}"
                folder.mkdir()
                runs[weather].append(_learn(here, weather, seed, folder))
    calm, bad = (float(np.mean([run["accuracy"] for run in runs[w]])) for w in ("calm", "bad"))
    lost = np.sum([[run["link"][key] for key in ("lost", "in")] for run in runs["bad"]], axis=0)
    figure(
        "bad link",
        f"50 ± 10 ms, 10 % loss, 5 % doubled, 10 % reordered ({int(lost[0]):,} of {int(lost[1]):,}"
        f" packets lost): accuracy {bad:.2%}, calm {calm:.2%} (means of {seeds} seeds), 0 promises"
        f" broken, weights differ by {max(run['apart'] for run in runs['bad']):.0e}",
        accuracy_bad=bad,
        accuracy_calm=calm,
        runs=runs,
    )
    assert all(run["apart"] < 1e-4 for run in (*runs["calm"], *runs["bad"]))
    assert bad >= calm - POINT


def _learn(here: Lab, weather: str, seed: int, folder: Path) -> dict[str, Any]:
    """Both learn until the budget is spent, and come to one set; the mean of their accuracies."""
    spaces = [here.namespace(f"{side}") for side in "ab"]
    addresses = ["10.78.0.1", "10.78.0.2"]
    link = here.helper(
        "tests.chaos.badlink", json.dumps({"spaces": spaces, "addresses": addresses, "seed": seed})
    )
    assert link.stdin is not None
    assert link.stdout is not None
    assert link.stdout.readline() == b"up\n"
    link.stdin.write(weather.encode() + b"\n")
    link.stdin.flush()
    assert link.stdout.readline()
    nodes = []
    for side in (0, 1):
        nodes.append(
            here.start(
                f"n{side}",
                namespace=spaces[side],
                listen=f"{addresses[side]}:7000",
                peers=[f"{addresses[0]}:7000"] if side else [],
                shard=(side, 2),
                seed=seed,
                data_seed=seed,
                slow_s=0.005,
                samples=SAMPLES,
                train=False,
            )
        )
    here.wait(lambda: all(here.knows(n, nodes) for n in nodes), "meeting", START_S)
    for node in nodes:
        node.tell("train")
    stopped = here.wait(lambda: all(n.last("stopped") for n in nodes), "the budget", 120)
    here.wait(lambda: here.same_set(nodes), "the same set", 30)
    link.stdin.write(weather.encode() + b"\n")
    link.stdin.flush()
    counts = json.loads(link.stdout.readline())
    here.end(nodes)
    assert not here.broken()
    weights = [np.load(folder / f"n{side}.npy", allow_pickle=False) for side in (0, 1)]
    apart = float(np.linalg.norm(weights[0] - weights[1]) / np.linalg.norm(weights[0]))
    ended = [line for n in nodes if (line := n.last("ended"))]
    return {
        "accuracy": sum(line["accuracy"] for line in ended) / 2,
        "updates": ended[0]["clock"]["updates"],
        "apart": apart,
        "link": counts,
        "dead": len(verdicts(nodes, "dead", until=stopped)),
        "suspect": len(verdicts(nodes, "suspect", until=stopped)),
    }
