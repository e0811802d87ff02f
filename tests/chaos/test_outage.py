"""A peer that was out of reach for a minute is heard again at once when it is back in reach."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.conftest import Figure, size
from tests.chaos.lab import START_S, Lab, Process

PAIRS = 4
OUTAGE_S, BACK_S = 60.0, 2.0


def test_reconnects_soon_after_an_outage(lab: Callable[..., Lab], figure: Figure) -> None:
    """Four pairs at once, each a swarm of its own: four samples for the time of one."""
    outage_s = size("OUTAGE_S", 20, OUTAGE_S)
    here = lab(300 + outage_s, net=True)
    spaces = here.network(2 * PAIRS)
    nodes: list[Process] = []
    for i in range(2 * PAIRS):
        peers = [here.at(i - 1)] if i % 2 else []
        options = {"run": f"pair{i // 2}", "listen": here.at(i), "peers": peers, "slow_s": 0.05}
        nodes.append(here.start(f"n{i}", namespace=spaces[i], **options))
    pairs = [(nodes[i], nodes[i + 1]) for i in range(0, 2 * PAIRS, 2)]
    here.wait(lambda: all(_met(here, a, b) for a, b in pairs), "meeting", START_S)
    here.rest(3.0)
    for i, space in enumerate(spaces):
        here.deafen([space], [i ^ 1])
        here.rest(0.37)  # so that their timers differ
    here.rest(outage_s)
    back_s = []
    healed = here.heal(spaces)
    for one, other in (*pairs, *((b, a) for a, b in pairs)):
        here.wait(lambda a=one, b=other: _first(a, b, healed), f"{one.name} hears", 60)  # type: ignore[misc]
        back_s.append((_first(one, other, healed) or 0.0) - healed)
    figure(
        "reconnect after an outage",
        f"{outage_s:g} s out of reach, 4 pairs: the first update of the other is applied"
        f" {min(back_s):.2f} to {max(back_s):.2f} s after healing",
        outage_s=outage_s,
        back_s=back_s,
    )
    assert not here.broken()
    assert max(back_s) <= BACK_S


def _met(here: Lab, one: Process, other: Process) -> bool:
    return here.knows(one, [other]) and here.knows(other, [one])


def _first(node: Process, other: Process, since: float) -> float | None:
    """When an update of that other was applied after that moment, to 0.1 s."""
    before = 0
    for line in node.lines("steps"):
        count = sum(n for life, n in line["count"].items() if life.startswith(other.name + "/"))
        if line["at"] < since:
            before = count
        elif count > before:
            return float(line["at"])
    return None
