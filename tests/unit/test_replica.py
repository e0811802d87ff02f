"""`core/replica.py`: weights and clock change together, or not at all."""

from __future__ import annotations

import random

import pytest
import torch
from tests.unit.replica_audit import audit

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Duplicate, Fresh, Overlap, Replica
from murmurate.errors import LocalProtocolError

A1, A2, A3 = (Dot("a", 1, seq) for seq in (1, 2, 3))
B1, B2 = (Dot("b", 1, seq) for seq in (1, 2))


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def stamps(*dots: Dot, context: tuple[Dot, ...] = ()) -> tuple[Stamp, ...]:
    return tuple(Stamp(dot, Clock(context)) for dot in dots)


# -- fold ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dots", "outcome"),
    [
        ((A3,), Fresh((2,))),
        ((B1, B2), Fresh((2, 3))),
        ((A1,), Duplicate(1)),
        ((A2, A1), Duplicate(2)),
        ((A1, A3), Overlap((A3,))),
        ((B2, A2, B1), Overlap((B2, B1))),
    ],
)
def test_fold_says_what_it_did(dots: tuple[Dot, ...], outcome: Fresh | Duplicate | Overlap) -> None:
    weights = vector(1.0, 2.0)
    view = weights[1:]  # the model's parameters are views of this buffer
    replica = Replica(weights, Clock([A1, A2]))
    assert replica.fold(stamps(*dots), vector(10.0, 20.0)) == outcome
    if isinstance(outcome, Fresh):
        assert weights.tolist() == [11.0, 22.0]
        assert view.tolist() == [22.0]
        assert replica.clock == Clock([A1, A2, *dots])
    else:
        assert weights.tolist() == [1.0, 2.0]
        assert replica.clock == Clock([A1, A2])


@pytest.mark.parametrize(
    ("dots", "verdict"),
    [
        ((A3, B1), None),
        ((A1, A2), Duplicate(2)),
        ((A1, B1), Overlap((B1,))),
    ],
)
def test_judge_changes_nothing(dots: tuple[Dot, ...], verdict: Duplicate | Overlap | None) -> None:
    replica = Replica(vector(0.0), Clock([A1, A2]))
    assert replica.judge(dots) == verdict
    assert replica.clock == Clock([A1, A2])


def test_staleness_is_counted_before_the_update_is_in() -> None:
    """Fig. 1 of 000: both start from nothing, each then finds one update that it did not know."""
    replica = Replica(vector(0.0))
    assert replica.fold(stamps(A1), vector(1.0)) == Fresh((0,))
    assert replica.fold(stamps(B1), vector(1.0)) == Fresh((1,))
    # Computed on something that is not here yet: that counts as well.
    assert replica.fold(stamps(A3, context=(A1, A2)), vector(1.0)) == Fresh((2,))


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_counts_as_its_parts_one_by_one(seed: int) -> None:
    """Every update keeps its own context: the sum's figures are those of plain sets."""
    rng = random.Random(seed)
    universe = [Dot(origin, 1, seq) for origin in "abcd" for seq in range(1, 12)]
    rng.shuffle(universe)
    held, wanted = universe[:15], universe[15:35]
    contexts = [frozenset(rng.sample(universe, rng.randrange(30))) - {dot} for dot in wanted]
    parts = tuple(Stamp(dot, Clock(context)) for dot, context in zip(wanted, contexts, strict=True))
    payloads = torch.tensor([[rng.randrange(100), rng.randrange(100)] for _ in parts])

    true, twin = [], set(held)
    for dot, context in zip(wanted, contexts, strict=True):
        true.append(len(context ^ twin))
        twin.add(dot)
    one_by_one = Replica(torch.zeros(2, dtype=torch.int64), Clock(held))
    for part, payload, staleness in zip(parts, payloads, true, strict=True):
        assert one_by_one.fold((part,), payload) == Fresh((staleness,))
    at_once = Replica(torch.zeros(2, dtype=torch.int64), Clock(held))
    assert at_once.fold(parts, payloads.sum(0)) == Fresh(tuple(true))

    assert at_once.clock == one_by_one.clock == Clock(twin)
    assert torch.equal(at_once.weights, one_by_one.weights)


# -- w == w0 + sum of the updates in the clock ---------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_audit_after_anything_that_may_arrive(dtype: torch.dtype) -> None:
    """Singles, sums, repeats and overlaps in a random order: the promise holds after each."""
    rng = random.Random(7)
    dots = [Dot(origin, 1, seq) for origin in "abc" for seq in range(1, 30)]
    updates = {
        dot: torch.tensor([rng.randrange(-500, 500) for _ in range(5)], dtype=dtype) for dot in dots
    }
    w0 = torch.tensor([1, 2, 3, 4, 5], dtype=dtype)
    replica = Replica(w0.clone())
    twin: set[Dot] = set()
    seen = set()
    for _ in range(400):
        chosen = rng.sample(dots, rng.choice([1, 1, 1, 2, 3]))
        payload = torch.stack([updates[dot] for dot in chosen]).sum(0)
        outcome = replica.fold(stamps(*chosen), payload)
        if isinstance(outcome, Fresh):
            assert twin.isdisjoint(chosen)
            twin |= set(chosen)
        assert audit(replica, w0, updates) == 0.0  # small whole numbers are exact in fp32, too
        assert set(replica.clock) == twin
        seen.add(type(outcome))
    assert seen == {Fresh, Duplicate, Overlap}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_audit_notices(dtype: torch.dtype) -> None:
    w0 = torch.tensor([1, 2], dtype=dtype)
    updates = {A1: torch.tensor([10, 0], dtype=dtype), A2: torch.tensor([0, 7], dtype=dtype)}
    replica = Replica(w0.clone())
    for dot, payload in updates.items():
        replica.fold(stamps(dot), payload)
    assert audit(replica, w0, updates) == 0.0
    replica.weights[1] -= 3
    assert audit(replica, w0, updates) == 3.0  # weights without the clock
    replica.weights[1] += 3
    replica.clock = Clock([A1])
    assert audit(replica, w0, updates) == 7.0  # the clock without the weights


def test_audit_of_what_the_baseline_holds() -> None:
    w0 = vector(0.0)
    updates = {A1: vector(1.0), B1: vector(10.0)}
    replica = Replica(vector(11.0), Clock([A1, B1]).lifted(1, {("a", 1): (1, 1)}))
    assert audit(replica, w0, updates, [A1, B1]) == 0.0
    assert audit(replica, w0, updates) == 1.0  # the clock alone does not name what is folded


# -- the exact form ------------------------------------------------------------------------------

FRACTION = 2.0**32


def to_fixed(values: torch.Tensor) -> torch.Tensor:
    return torch.round(values.double() * FRACTION).to(torch.int64)


def from_fixed(values: torch.Tensor) -> torch.Tensor:
    return (values.double() / FRACTION).to(torch.float32)


def test_in_any_order_exact_is_equal_to_the_bit_and_fp32_is_not() -> None:
    generator = torch.Generator().manual_seed(614310)
    w0 = torch.randn(64, generator=generator)
    updates = {
        Dot(str(i % 8), 1, i // 8 + 1): torch.randn(64, generator=generator) * 0.01
        for i in range(200)
    }
    exact = {dot: to_fixed(update) for dot, update in updates.items()}
    rng = random.Random(614310)
    fixed_results, float_results = [], []
    for _ in range(5):
        fixed, single = Replica(to_fixed(w0)), Replica(w0.clone())
        for dot in rng.sample(sorted(updates), len(updates)):
            assert isinstance(fixed.fold(stamps(dot), exact[dot]), Fresh)
            assert isinstance(single.fold(stamps(dot), updates[dot]), Fresh)
        assert audit(fixed, to_fixed(w0), exact) == 0.0
        assert 0.0 < audit(single, w0, updates) < 1e-5
        fixed_results.append(fixed)
        float_results.append(single)
    first = fixed_results[0]
    for other in fixed_results[1:]:
        assert torch.equal(first.weights, other.weights)
        assert first.clock == other.clock
    # The same updates, the same clocks, but not the same fp32 weights.
    assert all(float_results[0].clock == other.clock for other in float_results)
    for other in float_results[1:]:
        assert not torch.equal(float_results[0].weights, other.weights)
        assert torch.allclose(float_results[0].weights, other.weights, rtol=0.0, atol=1e-5)
    assert torch.allclose(from_fixed(first.weights), float_results[0].weights, rtol=0, atol=1e-5)


# -- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_is_of_one_instant() -> None:
    replica = Replica(vector(1.0, 1.0), Clock([A1]))
    weights, clock = replica.snapshot()
    context = replica.context()
    replica.fold(stamps(B1), vector(5.0, 5.0))
    assert weights.tolist() == [1.0, 1.0]
    assert clock == context == Clock([A1])
    weights.zero_()
    clock.add(A3)
    context.add(A2)
    assert replica.weights.tolist() == [6.0, 6.0]
    assert replica.clock == Clock([A1, B1])


@pytest.mark.parametrize("shape", [(), (2, 2), (1, 4)])
def test_weights_are_one_flat_buffer(shape: tuple[int, ...]) -> None:
    with pytest.raises(LocalProtocolError, match="one flat buffer"):
        Replica(torch.zeros(shape))


def test_replicas_do_not_share_a_clock() -> None:
    one, two = Replica(vector(0.0)), Replica(vector(0.0))
    one.fold(stamps(A1), vector(1.0))
    assert two.clock == Clock()


@pytest.mark.parametrize("payload", [torch.ones(1), torch.ones(5), torch.ones(2, 2)])
def test_another_shape_is_never_broadcast(payload: torch.Tensor) -> None:
    replica = Replica(torch.zeros(4))
    with pytest.raises(LocalProtocolError, match="shape"):
        replica.fold((Stamp(Dot("a", 1, 1), Clock()),), payload)
    assert replica.clock == Clock()
    assert replica.weights.tolist() == [0, 0, 0, 0]
