"""What peers say to each other: frozen values that validate themselves.

A message checks only what can be known from itself; what depends on the receiver (sizes of the
model, who I am, which updates I made) is checked by `Peer.receive` before anything changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Annotated, Any, Protocol, TypeAlias

import torch

from murmurate.core import buffers
from murmurate.core.batches.held import NO_BATCHES, HeldBatches
from murmurate.core.clock import Clock, Dot, Fold, Key, Range
from murmurate.core.intervals import Runs, runs_problem
from murmurate.core.values.limits import Few, Line, Name, NameOrNone, Number, WireNames
from murmurate.errors import RemoteProtocolError

STAMPS_MAX = 512
"""Updates one sum may carry; a path that is further behind is repaired by snapshot. With up to 32
origins their stamps fit into one header of the wire (60 KiB)."""
PARTS_MAX = 64
"""Encoded forms in one push; a sum of more is sent plain."""
RANGES_MAX = 1024
RUMOURS_MAX = 64
CANDIDATES_MAX = 256
GENERATIONS_MAX = 64
CHECKPOINTS_MAX = 16
"""After the oldest, told in a digest."""
NAMES_MAX = 4096
"""Of a roster, and of the epochs folded in one agreement."""

Names = Annotated[tuple[Name, ...], Few(NAMES_MAX)]
Ranges = Annotated[tuple[Range, ...], Few(RANGES_MAX)]
Ballot = Annotated[tuple[Number, Name], WireNames("number", "name")]


@dataclass(frozen=True, slots=True)
class Stamp:
    """One update's identity, the clock of the weights it was computed on, and, where a generator
    deals them, the batches."""

    dot: Dot
    context: Clock
    batches: Runs = ()
    written: bool = False
    """No step made it, weights were restored: it says nothing of where steps lead."""


class Part(Protocol):
    """Numbers in an encoded form (core/codecs/codec.py), which know how to be added to plain
    ones.
    """

    @property
    def codec(self) -> str: ...

    @property
    def size(self) -> int:
        """Elements of the model; not all of them need be in it."""

    @property
    def nbytes(self) -> int: ...

    def norm(self) -> float:
        """A bound of the norm of what it stands for; not finite: neither is that."""

    def add_to(self, flat: torch.Tensor, *, start: int = 0, times: float = 1.0) -> None:
        """Decode and add in one pass, in place, so many times; `flat` has the model's numbers from
        `start` on, all or some of them."""


Delta: TypeAlias = torch.Tensor | Part | tuple[Part, ...]
"""What an update adds: plain, or encoded, in one form or in several that are added one after
another."""


def parts_of(coded: Part | tuple[Part, ...]) -> tuple[Part, ...]:
    return coded if isinstance(coded, tuple) else (coded,)


class Push:
    """«Here is one update, or the sum of several»: add the payload if you have none of them.

    Either plain, with a flat tensor; or as `parts`, encoded forms to be added one after another.
    Everyone adds what the encoded form says, its origin too, and passes the encoded form on as it
    is: so replicas agree on what was sent, whatever was lost in encoding it. Decoded it is only
    where it is added; a push that waits somewhere takes no more memory than its parts.
    """

    __slots__ = ("_plain", "parts", "stamps")

    stamps: tuple[Stamp, ...]
    parts: tuple[Part, ...]
    _plain: torch.Tensor | None

    def __init__(
        self,
        stamps: tuple[Stamp, ...],
        payload: torch.Tensor | None = None,
        parts: tuple[Part, ...] = (),
    ) -> None:
        if not 0 < len(stamps) <= STAMPS_MAX:
            raise RemoteProtocolError("push.stamps", f"{len(stamps)}, 1 to {STAMPS_MAX}")
        if (payload is None) != bool(parts):
            raise RemoteProtocolError("push.payload", "plain or in parts, one of the two")
        if payload is not None and payload.dim() != 1:
            raise RemoteProtocolError("push.payload", f"{payload.dim()} axes, expected 1")
        if len(parts) > PARTS_MAX:
            raise RemoteProtocolError("push.parts", f"{len(parts)}, at most {PARTS_MAX}")
        if len({part.size for part in parts}) > 1:
            raise RemoteProtocolError("push.parts", "of models of different sizes")
        if len(stamps) > 1 and len({stamp.dot for stamp in stamps}) != len(stamps):
            raise RemoteProtocolError("push.stamps", "a dot stands in it twice")
        object.__setattr__(self, "stamps", stamps)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "_plain", payload)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        what = f"parts={self.parts!r}" if self.parts else f"payload={self._plain!r}"
        return f"Push(stamps={self.stamps!r}, {what})"

    @property
    def payload(self) -> torch.Tensor:
        """As a flat tensor. Of parts: a new one, float32."""
        if self._plain is not None:
            return self._plain
        flat = torch.zeros(self.parts[0].size)
        self.add_to(flat)
        return flat

    @property
    def dots(self) -> tuple[Dot, ...]:
        return tuple(stamp.dot for stamp in self.stamps)

    @property
    def written(self) -> bool:
        """Whether weights were restored by any of it: a sum cannot be taken apart."""
        return any(stamp.written for stamp in self.stamps)

    @property
    def nbytes(self) -> int:
        if self._plain is not None:
            return self._plain.numel() * self._plain.element_size()
        return sum(part.nbytes for part in self.parts)

    def add_to(self, flat: torch.Tensor) -> None:
        """Add it in place."""
        if self._plain is not None:
            flat.add_(self._plain)
        for part in self.parts:
            part.add_to(flat)

    def stamped(self, stamps: tuple[Stamp, ...]) -> Push:
        """The same with other stamps."""
        return Push(stamps, self._plain, self.parts)


def summed(pushes: list[Push]) -> Push:
    """One push with all stamps, in order, and the sum of the payloads.

    In parts as long as these take less than the plain sum; adding them one after another is what
    whoever got the pushes one by one has done, to the bit.
    """
    if len(pushes) == 1:
        return pushes[0]
    stamps = tuple(stamp for push in pushes for stamp in push.stamps)
    if all(push.parts for push in pushes):
        parts = tuple(part for push in pushes for part in push.parts)
        plain_bytes = parts[0].size * torch.float32.itemsize
        if len(parts) <= PARTS_MAX and sum(part.nbytes for part in parts) < plain_bytes:
            return Push(stamps, parts=parts)
    first, second = pushes[:2]
    if first.parts or second.parts:
        total = first.payload if first.parts else buffers.clone(first.payload)
        second.add_to(total)
    else:  # one pass less over new memory, which is what takes the time
        total = buffers.empty(first.payload.numel(), first.payload.dtype)
        torch.add(first.payload, second.payload, out=total)
    for push in pushes[2:]:
        push.add_to(total)
    return Push(stamps, total)


def restores(messages: Iterable[Any]) -> bool:
    """Whether any of these is an update that restores weights."""
    return any(isinstance(each, Push) and each.written for each in messages)


@dataclass(frozen=True, slots=True)
class Digest:
    """«This is what I have, and this much of it a crash cannot take»; `ask`: what have you?"""

    epoch: Number
    clock: Clock
    durable: Clock
    ask: bool = False
    kept: Number = 0
    """How many checkpoints are told of, the oldest of which is `durable`."""
    later: Annotated[tuple[Clock, ...], Few(CHECKPOINTS_MAX)] = ()
    """What each of the others lacks of the clock; none where it would take too much to say."""
    memory: Number = 0
    """The life since which I remember my votes: this one, or one before that left a disk."""

    def __post_init__(self) -> None:
        if self.memory > self.epoch:
            raise RemoteProtocolError("digest.memory", f"{self.memory}, of life {self.epoch}")
        same = self.durable.generation == self.clock.generation
        if same and not self.clock.covers(self.durable):
            raise RemoteProtocolError("digest.durable", "more than the clock has")
        for each in self.later:
            if each.generation != self.clock.generation or not self.clock.covers(each):
                raise RemoteProtocolError("digest.later", "more than the clock has")

    @property
    def all_told(self) -> bool:
        """Whether the clocks of all checkpoints are in it."""
        return self.kept == 1 + len(self.later)


@dataclass(frozen=True, slots=True)
class Want:
    """«Send me these, one by one or as sums of nothing else»."""

    ranges: Ranges

    def __post_init__(self) -> None:
        _check_ranges("want.ranges", self.ranges)


@dataclass(frozen=True, slots=True)
class Lack:
    """«I hold these in my weights, but no longer one by one»: ask the origin, or for a snapshot."""

    ranges: Ranges

    def __post_init__(self) -> None:
        _check_ranges("lack.ranges", self.ranges)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """«Send me your weights and the clock that belongs to them»."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One agreement: who votes from now on, and which finished epochs left the clocks."""

    number: Number
    roster: Names
    folds: Annotated[tuple[Fold, ...], Few(NAMES_MAX)] = ()
    evicted: Names = ()
    memories: Annotated[tuple[Number, ...], Few(NAMES_MAX)] = ()
    """Of each on the roster, the life since which it remembers its votes; none: 0 of all."""

    def __post_init__(self) -> None:
        if self.memories and len(self.memories) != len(self.roster):
            raise RemoteProtocolError("generation.memories", "not one of each on the roster")
        if self.number < 0:
            raise RemoteProtocolError("generation.number", f"{self.number} is negative")
        if not self.roster or list(self.roster) != sorted(set(self.roster)):
            raise RemoteProtocolError("generation.roster", "empty, unsorted or with repeats")
        if len({key for key, _ in self.folds}) != len(self.folds):
            raise RemoteProtocolError("generation.folds", "an epoch stands in it twice")
        for key, runs in self.folds:
            if problem := runs_problem(runs):
                raise RemoteProtocolError("generation.folds", f"{key}: {problem}")

    def memory(self, name: str) -> int | None:
        """The memory in which one on the roster votes; None: it is not there."""
        if name not in self.roster:
            return None
        return self.memories[self.roster.index(name)] if self.memories else 0

    def has_vote(self, name: str, memory: int) -> bool:
        """Whether it votes on the next one: on the roster, and nothing forgotten since."""
        return self.memory(name) == memory


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """«These are my weights, and these the updates in them»: read together, adopted together."""

    weights: torch.Tensor
    clock: Clock
    history: tuple[Generation, ...]
    members: tuple[Rumour, ...] = ()
    unshared: bool = False
    """Nobody else has this memory: whoever adopts the weights may keep it."""
    norm: float | None = None
    """Of the weights, where this node has counted it while they came."""
    batches: HeldBatches = NO_BATCHES
    """Those in the weights."""

    def __post_init__(self) -> None:
        if self.clock.apart:
            raise RemoteProtocolError("snapshot.clock", "apart from its baseline")
        numbers = [generation.number for generation in self.history]
        newest = self.clock.generation
        if numbers != list(range(newest - len(numbers) + 1, newest + 1)):
            raise RemoteProtocolError("snapshot.history", f"{numbers}, must end with {newest}")


# -- membership ----------------------------------------------------------------------------------

ALIVE, SUSPECT, DEAD, LEFT = "alive", "suspect", "dead", "left"
STATES = (ALIVE, SUSPECT, DEAD, LEFT)


@dataclass(frozen=True, slots=True)
class Rumour:
    """What is said about a member. A higher epoch wins; then `left`; then the incarnation."""

    name: Name
    epoch: Number
    incarnation: Number
    state: str
    address: Line = ""
    source: NameOrNone = ""
    """Who says so first: independent suspicions count (Lifeguard)."""
    last: Number = 0
    """Of one who has left: the number of its last update."""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise RemoteProtocolError("rumour.state", f"{self.state!r}, one of {STATES}")
        if not self.name:
            raise RemoteProtocolError("rumour.name", "empty")
        if self.epoch < 0 or self.incarnation < 0:
            raise RemoteProtocolError("rumour.incarnation", "negative")


Rumours = Annotated[tuple[Rumour, ...], Few(RUMOURS_MAX)]


@dataclass(frozen=True, slots=True)
class Ping:
    """«Are you there?»"""

    number: Number
    rumours: Rumours = ()

    def __post_init__(self) -> None:
        _check_rumours(self.rumours)


@dataclass(frozen=True, slots=True)
class PingRequest:
    """«I get no answer from `target`: ask it for me»."""

    number: Number
    target: Name
    rumours: Rumours = ()

    def __post_init__(self) -> None:
        _check_rumours(self.rumours)


@dataclass(frozen=True, slots=True)
class Ack:
    """«I am here» (or, for a `PingRequest`: `about` answered me). `nack`: it did not, but I am."""

    number: Number
    about: Name
    nack: bool = False
    rumours: Rumours = ()

    def __post_init__(self) -> None:
        _check_rumours(self.rumours)


# -- agreement on the baseline -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """«I want to make generation `number`: these epochs are finished, those members are gone.

    What do you hold of them?»
    """

    number: Number
    ballot: Ballot
    candidates: Annotated[tuple[Key, ...], Few(CANDIDATES_MAX)]
    evict: Names = ()

    def __post_init__(self) -> None:
        if len(self.candidates) > CANDIDATES_MAX:
            raise RemoteProtocolError("prepare.candidates", f"at most {CANDIDATES_MAX}")


@dataclass(frozen=True, slots=True)
class Promise:
    """«I follow no lower ballot. Of the epochs that I, too, take for finished I hold this, and will
    take no more for now; these members are not gone; this value I have accepted before».
    """

    number: Number
    ballot: Ballot
    held: Annotated[tuple[Fold, ...], Few(CANDIDATES_MAX)]
    not_gone: Names = ()
    accepted_ballot: Ballot | None = None
    accepted: Generation | None = None
    memory: Number = 0
    """The life since which I remember my votes."""

    def __post_init__(self) -> None:
        if (self.accepted_ballot is None) != (self.accepted is None):
            raise RemoteProtocolError("promise.accepted", "a ballot and a value, or neither")
        if len(self.held) > CANDIDATES_MAX:
            raise RemoteProtocolError("promise.held", f"at most {CANDIDATES_MAX}")


@dataclass(frozen=True, slots=True)
class Accept:
    """«Let this be the generation»."""

    ballot: Ballot
    value: Generation


@dataclass(frozen=True, slots=True)
class Accepted:
    """«So be it, for my part»."""

    number: Number
    ballot: Ballot
    memory: Number = 0
    """The life since which I remember my votes."""


@dataclass(frozen=True, slots=True)
class Decided:
    """«It is so»: generations in order, without gaps."""

    generations: Annotated[tuple[Generation, ...], Few(GENERATIONS_MAX)] = field(default=())

    def __post_init__(self) -> None:
        if len(self.generations) > GENERATIONS_MAX:
            raise RemoteProtocolError("decided.generations", f"at most {GENERATIONS_MAX}")


Swim = Ping | PingRequest | Ack
Agreeing = Prepare | Promise | Accept | Accepted | Decided
Message = Push | Digest | Want | Lack | SnapshotRequest | Snapshot | Swim | Agreeing


def _check_ranges(name: str, ranges: tuple[Range, ...]) -> None:
    if not 0 < len(ranges) <= RANGES_MAX:
        raise RemoteProtocolError(name, f"{len(ranges)} ranges, 1 to {RANGES_MAX}")
    for span in ranges:
        if not 0 < span.first <= span.last:
            raise RemoteProtocolError(name, f"{span} is not a range")


def _check_rumours(rumours: tuple[Rumour, ...]) -> None:
    if len(rumours) > RUMOURS_MAX:
        raise RemoteProtocolError("rumours", f"{len(rumours)}, at most {RUMOURS_MAX}")
