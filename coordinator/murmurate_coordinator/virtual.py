"""A coordinator in virtual time: the real solvers and torch models, in one process.

A step of a peer takes what `costs` say, divided by its speed, whatever it takes this machine; a
message takes `delay_s`, and the coordinator folds one push at a time. So rules are compared at
equal time, and one rng seed decides everything.
A speed is that of the member's own subnet, as in the paper's comparison: time for a step does not
depend on the width. Who has a subnet twice as wide on a machine twice as fast has the same speed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from murmurate.core.figures.learning import Learning
from murmurate.core.partition.analysis import analyse
from murmurate.core.partition.structure import Structure
from murmurate.core.partition.subnet import cut, load, weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.programs.cli.partition import example_of
from murmurate.study.sim.events import Events
from murmurate.study.sim.network import Steady
from murmurate.training.member_momentum import MemberMomentum
from murmurate.training.member_values import MemberValues
from murmurate.training.recipes import PARTS, RateSchedule, factors
from murmurate.workloads import DataShare, Evaluation, Workload, parse_split
from murmurate.workloads.measuring import measured
from murmurate_coordinator.members import fruitless_most
from murmurate_coordinator.solvers.effects import (
    Effect,
    GiveLease,
    MemberPush,
    PushAccepted,
    Reason,
    Refused,
    Waits,
)
from murmurate_coordinator.solvers.protocol import Capacity
from murmurate_coordinator.solvers.subnets.advisor import Advisor
from murmurate_coordinator.solvers.table import new_solver
from murmurate_coordinator.virtual_member import VirtualMember, both_of
from murmurate_coordinator.virtual_setting import VirtualOutcome, VirtualSetting

COORDINATOR = "coordinator"


class VirtualSubnets:
    """Everything of one run. `run` to the end, or `events.run_until` step by step."""

    def __init__(
        self,
        workload: Workload,
        setting: VirtualSetting,
        *,
        structure: Structure | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self.workload = workload
        self.setting = setting
        self.batch_size = setting.batch_size or workload.batch_size
        torch.manual_seed(setting.seed)
        self.model = model if model is not None else workload.model()
        if setting.mode == "hub":
            structure = whole_structure(self.model)
        self.structure = structure or analyse(self.model, example_of(workload, self.model))
        self.events = Events()
        self.network = Steady(setting.delay_s, setting.delays_s)
        self.solver = new_solver(
            setting.rule,
            self.structure,
            weights_of(self.model),
            np.random.default_rng(setting.seed),
            mode=setting.mode,
            steps=setting.steps,
            founders=setting.peers,
            settings=setting.hub,
        )
        self.advisor = Advisor(self.solver)
        recipe = setting.recipe
        self._factors = factors(recipe) if recipe.changes else None
        self.learning = Learning()
        self.learning.summed = bool(self.solver.instead) and setting.peers > 1
        self.learning.instead = self.solver.instead
        self.trainers: dict[str, VirtualMember] = {}
        self.refused: dict[str, str] = {}
        """Who got no place, and why."""
        self.fruitless = 0
        """Pushes of numbers that are none, since the last one that was taken."""
        self._joined = 0
        self._free_s = 0.0
        """When the coordinator has folded in all that has come so far."""
        for k in range(setting.peers):
            self.events.at(0.0, self._join, f"node-{k}")
        for time, name in setting.joins:
            self.events.at(time, self._join, name)
        for time, name in setting.leaves:
            self.events.at(time, self.leave, name)
        for time, name in setting.kills:
            self.events.at(time, self.kill, name)

    def run(self) -> VirtualOutcome:
        self.events.run_until(self.setting.seconds)
        totals = self.solver.totals
        return VirtualOutcome(
            rule=self.setting.rule,
            seed=self.setting.seed,
            evaluation=self.evaluate(self.solver.weights),
            masked=self.evaluate(self.solver.for_evaluation()),
            samples=totals.samples,
            steps={name: trainer.steps for name, trainer in self.trainers.items()},
            plans=totals.plans,
            pushes=totals.pushes,
            refused=dict(totals.refused),
            coverage=self.solver.coverage(),
        )

    def whole(self, weights: Mapping[str, torch.Tensor]) -> nn.Module:
        """A model of these."""
        made = copy.deepcopy(self.model)
        load(made, weights)
        return made

    def evaluate(
        self, weights: Mapping[str, torch.Tensor], *, validation: bool = False
    ) -> Evaluation:
        return measured(self.workload, self.whole(weights), validation=validation)

    # -- members -----------------------------------------------------------------------------------

    def _join(self, name: str) -> None:
        share = DataShare(
            index=self._joined,
            count=max(self._joined + 1, self.setting.peers + len(self.setting.joins)),
            split=parse_split(self.setting.split),
            seed=self.setting.seed,
            batch_size=self.batch_size,
        )
        self._joined += 1
        step_s = self.setting.costs.of_step(self.batch_size) / self.setting.speeds.get(name, 1.0)
        self.trainers[name] = VirtualMember(
            name, step_s, self.workload.batches(share), MemberValues(self.solver.half)
        )
        width = self.setting.widths.get(name, 1.0)
        self._carry_out(
            self.solver.join(name, Capacity(speed=width, memory_bytes=self.setting.memory_bytes))
        )

    def leave(self, name: str) -> None:
        """It pushes the rest, then it goes, as a real one does."""
        trainer = self.trainers.get(name)
        if trainer is None or trainer.gone:
            return
        trainer.life += 1
        trainer.leaving = True
        if trainer.job is None or (not trainer.new_steps and not trainer.on_its_way):
            self._leave(name)
        elif not trainer.on_its_way:
            self._push(trainer)

    def _leave(self, name: str) -> None:
        self._stop(name)
        self._carry_out(self.solver.leave(name))
        self.events.after(self.setting.vacant_s, self.solver.vacate, name)

    def kill(self, name: str) -> None:
        """It dies, with whatever it was about to push; the coordinator notices later."""
        self._stop(name)
        self.solver.away(name)
        self.events.after(self.setting.notice_s, self._leave, name)

    def _stop(self, name: str) -> None:
        trainer = self.trainers.get(name)
        if trainer is not None:
            trainer.life += 1
            trainer.job = None
            trainer.gone = True

    def _carry_out(self, effects: list[Effect]) -> None:
        self.solver.check()
        self.advisor.saw(self.events.time, effects)
        for effect in effects:
            trainer = self.trainers[effect.peer]
            match effect:
                case GiveLease():
                    self._send(effect.peer, self._begin, effect)
                case PushAccepted():
                    figures, pushes = trainer.figures, self.solver.totals.pushes
                    figures.applied += 1
                    self.fruitless = 0
                    lag = max(0, pushes - 1 - trainer.seen)
                    figures.staleness.add(lag if effect.staleness is None else effect.staleness)
                    trainer.seen = pushes
                    self._send(effect.peer, self._done, trainer, effect)
                case Refused():
                    trainer.figures.rejected[effect.reason] += 1
                    self._not_taken(effect)
                    if effect.peer not in self.solver.members and not trainer.gone:
                        self.refused[effect.peer] = effect.sentence
                        trainer.gone = True
                case Waits():
                    pass

    def _not_taken(self, refused: Refused) -> None:
        """Numbers that are none will not get well by themselves: as real members do, it begins with
        the weights of now; unless those are none either."""
        if refused.reason is not Reason.NOT_FINITE or refused.peer not in self.solver.members:
            return
        if self.setting.mode == "hub":
            self.learning.note_loss(math.nan, self.solver.totals.steps)
        self.fruitless += 1
        if self.fruitless < fruitless_most(len(self.solver.members)):
            self._carry_out(self.solver.again(refused.peer))

    def _send(self, peer: str, act: Callable[..., None], *args: object) -> None:
        """From the coordinator."""
        for time in self.network.arrivals(COORDINATOR, peer, self.events.time):
            self.events.at(time, act, *args)

    # -- training ----------------------------------------------------------------------------------

    def _begin(self, give: GiveLease) -> None:
        trainer = self.trainers[give.peer]
        if trainer.job is not None and give.lease < trainer.job.lease:
            return
        if give.peer not in self.solver.members or trainer.gone:
            return
        if trainer.leaving:
            self._leave(give.peer)
            return
        job = trainer.job
        if self.setting.mode == "hub" and job is not None and give.lease == job.lease:
            # Taken when the step is over, as a real member does it.
            trainer.gift = both_of(trainer.gift, give, self.solver.half)
            return
        # A fresh optimizer with every plan of subnets, as the reference code does it.
        same = trainer.job is not None and np.array_equal(trainer.job.held, give.held)
        if trainer.subnet is not None and same:
            self._given_again(trainer, trainer.subnet, give)
        else:
            trainer.subnet = cut(self.model, self.structure, give.held)
            load(trainer.subnet, give.values)
            trainer.values.begin(trainer.subnet)
            optimizer = self._begin_optimizer(trainer, trainer.subnet)
            if self.solver.half.momentum:
                MemberMomentum(optimizer, self.solver.half.momentum)
        trainer.job, trainer.version, trainer.new_steps = give, give.version, 0
        trainer.put, trainer.gift = give.version, None
        trainer.left = give.steps
        trainer.on_its_way = False
        trainer.seen = self.solver.totals.pushes
        if trainer.waits_since is not None:
            trainer.figures.wait_s += self.events.time - trainer.waits_since
            trainer.waits_since = None
        trainer.life += 1
        self.events.after(self._step_s(trainer), self._step, trainer, trainer.life)

    def _given_again(self, trainer: VirtualMember, model: nn.Module, give: GiveLease) -> None:
        if self.setting.mode == "hub":  # another lease: these are the weights, not an addition
            trainer.values.replace(model, give.values)
        else:
            trainer.values.down(model, give.values)
            self._begin_optimizer(trainer, model)

    def _begin_optimizer(self, trainer: VirtualMember, model: nn.Module) -> torch.optim.Optimizer:
        trainer.optimizer = optimizer = self.workload.optimizer(model)
        trainer.rates = RateSchedule(optimizer, self.setting.recipe)
        return optimizer

    def _step_s(self, trainer: VirtualMember) -> float:
        step_s = self.setting.step_s
        return step_s(trainer.name) if step_s is not None else trainer.step_s

    def _newer(self, trainer: VirtualMember) -> None:
        """Between two steps: weights that have come meanwhile, under the same lease."""
        gift, job, model = trainer.gift, trainer.job, trainer.subnet
        if gift is not None and job is not None and model is not None:
            trainer.gift = None
            if gift.lease == job.lease:
                if trainer.new_steps and self.solver.half.central:
                    self._push(trainer)  # a gradient is of one version
                    trainer.left = job.steps
                trainer.values.down(model, gift.values)
                trainer.job = gift

    def _step(self, trainer: VirtualMember, life: int) -> None:
        if life != trainer.life or trainer.subnet is None or trainer.optimizer is None:
            return
        trainer.optimizer.zero_grad()
        loss = self.workload.loss(trainer.subnet, next(trainer.batches))
        loss.backward()  # type: ignore[no-untyped-call]
        if not self.solver.half.central:
            if trainer.rates is not None:
                trainer.rates.at(self.setting.spent())
            trainer.optimizer.step()
        trainer.loss.add(loss)
        if self.setting.mode == "hub" and not self.fruitless:
            self.learning.note_loss(float(loss.detach()), self.solver.totals.steps)
        trainer.figures.samples += self.batch_size
        trainer.steps += 1
        trainer.new_steps += 1
        trainer.values.stepped(trainer.subnet)
        if trainer.left is None:
            due = self.events.time >= trainer.next_push
        else:
            trainer.left -= 1
            due = trainer.left <= 0
        if self._enough(trainer):
            self.leave(trainer.name)
            return
        half = self.solver.half
        if due and (half.pipelined or not trainer.on_its_way):
            self._push(trainer)
            if half.waits:
                trainer.waits_since = self.events.time
                return
            if trainer.job is not None:
                trainer.left = trainer.job.steps
        self._newer(trainer)
        self.events.after(self._step_s(trainer), self._step, trainer, life)

    def _enough(self, trainer: VirtualMember) -> bool:
        """Whether it has trained on its own samples, and somebody else goes on."""
        own = self.setting.own_samples
        if own is None or trainer.figures.samples < own:
            return False
        return any(
            not each.gone and not each.leaving
            for each in self.trainers.values()
            if each is not trainer
        )

    def _push(self, trainer: VirtualMember) -> None:
        assert trainer.job is not None
        assert trainer.subnet is not None
        values = trainer.values.up(trainer.subnet)
        push = MemberPush(
            trainer.name,
            trainer.job.plan,
            trainer.job.lease,
            trainer.put + 1 if self.solver.half.pipelined else trainer.version + 1,
            trainer.new_steps,
            trainer.new_steps * self.batch_size,
            values,
        )
        trainer.new_steps = 0
        trainer.put += 1
        trainer.on_its_way = True
        trainer.next_push = self.events.time + self.setting.push_s
        trainer.figures.published += 1
        trainer.figures.bytes_sent += sum(value.nbytes for value in values.values())
        for time in self.network.arrivals(trainer.name, COORDINATOR, self.events.time):
            self.events.at(time, self._arrive, push)

    def _arrive(self, push: MemberPush) -> None:
        """One after another: folding takes its time, and what comes meanwhile waits."""
        if not self.setting.costs.fold_s:
            self._fold(push)
            return
        self._free_s = max(self._free_s, self.events.time) + self.setting.costs.fold_s
        self.events.at(self._free_s, self._fold, push)

    def _fold(self, push: MemberPush) -> None:
        if self._factors is not None:
            part = min(1.0, self.setting.spent())
            self.solver.at_rate(self._factors[int(part * PARTS)])
        self._carry_out(self.solver.push(push))

    def _done(self, trainer: VirtualMember, accepted: PushAccepted) -> None:
        if trainer.job is not None and trainer.job.lease == accepted.lease:
            trainer.version = accepted.version
            trainer.on_its_way = False
            if trainer.leaving:
                self.leave(trainer.name)
