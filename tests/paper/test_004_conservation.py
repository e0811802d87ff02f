"""Paper 004, section 2, for a hub whose nodes wait for the reply (as paper 002's do): staleness is
conserved.

Every node holds one snapshot at any time, so every update makes n - 1 snapshots one older, and the
one it answers is new again: over a run, the staleness of all gradients plus what the snapshots
still out have missed is (n - 1) times the updates. No distribution, no limit, no tolerance.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from murmurate.core.theory import request_reply_expected
from murmurate.study.reproduce.hub_swarm import outstanding, request_reply

SPEEDS = {
    "equal": [1.0] * 6,
    "one slow": [1.0, 1.0, 1.0, 10.0],
    "wide": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 30.0],
}


def times(rng: random.Random, means_s: list[float], kind: str) -> Callable[[int], float]:
    if kind == "exponential":
        return lambda node: rng.expovariate(1 / means_s[node])
    if kind == "heavy tail":
        return lambda node: means_s[node] * rng.paretovariate(1.1)
    return lambda node: means_s[node]  # lockstep: ties, the worst case for a law of averages


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["exponential", "heavy tail", "lockstep"])
@pytest.mark.parametrize("speeds", SPEEDS)
def test_section_2_staleness_is_conserved(speeds: str, kind: str, seed: int) -> None:
    """«tau(t)» of section 2 for any X_i(j), also not identically distributed, and any K ≤ n."""
    means_s = SPEEDS[speeds]
    n = len(means_s)
    draw = times(random.Random(seed), means_s, kind)
    for k in (1, 2, n):
        books = request_reply(draw, n=n, k=k, gradients=701)
        assert books.updates == 701 // k
        assert sum(books.staleness) + books.residual == (n - 1) * books.updates


@pytest.mark.parametrize(
    ("means_s", "k"), [([1.0, 1.0, 1.0, 10.0], 1), ([1.0] * 10, 5), (SPEEDS["wide"], 1)]
)
def test_corollary_3_for_request_reply_is_n_minus_1(means_s: list[float], k: int) -> None:
    """Corollary 3's «staleness scales linearly with the number of workers» as an equality: the mean
    is (n - 1) / K, whatever the speeds."""
    n = len(means_s)
    draw = times(random.Random(7), means_s, "exponential")
    books = request_reply(draw, n=n, k=k, gradients=8000)
    mean = sum(books.staleness) / sum(books.gradients)
    assert mean == pytest.approx(request_reply_expected(n, k), rel=0.005)


def test_section_2_speeds_only_decide_who_bears_it() -> None:
    """Section 2 with T_c = 1 and one X_i ten times the others: a node meets what the others send in
    its cycle X + T_c, so the slow one has 11 (3 / 2) = 16.5 and each other 2 (2 / 2 + 1 / 11) =
    2.18; the mean is still 3."""
    compute = times(random.Random(7), SPEEDS["one slow"], "exponential")
    books = request_reply(lambda node: 1.0 + compute(node), n=4, k=1, gradients=20_000)
    each = [s / g for s, g in zip(books.staleness, books.gradients, strict=True)]
    assert each == pytest.approx([2.18, 2.18, 2.18, 16.5], rel=0.03)
    assert sum(books.staleness) + books.residual == 60_000


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reluctance", [0.5, 0.52, 0.7], ids=["few out", "some out", "many out"])
def test_section_2_staleness_is_counted_by_what_is_out(seed: int, reluctance: float) -> None:
    """Section 2 with any protocol (K = 1): nodes may hold several snapshots, push them in any order
    or never. Each application makes every other snapshot that is out one older, so the staleness of
    all (and of those never pushed, so far) is the number of others out, summed over applications.
    """
    rng = random.Random(seed)

    def step(_: int, out: int) -> int:
        return -1 if out == 0 or rng.random() < reluctance else rng.randrange(out)

    staleness, residual, others = outstanding(step, count=2000)
    assert staleness + residual == others
    assert staleness > 100
