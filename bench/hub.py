"""LeNet-5 by a hub, a push every step; and what one that sleeps costs the others, under any rule.

silent              four processes that do not communicate: the ceiling
async · pipelined   the same four, and a hub in a fifth process on the same machine: each push waits
                    for its answer · nobody waits

Every step is in the hub's model, which is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import centre
import contenders
import crew
import lenet
import numpy as np
import torch
from crew import Shared, Task
from report import Effort, Goal, Report, Scenario, disturbed, ratios

from murmurate.edge.runtime.malloc import keep_memory

MEMBERS = 4
BATCH = 64
SLEEP_S = 0.09
EVERY = 8
"""Local steps, where members make the steps."""
HUB_GOAL, KEPT_GOAL = 0.7, 0.7

ASYNC, PIPELINED = "async", "async pipelined"
IN_HUB = {ASYNC: 1, PIPELINED: 1, "sync": 1, "fedavg-async": EVERY, "ea-wild": EVERY}
"""Rules, and the steps between two pushes."""
LINKED = ("sum", "shared")
"""Rules of gossip."""
IN_STEP = "allreduce"


def silent(shared: Shared, rank: int) -> dict[str, Any]:
    if rank == MEMBERS:
        return centre.stays_out(shared)
    return contenders.isolated(shared, rank)


def hub(shared: Shared, rank: int) -> dict[str, Any]:
    rule = shared.task.contender.split()[0]
    if rank < MEMBERS:
        return _member(shared, rank)
    from murmurate.core.partition import weights_of
    from murmurate.core.partition.whole import whole_structure
    from murmurate.core.values.hub_settings import HubSettings
    from murmurate_coordinator.solvers.table import new_solver

    model = lenet.lenet()
    protocol = "pipelined" if shared.task.contender == PIPELINED else "request-reply"
    solver = new_solver(
        rule,
        whole_structure(model),
        weights_of(model),
        np.random.default_rng(0),
        mode="hub",
        steps=IN_HUB[shared.task.contender],
        founders=MEMBERS,
        settings=HubSettings(lr=lenet.LR, protocol=protocol),
    )
    return centre.serve(shared, solver, MEMBERS)


def _member(shared: Shared, rank: int) -> dict[str, Any]:
    import murmurate

    model = lenet.lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=lenet.LR)
    swarm = murmurate.join(
        model,
        optimizer,
        run="bench",
        mode="hub",
        coordinator=shared.addresses.get(timeout=crew.LIMIT_S),
        name=f"node-{rank}",
    )
    step = lenet.stepper(model, optimizer, rank, BATCH)
    result: dict[str, Any] = crew.timed(shared, rank, step)
    wait_s = swarm.tally.wait_s
    swarm.leave(centre.LEFT_S)
    return result | {
        "made": swarm.steps,
        "lost": swarm.steps_lost,
        "wait_s": wait_s,
        "staleness": swarm.staleness.mean,
    }


def all_in_step(shared: Shared, rank: int) -> dict[str, Any]:
    import murmurate

    model = lenet.lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=lenet.LR)
    peers = [shared.addresses.get(timeout=crew.LIMIT_S)] if rank else []
    swarm = murmurate.join(
        model, optimizer, run="bench", mode="allreduce", name=f"node-{rank}", peers=peers
    )
    if not rank:
        for _ in range(MEMBERS - 1):
            shared.addresses.put(swarm.address)
    assert swarm.follow(lambda: len(swarm.board) >= MEMBERS, crew.LIMIT_S)
    step = lenet.stepper(model, optimizer, rank, BATCH)
    result: dict[str, Any] = crew.timed(shared, rank, step, in_step=True)
    assert len(swarm.group) == MEMBERS
    shared.line_up()
    swarm.leave()
    return result


def repetition(contender: str, seconds: float, *slow_s: float) -> dict[str, Any]:
    centred = contender == "silent" or contender in IN_HUB
    task = Task(
        contender="default" if contender == "shared" else contender,
        nodes=MEMBERS + centred,
        batch=BATCH,
        seconds=seconds,
        slow_s=slow_s,
    )
    if contender in LINKED:
        acts = {"sum": contenders.murmurate, "shared": contenders.default}
        results = crew.run(acts[contender], Shared(task))
    elif contender == IN_STEP:
        results = crew.run(all_in_step, Shared(task))
    else:
        results = crew.run(silent if contender == "silent" else hub, Shared(task))
    for result in results:
        result.pop("weights", None)
    if contender in IN_HUB:
        made = sum(each["made"] - each["lost"] for each in results[:MEMBERS])
        there = results[MEMBERS]["steps_in"]
        assert there == made, f"{contender}: {there} of {made} steps are in"
    members = results[:MEMBERS]
    return {
        "samples_per_s": sum(each["samples_per_s"] for each in members),
        "cpu_ms_per_step": sum(each["cpu_ms_per_step"] for each in members) / MEMBERS,
        "hub_cpu": results[-1]["cpu_s"] / seconds if centred else 0.0,
        "cpu_ms_of_all": 1e3
        * sum(each["cpu_s"] for each in results)
        / max(1, sum(each["steps"] for each in members)),
        "foreign": crew.foreign(results),
        "ranks": members,
    }


def _total(samples: list[dict[str, Any]]) -> list[float]:
    return [sample["samples_per_s"] for sample in samples]


def by_hub(report: Report, effort: Effort) -> None:
    """Four members, a push of each at every step."""

    def turn(contender: str) -> Callable[[], Any]:
        return lambda: repetition(contender, effort.seconds)

    samples = effort.interleaved({name: turn(name) for name in ("silent", ASYNC, PIPELINED)})
    report.keep("hub", samples)
    for name, each in samples.items():
        report.add(name, _total(each), unit="1/s")
        report.add(f"{name}: CPU of a member", (s["cpu_ms_per_step"] for s in each), unit="ms")
    for name in (ASYNC, PIPELINED):
        each = samples[name]
        report.add(
            f"{name} / silent",
            ratios(_total(each), _total(samples["silent"])),
            goal=Goal(value=HUB_GOAL),
            unit="x",
            disturbed=disturbed(each, samples["silent"]),
        )
        report.add(
            f"{name}: the same in CPU time, the hub's included",
            ratios(*([s["cpu_ms_of_all"] for s in of] for of in (samples["silent"], each))),
            unit="x",
        )
        report.add(f"{name}: the hub's part of a core", (s["hub_cpu"] for s in each))
        report.add(f"{name}: staleness", (r["staleness"] for s in each for r in s["ranks"]))


def asleep(report: Report, effort: Effort) -> None:
    """One of four sleeps in every step: what is left of the samples of all, under each rule."""
    slow_s = (0.0,) * (MEMBERS - 1) + (SLEEP_S,)

    def turn(contender: str, *slow: float) -> Callable[[], Any]:
        return lambda: repetition(contender, effort.seconds, *slow)

    names = [*LINKED, *IN_HUB, IN_STEP]
    calm = {name: turn(name) for name in names}
    held = {f"{name}, one sleeps": turn(name, *slow_s) for name in names}
    samples = effort.interleaved(calm | held)
    report.keep("asleep", samples)
    for name in names:
        before, after = samples[name], samples[f"{name}, one sleeps"]
        report.add(f"{name}: calm", _total(before), unit="1/s")
        waits = name in ("sync", IN_STEP)
        report.add(
            f"{name}: one of four sleeps / calm",
            ratios(_total(after), _total(before)),
            goal=None if waits else Goal(value=KEPT_GOAL),
            unit="x",
            disturbed=disturbed(before, after),
        )


def _fold_copies(rule: str, times: int) -> list[float]:
    """CPU time of a push of 100 MB, checks and answer included, in copies of that memory."""
    from torch import nn

    from murmurate.core.partition import weights_of
    from murmurate.core.partition.whole import whole_structure
    from murmurate.core.values.hub_settings import HubSettings
    from murmurate_coordinator.solvers.effects import MemberPush
    from murmurate_coordinator.solvers.table import new_solver

    model = nn.Sequential(*(nn.Linear(2500, 2500, bias=False) for _ in range(4)))
    rng = np.random.default_rng(0)
    solver = new_solver(
        rule, whole_structure(model), weights_of(model), rng, mode="hub", steps=1,
        settings=HubSettings(lr=lenet.LR),
    )  # fmt: skip
    given: Any = solver.join("a")[-1]
    found: list[float] = []
    for _ in range(times):
        values = {name: value.clone() for name, value in given.values.items()}
        into = {name: torch.empty_like(value) for name, value in values.items()}
        for name, value in values.items():  # its memory is there
            into[name].copy_(value)
        began = time.thread_time()
        for name, value in values.items():
            into[name].copy_(value)
        copied = time.thread_time() - began
        push = MemberPush("a", given.plan, given.lease, given.version + 1, 1, BATCH, values)
        began = time.thread_time()
        effects = solver.push(push)
        found.append((time.thread_time() - began) / copied)
        given = effects[-1]
    return found[1:]


def fold(report: Report, effort: Effort) -> None:
    """What folding a push of a model of 100 MB costs the hub."""
    torch.set_num_threads(1)
    keep_memory()
    times = 3 if effort.quick else 12
    for rule in ("async", "k-of-n", "downpour", "fedavg-async", "easgd", "ea-wild", "ea-msgd"):
        report.add(rule, _fold_copies(rule, times), goal=Goal(value=3.0, at_most=True), unit="x")


SCENARIOS: dict[str, Scenario] = {"hub": by_hub, "asleep": asleep, "fold": fold}
