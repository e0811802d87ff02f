"""Who is here, how fast, and who has been silent for too long. Pure: time is an argument."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from murmurate.core.figures.training_loss import STEPS
from murmurate.core.staleness import Summary

GRACE_S = 5.0
"""A member whose stream broke keeps its lease for so long."""
VACANT_S = 20.0
"""Where one partition is kept, what a member that is gone had is kept for a newcomer so long."""
RESTART_S = 20.0
"""… and so long when it is the coordinator that was away."""
FROZEN_S, FROZEN_TIMES = 10.0, 10.0
"""One whose stream is up has so long for a push, or so many of its usual times."""
FIRST_S, FIRST_TIMES = 60.0, 25.0
"""Before its first push: without a sign of a step, or so many of the slowest one's times."""
REMEMBERED = 9
MEASURED_PUSHES, MEASURED_S = 3, 0.5
"""So much must be seen of a member before its share follows its speed."""
TALLIES_MAX = 1024
FRUITLESS = 5
"""Of each member."""


def fruitless_most(members: int) -> int:
    """After so many pushes of numbers that are none, and none that was taken, the weights are
    beyond help."""
    return FRUITLESS * max(1, members)


@dataclass(slots=True, eq=False)
class MemberTally:
    """What one member has done, over all its leases and lives."""

    pushes: int = 0
    steps: int = 0
    samples: int = 0
    refused: int = 0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    """Of training, as it told them lately."""
    wait_s: float = 0.0
    samples_per_s: float = 0.0
    staleness: Summary = field(default_factory=Summary)

    def taken(self, steps: int, samples: int, staleness: int) -> None:
        """A push of so many steps is in the model."""
        self.pushes += 1
        self.steps += steps
        self.samples += samples
        self.staleness.add(staleness)

    @property
    def loss(self) -> float:
        """Of its last minibatches; NaN: it has told none."""
        return math.fsum(self.losses) / len(self.losses) if self.losses else math.nan


@dataclass(slots=True, eq=False)
class Seat:
    """A member that has a lease or waits for one, or had one and is still here."""

    name: str
    instance: str
    width: float
    memory_bytes: int
    stream: int = 0
    """Its number; 0: away."""
    away_s: float = 0.0
    grace_s: float = GRACE_S
    revoked: bool = False
    """It was silent for too long: its lease is over, its stream is not."""
    since_s: float | None = None
    """When its lease was given, its last push came, or (before the first) it was seen to step."""
    begun_s: float = 0.0
    """The same without the steps: from there its pace is measured."""
    told_steps: int = 0
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    mark: int = 0
    """Pushes of all when its weights were given or pushed last."""
    staleness: int = 0
    """Of its last push: how many of others' were folded in since `mark`."""
    seconds: float = 0.0
    """Of training, told under its lease so far."""
    samples_per_s: float = 0.0
    """Between its last two pushes; 0: not known yet."""
    trained: float = 0.0
    trained_s: float = 0.0
    measures: int = 0
    """Steps times the part of the units they were made on, in how long, in how many pushes."""

    @property
    def usual_s(self) -> float | None:
        return statistics.median(self.intervals) if self.intervals else None

    @property
    def speed(self) -> float | None:
        """Of the model's units in a second; None: not measured yet."""
        enough = self.measures >= MEASURED_PUSHES and self.trained_s >= MEASURED_S
        return self.trained / self.trained_s if enough and self.trained else None

    def given(self, now: float, pushes: int) -> None:
        self.since_s = self.begun_s = now
        self.mark = pushes
        self.seconds = 0.0

    def pushed(self, now: float, pushes: int, staleness: int | None = None) -> None:
        """A push was folded in; `staleness`, where the solver knows it."""
        if self.since_s is not None:
            self.intervals.append(now - self.begun_s)
        self.since_s = self.begun_s = now
        self.staleness = max(0, pushes - 1 - self.mark) if staleness is None else staleness
        self.mark = pushes

    def trains(self, part: float, steps: int, seconds: float, samples: int = 0) -> None:
        """A push told of so many more steps on that part of the units, and samples in them."""
        spent, self.seconds = seconds - self.seconds, seconds
        if spent > 0:
            self.samples_per_s = samples / spent
        if steps > 0 and spent > 0 and self.speed is None:
            self.trained += part * steps
            self.trained_s += spent
            self.measures += 1

    def told(self, now: float, steps: int) -> None:
        """How it does: until its own pace is known, a step is a sign of life."""
        if steps > self.told_steps and not self.intervals and self.since_s is not None:
            self.since_s = now
        self.told_steps = steps


class Members:
    """All seats."""

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}
        self.tallies: dict[str, MemberTally] = {}

    def tally(self, name: str) -> MemberTally:
        if name not in self.tallies:
            while len(self.tallies) >= TALLIES_MAX:
                gone = next((n for n in self.tallies if n not in self.seats), None)
                if gone is None:
                    break
                del self.tallies[gone]
            self.tallies[name] = MemberTally()
        return self.tallies[name]

    def at(self, name: str, stream: int) -> Seat | None:
        """The seat of whoever speaks on that stream, unless it has another one by now."""
        seat = self.seats.get(name)
        return seat if seat is not None and seat.stream == stream else None

    def lost(self, now: float) -> list[Seat]:
        """Those whose stream broke, and who did not come back in time."""
        return [s for s in self.seats.values() if not s.stream and now >= s.away_s + s.grace_s]

    def frozen(self, now: float, owing: Iterable[str]) -> Iterator[tuple[Seat, float]]:
        """Of those who owe a push: who has not pushed for far too long, and for how long."""
        usual = [u for s in self.seats.values() if (u := s.usual_s) is not None]
        for name in owing:
            seat = self.seats.get(name)
            if seat is None or not seat.stream or seat.since_s is None:
                continue
            if (own := seat.usual_s) is not None:
                most = max(FROZEN_S, FROZEN_TIMES * own)
            else:
                most = max(FIRST_S, FIRST_TIMES * max(usual, default=0.0))
            if now - seat.since_s > most:
                yield seat, now - seat.since_s

    def speeds(self) -> dict[str, float]:
        """Of those who did not say how wide they want to be: 1 on average; empty: not yet."""
        own = [seat for seat in self.seats.values() if not seat.width]
        known = {seat.name: seat.speed for seat in own}
        measured = {name: speed for name, speed in known.items() if speed is not None}
        if not own or len(measured) < len(own):
            return {}
        mean = sum(measured.values()) / len(measured)
        return {name: speed / mean for name, speed in measured.items()}

    def unpushed(self, now: float, training: Iterable[str]) -> int:
        """The samples, about, that these have trained since their last pushes or gifts: as fast as
        before these."""
        seats = [seat for name in training if (seat := self.seats.get(name)) is not None]
        here = [seat for seat in seats if seat.stream and seat.since_s is not None]
        return int(
            sum(
                (now - seat.begun_s) * (seat.samples_per_s or self.tally(seat.name).samples_per_s)
                for seat in here
            )
        )

    # -- over a restart ----------------------------------------------------------------------------

    def memory(self) -> dict[str, list[Any]]:
        """What is kept of each member's tally."""
        return {
            n: [t.pushes, t.steps, t.samples, t.refused, t.staleness.memory()]
            for n, t in self.tallies.items()
        }

    def remember(self, memory: Mapping[str, Sequence[Any]]) -> None:
        """Older checkpoints have no staleness."""
        for name, (pushes, steps, samples, refused, *more) in memory.items():
            self.tallies[name] = tally = MemberTally(pushes, steps, samples, refused)
            if more:
                tally.staleness = Summary.remembered(more[0])
