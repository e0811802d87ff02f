"""One cell of `bench/converge.py`: a training in virtual time, and what came of it.

A step takes one virtual second, so seconds are steps of a node at full speed. The rates are the
ones that suit one node (`converge.py --tune`), and stay as they are for any number of peers.
"""

from __future__ import annotations

import functools
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from murmurate.core.codecs.choice import AUTO, parse_codec
from murmurate.core.gossip.ways import WAYS, data_problem
from murmurate.core.layout import Layout
from murmurate.study.race.results import reached
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.synchronous import SynchronousMean
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads import Workload, load
from murmurate.workloads.char_transformer import made_up_text

SYNCHRONOUS = "synchronous"
ALONE = "alone"
POINTS = 12
"""Evaluations on the way."""
TEST_SAMPLES = 2000
NARROW_STEPS = 50
"""On a narrow link one model takes so many steps to send."""
REGIMES = ("equal", "one-slow", "half-slow", "delay-1", "delay-16", "narrow")
MORE_REGIMES = ("delay-4", "churn")
"""delay-4 is asked for of Adam; churn: a quarter of n, all of n, a quarter of n."""


@dataclass(frozen=True, slots=True)
class Task:
    """A workload at the rate that suits one node."""

    spec: str
    lr: float
    text: bool = False
    adam: bool = False
    """Trained with Adam instead of the workload's own optimizer."""


TASKS = {
    "mlp": Task("fashion-mnist-mlp", 0.02),
    "mlp-adam": Task("fashion-mnist-mlp", 0.001, adam=True),
    "lenet": Task("fashion-mnist", 0.02),
    "word2vec": Task("word2vec", 6.4, text=True),
    "transformer-adam": Task("char-transformer:adam", 0.003, text=True),
    "transformer-adamw": Task("char-transformer:adamw", 0.003, text=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is trained, by which rule, with how many, under which circumstances."""

    workload: str
    rule: str
    """A rule of gossip, with `:own` for peers that say their data differ; or synchronous."""
    n: int
    regime: str = "equal"
    lr_factor: float = 1.0
    split: str = "none"
    codec: str = AUTO
    seed: int = 0
    steps: int = 300
    text: str = ""
    """The name of the text's file; none: a text that is made up."""

    @property
    def alone(self) -> Cell:
        """The same with one node: no rule and no regime makes a difference to it."""
        return Cell(
            workload=self.workload,
            rule=ALONE,
            n=1,
            lr_factor=self.lr_factor,
            seed=self.seed,
            steps=self.steps,
            text=self.text,
        )

    @property
    def key(self) -> str:
        return "/".join(str(value) for value in asdict(self).values())

    def problem(self) -> str | None:
        """Why there is no such cell."""
        if self.regime == "churn" and (self.rule == SYNCHRONOUS or self.n < 4):
            return "nobody comes or goes"
        if self.split == "labels" and self.n > 10:
            return "ten labels for more peers than that"
        if self.split != "none" and TASKS[self.workload].text:
            return "text has no labels"
        if self.codec not in (AUTO, "fp32") and (
            self.rule == SYNCHRONOUS or not WAYS[self.way].sends_updates
        ):
            return "sends no updates"
        return None

    @property
    def way(self) -> str:
        return self.rule.partition(":")[0]

    @property
    def cost(self) -> float:
        """About proportional to the time it takes: steps, and what is folded in."""
        steps = float(self.n * self.steps) * (10.0 if TASKS[self.workload].text else 1.0)
        folds = 0.0 if self.rule in (SYNCHRONOUS, ALONE) else self.n * self.n * self.steps / 2
        return steps + folds * (2 if self.rule in ("sum", "capped") else 1)


def contenders(split: str) -> list[str]:
    """Every rule of gossip there is, and the synchronous mean; where peers hold different data,
    also with their saying so."""
    own = [f"{rule}:own" for rule in WAYS if split != "none" and not data_problem(rule, "own")]
    return [*own, *WAYS, SYNCHRONOUS]


@functools.cache
def _workload(spec: str, data: str | None, adam: bool) -> Workload:
    workload = load(spec, data=data)
    if adam:
        workload.optimizer = lambda model: torch.optim.Adam(  # type: ignore[method-assign]
            model.parameters(), lr=workload.lr
        )
    if hasattr(workload, "shorten_test"):
        workload.shorten_test(TEST_SAMPLES)
    return workload


@functools.cache
def _made_up() -> str:
    """A file for workloads that want one, when no text was given."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.write(made_up_text())
    return file.name


def workload_of(cell: Cell, text: str | None = None) -> Workload:
    task = TASKS[cell.workload]
    data = (text or _made_up()) if task.text else None
    workload = _workload(task.spec, data, task.adam)
    workload.lr = task.lr * cell.lr_factor
    return workload


def circumstances(cell: Cell, nbytes: int) -> dict[str, Any]:
    """The regime, as a training in virtual time is told of it."""
    names = [f"node-{number}" for number in range(cell.n)]
    third = cell.steps / 3
    told: Mapping[str, dict[str, Any]] = {
        "equal": {},
        "one-slow": {"speeds": {names[-1]: 0.1}},
        "half-slow": {"speeds": dict.fromkeys(names[(cell.n + 1) // 2 :], 0.25)},
        "delay-1": {"delay_s": 1.0},
        "delay-4": {"delay_s": 4.0},
        "delay-16": {"delay_s": 16.0},
        "narrow": {"link_bytes_s": nbytes / NARROW_STEPS},
        "churn": {
            "joins_s": dict.fromkeys(names[cell.n // 4 :], third),
            "leaves_s": dict.fromkeys(names[cell.n // 4 :], 2 * third),
        },
    }
    return told[cell.regime] if cell.n > 1 else {}


def run(cell: Cell, text: str | None = None) -> dict[str, Any]:
    """Train, evaluate on the way and at the end. What came of it, as JSON has it."""
    torch.set_num_threads(1)
    began = time.process_time()
    workload = workload_of(cell, text)
    nbytes = Layout.of(workload.model())[0].nbytes
    engine = _engine(cell, workload, circumstances(cell, nbytes))
    curve = []
    for point in range(1, POINTS + 1):
        engine.events.run_until(cell.steps * point / POINTS)
        curve.append([engine.events.time, *_found(engine)])
    at_time = list(engine.figures())
    steps, samples = [one.steps for one in at_time], engine.samples()
    sent = [one.bytes_sent for one in at_time]
    if isinstance(engine, GossipWorld):
        engine.settle()  # what is on its way at the end arrives, as `finish` has it
    loss, accuracy = _found(engine)
    published = sum(one.published for one in at_time)
    return {
        "cell": asdict(cell),
        "key": cell.key,
        "loss": loss,
        "accuracy": accuracy,
        "curve": curve,
        "bytes_per_node": sum(sent) / len(sent),
        "models_per_node": sum(sent) / len(sent) / nbytes,
        "steps_per_update": sum(steps) / published if published else None,
        "samples": samples,
        "wait_share": max(one.wait_s for one in at_time) / cell.steps,
        "staleness": _staleness(engine),
        "cpu_s": time.process_time() - began,
    }


def _engine(
    cell: Cell, workload: Workload, circumstances: dict[str, Any]
) -> GossipWorld | SynchronousMean:
    if cell.rule == SYNCHRONOUS:
        task = VirtualTraining(
            workload=workload, nodes=cell.n, rule=SYNCHRONOUS, seed=cell.seed, split=cell.split,
            **circumstances,
        )  # fmt: skip
        return SynchronousMean(task)
    way, _, data = cell.rule.partition(":")
    if cell.codec != AUTO:
        choice = parse_codec(cell.codec)
        circumstances["codecs"] = {f"node-{number}": choice for number in range(cell.n)}
    return GossipWorld(
        VirtualTraining(
            workload=workload,
            nodes=cell.n,
            rule="sum" if way == ALONE else way,
            seed=cell.seed,
            split=cell.split,
            data=data or "same",
            **circumstances,
        )
    )


def _found(engine: GossipWorld | SynchronousMean) -> tuple[float | None, float | None]:
    """Loss and accuracy on the test set, as they are now; None: not a number."""
    found = engine.evaluate()
    if found is None:
        return None, None
    return _finite(found.test_loss), _finite(found.accuracy)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _staleness(engine: GossipWorld | SynchronousMean) -> float | None:
    count = sum(one.staleness.count for one in engine.figures())
    return sum(one.staleness.total for one in engine.figures()) / count if count else None


def value_of(result: Mapping[str, Any]) -> float:
    """What is compared, more is better: points of accuracy, or minus the loss where there is no
    accuracy. One that came to nothing is as bad as can be."""
    return _value(result["loss"], result["accuracy"])


def _value(loss: float | None, accuracy: float | None) -> float:
    if accuracy is not None:
        return 100 * accuracy
    return -math.inf if loss is None else -loss


def time_to(result: Mapping[str, Any], goal: float) -> float | None:
    """The part of the run after which the value was reached, by straight lines between points;
    None: never."""
    whole = result["cell"]["steps"]
    points = [*result["curve"], [whole, result["loss"], result["accuracy"]]]
    found = reached([(at, _value(loss, accuracy)) for at, loss, accuracy in points], goal)
    return None if found is None else float(found / whole)
