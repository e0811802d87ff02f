"""Rule `groups` (003, section 3.1): in step inside a group, by gossip across groups.

A group trains as `SynchronousSwarm` does, and its first member is also a peer of a second run, the
gossip across: it passes the group's steps on, folds in those of the other groups, and gives what
that came to the rest of its group after each step. So a slow group holds up nobody but itself. Who
is in which group is fixed, by the number that a member's name ends in.

`ea-wild` across, against a hub, would take the place of `_Across`: something that is joined, hooks
into the optimizer's step, and is left.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.core.synchronous.rules import group_of
from murmurate.core.values.addresses import split_address
from murmurate.edge.net.collective import GroupBroken, MeetingPlace
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import TransportError
from murmurate.training import gossip
from murmurate.training.gossip import GossipOptions
from murmurate.training.joint_gradient import TRAINING, Said
from murmurate.training.swarm import Swarm
from murmurate.training.synchronous import FOR_EVER_S, SynchronousSwarm

log = logging.getLogger("murmurate")

ACROSS_S = 10.0
"""For the first member of a group to join the others' gossip."""


class GroupedSwarm(SynchronousSwarm):
    """This node's place in a group, and, if it is the group's first, the group's among others."""

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
        options: GossipOptions,
    ) -> None:
        self._size = size
        own = group_of(runtime.figures.name, size)
        super().__init__(
            runtime,
            layout,
            parameters,
            model,
            optimizer,
            place,
            founder=founder,
            mine=lambda name: group_of(name, size) == own,
        )
        self._own_group = own
        self._options = options
        self._optimizer = optimizer
        self.across: Swarm | None = None
        """The gossip across groups; None: another member of the group is in it."""
        self._all_train = True
        """Whether all of the group were training when they made the last step."""
        self._heard = Summary()
        """Staleness of what came across while this member spoke for its group, and does no more."""

    # -- what is known ---------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Samples all groups have trained on, as far as it is known here."""
        return sum(self.samples_of.values())

    @property
    def staleness_level(self) -> Summary:
        """Of the steps inside, which are not stale, and of the updates of other groups."""
        both = super().staleness_level
        both.merge(self._heard)
        if self.across is not None:
            both.merge(self.across.staleness_level)
        return both

    @property
    def spoke(self) -> bool:
        """Whether this member has folded in what other groups made."""
        return self.across is not None or self._heard.count > 0

    # -- training --------------------------------------------------------------------------------

    def _together(self, *, contributes: bool, **more: Any) -> Said:
        said = super()._together(contributes=contributes, **more)
        self._all_train = all(intent == TRAINING for intent in said.intents)
        if not self._over:
            self._speak_for_group()
        return said

    def _speak_for_group(self) -> None:
        """The first member of a group gossips for it, and no other."""
        formed = self._formed
        if formed is None:
            return
        if formed.rank:
            if self.across is not None:
                self._hush()
        elif self.across is None:
            self._join_across()

    def _join_across(self) -> None:
        told = {
            name: said.split()[1]
            for name, said in self._port.others.meetings().items()
            if len(said.split()) > 1 and name != self.name
        }
        groups = {group_of(name, self._size) for name in self._port.others.meetings()}
        first = min((each for each in groups if each is not None), default=self._own_group)
        if not told and first != self._own_group:
            return  # somebody will be there soon, and this group trains meanwhile
        host = split_address(self._options.listen)[0]
        options = replace(
            self._options,
            run=f"{self.run}.across",
            name=f"{self.name}.{time.monotonic_ns() % 10**6}",  # one that comes again is another
            listen=f"[{host}]:0" if ":" in host else f"{host}:0",
            advertise=None,
            peers=tuple(sorted(set(told.values()))),
            found=not told,
            rule=GossipOptions.DEFAULT_RULE,
            metrics=None,
            join_timeout_s=ACROSS_S,
        )
        try:
            self.across = gossip.start(self._model, [self._optimizer], options)
        except TransportError as error:
            log.info("%s: not in the gossip across groups yet: %s", self.name, error)
            return
        # The step this is in, and what a group's newcomers bring, are changes of the group's own.
        self.across.publisher.placed.owned = True
        self._formation.more = self.across.address
        self._formation.tell()
        # After a step gossip comes first, and the group is given what it came to.
        self._hooks.pop().remove()
        self._hooks.append(self._optimizer.register_step_post_hook(self._after_step))

    def _hush(self) -> None:
        across, self.across = self.across, None
        self._formation.more = ""
        self._formation.tell()
        if across is not None:
            self._heard.merge(across.staleness_level)
            across.leave(1.0)

    def _after_step(self, *words: Any) -> None:
        self._give_group()
        super()._after_step(*words)

    def _give_group(self) -> None:
        """What gossip made of the step, to all of the group. Not where one of it makes no steps any
        more: it does not come to this, and the end evens out (`_even_out`)."""
        formed = self._formed
        if self._over or not self._all_train or formed is None or formed.collective is None:
            return
        try:
            self._share(FOR_EVER_S)
        except GroupBroken as error:
            log.info("%s: a step was broken: %s", self.name, error)
            self._drop()  # the next step brings it

    def _share(self, deadline: float) -> None:
        """The weights of the first of the group become everybody's."""
        formed = self._formed
        assert formed is not None
        assert formed.collective is not None
        weights = self._handover.weights().to(self._collective_device)
        formed.collective.broadcast(weights, 0, lambda: self._missing(deadline))
        if formed.rank:
            self._handover.put(weights.cpu())

    # -- the end ---------------------------------------------------------------------------------

    def _even_out(self, deadline: float) -> None:
        """All of the group have come to the end: then the groups even out, then the group."""
        super()._even_out(deadline)
        left_s = max(0.1, (deadline - time.monotonic()) / 2)
        if self.across is not None:
            self.across.finish(left_s)
        if self._formed is not None and self._formed.collective is not None:
            self._share(deadline)

    def _end(self) -> None:
        if self.across is not None:
            self._hush()
        super()._end()
