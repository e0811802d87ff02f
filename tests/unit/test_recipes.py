"""Recipes: optimizers by name, rates by the part of a budget, batches that grow."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from murmurate import workloads
from murmurate.core.values.recipe import OPTIMIZERS, Recipe, Schedule, parse_schedule
from murmurate.errors import ConfigError
from murmurate.programs.keys.config import check_budget, load
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining
from murmurate.training.gain import OptimizerGain
from murmurate.training.lars import Lars
from murmurate.training.recipes import CLASSES, PARTS, RateSchedule, factors
from murmurate.training.sgd_then_adam import SgdThenAdam
from murmurate.workloads.growing import GrowingBatches, batches_of, unit_of


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


NUMBERS = ("momentum", "nesterov", "weight_decay")


def parameters(seed: int = 0) -> list[torch.nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((4, 3), (4,))]


def give_gradients(given: list[torch.nn.Parameter], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for each in given:
        each.grad = torch.randn(each.shape, generator=draw)


# -- optimizers by name ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_table_without_torch_says_what_torch_takes(name: str) -> None:
    takes = inspect.signature(CLASSES[name]).parameters
    assert {number for number in NUMBERS if number in takes} == OPTIMIZERS[name]
    CLASSES[name](parameters())


def test_without_a_name_the_own_optimizer_gets_other_numbers() -> None:
    recipe = Recipe(momentum=0.8, nesterov=True, weight_decay=0.01)
    workload = workloads.load("digits", lr=0.05, recipe=recipe)
    (group,) = workload.optimizer(workload.model()).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.05, 0.8, True)
    assert group["weight_decay"] == 0.01


@pytest.mark.parametrize(
    ("recipe", "kind", "rate"),
    [
        (Recipe(optimizer="sgd"), torch.optim.SGD, 0.2),  # the workload's own rate
        (Recipe(optimizer="adamw"), torch.optim.AdamW, 1e-3),  # torch's: 0.2 would be far too much
        (Recipe(optimizer="adamw", lr=0.01), torch.optim.AdamW, 0.01),
        (Recipe(optimizer="lars", lr=2.0), Lars, 2.0),
        (Recipe(optimizer="sgd-adam", lr=0.01, warmup=0.1), SgdThenAdam, 0.2),
    ],
)
def test_with_a_name_it_is_that_one(recipe: Recipe, kind: type, rate: float) -> None:
    workload = workloads.load("digits", lr=recipe.lr, recipe=recipe)
    optimizer = workload.optimizer(workload.model())
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["lr"] == rate


@pytest.mark.parametrize("name", [n for n in workloads.NAMES if n[0] in "dcs"])
def test_every_workload_takes_a_recipe(name: str) -> None:
    recipe = Recipe(optimizer="rmsprop", momentum=0.5)
    workload = workloads.load(name, recipe=recipe)
    optimizer = workload.optimizer(workload.model())
    assert isinstance(optimizer, torch.optim.RMSprop)
    assert optimizer.param_groups[0]["momentum"] == 0.5


def test_a_number_that_the_own_optimizer_has_not_is_refused() -> None:
    workload = workloads.load("char-transformer", recipe=Recipe(momentum=0.9))
    with pytest.raises(ConfigError, match=r"char-transformer: momentum: .* Adam, has none"):
        workload.optimizer(workload.model())


# -- rates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "warmup", "wanted"),
    [
        ("constant", 0.0, lambda t: 1.0),
        ("constant", 0.2, lambda t: 1.0),
        ("linear", 0.0, lambda t: 1 - t),
        ("poly(0.5)", 0.0, lambda t: (1 - t) ** 0.5),  # 003: GoogLeNet
        ("poly(2)", 0.1, lambda t: (1 - (t - 0.1) / 0.9) ** 2),
        ("multistep(0.5,0.75)", 0.05, lambda t: 0.1 ** ((t >= 0.5) + (t >= 0.75))),  # DenseNet
        ("cosine", 0.1, lambda t: (1 + math.cos(math.pi * (t - 0.1) / 0.9)) / 2),
    ],
)
def test_a_schedule_is_the_formula_after_a_linear_warm_up(
    text: str, warmup: float, wanted: Any
) -> None:
    found = factors(Recipe(schedule=parse_schedule(text), warmup=warmup))
    assert len(found) == PARTS + 1
    warm = round(warmup * PARTS)
    for at, factor in enumerate(found):
        if at < warm:  # from nearly nothing to one
            first = 1 / warm
            assert factor == pytest.approx(first + (1 - first) * at / warm, abs=1e-9)
        else:
            assert factor == pytest.approx(wanted(at / PARTS), abs=1e-9)


def test_a_rate_depends_on_the_part_alone() -> None:
    """One that comes late, or back from a checkpoint with a rate of then, has everybody's rate."""
    recipe = Recipe(schedule=parse_schedule("cosine"), warmup=0.1)
    one, other = (torch.optim.SGD(parameters(), lr=0.5) for _ in range(2))
    rates, late = RateSchedule(one, recipe), RateSchedule(other, recipe)
    for part in (0.0, 0.05, 0.3, 0.6):
        rates.at(part)
    other.load_state_dict(one.state_dict())
    for group in other.param_groups:
        group["lr"] = 0.123
    late.at(0.6)
    assert other.param_groups[0]["lr"] == one.param_groups[0]["lr"] != 0.5
    late.at(0.05)  # and back: what is known of the others' samples may shrink
    assert other.param_groups[0]["lr"] == pytest.approx(0.5 * factors(recipe)[50])


def test_without_a_schedule_nobody_touches_the_rate() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.5)
    rates = RateSchedule(optimizer, Recipe(momentum=0.9))
    optimizer.param_groups[0]["lr"] = 0.25  # the user's own scheduler
    rates.at(0.7)
    assert optimizer.param_groups[0]["lr"] == 0.25


# -- LARS ------------------------------------------------------------------------------------------


def test_lars_is_the_formula_layer_by_layer() -> None:
    """003: lr_l = lr · trust · ‖w‖ / (‖g‖ + wd ‖w‖), then momentum; three steps by hand."""
    given = parameters()
    twins = [each.detach().clone().double() for each in given]
    kept = [torch.zeros_like(each) for each in twins]
    optimizer = Lars(given, lr=2.0, momentum=0.9, weight_decay=0.01, trust=0.05)
    for step in range(3):
        give_gradients(given, step)
        for at, (w, each) in enumerate(zip(twins, given, strict=True)):
            assert each.grad is not None
            g = each.grad.double()
            local = 0.05 * w.norm() / (g.norm() + 0.01 * w.norm())
            kept[at] = 0.9 * kept[at] + local * (g + 0.01 * w)
            twins[at] = w - 2.0 * kept[at]
        optimizer.step()
    for each, twin in zip(given, twins, strict=True):
        assert torch.allclose(each.detach().double(), twin, rtol=1e-5, atol=1e-6)


def test_lars_has_a_rate_where_there_is_no_size_to_go_by() -> None:
    zero = torch.nn.Parameter(torch.zeros(3))
    zero.grad = torch.ones(3)
    Lars([zero], lr=2.0, trust=0.5).step()
    assert torch.equal(zero.detach(), torch.full((3,), -1.0))


@pytest.mark.parametrize(
    "numbers",
    [
        {"momentum": 1.0},
        {"trust": 0.0},
        {"weight_decay": -1.0},
        {"momentum": 0.0, "nesterov": True},
    ],
)
def test_lars_refuses_what_cannot_be(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Lars"):
        Lars(parameters(), **numbers)


# -- two stages ------------------------------------------------------------------------------------


def test_two_stages_are_sgd_and_then_a_fresh_adam() -> None:
    given, twins = parameters(), parameters()
    both = SgdThenAdam(given, lr=0.01, sgd_lr=0.3, momentum=0.9)
    first = torch.optim.SGD(twins, lr=0.3, momentum=0.9)
    second = torch.optim.Adam(twins, lr=0.01)
    recipe = Recipe(optimizer="sgd-adam", warmup=0.5)
    rates = RateSchedule(both, recipe)
    for step in range(8):
        part = step / 8
        rates.at(part)
        give_gradients(given, step)
        give_gradients(twins, step)
        both.step()
        if part < 0.5:
            first.param_groups[0]["lr"] = 0.3 * factors(recipe)[int(part * PARTS)]
            first.step()
        else:
            second.step()
        assert all(torch.equal(a, b) for a, b in zip(given, twins, strict=True)), step
        if step in (2, 6):  # a restart in either stage changes nothing
            kept = copy.deepcopy(both.state_dict())
            both = SgdThenAdam(given, lr=0.01, sgd_lr=0.3, momentum=0.9)
            rates = RateSchedule(both, recipe)
            both.load_state_dict(kept)
    assert both.second


# -- what rule `shared` reads of them --------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda given: Lars(given, lr=2.0, momentum=0.0, weight_decay=0.1),
        lambda given: SgdThenAdam(given, sgd_lr=0.3, weight_decay=0.1),
    ],
    ids=["lars", "sgd-adam"],
)
def test_without_momentum_the_gain_is_what_was_changed(make: Any) -> None:
    given = parameters()
    optimizer, before = make(given), torch.cat([each.detach().flatten() for each in given]).clone()
    read = OptimizerGain(optimizer, given)
    give_gradients(given, 1)
    optimizer.step()
    gain = torch.zeros_like(before)
    read.add_to(gain, lambda: before)
    after = torch.cat([each.detach().flatten() for each in given])
    assert read.kind == "normalized"
    assert torch.allclose(gain, after - before, atol=1e-6)


# -- batches that grow -----------------------------------------------------------------------------


def test_a_batch_grows_in_equal_parts_and_leaves_nothing_out() -> None:
    digits = workloads.load("digits")
    share = workloads.DataShare(0, 1, workloads.parse_split("none"), 0, 128)
    growing = batches_of(digits.batches, share, 0.5)
    assert isinstance(growing, GrowingBatches)
    plain = digits.batches(workloads.DataShare(0, 1, workloads.parse_split("none"), 0, 16))
    sizes = []
    for part in (0.0, 0.1, 0.25, 0.45, 0.5, 0.9):
        growing.at(part)
        size = growing.size
        inputs, labels = next(growing)
        assert len(inputs) == len(labels) == size
        same = [next(plain) for _ in range(size // 16)]
        assert torch.equal(inputs, torch.cat([each[0] for each in same]))
        sizes.append(size)
    assert sizes == [16, 32, 64, 112, 128, 128]


@pytest.mark.parametrize(("size", "unit"), [(128, 16), (100, 20), (6, 1), (10, 2), (21, 3)])
def test_a_unit_is_what_divides_a_batch(size: int, unit: int) -> None:
    assert unit_of(size) == unit


def test_a_batch_without_equal_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch_warmup: a batch of 127 .* such as 120"):
        workloads.load("digits", batch_size=127, recipe=Recipe(batch_warmup=0.1))


# -- in virtual time -------------------------------------------------------------------------------


def test_all_peers_are_at_the_same_place_of_the_schedule() -> None:
    """The budget is the whole swarm's: one that is ten times slower has everybody's rate."""
    recipe = Recipe(schedule=parse_schedule("linear"), warmup=0.1, batch_warmup=0.4)
    workload = workloads.load("digits", batch_size=16, recipe=recipe)
    task = VirtualTraining(
        workload=workload,
        nodes=3,
        rule="shared",
        speeds={"node-2": 0.1},
        recipe=recipe,
        samples=6000,
    )
    world = GossipWorld(task)
    over = world.events.run_until(1e6, lambda: world.samples() >= 3000)
    assert over
    rates = [node.optimizer.param_groups[0]["lr"] for node in world.nodes.values()]
    now = workload.lr * factors(recipe)[500]
    assert rates[:2] == pytest.approx([now, now], rel=0.02)
    assert rates[2] == pytest.approx(now, rel=0.2)  # its last step began ten steps ago
    steps = [node.figures.steps for node in world.nodes.values()]
    assert steps[2] < steps[0] / 5
    sizes = {node.batches.size for node in itertools.islice(world.nodes.values(), 2)}  # type: ignore[attr-defined]
    assert sizes == {16}


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"train.momentum": "1"}, "--momentum: train.momentum = 1.0: expected a number from 0 on"),
        ({"train.momentum": "-0.1"}, "below 1"),
        ({"train.momentum": "nan"}, "below 1"),
        ({"train.momentum": "0.9", "train.optimizer": "adam"}, "adam has none; sgd, rmsprop, lars"),
        ({"train.nesterov": "true", "train.optimizer": "sgd"}, "needs a momentum above 0"),
        ({"train.nesterov": "true", "train.momentum": "0"}, "needs a momentum above 0"),
        ({"train.optimizer": "lbfgs"}, "train.optimizer = 'lbfgs': expected one of sgd, adam"),
        ({"train.optimizer": "sgd-adam"}, "say warmup"),
        ({"train.weight_decay": "-1"}, "expected a number from 0 on"),
        ({"train.warmup": "1"}, "below 1"),
        ({"train.schedule": "poly(0)"}, "a power above 0"),
        ({"train.schedule": "poly(x)"}, "expected constant, linear"),
        ({"train.schedule": "multistep"}, "expected constant, linear"),
        ({"train.schedule": "multistep(0.5,0.5)"}, "rising"),
        ({"train.schedule": "multistep(30,60)"}, "above 0, below 1"),
        ({"train.schedule": "multistep(0.1)", "train.warmup": "0.2"}, "before the warm-up is over"),
        ({"train.schedule": "cosine", "train.generator": "10.0.0.5:7"}, "not with a generator"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, options)
    assert wanted in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_schedule_needs_a_budget() -> None:
    check_budget(load(None, {}, {"train.momentum": "0.5"}))
    check_budget(load(None, {}, {"train.schedule": "cosine", "train.samples": "100"}))
    with pytest.raises(ConfigError, match="say samples or seconds"):
        check_budget(load(None, {}, {"train.schedule": "cosine"}))


def test_a_schedule_is_told_as_it_is_read() -> None:
    for text in ("constant", "linear", "poly(0.5)", "multistep(0.5,0.75)", "cosine"):
        assert str(parse_schedule(text)) == text
    assert parse_schedule("poly") == Schedule("poly", power=1.0)
