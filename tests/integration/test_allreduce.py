"""`murmurate.join(mode="allreduce")`: members in step, who come, go, are killed and frozen."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

import murmurate
from murmurate.errors import ConfigError, SchemaMismatch
from murmurate.training.groups import GroupedSwarm
from murmurate.training.synchronous import SynchronousSwarm

WAIT_S = 60.0
GO_ON_S = 5.0
"""After which the others must have gone on (issue: 5 s)."""

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)  # where the processes find this file
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["murmurate.training.allreduce", "murmurate.training.join", "torch._dynamo"]
)


def net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(4, 6, generator=generator),
        torch.randint(0, 3, (4,), generator=generator),
    )


# -- in threads ----------------------------------------------------------------------------------


class InThread:
    """A member that makes so many steps, in a thread of its own."""

    def __init__(self, name: str, steps: int, peers: tuple[str, ...] = (), **more: Any) -> None:
        self.name, self.steps, self.peers, self.more = name, steps, peers, more
        self.swarm: SynchronousSwarm | None = None
        self.model = net(seed=hash(name) % 97)  # only the founder's counts
        self.joined = threading.Event()
        self.go = threading.Event()
        self.error: BaseException | None = None
        self.even: bool | None = None
        self.weights: torch.Tensor | None = None
        self.groups: list[tuple[str, ...]] = []
        self.data: Callable[[int], tuple[torch.Tensor, torch.Tensor]] = batch
        self.goes_on: Callable[[int], bool] = lambda number: number < self.steps
        self.finishes = True
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> InThread:
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            optimizer = sgd(self.model)
            with murmurate.join(
                self.model,
                optimizer,
                run="t",
                mode="allreduce",
                name=self.name,
                peers=self.peers,
                **self.more,
            ) as swarm:
                self.swarm = swarm
                self.joined.set()
                self.go.wait(WAIT_S)
                for number in takewhile(self.goes_on, count()):
                    step(self.model, optimizer, *self.data(number))
                    swarm.log(samples=4)
                    self.groups.append(swarm.group)
                if self.finishes:
                    self.even = swarm.finish(WAIT_S)
                self.weights = swarm.weights()
        except BaseException as error:
            self.error = error
            self.joined.set()
            raise

    @property
    def address(self) -> str:
        assert self.joined.wait(WAIT_S)
        assert self.swarm is not None, self.error
        return self.swarm.address

    def end(self) -> None:
        self.go.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        assert self.error is None


def _knows(swarm: SynchronousSwarm, count: int) -> bool:
    return len(swarm.board) >= count


@contextmanager
def members(count: int, steps: int, **more: Any) -> Iterator[list[InThread]]:
    """So many that know each other, and wait for `go`."""
    name = more.pop("name", "m{}")
    found = [InThread(name.format(0), steps, **more).start()]
    try:
        found += [
            InThread(name.format(each), steps, (found[0].address,), **more).start()
            for each in range(1, count)
        ]
        for each in found:
            assert each.address
            assert each.swarm is not None
            each.swarm.follow(partial(_knows, each.swarm, count), WAIT_S)
        yield found
    finally:
        for each in found:
            each.go.set()


def everyone(found: list[InThread]) -> None:
    for each in found:
        each.go.set()
    for each in found:
        each.end()


@pytest.mark.parametrize(("rule", "group"), [("flat", None), ("hierarchical", 2)])
def test_identical_shards_in_step_are_one_node_with_a_larger_batch(
    rule: str, group: int | None
) -> None:
    with members(4, 12, rule=rule, group=group) as found:
        first = found[0].swarm
        assert first is not None
        alone = net()
        torch.nn.utils.vector_to_parameters(first.weights(), alone.parameters())
        everyone(found)
    optimizer = sgd(alone)
    for number in range(12):
        x, y = batch(number)
        step(alone, optimizer, x.repeat(4, 1), y.repeat(4))
    expected = torch.nn.utils.parameters_to_vector(alone.parameters()).detach()
    for each in found:
        assert each.weights is not None
        assert float((each.weights - expected).abs().max()) <= 1e-6
        assert each.even
        assert each.groups == [("m0", "m1", "m2", "m3")] * 12
        assert each.swarm is not None
        progress = each.swarm.progress()
        assert (progress.published, progress.applied) == (12, 48)
        assert (progress.staleness.count, progress.staleness.max) == (48, 0)
        assert progress.wait_s > 0


def test_a_newcomer_is_taken_in_between_two_steps_with_weights_and_momentum() -> None:
    with members(2, 150) as found:
        late = InThread("m9", 40)
        for each in found:
            each.data = lambda number: (time.sleep(0.01), batch(number))[1]  # type: ignore[func-returns-value]
            each.go.set()
        deadline = time.monotonic() + WAIT_S
        while found[0].swarm is None or found[0].swarm.steps < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        late.peers = (found[0].address,)
        late.start().go.set()
        everyone([*found, late])
    assert late.groups[0] == ("m0", "m1", "m9"), "with the others from its first step on"
    assert late.swarm is not None
    assert late.swarm.steps >= 60
    assert found[0].weights is not None
    for each in (found[1], late):
        assert each.weights is not None
        assert torch.equal(each.weights, found[0].weights)


def test_whoever_leaves_breaks_no_step() -> None:
    with members(3, 40) as found:
        found[1].steps, found[1].finishes = 10, False
        everyone(found)
    groups = found[0].groups
    assert groups[:10] == [("m0", "m1", "m2")] * 10
    assert groups[-1] == ("m0", "m2")
    assert found[0].weights is not None
    assert found[2].weights is not None
    assert torch.equal(found[0].weights, found[2].weights)
    assert found[0].swarm is not None
    assert found[0].swarm.samples == (40 + 10 + 40) * 4, "counted once, whoever broke off"


def test_a_member_without_numbers_takes_the_others_mean() -> None:
    with members(2, 10) as found:
        found[1].data = lambda number: (batch(number)[0] * float("nan"), batch(number)[1])
        everyone(found)
    assert found[0].weights is not None
    assert found[1].weights is not None
    assert torch.equal(found[0].weights, found[1].weights)
    assert bool(torch.isfinite(found[0].weights).all())
    assert found[1].swarm is not None
    assert dict(found[1].swarm.progress().rejected) == {"own_step": 10}


def test_a_peer_of_another_rule_is_refused() -> None:
    with members(1, 1) as found:
        model = net()
        with pytest.raises(SchemaMismatch, match="rule 'flat'"):
            murmurate.join(model, sgd(model), run="t", peers=[found[0].address])
        everyone(found)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rule": "ring"}, "rule 'ring': mode 'allreduce' has 'flat' and"),
        ({"rule": "flat", "group": 4}, "group 4: only with rule 'hierarchical'"),
        ({"rule": "groups", "name": "alice"}, "it must end in a number, such as node-3"),
        ({"rule": "hierarchical", "group": 0}, "group 0: expected 1 or more"),
        ({"codec": "int8"}, "codec 'int8': mode 'allreduce' has none"),
        ({"every": 4}, "every 4: mode 'allreduce' has none"),
        ({"coordinator": "h:1"}, "coordinator 'h:1': only with mode 'ist' or 'hub'"),
        ({"listen": "0.0.0.0:0", "advertise": "127.0.0.1:0"}, "insecure=True"),
        ({"mode": "gossip", "group": 4}, "group 4: only with mode 'allreduce'"),
    ],
)
def test_what_the_mode_has_not_is_said_in_one_line(asked: dict[str, Any], said: str) -> None:
    model = net()
    with pytest.raises(ConfigError, match=said) as caught:
        murmurate.join(model, sgd(model), **{"run": "t", "mode": "allreduce", **asked})
    assert "\n" not in str(caught.value)


def test_a_step_with_a_closure_is_refused() -> None:
    model = net()
    optimizer = sgd(model)
    with (
        murmurate.join(model, optimizer, run="t", mode="allreduce"),
        pytest.raises(ConfigError, match="closure"),
    ):
        optimizer.step(lambda: 0.0)


def test_groups_are_in_step_inside_and_gossip_across(caplog: pytest.LogCaptureFixture) -> None:
    """003, section 3.1: two groups of two."""
    with members(4, 60, rule="groups", group=2, name="m-{}") as found:
        everyone(found)
    for each in found:
        assert each.even
        assert each.weights is not None
        assert found[0].weights is not None
        assert torch.allclose(each.weights, found[0].weights, atol=1e-5), "evened out across groups"
        assert isinstance(each.swarm, GroupedSwarm)
        # The others' last words may not have come before this one left.
        assert each.swarm.samples_of[each.swarm.name] == 60 * 4
        assert 60 * 4 <= each.swarm.samples <= 4 * 60 * 4
    assert found[0].groups == [("m-0", "m-1")] * 60
    assert found[2].groups == [("m-2", "m-3")] * 60
    spoke = [isinstance(each.swarm, GroupedSwarm) and each.swarm.spoke for each in found]
    assert spoke == [True, False, True, False], "the first of each group"
    assert "changed beside the optimizers" not in caplog.text, "the group itself changes them"


# -- in processes --------------------------------------------------------------------------------


def process(number: int, told: Connection, name: str, options: dict[str, Any]) -> None:
    """A member that trains until it hears a number of steps, and tells how it goes."""
    torch.set_num_threads(1)
    model = net(number)
    optimizer = sgd(model)
    peers = told.recv()
    with murmurate.join(
        model, optimizer, run="t", mode="allreduce", name=name, peers=peers, **options
    ) as swarm:
        told.send(swarm.address)
        told.recv()
        until, worst_s = 10**9, 0.0
        made = 0
        while swarm.steps < until:
            began = time.monotonic()
            step(model, optimizer, *batch(1000 * number + made))
            made += 1
            swarm.log(samples=4)
            worst_s = max(worst_s, time.monotonic() - began)
            if made == 20:
                told.send(("trains", swarm.steps, worst_s))
                worst_s = 0.0
            if told.poll():
                until = swarm.steps + told.recv()
            time.sleep(0.002)
        even = swarm.finish(WAIT_S)
        weights = swarm.weights().tolist()
        told.send((even, swarm.steps, swarm.samples, worst_s, weights, len(swarm.board)))
        told.recv()  # so that all have said so before one is gone


@contextmanager
def forked(
    count: int, name: str = "m{}", **options: Any
) -> Iterator[tuple[list[Any], list[Connection]]]:
    started, pipes = [], []
    try:
        for number in range(count):
            mine, theirs = _processes.Pipe()
            one = _processes.Process(
                target=process, args=(number, theirs, name.format(number), options), daemon=True
            )
            one.start()
            started.append(one)
            pipes.append(mine)
        pipes[0].send([])
        address = hear(pipes[0])
        for pipe in pipes[1:]:
            pipe.send([address])
        for pipe in pipes[1:]:
            hear(pipe)
        for pipe in pipes:
            pipe.send("go")
        for pipe in pipes:
            assert hear(pipe)[0] == "trains"
        yield started, pipes
    finally:
        for one in started:
            if one.pid is not None and one.is_alive():
                os.kill(one.pid, signal.SIGCONT)
                one.kill()
            one.join(WAIT_S)


def hear(pipe: Connection) -> Any:
    assert pipe.poll(WAIT_S), "a member says nothing"
    return pipe.recv()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_member_that_is_killed_breaks_one_step_and_the_others_go_on(victim: int) -> None:
    """0 is the founder, at whose place all met."""
    with forked(4) as (started, pipes):
        started[victim].kill()
        started[victim].join(WAIT_S)
        alive = [pipe for number, pipe in enumerate(pipes) if number != victim]
        for pipe in alive:
            pipe.send(30)
        ends = [hear(pipe) for pipe in alive]
        for even, steps, samples, worst_s, weights, _ in ends:
            assert even
            assert worst_s < GO_ON_S
            assert weights == ends[0][4], "the same on all, to the bit"
            assert (steps, samples) == (ends[0][1], ends[0][2])
        for pipe in alive:
            pipe.send("bye")
