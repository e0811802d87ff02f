"""SIGKILL: the dead are noticed, and nobody else is held up."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.chaos.conftest import Figure, size
from tests.chaos.figures import dead_at, quantile
from tests.chaos.lab import START_S, Lab, Process

NODES = 8
QUIET_S, WINDOW_S = 4.0, 6.0
"""Before each kill steps are as usual; after it they are watched this long."""
SEEN_S = 3.0
EXCESS_S = 0.1


def test_a_killed_node_is_noticed_and_delays_nobody(
    lab: Callable[..., Lab], figure: Figure
) -> None:
    kills = int(size("KILLS", 3, 20))
    here = lab(240 + 40 * kills)
    rng = random.Random(0)
    nodes = here.swarm(NODES, slow_s=0.05)
    seen_s: list[float] = []
    usual: dict[Process, list[float]] = {}
    after: dict[Process, list[float]] = {}
    swept: dict[Process, list[float]] = {}
    for number in range(kills):
        here.rest(QUIET_S)
        victim = rng.choice(nodes)
        at = victim.kill()
        nodes.remove(victim)
        here.rest(WINDOW_S)
        for node in nodes:
            noticed = dead_at(node, victim.name, at)
            assert noticed is not None, f"{node.name} has not noticed in {WINDOW_S} s"
            seen_s.append(noticed - at)
            usual.setdefault(node, []).extend(t for _, t in node.steps(at - QUIET_S, at))
            for end, took_s in node.steps(at, at + WINDOW_S):
                kind = swept if _swept(node, end - took_s, end) else after
                kind.setdefault(node, []).append(took_s)
        if number + 1 < kills:
            nodes.append(_another(here, nodes, number))
    # Usual, on cores that everybody shares: what a step takes at most in 999 of 1,000 cases when
    # nobody was killed. Of a node that was there for one or two kills that is its longest. Steps in
    # which Python collected all its garbage (once in a minute or two, kill or no kill) are apart.
    excess_s, all_s, usual_s, control_s = -1.0, -1.0, 0.0, 0.0
    for node in usual:
        mine_s = quantile(usual[node], 0.999)
        usual_s = max(usual_s, mine_s)
        control_s = max(control_s, max(usual[node]) - mine_s)
        excess_s = max(excess_s, max(after[node]) - mine_s)
        all_s = max(all_s, max(after[node] + swept.get(node, [])) - mine_s)
    p99_s = quantile(seen_s, 0.99)
    swept_s = max((took_s for steps in swept.values() for took_s in steps), default=0.0)
    figure(
        "kill -9 of one of 8",
        f"{kills} kills, seen by all others after {quantile(seen_s, 0.5):.2f} s (median),"
        f" {p99_s:.2f} s (p99), {max(seen_s):.2f} s (max); longest step of a survivor"
        f" {1e3 * excess_s:+.0f} ms against its usual p99.9 (at most {1e3 * usual_s:.0f} ms;"
        f" without a kill {1e3 * control_s:+.0f} ms); {sum(map(len, swept.values()))} steps with a"
        f" full garbage collection in them, up to {1e3 * swept_s:.0f} ms ({1e3 * all_s:+.0f}"
        f" ms if they count)",
        kills=kills,
        seen_median_s=quantile(seen_s, 0.5),
        seen_p99_s=p99_s,
        seen_max_s=max(seen_s),
        excess_s=excess_s,
        excess_with_collections_s=all_s,
        usual_p999_s=usual_s,
        control_excess_s=control_s,
        swept=sum(map(len, swept.values())),
        swept_max_s=swept_s,
        steps_usual=sum(map(len, usual.values())),
        steps_after=sum(map(len, after.values())),
    )
    assert not here.broken()
    assert p99_s <= SEEN_S
    assert excess_s <= EXCESS_S


def _swept(node: Process, since: float, until: float) -> bool:
    """Whether a full garbage collection ended in that time."""
    lines = [line for line in node.lines("gc") if line["generation"] == 2]
    return any(since <= line["at"] <= until for line in lines)


def _another(here: Lab, nodes: list[Process], number: int) -> Process:
    """A newcomer in the place of the one that was killed, once all have met it."""
    joined = nodes[0].last("joined")
    assert joined is not None
    new = here.start(f"m{number}", peers=[joined["address"]], slow_s=0.05, shard=(0, 1))
    here.wait(lambda: all(here.knows(node, [new]) for node in nodes), "meeting a newcomer", START_S)
    return new
