"""Shares of the data: nothing twice, nothing left over, nobody without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmurate.errors import ConfigError
from murmurate.workloads.split import Split, parse_split, random_state, split

SPLITS = st.one_of(
    st.sampled_from([Split("none"), Split("dataset"), Split("labels")]),
    st.floats(1e-6, 1e6).map(lambda alpha: Split("dirichlet", alpha)),
)


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=0, max_size=80).map(
        lambda values: np.array(values, dtype=np.int64)
    ),
    how=SPLITS,
    count=st.integers(1, 8),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_sample_is_in_exactly_one_share_and_no_share_is_empty(
    labels: np.ndarray, how: Split, count: int, seed: int
) -> None:
    try:
        shares = [split(labels, how, index, count, seed) for index in range(count)]
    except ConfigError:
        assert how.kind == "dirichlet" or len(labels) < count or len(np.unique(labels)) < count
        return
    assert all(len(share) for share in shares)
    assert all((np.diff(share) > 0).all() for share in shares)
    everything = list(range(len(labels)))
    if how.kind == "none":
        assert all(share.tolist() == everything for share in shares)
    else:
        assert sorted(np.concatenate(shares).tolist()) == everything
    if how.kind == "dataset":
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if how.kind == "labels":
        owners = [set(labels[share].tolist()) for share in shares]
        assert sum(map(len, owners)) == len(set(labels.tolist()))


LABELS = np.arange(1000) % 10


def test_the_seed_decides() -> None:
    for how in ("dataset", "labels", "dirichlet(0.5)"):
        one, same, other = (split(LABELS, parse_split(how), 0, 4, seed) for seed in (1, 1, 2))
        assert one.tolist() == same.tolist()
        assert one.tolist() != other.tolist()


def test_shares_are_the_same_with_every_numpy() -> None:
    """Peers never compare shares: a stream that changes with numpy would go unnoticed."""
    assert split(np.arange(12), Split("dataset"), 0, 3, 7).tolist() == GOLDEN_DATASET
    assert split(np.arange(12) % 6, Split("labels"), 1, 3, 7).tolist() == GOLDEN_LABELS
    assert split(np.arange(12) % 2, Split("dirichlet", 1.0), 0, 2, 7).tolist() == GOLDEN_DIRICHLET


GOLDEN_DATASET = [1, 4, 5, 6]
GOLDEN_LABELS = [2, 4, 8, 10]
GOLDEN_DIRICHLET = [0, 4, 6, 10, 11]


def concentration(alpha: float) -> float:
    """How much of a label its largest owner has, on average."""
    shares = [split(LABELS, Split("dirichlet", alpha), index, 4, 3) for index in range(4)]
    counts = np.array([np.bincount(LABELS[share], minlength=10) for share in shares])
    return float((counts.max(0) / counts.sum(0)).mean())


def test_a_small_alpha_gives_each_label_to_few_and_a_large_one_to_all() -> None:
    assert concentration(0.01) > 0.95 > 0.8 > concentration(0.5) > concentration(10)
    assert concentration(1e6) < 0.27


@pytest.mark.parametrize("text", ["none", "dataset", "labels", "dirichlet(0.3)", "dirichlet(2)"])
def test_parse_and_print(text: str) -> None:
    assert str(parse_split(text)) == text
    assert parse_split(f" {text.upper()} ") == parse_split(text)


NOT_SPLITS = ["", "label", "dirichlet", "dirichlet()", "dirichlet(x)", "dirichlet(0)"]
NOT_SPLITS += ["dirichlet(-1)", "dirichlet(nan)", "dirichlet(inf)", "dirichlet(0.3"]
NOT_SPLITS += ["dirichlet(1, 2)", "dataset(2)"]


@pytest.mark.parametrize("text", NOT_SPLITS)
def test_what_is_not_a_split_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="split") as caught:
        parse_split(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "count", "problem"),
    [
        ("labels", 11, "there are 10 labels for 11 peers"),
        ("dataset", 1001, "1000 samples are too few"),
        ("dirichlet(0.000001)", 11, "without samples"),
    ],
)
def test_an_empty_share_is_an_error_for_everyone(how: str, count: int, problem: str) -> None:
    for index in range(0, count, 5):
        with pytest.raises(ConfigError, match=problem):
            split(LABELS, parse_split(how), index, count, 0)


@pytest.mark.parametrize(("index", "count"), [(-1, 4), (4, 4), (0, 0)])
def test_a_share_that_is_not_there(index: int, count: int) -> None:
    with pytest.raises(ConfigError, match="counted from 0"):
        split(LABELS, Split("none"), index, count, 0)


def test_streams_differ_in_every_number() -> None:
    names = [(0,), (1,), (1 << 32,), (0, 0), (0, 1), (1, 0)]
    assert len({random_state(*name).randint(1 << 30) for name in names}) == len(names)
