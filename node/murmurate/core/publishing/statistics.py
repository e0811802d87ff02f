"""Running statistics (batch-norm's mean and variance): what a node publishes of them.

Nobody's gradient depends on them, so no rule, rate or momentum has a say: what counts is that all
evaluate with the same ones, and that these are the mean of what each node's own batches make of
them. Each node has its *own* statistics, L, which training writes; the swarm's, W, are numbers of
the flat weights behind the parameters, and so exactly-once, the same everywhere, in snapshots and
in checkpoints. With n members a node publishes, since its last publication:

    (1/n) (change of L)  +  (k/n) (L - W)

The first term moves W as the mean of all L moves: a feed-forward, which no delay can make swing.
The second, a small pull, mends what joins, deaths and different beliefs of n leave behind; it is a
loop, so it is weaker where updates are long on their way. Where weights are mixed instead of
updates added (rule `average`), the mean comes about by mixing: there each gives all of its own, n
is 1. Who is alone publishes L - W: then W is L.
"""

from __future__ import annotations

import torch

PULL = 0.05
"""k, of each publication."""
LOOP = 0.5
"""The pull times the publications it takes to see what came of it is at most this (a loop with a
delay swings at π/2)."""
SMOOTHED = 0.1


class MergedStatistics:
    """One node's own statistics, and what it makes of them for the swarm's. Flat, as in the layout;
    `variances` are true where a number cannot be below zero."""

    def __init__(self, own: torch.Tensor, variances: torch.Tensor, *, mixed: bool = False) -> None:
        """`mixed`: weights are mixed, not updates added."""
        self.own = own
        self.alone = False
        """Whether the last step was taken without company: what is shown is then the own."""
        self._variances = variances
        self._mixed = mixed
        self.told = own.clone()
        """The own ones, as they were at the last publication."""
        self._unseen: float | None = None
        """Own publications that those of others were made without."""

    def adopt(self, merged: torch.Tensor) -> None:
        """Begin with the swarm's: after a snapshot, or a restart."""
        self.own.copy_(self._possible(merged))
        self.told.copy_(self.own)

    @property
    def as_told(self) -> bool:
        """Whether the own ones are as they were last published, or adopted."""
        return torch.equal(self.own, self.told)

    def heard(self, unseen: float) -> None:
        """An update of another came, made without so many of mine."""
        before = unseen if self._unseen is None else self._unseen
        self._unseen = before + SMOOTHED * (unseen - before)

    def update(self, merged: torch.Tensor, place: slice, members: int) -> torch.Tensor:
        """What is to be published in this place of them; a new buffer."""
        own, merged = self.own[place], merged[place]
        if members < 2:
            return own - merged
        change = own - self.told[place]
        change.add_(own - merged, alpha=min(PULL, LOOP / (1.0 + (self._unseen or 0.0))))
        return change if self._mixed else change.div_(members)

    def published(self, place: slice) -> None:
        """What was asked for in this place is in the weights."""
        self.told[place] = self.own[place]

    def follow(self, place: slice, merged: torch.Tensor) -> None:
        """Nothing own is known there: it is as if it were what the swarm has."""
        self.own[place] = merged[place]
        self.told[place] = merged[place]

    def shown(self, merged: torch.Tensor) -> torch.Tensor:
        """What whoever evaluates or saves the model sees: the swarm's, which are also the own ones
        of a node that is alone, up to what it has not published yet."""
        return self.own if self.alone else self._possible(merged)

    def mend(self, merged: torch.Tensor) -> None:
        """A batch that was no numbers must not stay in them for good."""
        self.own.copy_(torch.where(self.own.isfinite(), self.own, self._possible(merged)))
        torch.nan_to_num_(self.own)

    def _possible(self, merged: torch.Tensor) -> torch.Tensor:
        """A variance below zero, which changes that arrive in any order can make for a moment, is
        the own one for who looks; in the weights it stays what the clock says."""
        return torch.where(self._variances & (merged < 0.0), self.own, merged)
