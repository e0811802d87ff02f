"""What an update does to weights, as functions that change a flat tensor in place.

Replicas with the same set of updates agree, in whatever order they came, only if what is applied is
a function of the *message alone* (F9). That is true of `sum_rule` and of nothing else here: a rule
that looks at the receiver's clock or weights may learn better, and gives up that `weights == w0 +
sum of the updates in clock`. Each says so, and `RULES` says it to programs.

Fixed-point weights (int64, the exact form) can be summed and nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from murmurate.errors import LocalProtocolError

Policy = Callable[[int], float]
"""Staleness, in updates, to the factor an update is multiplied with."""
MEAN_SQUARE_DECAY, MEAN_SQUARE_EPS = 0.95, 1e-7
"""Of the adaptive DC-ASGD, as its authors' code (Multiverso) has them."""


class Rule(NamedTuple):
    commutative: bool
    sentence: str


RULES = {
    "sum": Rule(True, "add it: the same updates give the same weights in any order"),
    "scaled": Rule(False, "add it times a factor of its staleness here: replicas drift apart"),
    "compensated": Rule(False, "correct it by the weights here, then add: replicas drift apart"),
    "average": Rule(False, "mix the weights themselves: replicas tend to each other, never equal"),
}


def sum_rule(w: torch.Tensor, u: torch.Tensor) -> None:
    """w += u. Replicas agree: int64 to the bit, fp32 to rounding (7.7e-7 after 4,000 updates)."""
    _check(w, u)
    w.add_(u)


def scaled(w: torch.Tensor, u: torch.Tensor, staleness: int, policy: Policy) -> None:
    """w += u * policy(staleness). Replicas do NOT agree: one update is of another age at each.

    The clock still takes the dot, so it says «seen», and no longer «wholly in these weights».
    """
    _check(w, u, floating=True)
    if staleness < 0:
        raise LocalProtocolError(f"staleness {staleness}: a distance is not negative")
    factor = policy(staleness)
    if factor != 0.0:
        w.add_(u, alpha=factor)


def inverse(staleness: int) -> float:
    """1/(1+s): n peers at staleness n-1 together make steps as large as one peer alone."""
    return 1.0 / (1.0 + staleness)


def polynomial(exponent: float) -> Policy:
    """(1+s)^-a: a=0 the plain sum, 1 the inverse; 0.5 in FedAsync."""
    if not (math.isfinite(exponent) and exponent >= 0.0):
        raise LocalProtocolError(f"exponent {exponent}: older updates would count more")
    return lambda staleness: (1.0 + staleness) ** -exponent


def bound(limit: int) -> Policy:
    """1 up to the limit, then 0: the update is lost here, and may not be elsewhere."""
    if limit < 0:
        raise LocalProtocolError(f"bound {limit}: nothing would ever be applied")
    return lambda staleness: 1.0 if staleness <= limit else 0.0


def compensated(
    w: torch.Tensor,
    u: torch.Tensor,
    w_bak: torch.Tensor,
    *,
    lr: float,
    lam: float,
    mean_square: torch.Tensor | None = None,
) -> None:
    """DC-ASGD: to first order, the step `u` would be had it been computed on `w`.

    With u = -lr*g:  w -= lr*(g + lam*g*g*(w - w_bak)), that is w += u - (lam/lr)*u*u*(w - w_bak).
    `w_bak`: the weights `u` was computed on, a COPY. A reference to the live weights makes the term
    zero without a word, as in every committed version of paper 002's code (F5): it is refused.

    Constant form: 0.04 is usual for `lam`; 002 says 2 and 5. Adaptive form: pass `mean_square`, one
    tensor for each origin, zeros at first, changed here: MS = 0.95 MS + 0.05 g*g and then
    lam/sqrt(MS + 1e-7) for lam; there 2 is usual. `u` must be one plain step: of several steps, or
    with momentum in it, -u/lr is no gradient (with momentum, compensate first).

    Replicas do NOT agree: the correction depends on the receiver's weights.
    """
    _check(w, u, floating=True)
    _check(w, w_bak, floating=True)
    if not (math.isfinite(lr) and lr > 0.0 and math.isfinite(lam) and lam >= 0.0):
        raise LocalProtocolError(f"lr {lr} must be positive and lam {lam} not negative")
    if w.untyped_storage().data_ptr() == w_bak.untyped_storage().data_ptr():
        raise LocalProtocolError("w_bak is the live weights and not a copy: it would do nothing")
    g = u / -lr
    curvature = lam * g * g
    if mean_square is not None:
        _check(w, mean_square, floating=True)
        mean_square.mul_(MEAN_SQUARE_DECAY).addcmul_(g, g, value=1.0 - MEAN_SQUARE_DECAY)
        curvature /= torch.sqrt(mean_square + MEAN_SQUARE_EPS)
    w.add_(u - lr * curvature * (w - w_bak))


def average(w: torch.Tensor, others: Sequence[torch.Tensor], shares: Sequence[float]) -> None:
    """w = the mean of w and the others by `shares` (own first; samples, say; any positive numbers).

    Replicas do NOT agree to the bit. The mean of all is kept only where both sides of an exchange
    mix with the same numbers at the same time; where messages are lost or links go one way, use
    `averaging.Averager`, which keeps it always.
    """
    if len(shares) != len(others) + 1 or not all(math.isfinite(s) and s > 0.0 for s in shares):
        raise LocalProtocolError(f"{len(shares)} shares for 1 + {len(others)}, or one not positive")
    for other in (w, *others):
        _check(w, other, floating=True)
    total = math.fsum(shares)
    mixed = w * (shares[0] / total)
    for other, share in zip(others, shares[1:], strict=True):
        mixed.add_(other, alpha=share / total)
    w.copy_(mixed)


def _check(w: torch.Tensor, other: torch.Tensor, *, floating: bool = False) -> None:
    """Same flat shape, same dtype: torch would broadcast, or cut a fraction off, without a word."""
    if w.dim() != 1 or w.shape != other.shape or w.dtype != other.dtype:
        raise LocalProtocolError(
            f"{tuple(w.shape)} {w.dtype} and {tuple(other.shape)} {other.dtype} do not go together"
        )
    if floating and not w.is_floating_point():
        raise LocalProtocolError("this rule needs floating point: fixed point is only summed")
