"""A node's place in a run: an ordinary training loop becomes one of many.

The loop stays as it is. After each `optimizer.step()` a hook takes what the step changed, passes it
on, and folds in what the others sent; the thread that calls `step()` is the only one that writes
weights. What a step changed is counted against the flat weights, so any change to the parameters
since the last step, by whatever means, is published with it.
"""

from __future__ import annotations

import atexit
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

import torch

from murmurate.core.clock import Clock
from murmurate.core.layout import Layout
from murmurate.core.message import Part
from murmurate.core.peer import Peer
from murmurate.core.staleness import Summary
from murmurate.core.turns import Turns
from murmurate.errors import LocalProtocolError, PeerUnavailable
from murmurate.instant import Copies, Instant
from murmurate.io.checkpoint import Checkpoint
from murmurate.io.codec import Encoder, gained_in, place_of
from murmurate.io.progress import Progress
from murmurate.runtime import Runtime
from murmurate.watch.reading import read

log = logging.getLogger("murmurate")

BAD_STEPS_MAX = 10
"""Steps in a row without a finite result before it is an error."""
WAIT_S = 0.05
ROOM_S = 2.0
"""At the end the last update waits for room at most this long, then it is made all the same."""
LEVEL_S, LEVEL_UPDATES = 10.0, 64
"""Who comes back trains once it lacks no more than so many updates of another, or after so long."""


class Source(Protocol):
    """Where batches come from, when it wants to know what becomes of the steps (`feed.Feed`)."""

    def may_publish(self) -> bool:
        """False: the steps since the last update must not leave yet; they are added up."""

    def published(self) -> None:
        """They are in an update."""

    def dropped(self) -> None:
        """They are not in the weights any more, and in no update."""

    def undone(self) -> None:
        """The same, because their result could not be used."""


class Swarm:
    """This node's place in a run. Use it as a context manager, or call `leave()` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        every: int,
        encoder: Encoder | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._runtime = runtime
        self._layout = layout
        self._parameters = parameters
        self._turns = turns
        """Large models are published a part at a time …"""
        self._every = every if turns is None else max(1, every // len(turns.places))
        """… and all of it in the same number of steps, if there are as many as parts."""
        self._source: Source | None = None
        self._unpublished = 0
        self._encoder = encoder
        self._coded_bytes = layout.nbytes
        """What the last update took, encoded."""
        self._residual = False
        """Whether the parameters are ahead of the weights by what encoding left out, or by parts
        whose turn is still to come."""
        self._bad_steps = 0
        self._context = Clock()
        self._started = 0.0
        self._left = False
        self._steps = 0
        self._instant: Instant | None = None
        self._hook = optimizer.register_step_post_hook(self._after_step)
        self._signals: dict[int, Any] = {}
        self._told_to_end = 0
        self._folding = False
        self._resumed = time.monotonic()
        """When the last step, or a wait for others, was over."""

    # -- what is known ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def run(self) -> str:
        return self._runtime.settings.run

    @property
    def address(self) -> str:
        return self._runtime.transport.address

    @property
    def metrics_address(self) -> str | None:
        """Where its figures are served; None: nowhere."""
        pages = self._runtime.pages
        return pages.address if pages is not None else None

    def export(self, registry: Any) -> None:
        """Register this node's figures with a registry of prometheus_client of your own."""
        from murmurate.io.metrics import FAMILIES, Collector

        registry.register(Collector(lambda: read(self._runtime), FAMILIES))

    @property
    def schema(self) -> str:
        """A hash of the names, types and shapes of what is trained; the same on all nodes."""
        return self._layout.schema

    @property
    def clock(self) -> Clock:
        """The updates in these weights: a copy."""
        with self._runtime.lock:
            return self._runtime.peer.context()

    @property
    def members(self) -> dict[str, str]:
        """Names and states (alive, suspect, dead, left), this node's included."""
        with self._runtime.lock:
            return {r.name: r.state for r in self._runtime.peer.membership.rumours()}

    @property
    def staleness(self) -> Summary:
        """Of every update applied here, own included."""
        with self._runtime.lock:
            copy = Summary()
            copy.merge(self._runtime.tally.staleness)
            return copy

    @property
    def board(self) -> list[Progress]:
        """The last word of every member about its progress, this node's as of now."""
        self._runtime.progress()
        with self._runtime.lock:
            return list(self._runtime.board)

    @property
    def samples(self) -> int:
        """Samples the whole swarm has trained on, as far as it is known here."""
        return sum(self.samples_of.values())

    @property
    def samples_of(self) -> dict[str, int]:
        """Of each node, also of those that are gone."""
        runtime = self._runtime
        with runtime.lock:
            others = {entry.name: entry.samples for entry in runtime.board}
            return {**others, runtime.name: runtime.tally.samples}

    def progress(self) -> Progress:
        return self._runtime.progress()

    @property
    def delays(self) -> tuple[float, float]:
        """In updates, on average since the beginning: own ones made while one of another was on its
        way, and those of a third node that it overtook (`watch.outlook`)."""
        with self._runtime.lock:
            return self._runtime.outlook.delays_so_far

    @property
    def accuracy_of(self) -> tuple[float, ...]:
        """By class, as it was logged last."""
        return self._runtime.tally.accuracy_of

    @property
    def checkpoint_age_s(self) -> float:
        """Since the last checkpoint of this process that is durable; infinite: there was none."""
        keeper = self._runtime.keeper
        return keeper.age_s if keeper is not None else math.inf

    @property
    def checkpoint_failures(self) -> int:
        """Checkpoints that could not be written."""
        keeper = self._runtime.keeper
        return keeper.failures if keeper is not None else 0

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights: what the clock says, without unpublished local steps."""
        with self._runtime.lock:
            return self._runtime.weights.clone()

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
        """Count samples and note the latest figures, for the others, for reports and metrics:
        `accuracy_of` is by class, `flops_per_sample` of the model, forward."""
        tally = self._runtime.tally
        tally.samples += samples
        if loss is not None:
            tally.loss = float(loss)
        if accuracy is not None:
            tally.accuracy = float(accuracy)
        if accuracy_of is not None:
            tally.accuracy_of = tuple(float(each) for each in accuracy_of)
        if flops_per_sample is not None:
            tally.flops_per_sample = float(flops_per_sample)

    def _after_step(self, *_: Any) -> None:
        runtime = self._runtime
        runtime.check()
        if runtime.tally.began is None:
            runtime.tally.began = self._started
        runtime.tally.step(time.monotonic() - self._resumed)
        self._unpublished += 1
        self._steps += 1
        if self._turns is not None:
            self._turns.stepped()
        with self._undisturbed():
            if self._unpublished >= self._every and self._has_room():
                self._publish()
            self._fold()
            runtime.flush()
            self._keep()
        self._resumed = time.monotonic()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Signals wait: in the middle of a fold one would leave weights and clock apart."""
        if self._folding:
            yield
            return
        self._folding = True
        try:
            yield
        finally:
            self._folding = False
        if self._told_to_end:
            raise self._end()

    def _keep(self) -> None:
        """A checkpoint of this instant, if one is due."""
        keeper, runtime = self._runtime.keeper, self._runtime
        if keeper is not None and keeper.due(time.monotonic()) and self._is_whole():
            keeper.take(self._now)
            runtime.tally.checkpoint_failures = keeper.failures

    def _is_whole(self) -> bool:
        return self._runtime.peer.synced and not self._runtime.torn

    def _now(self, copies: Copies) -> Checkpoint:
        assert self._instant is not None
        runtime = self._runtime
        tensors = self._instant.copy(runtime.weights, copies)
        return Checkpoint(**runtime.account(), **tensors, step=self._steps)

    def _has_room(self) -> bool:
        runtime = self._runtime
        if self._source is not None and not self._source.may_publish():
            return False
        if time.monotonic() - self._started < runtime.pace.interval_s:
            return False
        if self._in_turns and runtime.gives():
            return False  # or memory would hold both, the newcomer's copy and an update
        with runtime.lock:
            peer = runtime.peer
            if self._encoder is not None and isinstance(peer, Peer):
                return peer.synced and peer.room(self._coded_bytes, sparing=True)
            return peer.synced and peer.room(
                runtime.settings.update_bytes if self._in_turns else self._layout.nbytes
            )

    @property
    def _in_turns(self) -> bool:
        """A source is told of steps once, when all that they changed is published."""
        return self._turns is not None and self._source is None

    def _publish(self, *, exact: bool = False) -> None:
        """Encoded, unless `exact`: what encoding leaves out stays in the parameters, which are not
        written here, and so is in what the next update gained."""
        if self._in_turns:
            self._publish_part()
            return
        update: torch.Tensor | Part = self._layout.gained(self._parameters, self._runtime.weights)
        if self._encoder is not None and not exact:
            assert isinstance(update, torch.Tensor)
            update = self._encoder.encode(update)
            self._coded_bytes = update.nbytes
        if self._commit(update):
            self._residual = self._encoder is not None and not exact
            if self._turns is not None:
                self._turns.forget()
            if self._layout.narrow or exact:
                self._scatter()
        self._start_batch()

    def _publish_part(self) -> None:
        """What was gained where it is the turn; the rest stays in the parameters, until it is."""
        turns, weights = self._turns, self._runtime.weights
        assert turns is not None
        place = turns.place
        values = self._layout.values(self._parameters, place)
        if self._commit(gained_in(place, values, weights[place], self._layout.size), turns):
            turns.published()
            self._residual = turns.waiting
            if not turns.waiting:
                self._scatter()  # the sum is rounded: they are to be the weights to the bit
        self._start_batch()

    def _commit(self, update: torch.Tensor | Part, turns: Turns | None = None) -> bool:
        """False: it could not be used, and the steps are taken back. `turns`: who knows since when
        it was computed."""
        steps, context, started = self._unpublished, self._context, self._started
        if turns is not None:
            steps, context, started = turns.steps, turns.context, turns.started
        self._unpublished = 0
        try:
            seconds = time.monotonic() - started
            self._runtime.commit(update, context, seconds, max(1, steps // self._every))
        except LocalProtocolError as error:
            self._undo(error)
            return False
        if self._source is not None:
            self._source.published()
        self._bad_steps = 0
        return True

    def _undo(self, error: LocalProtocolError) -> None:
        """A step that must not be passed on is taken back: weights stay what the clock says."""
        self._take_back()
        if self._source is not None:
            self._source.undone()
        self._bad_steps += 1
        with self._runtime.lock:
            self._runtime.tally.rejected["own_step"] += 1
        log.warning("%s: a local step was taken back: %s", self.name, error)
        if self._bad_steps >= BAD_STEPS_MAX:
            raise LocalProtocolError(f"{self._bad_steps} local steps in a row failed: {error}")

    def _fold(self) -> None:
        runtime = self._runtime
        began = time.monotonic()  # what comes from now on is not in the next batch's weights
        if not runtime.waiting():
            self._start_batch(began)
            return
        ahead = None
        with runtime.lock:
            waiting = [item.message for item in runtime.inbox]
        if self._unpublished or self._residual:
            place = place_of(waiting) if self._in_turns else slice(None)
            ahead = self._layout.ahead(self._parameters, runtime.weights, place)
        life, synced = runtime.peer, runtime.peer.synced
        changed = False
        try:
            changed = runtime.fold(len(waiting))
            if runtime.adopted:
                runtime.adopted = False
                if runtime.peer is not life or not synced:
                    ahead, changed = None, True  # local steps of a life that is over
                    self._forget_steps()
                    if runtime.keeper is not None:
                        runtime.keeper.soon()
                    if self._source is not None:
                        self._source.dropped()
        finally:
            if ahead is not None:
                ahead.put_back(runtime.weights)
            elif changed:
                self._scatter()
        self._start_batch(began)

    def _take_back(self) -> None:
        """The parameters are the weights again."""
        self._scatter()
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._unpublished = 0
        self._residual = False
        if self._turns is not None:
            self._turns.forget()

    def _scatter(self) -> None:
        self._layout.scatter(self._runtime.weights, self._parameters)

    def _start_batch(self, at: float | None = None) -> None:
        """From now on, or since a moment ago, what others make is not in what I compute."""
        if self._unpublished and not self._in_turns:
            return  # the next update is of the steps before, too
        context = self._runtime.peer.context()
        at = time.monotonic() if at is None else at
        if self._turns is not None:
            self._turns.begin(context, at)
        if not self._unpublished:
            self._context, self._started = context, at

    # -- not training ----------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish local steps that were not yet (`every` > 1, or no room before), and what encoding
        has left out so far: exactly, so that the weights are then the parameters."""
        self._runtime.check()
        if self._source is not None and not self._source.may_publish():
            return
        if (self._unpublished or self._residual) and self._runtime.peer.synced:
            with self._undisturbed():
                self._publish(exact=self._encoder is not None)
                while self._in_turns and self._residual:
                    self._publish()
            self._runtime.flush(at_once=True)

    def _publish_last(self, timeout_s: float) -> float:
        """Publish once there is room, or a large model would be in memory once more than it need
        be. What is left of the time."""
        began = time.monotonic()
        until = began + min(timeout_s / 2, ROOM_S)
        while self._unpublished or self._residual:
            room = self.follow(self._has_room, until - time.monotonic())
            if not room or not self._in_turns:
                break
            with self._undisturbed():
                self._publish()
            self._runtime.flush(at_once=True)
        self.publish()
        return timeout_s - (time.monotonic() - began)

    def _share_rest(self, timeout_s: float) -> float:
        """What encoding has left out, as all do at the end: each its share of it, so that what is
        added is the mean. Each rest was trained beside its own node's only; their sum would go too
        far, by up to five points of accuracy (docs/codecs.md). What is left of the time."""
        began = time.monotonic()
        if self._source is None or self._source.may_publish():
            if self._unpublished:
                self.follow(self._has_room, min(timeout_s / 2, ROOM_S))
            with self._undisturbed():
                if self._unpublished:
                    self._publish()
                with self._runtime.lock:
                    nodes = max(1, len(self._runtime.peer.membership.live()))
                if self._residual:
                    self._publish_rest(1.0 / nodes)
            self._runtime.flush(at_once=True)
        return timeout_s - (time.monotonic() - began)

    def _publish_rest(self, share: float) -> None:
        """So much of it; what remains is dropped. All of it, where it is not worth an update."""
        assert self._encoder is not None
        rest = self._layout.gained(self._parameters, self._runtime.weights).mul_(share)
        update = self._encoder.encode_last(rest)
        if update is not None:
            self._commit(update)
        self._scatter()
        self._residual = False
        self._start_batch()

    def discard(self) -> None:
        """Take local steps back that were not published: weights are what the clock says again."""
        with self._undisturbed():
            self._take_back()
            if self._source is not None:
                self._source.dropped()
            self._start_batch()

    def follow(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Fold in what comes, from this thread, until something is true; False: it took too long.

        Between training and training: a node that neither steps nor follows keeps what comes
        waiting, and the others sum up what they have for it.
        """
        runtime = self._runtime
        deadline = time.monotonic() + timeout_s
        while True:
            runtime.check()
            with self._undisturbed():
                self._fold()
                runtime.flush(at_once=True)
                self._keep()
            self._resumed = time.monotonic()
            if until():
                return True
            left = deadline - self._resumed
            if left <= 0:
                return False
            with runtime.news:
                if not runtime.waiting():
                    runtime.news.wait(min(left, WAIT_S))

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Publish, then fold until every known update is in, and mine are with everyone alive."""
        return self.follow(self._caught_up, self._publish_last(timeout_s))

    def _caught_up(self) -> bool:
        with self._runtime.lock:
            return self._runtime.peer.caught_up()

    def finish(self, timeout_s: float = 10.0) -> bool:
        """The end of the run: say so, wait until all have, and until all have the same.

        Weights do not change any more after this unless somebody goes on training.
        """
        runtime = self._runtime
        runtime.tally.ended = time.monotonic()
        deadline = time.monotonic() + timeout_s
        if self._encoder is not None and runtime.peer.synced:
            timeout_s = self._share_rest(timeout_s)
        timeout_s = self._publish_last(timeout_s)
        runtime.done = True
        runtime.tell()
        even = self.follow(lambda: self._others_are("done") and self._even(), timeout_s)
        runtime.settled = True
        runtime.tell()
        self.follow(lambda: self._others_are("settled"), max(0.0, deadline - time.monotonic()))
        if runtime.keeper is not None:
            runtime.keeper.soon()
            self._keep()
        return even

    def _others_are(self, what: str) -> bool:
        runtime = self._runtime
        with runtime.lock:
            for name in runtime.peer.membership.live():
                entry = runtime.board.get(name)
                if name != runtime.name and (entry is None or not getattr(entry, what)):
                    return False
        return True

    def _even(self) -> bool:
        with self._runtime.lock:
            return self._runtime.peer.even()

    # -- coming and going ------------------------------------------------------------------------

    def _enter(self, timeout_s: float) -> None:
        runtime = self._runtime
        began = time.monotonic()
        if runtime.resumed is not None:
            self._go_on(runtime.resumed)
        self._layout.line_up(self._parameters)  # while the giver makes its copy
        if not self.follow(lambda: runtime.peer.synced, timeout_s):
            raise PeerUnavailable(
                f"{', '.join(runtime.settings.peers)}: no snapshot in {timeout_s:g} s"
            )
        if runtime.resumed is not None:
            self.follow(self._is_level, min(timeout_s, LEVEL_S))
        runtime.let_go()
        runtime.tally.wait_s += time.monotonic() - began
        self._start_batch()
        self._keep()
        atexit.register(self.leave)
        if threading.current_thread() is threading.main_thread():
            defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
            for number, default in defaults.items():
                if signal.getsignal(number) is default:
                    self._signals[number] = signal.signal(number, self._on_signal)

    def _go_on(self, checkpoint: Checkpoint) -> None:
        """From where an earlier life was when the checkpoint was made."""
        assert self._instant is not None
        runtime = self._runtime
        self._instant.put_back(checkpoint, runtime.weights)
        self._steps = checkpoint.step
        with runtime.lock:
            runtime.tally.go_on(checkpoint.samples)
        log.info(
            "%s goes on from its checkpoint: step %d, %s",
            self.name,
            checkpoint.step,
            checkpoint.clock,
        )

    def _is_level(self) -> bool:
        """Whether I have nearly all that one of the others has: a step on old weights would be as
        old as they are."""
        runtime = self._runtime
        with runtime.lock:
            peer = runtime.peer
            if not runtime.company or not isinstance(peer, Peer):
                return True
            for name in peer.knowledge.names():
                theirs = peer.knowledge.of(name)
                if theirs is not None and theirs.generation == peer.clock.generation:
                    lacking = theirs.missing(peer.clock)
                    if sum(span.last - span.first + 1 for span in lacking) <= LEVEL_UPDATES:
                        return True
            return False

    def _on_signal(self, number: int, *_: Any) -> None:
        """As an exception, so that `with` blocks end in order, as soon as it does no harm."""
        self._told_to_end = number
        if not self._folding:
            raise self._end()

    def _end(self) -> BaseException:
        number, self._told_to_end = self._told_to_end, 0
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)

    def going(self) -> None:
        """This node will leave soon: it is not ready any more (`/readyz`)."""
        self._runtime.leaving = True

    def leave(self, timeout_s: float = 5.0) -> None:
        """Publish the rest, say that I leave, and stay until all have what is only here.

        At most `timeout_s`. What the optimizer does after this is local again.
        """
        if self._left:
            return
        self._left = True
        self._hook.remove()
        atexit.unregister(self.leave)
        if threading.current_thread() is threading.main_thread():
            for number, way in self._signals.items():
                signal.signal(number, way)
        runtime = self._runtime
        try:
            if timeout_s > 0 and self._is_whole():
                timeout_s = self._publish_last(timeout_s)
                runtime.leave()
                self.follow(self._may_go, timeout_s)
        finally:
            runtime.stop()
            self._keep_last()
            self._layout.let_go(self._parameters)

    def _keep_last(self) -> None:
        """What it came to."""
        keeper = self._runtime.keeper
        if keeper is None:
            return
        try:
            if self._is_whole():
                keeper.last(self._now)
        finally:
            keeper.close()

    def _may_go(self) -> bool:
        with self._runtime.lock:
            return self._runtime.peer.settled()

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"Swarm({self.run!r}, {self.name!r} at {self.address}, {len(self.members)} members)"
