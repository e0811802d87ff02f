"""The judge itself: it must see what it is there to see."""

from __future__ import annotations

import random

from tests.chaos.audit import Seen
from tests.chaos.figures import quantile, slope

LIFE = ("n0", 1)


def test_an_update_counts_once_in_any_order() -> None:
    rng = random.Random(0)
    order = list(range(1, 101))
    rng.shuffle(order)
    seen = Seen()
    assert all(seen.add(LIFE, seq) for seq in order)
    assert seen.upto() == seen.count() == {"n0/1": 100}
    assert not any(seen.add(LIFE, seq) for seq in order)
    assert seen.add(("n0", 2), 1), "another life"


def test_what_a_snapshot_brings_is_there() -> None:
    seen = Seen()
    seen.add(LIFE, 1)
    seen.replace([("n1", 1, 1, 5), ("n1", 1, 8, 9)])
    assert seen.upto() == {"n1/1": 5}
    assert seen.count() == {"n1/1": 7}
    assert not seen.add(("n1", 1), 9)
    assert seen.add(("n1", 1), 6)
    assert seen.add(("n1", 1), 7)
    assert seen.upto() == {"n1/1": 9}
    assert seen.add(LIFE, 1), "the snapshot had not got it"


def test_quantiles_and_slopes() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(map(float, range(1, 101)), 0.99) == 99.0
    assert abs(slope([(float(x), 3.0 * x + 1.0) for x in range(10)]) - 3.0) < 1e-9
