"""The publisher over a background made by hand: whole, encoded, in turns, with other rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from murmurate.core.clock import Clock, Dot
from murmurate.core.codecs.choice import Choice
from murmurate.core.codecs.codec import Encoder
from murmurate.core.codecs.following import OneCodec
from murmurate.core.intervals import Runs
from murmurate.core.layout import Layout
from murmurate.core.message import parts_of
from murmurate.core.publishing.own_update import OwnUpdate
from murmurate.core.publishing.plain import Plain
from murmurate.core.publishing.rule import Making, PublishingRule, Span
from murmurate.core.publishing.shared import Shared
from murmurate.core.publishing.turns import Turns
from murmurate.edge.runtime.training_port import Folds, LifeNow
from murmurate.errors import LocalProtocolError
from murmurate.training.bad_steps import BAD_STEPS_MAX
from murmurate.training.gain import OptimizerGain
from murmurate.training.publisher import Publisher

SIZE = 12


@dataclass
class Background:
    """Weights and an inbox, without a peer, a thread and a lock."""

    weights: torch.Tensor = field(default_factory=lambda: torch.zeros(SIZE))
    name: str = "a"
    synced: bool = True
    room: bool = True
    interval_s: float = 0.0
    inbox: list[Any] = field(default_factory=list)
    committed: list[torch.Tensor] = field(default_factory=list)
    worth: list[int] = field(default_factory=list)
    taken_back: int = 0
    begins: bool = False
    """Whether the next message is the snapshot a life begins with."""

    def context(self) -> Clock:
        return Clock()

    def under_way(self, number: int) -> bool:
        return False

    def has_room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool:
        return self.synced and self.room

    def gives_snapshot(self) -> bool:
        return False

    def life(self) -> LifeNow:
        return LifeNow(1, len(self.committed), synced=True)

    def members_live(self) -> int:
        return 2

    def commit(self, update: OwnUpdate) -> None:
        added = torch.zeros(SIZE)
        if isinstance(update.delta, torch.Tensor):
            added += update.delta
        else:
            for part in parts_of(update.delta):
                part.add_to(added)
        if not bool(torch.isfinite(added).all()):
            raise LocalProtocolError("not finite")
        self.weights += added
        self.committed.append(added)
        self.worth.append(update.worth)

    def waiting(self) -> list[Any]:
        return list(self.inbox)

    def fold(self, count: int) -> Folds:
        messages, self.inbox = self.inbox[:count], self.inbox[count:]
        for message in messages:
            self.weights += message
        began, self.begins = self.begins, False
        return Folds(changed=bool(messages), began=began, applied=tuple(messages))

    def step_taken_back(self) -> None:
        self.taken_back += 1


@dataclass
class Bench:
    """A publisher of a model with one row of numbers."""

    background: Background
    publisher: Publisher
    parameter: nn.Parameter

    def step(self, by: float | torch.Tensor = 1.0) -> None:
        with torch.no_grad():
            self.parameter.add_(by)
        self.publisher.stepped()
        self.publisher.publish_if_due()

    @property
    def values(self) -> torch.Tensor:
        return self.parameter.detach().clone()


def bench(
    rule: PublishingRule | None = None, background: Background | None = None, **more: Any
) -> Bench:
    model = nn.ParameterList([nn.Parameter(torch.zeros(SIZE))])
    layout, parameters = Layout.of(model)
    background = background or Background()
    gain = OptimizerGain(torch.optim.SGD(parameters), parameters)
    publisher = Publisher(background, layout, parameters, rule or Plain(), gain, **more)
    publisher.start_batch()
    return Bench(background, publisher, parameters[0])


class Source:
    """Notes what becomes of the steps."""

    def __init__(self) -> None:
        self.open = True
        self.told: list[str] = []

    def may_publish(self) -> bool:
        return self.open

    def batches(self) -> Runs:
        return (7, 8)

    def published(self) -> None:
        self.told.append("published")

    def dropped(self) -> None:
        self.told.append("dropped")

    def undone(self) -> None:
        self.told.append("undone")


def test_what_a_step_gained_is_published() -> None:
    it = bench()
    it.step(2.0)
    assert [float(update[0]) for update in it.background.committed] == [2.0]
    assert torch.equal(it.background.weights, it.values)
    assert not it.publisher.unpublished.any


@pytest.mark.parametrize(("every", "steps", "updates"), [(1, 3, 3), (2, 3, 1), (4, 3, 0)])
def test_an_update_is_of_so_many_steps(every: int, steps: int, updates: int) -> None:
    it = bench(every=every)
    for _ in range(steps):
        it.step()
    assert len(it.background.committed) == updates
    assert it.publisher.unpublished.steps == steps - every * updates
    it.publisher.publish_all()
    assert float(it.background.weights[0]) == steps


def test_without_room_steps_are_added_up_and_worth_as_many_updates() -> None:
    it = bench()
    it.background.room = False
    for _ in range(3):
        it.step()
    assert it.background.committed == []
    it.background.room = True
    it.step()
    assert [float(update[0]) for update in it.background.committed] == [4.0]
    assert it.background.worth == [4]


def test_a_source_holds_steps_back_and_hears_what_becomes_of_them() -> None:
    it, source = bench(), Source()
    it.publisher.source = source
    source.open = False
    it.step()
    it.publisher.publish_all()
    assert it.background.committed == []
    source.open = True
    it.step()
    it.step(float("nan"))
    it.publisher.discard()
    assert source.told == ["published", "undone", "dropped"]


def test_what_others_sent_comes_below_steps_that_are_not_published() -> None:
    it = bench(every=5)
    it.step(1.0)
    it.background.inbox.append(torch.full((SIZE,), 10.0))
    assert not it.publisher.fold()
    assert float(it.background.weights[0]) == 10.0
    assert float(it.values[0]) == 11.0


def test_a_life_that_begins_takes_the_steps_of_the_one_before() -> None:
    it, source = bench(every=5), Source()
    it.publisher.source = source
    it.step(1.0)
    it.background.inbox.append(torch.full((SIZE,), 10.0))
    it.background.begins = True
    assert it.publisher.fold()
    assert torch.equal(it.values, it.background.weights)
    assert source.told == ["dropped"]
    assert not it.publisher.unpublished.any


def test_steps_that_cannot_be_used_are_taken_back_and_too_many_of_them_are_an_error() -> None:
    it = bench()
    it.step(1.0)
    for _ in range(BAD_STEPS_MAX - 1):
        it.step(float("nan"))
        assert float(it.values[0]) == 1.0
    assert it.background.taken_back == BAD_STEPS_MAX - 1
    with pytest.raises(LocalProtocolError, match="in a row"):
        it.step(float("nan"))


def test_what_encoding_leaves_out_stays_in_the_parameters() -> None:
    it = bench(coding=OneCodec(Encoder(Choice("bf16"), SIZE)))
    it.step(torch.linspace(0.1, 1.3, SIZE))
    rest = it.values - it.background.weights
    assert 0.0 < float(rest.abs().max()) < 0.01
    assert it.publisher.unpublished.any
    it.publisher.publish_all()
    assert torch.equal(it.values, it.background.weights)
    assert not it.publisher.unpublished.any


def test_of_the_rest_a_share_is_published_and_the_remainder_dropped() -> None:
    it = bench(coding=OneCodec(Encoder(Choice("topk", 0.1), SIZE)))
    it.step(torch.arange(1.0, 1.0 + SIZE))
    before, rest = it.background.weights.clone(), it.values - it.background.weights
    it.publisher.publish_rest(0.5)
    torch.testing.assert_close(it.background.weights - before, rest / 2, atol=0.05, rtol=0)
    assert torch.equal(it.values, it.background.weights)


def test_in_turns_a_part_is_published_and_the_rest_waits() -> None:
    it = bench(turns=Turns([slice(0, 4), slice(4, 8), slice(8, 12)]))
    it.step(1.0)
    assert it.background.weights.tolist() == [1.0] * 4 + [0.0] * 8
    it.step(1.0)
    assert it.background.weights.tolist() == [1.0] * 4 + [2.0] * 4 + [0.0] * 4
    it.publisher.publish_all()
    assert it.background.weights.tolist() == [2.0] * SIZE
    assert torch.equal(it.values, it.background.weights)
    assert not it.publisher.unpublished.any


class Aging(Background):
    """Its weights get one update of another older with each batch; remembers what each own one was
    computed on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches_begun = 0
        self.contexts: list[int] = []

    def context(self) -> Clock:
        self.batches_begun += 1
        clock = Clock()
        for seq in range(1, self.batches_begun + 1):
            clock.add(Dot("b", 1, seq))
        return clock

    def commit(self, update: OwnUpdate) -> None:
        super().commit(update)
        self.contexts.append(len(update.context))


@pytest.mark.parametrize("shared", [False, True])
def test_a_large_model_goes_from_turns_to_a_codec_and_back(shared: bool) -> None:
    """Nothing is lost on the way, and what waited for its turn keeps its age."""
    places = [slice(0, 4), slice(4, 8), slice(8, 12)]
    rule = Shared(Making(size=SIZE, places=places)) if shared else Plain()
    coding, codec = OneCodec(), Encoder(Choice("bf16"), SIZE)
    background = Aging()
    it = bench(rule, background, turns=Turns(places), coding=coding)
    made = 0.0
    for step in range(12):
        coding.encoder = codec if 4 <= step < 8 else None
        it.publisher.look.ahead()
        it.parameter.grad = torch.full((SIZE,), -1.0)
        it.step(0.3)
        made += 0.3
        it.publisher.start_batch()
    # Parts of 0.3 and of twice and three times that, as they wait; all at once; parts again.
    assert len(background.committed) == 12
    sizes = [int(each.count_nonzero()) for each in background.committed]
    assert sizes == [4] * 4 + [SIZE] * 4 + [4] * 4
    steps = zip(background.contexts, background.contexts[1:], strict=False)
    newer = [after - before for before, after in steps]
    assert newer[3] < newer[4], (
        "what waited longest is as old as its part, when a codec takes all at once"
    )
    it.publisher.publish_all()
    assert torch.equal(it.values, background.weights)
    if not shared:
        torch.testing.assert_close(background.weights, torch.full((SIZE,), made))


@pytest.mark.parametrize("shared", [False, True])
def test_all_that_a_codec_has_left_out_of_a_large_model_leaves_in_parts(shared: bool) -> None:
    places = [slice(0, 4), slice(4, 8), slice(8, 12)]
    rule = Shared(Making(size=SIZE, places=places)) if shared else Plain()
    coding = OneCodec(Encoder(Choice("topk", 0.25), SIZE))
    it = bench(rule, turns=Turns(places), coding=coding)
    gained = torch.arange(1.0, 1.0 + SIZE)
    for steps in (2, 1):  # once with a step that is in no update, once with what is left alone
        for step in range(steps):
            it.background.room = step == 0
            it.publisher.look.ahead()
            it.parameter.grad = -gained
            it.step(gained)
        before = len(it.background.committed)
        with it.publisher.exactly():
            it.publisher.publish_all()
        parts = [
            set(each.nonzero().flatten().tolist()) for each in it.background.committed[before:]
        ]
        assert len(parts) == len(places)
        for part, place in zip(parts, places, strict=True):
            assert part <= set(range(SIZE)[place])
        assert not it.publisher.unpublished.any
        assert it.publisher.encoded
        assert torch.equal(it.values, it.background.weights)
    assert rule.rest() is None
    if not shared:
        torch.testing.assert_close(it.background.weights, 3 * gained)


class Ahead:
    """A rule with a view: it keeps the gains itself, publishes half of them, and has the next
    gradient taken one further than the weights for each update it has seen."""

    fresh = False

    def __init__(self) -> None:
        self.gain = torch.zeros(SIZE)
        self.seen: list[tuple[bool, float]] = []
        self.members: list[int] = []
        self.by_hand = torch.zeros(SIZE)
        self.reads_gains = False

    def stepped(self, span: Span) -> bool:
        self.gain += span.gained()
        return True

    def update(self, span: Span) -> torch.Tensor:
        self.members.append(span.members())
        update = 0.5 * self.gain[span.place]
        self.gain[span.place] = 0.0
        return update

    def applied(self, update: Any, *, own: bool, unseen: float = 0.0) -> None:
        self.seen.append((own, float(update[0]) if isinstance(update, torch.Tensor) else 0.0))

    def changed(self, by: torch.Tensor) -> None:
        self.by_hand += by

    def restored(self) -> None:
        raise NotImplementedError

    def rest(self) -> torch.Tensor | None:
        return None

    def forget(self) -> None:
        self.gain.zero_()

    def state(self) -> dict[str, Any]:
        return {}

    def go_on(self, state: Mapping[str, Any]) -> None:
        pass

    def leads(self, span: Span) -> bool:
        return True

    def lead(self, flat: torch.Tensor) -> None:
        flat.add_(len(self.seen)).add_(self.by_hand)


def test_a_rule_hears_of_steps_and_updates_and_says_where_the_next_gradient_is_taken() -> None:
    rule = Ahead()
    it = bench(rule, every=2)
    it.publisher.look.ahead()
    it.step(1.0)
    assert it.values.tolist() == [0.0] * SIZE, "the gain is with the rule"
    it.publisher.look.ahead()
    it.step(3.0)
    assert it.background.weights.tolist() == [2.0] * SIZE
    assert rule.seen == [(True, 2.0)]
    assert rule.members == [2]
    assert it.values.tolist() == [2.0] * SIZE, "the weights, until a gradient is taken"
    it.publisher.look.ahead()
    assert it.values.tolist() == [3.0] * SIZE, "one further than the weights"
    it.background.inbox.append(torch.full((SIZE,), 10.0))
    it.publisher.fold()
    assert rule.seen == [(True, 2.0), (False, 10.0)]
    it.publisher.look.ahead()
    assert it.values.tolist() == [14.0] * SIZE, "two further"
    it.publisher.look.at_weights()
    assert it.values.tolist() == [12.0] * SIZE
    it.publisher.look.ahead()
    it.step(1.0)
    assert rule.gain.tolist() == [1.0] * SIZE, "the offset is no gain"


def test_who_is_never_told_of_a_gradient_goes_ahead_after_each_step() -> None:
    it = bench(Ahead())
    it.publisher.look.ahead()
    it.step(1.0)
    it.publisher.look.ahead_if_eager()
    assert torch.equal(it.values, it.background.weights), "it was told, so it waits to be"
    it.step(1.0)
    it.publisher.look.ahead_if_eager()
    assert torch.equal(it.values, it.background.weights + 2.0)


def test_a_change_by_hand_is_told_to_a_rule_that_takes_the_gains() -> None:
    rule = Ahead()
    it = bench(rule)
    it.publisher.look.ahead()
    it.step(1.0)
    with torch.no_grad():
        it.parameter.data.add_(5.0)
    it.publisher.look.ahead()
    assert rule.by_hand.tolist() == [5.0] * SIZE
    assert torch.equal(it.values, it.background.weights + 6.0), "the offset, and what was changed"


def test_a_rule_that_makes_something_else_of_a_part_is_taken_at_its_word() -> None:
    class Half(Plain):
        def update(self, span: Span) -> torch.Tensor:
            return span.gained() * 0.5

    it = bench(Half(), turns=Turns([slice(0, 6), slice(6, 12)]))
    it.step(1.0)
    assert it.background.weights.tolist() == [0.5] * 6 + [0.0] * 6


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("turns", [False, True])
def test_weights_stay_where_they_may_be(shared: bool, turns: bool) -> None:
    """One of two, whose other makes no steps: it does its half of what both may do, and no more."""
    places = [slice(0, 4), slice(4, 8), slice(8, 12)] if turns else [slice(None)]
    rule = Shared(Making(size=SIZE, places=places)) if shared else Plain()
    it = bench(rule, turns=Turns(places) if turns else None)
    it.publisher.placed.constraint = lambda: it.parameter.clamp_(-0.5, 0.5)
    for _ in range(40):
        it.publisher.look.ahead()
        it.parameter.grad = torch.full((SIZE,), -300.0)
        it.step(0.3)
        it.publisher.start_batch()
        assert float(it.background.weights.abs().max()) <= 0.5 + 1e-6
        assert float(it.values.max()) <= 0.5 + 0.3 * (2 * len(places) - 1), (
            "nor do parameters go on"
        )
    assert float(it.background.weights.min()) > 0.4
    it.background.weights.fill_(2.0)
    it.publisher.discard()
    for _ in range(60):
        it.publisher.look.ahead()
        it.parameter.grad = torch.zeros(SIZE)
        it.step(0.0)
        it.publisher.start_batch()
    assert float(it.background.weights.abs().max()) <= 0.52, "a way back from beyond"
