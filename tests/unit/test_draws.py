"""Groups that are drawn anew: who is in which follows from the draw alone."""

from __future__ import annotations

from collections import Counter

import pytest

from murmurate.core.synchronous.agreement import Claim, draw_up
from murmurate.core.synchronous.draws import FIXED, Draw, first_of_group, group_by, read_draw


def names(count: int) -> list[str]:
    return [f"m-{number}" for number in range(count)]


@pytest.mark.parametrize(("count", "size"), [(8, 4), (12, 4), (6, 2), (7, 3), (5, 1)])
def test_a_draw_deals_all_but_the_first_of_each_group(count: int, size: int) -> None:
    fixed = {name: group_by(FIXED, name, size) for name in names(count)}
    assert fixed == {name: int(name[2:]) // size for name in names(count)}
    for number in range(1, 30):
        draw = Draw(number, count, 7 * number)
        dealt = {name: group_by(draw, name, size) for name in names(count)}
        assert Counter(dealt.values()) == Counter(fixed.values()), "as large as they were"
        for name in names(count):
            assert not first_of_group(name, size) or dealt[name] == fixed[name]
        assert dealt == {name: group_by(read_draw(draw.text()), name, size) for name in dealt}


def test_every_member_comes_to_every_group_equally_often() -> None:
    seen = Counter(group_by(Draw(n, 12, n * n), "m-5", 4) for n in range(1, 1201))
    assert set(seen) == {0, 1, 2}
    assert all(abs(count - 400) < 80 for count in seen.values())


def test_one_that_was_not_dealt_is_where_its_number_says() -> None:
    draw = Draw(3, 8, 1)
    assert group_by(draw, "m-9", 4) == 2
    assert group_by(draw, "alice", 4) is None


@pytest.mark.parametrize(
    "text", ["", "x", "0.4.1", "1.99999.1", "-1.2.3", "1.2", "1.2.3.4", "1.5000.3"]
)
def test_what_nobody_writes_is_no_draw(text: str) -> None:
    assert read_draw(text) == FIXED


def test_whoever_speaks_has_the_weights_that_count() -> None:
    """One that was dealt here has more steps, of another group."""
    stays = Claim(name="m-2", number=1, step=60, speaks=True, first=True, of=2)
    comes = Claim(name="m-1", number=1, step=90, of=1)
    plan = draw_up([stays, comes], "k/1")
    assert (plan.source, plan.speaker, plan.behind) == ("m-2", "m-2", ("m-1",))
    same = Claim(name="m-3", number=1, step=60, of=1)
    assert draw_up([stays, same], "k/1").behind == ("m-3",), "as many steps, of another group"


def test_where_nobody_speaks_the_first_begins_with_the_weights_of_the_most_steps() -> None:
    first = Claim(name="m-2", number=1, step=0, first=True, of=2)
    other = Claim(name="m-3", number=1, step=40, of=2)
    plan = draw_up([first, other], "k/1")
    assert (plan.source, plan.speaker, plan.behind) == ("m-3", "m-2", ("m-2",))
