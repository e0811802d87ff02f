"""Gossip of weights: rule `average`. Push-sum with shares that are put in exactly once.

Each node has a *model* and a *weight* (1 at the start); its *mass* is weight * model. A turn splits
the weight into equal parts, keeps one and gives the others, each with a copy of the model, to
partners. Whoever gets a share adds its mass: the model becomes the mean of the two, by weight. Sums
over the swarm never change, so all models tend to sum(mass)/sum(weight), the true mean, on any
strongly connected graph; plain averaging on directed links ends elsewhere (see the tests).

A share is a thing: it is somewhere exactly once. The giver keeps it, under a number, until a
receipt says that it is in, and meanwhile gives that partner no other; what is lost is sent again as
it was. The receiver puts no number in that is not above the last one, and remembers that alone. So
    sum(mass at nodes) + sum(mass of shares not put in yet) == what was put in
whatever is lost, comes twice, late or out of order: to the rounding of one mean in the model's
dtype for each share put in, as a step of an optimizer has it. Where two models are the same, their
mean is, to the bit. A number belongs to two lives: a share names both, and any other refuses it.

What a departure costs. What a life that is over held, and what was on its way from it or to it, is
gone *with its weight*, as if it had not been put in: models stay means of what remains and never
shrink, and nothing ever counts twice. Who was thought dead and is not goes on where it was: its
shares are kept for a while, and its numbers go on.

Replicas never agree to the bit (F9). A clock then says whose work has *some* part in these weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch

from murmurate.core import buffers
from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.values.limits import Number
from murmurate.errors import LocalProtocolError, RemoteProtocolError

IsFar = Callable[[str, float], bool]
"""Of a partner's model, so far away over the size of this one: whether it is refused."""
WEIGHT_MIN = 2.0**-10
"""A node with less gives nothing away: it would count for nothing until somebody gives to it."""
WEIGHT_MAX = 2.0**20
"""No share has more: a weight is 1 for each life there ever was, shared among those who are."""
TIES_MAX = 16384
"""Partners whose numbers are remembered, those who are gone included."""
CHUNK, WHOLE = 1 << 16, 1 << 22
"""The distance of two models is taken so many numbers at a time, which stay in the cache; of models
with more than `WHOLE`, of every eighth chunk: all of 100 MB would cost a merge once more."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """«I, life `epoch`, have put in all that you in your life `to_epoch` gave me, up to `seq`»."""

    seq: Number
    epoch: Number
    to_epoch: Number


@dataclass(frozen=True, slots=True)
class Share:
    """«This model is yours with this weight.»"""

    seq: int
    epoch: int
    to_epoch: int
    weight: float
    model: torch.Tensor
    """Flat, in the dtype of the model. Nobody changes it."""
    clock: Clock
    unshared: bool = field(default=False, compare=False)
    """It came over a wire: its memory is nobody else's, and whoever puts it in may keep that."""
    norm: float | None = field(default=None, compare=False)
    """Of the model, where this node has counted it while it came."""

    def __post_init__(self) -> None:
        if self.seq < 1:
            raise RemoteProtocolError("share.seq", f"{self.seq}: numbers start at 1")
        if not 0.0 < self.weight <= WEIGHT_MAX:
            raise RemoteProtocolError("share.weight", f"{self.weight}, above 0 to {WEIGHT_MAX:g}")
        if self.model.dim() != 1 or not self.model.is_floating_point():
            raise RemoteProtocolError("share.model", "not one flat floating-point tensor")


@dataclass(frozen=True, slots=True)
class Merged:
    """A share was put in; the distance of the two clocks just before they were united."""

    staleness: int
    distance: float = field(default=math.inf, compare=False)
    """Of the two models just before, over the size of this one. Inf: this one had no weight."""
    moved: float = field(default=1.0, compare=False)
    """The part of that distance which this model has gone now."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing was put in, and why: normal where messages are repeated and reordered."""

    reason: str


TWICE = Stale("it is in already")
ELSEWHERE = Stale("to or from an earlier life")
FAR = Stale("its model is far away from all others")


@dataclass(slots=True)
class Tie:
    """What one life of a partner was given here, and what it gave: all that is owed between us."""

    epoch: int
    given: int = 0
    """So many shares it was given."""
    share: Share | None = None
    """The last of them, until it is confirmed."""
    taken: int = 0
    """So many of its shares are in here."""


class Averager:
    """One node's weight and clock, its ties to partners, and the model.

    The model is the buffer given at first, and then whichever has what it became: one that is in a
    share is not written any more.
    """

    def __init__(
        self, model: torch.Tensor, name: str, epoch: int, clock: Clock | None = None
    ) -> None:
        if model.dim() != 1 or not model.is_floating_point():
            raise LocalProtocolError("averaging needs one flat floating-point buffer")
        self.name, self.epoch = name, epoch
        self.model, self.weight = model.detach(), 1.0
        self.clock = clock.copy() if clock is not None else Clock()
        self.ties: dict[str, Tie] = {}
        """By partner: to the newest life of it that gave something or was given something."""
        self.uncounted: Collection[Key] = ()
        """Lives that are over for so long that staleness does not count them, whoever knows of
        them (`PastLives`)."""
        self.dropped: Collection[Key] = ()
        """Those of them that leave the clock, and are not let in again."""
        self._given = False
        """Whether the model's memory is in shares: these nobody changes, so what the model becomes
        next is written elsewhere. (To copy it for each turn took 8 ms of 100 MB.)"""

    @property
    def mass(self) -> torch.Tensor:
        """weight * model and then the weight, in float64: what is conserved."""
        return mass(self.model, self.weight)

    def local(self, delta: torch.Tensor, context: Clock) -> tuple[Dot, int]:
        """Put an optimizer step in: its dot and its staleness, |context Δ clock| just before.

        The own model makes just this step, so the mass grows by weight * delta: a node counts in
        the mean by its weight (1 on average where in- and out-degrees are equal). Stochastic
        Gradient Push adds `delta` to the mass: all count the same, but the own model jumps by
        delta/weight.
        """
        if delta.shape != self.model.shape:
            raise LocalProtocolError(f"a step of {delta.numel()} numbers, not {len(self.model)}")
        staleness = self._staleness(context)
        dot = Dot(self.name, self.epoch, self.clock.last(self.name, self.epoch) + 1)
        self.clock.add(dot)
        self.model = torch.add(self.model, delta, out=self._room())
        return dot, staleness

    def _staleness(self, clock: Clock) -> int:
        """How far another clock is from this one, over the lives that count."""
        return clock.without(self.uncounted).distance(self.clock.without(self.uncounted))

    def _room(self, spare: torch.Tensor | None = None) -> torch.Tensor:
        """Where to write what the model becomes: where it is, unless that was given away; then
        into `spare`, if there is one. (To write into memory that was just read is cheaper.)"""
        if not self._given:
            return self.model
        self._given = False
        if spare is not None:
            return spare
        return buffers.empty(len(self.model), self.model.dtype, large_pages=True)

    # -- giving ----------------------------------------------------------------------------------

    def assign(self, partner: str, epoch: int, part: float) -> Share | None:
        """A share for one partner, with that part of the weight, or the one it has not confirmed.

        None: there is nothing to give. Giving 1/(k+1), 1/k, ... 1/2 to k partners, one after
        another, gives all of them the same. The model stays as it is.
        """
        tie = self._tie(partner, epoch)
        if tie.share is None and part and self.weight >= WEIGHT_MIN:
            weight = self.weight * part
            self.weight -= weight
            tie.given += 1
            tie.share = Share(
                tie.given, self.epoch, tie.epoch, weight, self.lend(), self.clock.copy()
            )
        return tie.share

    def lend(self) -> torch.Tensor:
        """The model as it is. Nobody changes this tensor any more, this node included."""
        self._given = True
        return self.model

    def confirm(self, partner: str, receipt: Receipt) -> None:
        """Take note of what a partner has; late and repeated receipts change nothing."""
        tie = self.ties.get(partner)
        if tie is None or (receipt.epoch, receipt.to_epoch) != (tie.epoch, self.epoch):
            return
        if receipt.seq > tie.given:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq}, only {tie.given} were sent")
        if receipt.seq == tie.given:
            tie.share = None

    def unconfirmed(self, partner: str) -> Share | None:
        """What a partner was given and has not confirmed."""
        tie = self.ties.get(partner)
        return tie.share if tie is not None else None

    # -- taking ----------------------------------------------------------------------------------

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        """Put a share in, unless it is in, or of no life that counts. If the distance of its model
        from this one `is_far`, it is taken and let go of with its weight."""
        if share.model.shape != self.model.shape or share.model.dtype != self.model.dtype:
            raise RemoteProtocolError("share.model", f"not {len(self.model)} {self.model.dtype}")
        if share.to_epoch != self.epoch:
            return ELSEWHERE
        tie = self._tie(sender, share.epoch)
        if share.epoch < tie.epoch:
            return ELSEWHERE
        if share.seq <= tie.taken:
            return TWICE
        staleness, distance = self._staleness(share.clock), self.distance(share.model)
        tie.taken = share.seq
        if self.weight and is_far is not None and is_far(sender, distance):
            return FAR
        self.put_in(share.model, share.weight, unshared=share.unshared)
        self.clock.merge(share.clock.without(self.dropped))
        return Merged(staleness, distance, share.weight / self.weight)

    def put_in(self, model: torch.Tensor, weight: float, *, unshared: bool = False) -> None:
        """Become the mean of this and another model, by weight; `unshared`: maybe in its memory."""
        room = self._room(model if unshared else None)
        before, self.weight = self.weight, self.weight + weight
        if before:
            self.model = torch.lerp(self.model, model, weight / self.weight, out=room)
        else:
            self.model = room.copy_(model)

    def receipt(self, sender: str, epoch: int) -> Receipt:
        """The answer to a share of that life, stale or not."""
        tie = self.ties.get(sender)
        taken = tie.taken if tie is not None and tie.epoch == epoch else 0
        return Receipt(taken, self.epoch, epoch)

    def distance(self, model: torch.Tensor) -> float:
        """How far another model is from this, over the size of this; inf: this has no weight."""
        if not self.weight:
            return math.inf
        apart = size = 0.0
        mine, numbers = self.model, len(self.model)
        for at in range(0, numbers, CHUNK if numbers <= WHOLE else 8 * CHUNK):
            here = mine[at : at + CHUNK]
            off = model[at : at + CHUNK] - here
            apart += float(off.dot(off))
            size += float(here.dot(here))
        return math.sqrt(apart / size) if size else (math.inf if apart else 0.0)

    # -- partners --------------------------------------------------------------------------------

    def let_go(self, partner: str) -> None:
        """What a partner was given and has not confirmed is gone with its weight."""
        if partner in self.ties:
            self.ties[partner].share = None

    def forget(self, there: Collection[str]) -> None:
        """Of those who are not there, forget the numbers of the oldest, if there are too many."""
        for name in [name for name in self.ties if name not in there][:-TIES_MAX]:
            del self.ties[name]

    def _tie(self, partner: str, epoch: int) -> Tie:
        """To a partner's newest life; what the one before was given is gone with it."""
        tie = self.ties.get(partner)
        if tie is None or epoch > tie.epoch:
            if partner == self.name:
                raise LocalProtocolError(f"no share for {partner}: that is my name")
            tie = self.ties[partner] = Tie(epoch)
        return tie


def mass(model: torch.Tensor, weight: float) -> torch.Tensor:
    """weight * model, and then the weight, in float64."""
    one = torch.ones(1, dtype=torch.float64)
    return torch.cat([model.double(), one]).mul_(weight)
