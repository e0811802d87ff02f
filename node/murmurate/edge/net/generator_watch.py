"""What the generator knows of the swarm: it asks its members, as anyone may.

It is no member itself: it has no model, no vote and no clock.
"""

from __future__ import annotations

import asyncio
import time

from murmurate.core.batches.dealer import Witness
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.description import Description
from murmurate.edge.net.grpc_terms import describe
from murmurate.edge.net.transport import Limits
from murmurate.errors import MurmurateError

ASK_S = 1.0
"""Who does not answer within this is not a witness this time."""
AT_ONCE = 32
KNOWN_MAX = 1024
FORGET_S = 60.0
"""Who has not answered for this long, and has no stream, is not asked any more."""


class Watch:
    """The addresses of a swarm's members, and what they say when they are asked."""

    def __init__(self, run: str, limits: Limits, credentials: Credentials) -> None:
        self._run = run
        self._limits = limits
        self._credentials = credentials
        self._answered: dict[str, float] = {}
        """By address."""

    def meet(self, address: str) -> None:
        if address and (address in self._answered or len(self._answered) < KNOWN_MAX):
            self._answered[address] = time.monotonic()

    async def look(self, swarm: str) -> list[Witness]:
        """Everyone who answers now and is part of that swarm."""
        turns = asyncio.Semaphore(AT_ONCE)
        addresses = list(self._answered)
        answers = await asyncio.gather(*(self._ask(address, turns) for address in addresses))
        now = time.monotonic()
        witnesses: dict[str, Witness] = {}
        for address, answer in zip(addresses, answers, strict=True):
            if answer is None or answer.run != self._run or answer.swarm != swarm:
                if now - self._answered[address] > FORGET_S:
                    del self._answered[address]
                continue
            self._answered[address] = now
            for member in answer.members:
                if member.state in ("alive", "suspect") and member.address not in self._answered:
                    self.meet(member.address)
            if answer.synced:
                witnesses[answer.name] = witness(answer)
        return list(witnesses.values())

    async def _ask(self, address: str, turns: asyncio.Semaphore) -> Description | None:
        async with turns:
            try:
                return await describe(address, ASK_S, self._limits, self._credentials)
            except MurmurateError:
                return None


def witness(description: Description) -> Witness:
    d = description
    return Witness(
        name=d.name,
        epoch=d.epoch,
        clock=d.clock,
        arrived=d.arrived if d.arrived is not None else d.clock,
        folds=dict(d.folds),
        members={member.name: (member.epoch, member.state) for member in d.members},
    )
