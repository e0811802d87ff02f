"""`core/rules.py`: values computed by hand, and whether what each rule says of itself is so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from murmurate.core import rules
from murmurate.core.replica import to_fixed
from murmurate.core.rules import RULES, Policy, average, compensated, scaled, sum_rule
from murmurate.errors import LocalProtocolError


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- sum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_sum_by_hand(dtype: torch.dtype) -> None:
    w = torch.tensor([1, 2, -3], dtype=dtype)
    view = w[1:]
    sum_rule(w, torch.tensor([10, 0, 3], dtype=dtype))
    assert w.tolist() == [11, 2, 0]
    assert view.tolist() == [2, 0]  # in place: the model's parameters are views of this buffer


# -- scaled --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "staleness", "factor"),
    [
        (rules.inverse, 0, 1.0),
        (rules.inverse, 1, 0.5),
        (rules.inverse, 3, 0.25),
        (rules.inverse, 63, 1 / 64),
        (rules.polynomial(0.0), 55, 1.0),
        (rules.polynomial(0.5), 0, 1.0),
        (rules.polynomial(0.5), 3, 0.5),
        (rules.polynomial(0.5), 8, 1 / 3),
        (rules.polynomial(1.0), 3, 0.25),
        (rules.polynomial(2.0), 3, 0.0625),
        (rules.bound(0), 0, 1.0),
        (rules.bound(0), 1, 0.0),
        (rules.bound(4), 4, 1.0),
        (rules.bound(4), 5, 0.0),
    ],
)
def test_scaled_by_hand(policy: Policy, staleness: int, factor: float) -> None:
    assert policy(staleness) == pytest.approx(factor, rel=1e-15)
    w = vector(1.0, -2.0)
    scaled(w, vector(16.0, 8.0), staleness, policy)
    assert w.tolist() == pytest.approx([1.0 + 16.0 * factor, -2.0 + 8.0 * factor], rel=1e-15)


def test_what_is_beyond_the_bound_is_not_even_read() -> None:
    w = vector(1.0)
    scaled(w, vector(math.inf), 5, rules.bound(4))
    assert w.tolist() == [1.0]


# -- compensated ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("w", "g", "w_bak", "lr", "lam", "expected"),
    [
        # w - lr*(g + lam*g*g*(w - w_bak))
        (1.0, 2.0, 1.0, 0.1, 2.0, 0.8),  # nothing happened in between: the plain step
        (1.0, 2.0, 0.5, 0.1, 0.0, 0.8),  # lam 0: the plain step
        (1.0, 2.0, 0.5, 0.1, 2.0, 0.4),  # 1 - 0.1*(2 + 2*4*0.5)
        (0.5, 2.0, 1.0, 0.1, 2.0, 0.7),  # 0.5 - 0.1*(2 - 4): the other way
        (1.0, -2.0, 0.5, 0.1, 2.0, 0.8),  # 1 - 0.1*(-2 + 4): g*g has no sign
        (1.0, 2.0, 0.5, 0.5, 0.04, -0.04),  # 1 - 0.5*(2 + 0.04*4*0.5)
    ],
)
def test_compensated_constant_by_hand(
    w: float, g: float, w_bak: float, lr: float, lam: float, expected: float
) -> None:
    here = vector(w)
    compensated(here, vector(-lr * g), vector(w_bak), lr=lr, lam=lam)
    assert here.tolist() == pytest.approx([expected], rel=1e-12)


def test_compensated_adaptive_by_hand() -> None:
    """g=2: MS = 0.05*4 = 0.2, then 0.95*0.2 + 0.2 = 0.39; lam = 2/sqrt(MS + 1e-7)."""
    w, w_bak, mean_square = vector(1.0), vector(0.5), vector(0.0)
    compensated(w, vector(-0.2), w_bak, lr=0.1, lam=2.0, mean_square=mean_square)
    first = 1.0 - 0.1 * (2.0 + 2.0 / math.sqrt(0.2 + 1e-7) * 4.0 * 0.5)
    assert mean_square.tolist() == pytest.approx([0.2], rel=1e-12)
    assert w.tolist() == pytest.approx([first], rel=1e-12)
    assert first == pytest.approx(-0.0944270, abs=1e-6)
    compensated(w, vector(-0.2), w_bak, lr=0.1, lam=2.0, mean_square=mean_square)
    second = first - 0.1 * (2.0 + 2.0 / math.sqrt(0.39 + 1e-7) * 4.0 * (first - 0.5))
    assert mean_square.tolist() == pytest.approx([0.39], rel=1e-12)
    assert w.tolist() == pytest.approx([second], rel=1e-12)


def test_compensation_is_the_gradient_here_where_it_is_exact() -> None:
    """f with f'' == lam*f'*f': f' = -1/(lam*x), so g + lam*g*g*(w - w_bak) is its first order."""
    lam, there, here, lr = 0.5, 2.0, 2.001, 0.1
    w = vector(here)
    compensated(w, vector(lr / (lam * there)), vector(there), lr=lr, lam=lam)
    plain, wanted = here + lr / (lam * there), here + lr / (lam * here)
    assert abs(float(w) - wanted) < abs(plain - wanted) / 1000


def test_a_backup_that_is_the_live_weights_is_refused() -> None:
    """Paper 002's code kept references: w - w_bak was zero and compensation never ran (F5)."""
    w = vector(1.0, 2.0)
    for alias in (w, w.view(-1), w.detach()):
        with pytest.raises(LocalProtocolError, match="copy"):
            compensated(w, vector(0.1, 0.1), alias, lr=0.1, lam=0.04)
    compensated(w, vector(0.1, 0.1), w.clone(), lr=0.1, lam=0.04)


# -- average -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("w", "others", "shares", "expected"),
    [
        (4.0, [0.0], [1.0, 1.0], 2.0),
        (4.0, [0.0], [0.75, 0.25], 3.0),
        (4.0, [0.0], [300.0, 100.0], 3.0),  # samples: the same mean
        (1.0, [2.0, 6.0], [1.0, 1.0, 1.0], 3.0),
        (8.0, [0.0, 4.0], [2.0, 1.0, 1.0], 5.0),
        (8.0, [], [1.0], 8.0),
    ],
)
def test_average_by_hand(
    w: float, others: list[float], shares: list[float], expected: float
) -> None:
    here, there = vector(w), [vector(other) for other in others]
    average(here, there, shares)
    assert here.tolist() == pytest.approx([expected], rel=1e-15)
    assert [other.tolist() for other in there] == [[other] for other in others]


def test_average_with_itself_changes_nothing() -> None:
    w = vector(3.0, -1.0)
    average(w, [w], [1.0, 1.0])
    assert w.tolist() == [3.0, -1.0]


# -- what each says of itself --------------------------------------------------------------------


def in_order(name: str, order: list[int], dtype: torch.dtype) -> torch.Tensor:
    """The weights after the same updates in one order; staleness as it is at this receiver."""
    rng = random.Random(7)
    updates = [
        to_fixed(vector(rng.gauss(0, 1), rng.gauss(0, 1)))
        if dtype == torch.int64
        else torch.tensor([rng.gauss(0, 1), rng.gauss(0, 1)], dtype=dtype)
        for _ in order
    ]
    w = torch.zeros(2, dtype=dtype)
    start = w.clone()
    for done, i in enumerate(order):
        u = updates[i]
        if name == "sum":
            sum_rule(w, u)
        elif name == "scaled":
            scaled(w, u, done, rules.inverse)
        elif name == "compensated":
            compensated(w, u, start, lr=0.1, lam=0.04)
        else:
            average(w, [u], [1.0, 1.0])
    return w


@pytest.mark.parametrize("name", sorted(RULES))
def test_commutative_exactly_where_the_table_says_so(name: str) -> None:
    forth, back = list(range(50)), list(range(50))[::-1]
    apart = (in_order(name, forth, torch.float64) - in_order(name, back, torch.float64)).abs().max()
    assert RULES[name].commutative == bool(apart < 1e-12)
    if not RULES[name].commutative:
        assert apart > 0.1


def test_sums_in_fixed_point_are_equal_to_the_bit() -> None:
    order = list(range(2000))
    shuffled = order[:]
    random.Random(1).shuffle(shuffled)
    assert torch.equal(in_order("sum", order, torch.int64), in_order("sum", shuffled, torch.int64))
    apart = in_order("sum", order, torch.float32) - in_order("sum", shuffled, torch.float32)
    assert 0.0 < float(apart.abs().max()) < 1e-3


def test_the_table_names_the_rules_of_the_gossip_mode() -> None:
    assert list(RULES) == ["sum", "scaled", "compensated", "average"]
    assert all(rule.sentence for rule in RULES.values())


# -- misuse --------------------------------------------------------------------------------------

I = torch.ones(2, dtype=torch.int64)  # noqa: E741
F = torch.ones(2)


@pytest.mark.parametrize(
    "call",
    [
        lambda w: scaled(w, I, 0, rules.inverse),
        lambda w: compensated(w, I, I.clone(), lr=0.1, lam=0.04),
        lambda w: average(w, [I], [1.0, 1.0]),
        lambda w: average(w, [], [1.0]),
    ],
)
def test_fixed_point_is_only_summed(call: Callable[[torch.Tensor], None]) -> None:
    w = I.clone()
    with pytest.raises(LocalProtocolError, match="floating point"):
        call(w)
    assert torch.equal(w, I)


@pytest.mark.parametrize(
    "call",
    [
        lambda w: sum_rule(w, torch.ones(1)),  # torch would broadcast it
        lambda w: sum_rule(w, torch.ones(3)),
        lambda w: sum_rule(w, I),
        lambda w: sum_rule(w, F.double()),
        lambda w: sum_rule(w.view(1, 2), F.view(1, 2)),
        lambda w: scaled(w, torch.ones(1), 0, rules.inverse),
        lambda w: scaled(w, F, -1, rules.inverse),
        lambda w: compensated(w, F, torch.ones(1), lr=0.1, lam=0.04),
        lambda w: compensated(w, F, F.clone(), lr=0.0, lam=0.04),
        lambda w: compensated(w, F, F.clone(), lr=0.1, lam=-1.0),
        lambda w: compensated(w, F, F.clone(), lr=0.1, lam=2.0, mean_square=torch.zeros(1)),
        lambda w: average(w, [F], [1.0]),
        lambda w: average(w, [F], [1.0, 0.0]),
        lambda w: average(w, [F], [1.0, math.nan]),
        lambda w: average(w, [torch.ones(1)], [1.0, 1.0]),
        lambda w: rules.bound(-1),
        lambda w: rules.polynomial(-0.5),
    ],
)
def test_misuse_changes_nothing(call: Callable[[torch.Tensor], object]) -> None:
    w = F.clone()
    with pytest.raises(LocalProtocolError):
        call(w)
    assert torch.equal(w, F)
