"""`murmurate up --virtual --mode ist` or `hub`: a coordinator in virtual time as a
`murmurate.study.virtual.task.Engine`.

It is found by entry point (group `murmurate.virtual`).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import RULES_OF
from murmurate.errors import ConfigError
from murmurate.study.virtual.kept import kept_whole
from murmurate.study.virtual.task import Figures, VirtualTraining
from murmurate_coordinator.solvers.protocol import Capacity
from murmurate_coordinator.virtual import COORDINATOR, VirtualSubnets
from murmurate_coordinator.virtual_setting import VirtualSetting

STEPS = 10
"""Of a lease, if nothing was said."""


class CentredWorld:
    """All members and the coordinator of one run."""

    def __init__(self, task: VirtualTraining) -> None:
        setting = VirtualSetting(
            rule=task.rule,
            peers=task.nodes,
            seconds=1.0,  # whoever carries out the events decides that
            mode=task.mode,
            hub=HubSettings(
                **{
                    "lr": task.workload.lr,
                    "weight_decay": task.recipe.weight_decay or 0.0,
                    **task.hub,
                }
            ),
            steps=task.every or (1 if RULES_OF[task.mode][task.rule].central else STEPS),
            speeds=task.speeds,
            costs=task.costs,
            widths=task.widths,
            memory_bytes=task.memory_bytes,
            delay_s=task.delay_s,
            delays_s=task.delays_s,
            seed=task.seed,
            split=task.split,
            step_s=task.paces() if task.slow_s else None,
            own_samples=task.own_samples,
            recipe=task.recipe,
            spent=lambda: task.part(self.samples(), self.events.time),
        )
        if task.recipe.batch_warmup:
            raise ConfigError(f"batch_warmup: not with mode {task.mode}: batches stay as they are")
        self.world = VirtualSubnets(task.workload, setting)
        self.events = self.world.events
        self.validates = task.validates
        self.coordinator = Figures(COORDINATOR, role=COORDINATOR, learning=self.world.learning)
        caution = self.world.solver.caution if task.nodes > 1 else ""
        self._cautions = [caution] if caution else []
        # Told now, not by a member that is refused later: more nodes than units.
        members = {
            name: Capacity(speed=task.widths.get(name, 1.0), memory_bytes=task.memory_bytes)
            for name in task.names
        }
        self.world.solver.check_room(members)

    def figures(self) -> list[Figures]:
        """Members first, then the coordinator, which holds the whole."""
        world, solver = self.world, self.world.solver
        whole = max(1, world.structure.parameters(world.structure.everything()))
        for name, trainer in world.trainers.items():
            lease = solver.lease_of(name)
            share = None if lease is None else world.structure.parameters(lease.held) / whole
            trainer.figures.loss = trainer.loss.mean()
            trainer.figures.more = {"steps": trainer.steps, "share": share}
        totals = solver.totals
        known = [t.figures.loss for t in world.trainers.values() if not t.gone]
        losses = [loss for loss in known if math.isfinite(loss)]
        self.coordinator.loss = sum(losses) / len(losses) if losses else math.nan
        self.coordinator.samples = totals.samples
        self.coordinator.applied = totals.pushes
        self.coordinator.rejected = totals.refused
        self.coordinator.more = {
            "plan": solver.plan,
            "leases": len(solver.leases),
            "pushes": totals.pushes,
            "steps": totals.steps,
        }
        return [*(t.figures for t in world.trainers.values()), self.coordinator]

    def samples(self) -> int:
        """Those in the model; what was computed and is not in it does not count."""
        return self.world.solver.totals.samples

    def kill(self, name: str) -> None:
        self.world.kill(name)
        self.world.trainers[name].figures.state = "killed"

    def news(self) -> list[str]:
        said, self._cautions = self._cautions, []
        said += [each.text for each in self.world.learning.news()]
        refused = [f"{name} gets nothing: {why}" for name, why in self.world.refused.items()]
        self.world.refused.clear()
        new = self.world.advisor.news(self.events.time)
        return said + refused + [advice.sentence for advice in new]

    def evaluate(self, *, validation: bool = False) -> Figures:
        """The whole model, with zeros where nobody ever trained."""
        weights = self.world.solver.for_evaluation()
        found = self.world.evaluate(weights, validation=validation)
        self.coordinator.evaluated(found, validation=validation)
        return self.coordinator

    def weights(self) -> tuple[str, Layout, torch.Tensor]:
        """Of the whole model."""
        whole = self.world.whole(self.world.solver.for_evaluation())
        return COORDINATOR, *kept_whole(whole)

    def finish(self) -> dict[str, Any]:
        world, solver = self.world, self.world.solver
        self.evaluate()
        if self.validates:
            self.evaluate(validation=True)
        plain = world.evaluate(solver.weights)
        for one in self.figures():
            if one.state == "training":
                one.state = "done"
        return {
            "accuracy_plain": plain.accuracy,
            "plan": solver.plan,
            "plans": solver.totals.plans,
            "pushes": solver.totals.pushes,
            "leases": len(solver.leases),
            "coverage": {name: round(part, 6) for name, part in solver.coverage().items()},
            **solver.more(),
            "advice": [advice.sentence for advice in world.advisor.advice(self.events.time)],
        }
