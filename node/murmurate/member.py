"""`murmurate.join(mode="ist")`: an ordinary training loop trains a subnet of the model.

The coordinator gives a subnet, the loop trains it, and now and then it is pushed back. All of that
happens at the end of `optimizer.step()`, in the thread that calls it: nobody else writes weights.
`Member.model` is what the loop calls. It stays the same object while subnets come and go inside it,
and the optimizer stays the user's: its groups get the parameters of the subnet, by name, and its
state starts anew with every subnet, as in the reference code of paper 001.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from murmurate.core.clock import name_problem
from murmurate.core.gate import NAME_BYTES_MAX
from murmurate.core.partition import Structure, build, load, observe, weights_of
from murmurate.core.staleness import Summary
from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    PeerUnavailable,
)
from murmurate.interrupts import Interrupts
from murmurate.io.coordinator_link import CoordinatorLink
from murmurate.io.coordinator_values import structure_digest
from murmurate.io.http import Pages
from murmurate.io.malloc import keep_memory
from murmurate.io.progress import Progress
from murmurate.io.transport import Limits
from murmurate.leasing import Gift, Leasing
from murmurate.tally import Tally
from murmurate.watch.member_pages import pages

log = logging.getLogger("murmurate")

WAIT_S = 0.05
CLOSE_S = 3.0
DRAIN_S = 0.05
"""gRPC still tells a closed stream's end to its loop, which must be there."""


class Current(nn.Module):
    """The subnet that is trained now, under one name. Calls go to it, and so does every attribute
    it has; `train()` and `eval()` reach it too."""

    subnet: nn.Module | None

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.subnet = None
        object.__setattr__(self, "_member", member)  # no part of the module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        member: Member = self._member
        subnet = self._modules.get("subnet")  # not by attribute: that takes several times as long
        if subnet is None:
            member._begin(args)
            subnet = self._modules["subnet"]
        assert subnet is not None
        if self.training and torch.is_grad_enabled():
            member._seen(args)
        return subnet(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            subnet = self.__dict__.get("_modules", {}).get("subnet")
            if subnet is None:
                raise
            return getattr(subnet, name)


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
        self.model = Current(self)
        self._whole = model
        self._optimizer = optimizer
        self._names = _names(model, optimizer)
        self._coordinator = coordinator
        self._width = float(width)
        self._memory_bytes = int(memory_bytes)
        self._join_timeout_s = join_timeout_s
        self._limits = _limits
        self._pages: Pages | None = pages(self, metrics) if metrics is not None else None
        self._leasing: Leasing | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: CoordinatorLink | None = None
        self._thread: threading.Thread | None = None
        self._hook: Any = None
        self._interrupts = Interrupts()
        self._batch = 0
        """Samples the model was called with since the last step."""
        self._fresh = False
        """No step was made yet with this subnet."""
        self._resumed = time.monotonic()
        self._left = False
        self._over = False
        """The coordinator has said stop, and has got the rest."""
        if example is not None:
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
        structure = self._structure
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
        accuracy: float | None = None,
        accuracy_of: Sequence[float] | None = None,
        flops_per_sample: float | None = None,
    ) -> None:
        """Note the latest figures. Samples are counted by the calls of the model: the first
        dimension of the first tensor. What is said of them here is not added."""
        del samples
        if loss is not None:
            self.tally.loss = float(loss)
        if accuracy is not None:
            self.tally.accuracy = float(accuracy)
        if accuracy_of is not None:
            self.tally.accuracy_of = tuple(float(each) for each in accuracy_of)
        if flops_per_sample is not None:
            self.tally.flops_per_sample = float(flops_per_sample)

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
        if self._fresh:
            self._check_called()
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

    def _check_called(self) -> None:
        """Once for each subnet: a loop that calls the model it has joined with trains nothing."""
        self._fresh = False
        if all(p.grad is None for p in self.model.parameters()):
            raise LocalProtocolError(
                "the step changed nothing: call swarm.model, not the model given to join()"
            )

    # -- subnets come and go -----------------------------------------------------------------------

    def _adopt(self) -> None:
        """Train what was given from now on."""
        leasing = self._leasing
        assert leasing is not None
        held = leasing.lease.held if leasing.lease is not None else None
        gift = leasing.next_gift()
        if gift is None:
            return
        subnet = self.model.subnet
        if subnet is not None and held is not None and (held == gift.lease.held).all():
            load(subnet, gift.values)
        else:
            subnet = self._made(gift)
            subnet.train(self.model.training)
            self.model.subnet = subnet
            self._bind(subnet)
        self._optimizer.state.clear()
        self._fresh = True

    def _made(self, gift: Gift) -> nn.Module:
        subnet = build(self._whole, self._structure, gift.lease.held, gift.values)
        for name, tensor in (*subnet.named_parameters(), *subnet.named_buffers()):
            if tensor.is_meta:
                raise ConfigError(
                    f"model: {name} is not saved with the model (persistent=False) and has no value"
                    " on the meta device: make it where it is used, or save it"
                )
        return subnet

    def _bind(self, subnet: nn.Module) -> None:
        """The optimizer's groups get the subnet's parameters; settings stay with their group."""
        mine = dict(subnet.named_parameters())
        for group, names in zip(self._optimizer.param_groups, self._names, strict=True):
            group["params"] = [mine[name] if isinstance(name, str) else name for name in names]

    def _push(self) -> None:
        """A copy of the subnet as it is, to be sent in the background."""
        leasing = self._leasing
        assert leasing is not None
        assert self.model.subnet is not None
        began = time.thread_time()
        values = {
            name: value.detach().clone() for name, value in weights_of(self.model.subnet).items()
        }
        leasing.put(values, time.thread_time() - began)

    # -- coming and going ------------------------------------------------------------------------

    def _begin(self, example: tuple[Any, ...]) -> None:
        """Find the structure, then get the first subnet."""
        keep_memory()
        self._structure: Structure = observe(self._whole, example)
        if not self._structure.groups:
            why = "; ".join(f"{name}: {it}" for name, it in self._structure.reasons.items())
            raise ConfigError(f"model: none of its axes can be split ({why})")
        self._leasing = leasing = Leasing(
            run=self.run,
            name=self.name,
            instance=secrets.token_hex(8),
            structure=self._structure,
            digest=structure_digest(self._structure),
            width=self._width,
            memory_bytes=self._memory_bytes,
            tally=self.tally,
        )
        self._start(leasing)
        try:
            self._interrupts.watch()
            self._enter(leasing)
        except BaseException:
            self.leave(timeout_s=0.0)
            raise
        atexit.register(self.leave)
        self._hook = self._optimizer.register_step_post_hook(self._after_step)
        self._resumed = time.monotonic()

    def _start(self, leasing: Leasing) -> None:
        ready = threading.Event()

        async def speak() -> None:
            self._loop = asyncio.get_running_loop()
            self._link = link = CoordinatorLink(self._coordinator, leasing, self._limits)
            ready.set()
            try:
                if self._pages is not None:
                    await self._pages.start()
                await link.run()
            except asyncio.CancelledError:
                pass  # closed while nobody answered
            except MurmurateError as error:
                leasing.fail(error)
            except BaseException as error:
                leasing.fail(error)  # raised in the training thread, at its next step
                raise
            finally:
                if self._pages is not None:
                    await self._pages.stop()
                await asyncio.sleep(DRAIN_S)

        self._thread = threading.Thread(
            target=lambda: asyncio.run(speak()), name="murmurate-member", daemon=True
        )
        self._thread.start()
        ready.wait()
        leasing.wake = lambda: self._tell("wake")
        leasing.renew = lambda: self._tell("renew")

    def _tell(self, what: str) -> None:
        loop, link = self._loop, self._link
        assert link is not None
        assert loop is not None
        if not loop.is_closed():
            loop.call_soon_threadsafe(getattr(link, what))

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
            if leasing.gift is not None:
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

    def _wind_up(self, timeout_s: float) -> None:
        """The coordinator has said stop: the rest goes out, then goodbye."""
        if not self._over:
            self.settle(timeout_s)
            self._over = True
            self.tally.ended = time.monotonic()
            self._close()

    def _close(self) -> None:
        thread = self._thread
        if thread is not None and self._loop is not None:
            if thread.is_alive():
                self._tell("close")
            thread.join(CLOSE_S)

    def leave(self, timeout_s: float = 5.0) -> None:
        """Push the rest, say that I leave. At most `timeout_s`."""
        if self._left:
            return
        self._left = True
        if self._hook is not None:
            self._hook.remove()
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


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str | torch.Tensor]]:
    """By group of the optimizer the names of its parameters; what is not the model's stays."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups: list[list[str | torch.Tensor]] = [
        [names.get(id(p), p) for p in group["params"]] for group in optimizer.param_groups
    ]
    if not any(isinstance(each, str) for group in groups for each in group):
        raise ConfigError("optimizer: none of its parameters is the model's")
    return groups
