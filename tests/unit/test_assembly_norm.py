"""The norm of a share is counted piece by piece; it must be that of the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from murmurate.core.admission import ROW, ROWS, payload_problem, square
from murmurate.core.clock import Clock
from murmurate.core.gossip.average.push_sum import Share
from murmurate.edge.net import wire
from murmurate.edge.net.incoming import IncomingMessage
from murmurate.edge.net.send_queue import as_bytes


def came(model: torch.Tensor, cuts: list[int]) -> Share:
    """As it is put together from pieces that end at these bytes."""
    head, payload = wire.take_apart(Share(1, 1, 1, 0.5, model, Clock()))
    raw = as_bytes(payload)
    incoming = IncomingMessage(1, len(raw), 0, head)
    for first, last in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        incoming.write(raw[first:last])
    assert incoming.payload is not None
    message = wire.put_together(head, incoming.payload, incoming.norm)
    assert isinstance(message, Share)
    return message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_that_of_the_whole(dtype: torch.dtype) -> None:
    model = torch.randn(1000, dtype=dtype)
    for cuts in ([8, 64, 3200], []):
        share = came(model, cuts)
        assert share.norm == pytest.approx(float(torch.linalg.vector_norm(model)), rel=1e-5)
        assert torch.equal(share.model, model)


def test_what_came_is_its_own_memory() -> None:
    """A share is written into when it is put in; the frame it came in may live on."""
    for cuts in ([80], []):
        model = torch.ones(1000)
        share = came(model, cuts)
        share.model.fill_(2.0)
        assert torch.equal(model, torch.ones(1000))


@pytest.mark.parametrize("size", [0, 1, ROW - 1, ROW, ROW + 1, ROWS * ROW, ROWS * ROW + 1, 300_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_square(size: int, dtype: type) -> None:
    numbers: np.ndarray = np.random.default_rng(size).normal(size=size).astype(dtype)
    exact = math.fsum(float(x) ** 2 for x in numbers)
    assert square(numbers) == pytest.approx(exact, rel=1e-5)
    for bad in (math.nan, math.inf, np.finfo(dtype).max) if size else ():
        for at in (0, size // 2, size - 1):
            spoilt = numbers.copy()
            spoilt[at] = bad
            assert not math.isfinite(square(spoilt))


def test_pieces_that_cut_a_number_are_counted_at_the_end() -> None:
    assert came(torch.ones(100), [6, 40]).norm is None


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (math.nan, torch.float32),
        (math.inf, torch.float32),
        (3e38, torch.float32),
        (1e300, torch.float64),
    ],
)
@pytest.mark.parametrize("at", [0, 500, 999])
def test_what_is_not_finite_in_any_piece_is_refused(
    value: float, dtype: torch.dtype, at: int
) -> None:
    model = torch.zeros(1000, dtype=dtype)
    model[at] = value
    share = came(model, [800, 2400])
    assert share.norm is not None
    assert "its norm is" in payload_problem(share.model, torch.zeros(1000, dtype=dtype), share.norm)
