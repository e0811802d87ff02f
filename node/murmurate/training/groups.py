"""Rules `groups` and `groups-ea-wild` (003, section 3.1): in step inside a group, not across.

A group trains as `SynchronousSwarm` does. One of it speaks for it to the other groups, by gossip or
by elastic exchanges with a hub (`training.across`), and broadcasts inside what that came to. So a
slow group holds up nobody but itself. When the one that speaks dies, another one does.

Who is in which group is fixed, by the number a member's name ends in, or drawn anew after so many
steps (`core.synchronous.draws`): then the first of each group stays, the others take over weights
and optimizer state of the group they come to. One member draws, all others hear of it with what is
told of where each is met; a group follows between two steps, as one.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.core.synchronous.draws import FIXED, Draw, first_of_group, group_by, read_draw
from murmurate.core.values.names import ordinal
from murmurate.edge.net.collective import GroupBroken, MeetingPlace
from murmurate.edge.runtime.runtime import Runtime
from murmurate.training.across import Across, Opens, Speaker
from murmurate.training.formation import NOWHERE, Formed
from murmurate.training.joint_gradient import DONE, TRAINING, Said
from murmurate.training.synchronous import FOR_EVER_S, LOOK_S, SynchronousSwarm

log = logging.getLogger("murmurate")

NOBODY = "-"
"""Told in the place of a word across by one that does not speak."""
AT_END = "end"
"""Told by one that makes no more steps: nothing is drawn then."""
STAND_IN_S = 0.5
"""For the first of a group to come, before another one speaks for it."""
HEAR_S = 2.0
"""For the news of a draw to reach all of a group that follows it."""
HEAR_LOOK_S = 0.01


class _DrawnAnew(Exception):
    """Groups were drawn anew while the next one formed."""


class GroupedSwarm(SynchronousSwarm):
    """This node's place in a group, and, if it speaks for it, the group's among others."""

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
        size: int,
        opens: Opens,
        regroup: int | None = None,
        seed: int | None = None,
    ) -> None:
        """`regroup`: steps between two draws; None: groups are fixed."""
        self._size = size
        self._draw = self._newest = FIXED
        """What this node follows, and what it knows of."""
        self._own_group = self._group_now(runtime.figures.name)
        self._weights_of = self._own_group
        """The group that made the weights here."""
        super().__init__(
            runtime,
            layout,
            parameters,
            model,
            optimizer,
            place,
            founder=founder,
            mine=self._mine,
        )
        self._opens = opens
        self._optimizer = optimizer
        self._regroup = regroup
        self._chance = random.Random(seed)
        self._since_draw = 0
        self._heard_at = 0.0
        self._forming = False
        self._formed_at = 0.0
        self._moves = False
        """A draw was said with the last step; it may not have been heard of here yet."""
        self.across: Across | None = None
        """None: another member of the group speaks for it."""
        self._all_train = True
        """Whether all of the group were training when they made the last step."""
        self._gives = False
        self._made = 0
        """Samples of the last step."""
        self._heard = Summary()
        """Staleness of what came across while this member spoke for its group, and does no more."""

    # -- what is known ---------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Samples all groups have trained on, as far as it is known here."""
        return sum(self.samples_of.values())

    @property
    def staleness_level(self) -> Summary:
        """Of the steps inside, which are not stale, and of what came from other groups."""
        both = super().staleness_level
        both.merge(self._heard)
        if self.across is not None:
            both.merge(self.across.staleness_level)
        return both

    @property
    def spoke(self) -> bool:
        """Whether this member has taken in what other groups made."""
        return self.across is not None or self._heard.count > 0

    @property
    def draw(self) -> Draw:
        """By which it is in its group."""
        return self._draw

    def _group_now(self, name: str) -> int:
        found = group_by(self._draw, name, self._size)
        return -1 if found is None else found

    def _mine(self, name: str, more: str) -> bool:
        """Whether it is in my group, and knows."""
        return self._group_now(name) == self._own_group and _draw_in(more) == self._draw

    @property
    def _leads(self) -> bool:
        return self._formed is not None and self._formed.plan.speaker == self.name

    # -- training --------------------------------------------------------------------------------

    def _words(self) -> dict[str, bool]:
        return {
            "moves": self._leads and self._newest > self._draw,
            "gives": self.across is not None and self.across.gives,
        }

    def _together(self, *, contributes: bool, **more: Any) -> Said:
        self._look_for_draws()
        said = super()._together(contributes=contributes, **more)
        self._all_train = all(intent == TRAINING for intent in said.intents)
        self._gives, self._moves, self._made = said.gives, said.moves, said.samples
        self._since_draw += contributes
        if not self._over:
            self._speak_for_group()
        return said

    def _after_step(self, *words: Any) -> None:
        if self.across is not None and not self._over:
            self.across.stepped(self._made, max(0.0, time.monotonic() - self._resumed))
        self._bring_inside()
        super()._after_step(*words)

    def _bring_inside(self) -> None:
        """What came across, to all of the group. Not where one of it makes no steps any more: it
        does not come to this, and the end evens out (`_even_out`)."""
        formed, across = self._formed, self.across
        if self._over or not self._all_train or formed is None:
            return
        alone = formed.collective is None
        if not alone and not self._gives:
            return
        if across is not None:
            across.take()
        try:
            self._share(FOR_EVER_S)
        except GroupBroken as error:
            log.info("%s: a step was broken: %s", self.name, error)
            self._drop()  # it is given with the next step
        else:
            if across is not None:
                across.given()

    def _share(self, deadline: float, *, waits_s: float = 0.0) -> None:
        """The weights of whoever speaks become everybody's. `waits_s`: so long it may be busy."""
        formed = self._formed
        if formed is None or formed.collective is None:
            return
        weights = self._handover.weights().to(self._collective_device)
        source = formed.plan.members.index(formed.plan.speaker)
        formed.collective.broadcast(
            weights, source, lambda: self._missing(deadline), waits_s=waits_s
        )
        if formed.rank != source:
            self._handover.put(weights.cpu())

    # -- who speaks ------------------------------------------------------------------------------

    def _standing(self) -> dict[str, Any]:
        return {
            "speaks": self.across is not None,
            "first": first_of_group(self.name, self._size),
            "of": self._weights_of + 1,
        }

    def _speak_for_group(self) -> None:
        """One member of a group, and no other."""
        if self._formed is None:
            return
        if not self._leads:
            self._hush()
        elif self.across is None and not self._first_comes():
            self._begin_to_speak()

    def _first_comes(self) -> bool:
        """Whether the first of my group, which will speak for it, is on its way to it."""
        if first_of_group(self.name, self._size):
            return False
        if time.monotonic() - self._formed_at > STAND_IN_S:
            return False
        return any(
            first_of_group(name, self._size)
            and self._group_now(name) == self._own_group
            and not said.startswith(NOWHERE)
            for name, said in self._port.others.meetings().items()
        )

    def _begin_to_speak(self) -> None:
        meetings = self._port.others.meetings()
        first = min(map(self._group_now, meetings), default=self._own_group)
        self.across = self._opens(
            Speaker(
                run=self.run,
                name=self.name,
                model=self._model,
                optimizer=self._optimizer,
                steps=self._step,
                words=self._words_of_others,
                is_first=first == self._own_group,
                check=self._port.check,
            )
        )
        if self.across is not None:
            self._tell()

    def _words_of_others(self) -> tuple[str, ...]:
        told = {name: said.split() for name, said in self._port.others.meetings().items()}
        words = (said[1] for name, said in told.items() if len(said) > 1 and name != self.name)
        return tuple(word for word in words if word != NOBODY)

    def _hush(self) -> None:
        across, self.across = self.across, None
        if across is not None:
            self._tell()
            self._heard.merge(across.staleness_level)
            across.leave()

    def _tell(self) -> None:
        """To all members, with where I am met."""
        word = self.across.word if self.across is not None else NOBODY
        told = [word, self._newest.text()]
        self._formation.more = " ".join(told if self._intent == TRAINING else [*told, AT_END])
        if not self._over:
            self._formation.tell()

    # -- draws -----------------------------------------------------------------------------------

    def _look_for_draws(self) -> None:
        """Hear of one, or make one: the first by name of all who train does."""
        now = time.monotonic()
        if now - self._heard_at < LOOK_S:
            return
        self._heard_at = now
        meetings = self._hear()
        if self._regroup is None or self._since_draw < self._regroup or self._newest > self._draw:
            return
        if self._intent != TRAINING or self.name != min(meetings):
            return
        if not all(said and not said.endswith(f" {AT_END}") for said in meetings.values()):
            return  # somebody comes, or makes no steps any more
        numbers = [number for name in meetings if (number := ordinal(name)) is not None]
        key = self._chance.randrange(10**9)
        self._newest = Draw(self._newest.number + 1, max(numbers) + 1, key)
        self._tell()

    def _hear(self) -> dict[str, str]:
        meetings = self._port.others.meetings()
        told = (_draw_in(said.partition(" ")[2]) for said in meetings.values())
        self._newest = max(self._newest, *told)
        return meetings

    def _take_in(self) -> None:
        super()._take_in()
        if self._forming:  # a newer one counts
            self._hear()
            if self._newest > self._draw:
                raise _DrawnAnew

    def _form(self, deadline: float) -> bool:
        while True:
            self._drop()
            self._follow()
            self._forming = True
            try:
                other = super()._form(deadline)
            except _DrawnAnew:
                continue
            finally:
                self._forming = False
            self._weights_of = self._own_group
            self._formed_at = time.monotonic()
            return other

    def _follow(self) -> None:
        """The newest draw that is known; if one was said, it has to come."""
        until = time.monotonic() + (HEAR_S if self._moves else 0.0)
        self._hear()
        while self._newest <= self._draw and time.monotonic() < until:
            self._port.check()
            self._port.wait_for_news(HEAR_LOOK_S)
            self._hear()
        self._moves = False
        if self._newest > self._draw:
            self._draw, self._since_draw = self._newest, 0
            group = self._group_now(self.name)
            if group != self._own_group:
                self._hush()  # the group it leaves goes on with the first of it
            self._own_group = group
        self._tell()

    def _meet(self, timeout_s: float) -> None:
        super()._meet(timeout_s)
        self._hear()
        self._draw = self._newest
        self._own_group = self._weights_of = self._group_now(self.name)

    def _level(self, formed: Formed, deadline: float) -> bool:
        if formed.plan.speaker != self.name:
            self._hush()  # before it takes weights over: they are no step of this group's
        return super()._level(formed, deadline)

    # -- the end ---------------------------------------------------------------------------------

    def _wait_for_all(self, deadline: float) -> bool:
        if not self._over and self._leads and self.across is None:
            self._begin_to_speak()  # before others may take this for the end of all
        self._intent = DONE
        self._tell()
        return super()._wait_for_all(deadline)

    def _even_out(self, deadline: float) -> None:
        """All of the group have come to the end: then the groups even out, then the group."""
        self._formation.closed = True  # who comes to this group now makes the next one
        self._tell()
        super()._even_out(deadline)
        left_s = max(0.1, (deadline - time.monotonic()) / 2)
        if self.across is not None:
            self.across.finish(left_s, self._all_end, self._tell)
        self._share(deadline, waits_s=2 * left_s)

    def _all_end(self) -> bool:
        """Whether nobody in any group makes another step."""
        meetings = self._port.others.meetings()
        return all(not said or said.endswith(AT_END) for said in meetings.values())

    def _end(self) -> None:
        self._over = True
        self._hush()
        super()._end()


def _draw_in(more: str) -> Draw:
    """In what a member tells beside its address."""
    words = more.split()
    return read_draw(words[1]) if len(words) > 1 else FIXED
