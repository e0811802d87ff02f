"""`join(mode="hub")` against a real hub, over real gRPC: members are threads here."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from tests.integration.centre import Coordinator, batch, model
from torch.nn.functional import cross_entropy

import murmurate
from murmurate.core.values.hub_settings import HubSettings
from murmurate.errors import ConfigError, MurmurateError, SchemaMismatch

LIMIT_S = 60.0


class Loop(threading.Thread):
    """An ordinary training loop, with nothing in it of a hub but `join`."""

    def __init__(self, it: Coordinator, name: str, steps: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.it, self.member_name, self.steps, self.pause_s = it, name, steps, pause_s
        self.optimizer: Any = None
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            net = model(seed=7)  # other weights than the hub's: they do not count
            self.optimizer = torch.optim.SGD(net.parameters(), lr=1e6, momentum=0.9)
            with murmurate.join(
                net,
                self.optimizer,
                run="test",
                mode="hub",
                coordinator=self.it.address,
                name=self.member_name,
            ):
                for step in range(self.steps):
                    x, y = batch(step)
                    self.optimizer.zero_grad()
                    cross_entropy(net(x), y).backward()
                    self.optimizer.step()
                    time.sleep(self.pause_s)
        except (MurmurateError, RuntimeError) as error:
            self.failed = error


@pytest.mark.parametrize("protocol", ["request-reply", "pipelined"])
def test_a_loop_trains_the_hubs_weights_and_every_gradient_counts_once(protocol: str) -> None:
    settings = HubSettings(lr=0.05, protocol=protocol)
    with Coordinator("async", founders=3, steps=1, hub=settings) as it:
        loops = [Loop(it, f"m{k}", 40, 0.002 * k) for k in range(3)]
        for loop in loops:
            loop.start()
        cut = threading.Event()
        while it.ask(lambda: it.solver.totals.pushes) < 30 and not cut.wait(0.02):
            assert not any(loop.failed for loop in loops)
        it.stop()  # every stream breaks, with pushes on their way; the solver stays
        it.start()
        for loop in loops:
            loop.join(LIMIT_S)
            assert not loop.is_alive()
            assert loop.failed is None
        totals, told = it.ask(lambda: (it.solver.totals, it.solver.more()["conservation"]))
        assert totals.steps == 120
        assert totals.samples == 120 * 16
        assert told["gradients"] == totals.pushes == told["updates"]
        if protocol == "request-reply":
            assert told["staleness"] + told["residual"] == told["presence"] - told["updates"]
        for value in it.weights().values():
            assert value.abs().max() < 100  # the loops' own rate of a million did nothing
        assert not any(loop.optimizer.state for loop in loops)


def test_what_cannot_be_is_one_line() -> None:
    net = model()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="mode 'hub' needs its address"):
        murmurate.join(net, sgd, run="test", mode="hub")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="only with mode 'ist'"):
        murmurate.join(net, sgd, run="test", mode="hub", coordinator="127.0.0.1:9", width=2.0)
    with (
        Coordinator("async", founders=1) as it,
        pytest.raises(SchemaMismatch, match="mode 'hub', this coordinator is of mode 'ist'"),
    ):
        murmurate.join(net, sgd, run="test", mode="hub", coordinator=it.address)
