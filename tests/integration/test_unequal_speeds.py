"""One whose steps take a thousand times as long as the others' is level with them at each step."""

from __future__ import annotations

import pytest
from tests.integration.flock import flock, wait_for

STEPS = 600
"""Of each of the others, in one of the slow one's. An outbox keeps 512 updates, a link few
messages."""


@pytest.mark.parametrize("rule", ["sum", "shared"])
def test_who_folds_rarely_folds_sums_and_is_level_after_each_step(rule: str) -> None:
    with flock(3, rule=rule, every=1) as (slow, *fast):
        for node in fast:
            node.train(pause_s=0.001)
        for step in range(4):
            marks = [node.steps + STEPS for node in fast]
            wait_for(
                lambda marks=marks: all(n.steps >= m for n, m in zip(fast, marks, strict=True)),  # type: ignore[misc]
                timeout_s=120.0,
            )
            before = len(slow.swarm.clock)
            made = len(fast[0].swarm.clock)
            slow.step()
            lag = len(fast[0].swarm.clock) - len(slow.swarm.clock)
            if step > 1:  # the first vote of a swarm goes on while the first steps are made
                assert made - before > STEPS / 4  # the pace makes updates of several steps
                assert lag < (made - before) / 4
        for node in fast:
            node.stop()
        slow.train(steps=slow.steps)
