"""`core/second_moments.py`: a second moment in few numbers, and a layout's room for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from murmurate.core import second_moments
from murmurate.core.layout import Layout, TensorSpec
from murmurate.core.second_moments import PREFIX

BIG, CONVOLUTION = (80, 60), (64, 8, 5, 5)


def kept(square: torch.Tensor) -> torch.Tensor:
    shape = second_moments.kept_of("w", tuple(square.shape))[1]
    numbers = torch.full((int(torch.Size(shape).numel()),), torch.nan)
    second_moments.write(square, numbers)
    return numbers


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        *(((5,), 5), ((), 1), ((10, 64), 640), ((1, 5000), 5000), ((0, 3), 0), ((64, 64), 4096)),
        *((BIG, 140), (CONVOLUTION, 264), ((5000, 300), 5300), ((9000,), 9000)),
    ],
)
def test_it_is_few_numbers_and_never_more_than_there_are(
    shape: tuple[int, ...], count: int
) -> None:
    name, kept_shape = second_moments.kept_of("0.weight", shape)
    assert name == "murmurate.moments/0.weight"
    assert torch.Size(kept_shape).numel() == count
    assert second_moments.read(torch.ones(count), shape).shape == shape


@pytest.mark.parametrize("shape", [BIG, CONVOLUTION])
def test_a_product_comes_back_as_it_was(shape: tuple[int, ...]) -> None:
    rows, columns = torch.rand(shape[0], 1), torch.rand(1, int(torch.Size(shape[1:]).numel()))
    square = (rows * columns).view(shape)
    torch.testing.assert_close(second_moments.read(kept(square), shape), square)


@pytest.mark.parametrize("shape", [(5,), (), (10, 64)])
def test_what_is_no_large_matrix_stays_as_it_is(shape: tuple[int, ...]) -> None:
    square = torch.rand(shape)
    assert torch.equal(second_moments.read(kept(square), shape), square)


def test_the_mean_of_what_all_have_is_that_of_the_mean() -> None:
    squares = torch.rand(5, *BIG)
    mean = torch.stack([kept(square) for square in squares]).mean(0)
    torch.testing.assert_close(mean, kept(squares.mean(0)))


def test_it_is_never_below_zero_whatever_arrives_first() -> None:
    numbers = torch.randn(sum(BIG), generator=torch.Generator().manual_seed(0))
    found = second_moments.read(numbers, BIG)
    assert bool((found >= 0.0).all())
    assert bool(found.isfinite().all())
    assert found.any()
    assert not second_moments.read(-numbers.abs(), BIG).any()
    assert second_moments.read(torch.tensor([-1.0, 2.0]), (2,)).tolist() == [0.0, 2.0]


COUNTS = [100 + 60, 60, 60, 60, 2 * 60, 2]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 60), nn.BatchNorm1d(60), nn.Linear(60, 2))


def test_a_layout_has_room_for_them_behind_everything_else() -> None:
    layout, parameters = Layout.of(model(), statistics=True, moments=True)
    without, _ = Layout.of(model(), statistics=True)
    assert (layout.trained, layout.statistics) == (without.trained, without.statistics)
    assert layout.moments == slice(without.size, without.size + sum(COUNTS))
    assert layout.size == layout.moments.stop
    assert [each.stop - each.start for each in layout.moment_spans()] == COUNTS
    names = [each.name for each in layout.tensors[-6:]]
    assert names == [PREFIX + name for name, _ in model().named_parameters()]
    whole = layout.gather_all(parameters)
    assert len(whole) == layout.size
    assert not whole[layout.trained :].any()
    assert torch.equal(whole[: layout.trained], layout.gather(parameters))


def test_without_them_a_layout_is_what_it_was() -> None:
    """Bytes, schema and names: peers and checkpoints of before fit."""
    layout, _ = Layout.of(nn.Linear(2, 3))
    assert layout.moments == slice(9, 9)
    assert layout.moment_spans() == []
    assert (
        layout.schema
        == Layout(
            [TensorSpec("weight", "float32", (3, 2)), TensorSpec("bias", "float32", (3,))]
        ).schema
    )


def test_members_that_have_them_and_members_that_have_not_hear_why() -> None:
    has, _ = Layout.of(model(), statistics=True, moments=True)
    not_, _ = Layout.of(model(), statistics=True)
    assert has.schema != not_.schema
    assert not_.difference(has.tensors) == (
        "has everybody's second moments in it and this node has not: all members need the same word"
        ' for data, and with "own" the same kind of optimizer'
    )
    assert has.difference(not_.tensors).startswith("has not everybody's second moments in it and")
    other, _ = Layout.of(nn.Linear(2, 3), moments=True)
    assert "lacks" in has.difference(other.tensors)  # another model is another model
