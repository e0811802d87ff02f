"""Peers that each have labels of their own, with Adam, in virtual time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from murmurate.core.layout import Layout
from murmurate.study.virtual import gossip
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads.synthetic import Synthetic

NODES = 5


class Adams(Synthetic):
    """Clouds, trained with Adam."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.003)


def trained(seconds: float = 80.0, delay_s: float = 1.0) -> gossip.GossipWorld:
    clouds = Adams("2000")
    clouds.batch_size = 32
    task = VirtualTraining(
        workload=clouds, nodes=NODES, rule="shared", split="labels", data="own", delay_s=delay_s
    )
    it = gossip.GossipWorld(task)
    it.events.run_until(seconds)
    it.settle()
    it.evaluate()
    return it


def test_everybodys_second_moment_is_better_than_each_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(1)
    with_them = trained()
    first = with_them.nodes["node-0"]
    assert first.publisher.moments
    own = torch.stack([node.publisher.moments.merged.own for node in with_them.nodes.values()])
    found = first.peer.replica.weights[first.layout.moments]
    off = float((found - own.mean(0)).norm() / own.mean(0).norm())
    assert off < 0.1, off

    def plain(model: nn.Module, *_: object) -> object:
        return Layout.of(model, statistics=True)

    monkeypatch.setattr(gossip, "layout_of", plain)
    without = trained()
    assert not without.nodes["node-0"].publisher.moments
    found_with, found_without = first.figures, without.nodes["node-0"].figures
    assert found_with.accuracy > found_without.accuracy + 0.2  # 66 and 25 %
    assert found_with.test_loss < 0.75 * found_without.test_loss
