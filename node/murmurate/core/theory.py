"""How stale updates should be: the laws that say what to expect before a run.

Staleness is counted in updates; what was seen is `core.staleness`. With n nodes, mean compute time
mu, rates of one node's updates lambda:

    hub, pipelined        K tau = n (mu + Tc) / mu + H(Tc) - Tc / mu     `exact_expected`
    the same, as printed  K tau = n (mu + Tc) / mu          (004, eq. 5) `paper_expected`
    hub, request-reply    K tau = n - 1                                  `request_reply_expected`
    gossip                  tau = (n - 1) lambda (mu + L)                `gossip_expected`

Pipelined means that a node never waits: it starts on the newest weights that have reached it while
its last gradient is still on the wire. Then the n - 1 others contribute (mu + Tc) / mu each, the
own gradient just sent always one more, and the older own ones still on their way H(Tc) more: the
expected number of renewals (finished computations) in a time Tc after one. Paper 004 has Tc / mu in
its place, which is right for exponential compute times only; in its own Fig. 1 (shifted
exponential, Tc <= shift, so H = 0) the printed formula is 0.4 / K too high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from murmurate.errors import ConfigError


def paper_expected(n: int, k: int, compute_s: float, transfer_s: float) -> float:
    """Paper 004, Theorem 2 (eq. 5), as printed: (n / K) (Tc + mu) / mu.

    Not exact (see the top of this file); kept to be shown beside `exact_expected`.
    `transfer_s` is there and back together, as in the paper.
    """
    _check_hub(n, k, compute_s, transfer_s)
    return n / k * (transfer_s + compute_s) / compute_s


def exact_expected(n: int, k: int, compute_s: float, transfer_s: float, renewals: float) -> float:
    """Mean staleness at a pipelined hub; `renewals` is H(transfer_s), from a function below.

    Staleness of a gradient is the number of hub updates before the one it enters, minus the number
    in the weights it was computed on. Exact in the limit of long runs for independent compute times
    of any one distribution that is not lattice (nodes in lockstep keep their phases for ever); K
    only divides, because the place of a gradient among the K is then uniform.
    At `transfer_s` = 0 it is the limit from above, n / K: the own last gradient is not yet seen. A
    node that waits for its own gradient to count is request-reply, (n - 1) / K.
    """
    _check_hub(n, k, compute_s, transfer_s)
    if renewals < 0:
        raise ConfigError(f"staleness renewals: {renewals}, expected 0 or more")
    return (n * (compute_s + transfer_s) / compute_s + renewals - transfer_s / compute_s) / k


def request_reply_expected(n: int, k: int) -> float:
    """Mean staleness at a hub whose nodes wait for the reply to each push: (n - 1) / K.

    For any mix of speeds and delays: over a whole run the staleness of all gradients and what the
    weights still out have missed add up to (n - 1) times the updates done, as integers.
    """
    _check_hub(n, k, 1.0, 0.0)
    return (n - 1) / k


def gossip_expected(n: int, updates_per_s: float, compute_s: float, delay_s: float) -> float:
    """Mean staleness of 000 over all applications, own included: (n - 1) lambda (mu + L).

    `updates_per_s` is one node's rate (1 / compute_s when it is never idle), `delay_s` one way.
    Own updates must be counted too: remote ones alone are staler, by a different amount when
    arrivals are folded at once than when they are folded between computations; over all n
    applications both come out the same. For unequal nodes see `gossip_expected_unequal`.
    Nodes idle independently of each other; where all wait for one generator of batches it is low by
    (part of the time busy) - 1/2, because batches then start at an even pace (0.4 of 55 in 000).
    """
    if n < 1:
        raise ConfigError(f"staleness n: {n} nodes, expected 1 or more")
    return gossip_expected_unequal([updates_per_s] * n, [compute_s] * n, delay_s)


def gossip_expected_unequal(
    updates_per_s: Sequence[float], compute_s: Sequence[float], delay_s: float
) -> float:
    """The same for nodes i with rates lambda_i and compute times mu_i, Lambda = sum of the rates:

        sum_i lambda_i (Lambda - lambda_i) (mu_i + L) / Lambda

    Folded at home, an update of i meets what the others made while it was computed. At j it meets
    also what they made while it was on its way, and what j made that could not have reached i when
    it was started: L (Lambda - lambda_i + lambda_j). The lambda_j of all receivers add up to just
    what the own application, which has no way to go, lacks. With nobody idle and L = 0 the mean is
    n - 1 whatever the speeds. Derived for arrivals folded at once; folded between computations,
    the simulation gave the same within 0.3 %.
    """
    if len(updates_per_s) != len(compute_s) or not updates_per_s:
        raise ConfigError("staleness: one rate and one compute time for each node, at least one")
    if min(updates_per_s) < 0 or min(compute_s) < 0 or delay_s < 0:
        raise ConfigError("staleness: rates, compute times and delays must not be negative")
    total = math.fsum(updates_per_s)
    if total == 0:
        return 0.0
    return math.fsum(
        rate / total * (total - rate) * (each_s + delay_s)
        for rate, each_s in zip(updates_per_s, compute_s, strict=True)
    )


def folding_rates(compute_s: Sequence[float], fold_s: Sequence[float]) -> list[float]:
    """Updates in a second of each node that computes one in `compute_s` and folds in every update
    of all the others, `fold_s` each: what is left of its time is for computing,

        lambda_i compute_i + fold_i (Lambda - lambda_i) = 1

    so lambda_i = (1 - fold_i Lambda) / (compute_i - fold_i), and Lambda is their sum. Folding does
    not make updates staler: a node that is slowed by it sends fewer, too. ConfigError: some node
    would fold only, and never compute.
    """
    if len(compute_s) != len(fold_s) or not compute_s:
        raise ConfigError("staleness: one compute time and one cost of folding for each node")
    if min(compute_s) <= 0 or min(fold_s) < 0:
        raise ConfigError("staleness: compute times must be above 0, folding costs not negative")
    if not any(fold_s):
        return [1 / each_s for each_s in compute_s]
    pairs = list(zip(compute_s, fold_s, strict=True))
    if any(fold >= compute for compute, fold in pairs):
        raise ConfigError("staleness: folding an update must cost less than computing one")
    total = math.fsum(1 / (c - f) for c, f in pairs) / (
        1 + math.fsum(f / (c - f) for c, f in pairs)
    )
    rates = [(1 - fold * total) / (compute - fold) for compute, fold in pairs]
    if min(rates) <= 0:
        raise ConfigError("staleness: a node would have to fold more than it has time for")
    return rates


def overlapping(updates_per_s: Sequence[float], compute_s: Sequence[float]) -> float:
    """What is added to that where a node computes several updates at a time, as one does that
    publishes its model in parts (`core.publishing.turns`): it meets its own others, too. With rates
    lambda_i and times mu_i, lambda_i mu_i are under way at node i:

        sum_i lambda_i / Lambda  max(0, lambda_i mu_i - 1)

    0 for a node that begins one update after another.
    """
    total = math.fsum(updates_per_s)
    if total == 0:
        return 0.0
    pairs = zip(updates_per_s, compute_s, strict=True)
    return math.fsum(rate / total * max(0.0, rate * each_s - 1) for rate, each_s in pairs)


# -- renewals: H(span), how many computations end within a span that starts as one ends -----------


def renewals_exponential(span_s: float, mean_s: float) -> float:
    """H for exponential compute times: span / mean, the one case where paper 004 is exact."""
    _check_span(span_s, mean_s)
    return span_s / mean_s


def renewals_fixed(span_s: float, each_s: float) -> float:
    """H for compute times that are always the same: the whole ones that fit.

    One that ends exactly with the span counts (up to rounding: 0.3 s holds three times 0.1 s).
    """
    _check_span(span_s, each_s)
    return float(math.floor(span_s / each_s * (1 + 1e-12)))


def renewals_shifted_exponential(span_s: float, shift_s: float, rate_per_s: float) -> float:
    """H for compute times shift + Exp(rate), the distribution of 004 section 4.

    The k-th computation ends at k shift + Erlang(k), so H(t) = sum over k of the probability that
    a Poisson number of mean rate (t - k shift) is k or more. (The «CDF» printed in 004 is the
    density; the mean is shift + 1 / rate.)
    """
    if shift_s < 0:
        raise ConfigError(f"staleness shift: {shift_s} s, expected 0 or more")
    if rate_per_s <= 0:
        raise ConfigError(f"staleness rate: {rate_per_s} per s, expected more than 0")
    _check_span(span_s, shift_s + 1 / rate_per_s)
    if shift_s == 0:
        return span_s * rate_per_s
    total = 0.0
    k = 1
    while k * shift_s < span_s:
        term = _poisson_reaches(k, rate_per_s * (span_s - k * shift_s))
        total += term
        if term < 1e-18:  # the terms fall with k: the rest would not change the sum
            break
        k += 1
    return total


GRID_STEPS_MIN, GRID_STEPS_MAX = 512, 2048
MEANS_MAX = 256
"""Beyond this many mean compute times the grid would be too coarse, and the limit is reached."""


def renewals_measured(span_s: float, samples_s: Sequence[float]) -> float:
    """H for the distribution of measured compute times, each as likely as the others.

    The renewal equation is solved on a grid over the span; a sample is shared by its two grid
    neighbours so that its mean stays, and a computation that ends with the span counts half. The
    error is below 0.001 for smooth distributions, up to 0.01 for a few distinct values. Beyond 256
    mean times the renewal theorem's limit is used: span / mean + (cv^2 - 1) / 2.
    """
    if not samples_s or min(samples_s) < 0:
        raise ConfigError("staleness samples: at least one compute time, none negative")
    count = len(samples_s)
    mean_s = math.fsum(samples_s) / count
    _check_span(span_s, mean_s)
    if span_s == 0:
        return 0.0
    if span_s > MEANS_MAX * mean_s:
        variance = math.fsum((x - mean_s) ** 2 for x in samples_s) / count
        return span_s / mean_s + (variance / mean_s**2 - 1) / 2
    steps = min(max(GRID_STEPS_MIN, math.ceil(64 * span_s / mean_s)), GRID_STEPS_MAX)
    mass = [0.0] * (steps + 2)
    for sample in samples_s:
        place = sample / span_s * steps
        if place < steps + 1:
            low = int(place)
            mass[low] += (low + 1 - place) / count
            mass[low + 1] += (place - low) / count
    weights = [(j, p) for j, p in enumerate(mass) if p and j]
    # ends[i]: expected computations that end at grid point i, the one at 0 included
    ends = [1 / (1 - mass[0])]
    for i in range(1, steps + 1):
        total = 0.0
        for j, p in weights:
            if j > i:
                break
            total += p * ends[i - j]
        ends.append(total * ends[0])
    return math.fsum(ends) - 1 - ends[steps] / 2


def _poisson_reaches(k: int, mean: float) -> float:
    """P(Poisson(mean) >= k) for k >= 1, by the series of the smaller side.

    Small results must be small to the last digit, not the noise of 1 - (almost 1): the sum above
    stops by them.
    """
    if mean <= 0:
        return 0.0
    if mean < k:
        term = math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
        total, j = term, k
        while term > total * 1e-17:
            j += 1
            term *= mean / j
            total += term
        return total
    j = k - 1
    term = math.exp(j * math.log(mean) - mean - math.lgamma(k))
    total = term
    while j and term > total * 1e-17:
        term *= j / mean
        j -= 1
        total += term
    return max(0.0, 1 - total)


def _check_hub(n: int, k: int, compute_s: float, transfer_s: float) -> None:
    if not 1 <= k <= n:
        raise ConfigError(f"staleness k: {k} of n = {n} nodes, expected 1 to n")
    _check_span(transfer_s, compute_s)


def _check_span(span_s: float, mean_s: float) -> None:
    if not (mean_s > 0 and math.isfinite(mean_s)):
        raise ConfigError(f"staleness compute time: {mean_s} s, expected more than 0")
    if not (span_s >= 0 and math.isfinite(span_s)):
        raise ConfigError(f"staleness transfer time: {span_s} s, expected 0 or more")
