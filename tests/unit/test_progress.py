"""The board keeps the newest word of each name, in whatever order words arrive."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from murmurate.core.figures.progress import NAMES_MAX, Board, Progress, Staleness
from murmurate.core.intervals import SEQ_MAX
from murmurate.core.staleness import Summary
from murmurate.errors import RemoteProtocolError


def word(name: str = "a", epoch: int = 1, version: int = 1, **more: Any) -> Progress:
    return Progress(name=name, epoch=epoch, version=version, **more)


def test_the_newest_wins_in_any_order() -> None:
    words = [word(epoch=1, version=9), word(epoch=2, version=1), word(epoch=2, version=2)]
    for order in itertools.permutations(words):
        board = Board()
        for each in order:
            board.merge(each)
        assert board.get("a") is words[-1]
        assert len(board) == 1


def test_merge_says_what_was_news() -> None:
    board = Board()
    assert board.merge(word())
    assert not board.merge(word(samples=5)), "the same version again is no news"
    assert board.merge(word(version=2))
    assert not board.merge(word(version=1))
    assert board.merge(word("b"))
    assert board.get("c") is None


def test_names_are_sorted() -> None:
    board = Board()
    for name in ("b", "c", "a"):
        board.merge(word(name))
    assert [each.name for each in board] == ["a", "b", "c"]


def test_iterating_does_not_mind_news() -> None:
    board = Board()
    board.merge(word("a"))
    for each in board:
        board.merge(replace(each, name=each.name + "x"))
    assert len(board) == 2


def test_names_are_bounded() -> None:
    board = Board()
    for i in range(NAMES_MAX):
        assert board.merge(word(f"n{i}"))
    assert not board.merge(word("one too many"))
    assert board.merge(word("n7", version=2)), "who is on it stays on it"
    assert len(board) == NAMES_MAX


def test_unknown_figures_are_nan() -> None:
    assert math.isnan(word().loss)
    assert math.isnan(word().accuracy)
    assert word(loss=math.inf).loss == math.inf, "a run that went wrong says so"


def test_staleness_of_a_summary() -> None:
    assert Staleness(**Summary([1, 2, 9]).report()) == Staleness(3, 4.0, 2, 9, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "two\nlines"),
        ("name", "n" * 129),
        ("epoch", -1),
        ("version", SEQ_MAX + 1),
        ("samples", -1),
        ("last", SEQ_MAX + 1),
        ("samples_per_s", math.nan),
        ("samples_per_s", -1.0),
        ("step_s", math.inf),
        ("wait_s", -0.1),
        ("staleness", Staleness(mean=math.nan)),
        ("staleness", Staleness(p99=-1)),
        ("rejected", (("b", 1), ("a", 1))),
        ("rejected", (("a", 1), ("a", 1))),
        ("rejected", (("", 1),)),
        ("rejected", (("a", -1),)),
        ("rejected", tuple((f"{i:03}", 1) for i in range(65))),
    ],
)
def test_what_no_honest_peer_says_is_refused(field: str, value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="progress"):
        word(**{field: value})


def test_progress_and_descriptions_are_read_without_torch() -> None:
    """`murmurate status` and `up` show them, and torch takes seconds and 200 MB."""
    code = "import murmurate.edge.net.description, sys; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
