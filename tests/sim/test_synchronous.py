"""The synchronous mean in virtual time: one step of n batches, and a clock that waits for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from murmurate.errors import ConfigError
from murmurate.study.virtual.synchronous import SynchronousMean
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads import DataShare, parse_split
from murmurate.workloads.synthetic import Synthetic


def world(seconds: float, **more: Any) -> SynchronousMean:
    task = {"workload": Synthetic("2000"), "nodes": 4, "rule": "synchronous", **more}
    it = SynchronousMean(VirtualTraining(**task))
    it.events.run_until(seconds)
    return it


def model_bytes() -> int:
    return 4 * sum(p.numel() for p in Synthetic("2000").model().parameters())


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ({}, 100),
        ({"speeds": {"node-1": 0.1}}, 10),
        ({"delay_s": 1.0}, 50),
        ({"link_bytes_s": model_bytes() / 6}, 10),  # 1 + 2 * 3/4 * 6
        ({"nodes": 1, "delay_s": 1.0, "link_bytes_s": 1.0}, 100),  # there is nobody to wait for
    ],
)
def test_a_step_takes_as_long_as_the_slowest_and_the_links(
    more: dict[str, Any], steps: int
) -> None:
    it = world(100.001, **more)
    assert {one.steps for one in it.figures()} == {steps}
    for one in it.figures():
        speed = it.task.speed(one.name)
        assert one.wait_s == pytest.approx(steps * (it.step_s - 1 / speed))
        n = it.task.nodes
        assert one.bytes_sent == steps * round(2 * (n - 1) / n * model_bytes())


def test_it_is_one_optimizer_on_the_mean_of_all_gradients() -> None:
    it = world(5.5, nodes=3)
    workload = Synthetic("2000")
    torch.manual_seed(0)
    model = workload.model()
    optimizer = workload.optimizer(model)
    shares = [DataShare(k, 3, parse_split("none"), 0, workload.batch_size) for k in range(3)]
    batches = [workload.batches(share) for share in shares]
    for _ in range(5):
        optimizer.zero_grad()
        drawn = [next(each) for each in batches]
        together = tuple(torch.cat(parts) for parts in zip(*drawn, strict=True))
        workload.loss(model, together).backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), it.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_nobody_comes_or_goes() -> None:
    with pytest.raises(ConfigError, match="nobody comes or goes"):
        world(1.0, joins_s={"node-1": 1.0})


def test_one_that_dies_breaks_a_step_and_the_others_go_on() -> None:
    it = world(10.5, speeds={"node-1": 0.25})
    assert [one.steps for one in it.figures()] == [2, 2, 2, 2]
    it.kill("node-1")
    it.events.run_until(20.6)
    assert [one.steps for one in it.figures()] == [12, 2, 12, 12]
    it.kill("node-0")
    it.kill("node-0")
    it.events.run_until(20.7)
    it.finish()
    assert [one.state for one in it.figures()] == ["killed", "killed", "done", "done"]
    last = it.figures()[2]
    assert (last.applied, last.staleness.count, last.staleness.largest) == (38, 38, 0)


def test_when_all_are_dead_nothing_more_happens() -> None:
    it = world(2.5, nodes=2)
    it.kill("node-0")
    it.kill("node-1")
    it.events.run_until(10.0)
    assert [one.steps for one in it.figures()] == [2, 2]
    assert it.evaluate() is None
