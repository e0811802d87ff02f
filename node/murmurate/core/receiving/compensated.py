"""Rule `compensated`: an update is corrected for how far the weights have moved since it was made.

DC-ASGD (Zheng et al.) with its adaptive λ. A gradient was taken at the weights of its context, w_c,
and is applied at w; the square of a gradient stands for the curvature between the two:

    g' = g + λ_t g ⊙ g ⊙ (w - w_c),    λ_t = λ / √(MS + ε),    MS ← 0.95 MS + 0.05 g ⊙ g

An update is u = -rate · g, and in the adaptive form the rate cancels, so the receiver need not know
it:

    u' = u - λ u ⊙ u / √(MS_u + ε) ⊙ (w - w_c),    MS_u as above, of u, for each origin

w - w_c is the sum of what was applied here and is not in the update's context; it is put together
from the last updates, which are kept for it (a backup that is a real copy: the code of paper 002
kept a reference, and compensated nothing). Where some of them are kept no longer, or the update
comes in parts of a model, it is applied as it is. What its origin had and is not here yet is
unknown, and taken for nothing.

What it gives up: replicas are no longer equal (`core.receiving.rule`), memory for the last updates,
and one pass over the weights for each update of the staleness. 002 uses 2 and 5 as a *constant* λ,
50 to 125 times the usual; here 2 is the adaptive one's.
"""

from __future__ import annotations

from collections import deque

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Push

KEPT_MAX = 256
BYTES_MAX = 256 << 20
"""Of the last updates; models beyond some MB are compensated for the last few of them only."""
DECAY = 0.95
EPSILON = 1e-14
"""Of squares of updates, which are squares of gradients times a rate's."""


class CompensatedForDelay:
    """Delay compensation with a mean square for each origin."""

    def __init__(self, strength: float) -> None:
        self._strength = strength
        self._kept: deque[tuple[tuple[Dot, ...], torch.Tensor]] = deque(maxlen=KEPT_MAX)
        self._bytes = 0
        self._generation = 0
        self._squares: dict[str, torch.Tensor] = {}
        self.corrected = 0
        self.plain = 0
        """Updates that were applied as they are, for lack of what was between."""

    def made(self, push: Push) -> None:
        self._keep(push.dots, push.payload)

    def fold(
        self, weights: torch.Tensor, push: Push, staleness: tuple[int, ...], clock: Clock
    ) -> str:
        update = push.payload.to(weights.dtype)
        between = self._between(push, weights, clock)
        origin = push.stamps[-1].dot.origin
        square = self._squares.get(origin)
        if square is None or square.shape != update.shape:
            square = self._squares[origin] = update * update
        else:
            square.mul_(DECAY).addcmul_(update, update, value=1.0 - DECAY)
        if between is None:
            self.plain += 1
        else:
            self.corrected += 1
            slope = (update * update).div_((square + EPSILON).sqrt_())
            update = update.addcmul(slope, between, value=-self._strength)
        weights.add_(update)
        self._keep(push.dots, update)
        return ""

    def _between(self, push: Push, weights: torch.Tensor, clock: Clock) -> torch.Tensor | None:
        """How far the weights have moved from those of the context; None: not known here."""
        if clock.generation != self._generation:  # what is kept has ids of another one
            self._generation = clock.generation
            self._kept.clear()
            self._bytes = 0
        context = push.stamps[0].context
        unseen = sum(each.last - each.first + 1 for each in clock.missing(context))
        unseen -= len(push.stamps)
        between = torch.zeros_like(weights)
        for dots, applied in self._kept:
            mine = sum(dot not in context for dot in dots)
            if mine:
                between.add_(applied)
                unseen -= mine
        return between if unseen == 0 else None

    def _keep(self, dots: tuple[Dot, ...], applied: torch.Tensor) -> None:
        nbytes = applied.numel() * applied.element_size()
        while self._kept and (self._bytes + nbytes > BYTES_MAX or len(self._kept) == KEPT_MAX):
            _, old = self._kept.popleft()
            self._bytes -= old.numel() * old.element_size()
        self._kept.append((dots, applied.clone()))
        self._bytes += nbytes
