"""Paper 001, eq. 2, on three coordinates: asynchronous blocks of a gradient step, with a delay."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

HESSIAN: Array = 0.9 * np.ones((3, 3)) + 0.1 * np.eye(3)
"""f(x) = x'Hx / 2: eigenvalues 2.8, 0.1, 0.1; minimum at 0. Each coordinate leans on the others
(1.8) more than on itself (1)."""


def relative_error(beta: float, delay: int, iterations: int = 400) -> float:
    """Eq. 2 with three blocks of one coordinate, T(x) = x - beta H x: every block is updated at
    every iteration, from its own newest value and the others' of `delay` iterations ago.

    It meets both conditions of section 5.1: no block ever rests, and delays follow.
    """
    start = np.array([1.0, -2.0, 3.0])
    history = [start] * (delay + 1)
    own = 1 - beta * np.diag(HESSIAN)
    others = -beta * (HESSIAN - np.diag(np.diag(HESSIAN)))
    for _ in range(iterations):
        history.append(own * history[-1] + others @ history[-1 - delay])
    return float(np.linalg.norm(history[-1]) / np.linalg.norm(start))


def contraction(beta: float) -> float:
    """The contraction constant of T in the l2 norm."""
    return float(np.linalg.norm(np.eye(3) - beta * HESSIAN, 2))
