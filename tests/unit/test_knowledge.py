"""`core/gossip/known_clocks.py`: what is believed of the others' clocks, and what follows from
it.
"""

from __future__ import annotations

import pytest

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.gossip.known_clocks import Knowledge
from murmurate.core.message import Generation

A1, A2, A3 = (Dot("a", 1, seq) for seq in (1, 2, 3))
B1 = Dot("b", 1, 1)
NOTHING = Clock()


# -- what each has -------------------------------------------------------------------------------


def test_who_said_what_it_has_is_believed() -> None:
    """The newest word counts, also where it is less: a crash may have taken the rest."""
    known = Knowledge(NOTHING)
    assert known.of("a") is None
    assert not known.has("a", (A1,))
    known.note("a", Clock((A1, A2)), Clock((A1,)))
    assert known.has("a", (A1, A2))
    assert not known.has("a", (A1, A3))
    assert known.durable("a") == Clock((A1,))
    assert list(known.names()) == ["a"]
    known.note("a", Clock((A1,)), Clock())
    assert not known.has("a", (A2,))
    assert known.durable("a") == Clock()


def test_what_was_said_is_not_changed_by_what_comes_later() -> None:
    """A message's clock may be shared with other receivers: it is copied before it grows."""
    said, context = Clock((A1,)), Clock((A1, A2))
    known = Knowledge(NOTHING)
    known.note("a", said, said)
    known.note_push("a", said, A2)
    known.note_push("b", context, B1)
    assert said == Clock((A1,))
    assert context == Clock((A1, A2))


def test_who_need_not_be_remembered_is_still_heard() -> None:
    """In a large swarm most clocks are not kept; what they show to exist is."""
    known = Knowledge(NOTHING)
    known.note("a", Clock((A1,)), Clock((A1,)), remember=False)
    assert known.of("a") is None
    assert known.durable("a") is None
    known.overdue(NOTHING)
    assert known.overdue(NOTHING) == [Range("a", 1, 1, 1)]


@pytest.mark.parametrize(
    ("before", "context", "after"),
    [
        (None, Clock((A1,)), Clock((A1, B1))),
        (Clock((A1,)), Clock((A1, A2)), Clock((A1, A2, B1))),
        (Clock((A1, A2)), Clock((A1,)), Clock((A1, A2, B1))),
        # Larger and without the context: from another time, so it says nothing sure.
        (Clock((A1, A2)), Clock((A3,)), Clock((A1, A2))),
        (Clock((A1,)), Clock((A3,)), Clock((A3, B1))),
    ],
)
def test_an_update_shows_that_its_origin_has_the_context(
    before: Clock | None, context: Clock, after: Clock
) -> None:
    """So a full mesh needs no digest to learn that a push has arrived."""
    known = Knowledge(NOTHING)
    if before is not None:
        known.note("b", before, NOTHING)
    known.note_push("b", context, B1)
    assert known.of("b") == after


def test_a_push_says_nothing_about_what_a_crash_leaves() -> None:
    """Only a digest does: otherwise updates would be let go of too early."""
    known = Knowledge(NOTHING)
    known.note_push("b", Clock((A1,)), B1)
    assert known.durable("b") is None
    assert known.everywhere(Clock((A1, B1)), ("b",)) is None


def test_who_is_forgotten_is_not_counted_on() -> None:
    """What a member had in an earlier life says nothing about this one."""
    known = Knowledge(NOTHING)
    for name in "abc":
        known.note(name, Clock((A1,)), Clock((A1,)))
    known.forget("a")
    known.forget("nobody")
    known.keep_only(("a", "b"))
    assert list(known.names()) == ["b"]
    assert [known.durable(name) is None for name in "abc"] == [True, False, True]


# -- what I lack ---------------------------------------------------------------------------------


def test_what_was_heard_of_is_asked_for_only_one_interval_later() -> None:
    """Until then it is most likely on its way, and asking would send it twice."""
    known = Knowledge(NOTHING)
    known.note("a", Clock((A1, A2)), NOTHING)
    assert known.overdue(NOTHING) == []
    known.note("a", Clock((A1, A2, A3)), NOTHING)
    assert known.overdue(NOTHING) == [Range("a", 1, 1, 2)]
    assert known.overdue(NOTHING) == [Range("a", 1, 1, 3)]


def test_what_has_arrived_meanwhile_is_not_asked_for() -> None:
    """Only what is lacking when the interval is over is overdue."""
    known = Knowledge(NOTHING)
    known.note("a", Clock((A1, A2, B1)), NOTHING)
    known.overdue(NOTHING)
    assert known.overdue(Clock((A1, B1))) == [Range("a", 1, 2, 2)]
    assert known.overdue(Clock((A1, A2, B1))) == []


def test_what_one_said_stays_wanted_when_it_is_gone() -> None:
    """Somebody else may have it."""
    known = Knowledge(NOTHING)
    known.note("a", Clock((A1,)), NOTHING)
    known.forget("a")
    known.overdue(NOTHING)
    assert known.overdue(NOTHING) == [Range("a", 1, 1, 1)]


# -- what everyone has ---------------------------------------------------------------------------


def test_everywhere_is_what_all_have_for_good() -> None:
    """What they have, but a crash could take, is not in it; nor what I could lose myself."""
    known = Knowledge(NOTHING)
    known.note("b", Clock((A1, A2, A3)), Clock((A1, A2)))
    known.note("c", Clock((A1, A2, A3)), Clock((A1, A3)))
    assert known.everywhere(Clock((A1, A2, A3)), ("b", "c")) == Clock((A1,))
    assert known.everywhere(Clock((A2,)), ("b", "c")) == Clock()
    assert known.everywhere(Clock((A2,)), ("b",)) == Clock((A2,))
    assert known.everywhere(Clock((A2,)), ()) == Clock((A2,))


def test_what_one_showed_since_it_told_of_its_checkpoints_is_not_in_sums() -> None:
    """One that was written in between may have a part of it."""
    mine = Clock((A1, A2, A3))
    known = Knowledge(NOTHING)
    known.note("b", Clock((A1,)), Clock((A1,)), cuts=())
    known.note_push("b", Clock((A1, A2, A3)), B1)
    assert known.applied_everywhere(mine, ("b",)) == mine
    assert known.told_everywhere(mine, ("b",)) == Clock((A1,))
    known.note("b", Clock((A1, A2)), Clock((A1,)))
    assert known.told_everywhere(mine, ("b",)) is None


def test_who_was_not_heard_of_has_nothing_for_sure() -> None:
    """One silent member is enough to keep everything."""
    known = Knowledge(NOTHING)
    known.note("b", Clock((A1,)), Clock((A1,)))
    assert known.everywhere(Clock((A1,)), ("b", "c")) is None


# -- a new generation ----------------------------------------------------------------------------


def moved(folds: dict[tuple[str, int], tuple[int, ...]], *said: Clock) -> tuple[Knowledge, Clock]:
    """What is known of x0, x1, … after a generation that folds these, and my clock in it."""
    known = Knowledge(NOTHING)
    for i, clock in enumerate(said):
        known.note(f"x{i}", clock, clock)
    baseline = Baseline(
        (Generation(0, ("a",)), Generation(1, ("a",), tuple(folds.items()))), keep=8
    )
    start = Clock(generation=1, base=sum(runs[1] for runs in folds.values()))
    known.move(baseline, start)
    return known, start


def test_in_a_new_generation_clocks_are_compared_as_before() -> None:
    """Whoever held exactly what was folded is known as before, with what stays above it."""
    known, start = moved({("a", 1): (1, 2)}, Clock((A1, A2, B1)))
    assert known.of("x0") == Clock((B1,), generation=1, base=2)
    assert known.durable("x0") == Clock((B1,), generation=1, base=2)
    assert known.overdue(start) == []
    assert known.overdue(start) == [Range("b", 1, 1, 1)]


def test_who_did_not_hold_what_was_folded_is_not_known_any_more() -> None:
    """It was apart from the baseline when it last spoke: the next digest will tell."""
    known, start = moved({("a", 1): (1, 2)}, Clock((A1, A2)), Clock((A1, B1)), Clock((A1, A2, A3)))
    assert list(known.names()) == ["x0"]
    assert known.everywhere(start, ("x0", "x1")) is None


def test_hearsay_of_a_folded_epoch_is_not_asked_for() -> None:
    """Nobody could give it; what is lacking of the baseline comes by snapshot."""
    known, start = moved({("a", 1): (1, 2)}, Clock((A1, A3, B1)))
    known.overdue(start)
    assert known.overdue(start) == [Range("b", 1, 1, 1)]


def test_what_is_too_old_to_be_understood_is_forgotten() -> None:
    """Beyond the history that is kept, a clock cannot be compared with exactly."""
    known = Knowledge(NOTHING)
    known.note("a", Clock((A1,)), Clock((A1,)))
    start = Clock((B1,), generation=3)
    known.move(Baseline((Generation(2, ("a",)), Generation(3, ("a",))), keep=8), start)
    assert known.of("a") is None
    known.overdue(start)
    assert known.overdue(start) == []
    known.note("a", Clock((A2,), generation=3), start)  # merges with what is heard from now on
