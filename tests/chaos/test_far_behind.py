"""A node that was cut off for so long that the others have let go of what it lacks catches up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.conftest import Figure, size
from tests.chaos.figures import has_all, made_by
from tests.chaos.lab import Lab
from tests.chaos.test_cut import same_weights

NODES, AWAY = 4, 3
SAME_S = 15.0

CASES: dict[str, dict[str, Any]] = {
    # 4 MB each: the others keep 32 MiB of their own and sum up the rest
    "summed up": {"workload": "synthetic:1000000", "slow_s": 0.2},
    # what is dead for 3 s may be voted out: its life is over, it starts another
    "voted out": {"slow_s": 0.05, "core": {"forget_after_s": 3.0, "agree_interval_s": 1.0}},
}


@pytest.mark.parametrize("case", CASES)
def test_catches_up_after_long(
    case: str, lab: Callable[..., Lab], figure: Figure, tmp_path: Path
) -> None:
    away_s = size("AWAY_S", 20, 60)
    here = lab(300 + away_s, net=True)
    spaces = here.network(NODES)
    nodes = here.swarm(NODES, spaces=spaces, **CASES[case])
    here.rest(4.0)
    here.deafen(spaces[:AWAY], [AWAY])
    here.deafen(spaces[AWAY:], range(AWAY))
    here.rest(away_s)
    healed = here.heal(spaces)
    here.rest(0.5)
    others = made_by(nodes[:AWAY], healed)
    here.wait(lambda: has_all(nodes[AWAY], others), "what the others made", 60)
    caught_s = (has_all(nodes[AWAY], others) or 0.0) - healed
    here.wait(lambda: all(here.knows(n, nodes) for n in nodes), "meeting again", 30)
    here.rest(2.0)
    for node in nodes:
        node.tell("stop")
    here.wait(lambda: here.same_set(nodes), "the same set at the end", 30)
    here.end(nodes)
    apart = same_weights(nodes, tmp_path)
    adopted = nodes[AWAY].lines("adopted")[1:]
    lives = len(nodes[AWAY].lines("rejoin"))
    how = f"{len(adopted)} snapshots, {lives} new lives"
    figure(
        f"cut off for long ({case})",
        f"{away_s:g} s: all that the others had made is there {caught_s:.1f} s after healing"
        f" ({how}); weights differ by {apart:.0e}",
        away_s=away_s,
        caught_s=caught_s,
        snapshots=len(adopted),
        lives=lives,
        apart=apart,
    )
    assert not here.broken()
    assert apart < 1e-4
    assert caught_s <= SAME_S
    assert lives == (case == "voted out")
