"""`murmurate.join(mode="ist")` and `mode="hub"`: an ordinary training loop for a coordinator.

Mode ist: the coordinator gives a subnet, the loop trains it, and now and then it is pushed back;
`Member.model` is what the loop calls (`trained_subnet`). Mode hub: the loop trains its own model,
with the hub's weights (`trained_whole`). All of it happens in `optimizer.step()`, in the
thread that calls it: nobody else writes weights. What is pushed, and what is done with what
comes, is what the rule's half says (`member_values`): nothing here knows a rule.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from murmurate.core.admission import NAME_BYTES_MAX
from murmurate.core.figures.counters import Learned, Tally
from murmurate.core.figures.progress import Progress
from murmurate.core.partition import Structure, observe
from murmurate.core.partition.whole import whole_structure
from murmurate.core.staleness import Summary
from murmurate.core.values.limits import name_problem
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.http import Pages
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.edge.net.transport import Limits
from murmurate.edge.runtime.malloc import keep_memory
from murmurate.errors import (
    ConfigError,
    PeerUnavailable,
)
from murmurate.training.leasing import Leasing
from murmurate.training.member_link import CLOSE_S, MemberLink
from murmurate.training.signals import Interrupts
from murmurate.training.trained_subnet import CurrentSubnet, TrainedSubnet
from murmurate.training.trained_whole import TrainedWhole
from murmurate.watch.member_pages import pages

log = logging.getLogger("murmurate")

WAIT_S = 0.05


class Member:
    """This process's place in a run. Use it as a context manager, or call `leave()` at the end."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        run: str,
        coordinator: str,
        name: str | None = None,
        width: float = 0.0,
        memory_bytes: int = 0,
        example: Any = None,
        join_timeout_s: float = 30.0,
        metrics: str | None = None,
        idle: Callable[[], bool] = lambda: False,
        mode: str = "ist",
        credentials: Credentials,
        _limits: Limits | None = None,
    ) -> None:
        """`idle` is called while there is nothing to train; true: do not wait any longer."""
        name = name if name is not None else f"{socket.gethostname()}-{os.getpid()}"
        what = name_problem(name, NAME_BYTES_MAX)
        problems = [
            (not what, f"name: {what}"),
            (bool(run) and not name_problem(run, NAME_BYTES_MAX), f"run {run!r}: expected a name"),
            (0.0 <= width < float("inf"), f"width {width:g}: expected a number from 0 on"),
            (memory_bytes >= 0, f"memory {memory_bytes}: expected a number of bytes"),
            (join_timeout_s > 0, f"join_timeout_s {join_timeout_s}: expected more than 0"),
        ]
        for good, problem in problems:
            if not good:
                raise ConfigError(problem)
        self.name = name
        self.run = run
        self.idle = idle
        self.tally = Tally()
        self.mode = mode
        self.model: Any
        """What the loop calls: in mode ist the subnet of now, in mode hub the model itself."""
        self._trained: TrainedSubnet | TrainedWhole
        if mode == "hub":
            self.model, self._trained = model, TrainedWhole(model, optimizer, self._seen)
        else:
            self.model = current = CurrentSubnet(self._begin, self._seen)
            self._trained = TrainedSubnet(model, optimizer, current)
        self._coordinator = coordinator
        self._width = float(width)
        self._memory_bytes = int(memory_bytes)
        self._join_timeout_s = join_timeout_s
        self._limits = _limits
        self._credentials = credentials
        self._pages: Pages | None = (
            pages(self, metrics, credentials) if metrics is not None else None
        )
        self._leasing: Leasing | None = None
        self._link: MemberLink | None = None
        self._hook: Any = None
        self._interrupts = Interrupts()
        self._batch = 0
        """Samples the model was called with since the last step."""
        self._resumed = time.monotonic()
        self._left = False
        self._over = False
        """The coordinator has said stop, and has got the rest."""
        if mode == "hub":
            self._begin_with(whole_structure(model))
        elif example is not None:
            self._begin(example if isinstance(example, tuple) else (example,))

    # -- what is known ---------------------------------------------------------------------------

    @property
    def rule(self) -> str:
        """The coordinator's."""
        return self._leasing.rule if self._leasing is not None else ""

    @property
    def metrics_address(self) -> str | None:
        """Where its figures are served; None: nowhere."""
        return self._pages.address if self._pages is not None else None

    @property
    def failed(self) -> bool:
        return self._leasing is not None and self._leasing.error is not None

    @property
    def connected(self) -> bool:
        return self._leasing is not None and self._leasing.connected

    @property
    def stopped(self) -> str:
        """Why the coordinator has ended the run; empty: it has not. What was trained is with it."""
        return self._leasing.stopped if self._leasing is not None and self._over else ""

    @property
    def plan(self) -> int:
        """The number of the plan its subnet is of; 0: it has none."""
        lease = self._leasing.lease if self._leasing is not None else None
        return lease.plan if lease is not None else 0

    @property
    def lease(self) -> int:
        lease = self._leasing.lease if self._leasing is not None else None
        return lease.number if lease is not None else 0

    @property
    def share(self) -> float:
        """The part of the model's parameters that is here."""
        lease = self._leasing.lease if self._leasing is not None else None
        if lease is None:
            return 0.0
        structure = self._trained.structure
        return structure.parameters(lease.held) / max(
            1, structure.parameters(structure.everything())
        )

    @property
    def samples(self) -> int:
        """Of this member."""
        return self.tally.samples

    @property
    def steps(self) -> int:
        return sum(self.tally.steps)

    @property
    def steps_lost(self) -> int:
        """Made between a push and the next subnet, which replaced them."""
        return self._leasing.steps_lost if self._leasing is not None else 0

    @property
    def spent(self) -> float:
        """The part of the run's budget, from 0 to 1, when the coordinator said something last: for
        schedules. 0: it has no budget."""
        return self._leasing.spent if self._leasing is not None else 0.0

    @property
    def staleness(self) -> Summary:
        """Of each push that was taken: how many pushes of others came in since what it was computed
        on."""
        copy = Summary()
        if self._leasing is not None:
            with self._leasing.news:
                copy.merge(self.tally.staleness)
        return copy

    def progress(self) -> Progress:
        leasing = self._leasing
        traffic = (leasing.sent_bytes, leasing.received_bytes) if leasing is not None else (0, 0)
        return self.tally.progress(
            self.name, 1, time.monotonic(), traffic=traffic, done=self._over or self._left
        )

    # -- training --------------------------------------------------------------------------------

    def log(
        self,
        *,
        samples: int = 0,
        loss: float | None = None,
        test_loss: float | None = None,
        accuracy: float | None = None,
        accuracy_of: Sequence[float] | None = None,
        validation_loss: float | None = None,
        validation_accuracy: float | None = None,
        flops_per_sample: float | None = None,
    ) -> None:
        """Note the latest figures. Samples are counted by the calls of the model: the first
        dimension of the first tensor. What is said of them here is not added."""
        del samples
        self.tally.note(
            Learned(
                loss=loss,
                test_loss=test_loss,
                accuracy=accuracy,
                accuracy_of=accuracy_of,
                validation_loss=validation_loss,
                validation_accuracy=validation_accuracy,
                flops_per_sample=flops_per_sample,
            )
        )

    def _seen(self, args: tuple[Any, ...]) -> None:
        for each in args:
            if isinstance(each, torch.Tensor) and each.dim():
                self._batch += each.shape[0]
                return

    def _after_step(self, *_: Any) -> None:
        leasing = self._leasing
        assert leasing is not None
        leasing.check()
        now = time.monotonic()
        tally = self.tally
        if tally.began is None:
            tally.began = self._resumed
        self._trained.stepped()
        tally.step(now - self._resumed)
        tally.samples += self._batch
        eventful = leasing.stepped(self._batch, now - self._resumed, now)
        self._batch = 0
        if not eventful:
            self._resumed = now
            return
        with self._interrupts.held_back():
            if leasing.stopped:
                self._wind_up(CLOSE_S)
            elif not self._over:
                self._exchange()
        if not self._over and leasing.nothing_to_train():
            self._wait()
        self._resumed = time.monotonic()

    def _exchange(self) -> None:
        leasing = self._leasing
        assert leasing is not None
        if leasing.half.pipelined and leasing.wants_push():
            self._push()  # what is not pushed yet is of the weights that are here
        if leasing.gift is not None:
            self._adopt()
        elif leasing.wants_push():
            self._push()

    def _wait(self) -> None:
        """Until there is something to train: as long as the coordinator is there."""
        leasing = self._leasing
        assert leasing is not None
        began = time.monotonic()
        try:
            while leasing.nothing_to_train() and not leasing.stopped:
                leasing.wait(WAIT_S)
                leasing.check()
                if leasing.gift is not None:
                    with self._interrupts.held_back():
                        self._adopt()
                elif self.idle():
                    return
        finally:
            self.tally.wait_s += time.monotonic() - began

    # -- subnets come and go -----------------------------------------------------------------------

    def _adopt(self) -> None:
        """Train what was given from now on."""
        leasing = self._leasing
        assert leasing is not None
        gift = leasing.next_gift()
        if gift is not None:
            lease = gift.lease
            self._trained.adopt(leasing.half, lease.held, gift.values, lease.number)

    def _push(self) -> None:
        """A copy of what goes up, to be sent in the background."""
        leasing = self._leasing
        assert leasing is not None
        began = time.thread_time()
        values = self._trained.up()
        leasing.put(values, time.thread_time() - began)

    # -- coming and going ------------------------------------------------------------------------

    def _begin(self, example: tuple[Any, ...]) -> None:
        """Find the structure, then get the first subnet."""
        assert isinstance(self._trained, TrainedSubnet)
        structure = observe(self._trained.whole, example)
        if not structure.groups:
            why = "; ".join(f"{name}: {it}" for name, it in structure.reasons.items())
            raise ConfigError(f"model: none of its axes can be split ({why})")
        self._begin_with(structure)

    def _begin_with(self, structure: Structure) -> None:
        keep_memory()
        self._trained.structure = structure
        self._leasing = leasing = Leasing(
            run=self.run,
            name=self.name,
            instance=secrets.token_hex(8),
            structure=structure,
            digest=structure_digest(structure),
            width=self._width,
            memory_bytes=self._memory_bytes,
            tally=self.tally,
            mode=self.mode,
        )
        self._link = MemberLink(
            self._coordinator, leasing, self._pages, self._limits, self._credentials
        )
        try:
            self._interrupts.watch()
            self._enter(leasing)
        except BaseException:
            self.leave(timeout_s=0.0)
            raise
        atexit.register(self.leave)
        self._hook = self._trained.optimizer.register_step_post_hook(self._after_step)
        self._resumed = time.monotonic()

    def _enter(self, leasing: Leasing) -> None:
        began = time.monotonic()
        while leasing.gift is None:
            leasing.check()
            leasing.wait(WAIT_S)
            waited_s = time.monotonic() - began
            if leasing.stopped:
                raise PeerUnavailable(f"the coordinator has ended the run: {leasing.stopped}")
            if self.idle():
                raise PeerUnavailable("told to stop while there was nothing to train yet")
            if not leasing.ever and waited_s > self._join_timeout_s:
                raise leasing.trouble or PeerUnavailable(
                    f"the coordinator at {self._coordinator} does not answer"
                )
        self._adopt()
        self.tally.wait_s += time.monotonic() - began

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Push what was trained since the last push, and wait until it is in the model. False: it
        took too long, or the coordinator is gone."""
        leasing = self._leasing
        if leasing is None:
            return True
        deadline = time.monotonic() + timeout_s
        while True:
            leasing.check()
            if leasing.gift is not None and not leasing.half.stays:
                return True  # what is here is over: the rest of it has been pushed before
            if leasing.wants_push(all_of_it=True):
                self._push()
            if leasing.settled():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with leasing.news:
                leasing.news.wait(min(left, WAIT_S))

    def conclude(self) -> None:
        """Nothing more is pushed: steps of which nobody has said that they are in are lost."""
        if self._leasing is not None:
            self._leasing.conclude()

    def _wind_up(self, timeout_s: float) -> None:
        """The coordinator has said stop: the rest goes out, then goodbye."""
        if not self._over:
            self.settle(timeout_s)
            self.conclude()
            self._over = True
            self.tally.ended = time.monotonic()
            self._close()

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()

    def leave(self, timeout_s: float = 5.0) -> None:
        """Push the rest, say that I leave. At most `timeout_s`."""
        if self._left:
            return
        self._left = True
        if self._hook is not None:
            self._hook.remove()
        self._trained.close()
        atexit.unregister(self.leave)
        self._interrupts.restore()
        if self._leasing is None:
            return
        self.tally.ended = self.tally.ended or time.monotonic()
        try:
            if timeout_s > 0 and not self._over and self._leasing.error is None:
                self.settle(timeout_s)
        finally:
            self._close()

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return (
            f"Member({self.run!r}, {self.name!r}, plan {self.plan}, {self.share:.0%} of the model)"
        )
