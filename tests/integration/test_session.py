"""`murmurate.join()` with real sockets: what a person with an ordinary loop relies on."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, same_weights, sgd, small, train_together, wait_for
from torch import nn

import murmurate
from murmurate.core.effect import Deliver, Effect, Rejoin
from murmurate.core.message import Decided
from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    PeerExists,
    PeerUnavailable,
    SchemaMismatch,
)


def test_all_end_with_the_same_set_and_the_same_weights() -> None:
    with flock(3) as nodes:
        train_together(nodes, 40)
        same_weights(nodes)
        made = [node.swarm.progress().published for node in nodes]
        assert all(10 <= each <= 40 for each in made), "steps are added up only in a hurry"
        assert len(nodes[0].clock) == sum(made)
        for node in nodes:
            assert node.swarm.progress().applied == sum(made)
            assert node.swarm.staleness.count == sum(made)
            assert node.swarm.samples == 3 * 40 * 16
            assert node.swarm.members == dict.fromkeys(("n0", "n1", "n2"), "alive")


def test_the_model_itself_has_the_weights() -> None:
    with flock(2) as nodes:
        train_together(nodes, 10)
        for node in nodes:
            flat = torch.cat([p.detach().reshape(-1) for p in node.model.parameters()])
            torch.testing.assert_close(flat, node.weights(), rtol=1e-6, atol=1e-7)


def test_they_learn_together() -> None:
    with flock(2) as nodes:
        before = nodes[0].step()
        train_together(nodes, 300)
        assert nodes[0].step() < before / 2


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.001),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.001),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.001),
    "groups": lambda m: torch.optim.SGD([{"params": [p]} for p in m.parameters()], lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer(name: str) -> None:
    with flock(2, optimizer=OPTIMIZERS[name]) as nodes:
        train_together(nodes, 10)
        same_weights(nodes)


class Tied(nn.Module):
    """A weight used twice, batch-norm buffers, a frozen layer, and a layer of fewer bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8)
        self.narrow = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.out = nn.Linear(8, 8)
        self.out.weight = self.first.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.norm(self.first(x)))
        x = self.narrow(x.bfloat16()).float()
        out: torch.Tensor = self.out(x).mean(1, keepdim=True)
        return out


def test_any_model() -> None:
    nodes: list[Node] = []
    try:
        nodes = [Node("n0", model=Tied())]
        nodes.append(Node("n1", model=Tied(), seed=1, peers=[nodes[0].swarm.address]))
        frozen = nodes[1].model.frozen.weight.clone()
        train_together(nodes, 20)
        same_weights(nodes)
        first, second = (node.model for node in nodes)
        assert first.out.weight is first.first.weight
        assert torch.equal(second.frozen.weight, frozen), "frozen parameters stay at home"
        assert first.norm.num_batches_tracked == 20, "statistics stay at home"
        # The narrow layer shows the rounded weights: where replicas differ by a rounding of the
        # full ones, it may differ by one of its own steps.
        torch.testing.assert_close(first.narrow.weight, second.narrow.weight, rtol=0.02, atol=0.01)
    finally:
        for node in nodes:
            node.swarm.leave(timeout_s=0.2)


def test_several_local_steps_make_one_update() -> None:
    with flock(2, every=5) as nodes:
        train_together(nodes, 23)
        same_weights(nodes)
        assert [node.swarm.progress().published for node in nodes] == [5, 5]  # 4 and the rest


def test_members_with_different_intervals_are_let_in_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with flock(1, rule="shared", every=2) as (first,):
        second = Node("n1", peers=[first.swarm.address], seed=1, rule="shared", every=16)
        nodes = [first, second]
        try:
            for node in nodes:
                node.train(pause_s=0.002)
            wait_for(lambda: "n1: every 16 was asked for here" in caplog.text, "a word of one")
            wait_for(lambda: "n0: every 2 was asked for here" in caplog.text, "and of the other")
            for node in nodes:
                node.stop()
            for node in nodes:
                node.end()
            same_weights(nodes)
        finally:
            second.end()
            second.swarm.leave(timeout_s=0.2)


def test_an_interval_that_was_never_tried_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with flock(1, rule="shared", every=1000):
        assert "every 1000: rule 'shared' was measured to 128 local steps" in caplog.text


def test_a_late_joiner_has_everything_before_its_first_step() -> None:
    with flock(1) as nodes:
        for _ in range(30):
            nodes[0].step()
        late = Node("late", seed=9, peers=[nodes[0].swarm.address])
        nodes.append(late)
        assert len(late.clock) == 30
        same_weights(nodes)
        torch.testing.assert_close(late.model[0].weight, nodes[0].model[0].weight)
        train_together(nodes, 10)
        same_weights(nodes)


def test_who_leaves_takes_nothing_away_and_the_others_go_on() -> None:
    with flock(3) as nodes:
        for node in nodes:
            node.train()
        wait_for(lambda: all(node.steps > 20 for node in nodes))
        leaver = nodes.pop()
        leaver.stop()
        leaver._thread.join(0.5)  # type: ignore[union-attr]
        made = leaver.swarm.progress().published
        leaver.swarm.leave()
        went_on = nodes[0].steps + 20
        wait_for(lambda: nodes[0].steps > went_on)
        wait_for(lambda: nodes[0].swarm.members.get("n2") in ("left", None))
        for node in nodes:
            node.stop()
        for node in nodes:
            node.end()
        same_weights(nodes)
        everything = sum(node.swarm.progress().published for node in nodes) + made
        assert len(nodes[0].clock) == everything


def test_rule_average_brings_weights_together() -> None:
    with flock(3, rule="average") as nodes:
        for node in nodes:
            node.train(pause_s=0.002)
        wait_for(lambda: all(node.steps > 100 for node in nodes))
        for node in nodes:
            node.stop()
        for node in nodes:
            node.end()
        first = nodes[0].weights()
        for node in nodes[1:]:
            distance = torch.linalg.vector_norm(node.weights() - first)
            assert distance < 0.2 * torch.linalg.vector_norm(first)
        assert nodes[0].step() < 6.0


@pytest.mark.parametrize("topology", ["ring", "tree", "star", "exponential"])
def test_other_topologies(topology: str) -> None:
    with flock(4, topology=topology) as nodes:
        train_together(nodes, 15)
        same_weights(nodes)
        assert len(nodes[0].clock) == sum(node.swarm.progress().published for node in nodes)


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_step_that_is_not_finite_is_taken_back() -> None:
    with flock(2) as nodes:
        bad, good = nodes
        bad.step()
        before = bad.weights()
        bad.model[0].weight.grad.fill_(math.nan)
        bad.optimizer.step()
        assert torch.equal(bad.weights(), before)
        assert bad.swarm.progress().published == 1
        assert dict(bad.swarm.progress().rejected) == {"own_step": 1}
        torch.testing.assert_close(bad.model[0].weight.reshape(-1), before[:64])
        train_together(nodes, 5)
        same_weights(nodes)
        assert dict(good.swarm.progress().rejected) == {}


def test_steps_that_never_are_finite_are_an_error() -> None:
    with flock(1) as (node,):
        node.step()
        for parameter in node.model.parameters():
            parameter.grad = torch.full_like(parameter, math.inf)
        for _ in range(9):
            node.optimizer.step()
        with pytest.raises(LocalProtocolError, match="10 local steps in a row"):
            node.optimizer.step()


def test_a_failure_in_the_background_is_raised_at_the_next_step() -> None:
    with flock(1) as (node,):
        node.step()
        node.swarm.runtime.training.fail(LocalProtocolError("the sky fell"))
        with pytest.raises(LocalProtocolError, match="the sky fell"):
            node.step()
        node.swarm.leave(timeout_s=0.0)  # a wait would raise it again


def test_a_bug_in_a_link_is_raised_at_the_next_step() -> None:
    with flock(1) as (node,):
        node.swarm.runtime.ears.fault(ZeroDivisionError("a bug"))
        with pytest.raises(ZeroDivisionError):
            node.step()
        node.swarm.leave(timeout_s=0.0)  # a wait would raise it again


def does_next(node: Node, monkeypatch: pytest.MonkeyPatch, *effects: Effect) -> None:
    """What its peer asks for the next time it is looked after; wait until that was carried out."""
    peer = node.swarm.runtime.look(lambda here: here.peer)
    done = threading.Event()

    def tick(now: float) -> list[Effect]:
        monkeypatch.setattr(peer, "tick", ticked)
        done.set()
        return list(effects)

    ticked = peer.tick
    monkeypatch.setattr(peer, "tick", tick)
    assert done.wait(10.0)
    node.swarm.runtime.look(lambda here: None)  # that tick is over


def test_decisions_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are small messages, which no window of a link holds back."""
    with flock(1) as (node,):
        does_next(node, monkeypatch, *[Deliver("x", Decided(()))] * 1000)
        port = node.swarm.runtime.training
        assert 0 < len(port.waiting()) <= 64
        node.step()
        assert not port.waiting()


def test_who_was_voted_out_joins_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with flock(2) as nodes:
        train_together(nodes, 5)
        port = nodes[1].swarm.runtime.training
        first_life = port.life().epoch
        does_next(nodes[1], monkeypatch, Rejoin("for a test"))
        assert nodes[1].swarm.follow(lambda: port.synced, 10.0)
        assert port.life().epoch > first_life
        train_together(nodes, 5)
        same_weights(nodes)


def test_an_exception_in_the_loop_still_leaves_in_order() -> None:
    with flock(1) as nodes:
        nodes[0].train(pause_s=0.001)
        model = small()
        optimizer = sgd(model)
        with (
            pytest.raises(ZeroDivisionError),
            murmurate.join(
                model, optimizer, run="test", name="b", rule="sum", peers=[nodes[0].swarm.address]
            ),
        ):
            1 / 0  # noqa: B018
        wait_for(lambda: nodes[0].swarm.members.get("b") in ("left", None))
        assert not [t for t in threading.enumerate() if t.name == "murmurate"][1:]


def test_sigterm_leaves_in_order() -> None:
    with flock(1) as nodes:
        nodes[0].train(pause_s=0.001)
        code = f"""
            import torch, murmurate
            from tests.integration.flock import small, sgd
            model = small(); optimizer = sgd(model)
            with murmurate.join(
                model, optimizer, run="test", name="b", rule="sum",
                peers=[{nodes[0].swarm.address!r}]
            ) as swarm:
                print("ready", flush=True)
                while True:
                    optimizer.zero_grad(); model(torch.randn(4, 8)).mean().backward()
                    optimizer.step()
        """
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(15) == 128 + signal.SIGTERM
        child.stdout.close()
        wait_for(lambda: nodes[0].swarm.members.get("b") in ("left", None))


def join_small(**join: Any) -> None:
    model = join.pop("model", None) or small()
    swarm = murmurate.join(
        model,
        sgd(model),
        **{"run": "test", "name": "new", "rule": "sum", "join_timeout_s": 1.0, **join},
    )
    swarm.leave(timeout_s=0.0)
    pytest.fail("it was let in")


def test_a_peer_of_another_run_is_refused() -> None:
    with flock(1) as (node,), pytest.raises(SchemaMismatch, match="run 'test', this node 'other'"):
        join_small(run="other", peers=[node.swarm.address])


def test_a_peer_with_another_model_is_told_what_differs() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    with (
        flock(1) as (node,),
        pytest.raises(SchemaMismatch, match=r"it has 2\.weight float32\[1, 8\], here it is"),
    ):
        join_small(model=model, peers=[node.swarm.address])


def test_a_peer_with_another_rule_is_refused() -> None:
    with flock(1) as (node,), pytest.raises(SchemaMismatch, match="rule 'sum'"):
        join_small(rule="average", peers=[node.swarm.address])


def test_a_name_that_is_taken_is_refused() -> None:
    with flock(1) as (node,), pytest.raises(PeerExists, match="'n0' is taken by a live peer"):
        join_small(name="n0", peers=[node.swarm.address])


def test_nobody_there_is_said_in_one_line() -> None:
    with pytest.raises(PeerUnavailable, match=r"127\.0\.0\.1:1"):
        join_small(peers=["127.0.0.1:1"])


def test_oneself_is_not_a_peer() -> None:
    with flock(1) as (node,):
        port = int(node.swarm.address.rpartition(":")[2])
        node.swarm.leave(timeout_s=0.0)
    with pytest.raises(ConfigError, match="is this node itself"):
        join_small(listen=f"127.0.0.1:{port}", peers=[f"127.0.0.1:{port}"])


def test_a_port_in_use_is_said_in_one_line() -> None:
    with flock(1) as (node,), pytest.raises(ConfigError, match=node.swarm.address):
        join_small(listen=node.swarm.address)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rule": "median"}, "rule 'median': expected 'shared' or 'capped' or 'sum' or 'average'"),
        ({"topology": "torus"}, "topology 'torus': expected one of full, ring"),
        ({"every": 0}, "every 0: expected a whole number of local steps, 1 to 1,000,000"),
        ({"every": 2.5}, "every 2.5: expected a whole number"),
        ({"every": "4"}, "every '4': expected a whole number"),
        ({"every": 10**9}, "1 to 1,000,000"),
        ({"peers": "127.0.0.1:1"}, "expected a list of addresses"),
        ({"peers": ["h:1", "h:1"]}, "twice"),
        ({"name": ""}, "name"),
        ({"listen": "0.0.0.0:0"}, "insecure=True"),
        ({"listen": "nonsense"}, "nonsense"),
        ({"mode": "hub"}, "mode 'hub'"),
    ],
)
def test_arguments_that_cannot_be_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        join_small(**wrong)


def test_weights_that_are_not_finite_found_nothing() -> None:
    model = small()
    with torch.no_grad():
        next(model.parameters()).fill_(math.inf)
    with pytest.raises(ConfigError, match="not finite"):
        join_small(model=model)


def test_a_peer_that_is_frozen_costs_the_others_nothing() -> None:
    """It neither steps nor folds: what is for it is summed up, and it catches up later."""
    with flock(2) as nodes:
        quick, frozen = nodes
        for _ in range(400):
            quick.step()
        assert frozen.swarm.progress().applied == 0
        train_together(nodes, 5)
        same_weights(nodes)


def test_no_thread_or_port_is_left_behind() -> None:
    with flock(2):
        pass
    assert [t.name for t in threading.enumerate() if t.name == "murmurate"] == []
    assert os.getpid()
