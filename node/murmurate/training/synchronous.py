"""A node's place in a run that trains in step: one gradient for all, the mean of everybody's.

The loop stays as it is. Before each `optimizer.step()` a hook puts the mean of all members'
gradients in the place of this one's, by torch.distributed (`edge.net.collective`). Who is a member
is known from our own membership: when one dies its group breaks, the others form the next one
(`training.formation`) and make the same step without it; a newcomer is taken in between two steps,
with weights and optimizer state of whoever has made the most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.edge.net.collective import GroupBroken, MeetingPlace
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import ConfigError, TransportError
from murmurate.training.companion import Companion
from murmurate.training.formation import Formation, Formed
from murmurate.training.handover import Handover
from murmurate.training.joint_gradient import DONE, GOING, TRAINING, JointGradient, Said

log = logging.getLogger("murmurate")

LOOK_S = 0.05
"""Between two looks for newcomers."""
FOR_EVER_S = 1e18


class SynchronousSwarm(Companion):
    """This node's place in a run. Use it as a context manager, or call `leave()` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        place: MeetingPlace,
        *,
        founder: bool,
        group: int = 0,
        mine: Callable[[str, str], bool] = lambda name, more: True,
    ) -> None:
        """`group`: sums go by groups of so many (`hierarchical`); 0: all at once. `mine`: whose
        steps are made together with these."""
        super().__init__(runtime, layout)
        self._model = model
        self._parameters = parameters
        self._device = _device(parameters)
        self._handover = Handover(model, optimizer, layout, parameters)
        self._formation = Formation(
            self._port, place, self._device, group=group, take_in=self._take_in, mine=mine
        )
        self._founder = founder
        self._formed: Formed | None = None
        self._joint: JointGradient | None = None
        self._form_anew = False
        self._intent = TRAINING
        self._over = False
        """Whether this node trains with the others no more."""
        self._step = 0
        self._total = 0
        self._unsent = 0
        """Samples logged since the last sum."""
        self._offered = 0
        """Of these, what went into a sum that broke."""
        self._looked = 0.0
        self._hooks += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    # -- what is known ---------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps in these weights, which all made together."""
        return self._step

    @property
    def samples(self) -> int:
        """Samples the whole group has trained on: after a step the same number on all members."""
        return self._total

    @property
    def group(self) -> tuple[str, ...]:
        """Who made the last step with this node, in order of rank; itself included."""
        return self._formed.plan.members if self._formed is not None else ()

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights."""
        return self._handover.weights()

    def log(self, *, samples: int = 0, **figures: Any) -> None:
        """As in every mode (`RunView.log`)."""
        self._unsent += samples
        super().log(samples=samples, **figures)

    # -- training --------------------------------------------------------------------------------

    def _before_step(self, _: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if self._over:
            return
        if any(callable(each) for each in (*args, *kwargs.values())):
            raise ConfigError(
                "optimizer.step(closure): gradients must be there before the step, to be averaged:"
                " call the closure first"
            )
        self._port.check()
        began = time.monotonic()
        self._figures.stepped(began - self._resumed, self._resumed)
        said = self._together(contributes=True)
        assert self._joint is not None
        if len(self.group) > 1 or said.weight <= 0:
            self._joint.put_back(said.weight)
        self._step += said.weight > 0
        self._figures.waited(time.monotonic() - began)
        self._figures.stepped_together(began - self._resumed, self.group)

    def _after_step(self, *_: Any) -> None:
        self._take_in()
        self._resumed = time.monotonic()

    def _together(self, *, contributes: bool, deadline: float = FOR_EVER_S) -> Said:
        """One sum of all, whatever it takes: a group that breaks is replaced by the next one."""
        while True:
            if self._formed is None or self._form_anew:
                contributes = not self._form(deadline) and contributes
            try:
                return self._exchange(contributes, deadline)
            except GroupBroken as error:
                log.info("%s: a step was broken: %s", self.name, error)
                self._drop()
            except BaseException:
                self._drop()  # interrupted: what is under way there is lost
                raise

    def _exchange(self, contributes: bool, deadline: float) -> Said:
        formed, joint = self._formed, self._joint
        assert formed is not None
        assert joint is not None
        now = time.monotonic()
        wish = False
        if now - self._looked >= LOOK_S:
            self._looked = now
            wish = self._formation.newcomer(self.group)
        self._offered = self._unsent
        given = joint.fill(
            formed.rank,
            self._intent,
            self._offered,
            contributes=contributes,
            wish=wish,
            **self._words(),
        )
        if contributes and not given:
            self._port.step_taken_back()  # no numbers: the others' mean is this node's, too
        if formed.collective is not None:
            formed.collective.sum(joint.flat, lambda: self._missing(deadline))
        said = joint.said()
        self._unsent -= self._offered
        self._offered = 0
        self._total += said.samples
        going = [
            name for name, intent in zip(self.group, said.intents, strict=True) if intent >= GOING
        ]
        self._formation.leaves([name for name in going if name != self.name])
        self._form_anew = said.wish or said.moves or bool(going)
        return said

    def _words(self) -> dict[str, bool]:
        """What else is said with a step: `moves`, `gives`."""
        return {}

    def _standing(self) -> dict[str, Any]:
        """What else goes into a claim: `speaks`, `first`, `of`."""
        return {}

    def _missing(self, deadline: float) -> str:
        """Why a sum is not waited for any longer."""
        self._port.check()
        if time.monotonic() > deadline:
            return "it took too long"
        live = self._port.others.meetings()
        gone = [name for name in self.group if name not in live]
        return f"{', '.join(gone)} is gone" if gone else ""

    # -- groups ----------------------------------------------------------------------------------

    def _form(self, deadline: float) -> bool:
        """The next group; whether its weights are other ones than mine were."""
        self._drop()
        while True:
            formed = self._formation.form(
                self._step, founder=self._founder, deadline=deadline, **self._standing()
            )
            self._formed, self._form_anew = formed, False
            self._joint = JointGradient(
                self._model,
                self._layout,
                self._parameters,
                len(formed.plan.members),
                self._collective_device,
            )
            try:
                return self._level(formed, deadline)
            except GroupBroken as error:
                log.info("%s: a handover was broken: %s", self.name, error)
                self._drop()

    @property
    def _collective_device(self) -> torch.device:
        nccl = self._device.type == "cuda" and torch.distributed.is_nccl_available()
        return self._device if nccl else torch.device("cpu")

    def _level(self, formed: Formed, deadline: float) -> bool:
        """Give, or take over, what those lack who are behind."""
        plan, collective = formed.plan, formed.collective
        if collective is None or not plan.behind:
            return False
        source = plan.members.index(plan.source)
        packed = torch.empty(0, dtype=torch.uint8)
        if formed.rank == source:
            packed = self._handover.pack(step=self._step, samples=self._total)
        size = torch.tensor([packed.numel()], dtype=torch.int64, device=self._collective_device)
        collective.broadcast(size, source, lambda: self._missing(deadline))
        if formed.rank != source:
            packed = torch.empty(int(size), dtype=torch.uint8)
        packed = packed.to(self._collective_device)
        collective.broadcast(packed, source, lambda: self._missing(deadline))
        if self.name not in plan.behind:
            return False
        found = self._handover.unpack(packed.cpu())
        # Who is one step behind had its samples in the sum that only the others got.
        self._unsent -= self._offered
        self._offered = 0
        self._step, self._total = found["step"], found["samples"]
        return True

    def _drop(self) -> None:
        """Of the group there was."""
        if self._formed is not None and self._formed.collective is not None:
            self._formed.collective.close()
        self._formed = self._joint = None

    # -- not training ----------------------------------------------------------------------------

    def finish(self, timeout_s: float = 10.0) -> bool:
        """The end of the run: wait until all have come to it, and have the same weights."""
        now = time.monotonic()
        self._figures.ended(now)
        even = self._wait_for_all(now + timeout_s)
        self._end()
        self._port.others.tell("done")
        self._port.others.tell("settled")
        return even

    def _wait_for_all(self, deadline: float) -> bool:
        """Go along without a gradient until nobody has one, then take over what the last made."""
        if self._over or not (self._formed is not None or self._formation.waiting()):
            return True
        self._intent = DONE
        try:
            while True:
                said = self._together(contributes=False, deadline=deadline)
                # A step of those who still train, which is not made here: `_even_out` brings it.
                if all(intent >= DONE for intent in said.intents):
                    self._even_out(deadline)
                    return True
                if time.monotonic() > deadline:
                    return False
        except TransportError as error:
            log.warning("%s ends before all others did: %s", self.name, error)
            return False

    def _even_out(self, deadline: float) -> None:
        """All have come to the end: the weights of whoever made the most steps."""
        formed = self._formed
        if formed is None or formed.collective is None:
            return
        steps = torch.zeros(len(self.group), dtype=torch.float64, device=self._collective_device)
        steps[formed.rank] = self._step
        collective, missing = formed.collective, lambda: self._missing(deadline)
        collective.sum(steps, missing)
        if bool((steps == steps[0]).all()):
            return
        source = int(steps.argmax())
        weights = self._handover.weights().to(self._collective_device)
        collective.broadcast(weights, source, missing)
        if formed.rank != source:
            self._handover.put(weights.cpu())
            self._step = int(steps.max())

    def _end(self) -> None:
        """Train with the others no more."""
        self._over = True
        self._port.others.meet("")
        self._drop()

    # -- coming and going ------------------------------------------------------------------------

    def enter(self, timeout_s: float) -> None:
        """Wait for the run's weights, and begin; `join` calls it."""
        began = time.monotonic()
        self._meet(timeout_s)
        if not self._founder:
            self._handover.put(self._port.weights)
            if self._formation.waiting():  # they train: what they have is what counts
                self._form(began + timeout_s)
        self._begin(began)

    def _farewell(self, deadline: float) -> None:
        """With one more sum, so that no step of the others breaks."""
        if not self._over and self._formed is not None and not self.runtime.failed:
            self._intent = GOING
            try:
                self._exchange(contributes=False, deadline=deadline)
            except TransportError as error:
                log.info("%s leaves in the middle of a step: %s", self.name, error)
        self._end()

    def __repr__(self) -> str:
        return (
            f"SynchronousSwarm({self.run!r}, {self.name!r} at {self.address}, {len(self.group)} in"
            " step)"
        )


def _device(parameters: Sequence[torch.nn.Parameter]) -> torch.device:
    devices = {parameter.device for parameter in parameters}
    return devices.pop() if len(devices) == 1 else torch.device("cpu")
