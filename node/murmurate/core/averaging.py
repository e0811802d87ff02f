"""Gossip of weights: rule `average`. Ratio consensus with running sums.

Each node holds a *mass* (vector) and a *weight* (1 at the start, kept as one more coordinate of the
mass: what conserves one conserves the other); its model is mass/weight. A turn splits them into
equal parts, keeps one and assigns the others to partners. Sums over the swarm never change, so all
estimates tend to sum(mass)/sum(weight), the true mean, on any strongly connected graph; plain
averaging on directed links ends elsewhere (see the tests).

Running sums (Vaidya, Hadjicostis, Dominguez-Garcia 2011): a share carries the *total* ever assigned
to its link, and the receiver adds the difference to the last total it saw. What was lost is in the
next share; what comes twice or late changes nothing. So always, in every coordinate,
    sum(mass at nodes) + sum(assigned to a link - received from it) == what was put in
to the rounding of masses, not of ever growing totals. Totals travel as they are: no lossy codec. A
counter belongs to two lives: a share names both epochs, and any other life refuses it.

What a departure costs. `reclaim` takes back what was assigned and not confirmed: exact after the
last receipt of a partner that left in order. After a crash, what had arrived unconfirmed (at most
WINDOW shares) counts twice as far as the dead passed it on; nobody can know without one more
message. What the dead held, or had on the wire, is gone *with its weight*: estimates stay means of
what remains and never shrink. If it was not dead, the next share takes off what counted twice.

Replicas never agree to the bit (F9). A clock then says whose work has *some* part in these weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.errors import LocalProtocolError, RemoteProtocolError

WINDOW = 4
"""Unconfirmed shares of a link. Then it gets no new mass, but its last share again: this bounds
its memory (one vector each) and what a frozen partner can swallow."""
WEIGHT_MIN = 2.0**-10
"""A node with less gives nothing away: mass/weight would turn rounding into noise."""
MASS_MAX = 1e15
"""Largest norm of a total: far above what a long run adds up to, far below what overflows."""
RETIRED_MAX = 16384
"""Lives over for good that are remembered, as the last one of each name."""
BLOCK = 1 << 15
"""Numbers at a time: what one line leaves in the cache the next one uses, and no vector is made in
between (merging 25 million numbers: 58 ms instead of 207)."""
SAMPLE = 16
"""The distance of two models is taken from every so many blocks: it costs next to nothing."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """«I, life `epoch`, have all that you in your life `to_epoch` assigned to me up to `seq`»."""

    seq: int
    epoch: int
    to_epoch: int


@dataclass(frozen=True, slots=True)
class Share:
    """«This much I have assigned to you up to now; of yours I have `seen` that much»."""

    seq: int
    epoch: int
    to_epoch: int
    total: torch.Tensor
    """float64, the weight last."""
    clock: Clock
    seen: int = 0

    def __post_init__(self) -> None:
        if self.seq < 1 or self.seen < 0:
            raise RemoteProtocolError("share.seq", f"{self.seq}, seen {self.seen}")
        if self.total.dim() != 1 or self.total.dtype != torch.float64 or len(self.total) < 2:
            raise RemoteProtocolError("share.total", "not one flat float64 tensor")
        # One pass finds NaN, Inf and overflow: 10 ms per 200 MB (isfinite().all(): 319).
        norm = float(torch.linalg.vector_norm(self.total))
        if not norm <= MASS_MAX or self.total[-1] <= 0.0:
            raise RemoteProtocolError("share.total", f"a norm of {norm}, or no weight in it")


@dataclass(frozen=True, slots=True)
class Merged:
    """A share was put in; the distance of the two clocks just before they were united."""

    staleness: int
    distance: float = field(default=math.inf, compare=False)
    """Of the two models just before, over the size of this one (inf: not known)."""
    moved: float = field(default=1.0, compare=False)
    """The part of that distance which this model has gone now."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing was put in, and why: normal where messages are repeated and reordered."""

    reason: str


@dataclass(slots=True)
class _Link:
    """What one life of a partner was assigned; `sent`: the shares it has not confirmed."""

    epoch: int
    total: torch.Tensor
    confirmed: torch.Tensor
    seq: int = 0
    sent: dict[int, Share] = field(default_factory=dict)


class Averager:
    """One node's mass, weight and clock, and the counters of its links."""

    def __init__(
        self, weights: torch.Tensor, name: str, epoch: int, clock: Clock | None = None
    ) -> None:
        if weights.dim() != 1 or not weights.is_floating_point():
            raise LocalProtocolError("averaging needs one flat floating-point buffer")
        self.name, self.epoch, self._dtype = name, epoch, weights.dtype
        self.held = torch.cat([weights.detach().double(), weights.new_ones(1, dtype=torch.float64)])
        self.clock = clock.copy() if clock is not None else Clock()
        self._links: dict[str, _Link] = {}
        self._received: dict[str, Share] = {}
        self._retired: dict[str, int] = {}

    def estimate(self) -> torch.Tensor:
        """The model: mass/weight, in the dtype of the weights it began with."""
        return (self.held[:-1] / self.held[-1]).to(self._dtype)

    def write(self, weights: torch.Tensor) -> None:
        """The same, into a buffer that is there."""
        weight = float(self.held[-1])
        for block in _blocks(len(weights)):
            weights[block] = self.held[:-1][block] / weight

    def local(self, delta: torch.Tensor, context: Clock) -> tuple[Dot, int]:
        """Put an optimizer step in: its dot and its staleness, |context Δ clock| just before.

        mass += weight * delta: the own model makes just this step, and a node counts in the mean by
        its weight (1 on average where in- and out-degrees are equal). Stochastic Gradient Push adds
        `delta` whole: all count the same, but the own model jumps by delta/weight.
        """
        if delta.dim() != 1 or len(delta) != len(self.held) - 1:
            raise LocalProtocolError(f"a step of {len(delta)} numbers, not {len(self.held) - 1}")
        staleness = context.distance(self.clock)
        dot = Dot(self.name, self.epoch, self.clock.last(self.name, self.epoch) + 1)
        self.clock.add(dot)
        weight = float(self.held[-1])
        for block in _blocks(len(delta)):
            self.held[:-1][block] += delta[block].double() * weight
        return dot, staleness

    def share(self, partners: Mapping[str, int]) -> dict[str, Share]:
        """Split mass and weight with the partners of this turn, one or several (name -> epoch)."""
        links = {name: self._link(name, epoch) for name, epoch in sorted(partners.items())}
        rich = bool(self.held[-1] >= WEIGHT_MIN)
        taking = [name for name, link in links.items() if rich and len(link.sent) < WINDOW]
        for i, name in enumerate(taking):
            self._give(name, links[name], 1.0 / (len(taking) - i + 1))
        return {name: self._latest(name, link) for name, link in links.items() if link.sent}

    def assign(self, partner: str, epoch: int, part: float) -> Share | None:
        """A share for one partner, with that part of what is here, if it may have more now.

        Else its last one again; None: all of it is confirmed, and there is nothing to give. Giving
        1/(k+1), 1/k, ... 1/2 to k partners, one after another, is `share` for all of them.
        """
        link = self._link(partner, epoch)
        if part and len(link.sent) < WINDOW and bool(self.held[-1] >= WEIGHT_MIN):
            self._give(partner, link, part)
        return self._latest(partner, link) if link.sent else None

    def receive(self, sender: str, share: Share) -> Merged | Stale:
        """Put in what a share adds to the last one of its link (its clock lifted to this one's)."""
        if share.total.shape != self.held.shape:
            raise RemoteProtocolError("share.total", f"not {len(self.held)} numbers")
        known = self._received.get(sender)
        oldest = max(known.epoch if known else 0, self._retired.get(sender, -1) + 1)
        if share.to_epoch != self.epoch or share.epoch < oldest:
            return Stale("to or from an earlier life")
        self.confirm(sender, Receipt(share.seen, share.epoch, share.to_epoch))
        last = known if known and known.epoch == share.epoch else None  # a new life: from zero
        if last and share.seq <= last.seq:
            return Stale("a later total came before")
        before = last.total if last else self._zero()
        gain = float(share.total[-1] - before[-1])
        if gain < 0.0 and float(self.held[-1]) + gain < WEIGHT_MIN:
            return Stale("takes back more than is here")  # after a reclaim; a later total will do
        staleness = share.clock.distance(self.clock)
        distance = self._distance(share.total, before, gain)
        for block in _blocks(len(self.held)):
            self.held[block] += share.total[block] - before[block]
        self.clock.merge(share.clock)
        self._received[sender] = share
        return Merged(staleness, distance, abs(gain) / float(self.held[-1]))

    def _distance(self, total: torch.Tensor, before: torch.Tensor, gain: float) -> float:
        """How far the sender's model (what is new of its mass, over its weight) is from this."""
        weight, off, size = float(self.held[-1]), 0.0, 0.0
        if gain <= 0.0 or weight <= 0.0:
            return math.inf
        for block in list(_blocks(len(self.held) - 1))[::SAMPLE]:
            mine = self.held[block] / weight
            theirs = (total[block] - before[block]) / gain
            off += float(torch.linalg.vector_norm(theirs - mine)) ** 2
            size += float(torch.linalg.vector_norm(mine)) ** 2
        return math.sqrt(off / size) if size else (math.inf if off else 0.0)

    def receipt(self, sender: str, epoch: int) -> Receipt:
        """The answer to a share of that life, stale or not, where no shares go back."""
        last = self._received.get(sender)
        return Receipt(last.seq if last and last.epoch == epoch else 0, self.epoch, epoch)

    def confirm(self, partner: str, receipt: Receipt) -> None:
        """Take note of what a partner has; late and repeated receipts change nothing."""
        link = self._links.get(partner)
        if link is None or (receipt.epoch, receipt.to_epoch) != (link.epoch, self.epoch):
            return
        if receipt.seq > link.seq:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq}, only {link.seq} were sent")
        if receipt.seq in link.sent:
            link.confirmed = link.sent[receipt.seq].total
            link.sent = {seq: sent for seq, sent in link.sent.items() if seq > receipt.seq}

    def unseen(self) -> dict[str, float]:
        """The weight assigned to each partner and not confirmed: at risk when it departs."""
        return {name: float(k.total[-1] - k.confirmed[-1]) for name, k in self._links.items()}

    def unconfirmed(self, partner: str) -> int:
        """How many shares a partner was given and has not confirmed."""
        link = self._links.get(partner)
        return len(link.sent) if link else 0

    def givers(self) -> dict[str, int]:
        """Whose shares are in here, and of which of its lives (name -> epoch)."""
        return {name: share.epoch for name, share in self._received.items()}

    def outlived(self, partner: str, epoch: int) -> bool:
        """Whether there are counters of a life of it before that one."""
        counters = (self._links.get(partner), self._received.get(partner))
        return any(one is not None and one.epoch < epoch for one in counters)

    def retired(self, partner: str, epoch: int) -> bool:
        """Whether that life is over for good here (`forget`)."""
        return epoch <= self._retired.get(partner, -1)

    def reclaim(self, partner: str) -> float:
        """Take back what a departed partner did not confirm; the weight regained."""
        link = self._links.get(partner)
        if link is None:
            return 0.0
        regained = link.total - link.confirmed
        self.held += regained
        link.total, link.sent = link.confirmed, {}  # `seq` goes on: if alive, it gives up the rest
        return float(regained[-1])

    def forget(self, partner: str, epoch: int) -> None:
        """Free the counters of a life that is over for good, and refuse what it still sends."""
        self._retired[partner] = max(epoch, self._retired.pop(partner, -1))
        if len(self._retired) > RETIRED_MAX:
            del self._retired[next(iter(self._retired))]
        for counters in (self._links, self._received):
            if partner in counters and counters[partner].epoch <= epoch:
                del counters[partner]

    def close(self, partner: str, epoch: int) -> float:
        """That life is over for good: `reclaim` and `forget`, if there are counters of it."""
        link, last = self._links.get(partner), self._received.get(partner)
        regained = self.reclaim(partner) if link is not None and link.epoch <= epoch else 0.0
        if any(one is not None and one.epoch <= epoch for one in (link, last)):
            self.forget(partner, epoch)
        return regained

    def _link(self, partner: str, epoch: int) -> _Link:
        """The counter of a partner's newest life; it settles the one before as `reclaim` does."""
        link = self._links.get(partner)
        if link is None or epoch > link.epoch:
            if partner == self.name or epoch <= self._retired.get(partner, -1):
                raise LocalProtocolError(f"no share for {partner}/{epoch}: own name or retired")
            self.reclaim(partner)
            link = self._links[partner] = _Link(epoch, self._zero(), self._zero())
        return link

    def _zero(self) -> torch.Tensor:
        """A total of nothing; it takes no memory."""
        return self.held.new_zeros(1).expand(len(self.held))

    def _give(self, partner: str, link: _Link, part: float) -> None:
        """Assign a part of what is held to a link."""
        total = torch.empty_like(self.held)
        for block in _blocks(len(total)):
            before, held = link.total[block], self.held[block]
            torch.add(before, held, alpha=part, out=total[block])
            held -= total[block] - before  # what the counter gained, not the part: nothing leaks
        link.seq, link.total = link.seq + 1, total
        seen = self.receipt(partner, link.epoch).seq
        link.sent[link.seq] = Share(
            link.seq, self.epoch, link.epoch, total, self.clock.copy(), seen
        )

    def _latest(self, partner: str, link: _Link) -> Share:
        """The last share of a link; what it says of the other direction is of now."""
        share, seen = link.sent[link.seq], self.receipt(partner, link.epoch).seq
        return share if share.seen == seen else replace(share, seen=seen)


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))
