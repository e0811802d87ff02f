"""The publisher: takes from the parameters what local steps gained, and has it passed on.

Whole, encoded, or a part at a time; which update a span of steps makes, a rule decides
(`core.publishing.rule`). What was gained is counted against the flat weights, so any change to the
parameters since the last update, by whatever means, is published with it. What is not published yet
stays in the parameters, which are then ahead of the weights by that much.

All of it is for the thread that trains, the only one that writes weights and parameters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from murmurate.core.codecs import span as spans
from murmurate.core.codecs.codec import Encoder, part_in, place_of
from murmurate.core.codecs.following import Coding, OneCodec
from murmurate.core.layout import Layout
from murmurate.core.message import Delta, Push, restores
from murmurate.core.publishing.own_update import OwnUpdate
from murmurate.core.publishing.rhythm import Rhythm
from murmurate.core.publishing.rule import PublishingRule
from murmurate.core.publishing.turns import Turns
from murmurate.edge.runtime.training_port import Folds
from murmurate.errors import LocalProtocolError
from murmurate.training.background import Background, Source
from murmurate.training.bad_steps import BadSteps
from murmurate.training.gain import OptimizerGain
from murmurate.training.gains import OptimizerGains
from murmurate.training.look import Look
from murmurate.training.moments import SwarmMoments
from murmurate.training.own_restore import OwnRestore
from murmurate.training.placed_parameters import ALL, PlacedParameters, StepsGain
from murmurate.training.statistics import ModelStatistics
from murmurate.training.unpublished import UnpublishedSteps

log = logging.getLogger("murmurate")


class Publisher:
    """Publishes the steps of one node, and folds in what the others sent."""

    def __init__(
        self,
        background: Background,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
        rule: PublishingRule,
        gain: OptimizerGain | OptimizerGains,
        *,
        every: int = 1,
        rhythm: Rhythm | None = None,
        coding: Coding | None = None,
        turns: Turns | None = None,
        statistics: ModelStatistics | None = None,
    ) -> None:
        """`every`: local steps per update, or more where the `rhythm` says so. A large model is
        published a part at a time, in `turns`, and all of it in the same number of steps, if there
        are as many as parts. `statistics`: the model's, if the layout has any; second moments are
        everybody's, if it has room for them."""
        self._least = every
        self._rhythm = rhythm
        self.source: Source | None = None
        self.unpublished = UnpublishedSteps(turns)
        self.statistics = statistics or ModelStatistics(torch.nn.Module(), layout)
        self.moments = SwarmMoments(layout, parameters, gain)
        self._merged = [each for each in (self.statistics, self.moments) if each]
        self._background = background
        self._layout = layout
        self.placed = PlacedParameters(background, layout, parameters)
        self._rule = rule
        self._gain = gain
        self._coding = coding or OneCodec()
        self.look = Look(self.placed, rule, gain, self.statistics)
        """Sets the parameters for a gradient, or for whoever looks at the model."""
        self._bad_steps = BadSteps(background)
        self._own_restore = OwnRestore()
        self._exactly = False
        self._coded_bytes = layout.nbytes
        """What the last update took, encoded."""

    # -- what there is to publish ----------------------------------------------------------------

    @property
    def _encoder(self) -> Encoder | None:
        """Of the next update."""
        return None if self._exactly else self._coding.encoder

    @property
    def encoded(self) -> bool:
        """Whether the next update goes through a codec."""
        return self._encoder is not None

    @property
    def in_turns(self) -> bool:
        """Whether updates are parts. Not with a source, which is told of steps once: when all that
        they changed is published; and not while a codec makes them small."""
        return self.unpublished.turns is not None and self.source is None and self._encoder is None

    def may_publish(self) -> bool:
        """Whether the source of the batches lets these steps leave."""
        return self.source is None or self.source.may_publish()

    def has_room(self) -> bool:
        """Whether an update should be made now; if not, its steps are added to the next one."""
        background = self._background
        if (
            not self.may_publish()
            or time.monotonic() - self.unpublished.started < background.interval_s
        ):
            return False
        if self._encoder is not None:
            return background.has_room(self._coded_bytes, sparing=True)
        if not self.in_turns:
            return background.has_room(self._layout.nbytes, fresh=self._rule.fresh)
        if background.gives_snapshot():
            return False  # or memory would hold both, the newcomer's copy and an update
        return background.has_room(spans.turn_bytes(self._layout.size))

    # -- a step ----------------------------------------------------------------------------------

    def stepped(self) -> None:
        """The parameters have made a local step."""
        self.unpublished.stepped()
        if self.statistics:
            self.statistics.stepped(self._background.members_live())
        if self.moments:
            self.moments.stepped(self._background.weights, self._background.members_live())
        self.look.stepped()
        if self._rule.stepped(self._gained()):
            self.placed.to_weights()
        else:
            self.placed.at_weights = False

    @property
    def every(self) -> int:
        """Local steps per update, or per part of one, where there is room."""
        turns = self.unpublished.turns
        parts = len(turns.places) if turns is not None and not self.encoded else 1
        steps = self._least
        if self._rhythm is not None:
            steps = self._rhythm.steps(self._background.members_live())
        return max(1, steps // parts)

    def took(self, seconds: float) -> None:
        """So long took the last step, without what is done here beside it."""
        if self._rhythm is not None:
            self._rhythm.stepped(seconds)

    def publish_if_due(self) -> None:
        """Publish once there are as many steps as an update is of, and room for it."""
        self._coding.stepped(self._background.members_live(), self._background.under_way)
        if self.unpublished.steps >= self.every and self.has_room():
            began = time.thread_time()
            self.publish()
            if self._rhythm is not None:
                self._rhythm.made(time.thread_time() - began)

    def publish(self, *, exact: bool = False) -> None:
        """Encoded, unless `exact`: what encoding leaves out stays in the parameters, which are not
        written here, and so is in what the next update gained."""
        if self.in_turns:
            self._publish_part()
            return
        encoded = self._encoder is not None and not exact
        # What waited for its turn when a codec took over was begun before the rest was.
        if self._commit(self._made(exact=exact), in_parts=self.unpublished.in_parts):
            self._merged_published(ALL)
            self.unpublished.published(residual=encoded)
            if self._layout.narrow or exact or self.placed.at_weights:
                self.placed.to_weights()
        self.start_batch()

    def _made(self, *, exact: bool) -> Delta:
        """The update of the steps since the last one."""
        update = self.placed.constrained(self._rule.update(self._gained()), ALL)
        if self._encoder is None or exact:
            self._with_merged(update, ALL)
            return update
        update[self._layout.trained :] = 0.0
        coded = self._encoder.encode(update)
        self._coded_bytes = coded.nbytes
        weights, members = self._background.weights, self._background.members_live()
        beside = [each.part(weights, members) for each in self._merged]
        return (coded, *beside) if beside else coded

    def _gained(self, place: slice = ALL, out: torch.Tensor | None = None) -> StepsGain:
        return StepsGain(self.placed, self._gain, place, out)

    def _with_merged(self, update: torch.Tensor, place: slice) -> None:
        for each in self._merged:
            members = self._background.members_live()
            each.put_into(update, place, self._background.weights, members)

    def _merged_published(self, place: slice) -> None:
        for each in self._merged:
            each.published(place, self._background.weights)

    def _publish_part(self) -> None:
        """What was gained where it is the turn; the rest stays in the parameters, until it is."""
        turns = self.unpublished.turns
        assert turns is not None
        place = turns.place

        def fill(numbers: torch.Tensor) -> None:
            update = self._rule.update(self._gained(place, numbers))
            update = self.placed.constrained(update, place)
            if update is not numbers:
                numbers.copy_(update)
            self._with_merged(numbers, place)

        if self._commit(part_in(place, self._layout.size, fill), in_parts=True):
            self.unpublished.part_published()
            self._merged_published(place)
            if not turns.waiting or self.placed.at_weights:
                # The sum is rounded, and they are to be the weights to the bit.
                self.placed.to_weights()
        self.start_batch()

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """A large model's updates leave as they are, a part at a time, meanwhile: all that a codec
        has left out at once would be a whole model more, here and with each of the others."""
        self._exactly = self.unpublished.turns is not None and self.source is None
        try:
            yield
        finally:
            self._exactly = False

    def publish_all(self) -> None:
        """Publish all that the parameters have and no update has: exactly, so that the weights are
        then the parameters."""
        if self.may_publish() and self.unpublished.any and self._background.synced:
            self.publish(exact=self._encoder is not None)
            while self.in_turns and self.unpublished.residual:
                self.publish()

    def publish_rest(self, share: float) -> None:
        """Publish so much of what encoding left out; what remains is dropped. All of it is, where
        it is not worth an update."""
        assert self._encoder is not None
        self.look.at_weights()
        rest = self._rule.rest()
        if rest is None or not self.placed.at_weights:
            gained = self.placed.gained(ALL)
            rest = gained if rest is None else rest.add_(gained)
        rest[self._layout.trained :] = 0.0
        update = self._encoder.encode_last(rest.mul_(share))
        if update is not None:
            self._commit(update)
        self.placed.to_weights()
        self.unpublished.published(residual=False)
        self.start_batch()

    def _commit(self, update: Delta, *, in_parts: bool = False) -> bool:
        """False: it could not be used, and the steps are taken back. `in_parts`: parts know since
        when it was computed."""
        steps, context, started = self.unpublished.take(in_parts=in_parts)
        try:
            seconds = time.monotonic() - started
            worth = max(1, steps // self.every)
            batches = self.source.batches() if self.source is not None else ()
            self._background.commit(OwnUpdate(update, context, seconds, worth, batches))
        except LocalProtocolError as error:
            self._undo(error)
            return False
        self._coding.sent(self._background.life().seq)
        self._rule.applied(update[0] if isinstance(update, tuple) else update, own=True)
        if self.source is not None:
            self.source.published()
        self._bad_steps.over()
        return True

    def _undo(self, error: LocalProtocolError) -> None:
        """A step that must not be passed on is taken back: weights stay what the clock says."""
        self._take_back()
        self._gain.mend()
        if self.source is not None:
            self.source.undone()
        self._bad_steps.taken_back(error)

    def left_out(self, why: str) -> None:
        """A step was not taken, for its result could not have been passed on."""
        if self.source is not None:
            self.source.undone()
        self._bad_steps.left_out(why)

    # -- what the others sent --------------------------------------------------------------------

    def fold(self) -> bool:
        """Fold in what waits. Whether a life began with it: then the steps of before are void."""
        began_at = time.monotonic()  # what comes from now on is not in the next batch's weights
        background = self._background
        waiting = background.waiting()
        if not waiting:
            self.statistics.show(background.weights)
            self.start_batch(began_at)
            return False
        ahead = None
        if self.unpublished.any and not self.placed.at_weights:
            place = place_of(waiting) if self.in_turns else ALL
            ahead = self._layout.ahead(self.placed.parameters, background.weights, place)
        folds = Folds(changed=False, began=False, applied=())
        clash = ""
        began = time.thread_time()
        try:
            folds = background.fold(len(waiting))
            restored = restores(folds.applied)
            if folds.began or restored:
                ahead = None
                self._forget_steps()
                if self.source is not None:
                    self.source.dropped()
            if folds.began:
                self._adopt_merged()
                self.moments.late = True
            for message in folds.applied:
                unseen = self._unseen(message)
                self._rule.applied(message, own=False, unseen=unseen)
                self.placed.heard(unseen)
                for each in self._merged:
                    each.merged.heard(unseen)
            if restored:
                self._restored()
                clash = self._own_restore.clash(background.name, folds.applied)
        finally:
            if ahead is not None:
                ahead.put_back(background.weights)
            elif folds.changed:
                self.placed.to_weights()
        if clash:
            self._take_back_restore(clash)
        self.statistics.show(background.weights, changed=folds.changed)
        if self._rhythm is not None and folds.applied:
            self._rhythm.folded(time.thread_time() - began, len(folds.applied))
        self.start_batch(began_at)
        return folds.began

    def discard(self) -> None:
        """Take local steps back that were not published: weights are what the clock says again."""
        self._take_back()
        if self.source is not None:
            self.source.dropped()
        self.start_batch()

    def restore(self, load: Callable[[], object]) -> None:
        """Publish by itself what `load` writes into parameters and running statistics; nobody takes
        it for a step. Steps that are in no update are void."""
        self.discard()
        background = self._background
        try:
            load()
            change = self.placed.gained(ALL)
            self.statistics.written(change, background.weights)
            kept = change.clone()
            background.commit(OwnUpdate(change, background.context(), written=True))
            life = background.life()
            self._own_restore.made(kept, life.epoch, life.seq)
            self._restored()
        finally:
            self.statistics.adopt(background.weights)
            self.placed.to_weights()
        self.start_batch()

    def _take_back_restore(self, other: str) -> None:
        """Two have restored, neither knowing of the other: that of one of them counts."""
        background = self._background
        log.warning(
            "%s: %s restored weights at the same time; what was restored here is taken back, so"
            " that it counts once",
            background.name,
            other,
        )
        change = self._own_restore.taken_back()
        background.commit(OwnUpdate(change, background.context(), written=True))
        self._restored()
        self.placed.to_weights()

    def _restored(self) -> None:
        """The swarm's weights are others, and where steps have led is of no account."""
        self._rule.restored()
        self.statistics.adopt(self._background.weights)

    def begin(self) -> None:
        """The weights are the swarm's, and the first batch is started."""
        self._adopt_merged()
        self._rule.leads(self._gained())  # of a model that is called in parts nobody asks before
        self.start_batch()

    def _adopt_merged(self) -> None:
        for each in self._merged:
            each.adopt(self._background.weights)

    def start_batch(self, at: float | None = None) -> None:
        """From now on, or since a moment ago, what others make is not in what I compute."""
        if self.unpublished.steps and not self.in_turns:
            return  # the next update is of the steps before, too
        at = time.monotonic() if at is None else at
        self.unpublished.begin(self._background.context(), at)

    def _take_back(self) -> None:
        """The parameters are the weights again."""
        self.placed.to_weights()
        self.statistics.mend(self._background.weights)
        self._forget_steps()

    def _forget_steps(self) -> None:
        self.unpublished.forget()
        self._rule.forget()

    # -- over a restart --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a restart goes on with, as plain values: see `PublishingRule.state`. Steps whose
        gains are in the parameters are not in it; they are lost with the process."""
        rule = self._rule.state()
        return {"rule": rule} | self.unpublished.state(kept=rule.get("gain") is not None)

    def go_on(self, state: Mapping[str, Any]) -> None:
        """With what an earlier life of this node had gained and not published, and with what it
        knew of the swarm."""
        self._rule.go_on(state["rule"])
        self.unpublished.residual = state["rule"].get("rest") is not None
        if not self.unpublished.go_on(state):
            self._forget_steps()

    def _unseen(self, message: Any) -> float:
        """How many updates of mine an update of another was computed without; of a sum: each."""
        if not isinstance(message, Push):
            return 0.0
        name, life = self._background.name, self._background.life()
        seen = sum(stamp.context.last(name, life.epoch) for stamp in message.stamps)
        return max(0.0, life.seq - seen / len(message.stamps))
