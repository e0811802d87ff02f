"""003's Proposition 1 on a problem where all that is in it can be computed: sparse least squares.

f(w) is the mean over edges e of (x_e w − y_e)² / 2, x_e of two numbers and length 1. One gradient
is taken at a time, applied so many steps late at the rate of equation 8; steps are counted until f
is at most ε.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

SIZE, EDGES, THETA = 12, 72, 0.9
STEPS_MAX = 4_000_000
LOOK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRun:
    """One lag τ."""

    lag: int
    omega: int
    """Ω: numbers in an edge."""
    delta: float
    """Δ: the most edges that one number is in, of all."""
    rho: float
    """ρ: the most edges that one edge meets, of all."""
    rate: float
    """γ, by equation 8."""
    bound: float
    """k, by equation 9."""
    steps: int | None
    """Until f − f* was at most ε; None: not in so many."""


def run(lag: int, *, epsilon: float, seed: int) -> SparseRun:
    rng = np.random.default_rng(seed)
    pairs = [(k, (k + 1) % SIZE) for k in range(SIZE)]
    pairs += [tuple(rng.choice(SIZE, 2, replace=False)) for _ in range(EDGES - SIZE)]
    places = np.array(pairs)
    angles = rng.uniform(0.2, math.pi / 2 - 0.2, EDGES)
    values = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rows = np.zeros((EDGES, SIZE))
    for k in range(EDGES):
        rows[k, places[k]] += values[k]
    best = rng.normal(size=SIZE)
    best /= np.linalg.norm(best)
    wanted = rows @ best  # f* is 0, and D0 is 1
    curvature = np.linalg.eigvalsh(rows.T @ rows / EDGES)
    c, smooth = float(curvature[0]), float(curvature[-1])
    steepest = float(np.max(np.sum(rows**2, axis=1))) ** 2  # M²: |x| (|x| D0), squared
    omega = 2
    member = np.abs(rows) > 0
    delta = float(member.sum(axis=0).max()) / EDGES
    rho = float((member.astype(int) @ member.T.astype(int) > 0).sum(axis=1).max()) / EDGES
    lateness = omega * math.sqrt(delta) * lag**2
    rate = THETA * epsilon * c / (2 * smooth * steepest * (1 + 6 * rho * lag + 4 * lateness))
    bound = (
        2 * smooth * steepest * (1 + 6 * rho * lag + 6 * lateness)
        * math.log(smooth / epsilon) / (c**2 * THETA * epsilon)
    )  # fmt: skip
    steps = _steps(places, values, wanted, rows, rate, lag, epsilon, rng)
    return SparseRun(
        lag=lag, omega=omega, delta=delta, rho=rho, rate=rate, bound=bound, steps=steps
    )


def _steps(
    places: np.ndarray,
    values: np.ndarray,
    wanted: np.ndarray,
    rows: np.ndarray,
    rate: float,
    lag: int,
    epsilon: float,
    rng: np.random.Generator,
) -> int | None:
    weights = [0.0] * rows.shape[1]
    waiting: deque[tuple[int, int, float, float]] = deque()
    edges = [
        (int(a), int(b), float(x), float(y), float(w))
        for (a, b), (x, y), w in zip(places, values, wanted, strict=True)
    ]
    for start in range(0, STEPS_MAX, LOOK):
        off = rows @ np.array(weights) - wanted
        if float(off @ off) / (2 * len(edges)) <= epsilon:
            return start
        for chosen in rng.integers(len(edges), size=LOOK).tolist():
            a, b, x, y, w = edges[chosen]
            error = rate * (x * weights[a] + y * weights[b] - w)
            waiting.append((a, b, error * x, error * y))
            if len(waiting) > lag:
                a, b, first, second = waiting.popleft()
                weights[a] -= first
                weights[b] -= second
    return None
