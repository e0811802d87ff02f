"""Generations: how a peer follows what the members decided to fold into the baseline.

A new generation changes what every kept clock and context means, so all that refers to the old one
is seen from the new one at the same instant.
"""

from __future__ import annotations

from murmurate.core.admission import Gate
from murmurate.core.clock import Clock
from murmurate.core.effect import Effect, Moved, Rejoin, Save
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import Decided, Generation
from murmurate.errors import RemoteProtocolError


class Generations:
    """One peer's moves from a generation to the next."""

    def __init__(self, state: PeerState, delivery: PushDelivery, gate: Gate) -> None:
        self._state = state
        self._delivery = delivery
        self._gate = gate

    def check(self, message: Decided) -> None:
        """`RemoteProtocolError`: nobody can have decided this, as far as I can tell by myself."""
        state = self._state
        for generation in message.generations:
            number = generation.number
            known = state.baseline.generation(number)
            if known is not None and known != generation:
                raise RemoteProtocolError("decided.generations", f"{number} is another one here")
            if number > state.baseline.number and state.agreement.lacks_my_promise(generation):
                problem = f"{number} has me on its roster, and I never promised anything for it"
                raise RemoteProtocolError("decided.generations", problem)

    def on_decided(self, message: Decided, now: float) -> list[Effect]:
        """Follow decisions that come next; after one that I cannot follow I am behind."""
        state = self._state
        effects: list[Effect] = []
        if not state.synced:
            return effects
        for generation in message.generations:
            if generation.number > state.baseline.number + 1:
                state.behind = True
            elif generation.number == state.baseline.number + 1:
                if self._closes_my_life(generation):
                    return [*effects, Rejoin(f"voted out in generation {generation.number}")]
                lifted = state.clock.lifted(generation.number, dict(generation.folds))
                if lifted.apart:
                    state.behind = True
                else:
                    effects += self.move((generation,), lifted, now)
        return effects

    def _closes_my_life(self, generation: Generation) -> bool:
        state = self._state
        mine = (state.name, state.epoch)
        return not state.standing.leaving(state.name) and any(
            key == mine for key, _ in generation.folds
        )

    def move(self, generations: tuple[Generation, ...], clock: Clock, now: float) -> list[Effect]:
        """Change to a newer generation, with everything that refers to the old one."""
        state = self._state
        new = tuple(g for g in generations if g.number > state.baseline.number)
        state.baseline.extend(new)
        state.replica.clock = clock
        state.knowledge.move(state.baseline, clock)
        state.durable.move()
        state.log.change(state.as_of_now)
        state.store.change(state.as_of_now)
        self._delivery.outbox.change(state.as_of_now)
        self._gate.forget([key for generation in new for key, _ in generation.folds])
        state.agreement.advance(new[-1], now)
        self._forget_departed(now)
        effects: list[Effect] = [Save("history", state.baseline.history)]
        if state.standing.remember(new, now):
            effects.append(Save("met", state.standing.met()))
        return effects + [Moved(generation) for generation in new]

    def _forget_departed(self, now: float) -> None:
        """Members that are gone and left nothing in my clock need no record."""
        state = self._state
        for name in state.standing.forget_departed(now):
            state.membership.forget(name)
            state.knowledge.forget(name)
            self._delivery.forget(name)
