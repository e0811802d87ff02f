"""Errors cross process boundaries: the simulator's workers raise them."""

from __future__ import annotations

import copy

import pytest

from murmurate.errors import MurmurateError, PromiseBroken, RemoteProtocolError


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RemoteProtocolError("clock.seq", "too large"), "clock.seq: too large"),
        (PromiseBroken("P1", "twice"), "P1: twice"),
    ],
)
def test_an_error_can_be_rebuilt_from_its_arguments(error: MurmurateError, says: str) -> None:
    """`copy` rebuilds an exception the way a worker's pickle does, without a pickle in here."""
    again = copy.copy(error)
    assert str(error) == str(again) == says
    assert type(again) is type(error)
