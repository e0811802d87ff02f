"""What the coordinator is told: keys of its own, and those of nodes' that are for it too.

A section that it shares with nodes is theirs with some keys said otherwise; what of it is not for a
coordinator (`Role.COORDINATOR`) stays at its default and is no key of this program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from murmurate.core.values.hub_settings import optimizer_problems
from murmurate.core.values.hub_settings import problems as hub_problems
from murmurate.core.values.member_half import FREELY, RULES_OF
from murmurate.programs.keys.config import listening, recipe_problems
from murmurate.programs.keys.gather import Given, gather, problem
from murmurate.programs.keys.key import Book, Role, key
from murmurate.programs.keys.kinds import (
    ABOVE_ZERO,
    ANY_ADDRESS,
    MADE,
    SHORT_NAME,
    YES_OR_NO,
    number,
    one_of,
    whole,
)
from murmurate.programs.keys.table import (
    CheckpointConfig,
    HubConfig,
    MetricsConfig,
    ReportConfig,
    TrainConfig,
)
from murmurate_coordinator.names import ALL_RULES, BATCHES, METRICS_PORT, MODES, PORT, PULL

OURS = Role.COORDINATOR
RULES_HELP = "; ".join(f"mode {mode}: {', '.join(rules)}" for mode, rules in RULES_OF.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSection:
    """Who it is, and where."""

    run: str = key(SHORT_NAME, "murmurate", "of the training; members of another are refused", OURS)
    listen: str = key(
        ANY_ADDRESS, f"127.0.0.1:{PORT}", "where members come; port 0 takes a free one", OURS
    )
    insecure: bool = key(YES_OR_NO, False, "listen beyond this machine, without encryption", OURS)
    founders: int = key(
        whole(1), 1, "wait for so many members before the first is given anything", OURS
    )
    train: bool = key(YES_OR_NO, False, "train a subnet here too, in a process of its own", OURS)
    width: float = key(
        ABOVE_ZERO,
        0.0,
        "of that subnet, relative to the others'",
        OURS,
        unset="as it is fast",
    )
    seed: int = key(whole(0), 0, "of the first weights and of who gets what", OURS)
    threads: int = key(whole(0), 1, "for torch; 0: all cores", OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTrainConfig(TrainConfig):
    """What is trained, and for how long. None: the workload decides (or: no limit).

    Split, shard and the optimizer are of its own member, and of a rule that has an optimizer."""

    evaluate_s: float | None = key(
        number(0),
        None,
        "seconds between evaluations of the whole; 0: at the end only",
        OURS,
        unset="5",
    )
    mode: str = key(
        one_of(MODES),
        "ist",
        "ist: members train subnets; hub: the whole model; batches: a generator",
        OURS,
    )
    rule: str = key(one_of(ALL_RULES), "async", RULES_HELP, OURS)
    every: int | None = key(
        whole(1),
        None,
        "local steps until a push; ist async: as they like",
        OURS,
        unset="10; of a gradient 1",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorMetricsConfig(MetricsConfig):
    """Where its figures are served; None: nowhere."""

    listen: str | None = key(
        ANY_ADDRESS,
        None,
        f"serve /metrics, probes and the model there, such as 127.0.0.1:{METRICS_PORT}",
        OURS,
        option="metrics",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorReportConfig(ReportConfig):
    """What is written at the end."""

    model: str | None = key(MADE, None, "safetensors file for the model at the end", OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """All of it."""

    coordinator: CoordinatorSection = field(default_factory=CoordinatorSection)
    train: CoordinatorTrainConfig = field(default_factory=CoordinatorTrainConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: CoordinatorMetricsConfig = field(default_factory=CoordinatorMetricsConfig)
    report: CoordinatorReportConfig = field(default_factory=CoordinatorReportConfig)


COORDINATOR_KEYS = Book(CoordinatorConfig, OURS)
KEYS = COORDINATOR_KEYS.keys


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> CoordinatorConfig:
    """The configuration; ConfigError with one line for each thing that is wrong."""
    found = gather(COORDINATOR_KEYS, file, environment or {}, options or {}, _together)
    if found["train"].get("mode") == BATCHES:
        found["train"]["rule"] = PULL
    made: CoordinatorConfig = COORDINATOR_KEYS.made(found)
    return made


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
        said = {path.removeprefix("train."): v for path, v in values.items() if v is not None}
        wrong = optimizer_problems(rule, said)
        found |= {f"train.{name}": accepted for name, accepted in wrong.items()}
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
