"""Mode `hogwild`: processes of one machine train one set of weights in shared memory, lock-free.

The parameters of each model are that memory, so an optimizer's step is everybody's at once, and
nobody waits (003; Hogwild!). Two that write the same number at the same instant lose one of the two
changes; each has its own optimizer state, momentum included. Members know each other as in every
mode, so the report is the same. A step's staleness is how many steps the others finished between
the end of the step before, when its weights began to be read, and its own end.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from murmurate.core.layout import Layout, tracked
from murmurate.core.synchronous.rules import HOGWILD
from murmurate.edge.disk.shared_memory import SharedWeights, known
from murmurate.edge.net.transport import Transport
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import ConfigError, PeerUnavailable
from murmurate.training.allreduce import check_in_step, rule_in_step, runtime_in_step
from murmurate.training.companion import Companion
from murmurate.training.gossip import GOODBYE_S, GossipOptions
from murmurate.training.statistics import first_weights

MEMORY = "memory:"
"""What a member says of where it is met begins with this; the rest is the path of a file."""


class HogwildSwarm(Companion):
    """This process's place in a run. Use it as a context manager, or call `leave()` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        founder: bool,
    ) -> None:
        super().__init__(runtime, layout)
        self._parameters = parameters
        self._statistics = list(tracked(model).values()) if layout.trained < layout.size else []
        self._model = model
        self._founder = founder
        self._memory: SharedWeights | None = None
        self._others = 0
        """Steps the others had made when the batch at hand was started."""
        self._made = 0
        self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    # -- what is known ---------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Of this process."""
        return self._made

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights as they are now: of all, while somebody may be writing."""
        return first_weights(self._layout, self._parameters, self._model)

    # -- training --------------------------------------------------------------------------------

    def _after_step(self, *_: Any) -> None:
        memory = self._memory
        if memory is None:
            return
        self._port.check()
        now = time.monotonic()
        others = memory.others_steps()
        memory.stepped()
        self._made += 1
        self._figures.stepped(now - self._resumed, self._resumed)
        self._figures.stepped_in_memory(now - self._resumed, others - self._others)
        self._others = others  # of what is done from now on, so that every step counts once
        self._take_in()
        self._resumed = time.monotonic()

    def finish(self, timeout_s: float = 10.0) -> bool:
        """The end of the run: wait until nobody writes any more."""
        self._figures.ended(time.monotonic())
        self._port.others.tell("done")
        even = self.follow(lambda: self._port.others.are("done"), timeout_s)
        self._port.others.tell("settled")
        return even

    # -- coming and going ------------------------------------------------------------------------

    def enter(self, timeout_s: float) -> None:
        """Put the model into the memory that all train; `join` calls it."""
        began = time.monotonic()
        self._meet(timeout_s)
        if self._founder:
            self._memory = SharedWeights.create(self.weights())
        else:
            self._memory = SharedWeights(
                self._found(began + timeout_s), self._layout.size, self._layout.dtype
            )
        self._move_into(self._memory.weights)
        self._port.others.meet(f"{MEMORY}{self._memory.path}")
        self._begin(began)
        self._others = self._memory.others_steps()

    def _found(self, deadline: float) -> Any:
        """Where the memory is, as a member says."""
        while True:
            self._port.check()
            self._take_in()
            for name, said in sorted(self._port.others.meetings().items()):
                if not said.startswith(MEMORY):
                    continue
                path = known(said.removeprefix(MEMORY))
                if path is None:
                    self._port.reject("meeting", name, f"{said}: no memory of a member")
                else:
                    return path
            if time.monotonic() > deadline:
                raise PeerUnavailable("nobody says where the weights are")
            self._port.wait_for_news(0.05)

    def _move_into(self, flat: torch.Tensor) -> None:
        for index, parameter in enumerate(self._parameters):
            parameter.data = flat[self._layout.span(index)].view(parameter.shape)
        place = self._layout.trained
        for each in self._statistics:
            tensor = each.tensor
            tensor.data = flat[place : place + tensor.numel()].view(tensor.shape)
            place += tensor.numel()

    def _farewell(self, deadline: float) -> None:
        """The model is this process's own again."""
        del deadline
        memory, self._memory = self._memory, None
        if memory is None:
            return
        self._port.others.meet("")
        self._move_into(memory.weights.clone())
        memory.close()

    def __repr__(self) -> str:
        return f"HogwildSwarm({self.run!r}, {self.name!r}, {len(self.members)} members)"


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: GossipOptions,
    transport: Transport | None = None,
) -> HogwildSwarm:
    """Join the run; the model's parameters are then the memory that all train."""
    rule = rule_in_step(HOGWILD, options.rule)
    check_in_step(HOGWILD, options)
    layout, parameters = Layout.of(model, statistics=True)
    for spec, parameter in zip(layout.tensors, parameters, strict=False):
        if not parameter.is_cpu or parameter.dtype is not layout.dtype:
            raise ConfigError(
                f"model: {spec.name} is {parameter.dtype} on {parameter.device}: mode 'hogwild'"
                f" needs all parameters as {layout.dtype} in the memory of this machine"
            )
    runtime = runtime_in_step(model, layout, parameters, options, rule, transport)
    swarm = HogwildSwarm(
        runtime,
        layout,
        parameters,
        model,
        optimizer,
        founder=not runtime.figures.came_to_others,
    )
    swarm.credentials = options.credentials
    try:
        swarm.enter(options.join_timeout_s)
    except BaseException as error:
        swarm.leave(timeout_s=0.0 if isinstance(error, Exception) else GOODBYE_S)
        raise
    return swarm
