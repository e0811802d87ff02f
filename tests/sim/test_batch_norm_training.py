"""A net with batch-norm in virtual time: every node evaluates as well as one that is alone."""

from __future__ import annotations

import pytest

from murmurate import workloads
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining

SECONDS = 120.0


def accuracies(nodes: int, **more: object) -> list[float]:
    task = VirtualTraining(
        workload=workloads.load("digits-bn"),
        nodes=nodes,
        **{"rule": "shared", **more},  # type: ignore[arg-type]
    )
    world = GossipWorld(task)
    world.events.run_until(SECONDS)
    world.finish()
    return [figures.accuracy for figures in world.figures()]


@pytest.mark.parametrize("more", [{}, {"delay_s": 4.0}, {"rule": "average"}], ids=str)
def test_it_is_not_worse_than_alone_on_any_node(more: dict[str, object]) -> None:
    (alone,) = accuracies(1)
    together = accuracies(3, **more)
    assert min(together) >= alone - 0.015, "five images of 360"
    assert max(together) - min(together) <= 0.003, "one image of 360, where weights are mixed"


def test_each_with_its_own_labels_all_evaluate_alike() -> None:
    """With statistics of its own labels each would do well on these and on few others."""
    together = accuracies(5, split="labels", data="own")
    assert max(together) == min(together) >= 0.8
