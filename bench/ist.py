"""Independent subnet training by four unequal processes: what the coordinator and pushing cost.

silent     four processes with subnets of 4 : 2 : 1 : 1, nobody speaks to anybody: the ceiling
async once the same, with a coordinator in a fifth process on the same machine

The two small ones are slowed by a sleep after each step. A turn asserts that every step is in the
model that the coordinator has assembled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import centre
import crew
import numpy as np
import torch
from crew import Shared, Task
from report import Effort, Goal, Report, Scenario, disturbed, ratios
from torch import nn
from torch.nn import functional

WIDTHS = (4.0, 2.0, 1.0, 1.0)
SLOW_S = (0.0, 0.0, 0.02, 0.02)
MEMBERS = len(WIDTHS)
BATCH, STEPS = 64, 10
GOAL = 0.95


def model() -> nn.Module:
    """The perceptron of paper 001, 784-512-512-10."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 512), nn.BatchNorm1d(512), nn.ReLU(),
        nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def _example() -> torch.Tensor:
    return torch.zeros(2, 784)


def _stepper(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> Callable[[], None]:
    rng = torch.Generator().manual_seed(rank)
    x = torch.randn(BATCH, 784, generator=rng)
    y = torch.randint(10, (BATCH,), generator=rng)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def silent(shared: Shared, rank: int) -> dict[str, Any]:
    if rank == MEMBERS:
        return centre.stays_out(shared)
    from murmurate.core.partition import analyse, cut, deal

    whole = model()
    structure = analyse(whole, (_example(),))
    subnet = cut(whole, structure, deal(structure, WIDTHS, np.random.default_rng(0))[rank])
    step = _stepper(subnet, torch.optim.SGD(subnet.parameters(), lr=0.01), rank)
    return crew.timed(shared, rank, step)


def member(shared: Shared, rank: int) -> dict[str, Any]:
    if rank == MEMBERS:
        return coordinator(shared)
    import murmurate

    with torch.device("meta"):
        whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)
    swarm = murmurate.join(
        whole,
        optimizer,
        run="bench",
        mode="ist",
        coordinator=shared.addresses.get(timeout=crew.LIMIT_S),
        name=f"node-{rank}",
        width=WIDTHS[rank],
        example=_example(),
    )
    result: dict[str, Any] = crew.timed(shared, rank, _stepper(swarm.model, optimizer, rank))
    wait_s = swarm.tally.wait_s
    swarm.leave(centre.LEFT_S)
    return result | {
        "made": swarm.steps,
        "lost": swarm.steps_lost,
        "pushes": swarm.progress().applied,
        "share": swarm.share,
        "wait_s": wait_s,
        "staleness": swarm.staleness.mean,
    }


def coordinator(shared: Shared) -> dict[str, Any]:
    from murmurate.core.partition import analyse, weights_of
    from murmurate_coordinator.solvers.table import new_solver

    whole = model()
    solver = new_solver(
        shared.task.contender,
        analyse(whole, (_example(),)),
        weights_of(whole),
        np.random.default_rng(0),
        steps=STEPS,
        founders=MEMBERS,
    )
    return centre.serve(shared, solver, MEMBERS)


ACTS: dict[str, crew.Act] = {"silent": silent, "async": member, "once": member}


def repetition(contender: str, seconds: float) -> dict[str, Any]:
    task = Task(
        contender=contender,
        nodes=MEMBERS + 1,
        batch=BATCH,
        seconds=seconds,
        warm_up=STEPS,
        slow_s=SLOW_S,
    )
    *members, hub = crew.run(ACTS[contender], Shared(task))
    if contender != "silent":
        made = sum(each["made"] - each["lost"] for each in members)
        assert hub["steps_in"] == made, f"{contender}: {hub['steps_in']} of {made} are in"
    return {
        "samples_per_s": sum(each["samples_per_s"] for each in members),
        "centre_cpu": hub["cpu_s"] / seconds,
        "foreign": crew.foreign([*members, hub]),
        "ranks": members,
    }


def ist(report: Report, effort: Effort) -> None:
    def turn(contender: str) -> Callable[[], Any]:
        return lambda: repetition(contender, effort.seconds)

    samples = effort.interleaved({name: turn(name) for name in ACTS})
    report.keep("ist", samples)
    for name, each in samples.items():
        report.add(name, (s["samples_per_s"] for s in each), unit="1/s")
    alone = [sample["samples_per_s"] for sample in samples["silent"]]
    for name, goal in (("async", Goal(value=GOAL)), ("once", None)):
        report.add(
            f"{name} / silent",
            ratios((s["samples_per_s"] for s in samples[name]), alone),
            goal=goal,
            unit="x",
            disturbed=disturbed(samples[name], samples["silent"]),
        )
        ranks = [rank for sample in samples[name] for rank in sample["ranks"]]
        report.add(f"{name}: staleness", (rank["staleness"] for rank in ranks))
        report.add(
            f"{name}: pushes per s",
            (rank["pushes"] / rank["seconds"] for rank in ranks),
            unit="1/s",
        )
        report.add(
            f"{name}: the coordinator's part of a core",
            (sample["centre_cpu"] for sample in samples[name]),
        )
        shares = " : ".join(f"{rank['share']:.2f}" for rank in samples[name][0]["ranks"])
        report.remark(f"{name}: parameters of each, of all: {shares}")


def ist_memory(report: Report, effort: Effort) -> None:
    """A model that no member may hold."""
    import ist_memory as memory_of

    samples = effort.few(3).interleaved({"memory": memory_of.repetition})
    report.keep("ist_memory", samples)
    each = samples["memory"]
    goal = Goal(value=each[0]["model_mib"], at_most=True)
    report.add("the model itself", (s["model_mib"] for s in each), unit="MiB")
    report.add("training all of it, momentum", (s["whole_mib"] for s in each), unit="MiB")
    report.add("declared by the member", (s["allowed_mib"] for s in each), unit="MiB")
    report.add("the member", (s["member_mib"] for s in each), goal=goal, unit="MiB")
    report.add("its part of the parameters", (s["share"] for s in each))


SCENARIOS: dict[str, Scenario] = {"ist": ist, "ist_memory": ist_memory}
