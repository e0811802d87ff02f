"""The dealer of the mini-batch generator (paper 000): each batch goes into exactly one update.

Peers pull, train and claim; the dealer decides who has what, and looks at the swarm when somebody
is gone. Nothing here sends, waits or knows the time by itself. Rules:

1. Batches are numbered from 1 in the order they are made. A batch is waiting, dealt to one life of
   a peer, claimed by it for one update (its dot), or done.
2. A peer claims a batch before it trains on it, naming the update that will hold it. It does not
   publish an update before the claims of all batches in it are confirmed, nor while another batch
   is claimed for it; if it comes otherwise than planned, it claims again, and the last word counts.
3. A batch is done when the update is in the clock of every live member; one that cannot be asked
   is waited for a while, and two must have it where there are two.
4. Dealt and not claimed: it comes back when the peer's stream ends. A later claim finds it with
   somebody else and is denied; the peer takes the step back.
5. Claimed: it comes back only when nobody has the update, or will: the life is over as all members
   say, its lease has run out, and twice, some time apart, nobody had it. Or its own clock has a
   later update and not this one.
6. What comes to light after that is counted: a peer that was cut off, taken for dead, and comes
   back with an update that nobody had. The batch is `repeated` if it is in another update by then,
   else it is done and nobody else gets it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.intervals import Runs, runs_has
from murmurate.core.values.limits import Number, WireNames
from murmurate.errors import LocalProtocolError, RemoteProtocolError

CREDITS_MAX = 64
"""Batches a peer may ask for ahead."""
OPEN_MAX = 4096
"""Batches one life may hold that are not done: beyond it nothing more is dealt to it."""
GHOSTS_MAX = 1 << 16
AGAIN_S = 2.0
"""Between the first time that nobody has an update and the time it is believed: what is on its way
from one member to another is in no clock."""

ABSENT_S = 5.0
"""So long a live member that does not answer is waited for, when all others have the update."""

WAITING, DEALT, CLAIMED, DONE = "waiting", "dealt", "claimed", "done"
_LIVE = ("alive", "suspect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What one live member said: what it has, and what it thinks of the others."""

    name: str
    epoch: int
    clock: Clock
    """What is folded into its weights…"""
    arrived: Clock
    """… and that with what waits there to be folded."""
    folds: Mapping[Key, Runs] = field(default_factory=dict)
    """Lives that are over and left the clock, with what was held of them."""
    members: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Epoch and state (alive, suspect, dead, left) by name."""

    def has(self, dot: Dot, *, soon: bool = False) -> bool:
        """Whether it holds this update; `soon`: or will, without anybody's help."""
        folded = self.folds.get((dot.origin, dot.epoch))
        if folded is not None:
            return runs_has(folded, dot.seq)
        return dot in (self.arrived if soon else self.clock)

    def says_over(self, life: Key) -> bool:
        """Whether it takes this life for over. Whom it does not know has been forgotten."""
        name, epoch = life
        known, state = self.members.get(name, (0, ""))
        return known > epoch or (known == epoch and state not in _LIVE) or not known

    def live(self) -> frozenset[str]:
        return frozenset(name for name, (_, state) in self.members.items() if state in _LIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What it came to. At the end of a stream all batches are consumed."""

    batches: Number = 0
    """Made so far."""
    consumed: Number = 0
    """In an update that all have, or spent."""
    dealt_again: Number = 0
    """Came back and were dealt to another."""
    spent: Number = 0
    """Trained on, but the result was not finite: in no update."""
    repeated: Annotated[Number, WireNames("repeated_batches")] = 0
    """In two updates."""


@dataclass(slots=True)
class Settled:
    """What a look at the swarm has changed."""

    done: list[int] = field(default_factory=list)
    """Nobody needs these any more."""
    taken: list[tuple[Key, int]] = field(default_factory=list)
    """Taken from this life: it is told, if it still listens."""


@dataclass(slots=True)
class _Batch:
    state: str = WAITING
    life: Key | None = None
    dot: Dot | None = None
    times: int = 0
    """It was dealt."""


@dataclass(slots=True)
class _Seat:
    """One life of a peer."""

    credits: int = 0
    here: bool = True
    """Its stream is open."""
    dealt: set[int] = field(default_factory=set)
    claims: dict[Dot, set[int]] = field(default_factory=dict)

    @property
    def open(self) -> int:
        return len(self.dealt) + sum(map(len, self.claims.values()))


class Dealer:
    """Who has which batch. `total` None: there is no end until `close`."""

    def __init__(self, total: int | None = None) -> None:
        if total is not None and total < 1:
            raise LocalProtocolError(f"{total} batches: at least 1")
        self.total = total
        self._made = 0
        self._open: dict[int, _Batch] = {}
        """All that are made and not done."""
        self._back: list[int] = []
        """Waiting, lowest number first; may hold numbers that are not waiting any more."""
        self._seats: dict[Key, _Seat] = {}
        self._asking: dict[Key, None] = {}
        """Lives with credits, in the order they asked."""
        self._missing: dict[Dot, float] = {}
        """Since when nobody has this update."""
        self._held: dict[Dot, float] = {}
        """Since when all who answer have this update, and somebody does not answer."""
        self._ghosts: dict[Dot, set[int]] = {}
        """Taken back, and by which update: they may come to light."""
        self._consumed = self._again = self._spent = self._repeated = 0

    # -- what is known ---------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        return Totals(
            batches=self._made,
            consumed=self._consumed,
            dealt_again=self._again,
            spent=self._spent,
            repeated=self._repeated,
        )

    @property
    def over(self) -> bool:
        """Whether every batch there will be is done."""
        return self.total is not None and self._consumed >= self.total

    @property
    def exhausted(self) -> bool:
        """Whether no new one will be made."""
        return self.total is not None and self._made >= self.total

    @property
    def idle(self) -> bool:
        """Whether all that is left to do is to wait for what was dealt."""
        return self.exhausted and not self._next_back()

    def state(self, batch: int) -> str:
        known = self._open.get(batch)
        if known is not None:
            return known.state
        return DONE if 0 < batch <= self._made else ""

    def claims(self) -> dict[Dot, frozenset[int]]:
        """The updates that will hold batches, as they were named."""
        return {
            dot: frozenset(batches)
            for seat in self._seats.values()
            for dot, batches in seat.claims.items()
        }

    # -- streams ---------------------------------------------------------------------------------

    def came(self, life: Key, seq: int = 1, claims: Sequence[int] = ()) -> list[int]:
        """A peer opened its stream, for the first time or again; returns the claims it has.

        «My next update is `seq`, and these batches will be in it.» What else was claimed for that
        one or a later one it has taken back, and the word of it was lost with its last stream.
        """
        self.went(life)
        seat = self._seats.setdefault(life, _Seat())
        seat.here = True
        told = frozenset(claims)
        for dot in [dot for dot in self._ghosts if dot[:2] == life and dot.seq >= seq]:
            del self._ghosts[dot]
        for dot, numbers in list(seat.claims.items()):
            if dot.seq >= seq:
                for number in numbers - told:
                    self._take(number)
        return [n for n in claims if 0 < n <= self._made and self.claim(life, n, seq)]

    def went(self, life: Key) -> None:
        """Its stream ended: what it has not claimed is for others."""
        seat = self._seats.get(life)
        if seat is not None:
            seat.here, seat.credits = False, 0
            self._asking.pop(life, None)
            self._return_dealt(seat)
            self._forget_if_empty(life, seat)

    def pull(self, life: Key, count: int) -> None:
        """It wants so many more."""
        seat = self._seat(life)
        if not 0 < count <= CREDITS_MAX - seat.credits:
            raise RemoteProtocolError(
                "ask.pull", f"{count} with {seat.credits} before, at most {CREDITS_MAX} in all"
            )
        seat.credits += count
        self._asking[life] = None

    def ready(self) -> list[Key]:
        """Who waits for a batch and may have one, the longest waiting first."""
        return [life for life in self._asking if self._seats[life].open < OPEN_MAX]

    def deal(self, life: Key, *, fresh: bool) -> int | None:
        """The next batch for this peer, one that came back if there is any.

        `fresh`: one more can be made; the driver makes them in the order of these numbers.
        """
        seat = self._seat(life)
        if seat.credits < 1:
            raise LocalProtocolError(f"{life}: has not asked")
        number = self._next_back()
        if number is not None:
            heapq.heappop(self._back)
        elif fresh and not self.exhausted:
            self._made += 1
            number = self._made
            self._open[number] = _Batch()
        else:
            return None
        batch = self._open[number]
        batch.state, batch.life = DEALT, life
        self._again += batch.times > 0
        batch.times += 1
        seat.dealt.add(number)
        seat.credits -= 1
        del self._asking[life]
        if seat.credits:
            self._asking[life] = None  # at the end: everyone's turn comes
        return number

    def close(self) -> None:
        """No more than what is made: the end of a stream without a number."""
        if self.total is None or self.total > self._made:
            self.total = self._made

    # -- claims ----------------------------------------------------------------------------------

    def claim(self, life: Key, number: int, seq: int) -> bool:
        """«This batch will be in my update `seq`.» False: it is not yours any more.

        Also for one that came back and nobody has taken yet: its stream broke before we heard of
        the claim. Said again, the last word counts.
        """
        seat = self._seat(life)
        if number < 1 or number > self._made:
            raise RemoteProtocolError("claim.batch", f"{number}, of {self._made} made")
        if seq < 1:
            raise RemoteProtocolError("claim.seq", f"{seq}, expected 1 or more")
        dot = Dot(*life, seq)
        batch = self._open.get(number)
        if batch is None or (batch.state != WAITING and batch.life != life):
            return False
        if batch.state == CLAIMED:
            self._leave_seat(number, batch)
        seat.dealt.discard(number)
        seat.claims.setdefault(dot, set()).add(number)
        batch.state, batch.life, batch.dot = CLAIMED, life, dot
        self._missing.pop(dot, None)
        return True

    def back(self, life: Key, numbers: Iterable[int]) -> None:
        """«These are in no update of mine, and will not be.»"""
        numbers = list(numbers)
        for number in self._mine(life, numbers):
            self._take(number)
        self.forgo(life, numbers)

    def forgo(self, life: Key, numbers: Iterable[int]) -> None:
        """The same of batches that were taken from it: it may have been dealt them again since."""
        numbers = frozenset(numbers)
        for dot in [dot for dot in self._ghosts if dot[:2] == life]:
            self._ghosts[dot].difference_update(numbers)
            if not self._ghosts[dot]:
                del self._ghosts[dot]

    def spent(self, life: Key, numbers: Iterable[int]) -> list[int]:
        """«I trained on these and the result could not be used»: nobody else needs to try."""
        mine = self._mine(life, numbers)
        for number in mine:
            self._finish(number)
            self._spent += 1
        return mine

    # -- looking at the swarm --------------------------------------------------------------------

    def settle(
        self, witnesses: Sequence[Witness], now: float, leased: Callable[[Key], bool]
    ) -> Settled:
        """Draw the conclusions from what all who answered have said.

        `leased`: whether this life may still publish what it has claimed, for all we know.
        """
        out = Settled()
        if not witnesses:
            return out
        self._see_ghosts(witnesses, out)
        live = frozenset().union(*(witness.live() for witness in witnesses))
        absent = live - {witness.name for witness in witnesses}
        enough = min(2, len(live))
        gone: dict[Key, bool] = {}
        for life, seat in list(self._seats.items()):
            gone[life] = not leased(life) and all(w.says_over(life) for w in witnesses)
            if gone[life] and seat.dealt:
                out.taken += [(life, number) for number in sorted(seat.dealt)]
                self._return_dealt(seat)
            for dot, numbers in list(seat.claims.items()):
                holders = sum(witness.has(dot) for witness in witnesses)
                if holders == len(witnesses) >= enough and (
                    not absent or now - self._held.setdefault(dot, now) >= ABSENT_S
                ):
                    out.done += sorted(numbers)
                    for number in sorted(numbers):
                        self._finish(number)
                elif self._lost(dot, witnesses, gone[life], now):
                    out.taken += [(life, number) for number in sorted(numbers)]
                    self._haunt(dot, numbers)
                    for number in sorted(numbers):
                        self._take(number)
            self._forget_if_empty(life, seat)
        return out

    def _lost(self, dot: Dot, witnesses: Sequence[Witness], gone: bool, now: float) -> bool:
        """Whether this update will never be in anybody's clock."""
        if any(witness.has(dot, soon=True) for witness in witnesses):
            self._missing.pop(dot, None)
            return False
        for witness in witnesses:
            if (witness.name, witness.epoch) == (dot.origin, dot.epoch):
                # Its own clock has all that it made; a number it went past was never used.
                return witness.clock.last(dot.origin, dot.epoch) > dot.seq
        if not gone:
            self._missing.pop(dot, None)
            return False
        return now - self._missing.setdefault(dot, now) >= AGAIN_S

    def _see_ghosts(self, witnesses: Sequence[Witness], out: Settled) -> None:
        for dot, numbers in list(self._ghosts.items()):
            if not any(witness.has(dot, soon=True) for witness in witnesses):
                continue
            del self._ghosts[dot]
            for number in sorted(numbers):
                batch = self._open.get(number)
                if batch is None or batch.state == CLAIMED:
                    self._repeated += 1
                    continue
                if batch.state == DEALT and batch.life is not None:
                    out.taken.append((batch.life, number))
                self._finish(number)
                out.done.append(number)

    def _haunt(self, dot: Dot, numbers: Iterable[int]) -> None:
        self._ghosts.setdefault(dot, set()).update(numbers)
        while len(self._ghosts) > GHOSTS_MAX:
            del self._ghosts[next(iter(self._ghosts))]

    # -- inside ----------------------------------------------------------------------------------

    def _seat(self, life: Key) -> _Seat:
        seat = self._seats.get(life)
        if seat is None or not seat.here:
            raise LocalProtocolError(f"{life}: has no open stream")
        return seat

    def _mine(self, life: Key, numbers: Iterable[int]) -> list[int]:
        """Those of these that this life has, dealt or claimed; others may be said by mistake."""
        return [
            number
            for number in dict.fromkeys(numbers)
            if (batch := self._open.get(number)) is not None
            and batch.state != WAITING
            and batch.life == life
        ]

    def _next_back(self) -> int | None:
        while self._back:
            batch = self._open.get(self._back[0])
            if batch is not None and batch.state == WAITING:
                return self._back[0]
            heapq.heappop(self._back)
        return None

    def _return_dealt(self, seat: _Seat) -> None:
        for number in list(seat.dealt):
            self._take(number)

    def _take(self, number: int) -> None:
        """From whoever has it, back to those that wait."""
        batch = self._open[number]
        self._leave_seat(number, batch)
        batch.state, batch.life, batch.dot = WAITING, None, None
        heapq.heappush(self._back, number)

    def _finish(self, number: int) -> None:
        batch = self._open.pop(number)
        self._leave_seat(number, batch)
        self._consumed += 1

    def _leave_seat(self, number: int, batch: _Batch) -> None:
        seat = self._seats.get(batch.life) if batch.life is not None else None
        if seat is None:
            return
        seat.dealt.discard(number)
        if batch.dot is not None:
            numbers = seat.claims[batch.dot]
            numbers.discard(number)
            if not numbers:
                del seat.claims[batch.dot]
                self._missing.pop(batch.dot, None)
                self._held.pop(batch.dot, None)

    def _forget_if_empty(self, life: Key, seat: _Seat) -> None:
        if not seat.here and not seat.open:
            self._seats.pop(life, None)
