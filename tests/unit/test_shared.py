"""`core/publishing/shared.py` and `company.py`: against the formulas written out, and on a hill."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.codecs.choice import Choice
from murmurate.core.codecs.codec import Encoder, part_in
from murmurate.core.message import Push, Snapshot, Stamp
from murmurate.core.publishing.company import SILENCE, Company
from murmurate.core.publishing.forms import FORMS
from murmurate.core.publishing.rule import Making
from murmurate.core.publishing.shared import Shared, momentum_over
from murmurate.core.publishing.taken_gains import add_there

SIZE = 6
ALL = slice(None)


class Steps:
    """A span of steps that gained what it is told."""

    def __init__(self, gain: torch.Tensor, count: int = 4, place: slice = ALL) -> None:
        self.gain, self.count, self.place = gain, count, place

    def gained(self) -> torch.Tensor:
        return self.gain[self.place].clone()

    def room(self) -> torch.Tensor:
        return torch.full_like(self.gain, float("nan"))[self.place]

    def add_gain(self, gain: torch.Tensor) -> bool:
        gain.add_(self.gain)
        return True

    def members(self) -> int:
        return self.count


STILL_ALONE = Steps(torch.zeros(SIZE), 1)


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def offset(rule: Shared) -> torch.Tensor:
    assert rule.leads(Steps(torch.zeros(SIZE), rule.company.members))
    found = torch.zeros(SIZE)
    rule.lead(found)
    return found


def push(update: torch.Tensor, seq: int = 1) -> Push:
    return Push((Stamp(Dot("other", 1, seq), Clock()),), update)


def in_company(count: int = 4, places: Sequence[slice] = (ALL,)) -> Shared:
    """A rule that has gone over to a swarm of so many."""
    rule = Shared(Making(size=SIZE, places=places))
    assert rule.leads(Steps(torch.zeros(SIZE), count))
    return rule


@dataclass
class Twin:
    """The formulas, with nothing saved up and nothing scaled."""

    n: int
    heard: list[torch.Tensor] = field(default_factory=list)
    """Every update, own or another's, in order."""

    def mean(self) -> torch.Tensor:
        total, count = torch.zeros(SIZE), 0.0
        for update in self.heard:
            total = (1 - 1 / self.n) * total + update
            count = (1 - 1 / self.n) * count + 1
        return total / count if count else total

    def view(
        self, c: float, unseen: list[torch.Tensor], gain: torch.Tensor, beta: float
    ) -> torch.Tensor:
        e = (1 - beta) * self.n**0.25
        ahead = torch.add((c / self.n) * e * gain, self.mean(), alpha=0.5 * self.n)
        for p in unseen:
            ahead = torch.add(ahead, p, alpha=c - 1)
        return ahead

    def update(self, unseen: list[torch.Tensor], gain: torch.Tensor, beta: float) -> torch.Tensor:
        mean = self.mean()
        for p in unseen:
            mean = 0.7 * mean + 0.3 * p
        return torch.add(beta * mean, gain, alpha=(1 - beta) * self.n**0.25 / self.n)


def test_alone_the_optimizers_own_steps_are_published() -> None:
    rule = Shared(Making(size=SIZE))
    assert not rule.stepped(Steps(numbers(1), 1))
    assert not rule.leads(STILL_ALONE)
    assert torch.equal(rule.update(Steps(numbers(1), 1)), numbers(1))
    rule.applied(numbers(1), own=True)
    assert not rule.leads(STILL_ALONE)


@pytest.mark.parametrize("n", [2, 4, 16])
@pytest.mark.parametrize("every", [1, 4, 64])
def test_update_and_view_are_those_of_the_formulas(n: int, every: int) -> None:
    rule, twin, rng = in_company(n), Twin(n), random.Random(n)
    for turn in range(12):
        gain = torch.zeros(SIZE)
        for step in range(every):
            each = numbers(1000 * turn + step)
            assert rule.stepped(Steps(each, n))
            gain += each
            beta = momentum_over(every if turn else max(4, step + 1))  # at least the last span's
            c = min(n, max(1.0, rule.company.publications))
            torch.testing.assert_close(offset(rule), twin.view(c, [], gain, beta))
        made = rule.update(Steps(torch.zeros(SIZE), n))
        torch.testing.assert_close(made, twin.update([], gain, momentum_over(every)))
        rule.applied(made, own=True)
        twin.heard.append(made)
        for other in range(rng.randrange(1, n)):
            theirs = numbers(50_000 + 100 * turn + other)
            rule.applied(push(theirs), own=False)
            twin.heard.append(theirs)


def test_what_others_have_not_seen_stands_for_what_they_do() -> None:
    n = 4
    rule, twin = in_company(n), Twin(n)
    own: list[torch.Tensor] = []
    for turn in range(9):
        rule.stepped(Steps(numbers(turn), n))
        made = rule.update(Steps(torch.zeros(SIZE), n))
        if turn > 5:  # by then somebody has seen one of mine
            torch.testing.assert_close(made, twin.update(own[-2:], numbers(turn), 0.9))
        rule.applied(made, own=True)
        own.append(made)
        twin.heard.append(made)
        for other in range(n - 1):
            theirs = numbers(900 + 10 * turn + other)
            rule.applied(push(theirs), own=False, unseen=5.0)  # two ways of 2, and one of computing
            twin.heard.append(theirs)
    assert rule.company.in_flight == pytest.approx(2.0)
    torch.testing.assert_close(offset(rule), twin.view(4.0, own[-2:], torch.zeros(SIZE), 0.9))


def test_what_encoding_left_out_is_in_the_next_update() -> None:
    rule, encoder = in_company(), Encoder(Choice("int8"), SIZE)
    rule.stepped(Steps(numbers(1)))
    made = rule.update(Steps(torch.zeros(SIZE)))
    memory, asked = made.data_ptr(), made.clone()
    sent = encoder.encode(asked)
    rule.applied(sent, own=True)
    left = asked - sent.decoded()
    assert float(left.abs().max()) > 0
    plain = in_company()
    plain.stepped(Steps(numbers(1)))
    plain.update(Steps(torch.zeros(SIZE)))
    plain.applied(sent.decoded(), own=True)
    torch.testing.assert_close(offset(rule), offset(plain) + left)
    made, without = (each.update(Steps(torch.zeros(SIZE))) for each in (rule, plain))
    torch.testing.assert_close(made, without + left)
    assert made.data_ptr() == memory, "models are large: what is left out is no model beside them"
    assert rule.rest() is None


def test_parts_keep_counts_of_their_own() -> None:
    places = [slice(0, 3), slice(3, 6)]
    rule = in_company(2, places)
    rule.stepped(Steps(numbers(1), 2))
    made = rule.update(Steps(torch.zeros(SIZE), 2, places[0]))
    assert made.shape == (3,)
    torch.testing.assert_close(made, 0.1 / 2 * 2**0.25 * numbers(1)[:3])  # of one step
    rule.applied(part_in(places[0], SIZE, lambda out: out.copy_(made)), own=True)
    second = rule.update(Steps(torch.zeros(SIZE), 2, places[1]))
    torch.testing.assert_close(second, 0.1 / 2 * 2**0.25 * numbers(1)[3:])  # and no momentum


@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.parametrize("place", [slice(0, 3), slice(3, 6)])
def test_an_own_update_is_added_where_it_belongs_in_whatever_form(place: slice, short: int) -> None:
    whole = torch.zeros(SIZE)
    whole[place] = numbers(5)[place]
    length = 3 - short
    for own in (
        whole,
        part_in(place, SIZE, lambda out: out.copy_(whole[place])),
        Encoder(Choice("bf16"), SIZE).encode(whole),
    ):
        here = numbers(6)[:length].clone()
        add_there(here, own, place, 2.0)
        expected = numbers(6)[:length] + 2.0 * whole[place][:length]
        torch.testing.assert_close(here, expected, rtol=0.01, atol=0.01)


def test_only_the_first_so_many_of_the_weights_may_be_led() -> None:
    rule = in_company(2, [slice(0, 3), slice(3, 6)])
    rule.stepped(Steps(numbers(1), 2))
    rule.applied(push(numbers(2)), own=False)
    rule.changed(numbers(3))
    for count in (6, 4, 2):
        short = torch.zeros(count)
        rule.lead(short)
        assert torch.equal(short, offset(rule)[:count])


def test_a_change_by_hand_goes_out_as_it_is() -> None:
    rule = in_company()
    rule.changed(numbers(7))
    torch.testing.assert_close(offset(rule), numbers(7))
    torch.testing.assert_close(rule.update(Steps(torch.zeros(SIZE))), numbers(7))
    assert not rule.update(Steps(torch.zeros(SIZE))).any()


def test_void_steps_are_forgotten_and_the_momentum_stays() -> None:
    rule = in_company()
    rule.applied(push(numbers(1)), own=False)
    before = offset(rule)
    rule.stepped(Steps(numbers(2)))
    rule.forget()
    torch.testing.assert_close(offset(rule), before)


def test_a_snapshot_moves_no_momentum() -> None:
    rule = in_company()
    before = offset(rule)
    rule.applied(Snapshot(numbers(1), Clock(), ()), own=False)  # type: ignore[arg-type]
    assert torch.equal(offset(rule), before)


def test_the_last_that_is_left_publishes_its_own_steps_again() -> None:
    rule = in_company()
    rule.stepped(Steps(numbers(1), 1))
    rule.applied(rule.update(Steps(torch.zeros(SIZE), 1)), own=True)
    assert not rule.leads(STILL_ALONE)
    assert not rule.stepped(Steps(numbers(2), 1))
    assert torch.equal(rule.update(Steps(numbers(2), 1)), numbers(2))


@pytest.mark.parametrize("delay", [0.0, 1.0, 3.5])
@pytest.mark.parametrize("n", [2, 5])
def test_how_much_is_in_flight_is_found_from_clocks_alone(n: int, delay: float) -> None:
    """Peers publish once in a unit of time, at random phases, and fold when they begin a span."""
    rng = random.Random(7)
    phases = [rng.random() for _ in range(n)]
    company = Company()
    company.members = n
    arrivals = []
    for turn in range(60):
        for other in range(1, n):
            begun = turn - 1 + phases[other]
            seen = max(0, int(begun - delay - phases[0]) + 1)  # mine, made at phase, phase + 1, …
            arrivals.append((turn + phases[other] + delay, seen))
    arrivals.sort()
    mine = 0
    for at, seen in arrivals:
        while mine + phases[0] <= at:
            company.published()
            mine += 1
        company.heard(1, max(0.0, mine - seen))
    assert company.publications == pytest.approx(n, abs=0.5)
    assert company.in_flight == pytest.approx(delay, abs=0.5)


@pytest.mark.parametrize(
    ("n", "late", "parts", "counted"),
    [
        *((64, 0.0, 1, 64.0), (64, 1.0, 1, 64.0), (16, 4.0, 1, 16.0), (4, 4.0, 1, 4.0)),
        *((64, 4.0, 1, 16.0), (32, 4.0, 1, 16.0), (64, 4.0, 4, 64.0), (64, 99.0, 1, 1.0)),
    ],
)
def test_a_step_of_many_who_see_it_late_is_not_that_much_larger(
    n: int, late: float, parts: int, counted: float
) -> None:
    class Measured(Company):
        in_flight = late

    company = Measured(parts)
    company.members = n
    assert FORMS["same"]().step(company) == pytest.approx(counted**0.25)


@pytest.mark.parametrize("n", [2, 12])
@pytest.mark.parametrize("late", [0, 2])
def test_more_peers_are_never_worse_on_a_hill(n: int, late: int) -> None:
    """A quadratic at a rate that suits one node: n nodes end as near as one does, or nearer; the
    sum of their steps does not end at all."""
    hill = torch.tensor([0.2, 1.0, 3.0, 8.0])

    def train(n: int) -> float:
        generator = torch.Generator().manual_seed(1)
        rules = [Shared(Making(size=4)) for _ in range(n)]
        weights = [torch.full((4,), 5.0) for _ in range(n)]
        moment = torch.zeros(4)
        on_the_way: list[tuple[int, int, torch.Tensor]] = []
        for now in range(150):
            for me in range(n):
                for one in [o for o in on_the_way if o[0] <= now and o[1] == me]:
                    on_the_way.remove(one)
                    weights[me] += one[2]
                    rules[me].applied(push(one[2]), own=False, unseen=1.0 + 2 * late)
            for me, rule in enumerate(rules):
                at = weights[me].clone()
                if rule.leads(Steps(torch.zeros(4), n)):
                    rule.lead(at)
                gradient = hill * at + 0.3 * torch.randn(4, generator=generator)
                moment = 0.9 * moment + gradient
                gain = -0.05 * (moment if n == 1 else 10 * gradient)
                rule.stepped(Steps(gain, n))
                made = rule.update(Steps(gain, n)).clone()
                weights[me] += made
                rule.applied(made, own=True)
                on_the_way += [(now + 1 + late, to, made) for to in range(n) if to != me]
        return float((hill * weights[0] ** 2).sum())

    assert train(n) <= 1.5 * train(1)


@pytest.mark.parametrize("made", [1, 3, 8])
def test_until_the_first_is_heard_of_all_that_i_made_is_on_its_way(made: int) -> None:
    """As where a message takes longer than many steps: they publish as I do, I only cannot know."""
    company = Company()
    company.members = 4
    for _ in range(made):
        company.published()
    assert (company.publications, company.in_flight) == (4.0, float(made))
    company.heard(1, float(made))  # its origin had seen none of mine: that is one way
    assert (company.publications, company.in_flight) == (4.0, made - 1.0)
    company.published()
    assert company.in_flight == made - 1.0
    company.heard(1, made - 0.5)
    assert company.in_flight == pytest.approx((made - 1.5) / 2 if made > 1 else 0.0)


def test_who_is_silent_for_long_does_not_publish() -> None:
    company = Company()
    company.members = 4
    for _ in range(SILENCE + 1):
        company.published()
    assert (company.publications, company.in_flight) == (1.0, 0.0)
    for _ in range(3):
        company.heard(3, 1.0)
        company.published()
    assert company.publications == 4.0
