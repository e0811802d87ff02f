"""`join(mode="ist")` against a real coordinator, over real gRPC: members are threads here."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.integration.centre import BATCH, IN, Coordinator, batch, example, model
from torch import nn
from torch.nn import functional

import murmurate
import murmurate_coordinator.sessions
from murmurate.core.partition import analyse, cut, load, part_of, weights_of
from murmurate.errors import ConfigError, LocalProtocolError, PeerUnavailable, SchemaMismatch
from murmurate.training import unasked_pace
from murmurate.training.member import Member

PATIENCE_S = 60.0


def until(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def joined(it: Coordinator, name: str, *, hollow: bool = True, **more: Any) -> tuple[Member, Any]:
    if hollow:
        with torch.device("meta"):
            whole = model()
    else:
        whole = model(seed=9)  # its values do not matter
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    kind: dict[str, Any] = {"example": example(), "width": 1.0} | more
    member = murmurate.join(
        whole, optimizer, run="test", mode="ist", coordinator=it.address, name=name, **kind
    )
    return member, optimizer


def step(member: Member, optimizer: Any, number: int) -> None:
    x, y = batch(number)
    optimizer.zero_grad()
    functional.cross_entropy(member.model(x), y).backward()
    optimizer.step()


@contextmanager
def together(it: Coordinator, count: int, **more: Any) -> Iterator[list[tuple[Member, Any]]]:
    """So many at once: the coordinator waits for its founders."""
    with ThreadPoolExecutor(count) as pool:
        members = list(pool.map(lambda k: joined(it, f"m{k}", **more), range(count)))
    try:
        yield members
    finally:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda each: each[0].leave(), members))


def train(member: Member, optimizer: Any, steps: int) -> None:
    for number in range(steps):
        step(member, optimizer, number)


@pytest.mark.parametrize("rule", ["sync", "once", "async", "lease", "fedavg"])
def test_every_step_of_every_member_is_in_the_model(rule: str) -> None:
    with Coordinator(rule, founders=3, steps=5) as it:
        with together(it, 3) as members, ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda each: train(each[0], each[1], 20), members))
            assert all(member.rule == rule for member, _ in members)
        totals = it.solver.totals
        assert (totals.steps, totals.samples) == (60, 60 * BATCH)
        assert not totals.refused
        assert not it.solver.members  # all have said goodbye
        if rule != "async":
            assert totals.pushes == 12


def test_one_member_alone_trains_what_plain_torch_trains() -> None:
    """No scaling, nothing shared: a subnet of everything is the model."""
    plain = model()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    with Coordinator("async") as it:
        member, optimizer = joined(it, "alone")
        with member:
            assert member.share == 1.0
            for number in range(30):
                step(member, optimizer, number)
                x, y = batch(number)
                sgd.zero_grad()
                functional.cross_entropy(plain(x), y).backward()
                sgd.step()
        for name, value in weights_of(plain).items():
            torch.testing.assert_close(it.solver.weights[name], value.detach(), rtol=0, atol=1e-6)
            if it.solver.structure.tensors[name].split:  # the rest is added up, push by push
                assert torch.equal(it.solver.weights[name], value.detach()), name


def test_a_subnet_is_the_masked_model_and_goes_back_where_it_came_from() -> None:
    with Coordinator("once", founders=2, steps=4) as it:
        structure = it.solver.structure
        with together(it, 2) as members:
            before = it.weights()
            held = {m.name: it.solver.lease_of(m.name).held for m, _ in members}  # type: ignore[union-attr]
            expected = []
            for member, _ in members:
                twin = cut(model(), structure, held[member.name])
                load(twin, part_of(before, structure, held[member.name]))
                assert member.model(batch(0)[0]).equal(twin(batch(0)[0]))
                sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
                for number in range(4):
                    x, y = batch(number)
                    sgd.zero_grad()
                    functional.cross_entropy(twin(x), y).backward()
                    sgd.step()
                expected.append(twin)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda each: train(each[0], each[1], 4), members))
            after = it.weights()
            for (member, _), twin in zip(members, expected, strict=True):
                mine = part_of(after, structure, held[member.name])
                for name, value in weights_of(twin).items():
                    if structure.tensors[name].split:
                        assert torch.equal(mine[name], value.detach()), name


def test_the_optimizer_stays_the_users_and_its_state_starts_anew() -> None:
    with Coordinator("sync", founders=2, steps=3) as it, together(it, 2) as members:
        member, optimizer = members[0]
        for group in optimizer.param_groups:
            group["lr"] = 0.05
        wrapper, first = member.model, member.model.subnet
        train(member, optimizer, 2)
        assert len(optimizer.state) == len(list(member.model.parameters()))
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda each: train(each[0], each[1], 1 if each[0] is member else 3), members
                )
            )
        assert member.plan > 1
        assert member.model is wrapper
        assert member.model.subnet is not first
        assert not optimizer.state
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert optimizer.param_groups[0]["momentum"] == 0.9
        inside = {id(p) for p in member.model.parameters()}
        assert {id(p) for p in optimizer.param_groups[0]["params"]} == inside
        member.model.eval()
        assert member.model.subnet is not None
        assert not member.model.subnet.training
        assert member.tally.wait_s > 0


@pytest.mark.parametrize("rule", ["async", "once"])
def test_a_dead_coordinator_stops_nobody_and_gets_everything_when_it_is_back(rule: str) -> None:
    with Coordinator(rule, founders=2, steps=5) as it, together(it, 2) as members:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each: train(each[0], each[1], 7), members))
            it.stop()
            until(lambda: not any(member.connected for member, _ in members))
            before = [member.tally.wait_s for member, _ in members]
            list(pool.map(lambda each: train(each[0], each[1], 30), members))
            assert [member.tally.wait_s for member, _ in members] == before
            it.start()
            until(lambda: all(member.connected for member, _ in members))
            list(pool.map(lambda each: train(each[0], each[1], 3), members))
            assert all(pool.map(lambda each: each[0].settle(), members))
        if rule == "async":
            assert it.solver.totals.steps == 80
        else:  # a barrier: what came after the push of a lease is over with it
            lost = sum(member.steps_lost for member, _ in members)
            assert it.solver.totals.steps + lost == 80
        assert not it.solver.totals.refused


def test_the_coordinator_says_stop() -> None:
    with Coordinator("async") as it:
        member, optimizer = joined(it, "one")
        train(member, optimizer, 3)
        it.ask(it.centre.stop, "enough")
        number = 3
        while not member.stopped:
            step(member, optimizer, number)
            number += 1
        assert member.stopped == "enough"
        assert it.solver.totals.steps == number
        until(lambda: not it.solver.members)
        train(member, optimizer, 2)  # local from here on
        member.leave()
        assert it.solver.totals.steps == number


def test_the_structure_is_found_at_the_first_call() -> None:
    with Coordinator("async") as it:
        member, optimizer = joined(it, "one", example=None, hollow=False)
        assert not it.solver.members
        with member:
            train(member, optimizer, 2)
            assert it.solver.members
        assert it.solver.totals.steps == 2


def test_leaving_in_an_exception_pushes_the_rest() -> None:
    with Coordinator("once", steps=100) as it:
        member, optimizer = joined(it, "one")
        with pytest.raises(ZeroDivisionError), member:  # noqa: PT012
            train(member, optimizer, 4)
            _ = 1 / 0
        assert it.solver.totals.steps == 4
        assert not it.solver.members


def test_sigterm_ends_the_loop_in_order() -> None:
    with Coordinator("async") as it:
        member, optimizer = joined(it, "one")
        with pytest.raises(SystemExit) as caught, member:  # noqa: PT012
            for number in range(10_000):
                step(member, optimizer, number)
                if number == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
        assert caught.value.code == 128 + signal.SIGTERM
        assert it.solver.totals.steps == member.steps >= 6
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_values_that_are_not_finite_are_replaced_and_then_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unasked_pace, "SHARE", 1.0)  # push as often as one can: ten come soon
    with Coordinator("async") as it:
        member, optimizer = joined(it, "one")
        with pytest.raises(LocalProtocolError, match="10 pushes in a row"), member:  # noqa: PT012
            for number in range(10_000):
                step(member, optimizer, number)
                with torch.no_grad():
                    next(member.model.parameters()).fill_(float("nan"))
        assert it.solver.totals.refused["not_finite"] >= 10
        assert all(torch.isfinite(v).all() for v in it.solver.weights.values())


def test_the_model_given_to_join_trains_nothing_and_that_is_said() -> None:
    with Coordinator("async") as it:
        member, optimizer = joined(it, "one", hollow=False)
        with member, pytest.raises(LocalProtocolError, match=r"call swarm\.model"):
            optimizer.step()


def test_a_member_that_dies_gives_its_units_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(murmurate_coordinator.sessions, "GRACE_S", 0.2)
    monkeypatch.setattr(murmurate_coordinator.sessions, "VACANT_S", 0.2)
    with Coordinator("async", founders=2) as it, together(it, 2) as members:
        (stays, optimizer), (dies, _) = members
        assert stays.share < 0.6
        assert dies._link is not None
        task = dies._link._link._task
        assert task is not None
        dies._link._thread.call(task.cancel)  # without a word

        def has_all() -> bool:
            step(stays, optimizer, 0)
            return stays.share == 1.0

        until(has_all)
        it.ask(it.solver.check)


# -- what is refused -----------------------------------------------------------------------------


def test_another_model_run_or_name_is_refused() -> None:
    with Coordinator("async") as it:
        other = nn.Sequential(nn.Linear(IN, 8), nn.ReLU(), nn.Linear(8, 3))
        sgd = torch.optim.SGD(other.parameters(), lr=0.1)
        kind: dict[str, Any] = {"mode": "ist", "coordinator": it.address, "example": example()}
        with pytest.raises(SchemaMismatch, match="another structure"):
            murmurate.join(other, sgd, run="test", **kind)
        whole = model()
        sgd = torch.optim.SGD(whole.parameters(), lr=0.1)
        with pytest.raises(SchemaMismatch, match="run 'other'"):
            murmurate.join(whole, sgd, run="other", **kind)
        member, _ = joined(it, "one")
        with member, pytest.raises(ConfigError, match="one is here already"):
            murmurate.join(whole, sgd, run="test", name="one", join_timeout_s=0.5, **kind)


def test_nobody_is_there() -> None:
    it = Coordinator("async")
    it.address = "127.0.0.1:9"
    with pytest.raises(PeerUnavailable, match=r"127.0.0.1:9 does not answer"):
        joined(it, "one", join_timeout_s=0.5)
    assert not [t for t in threading.enumerate() if t.name == "murmurate-member" and t.is_alive()]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"width": -1.0}, "width -1"),
        ({"memory": -1}, "memory -1"),
        ({"name": ""}, "name: "),
        ({"run": ""}, "run ''"),
        ({"rule": "sum2"}, "rule 'sum2': mode 'ist' has none"),
        ({"peers": ["a:1"]}, "peers"),
        ({"coordinator": None}, "needs its address"),
        ({"mode": "gossip"}, "only with mode 'ist'"),
        ({"join_timeout_s": 0}, "join_timeout_s 0"),
    ],
)
def test_what_is_asked_for_is_checked(more: dict[str, Any], said: str) -> None:
    whole = model()
    sgd = torch.optim.SGD(whole.parameters(), lr=0.1)
    given = {"run": "test", "mode": "ist", "coordinator": "127.0.0.1:9"} | more
    with pytest.raises(ConfigError, match=said):
        murmurate.join(whole, sgd, **given)


def test_an_optimizer_of_another_model() -> None:
    sgd = torch.optim.SGD(model().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="none of its parameters are of this model"):
        murmurate.join(model(), sgd, run="test", mode="ist", coordinator="127.0.0.1:9")


def test_a_model_without_axes_to_split() -> None:
    whole = nn.Linear(IN, 3)
    sgd = torch.optim.SGD(whole.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="none of its axes can be split"):
        murmurate.join(
            whole, sgd, run="test", mode="ist", coordinator="127.0.0.1:9", example=example()
        )


def test_the_test_model_has_two_axes() -> None:
    assert len(analyse(model(), (example(),)).groups) == 2
