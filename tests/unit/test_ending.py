"""`training/ending.py`: the rest of a large model leaves a part at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from murmurate.training.ending import Ending


class Rest:
    """A publisher with four parts left, or with one update of all; a link that needs a while for
    each, and a swarm that waits for it."""

    def __init__(self, *, in_turns: bool, link_s: float) -> None:
        self.in_turns, self.left = in_turns, 4 if in_turns else 1
        self.link_s = link_s
        self.at_once = 0
        """Updates that were made without room."""
        self.unpublished = self

    @property
    def any(self) -> bool:
        return self.left > 0

    def has_room(self) -> bool:
        raise AssertionError("the swarm asks")

    def publish(self) -> None:
        self.left -= 1

    def exactly(self) -> Any:
        return nullcontext()

    def publish_all(self) -> None:
        self.at_once, self.left = self.left, 0

    # what it is told of the node beside it
    def check(self) -> None: ...
    def flush(self, *, at_once: bool) -> None: ...
    def held_back(self) -> Any:
        return nullcontext()

    def follow(self, until: Callable[[], bool], timeout_s: float) -> bool:
        return timeout_s >= self.link_s


def ending(rest: Any) -> Ending:
    return Ending(rest, rest, rest, rest, rest, rest.follow)


@pytest.mark.parametrize("link_s", [0.1, 5.0])
def test_parts_of_a_large_model_are_made_when_the_one_before_has_left(link_s: float) -> None:
    rest = Rest(in_turns=True, link_s=link_s)
    ending(rest)._publish_last(timeout_s=60.0)
    assert (rest.left, rest.at_once) == (0, 0)


@pytest.mark.parametrize(
    ("in_turns", "timeout_s", "at_once"), [(True, 5.0, 4), (True, 1000.0, 4), (False, 60.0, 1)]
)
def test_nobody_waits_for_room_for_ever(in_turns: bool, timeout_s: float, at_once: int) -> None:
    rest = Rest(in_turns=in_turns, link_s=60.0)
    ending(rest)._publish_last(timeout_s)
    assert (rest.left, rest.at_once) == (0, at_once)
