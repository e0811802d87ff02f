"""What a script can get wrong around `join()`: each ends in one line that says what to do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, same_weights, sgd, small, train_together
from torch import nn

import murmurate
from murmurate.errors import ConfigError


class Accelerated(torch.optim.Optimizer):
    """As accelerate wraps one: of the class, and without what torch puts into it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def threads() -> int:
    return len([each for each in threading.enumerate() if each.name.startswith("murmurate")])


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (lambda _: None, "optimizer: expected a torch.optim.Optimizer or a list of them, not None"),
        (lambda _: [], "optimizer: the list is empty"),
        (lambda model: model.parameters(), "not builtins.generator"),
        (lambda _: sgd(small()), "none of its parameters are of this model"),
        (lambda model: [sgd(model), sgd(small())], "none of its parameters are of this model"),
        (lambda model: [sgd(model)] * 2, "one stands twice in the list"),
    ],
)
def test_what_is_no_optimizer_of_this_model_is_said_before_anybody_is_asked(
    optimizer: Any, says: str
) -> None:
    model, before = small(), threads()
    with pytest.raises(ConfigError, match=says):
        murmurate.join(model, optimizer(model), run="test", peers=["127.0.0.1:1"])
    assert threads() == before


def test_model_and_optimizer_swapped() -> None:
    model = small()
    with pytest.raises(ConfigError, match="swapped"):
        murmurate.join(sgd(model), model, run="test")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"model: expected a torch\.nn\.Module, not builtins"):
        murmurate.join("model", sgd(model), run="test")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"run": 3}, "run 3: expected a name"),
        ({"name": 3}, "name 3: expected a name"),
        ({"wait_for": "3"}, "wait_for '3': expected a whole number"),
        ({"listen": 7000}, "listen 7000: expected host:port"),
        ({"metrics": 9100}, "metrics 9100: expected host:port"),
        ({"codec": None}, "codec None: expected text"),
        ({"join_timeout_s": "x"}, "join_timeout_s 'x': expected a number of seconds"),
        ({"peers": "10.0.0.5:7000"}, "expected a list of addresses"),
        ({"peers": ["10.0.0.5"]}, "peers '10.0.0.5': expected host:port"),
        ({"peers": ["http://10.0.0.5:7000"]}, "expected host:port"),
        ({"peers": ["0.0.0.0:7000"]}, "stands for all interfaces"),
        ({"peers": ["10.0.0.5:0"]}, "port 0 is none"),
        ({"peers": [7000]}, "peers 7000: expected host:port"),
        ({"mode": "hub", "coordinator": 7000}, "coordinator 7000: expected host:port"),
    ],
)
def test_what_is_of_another_kind_is_said_before_anybody_is_asked(asked: Any, says: str) -> None:
    model, before = small(), threads()
    with pytest.raises(ConfigError, match=says):
        murmurate.join(model, sgd(model), **{"run": "test", **asked})
    assert threads() == before


def test_joining_twice_with_one_model_is_refused() -> None:
    with flock(1) as (node,):
        with pytest.raises(ConfigError, match="in run 'test' already"):
            murmurate.join(node.model, node.optimizer, run="again")
        node.step()
        node.swarm.leave(timeout_s=0.2)
        murmurate.join(node.model, node.optimizer, run="again").leave()


def test_a_wrapped_optimizer_is_the_one_inside() -> None:
    with flock(2, optimizer=lambda model: Accelerated(sgd(model))) as nodes:
        train_together(nodes, 10)
        same_weights(nodes)
        assert nodes[0].swarm.progress().steps == 10


class Wrapped(nn.Module):
    """As data-parallel wrappers do it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


def test_a_compiled_and_a_wrapped_model_are_the_plain_one() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    compiled: Any = torch.compile(normed(), backend="eager")
    first = Node("n0", model=normed())
    nodes = [first]
    try:
        for name, model in (("n1", compiled), ("n2", Wrapped(normed()))):
            nodes.append(Node(name, model=model, seed=2, peers=[first.swarm.address]))
        assert len({node.swarm.schema for node in nodes}) == 1
        train_together(nodes, 6)
        same_weights(nodes)
    finally:
        for node in nodes:
            node.swarm.leave(timeout_s=0.2)


def test_updates_written_by_hand_are_an_error() -> None:
    with flock(1, rule="shared") as (node,):

        def by_hand() -> None:
            for _ in range(20):
                node.loss(torch.randn(16, 8)).backward()
                with torch.no_grad():
                    for parameter in node.model.parameters():
                        parameter -= 0.01 * parameter.grad
                        parameter.grad = None

        with pytest.raises(ConfigError, match=r"step\(\) of the optimizer .* is never called"):
            by_hand()
        node.step()  # and from now on it is right


def test_a_model_that_is_never_stepped_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    with murmurate.join(model, sgd(model), run="test"):
        model(torch.randn(4, 8)).sum().backward()
    assert "called 1 times to be trained, but step()" in caplog.text


def test_parameters_that_come_after_join_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    model[0].bias.requires_grad_(False)
    with flock(1, make=lambda: model) as (node,):
        node.step()
        node.model[0].bias.requires_grad_(True)
        node.step()
    assert "0.bias came to the model, or began to be trained, after join()" in caplog.text


@pytest.mark.parametrize("rule", ["shared", "sum"])
def test_several_optimizers_are_one_list(rule: str) -> None:
    """As of a generator and a critic: each steps by itself."""
    nodes: list[tuple[nn.Sequential, list[torch.optim.Optimizer], murmurate.Swarm]] = []
    try:
        for index in range(2):
            torch.manual_seed(index)
            model = small()
            both: list[torch.optim.Optimizer] = [
                torch.optim.Adam(model[0].parameters(), lr=0.01),
                torch.optim.SGD(model[2].parameters(), lr=0.002, momentum=0.9),  # right for a sum
            ]
            peers = [nodes[0][2].address] if nodes else []
            swarm = murmurate.join(model, both, run="gan", name=f"n{index}", peers=peers, rule=rule)
            nodes.append((model, both, swarm))
        data = torch.Generator().manual_seed(3)

        def loss(model: nn.Module) -> torch.Tensor:
            x = torch.randn(64, 8, generator=data)
            out: torch.Tensor = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            return out

        first = loss(nodes[0][0]).item()
        for step in range(150):
            for model, both, _ in nodes:
                for optimizer in both:
                    optimizer.zero_grad()
                loss(model).backward()
                both[step % 2].step()
        assert [swarm.progress().steps for _, _, swarm in nodes] == [150, 150]
        assert loss(nodes[0][0]).item() < 0.7 * first
    finally:
        for _, _, swarm in nodes:
            swarm.leave(timeout_s=0.2)


def test_the_states_of_several_optimizers_are_in_the_checkpoint(tmp_path: Any) -> None:
    def start() -> tuple[nn.Sequential, list[torch.optim.Optimizer], murmurate.Swarm]:
        model = small()
        both: list[torch.optim.Optimizer] = [
            torch.optim.Adam(model[0].parameters(), lr=0.01),
            torch.optim.SGD(model[2].parameters(), lr=0.002, momentum=0.9),  # right for a sum
        ]
        return model, both, murmurate.join(model, both, run="gan", name="a", checkpoint=tmp_path)

    model, both, swarm = start()
    for _ in range(8):
        model(torch.randn(4, 8)).sum().backward()
        for optimizer in both:
            optimizer.step()
    kept = [optimizer.state_dict()["state"] for optimizer in both]
    swarm.leave()
    _, again, swarm = start()
    swarm.leave(timeout_s=0.2)
    for optimizer, state in zip(again, kept, strict=True):
        back = optimizer.state_dict()["state"]
        key = "exp_avg" if "exp_avg" in state[0] else "momentum_buffer"
        torch.testing.assert_close(back[0][key], state[0][key])


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("rule", ["shared", "sum"])
def test_one_bad_batch_does_not_end_a_node_with_adam(rule: str, closure: bool) -> None:
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    with flock(1, rule=rule, optimizer=adam) as (node,):
        for step in range(40):
            x = torch.randn(16, 8)
            if step == 20:
                x[3, 3] = torch.nan
                moments = [state["exp_avg"].clone() for state in node.optimizer.state.values()]

            def loss(x: torch.Tensor = x) -> torch.Tensor:
                node.optimizer.zero_grad()
                out = node.loss(x)
                out.backward()
                return out

            if closure:
                node.optimizer.step(loss)  # type: ignore[arg-type]
            else:
                loss()
                node.optimizer.step()
                if step == 20:
                    for state, kept in zip(node.optimizer.state.values(), moments, strict=True):
                        assert torch.equal(state["exp_avg"], kept), "the step was not taken"
        assert dict(node.swarm.progress().rejected) == {"own_step": 1}
        states = node.optimizer.state.values()
        assert all(bool(torch.isfinite(state["exp_avg"]).all()) for state in states)
        before = node.weights()
        for _ in range(4):
            node.step()
        node.swarm.publish()
        assert not torch.equal(node.weights(), before)
        assert bool(torch.isfinite(node.weights()).all())


@pytest.mark.parametrize("whole", [True, False], ids=["the model", "a part of it"])
def test_who_trained_alone_and_gets_company_has_written_nothing(
    whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps, one by one, and their sum differ by rounding only."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.body(x)
            return out

    def momentum(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def stepped(node: Node) -> None:
        x = torch.randn(16, 8, generator=node.data)
        node.optimizer.zero_grad()
        called = node.model if whole else node.model.body
        (called(x) - x.sum(1, keepdim=True)).square().mean().backward()
        node.optimizer.step()

    with flock(1, Parts, rule="shared", optimizer=momentum) as nodes:
        for _ in range(11):
            stepped(nodes[0])
        more: dict[str, Any] = {"optimizer": momentum, "rule": "shared", "seed": 1}
        nodes.append(Node("n1", model=Parts(), peers=[nodes[0].swarm.address], **more))
        for _ in range(16):
            for node in nodes:
                stepped(node)
        assert "changed beside" not in caplog.text


def test_a_scheduler_goes_on_where_it_was(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And without it the rate is the script's: a new one would begin anew on the lowered rate."""

    def life(*, handed: bool) -> tuple[float, int]:
        model = small()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
        state = scheduler if handed else None
        with murmurate.join(
            model, optimizer, run="rate", name="a", checkpoint=tmp_path, state=state
        ) as swarm:
            began, at = optimizer.param_groups[0]["lr"], scheduler.last_epoch
            assert swarm.own_steps == at or not handed
            for _ in range(8):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
                scheduler.step()
        return began, at

    assert life(handed=True) == (0.1, 0)
    assert life(handed=True) == (0.025, 8)
    assert life(handed=False) == (0.1, 0)
    assert "hand the scheduler to join(state=scheduler)" in caplog.text
    model = small()
    with pytest.raises(ConfigError, match="has no state_dict"):
        murmurate.join(model, sgd(model), run="rate", state=[3])


def test_a_part_of_the_model_is_saved_as_a_part(tmp_path: Any) -> None:
    with flock(1) as (node,):
        node.step()
        state = node.swarm.state_dict()
        assert state["0.bias"].untyped_storage().nbytes() == 8 * 4
        torch.testing.assert_close(state["0.bias"], node.model[0].bias.detach())


def test_weights_written_beside_a_step_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    with flock(2, rule="shared") as nodes:
        for _ in range(8):
            for node in nodes:
                node.step()
        assert "changed beside" not in caplog.text
        with torch.no_grad():
            nodes[0].model[0].weight.clamp_(-0.01, 0.01)
        for _ in range(8):
            nodes[0].step()
    assert caplog.text.count("n0: the parameters were changed beside the optimizers") == 1


def test_a_peer_on_another_machine_decides_where_one_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from murmurate.training import gossip

    def towards(peers: Any) -> tuple[str, str] | None:
        return ("10.0.0.5:7000", "10.0.0.6") if "10.0.0.5:7000" in peers else None

    monkeypatch.setattr(gossip, "address_towards", towards)
    model = small()
    with pytest.raises(ConfigError, match=r"would listen at 10\.0\.0\.6; .*insecure=True"):
        murmurate.join(model, sgd(model), run="far", peers=["10.0.0.5:7000"])
    with flock(1) as (node,):
        assert node.swarm.address.startswith("127.0.0.1:")
