"""What the coordinator is told: the same machinery as a node's
(`murmurate.programs.keys.config`), other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.hub_settings import problems as hub_problems
from murmurate.core.values.member_half import FREELY, RULES_OF
from murmurate.core.values.recipe import Recipe
from murmurate.programs.keys.config import (
    NODE,
    CheckpointConfig,
    MetricsConfig,
    listening,
    recipe_problems,
)
from murmurate.programs.keys.gather import Book, Given, Key, gather, problem
from murmurate.programs.keys.hub import HUB_KEYS
from murmurate.programs.keys.kinds import (
    ADDRESS,
    FILE,
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Shard,
    is_address,
    is_flag,
    is_writable,
    number,
    one_of,
    whole,
)
from murmurate_coordinator.names import ALL_RULES, BATCHES, METRICS_PORT, MODES, PORT, PULL


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSection:
    """Who it is, and where."""

    run: str = "murmurate"
    listen: str = f"127.0.0.1:{PORT}"
    insecure: bool = False
    founders: int = 1
    train: bool = False
    width: float = 0.0
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTrainConfig:
    """What is trained, and for how long. None: the workload decides (or: no limit)."""

    workload: str = "digits"
    data: str | None = None
    batch_size: int | None = None
    lr: float | None = None
    optimizer: str | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    split: str = "none"
    shard: Shard = field(default_factory=Shard)
    """Of its own member, like split."""
    mode: str = "ist"
    rule: str = "async"
    every: int | None = None
    """None: 1 where gradients go up, else 10."""
    samples: int | None = None
    seconds: float | None = None
    evaluate_s: float | None = None
    validation: float | None = None

    @property
    def recipe(self) -> Recipe:
        """Of its own member, and of a rule that has an optimizer."""
        return Recipe(
            optimizer=self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorReportConfig:
    path: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """All of it."""

    coordinator: CoordinatorSection = field(default_factory=CoordinatorSection)
    train: CoordinatorTrainConfig = field(default_factory=CoordinatorTrainConfig)
    hub: HubSettings = field(default_factory=HubSettings)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    report: CoordinatorReportConfig = field(default_factory=CoordinatorReportConfig)


RULES_HELP = "; ".join(f"mode {mode}: {', '.join(rules)}" for mode, rules in RULES_OF.items())
EVERY_HELP = "local steps until a push (default 10; of a gradient 1); ist async: as they like"
MODE_HELP = "ist: members train subnets (default); hub: the whole model; batches: a generator"
EVALUATE_HELP = "seconds between evaluations of the whole (default 5); 0: at the end only"
LISTEN_HELP = f"where members come (default 127.0.0.1:{PORT}); port 0 takes a free one"
FOUNDERS_HELP = "wait for so many members before the first is given anything (default 1)"
TRAIN_HELP = "train a subnet here too, in a process of its own"
WIDTH_HELP = "of that subnet, relative to the others' (default: as it is fast)"
METRICS_HELP = f"serve /metrics, probes and the model there, such as 127.0.0.1:{METRICS_PORT}"

_NODE = NODE.by_path
KEYS = (
    _NODE["node.run"]._replace(section="coordinator"),
    Key("coordinator", "listen", ADDRESS, is_address, LISTEN_HELP),
    Key("coordinator", "insecure", FLAG, is_flag, _NODE["node.insecure"].meaning),
    Key("coordinator", "founders", WHOLE, whole(1), FOUNDERS_HELP),
    Key("coordinator", "train", FLAG, is_flag, TRAIN_HELP),
    Key("coordinator", "width", NUMBER, number(0, above=True), WIDTH_HELP),
    Key("coordinator", "seed", WHOLE, whole(0), "of the first weights and of who gets what"),
    Key("coordinator", "threads", WHOLE, whole(0), "for torch (default 1); 0: all cores"),
    *(
        _NODE[f"train.{name}"]
        for name in (
            *("workload", "data", "batch_size", "lr", "optimizer", "momentum", "nesterov"),
            *("weight_decay", "split", "shard", "samples", "seconds"),
        )
    ),
    Key("train", "evaluate_s", NUMBER, number(0), EVALUATE_HELP),
    _NODE["train.validation"],
    Key("train", "mode", TEXT, one_of(MODES), MODE_HELP),
    Key("train", "rule", TEXT, one_of(ALL_RULES), f"{RULES_HELP} (default async)"),
    Key("train", "every", WHOLE, whole(1), EVERY_HELP),
    *HUB_KEYS,
    _NODE["checkpoint.dir"],
    _NODE["checkpoint.every_s"],
    Key("metrics", "listen", ADDRESS, is_address, METRICS_HELP),
    _NODE["report.path"],
    Key("report", "model", FILE, is_writable, "safetensors file for the model at the end"),
)
BOOK = Book(KEYS)


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> CoordinatorConfig:
    """The configuration; ConfigError with one line for each thing that is wrong."""
    found = gather(BOOK, file, environment or {}, options or {}, _together)
    if found["train"].get("mode") == BATCHES:
        found["train"]["rule"] = PULL
    return CoordinatorConfig(
        coordinator=CoordinatorSection(**found["coordinator"]),
        train=CoordinatorTrainConfig(**found["train"]),
        hub=HubSettings(**found["hub"]),
        checkpoint=CheckpointConfig(**found["checkpoint"]),
        metrics=MetricsConfig(**found["metrics"]),
        report=CoordinatorReportConfig(**found["report"]),
    )


def _together(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    listen = values.get(
        "coordinator.listen", "" if "coordinator.listen" in given else CoordinatorSection().listen
    )
    problems = listening("coordinator", listen, values, given)
    problems += recipe_problems(values, given)
    if "coordinator.width" in values and not values.get("coordinator.train"):
        place, value = given["coordinator.width"]
        problems.append(problem(place, "coordinator.width", value, "only with train = true"))
    return problems + _rules(values, given)


def _rules(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What the mode and its rule do not have."""
    default = CoordinatorTrainConfig()
    mode, rule = values.get("train.mode", default.mode), values.get("train.rule", default.rule)
    rules = RULES_OF.get(mode, {PULL: FREELY})
    if mode == BATCHES and "train.rule" not in given:
        rule = PULL
    hub = {path.removeprefix("hub."): v for path, v in values.items() if path.startswith("hub.")}
    found: dict[str, str] = {}
    if rule not in rules:
        found["train.rule"] = f"{', '.join(rules)} with mode {mode}"
    elif mode == "hub":
        members = values.get("coordinator.founders")
        wrong = hub_problems(rule, hub, members)
        found |= {f"hub.{name}": accepted for name, accepted in wrong.items()}
    if mode == BATCHES:
        absent = ("coordinator.train", "report.model", "train.every", "train.evaluate_s")
        found |= {
            path: "not with mode batches: no model is here" for path in absent if path in values
        }
    if mode != "hub":
        found |= {f"hub.{name}": "only with mode hub" for name in hub}
    out = []
    for path, accepted in found.items():
        place, value = given.get(path, Given("default", values.get(path)))
        out.append(problem(place, path, value, accepted))
    return out
