"""Paper 003, eqs 2 and 3, algorithm 1: the elastic exchange, in turns, wild, with momentum."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.paper.hub_bench import HubBench
from torch import nn

from murmurate.core.values.hub_settings import HubSettings, problems
from murmurate.errors import ConfigError
from murmurate.training.member_momentum import MemberMomentum
from murmurate_coordinator.checkpoint import SavedSolver, restore, save
from murmurate_coordinator.solvers.effects import GiveLease, PushAccepted
from murmurate_coordinator.solvers.hub.elastic import exchange

ELASTIC = ("easgd", "ea-wild", "ea-msgd")
every_rule = pytest.mark.parametrize("rule", ELASTIC)


def random(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def apart(bench: HubBench) -> None:
    """Members somewhere else than the centre: as if they had trained."""
    for k, name in enumerate(bench.names):
        bench.move(name, 10 * random(4, k))


def total(bench: HubBench) -> torch.Tensor:
    return bench.centre() + sum(bench.held(name) for name in bench.names)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_an_exchange_conserves_the_sum_and_shrinks_the_distance(alpha: float) -> None:
    member, centre = random(1000, 1), random(1000, 2)
    both, gap = member + centre, member - centre
    exchange(member, centre, alpha)
    assert torch.allclose(member + centre, both, rtol=0, atol=1e-12)
    assert torch.allclose(member - centre, (1 - 2 * alpha) * gap, rtol=0, atol=1e-12)


@every_rule
def test_a_hub_conserves_the_sum_of_all(rule: str) -> None:
    bench = HubBench(rule, members=4)
    apart(bench)
    before = total(bench)
    start = {name: bench.held(name).clone() for name in bench.names}
    first = bench.held("node-0").clone() - 0.9 / 4 * (bench.held("node-0") - bench.centre())
    for k in range(400):
        name = bench.names[k % 4]
        bench.push(name, bench.held(name).clone())
        if not k:
            assert torch.allclose(bench.held("node-0"), first, rtol=0, atol=1e-15)
    assert torch.allclose(total(bench), before, rtol=0, atol=1e-12)
    spread = max(float((bench.held(n) - bench.centre()).abs().max()) for n in bench.names)
    assert spread < 1e-9 < max(float(start[n].abs().max()) for n in bench.names)
    assert bench.solver.more()["elastic"]["exchanges"] == 400


def concurrently(act: Callable[[int, int], None], threads: int, times: int) -> None:
    """All of them at once."""
    gate = threading.Barrier(threads)

    def run(k: int) -> None:
        gate.wait()
        for t in range(times):
            act(k, t)

    running = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()


@pytest.mark.parametrize("rule", ["ea-wild", "ea-msgd"])
def test_1000_concurrent_exchanges_at_one_hub(rule: str) -> None:
    """Pushes of four threads come in any order, each is whole: nothing is lost."""
    bench = HubBench(rule, members=4)
    apart(bench)
    before, lock = total(bench), threading.Lock()

    def act(k: int, t: int) -> None:
        name = bench.names[k]
        if t % 5 == 0:
            bench.moved[name] = bench.moved.get(name, 0) + random(4, 1000 * k + t)
            bench.move(name, random(4, 1000 * k + t))
        mine = bench.held(name).clone()  # outside of the lock: others exchange meanwhile
        with lock:
            bench.push(name, mine)

    concurrently(act, 4, 250)
    trained = sum(bench.moved.values())
    assert torch.allclose(total(bench), before + trained, rtol=0, atol=1e-12)
    assert bench.solver.more()["elastic"]["exchanges"] == 1000


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "wild"])
def test_1000_concurrent_exchanges_in_shared_memory(
    locked: bool, record_property: Callable[[str, object], None]
) -> None:
    """The paper's own case: threads that write one centre. With a lock the sum is conserved;
    without one additions get lost, and the share that is lost is reported."""
    size = 20_000
    centre = random(size, 0)
    members = [10 * random(size, 1 + k) for k in range(4)]
    before = centre + sum(members)
    lock = threading.Lock() if locked else nullcontext()
    moved = [0.0] * 4

    def act(k: int, t: int) -> None:
        member = members[k]
        member.add_(random(size, 4 * t + k))  # a step; it is taken out of the sum below
        with lock:
            old = member.clone()
            exchange(member, centre, 0.2)
            moved[k] += float((old - member).abs().sum())

    concurrently(act, 4, 250)
    trained = sum(random(size, 4 * t + k) for k in range(4) for t in range(250))
    off = (centre + sum(members) - before - trained).abs()
    share = float(off.sum()) / sum(moved)
    record_property("lost_share", share)
    print(f"lost share {'locked' if locked else 'wild'}: {share:.3g}")
    if locked:
        assert float(off.max()) < 1e-10  # of 1,000 sums of 20,000 numbers up to 60
        assert share < 1e-12
    else:
        assert 0 <= share < 1


# -- easgd: turns --------------------------------------------------------------------------------


def test_turns_are_in_the_order_of_coming() -> None:
    bench = HubBench("easgd", members=3)
    apart(bench)
    before = bench.centre()

    def given(name: str) -> list[str]:
        effects = bench.push(name, bench.held(name).clone())
        assert isinstance(effects[0], PushAccepted)
        return [effect.peer for effect in effects if isinstance(effect, GiveLease)]

    assert given("node-2") == []
    assert given("node-1") == []
    assert torch.equal(bench.centre(), before)  # not before node-0
    assert sorted(given("node-0")) == ["node-0", "node-1", "node-2"]
    again = HubBench("easgd", members=3)
    apart(again)
    for name in again.names:
        again.push(name, again.held(name).clone())
    assert torch.equal(bench.centre(), again.centre())  # as if they had come in order


def test_who_is_gone_has_no_turn_and_what_it_pushed_is_in() -> None:
    bench = HubBench("easgd", members=3)
    apart(bench)
    bench.push("node-2", bench.held("node-2").clone())
    before = bench.centre()
    bench.take(bench.solver.leave("node-2"))
    assert not torch.equal(bench.centre(), before)  # its half of the exchange
    bench.push("node-1", bench.held("node-1").clone())
    effects = bench.take(bench.solver.leave("node-0"))
    assert [effect.peer for effect in effects] == ["node-1"]


def test_who_waits_for_its_turn_does_so_over_a_restart() -> None:
    bench = HubBench("easgd", members=2)
    apart(bench)
    bench.push("node-1", bench.held("node-1").clone())
    saved = save(bench.solver)
    about = json.loads(json.dumps(saved.about))
    solver = restore(
        SavedSolver(dict(saved.tensors), about),
        bench.solver.structure,
        np.random.default_rng(1),
        steps=1,
        founders=1,
        mode="hub",
        settings=HubSettings(),
    )
    pushes = [bench.pushed("node-0", bench.held("node-0").clone()) for _ in range(2)]
    for one, push in zip((bench.solver, solver), pushes, strict=True):
        effects = one.push(push)
        given = [effect.peer for effect in effects if isinstance(effect, GiveLease)]
        assert sorted(given) == ["node-0", "node-1"]
    assert torch.equal(bench.solver.weights["weight"], solver.weights["weight"])


# -- ea-wild: nobody waits -----------------------------------------------------------------------


def test_a_member_trains_on_while_its_difference_is_on_its_way() -> None:
    """w_j moves between its push and the answer, and the sum is what was there and what moved."""
    bench = HubBench("ea-wild", members=2, settings=HubSettings(alpha=0.4))
    apart(bench)
    before, step = total(bench), random(4, 9)
    effects = bench.solver.push(bench.pushed("node-0", bench.held("node-0").clone()))
    other = bench.push("node-1", bench.held("node-1").clone())
    bench.move("node-0", step)
    bench.take(effects)
    assert torch.allclose(total(bench), before + step, rtol=0, atol=1e-12)
    assert isinstance(other[0], PushAccepted)
    assert other[0].staleness == 1
    assert len({give.lease for give in bench.gives.values()}) == 2  # the leases they had


def test_the_lost_share_is_reported() -> None:
    bench = HubBench("ea-wild", members=2)
    solver = bench.solver
    apart(bench)
    for _ in range(4):
        bench.push("node-0", bench.held("node-0").clone())
    assert solver.more()["elastic"]["lost"] == 0
    lost = bench.pushed("node-0", bench.held("node-0").clone())
    solver.push(lost)  # its answer never arrives
    solver.away("node-0")
    solver.away("node-0", gone=False)
    bench.push("node-0", bench.held("node-0").clone())
    told = solver.more()["elastic"]
    assert (told["exchanges"], told["lost"]) == (6, 1)
    assert told["lost_share"] == pytest.approx(1 / 6)
    bench.push("node-0", bench.held("node-0").clone())
    late = solver.push(bench.pushed("node-1", bench.held("node-1").clone()))
    solver.push(bench.pushed("node-1", bench.held("node-1").clone()))  # before its answer is there
    bench.take(late)
    assert solver.more()["elastic"]["lost"] == 1  # late is not lost


# -- ea-msgd: momentum at the member -------------------------------------------------------------


def trained(
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer], momentum: float
) -> torch.Tensor:
    """The weights after some steps, with that much momentum around the optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    optimizer = optimizer_of(model)
    hooks = MemberMomentum(optimizer, momentum) if momentum else None
    for k in range(20):
        optimizer.zero_grad()
        model(random(20, k).reshape(4, 5)).square().mean().backward()
        gradient = model.weight.grad
        assert gradient is not None
        kept = gradient.clone()
        optimizer.step()
        assert model.weight.grad is gradient
        assert torch.equal(gradient, kept)  # the loop finds what it left
    if hooks is not None:
        hooks.close()
    return model.weight.detach()


def test_momentum_at_the_member_is_heavy_ball() -> None:
    ours = trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), 0.9)
    torchs = trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), 0.0)
    assert torch.allclose(ours, torchs, rtol=0, atol=1e-14)
    plain = trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), 0.0)
    assert not torch.allclose(ours, plain, rtol=0, atol=1e-3)


def test_an_optimizers_own_momentum_is_kept_and_nothing_added() -> None:
    def own(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    assert torch.equal(trained(own, 0.9), trained(own, 0.0))
    with pytest.raises(ConfigError, match="momentum 1: must be from 0 on, below 1"):
        trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=1.0), 0.9)


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_an_alpha_that_cannot_be(alpha: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0 and below 1"):
        HubSettings(alpha=alpha)


@every_rule
def test_settings_of_other_rules(rule: str) -> None:
    assert not problems(rule, {"alpha": 0.2}, 4)
    assert problems(rule, {"momentum": 0.5}, 4) == {"momentum": "only with rule async-msgd or dc"}
    assert "protocol" in problems(rule, {"protocol": "pipelined"}, 4)
    assert "alpha" in problems("async", {"alpha": 0.2}, 4)
