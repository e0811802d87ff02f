"""A node's place in a run: an ordinary training loop becomes one of many.

The loop stays as it is. After each `optimizer.step()` a hook takes what the step changed, passes it
on, and folds in what the others sent (`training.publisher`); the thread that calls `step()` is the
only one that writes weights.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from murmurate.core import buffers
from murmurate.core.clock import Clock
from murmurate.core.figures.counters import Learned
from murmurate.core.figures.update_intervals import UpdateIntervals
from murmurate.core.layout import Layout
from murmurate.core.plain_names import plain_names
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import ConfigError, LocalProtocolError, PeerUnavailable
from murmurate.training.checkpoints import Checkpoints
from murmurate.training.ending import Ending
from murmurate.training.finite_steps import FiniteSteps
from murmurate.training.gains import OptimizerGains
from murmurate.training.gathering import Gathering
from murmurate.training.loop_parts import give_back, take
from murmurate.training.publisher import Publisher
from murmurate.training.restored_state import state_for
from murmurate.training.shared_progress import SharedProgress
from murmurate.training.sight import ModelSight
from murmurate.training.signals import Interrupts

log = logging.getLogger("murmurate")

WAIT_S = 0.05
LEVEL_S = 10.0
"""Who comes back trains once it is level with another, or after so long."""
COMPARED_STEPS, COMPARED_EVERY = 512, 8
"""In the first so many steps it is looked, every so many, whether another draws the same."""


class Swarm(SharedProgress):
    """This node's place in a run. Use it as a context manager, or call `leave()` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
        publisher: Publisher,
        checkpoints: Checkpoints,
        sight: ModelSight,
    ) -> None:
        super().__init__(runtime, layout)
        self.publisher = publisher
        """Who passes local steps on; the same."""
        self.credentials: Credentials
        """What this process opens its ports and channels with; the same."""
        self._parameters = parameters
        self._checkpoints = checkpoints
        self._sight = sight
        self._port = runtime.training
        self._interrupts = Interrupts()
        self._ending = Ending(
            self._port, self._figures, publisher, checkpoints, self._interrupts, self.follow
        )
        self._left = self._finished = False
        self._life_steps = 0
        self._process = os.getpid()
        self._batches_said = False
        self.intervals: UpdateIntervals | None = None
        """Where so many local steps per update were asked for."""
        self._hooks: list[Any] = []
        self._finite = FiniteSteps()
        self._resumed = time.monotonic()
        """When the last step, or a wait for others, was over."""

    def hook(self, optimizers: Sequence[torch.optim.Optimizer], gain: OptimizerGains) -> None:
        """From now on each step of one of these is a step of this node; `join` calls it."""
        take(self._parameters, self.run, self.name)
        self._gain = gain
        for each in optimizers:
            if self._sight.watch is not None:
                self._hooks.append(each.register_step_pre_hook(self._sight.watch.steps))
            self._hooks.append(each.register_step_pre_hook(self._finite.before))
            self._hooks.append(each.register_step_pre_hook(self._sight.losses.before))
            self._hooks.append(each.register_step_post_hook(self.after_step))

    # -- what is known --------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """The updates in these weights: a copy."""
        return self._port.context()

    @property
    def checkpoint_age_s(self) -> float:
        """Since the last checkpoint of this process that is durable; infinite: there was none."""
        return self._checkpoints.age_s

    @property
    def checkpoint_failures(self) -> int:
        """Checkpoints that could not be written."""
        return self._checkpoints.failures

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights: what the clock says, without unpublished local steps."""
        return self._figures.weights()

    def state_dict(self) -> dict[str, Any]:
        """The model's, by its plain names and each tensor with memory of its own, so that a part of
        it can be saved: inside a swarm all parameters lie in one buffer."""
        model, placed = self._sight.model, self.publisher.placed
        plain = plain_names(model)
        own = model.state_dict()
        with placed.constrained_for_a_look():
            return {
                plain(name): value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in own.items()
            }

    # -- training --------------------------------------------------------------------------------

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Pass the step on, fold in what came: a hook, unless `gossip.start` was told otherwise."""
        if self._is_a_fork():
            raise ConfigError(
                "this process was forked off the one that joined the run, and is not in it: join()"
                " here, in a process that was started by `spawn`"
            )
        self._port.check()
        if self._finite.after():
            self._sight.batches.stepped()
            self._sight.losses.stepped()
            self.publisher.left_out("its gradient has numbers that are not finite")
            with self._interrupts.held_back():
                self._take_in()
            return
        self._gain.stepped(optimizer)
        self._sight.stepped()
        seconds = time.monotonic() - self._resumed
        started = self.publisher.unpublished.started
        self._figures.stepped(seconds, started, self._sight.batches.stepped())
        self._sight.losses.told = self._tells_losses
        if (loss := self._sight.losses.stepped()) is not None:
            self._figures.log(0, Learned(loss=loss))
        self._compare()
        self.publisher.took(seconds)
        self._checkpoints.steps += 1
        if self._finished:  # not the end after all
            self._finished = False
            self._port.others.trains_again()
        with self._interrupts.held_back():  # or one could leave weights and clock apart
            self.publisher.stepped()
            self.publisher.publish_if_due()
            self._take_in()
            self.publisher.look.ahead_if_eager()
        self._resumed = time.monotonic()

    def _compare(self) -> None:
        """Whether another draws the same as I do, and publishes as often: at the start."""
        life_steps = self._life_steps = self._life_steps + 1
        due = life_steps <= COMPARED_STEPS and life_steps % COMPARED_EVERY == 0
        if due and not self._batches_said:
            self._batches_said = self._figures.began_with(tuple(self._sight.batches.first))
        if due and self.intervals and (said := self.intervals.look(self.board, self.name)):
            log.warning("%s: %s", self.name, said)

    def _take_in(self, *, at_once: bool = False) -> None:
        """Fold in what came, let go out what is to, and keep what it came to, if that is due."""
        if self.publisher.fold():
            self._checkpoints.soon()
        self._port.flush(at_once=at_once)
        self._checkpoints.take_if_due()

    # -- not training ----------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish local steps that were not yet (`every` > 1, or no room before), and what encoding
        has left out so far: exactly, so that the weights are then the parameters."""
        self._ending.publish()

    def discard(self) -> None:
        """Take local steps back that were not published: weights are what the clock says again."""
        with self._interrupts.held_back():
            self.publisher.discard()

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on from these weights, all members: kept by `swarm.state_dict()`, or read from a file.

        All may call it, or only the chosen one: its call is the one that counts, and others' are
        answered with False and a line. Where it arrives, steps in no update are void, and the
        swarm's momentum begins anew. The optimizers' states are not touched.
        """
        self._port.check()
        model = self._sight.model
        loaded = state_for(model, state)
        with self._interrupts.held_back():
            self._take_in()
            if not self.chosen:
                self.publisher.discard()
                log.warning(
                    "%s: restore() counts on one member, the chosen one: %s; here its weights are"
                    " taken when they come",
                    self.name,
                    self._figures.by_arrival()[0],
                )
                return False
            try:
                self.publisher.restore(lambda: model.load_state_dict(loaded))
            except LocalProtocolError as error:
                raise ConfigError(f"state: it cannot be restored: {error}") from None
            self._take_in(at_once=True)
            self.publisher.look.ahead_if_eager()
        return True

    def constrain(self, constraint: Callable[[], object]) -> None:
        """From now on weights stay where `constraint` brings the parameters, in place: a clamp as
        in WGAN, a norm, weights that are not negative. The same on every peer, instead of a clamp
        in the loop, which each peer's update would add up.

        While updates are on their way weights may be a little beyond it. What `state_dict` gives
        and the model as it is left in the end are not.
        """
        self.publisher.placed.constraint = constraint

    def follow(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Fold in what comes, from this thread, until something is true; False: it took too long.

        Between training and training: a node that neither steps nor follows keeps what comes
        waiting, and the others sum up what they have for it.
        """
        deadline = time.monotonic() + timeout_s
        self.publisher.look.at_weights()  # nobody who waits here takes a gradient
        while True:
            self._port.check()
            with self._interrupts.held_back():
                self._take_in(at_once=True)
            self._resumed = time.monotonic()
            if until():
                return True
            left = deadline - self._resumed
            if left <= 0:
                return False
            self._port.wait_for_news(min(left, WAIT_S))

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Publish, then fold until every known update is in, and mine are with everyone alive."""
        return self._ending.settle(timeout_s)

    def finish(self, timeout_s: float | None = None) -> bool:
        """The end of the run: say so, wait until all have, and until all have the same.

        None: as long as the others may be expected to end (docs/session.md). False: not all have
        the same, and a line says why. A `with` block that ends without an exception does this.
        Weights do not change any more after it unless somebody goes on training.
        """
        self._finished = True
        self._ending.end_at_weights()
        return self._ending.finish(timeout_s)

    # -- coming and going ------------------------------------------------------------------------

    def enter(self, timeout_s: float, wait_for: int = 1) -> None:
        """Wait for the swarm's weights, and for so many members, and begin; `join` calls it."""
        port = self._port
        began = time.monotonic()
        back = port.resumed
        if back is not None:
            self._checkpoints.go_on(back)
            self.resumed = True
        self._layout.line_up(self._parameters)  # while the giver makes its copy
        if not self.follow(lambda: port.synced, timeout_s):
            raise PeerUnavailable(f"{', '.join(port.peers)}: no snapshot in {timeout_s:g} s")
        if back is not None:
            self.follow(port.others.is_level, min(timeout_s, LEVEL_S))
        del back  # it is larger than the model
        port.let_go()
        buffers.release()  # what a whole model came in is not needed again soon
        Gathering(self._figures, self.follow).wait(wait_for)
        self._figures.waited(time.monotonic() - began)
        self.publisher.begin()
        self._checkpoints.take_if_due()
        atexit.register(self._leave_at_exit)
        self._interrupts.watch()

    def going(self) -> None:
        """This node will leave soon: it is not ready any more (`/readyz`)."""
        self._port.going()

    def leave(self, timeout_s: float = 5.0) -> None:
        """Publish the rest, say that I leave, and stay until all have what is only here.

        At most `timeout_s`. What the optimizer does after this is local again.
        """
        if self._left:
            return
        self._left = True
        for hook in self._hooks:
            hook.remove()
        if self._sight.watch is not None and timeout_s > 0:
            self._sight.watch.left()
        self._sight.remove()
        give_back(self._parameters)
        atexit.unregister(self._leave_at_exit)
        self._interrupts.restore()
        try:
            self._ending.leave(timeout_s)
        finally:
            self.runtime.stop()
            self._checkpoints.take_last()
            self._layout.let_go(self._parameters)
            self.publisher.placed.constrain()

    def _leave_at_exit(self) -> None:
        """The program is over, and nobody has called `leave`."""
        if self._is_a_fork():
            return
        if getattr(sys, "last_value", None) is None and not self._interrupts.ended:
            self._say_unfinished()
        self.leave()

    def _is_a_fork(self) -> bool:
        """Whether this process was forked off the one that joined, which is the node: here there is
        nobody to leave, and no thread that could."""
        return os.getpid() != self._process

    def _say_unfinished(self) -> None:
        if not (self._left or self._finished):
            self._ending.say_unfinished()

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_a_fork():
            return
        try:
            if kind is None and not (self._left or self._finished):
                self._sight.over()
                self.finish()
            elif isinstance(error, SystemExit) and not error.code:
                self._say_unfinished()
        finally:
            self.leave()

    def __repr__(self) -> str:
        return f"Swarm({self.run!r}, {self.name!r} at {self.address}, {len(self.members)} members)"
