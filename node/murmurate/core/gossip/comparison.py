"""Comparison: peers tell each other their clocks, and all that is repaired or let go follows.

What the clocks of the others say about mine is answered here too: whether I have all, whether all
have what is mine.
"""

from __future__ import annotations

from murmurate.core.admission import Gate
from murmurate.core.clock import Clock, Range
from murmurate.core.effect import Effect, Send, shuffled
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.pruning import Pruning
from murmurate.core.gossip.repair import Repair
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import LEFT, Decided, Digest

KNOWN_MAX = 256
"""Beyond so many members only the neighbours' clocks are remembered: n clocks of n entries each
would take too much. Then nobody knows what all have, and little is let go of (docs/promises)."""


class Comparison:
    """One peer's clock beside those of the others."""

    def __init__(
        self,
        state: PeerState,
        gate: Gate,
        delivery: PushDelivery,
        snapshots: Snapshots,
        repair: Repair,
        pruning: Pruning,
    ) -> None:
        self.state = state
        self._gate = gate
        self._delivery = delivery
        self._snapshots = snapshots
        self._repair = repair
        self._pruning = pruning

    # -- telling ---------------------------------------------------------------------------------

    def compare(self, now: float) -> list[Effect]:
        """Ask for what is overdue, let go of what everyone has, tell a few what I have."""
        state = self.state
        others = state.others()
        if not others:
            if state.whole:
                self._pruning.prune(others, now)
            return []
        if not state.whole:
            return self._snapshots.ask(others, now)
        self._delivery.next_turn()
        effects: list[Effect] = []
        if not self._snapshots.comes():  # else most of what I lack is in the snapshot
            # Who has left may linger and be asked: it is heard of, though not a member any more.
            heard_of = {**dict.fromkeys(others), **state.knowledge.names()}
            effects += self._repair.ask(list(heard_of), now)
        self._pruning.prune(others, now)
        near = shuffled(list(self._delivery.neighbours()), state.rng)[:1]
        far = [name for name in shuffled(others, state.rng) if name not in near]
        digest = state.digest(ask=True)
        # Who leaves wants to hear from everyone, and soon.
        leaving = state.standing.leaving(state.name)
        fanout = len(others) if leaving else state.config.digest_fanout
        effects += [Send(to, digest) for to in (near + far)[:fanout]]
        return effects

    def on_digest(self, sender: str, message: Digest, now: float) -> list[Effect]:
        """Note what a peer has, and tell it what was decided that it does not know."""
        clock, state = message.clock, self.state
        self._gate.check_mine("digest.durable", message.durable, state.seq)
        self._gate.check_clock("digest.clock", clock, state.seq, now)
        if not state.synced or message.epoch < (state.membership.epoch(sender) or 0):
            return []
        state.standing.told_memory(sender, message.memory)
        if clock.generation > state.baseline.number:
            return [Send(sender, state.digest())]  # it will tell me what was decided
        effects: list[Effect] = []
        if clock.generation < state.baseline.number:
            effects.append(Send(sender, Decided(state.baseline.since(clock.generation))))
        lifted, durable = state.baseline.lift(clock), state.baseline.lift(message.durable)
        if lifted is not None and durable is not None and not lifted.apart and not durable.apart:
            few = len(state.membership.live()) <= KNOWN_MAX
            remember = few or sender in self._delivery.neighbours()
            same = clock.generation == state.baseline.number
            cuts = message.later if message.all_told and same else None
            state.knowledge.note(sender, lifted, durable, cuts=cuts, remember=remember)
            self._pruning.prune_large(now)
        if message.ask:
            effects.append(Send(sender, state.digest()))
        return effects

    # -- what the clocks say ---------------------------------------------------------------------

    def settled(self) -> bool:
        """Everyone alive has my updates, nobody counts on my vote, and nothing is only with me."""
        state = self.state
        others = state.membership.live()
        if not others:
            # Who seems dead may be cut off only, and lack what I keep for it: that is worth the
            # time there is for leaving.
            return not (state.log.updates and state.membership.dead())
        clocks = [state.knowledge.of(name) for name in others]
        mine = Clock(dot for push in state.log for dot in push.dots)
        mine.generation = state.clock.generation
        return (
            state.name not in state.baseline.roster
            and all(clock is not None and clock.covers(mine) for clock in clocks)
            and any(clock is not None and clock.covers(state.clock) for clock in clocks)
        )

    def caught_up(self) -> bool:
        """I have all I heard of, and everyone alive is known to have what I made."""
        state = self.state
        whole = state.whole and state.knowledge.nothing_new(state.clock)
        return whole and not self.without_mine()

    def without_mine(self) -> list[str]:
        """Those alive who are not known to have all that I made."""
        state = self.state
        mine = Clock(generation=state.clock.generation, base=state.clock.base)
        runs = state.clock.runs((state.name, state.epoch))
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            mine.add_range(Range(state.name, state.epoch, first, last))
        clocks = {name: state.knowledge.of(name) for name in state.others()}
        return [
            name
            for name, clock in clocks.items()
            if clock is None or clock.generation != mine.generation or not clock.covers(mine)
        ]

    def never_came(self) -> dict[str, int]:
        """Of those who have left: how many of the updates they said they made are not here."""
        state, lacking = self.state, {}
        history = state.baseline.history
        folds = {key: runs for generation in history for key, runs in generation.folds}
        all_known = not history or history[0].number == 0
        for rumour in state.membership.rumours():
            key = (rumour.name, rumour.epoch)
            runs = folds.get(key) or state.clock.runs(key)
            if rumour.state != LEFT or not (runs or all_known):
                continue  # it is in a generation that nobody remembers
            here = sum(last - first + 1 for first, last in zip(runs[::2], runs[1::2], strict=True))
            if here < rumour.last:
                lacking[rumour.name] = rumour.last - here
        return lacking

    def even(self) -> bool:
        """Everyone alive was heard to have just what I have."""
        state = self.state
        return state.whole and all(clock == state.clock for clock in self._clocks_of_others())

    def is_level(self, updates_max: int) -> bool:
        """Whether I lack at most so many of the updates of one whose clock I know."""
        state = self.state
        for name in state.knowledge.names():
            theirs = state.knowledge.of(name)
            if theirs is not None and theirs.generation == state.clock.generation:
                lacking = theirs.missing(state.clock)
                if sum(span.last - span.first + 1 for span in lacking) <= updates_max:
                    return True
        return False

    def _clocks_of_others(self) -> list[Clock | None]:
        return [self.state.knowledge.of(name) for name in self.state.others()]
