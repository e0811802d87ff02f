"""Gossip of weights: rule `average`. Push-sum with shares that are put in exactly once.

Each node has a *model* and a *weight* (1 at the start); its *mass* is weight * model. A turn splits
the weight into equal parts, keeps one and gives the others, each with a copy of the model, to
partners. Whoever gets a share adds its mass: the model becomes the mean of the two, by weight. Sums
over the swarm never change, so all models tend to sum(mass)/sum(weight), the true mean, on any
strongly connected graph; plain averaging on directed links ends elsewhere (see the tests).

A share is a thing: it is somewhere exactly once. The giver keeps it, under a number, until a
receipt says that it is in, and meanwhile gives that partner no other; what is lost is sent again as
it was. The receiver puts number n in after n - 1, once, and remembers the number alone. So always
    sum(mass at nodes) + sum(mass of shares not put in yet) == what was put in
whatever is lost, comes twice, late or out of order: to the rounding of one mean in the model's
dtype for each share put in, as a step of an optimizer has it. Where two models are the same, their
mean is, to the bit. A number belongs to two lives: a share names both, and any other refuses it.

What a departure costs. `reclaim` puts an unconfirmed share in at its giver: exact after the last
receipt of a partner that left in order. After a crash, what had arrived unconfirmed (one share)
counts twice as far as the dead passed it on; nobody can know without one more message. What the
dead held, or had on the wire, is gone *with its weight*: models stay means of what remains and
never shrink. If it was not dead, `give_again` takes off what counted twice.

Replicas never agree to the bit (F9). A clock then says whose work has *some* part in these weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from murmurate.core import buffers
from murmurate.core.clock import Clock, Dot
from murmurate.core.values.limits import Number
from murmurate.errors import LocalProtocolError, RemoteProtocolError

WEIGHT_MIN = 2.0**-10
"""A node with less gives nothing away: it would count for nothing until somebody gives to it."""
WEIGHT_MAX = 2.0**20
"""No share has more: a weight is 1 for each life there ever was, shared among those who are."""
LEFT_MIN = 0.25
"""Of a share that is taken off again so much must remain: less would turn rounding into noise."""
RETIRED_MAX = 16384
"""Lives over for good that are remembered, as the last one of each name."""
BLOCK, BLOCKS = 1 << 13, 64
"""The distance of two models is taken from so many blocks of them: it costs next to nothing."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """«I, life `epoch`, have put in all that you in your life `to_epoch` gave me, up to `seq`»."""

    seq: Number
    epoch: Number
    to_epoch: Number


@dataclass(frozen=True, slots=True)
class Share:
    """«This model is yours with this weight; of yours I have `seen` all up to that number»."""

    seq: int
    epoch: int
    to_epoch: int
    weight: float
    model: torch.Tensor
    """Flat, in the dtype of the model. Nobody changes it."""
    clock: Clock
    seen: int = 0
    unshared: bool = field(default=False, compare=False)
    """It came over a wire: its memory is nobody else's, and whoever puts it in may keep that."""
    norm: float | None = field(default=None, compare=False)
    """Of the model, where this node has counted it while it came."""

    def __post_init__(self) -> None:
        if self.seq < 1 or self.seen < 0:
            raise RemoteProtocolError("share.seq", f"{self.seq}, seen {self.seen}")
        if not 0.0 < self.weight <= WEIGHT_MAX:
            raise RemoteProtocolError("share.weight", f"{self.weight}, above 0 to {WEIGHT_MAX:g}")
        if self.model.dim() != 1 or not self.model.is_floating_point():
            raise RemoteProtocolError("share.model", "not one flat floating-point tensor")


@dataclass(frozen=True, slots=True)
class Merged:
    """A share was put in; the distance of the two clocks just before they were united."""

    staleness: int
    distance: float = field(default=math.inf, compare=False)
    """Of the two models just before, over the size of this one. Inf: not known, or one has updates
    in it that the other has not: then they are not the same, however close."""
    moved: float = field(default=1.0, compare=False)
    """The part of that distance which this model has gone now."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing was put in, and why: normal where messages are repeated and reordered."""

    reason: str


TWICE = Stale("it is in already")
ELSEWHERE = Stale("to or from an earlier life")
GAP = Stale("those before it are not in")


@dataclass(slots=True)
class _Link:
    """What one life of a partner was given: how many shares, and the last while unconfirmed."""

    epoch: int
    seq: int = 0
    share: Share | None = None
    back: bool = False
    """The share was put in here again (`reclaim`); the partner may have it all the same."""


class Averager:
    """One node's weight and clock, the numbers of its links, and the model.

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
        self._links: dict[str, _Link] = {}
        self._taken: dict[str, tuple[int, int]] = {}
        """Whose shares are in here: of which life, up to which number."""
        self._retired: dict[str, int] = {}
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
        staleness = context.distance(self.clock)
        dot = Dot(self.name, self.epoch, self.clock.last(self.name, self.epoch) + 1)
        self.clock.add(dot)
        self.model = torch.add(self.model, delta, out=self._room())
        return dot, staleness

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

    def share(self, partners: Mapping[str, int]) -> dict[str, Share]:
        """A turn with these partners, one or several (name -> epoch): equal parts for those who
        have confirmed their last share, the last one again for the others."""
        links = {name: self._link(name, epoch) for name, epoch in sorted(partners.items())}
        waiting = sum(link.share is None for link in links.values())
        shares = {}
        for name, link in links.items():
            new = link.share is None
            share = self.assign(name, link.epoch, 1.0 / (waiting + 1))
            waiting -= new
            if share is not None:
                shares[name] = share
        return shares

    def assign(self, partner: str, epoch: int, part: float) -> Share | None:
        """A share for one partner, with that part of the weight, or the one it has not confirmed.

        None: there is nothing to give. Giving 1/(k+1), 1/k, ... 1/2 to k partners, one after
        another, is `share` for all of them. The model stays as it is.
        """
        link = self._link(partner, epoch)
        seen = self.receipt(partner, link.epoch).seq
        if link.back:
            return None
        if link.share is None:
            if not part or self.weight < WEIGHT_MIN:
                return None
            weight = self.weight * part
            self.weight -= weight
            link.seq += 1
            link.share = Share(
                link.seq,
                self.epoch,
                link.epoch,
                weight,
                self.lend(),
                self.clock.copy(),
                seen,
            )
        elif link.share.seen != seen:
            link.share = replace(link.share, seen=seen)
        return link.share

    def lend(self) -> torch.Tensor:
        """The model as it is. Nobody changes this tensor any more, this node included."""
        self._given = True
        return self.model

    def confirm(self, partner: str, receipt: Receipt) -> None:
        """Take note of what a partner has; late and repeated receipts change nothing."""
        link = self._links.get(partner)
        if link is None or (receipt.epoch, receipt.to_epoch) != (link.epoch, self.epoch):
            return
        if receipt.seq > link.seq:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq}, only {link.seq} were sent")
        if receipt.seq == link.seq and not link.back:
            link.share = None

    def unconfirmed(self, partner: str) -> Share | None:
        """What a partner was given and has not confirmed, and was not taken back."""
        link = self._links.get(partner)
        return link.share if link is not None and not link.back else None

    def unseen(self) -> dict[str, float]:
        """The weight of that for each partner: at risk when it departs."""
        shares = {name: self.unconfirmed(name) for name in self._links}
        return {name: share.weight if share else 0.0 for name, share in shares.items()}

    # -- taking ----------------------------------------------------------------------------------

    def receive(self, sender: str, share: Share) -> Merged | Stale:
        """Put a share in (its clock lifted to this one's), unless it is, or is not the next."""
        if share.model.shape != self.model.shape or share.model.dtype != self.model.dtype:
            raise RemoteProtocolError("share.model", f"not {len(self.model)} {self.model.dtype}")
        life, last = self._taken.get(sender, (0, 0))
        oldest = max(life, self._retired.get(sender, -1) + 1)
        if share.to_epoch != self.epoch or share.epoch < oldest:
            return ELSEWHERE
        self.confirm(sender, Receipt(share.seen, share.epoch, share.to_epoch))
        if share.epoch > life:
            last = 0  # a new life
        if share.seq != last + 1:
            return TWICE if share.seq <= last else GAP
        staleness = share.clock.distance(self.clock)
        distance = math.inf if staleness else self._distance(share.model)
        self.put_in(share.model, share.weight, unshared=share.unshared)
        self.clock.merge(share.clock)
        self._taken[sender] = share.epoch, share.seq
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
        """The answer to a share of that life, stale or not, where no shares go back."""
        life, last = self._taken.get(sender, (0, 0))
        return Receipt(last if life == epoch else 0, self.epoch, epoch)

    def givers(self) -> dict[str, int]:
        """Whose shares are in here, and of which of its lives (name -> epoch)."""
        return {name: epoch for name, (epoch, _) in self._taken.items()}

    def _distance(self, model: torch.Tensor) -> float:
        """How far another model is from this, over the size of this."""
        if not self.weight:
            return math.inf
        mine = self.model
        stride = len(mine) // BLOCKS
        if stride > BLOCK:  # one look at all blocks: each call costs more than what it reads
            mine, model = (
                flat[: stride * BLOCKS].view(BLOCKS, stride)[:, :BLOCK].reshape(-1)
                for flat in (mine, model)
            )
        off = model - mine
        apart, size = float(off.dot(off)), float(mine.dot(mine))
        return math.sqrt(apart / size) if size else (math.inf if apart else 0.0)

    # -- lives that end --------------------------------------------------------------------------

    def reclaim(self, partner: str) -> float:
        """Put in here what a partner did not confirm; the weight regained.

        The share is kept: if the partner was not gone after all, `give_again` comes next.
        """
        link, share = self._links.get(partner), self.unconfirmed(partner)
        if link is None or share is None:
            return 0.0
        self.put_in(share.model, share.weight)
        link.back = True
        return share.weight

    def took_back(self, partner: str) -> bool:
        """Whether its last share was put in here again."""
        link = self._links.get(partner)
        return link is not None and link.back

    def reclaimed(self) -> dict[str, int]:
        """Whose last share was put in here again, and of which of its lives (name -> epoch)."""
        return {name: link.epoch for name, link in self._links.items() if link.back}

    def give_again(self, partner: str) -> bool:
        """Take off what `reclaim` put in: the partner is there, and may have it already.

        False: there is nothing of it, or too little would remain until others have given more.
        """
        link = self._links.get(partner)
        if link is None or link.share is None or not link.back:
            return False
        share, left = link.share, self.weight - link.share.weight
        if left < max(WEIGHT_MIN, LEFT_MIN * share.weight):
            return False
        self.model = torch.lerp(self.model, share.model, -share.weight / left, out=self._room())
        self.weight = left
        link.back = False
        return True

    def outlived(self, partner: str, epoch: int) -> bool:
        """Whether there are numbers of a life of it before that one."""
        link, life = self._links.get(partner), self._taken.get(partner, (epoch, 0))[0]
        return life < epoch or (link is not None and link.epoch < epoch)

    def retired(self, partner: str, epoch: int) -> bool:
        """Whether that life is over for good here (`forget`)."""
        return epoch <= self._retired.get(partner, -1)

    def forget(self, partner: str, epoch: int) -> None:
        """Free what is kept of a life that is over for good, and refuse what it still sends."""
        self._retired[partner] = max(epoch, self._retired.pop(partner, -1))
        if len(self._retired) > RETIRED_MAX:
            del self._retired[next(iter(self._retired))]
        if partner in self._links and self._links[partner].epoch <= epoch:
            del self._links[partner]
        if partner in self._taken and self._taken[partner][0] <= epoch:
            del self._taken[partner]

    def close(self, partner: str, epoch: int) -> float:
        """That life is over for good: `reclaim` and `forget`, if anything is kept of it."""
        link, life = self._links.get(partner), self._taken.get(partner, (epoch + 1, 0))[0]
        mine = link is not None and link.epoch <= epoch
        regained = self.reclaim(partner) if mine else 0.0
        if mine or life <= epoch:
            self.forget(partner, epoch)
        return regained

    def _link(self, partner: str, epoch: int) -> _Link:
        """To a partner's newest life; the one before is settled as by `reclaim`."""
        link = self._links.get(partner)
        if link is None or epoch > link.epoch:
            if partner == self.name or epoch <= self._retired.get(partner, -1):
                raise LocalProtocolError(f"no share for {partner}/{epoch}: own name or retired")
            self.reclaim(partner)
            link = self._links[partner] = _Link(epoch)
        return link


def mass(model: torch.Tensor, weight: float) -> torch.Tensor:
    """weight * model, and then the weight, in float64."""
    one = torch.ones(1, dtype=torch.float64)
    return torch.cat([model.double(), one]).mul_(weight)
