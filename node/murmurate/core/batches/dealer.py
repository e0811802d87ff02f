"""The dealer of the mini-batch generator (paper 000): each batch goes into exactly one update.

An update says which batches are in it (`core.batches.held`), so nobody has to claim or confirm
anything: whoever takes batches tells now and then what its weights hold, and that is all that the
dealer needs to know. Pure: time is an argument. Rules:

1. Batches are numbered from 1. One is waiting, dealt to one taker, or done.
2. A taker may publish what it was dealt until its lease runs out: `LEASE_S` after it asked and was
   answered, by its own clock. Nothing is published after that.
3. A batch is done when all takers hold it. Until then the dealer can deal it again.
4. It is dealt again when its lease has run out, `SETTLE_S` have passed, in which what is on its way
   arrives, and everybody else was heard since and does not hold it.
5. A batch that two updates say they have is `repeated`: somebody was cut off with an update that
   nobody had, and came back with it later. Nobody can undo that; it is counted.
6. What a taker says of itself must be true of batches that were dealt. What its weights hold comes
   from others too: a number there that was never dealt is somebody's lie, or from before a dealer
   lost its memory. It is left out and counted (`undealt`), and whoever tells of it is heard.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

from murmurate.core.batches.held import BatchRuns, runs_of, runs_union
from murmurate.core.intervals import Runs, runs_has, runs_minus, runs_size
from murmurate.core.values.limits import Name, Number
from murmurate.errors import LocalProtocolError, RemoteProtocolError

AHEAD_MAX = 64
"""Batches a taker may ask for that are not dealt yet."""
LEASE_S = 4.0
MARGIN_S = 1.0
"""Clocks run apart, and an answer takes its time: the dealer waits so much longer."""
SETTLE_S = 2.0
"""What one member has sent to another is in nobody's weights yet."""
RESERVE = 1 << 14
"""Numbers that may be dealt after a checkpoint: a restart does not know which of them were."""
NOBODY = ""
"""The owner of a batch whose taker is gone, or is not known after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """«This is what I hold and what I need.»"""

    swarm: Name = "swarm"
    """The founding I belong to: a batch is dealt in one swarm."""
    beat: Number = 0
    """Answer with a lease that says this number; 0: no need to."""
    more: Number = 0
    """So many more, when there are any."""
    here: BatchRuns = ()
    """In my weights, or waiting to be folded into them."""
    twice: BatchRuns = ()
    """Of these: in two updates."""
    keeps: BatchRuns = ()
    """Dealt to me, and in no update of mine yet: looked at in the first word on a stream."""
    back: BatchRuns = ()
    """Dealt to me, in no update of mine, and will not be: give them to others."""
    spent: BatchRuns = ()
    """The same, because the result was not finite: nobody else needs to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What it came to. At the end all batches are consumed."""

    batches: int = 0
    """Dealt so far, at least once."""
    consumed: int = 0
    """In an update that all have, or spent."""
    dealt_again: int = 0
    spent: int = 0
    """Trained on, but the result was not finite: in no update."""
    repeated: int = 0
    """In two updates."""
    undealt: int = 0
    """In the weights of somebody, and dealt to nobody: the most that one of them told of."""


@dataclass(slots=True)
class _Taker:
    """Somebody who takes batches, in one life."""

    said_s: float = -math.inf
    """When it was last heard; never: known from a checkpoint only."""
    more: int = 0
    here: Runs = ()
    fresh: bool = True
    """It has said nothing on its stream so far."""


@dataclass(slots=True)
class _Dealt:
    owner: str
    over_s: float | None = None
    """When its lease has surely run out, where it has no owner; None: as of the next look."""


class Dealer:
    """Who has which batch. `total` None: there is no end until `close`."""

    def __init__(self, total: int | None = None) -> None:
        if total is not None and total < 1:
            raise LocalProtocolError(f"{total} batches: at least 1")
        self.total = total
        self.reserved: int | None = None
        """Numbers above are not dealt before this is durable; None: nothing is."""
        self.opened = True
        self._closed = False
        self._made = 0
        self._waiting: list[int] = []
        """A heap of those that came back."""
        self._dealt: dict[int, _Dealt] = {}
        self._takers: dict[str, _Taker] = {}
        self._asking: dict[str, None] = {}
        """Who waits for batches, the longest waiting first."""
        self._consumed = self._again = self._spent = self._undealt = 0
        self._repeated: Runs = ()

    @property
    def totals(self) -> Totals:
        return Totals(
            batches=self._made,
            consumed=self._consumed,
            dealt_again=self._again,
            spent=self._spent,
            repeated=runs_size(self._repeated) if self._repeated else 0,
            undealt=self._undealt,
        )

    @property
    def made(self) -> int:
        return self._made

    @property
    def over(self) -> bool:
        """Whether every batch there will be is done."""
        return self.total is not None and self._consumed >= self.total

    def close(self) -> None:
        """No more than what is made. The last of those that came back, or that were reserved and
        never dealt, need not be made either."""
        if self.total is None or self.total > self._made:
            self.total = self._made
        self._closed = True
        self._trim()

    def _trim(self) -> None:
        waiting = set(self._waiting)
        while self._made in waiting:
            waiting.discard(self._made)
            self._made -= 1
        if len(waiting) < len(self._waiting):
            self._waiting = sorted(waiting)
            self.total = self._made

    def lease(self, name: str) -> Runs:
        """What is that taker's: it drops whatever else it has and has not published."""
        return runs_of(number for number, dealt in self._dealt.items() if dealt.owner == name)

    def needs(self, number: int) -> bool:
        """Whether this one may have to be dealt again."""
        return number in self._dealt

    # -- takers ----------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """Somebody comes, or another life of somebody, who has left before."""
        self._takers[name] = _Taker()

    def again(self, name: str) -> None:
        """The same life, on another stream: what it asked for on the last one is not owed."""
        taker = self._takers[name]
        taker.more, taker.fresh = 0, True
        self._asking.pop(name, None)

    def leave(self, name: str) -> None:
        """This life is over. What it published reaches the others or is lost with it."""
        taker = self._takers.pop(name, None)
        self._asking.pop(name, None)
        if taker is None:
            return
        said = taker.said_s + LEASE_S + MARGIN_S
        for dealt in self._dealt.values():
            if dealt.owner == name:
                dealt.owner, dealt.over_s = NOBODY, said if said > -math.inf else None

    def take(self, name: str, said: Take, now: float) -> None:
        """RemoteProtocolError: it says of itself what cannot be; nothing has changed."""
        taker = self._takers[name]
        most = self._made if self.reserved is None else max(self._made, self.reserved)
        for what in ("keeps", "back", "spent"):
            if (runs := getattr(said, what)) and runs[-1] > most:
                raise RemoteProtocolError(f"take.{what}", f"batch {runs[-1]}, {most} were dealt")
        if said.more > AHEAD_MAX - taker.more:
            detail = f"{said.more} with {taker.more} before, at most {AHEAD_MAX} in all"
            raise RemoteProtocolError("take.more", detail)
        taker.said_s = now
        undealt = runs_minus(said.here, (1, most) if most else ())
        self._undealt = max(self._undealt, runs_size(undealt))
        taker.here = runs_minus(said.here, undealt)
        self._repeated = runs_union(self._repeated, runs_minus(said.twice, undealt))
        if taker.fresh:
            self._keep(name, said)
            taker.fresh = False
        for number in self._of(name, said.spent):
            self._finish(number)
            self._spent += 1
        for number in self._of(name, said.back):
            self._return(number)
        if said.more:
            taker.more += said.more
            self._asking.setdefault(name)

    def _keep(self, name: str, said: Take) -> None:
        """What became of the batches it was dealt before its stream broke, or before I came back:
        those that did not arrive are for others."""
        for number, dealt in list(self._dealt.items()):
            mine = runs_has(said.keeps, number)
            if dealt.owner == name and not mine and not runs_has(said.here, number):
                self._return(number)
            elif dealt.owner == NOBODY and mine and not self._held(number):
                dealt.owner = name

    def _of(self, name: str, runs: Runs) -> list[int]:
        return [n for n, it in self._dealt.items() if it.owner == name and runs_has(runs, n)]

    # -- dealing ---------------------------------------------------------------------------------

    def deal(self) -> dict[str, list[int]]:
        """What goes to whom now: one to each in turn, those that came back first."""
        out: dict[str, list[int]] = {}
        while self._asking and self.opened and (number := self._next()) is not None:
            name = next(iter(self._asking))
            taker = self._takers[name]
            del self._asking[name]
            taker.more -= 1
            if taker.more:
                self._asking[name] = None
            self._dealt[number] = _Dealt(name)
            out.setdefault(name, []).append(number)
        return out

    def _next(self) -> int | None:
        if self._waiting:
            self._again += 1
            return heapq.heappop(self._waiting)
        ends = self.total is not None and self._made >= self.total
        if ends or (self.reserved is not None and self._made >= self.reserved):
            return None
        self._made += 1
        return self._made

    # -- what became of them ---------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Draw the conclusions from what all have said."""
        takers = self._takers
        if self._closed:
            self._trim()
        for number in [n for n in self._waiting if self._held(n)]:  # it came to light after all
            self._waiting.remove(number)
            heapq.heapify(self._waiting)
            self._dealt[number] = _Dealt(NOBODY, now)
        held = [taker.here for taker in takers.values()]
        for number, dealt in list(self._dealt.items()):
            # Most are with some: neither question has to be asked of all 64.
            if takers and all(runs_has(runs, number) for runs in held):
                self._finish(number)
            elif takers and not any(runs_has(runs, number) for runs in held):
                after = self._over_s(dealt, now) + SETTLE_S
                others = (t for name, t in takers.items() if name != dealt.owner)
                if now >= after and all(taker.said_s >= after for taker in others):
                    self._return(number)

    def _over_s(self, dealt: _Dealt, now: float) -> float:
        if (owner := self._takers.get(dealt.owner)) is not None:
            return owner.said_s + LEASE_S + MARGIN_S
        if dealt.over_s is None:  # from before a restart: whoever has it had a lease until then
            dealt.over_s = now + LEASE_S + MARGIN_S
        return dealt.over_s

    def _held(self, number: int) -> bool:
        return any(runs_has(taker.here, number) for taker in self._takers.values())

    def _return(self, number: int) -> None:
        del self._dealt[number]
        heapq.heappush(self._waiting, number)

    def _finish(self, number: int) -> None:
        del self._dealt[number]
        self._consumed += 1

    # -- over a restart --------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """What must be durable before numbers above `made + RESERVE` are dealt."""
        return {
            "made": self._made,
            "reserved": self._made + RESERVE,
            "open": list(runs_of((*self._dealt, *self._waiting))),
            "consumed": self._consumed,
            "again": self._again,
            "spent": self._spent,
            "repeated": list(self._repeated),
            "total": self.total,
        }

    def remember(self, memory: dict[str, Any]) -> None:
        """What was not done, and what may have been dealt since, is somebody's until its lease is
        over: those who come back say what they hold."""
        made, reserved = int(memory["made"]), int(memory["reserved"])
        if memory["total"] is not None:
            self.total = int(memory["total"])
            reserved = min(reserved, self.total)
        runs = tuple(int(end) for end in memory["open"])
        if reserved > made:
            runs = runs_union(runs, (made + 1, reserved))
        for i in range(0, len(runs), 2):
            for number in range(runs[i], runs[i + 1] + 1):
                self._dealt[number] = _Dealt(NOBODY)
        self._made = self.reserved = reserved
        self._consumed, self._again = int(memory["consumed"]), int(memory["again"])
        self._spent = int(memory["spent"])
        self._repeated = tuple(int(end) for end in memory["repeated"])
