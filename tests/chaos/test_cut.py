"""Cuts: both halves train on, and come back to one set when they can hear each other again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.chaos.conftest import Figure, size
from tests.chaos.figures import has_all, made_by, rate
from tests.chaos.lab import Lab, Process

NODES = 8
BEFORE_S, CUT_S, SAME_S = 5.0, 30.0, 15.0
KEEPS_ON = 0.8
"""Of its rate before the cut, at least, for the slowest node."""


def same_weights(nodes: Sequence[Process], folder: Path) -> float:
    """The largest difference between two nodes that have ended, relative to the weights."""
    weights = [
        np.load(folder / f"{node.name}.npy", allow_pickle=False).astype(np.float64)
        for node in nodes
    ]
    size = np.linalg.norm(weights[0])
    return float(np.max([np.linalg.norm(mine - weights[0]) / size for mine in weights[1:]]))


@pytest.mark.parametrize("ways", ["both ways", "one way"])
def test_halves_train_on_and_meet_again(
    ways: str, lab: Callable[..., Lab], figure: Figure, tmp_path: Path
) -> None:
    cut_s = size("CUT_S", 12, CUT_S)
    here = lab(300 + cut_s, net=True)
    spaces = here.network(NODES)
    nodes = here.swarm(NODES, spaces=spaces, slow_s=0.05)
    here.rest(BEFORE_S)
    half = NODES // 2
    at = here.deafen(spaces[:half], range(half, NODES))
    if ways == "both ways":
        here.deafen(spaces[half:], range(half))
    here.rest(cut_s)
    healed = here.heal(spaces)
    here.rest(0.5)
    made = made_by(nodes, healed)
    here.wait(lambda: all(has_all(node, made) for node in nodes), "the same set", 60)
    same_s = max((has_all(node, made) or 0.0) - healed for node in nodes)
    met = here.wait(lambda: all(here.knows(n, nodes) for n in nodes), "meeting again", 60)
    for node in nodes:
        node.tell("stop")
    here.wait(lambda: here.same_set(nodes), "the same set at the end", 30)
    before, during = rate(nodes, at - BEFORE_S, at), rate(nodes, at, at + cut_s)
    gap_s = max(_longest_gap(node, at, healed + same_s) for node in nodes)
    here.end(nodes)
    apart = same_weights(nodes, tmp_path)
    figure(
        f"{NODES} nodes cut {half}/{half}, {ways}",
        f"{cut_s:g} s: the slowest trains at {during / before:.2f} of its rate, longest gap between"
        f" two steps {gap_s:.2f} s; same set {same_s:.1f} s after healing, all alive again by"
        f" {met - healed:.1f} s; weights differ by {apart:.0e}",
        ways=ways,
        cut_s=cut_s,
        rate_kept=during / before,
        gap_s=gap_s,
        same_s=same_s,
        met_s=met - healed,
        apart=apart,
    )
    assert not here.broken()
    assert during >= KEEPS_ON * before
    assert same_s <= SAME_S
    assert apart < 1e-4


def _longest_gap(node: Process, since: float, until: float) -> float:
    ends = [at for at, _ in node.steps(since, until)]
    return max(b - a for a, b in pairwise(ends))
