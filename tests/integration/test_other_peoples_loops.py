"""What scripts of other people do inside the block: it ends well, or one line says what to do."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, same_weights, sgd, small, train_together
from torch import nn

import murmurate
from murmurate.errors import ConfigError


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


class Parts(nn.Module):
    """Two parts that a loop may call by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 32)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def stepped(nodes: list[Node], steps: int, *, parts: bool = False) -> None:
    for _ in range(steps):
        for node in nodes:
            x = torch.randn(32, 8, generator=node.data)
            node.optimizer.zero_grad()
            out = node.model.head(node.model.body(x)) if parts else node.model(x)
            (out - x.sum(1, keepdim=True)).square().mean().backward()
            node.optimizer.step()


@pytest.mark.parametrize("how", ["in parts", "in evaluation mode"])
def test_however_a_model_is_called_the_swarm_does_not_overshoot(how: str) -> None:
    """The first update of each counted as if it were alone, so that weights went three times as
    far; and in evaluation mode gradients were not taken where the rule wants them."""

    def farthest(how: str) -> float:
        torch.manual_seed(0)
        with flock(3, Parts, rule="shared", optimizer=momentum) as nodes:
            far = 0.0
            for _ in range(40):
                if how == "in evaluation mode":
                    for node in nodes:
                        node.model.eval()
                stepped(nodes, 4, parts=how == "in parts")
                far = max(far, float(nodes[0].weights().norm()))
            return far

    assert farthest(how) < 1.8 * farthest("as a whole")


def test_the_first_update_of_a_model_in_parts_is_of_one_among_others() -> None:
    with flock(2, Parts, rule="shared", optimizer=momentum, every=4) as nodes:
        first = nodes[1].weights()
        stepped(nodes[1:], 4, parts=True)
        nodes[1].swarm.publish()
        in_parts = (nodes[1].weights() - first).norm()
    with flock(2, Parts, rule="shared", optimizer=momentum, every=4) as nodes:
        first = nodes[1].weights()
        stepped(nodes[1:], 4)
        nodes[1].swarm.publish()
        whole = (nodes[1].weights() - first).norm()
    assert float(in_parts) < 1.3 * float(whole)


def test_a_model_may_be_traced_exported_and_transformed_between_steps() -> None:
    with flock(2, rule="shared", optimizer=momentum) as nodes:
        stepped_small(nodes, 24)
        node = nodes[0]
        x = torch.randn(4, 8)
        before = [parameter.detach().clone() for parameter in node.model.parameters()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is on its way out
            traced: Any = torch.jit.trace(node.model, x)
        exported = torch.export.export(node.model, (x,)).module()
        named = {name: each.detach() for name, each in node.model.named_parameters()}

        def loss(named: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.func.functional_call(node.model, named, (one[None],)).sum()
            return out

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(named, x)
        assert each["0.weight"].shape == (4, 8, 8)
        now = list(node.model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
        node.model.eval()
        with torch.no_grad():
            torch.testing.assert_close(traced(x), node.model(x))
            torch.testing.assert_close(exported(x), node.model(x))
        node.model.train()
        train_together(nodes, 8)
        same_weights(nodes)


def stepped_small(nodes: list[Node], steps: int) -> None:
    for _ in range(steps):
        for node in nodes:
            node.step()


def test_another_optimizer_midway_is_an_error() -> None:
    """Its steps would go to nobody, and the others' would undo them."""
    with flock(1, rule="shared") as (node,):
        for _ in range(4):
            node.step()
        node.optimizer = sgd(node.model)

        def with_another() -> None:
            for _ in range(40):
                node.step()

        with pytest.raises(ConfigError, match="is not called any more"):
            with_another()


def test_a_gradient_of_many_calls_is_no_mistake() -> None:
    with flock(1, rule="shared", optimizer=momentum) as (node,):
        for _ in range(3):
            for _ in range(40):
                node.loss(torch.randn(4, 8)).backward()
                with torch.no_grad():
                    node.model(torch.randn(4, 8))
            node.optimizer.step()
            node.optimizer.zero_grad()


def test_other_models_of_one_optimizer_are_said(caplog: pytest.LogCaptureFixture) -> None:
    model, other = small(), small()
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.01)
    murmurate.join(model, both, run="test").leave()
    assert "trains 4 parameters that are not of the model given to join()" in caplog.text


def test_a_layer_that_is_replaced_or_frozen_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with flock(1) as (node,):
        node.step()
        node.model[0].requires_grad_(False)
        node.step()
        assert "0.weight, 0.bias were frozen after join()" in caplog.text
        node.model[2] = nn.Linear(8, 1)
        node.optimizer.add_param_group({"params": list(node.model[2].parameters())})
        node.step()
        assert "2.weight, 2.bias came to the model" in caplog.text


class Followed(nn.Module):
    """With a mean of its own weights, as a teacher, and a mask that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()
        self.teacher = copy.deepcopy(self.body).requires_grad_(False)
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out


def test_what_changes_and_is_not_merged_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with flock(1, Followed) as (node,):
        for _ in range(3):
            node.step()
        assert "this peer's alone" not in caplog.text
        for _ in range(64):
            node.step()
            with torch.no_grad():
                for mean, now in zip(
                    node.model.teacher.parameters(), node.model.body.parameters(), strict=True
                ):
                    mean.lerp_(now, 0.1)
        assert "teacher.0.weight" in caplog.text
        assert caplog.text.count("this peer's alone") == 1
        assert "mask" not in caplog.text


def test_who_has_frozen_parameters_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Other ones on each peer are another model on each: nobody would know why it is no good."""
    with flock(1, Followed) as (node,):
        node.step()
    assert "teacher.0.weight, teacher.0.bias, teacher.2.weight and 1 more are frozen" in caplog.text
    assert caplog.text.count("load the same ones on every peer") == 1


def test_joining_in_inference_mode_is_said() -> None:
    model = small()
    with torch.inference_mode(), pytest.raises(ConfigError, match="inside torch"):
        murmurate.join(model, sgd(model), run="test")


def test_no_gradient_at_all_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with flock(1) as (node,):
        for _ in range(10):
            node.optimizer.zero_grad()
            node.loss(torch.randn(4, 8))
            node.optimizer.step()
    assert caplog.text.count("no parameter had a gradient") == 1


def test_a_loop_that_trains_a_copy_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    with murmurate.join(model, sgd(model), run="test"):
        other = copy.deepcopy(model)
        other(torch.randn(4, 8)).sum().backward()
        sgd(other).step()
    assert "neither was the model" in caplog.text


@pytest.mark.parametrize("rule", ["shared", "sum"])
def test_the_best_weights_loaded_at_the_end_of_the_block_are_said(
    rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They would be this peer's alone, or nobody's: all end with the swarm's."""
    with flock(2, rule=rule) as nodes:
        best = copy.deepcopy(nodes[0].model.state_dict())
        nodes[1].train(pause_s=0.005)
        for _ in range(12):
            nodes[0].step()
        nodes[0].swarm.publish()
        assert "after the last step" not in caplog.text
        nodes[0].model.load_state_dict(best)
        nodes[0].train(steps=nodes[0].steps)
        nodes[1].stop()
        for node in nodes:
            node.end()
        assert caplog.text.count("the parameters were changed after the last step") == 1
        for mine, others in zip(*(node.model.parameters() for node in nodes), strict=True):
            torch.testing.assert_close(mine, others)


def test_joining_again_without_leaving_is_said() -> None:
    """A cell of a notebook that is run twice."""
    model, again = small(), small()
    swarm = murmurate.join(model, sgd(model), run="test")
    with pytest.raises(ConfigError, match="this process is in it already"):
        murmurate.join(again, sgd(again), run="test")
    swarm.leave()
    murmurate.join(again, sgd(again), run="test").leave()


SCRIPT = """
import os, sys, torch, murmurate
model = torch.nn.Linear(2, 1)
other = torch.nn.Linear(2, 1)
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)
def step(optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
optimizer = sgd(model)
first = murmurate.join(other, sgd(other), run="test", name="first")
swarm = murmurate.join(model, optimizer, run="test", name="second", peers=[first.address])
"""


def said(rest: str) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT + rest],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "rest", ["step(optimizer)", "with swarm:\n    step(optimizer)\n    sys.exit()"]
)
def test_a_program_that_ends_without_waiting_says_so(rest: str) -> None:
    code, text = said(rest)
    assert code == 0
    assert "second leaves without waiting for the others" in text


def test_a_fork_of_a_node_is_none() -> None:
    """A process that a loop forks off neither trains in its name nor leaves for it."""
    code, text = said(
        """
with swarm:
    step(optimizer)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            step(optimizer)
        except murmurate.errors.ConfigError as error:
            print("in the fork:", error, flush=True)
        sys.exit(7)
    print("it ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("which leaves it", first.members["second"])
    step(optimizer)
    swarm.finish(0.1)
"""
    )
    assert code == 0, text
    assert "in the fork: this process was forked off the one that joined" in text
    assert "it ended with 7" in text
    assert "which leaves it alive" in text
