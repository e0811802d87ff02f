"""What a node folds in because it was away is counted apart, and nothing is lost from the count."""

from __future__ import annotations

from pathlib import Path

from tests.integration.flock import WAIT_S, Node, wait_for

AWAY = 400
"""Updates that are made meanwhile."""
LEVEL = 64
"""One that is level may lack as many."""


def test_who_comes_back_is_not_stale_for_having_been_away(tmp_path: Path) -> None:
    first = Node("a", checkpoint=tmp_path / "a")
    other = Node("b", peers=[first.swarm.address], seed=1)
    there = [first, other]
    try:
        other.train(pause_s=0.002)
        for _ in range(5):
            first.step()
        first.swarm.leave()
        then = other.steps
        wait_for(lambda: other.steps >= then + AWAY)
        again = Node("a", checkpoint=tmp_path / "a", peers=[other.swarm.address], seed=2)
        there.append(again)
        for _ in range(20):
            again.step()
        other.stop()
        again.swarm.finish(WAIT_S)
        other.end()
        told, every = again.swarm.progress(), again.swarm.staleness
        assert told.applied == every.count == told.staleness.count + told.catching_up
        # What it lacks of a sum that it has in part comes with a snapshot, and is no update here.
        assert told.catching_up > LEVEL, "they came one by one, and were counted apart"
        assert told.staleness.mean < every.mean
        assert again.swarm.staleness_level.count == told.staleness.count
    finally:
        other.stop()
        other.end()
        for node in there:
            node.swarm.leave(timeout_s=0.2)
