"""Gossip across groups: who speaks for a group is a peer of a second run.

It passes the group's steps on, folds in those of the other groups, and gives what that came to the
rest of its group after each step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from murmurate.core.staleness import Summary
from murmurate.core.values.addresses import split_address
from murmurate.errors import TransportError
from murmurate.training import gossip
from murmurate.training.across import ACROSS_S, Speaker
from murmurate.training.gossip import GossipOptions
from murmurate.training.swarm import Swarm

log = logging.getLogger("murmurate")

LEAVE_S = 1.0


class GossipAcross:
    """A peer among those who speak for the other groups. Obeys `Across`."""

    def __init__(self, swarm: Swarm, optimizer: torch.optim.Optimizer) -> None:
        self.swarm = swarm
        self._optimizer = optimizer
        # The step this is in, and what a group's newcomers bring, are changes of the group's own.
        swarm.publisher.placed.owned = True

    @classmethod
    def open(cls, speaker: Speaker, options: GossipOptions) -> GossipAcross | None:
        told = speaker.words()
        if not told and not speaker.is_first:
            return None  # somebody will be there soon, and this group trains meanwhile
        host = split_address(options.listen)[0]
        options = replace(
            options,
            run=f"{speaker.run}.across",
            name=f"{speaker.name}.{time.monotonic_ns() % 10**6}",  # who comes again is another
            listen=f"[{host}]:0" if ":" in host else f"{host}:0",
            advertise=None,
            peers=tuple(sorted(set(told))),
            found=not told,
            rule=GossipOptions.DEFAULT_RULE,
            metrics=None,
            join_timeout_s=ACROSS_S,
        )
        try:
            swarm = gossip.start(speaker.model, [speaker.optimizer], options, hooked=False)
            return cls(swarm, speaker.optimizer)
        except TransportError as error:
            log.info("%s: not in the gossip across groups yet: %s", speaker.name, error)
            return None

    @property
    def word(self) -> str:
        return self.swarm.address

    @property
    def gives(self) -> bool:
        return True

    @property
    def staleness_level(self) -> Summary:
        return self.swarm.staleness_level

    def stepped(self, samples: int, seconds: float) -> None:
        self.swarm.after_step(self._optimizer)

    def take(self) -> None:
        """`stepped` has done so."""

    def given(self) -> None:
        """After each step again."""

    def finish(
        self, timeout_s: float, all_end: Callable[[], bool], tell: Callable[[], None]
    ) -> None:
        del tell
        deadline = time.monotonic() + timeout_s
        self.swarm.follow(all_end, timeout_s)
        self.swarm.finish(max(0.1, deadline - time.monotonic()))

    def leave(self) -> None:
        self.swarm.leave(LEAVE_S)
