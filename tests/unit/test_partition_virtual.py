"""Subnets in virtual time: one seed decides everything, and churn costs little."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from murmurate.errors import ConfigError
from murmurate.workloads import synthetic
from murmurate.workloads.synthetic import CLASSES, INPUTS, Synthetic
from murmurate_coordinator.names import RULES
from murmurate_coordinator.solvers.effects import Reason
from murmurate_coordinator.virtual import VirtualSubnets
from murmurate_coordinator.virtual_setting import VirtualOutcome, VirtualSetting


class Clouds(Synthetic):
    def __init__(self) -> None:
        super().__init__("10000")
        self.lr, self.batch_size = 0.4, 32

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(INPUTS, 48), nn.ReLU(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, CLASSES)
        )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Such small matrices are quicker with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(rule: str, **more: object) -> VirtualOutcome:
    setting = {"peers": 4, "seconds": 120, "delay_s": 0.3, **more}
    return VirtualSubnets(Clouds(), VirtualSetting(rule=rule, **setting)).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_it_learns_and_a_seed_decides_everything(rule: str) -> None:
    one = run(rule, speeds={"node-1": 0.5}, widths={"node-0": 4, "node-1": 2})
    assert one.masked.accuracy > 0.5  # 10 classes
    assert one.refused == {}
    assert sum(one.steps.values()) > 100
    again = run(rule, speeds={"node-1": 0.5}, widths={"node-0": 4, "node-1": 2})
    assert one == again
    assert run(rule, seed=1).evaluation != one.evaluation


def test_only_a_barrier_waits_for_the_slow() -> None:
    """One peer ten times slower: it makes as many steps as ever, the others do not care."""
    slow = {"node-2": 0.1}
    for rule in ("async", "lease"):
        steps = run(rule, speeds=slow).steps
        assert steps["node-2"] <= 12
        assert min(steps[n] for n in ("node-0", "node-1", "node-3")) >= 110
    steps = run("once", speeds=slow).steps
    assert max(steps.values()) <= 20


def test_no_step_is_lost_without_churn() -> None:
    """Every step that had the time to arrive is in the model."""
    out = run("async", seconds=100.4, delay_s=0.3)  # the 99th ends at 99.3 and is there at 99.6
    assert out.samples == 4 * 99 * 32
    out = run("once", seconds=100.5, delay_s=0.0)
    assert out.samples == 4 * 100 * 32


Events = Callable[[int], dict[str, tuple[tuple[float, str], ...]]]


def churn(seed: int) -> dict[str, tuple[tuple[float, str], ...]]:
    """15 joins, 8 leaves and 7 kills, which the coordinator hears of later than of the newcomer."""
    rng = random.Random(seed)
    joins: list[tuple[float, str]] = []
    leaves: list[tuple[float, str]] = []
    kills: list[tuple[float, str]] = []
    here = [f"node-{k}" for k in range(4)]
    for k in range(15):
        time = 10.0 + 24 * k
        gone = here.pop(rng.randrange(len(here)))
        (kills if k % 2 else leaves).append((time + rng.random(), gone))
        joins.append((time + 1 + 2 * rng.random(), f"late-{k}"))
        here.append(f"late-{k}")
    return {"joins": tuple(joins), "leaves": tuple(leaves), "kills": tuple(kills)}


def wandering(seed: int) -> dict[str, tuple[tuple[float, str], ...]]:
    """30 joins, leaves and kills in any order, of whoever is there: from 2 to 6 members."""
    rng = random.Random(seed)
    events: dict[str, list[tuple[float, str]]] = {"joins": [], "leaves": [], "kills": []}
    here = [f"node-{k}" for k in range(4)]
    for k in range(30):
        what = rng.choice(["joins", "joins", "leaves", "kills"])
        if len(here) <= 2:
            what = "joins"
        elif what == "joins" and len(here) >= 6:
            what = "kills"
        name = f"late-{k}" if what == "joins" else here.pop(rng.randrange(len(here)))
        events[what].append((10.0 + 12 * k + rng.random(), name))
        here += [name] if what == "joins" else []
    return {what: tuple(times) for what, times in events.items()}


def thirty(
    rule: str, seeds: int, monkeypatch: pytest.MonkeyPatch, events: Events = churn, **more: object
) -> tuple[float, float]:
    """Mean accuracy of calm runs, and of runs with churn. Σ E_k = I, and that no unit is lost or
    owned twice, is checked after every event (`VirtualSubnets._carry_out`)."""
    monkeypatch.setattr(synthetic, "TEST_SAMPLES", 4096)  # 256 tell no 2 points apart
    means = []
    for stir in (False, True):
        accuracies = []
        for seed in range(seeds):
            clouds = Clouds()
            clouds.lr = 0.2
            words: dict[str, Any] = {**more, **(events(seed + 1) if stir else {})}
            setting = VirtualSetting(
                rule=rule, peers=4, seconds=400, delay_s=0.3, seed=seed, **words
            )
            out = VirtualSubnets(clouds, setting).run()
            assert set(out.refused) <= {Reason.OVER}
            accuracies.append(out.masked.accuracy)
        means.append(sum(accuracies) / seeds)
    return means[0], means[1]


@pytest.mark.parametrize("rule", ["once", "async"])
def test_thirty_joins_leaves_and_kills(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 2 points of the calm run. What it took: docs/ist.md."""
    calm, stirred = thirty(rule, 3, monkeypatch)
    assert stirred > calm - 0.02
    assert calm > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("push_s", [0.0, 3.0])
def test_churn_in_any_order(push_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when members push as seldom as real ones do."""
    calm, stirred = thirty("async", 4, monkeypatch, wandering, push_s=push_s)
    print(f"push_s {push_s}: {calm:.4f} {stirred:.4f}")
    assert stirred > calm - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_churn_under_every_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calm, stirred = thirty(rule, 4, monkeypatch)
    assert stirred > calm - 0.02


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"peers": 0}, "peers 0"),
        ({"seconds": 0}, "seconds 0"),
        ({"delay_s": -1}, "delay -1"),
        ({"speeds": {"node-0": 0}}, "speed node-0=0"),
        ({"peers": 49}, "seconds"),
    ],
)
def test_settings_that_are_none(more: dict[str, object], says: str) -> None:
    if more == {"peers": 49}:  # more peers than units: the last ones are told so, and do nothing
        out = run("async", peers=49, seconds=3)
        assert out.refused == {"full": 1}
        return
    with pytest.raises(ConfigError, match=says):
        run("async", **more)


def test_many_peers_take_seconds() -> None:
    torch.manual_seed(0)
    assert run("lease", peers=32, seconds=30).coverage["2.weight"] > 0.05


def test_asynchrony_pays_when_speeds_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick form of tests/paper/test_001_equal_time.py: equal time, two seeds, small clouds."""
    monkeypatch.setattr(synthetic, "TEST_SAMPLES", 4096)
    clouds = Clouds()
    clouds.lr = 0.2

    def points(rule: str, **speeds: float) -> float:
        named = {name.replace("_", "-"): speed for name, speed in speeds.items()}
        settings = [
            VirtualSetting(rule=rule, peers=4, seconds=100, seed=seed, speeds=named)
            for seed in (0, 1)
        ]
        return 50 * sum(VirtualSubnets(clouds, one).run().evaluation.accuracy for one in settings)

    sync, once, free = (points(rule, node_0=0.25) for rule in ("sync", "once", "async"))
    assert free - once >= 2
    assert once >= sync
    assert abs(points("async") - points("once")) <= 1
    assert points("async", node_3=0.1) - points("once", node_3=0.1) >= 3
