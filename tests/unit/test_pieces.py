"""Pieces of something large, and which of a caller's streams counts: without a network."""

from __future__ import annotations

import pytest

from murmurate.edge.net.pieces import (
    PIECE_BYTES_FIRST,
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    PieceOrder,
    PieceSize,
)
from murmurate.errors import RemoteProtocolError


@pytest.mark.parametrize(
    ("seconds", "part", "expected"),
    [
        (0.01, 1.0, 2 * PIECE_BYTES_FIRST),
        (0.01, 0.6, 2 * PIECE_BYTES_FIRST),
        (0.01, 0.5, PIECE_BYTES_FIRST),
        (0.01, 0.0, PIECE_BYTES_FIRST),
        (0.5, 1.0, PIECE_BYTES_FIRST),
        (2.0, 1.0, PIECE_BYTES_FIRST // 2),
        (2.0, 0.1, PIECE_BYTES_FIRST // 2),
        (2.0, 0.0, PIECE_BYTES_FIRST),
    ],
)
def test_the_size_follows_the_pace(seconds: float, part: float, expected: int) -> None:
    size = PieceSize()
    size.took(seconds, int(part * PIECE_BYTES_FIRST))
    assert size.nbytes == expected


def test_the_size_has_a_floor_and_a_ceiling() -> None:
    size = PieceSize()
    for _ in range(20):
        size.took(0.0, size.nbytes)
    assert size.nbytes == PIECE_BYTES_MAX
    for _ in range(20):
        size.took(9.0, size.nbytes)
    assert size.nbytes == PIECE_BYTES_MIN


@pytest.mark.parametrize(
    ("offset", "nbytes", "says"),
    [
        (0, 4, "what.offset: 0, expected 4 of 10"),
        (5, 4, "what.offset: 5, expected 4 of 10"),
        (4, 0, r"what.raw: 4 \+ 0 bytes, there are 10"),
        (4, 7, r"what.raw: 4 \+ 7 bytes, there are 10"),
    ],
    ids=["twice", "a gap", "nothing", "too many"],
)
def test_bytes_come_in_order(offset: int, nbytes: int, says: str) -> None:
    order = PieceOrder("what", 10)
    assert not order.take(0, 4)
    with pytest.raises(RemoteProtocolError, match=says):
        order.take(offset, nbytes)
    assert order.take(4, 6), "the right ones are taken after wrong ones"
    assert order.done
