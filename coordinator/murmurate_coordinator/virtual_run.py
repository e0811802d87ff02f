"""`murmurate up --virtual --mode ist`: subnets in virtual time as a `murmurate.sim.task.Engine`.

It is found by entry point (group `murmurate.virtual`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from murmurate.errors import ConfigError
from murmurate.sim.task import Figures, Task
from murmurate_coordinator.plan import Capacity, make_plan
from murmurate_coordinator.rules import RULES
from murmurate_coordinator.virtual import COORDINATOR, Setting, World

STEPS = 10
"""Of a lease, if nothing was said."""


class SubnetWorld:
    """All members and the coordinator of one run."""

    def __init__(self, task: Task) -> None:
        if task.rule not in RULES:
            raise ConfigError(f"rule {task.rule!r}: expected one of {', '.join(RULES)}")
        setting = Setting(
            rule=task.rule,
            peers=task.nodes,
            seconds=1.0,  # whoever carries out the events decides that
            steps=task.every or STEPS,
            speeds=task.speeds,
            widths=task.widths,
            memory_bytes=task.memory_bytes,
            delay_s=task.delay_s,
            delays_s=task.delays_s,
            seed=task.seed,
            split=task.split,
        )
        self.world = World(task.workload, setting)
        self.events = self.world.events
        self.coordinator = Figures(COORDINATOR, role=COORDINATOR)
        # Told now, not by a member that is refused later: more nodes than units.
        members = {
            name: Capacity(speed=task.widths.get(name, 1.0), memory_bytes=task.memory_bytes)
            for name in task.names
        }
        if task.rule != "fedavg":
            spare = task.rule == "lease"
            make_plan(0, self.world.structure, members, np.random.default_rng(0), spare=spare)

    def figures(self) -> list[Figures]:
        """Members first, then the coordinator, which holds the whole."""
        world, centre = self.world, self.world.centre
        whole = max(1, world.structure.parameters(world.structure.everything()))
        for name, trainer in world.trainers.items():
            lease = centre.lease_of(name)
            share = None if lease is None else world.structure.parameters(lease.held) / whole
            trainer.figures.more = {"steps": trainer.steps, "share": share}
        totals = centre.totals
        self.coordinator.applied = totals.pushes
        self.coordinator.rejected = totals.refused
        self.coordinator.more = {
            "plan": centre.plan,
            "leases": len(centre.leases),
            "pushes": totals.pushes,
            "steps": totals.steps,
        }
        return [*(t.figures for t in world.trainers.values()), self.coordinator]

    def samples(self) -> int:
        """Those in the model; what was computed and is not in it does not count."""
        return self.world.centre.totals.samples

    def kill(self, name: str) -> None:
        self.world.kill(name)
        self.world.trainers[name].figures.state = "killed"

    def news(self) -> list[str]:
        refused = [f"{name} gets nothing: {why}" for name, why in self.world.refused.items()]
        self.world.refused.clear()
        new = self.world.advisor.news(self.events.time)
        return refused + [advice.sentence for advice in new]

    def finish(self) -> dict[str, Any]:
        world, centre = self.world, self.world.centre
        found = world.evaluate(centre.for_evaluation())
        plain = world.evaluate(centre.weights)
        self.coordinator.loss = found.loss
        self.coordinator.accuracy = found.accuracy
        self.coordinator.accuracy_of = found.accuracy_of
        for one in self.figures():
            if one.state == "training":
                one.state = "done"
        return {
            "accuracy_plain": plain.accuracy,
            "plan": centre.plan,
            "plans": centre.totals.plans,
            "pushes": centre.totals.pushes,
            "leases": len(centre.leases),
            "coverage": {name: round(part, 6) for name, part in centre.coverage().items()},
            "advice": [advice.sentence for advice in world.advisor.advice(self.events.time)],
        }
