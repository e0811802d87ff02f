"""What `murmurate up` was asked for, and the command lines that come of it. Without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from murmurate.core.codecs.choice import parse_codec
from murmurate.core.gossip.ways import mixes_weights
from murmurate.core.synchronous.rules import (
    GROUP_SIZE,
    GROUPED,
    HIERARCHICAL,
    RULES_IN_STEP,
    group_problem,
)
from murmurate.core.values.hub_settings import optimizer_problems
from murmurate.core.values.hub_settings import problems as hub_problems
from murmurate.core.values.member_half import RULES_OF
from murmurate.core.values.slowness import Slowness, parse_slowness
from murmurate.edge.runtime.shared_machine import cores
from murmurate.errors import ConfigError
from murmurate.programs.keys.key import MEMBER, Role, value_of, written
from murmurate.programs.keys.table import UP_KEYS, Config, TrainConfig

GENERATOR, COORDINATOR = "generator", "coordinator"


class Kill(NamedTuple):
    """End this node, without a word to it, when this part of the budget is spent."""

    name: str
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """A run of `up`: how many nodes, what each is told, and what is done to some of them."""

    nodes: int = 4
    config: Config = field(default_factory=Config)
    kills: tuple[Kill, ...] = ()
    slow_s: Mapping[str, Slowness] = field(default_factory=dict)
    codecs: Mapping[str, str] = field(default_factory=dict)
    generator: bool = False
    """One more process deals the batches; the budget is its own."""
    widths: tuple[float, ...] = ()
    """Mode ist: how large each subnet is, relative to the others'; none: as they are fast."""
    trajectory: bool = False
    """Keep weights now and then, in a folder beside the report."""

    @property
    def rule(self) -> str:
        mode, rule = self.config.train.mode, self.config.train.rule
        return "async" if mode in RULES_OF and rule not in RULES_OF[mode] else rule

    @property
    def names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]


def parse_kill(text: str, names: Sequence[str]) -> Kill:
    """`node-1@30%`."""
    match = re.fullmatch(r"(.+)@(\d{1,3}(?:\.\d+)?)%", text)
    if match is None or not float(match[2]) < 100:
        raise ConfigError(f"--kill {text!r}: NAME@PART% with 0 to 99 %, such as node-1@30%")
    return Kill(known("--kill", match[1], names), float(match[2]) / 100)


def parse_slow(text: str, names: Sequence[str]) -> dict[str, Slowness]:
    """`node-2=0.09`, of one node, or `gaussian(0.06,0.005)`, of all: what is waited after each
    step."""
    name, equals, what = text.rpartition("=")
    try:
        slowness = parse_slowness(what)
    except ConfigError:
        raise ConfigError(
            f"--slow {text!r}: [NAME=]SECONDS, such as node-2=0.09, or instead of seconds"
            " gaussian(MEAN,DEVIATION), exponential(SHIFT,MEAN), xFACTOR from x1 on"
        ) from None
    return dict.fromkeys([known("--slow", name, names)] if equals else names, slowness)


def parse_codecs(texts: Sequence[str], names: Sequence[str], rule: str) -> dict[str, str]:
    """`int8`, of all nodes, or `node-2=int8`, of one; the codec of each."""
    everyone: str | None = None
    codecs: dict[str, str] = {}
    for text in texts:
        name, equals, codec = text.rpartition("=")
        if not parse_codec(codec).plain and mixes_weights(rule):
            raise ConfigError(f"--codec {text!r}: with rule {rule} everything is sent as it is")
        if equals:
            codecs[known("--codec", name, names)] = codec
        elif everyone is None:
            everyone = codec
        else:
            raise ConfigError(f"--codec {text!r}: {everyone} was for all nodes already")
    return {name: everyone for name in names if everyone is not None} | codecs


def known(option: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ConfigError(f"{option} {name!r}: one of {', '.join(names)}")
    return name


def plan(
    nodes: int,
    config: Config,
    *,
    kill: Sequence[str] = (),
    slow: Sequence[str] = (),
    codec: Sequence[str] = (),
    generator: bool = False,
    trajectory: bool = False,
    widths: str | None = None,
) -> UpPlan:
    """All of it checked; ConfigError with a line for each mistake."""
    problems: list[str] = []
    names = UpPlan(nodes=nodes).names
    kills: list[Kill] = []
    slow_s: dict[str, Slowness] = {}
    codecs: dict[str, str] = {}
    mode = config.train.mode
    centred = mode in RULES_OF
    others = [GENERATOR] if generator else [COORDINATOR] if centred else []
    for text in kill:
        try:
            kills.append(parse_kill(text, [*names, *others]))
        except ConfigError as error:
            problems.append(str(error))
    for text in slow:
        try:
            slow_s |= parse_slow(text, names)
        except ConfigError as error:
            problems.append(str(error))
    try:
        codecs = parse_codecs(codec, names, config.train.rule)
    except ConfigError as error:
        problems.append(str(error))
    if len({each.name for each in kills}) < len(kills):
        problems.append("--kill: each node at most once")
    if generator:
        problems += generator_problems(config.train)
    if trajectory and config.report.path is None:
        problems.append("--trajectory: needs --report FILE: the weights are kept beside it")
    shares: list[float] = []
    try:
        shares = parse_widths(widths, nodes, "--nodes") if widths and mode == "ist" else []
    except ConfigError as error:
        problems.append(str(error))
    for option, given in (("--widths", widths), ("--memory", config.ist.memory)):
        if given and mode != "ist":
            problems.append(f"{option}: only with --mode ist")
    in_step = config.train.mode in RULES_IN_STEP
    if config.train.rule in (HIERARCHICAL, *GROUPED) and (
        what := group_problem(nodes, config.train.group or GROUP_SIZE)
    ):
        problems.append(f"--group {config.train.group or GROUP_SIZE}: {what}")
    if mode == "hub":
        problems += said_of_a_hub(UpPlan(config=config).rule, config, nodes)
    for option, here in (
        ("--generator", generator),
        ("--trajectory", trajectory and centred),
        ("--codec", codec),
    ):
        if here and (centred or in_step):
            problems.append(f"{option}: only with --mode gossip")
    if problems:
        raise ConfigError("\n".join(problems))
    return UpPlan(
        nodes=nodes,
        config=config,
        kills=tuple(kills),
        slow_s=slow_s,
        codecs=codecs,
        generator=generator,
        trajectory=trajectory,
        widths=tuple(shares),
    )


def generator_problems(train: TrainConfig, modes: Sequence[str] = ()) -> list[str]:
    """What a generator does not go with. `modes`: the only ones; none: said elsewhere."""
    problems = []
    if modes and train.mode not in modes:
        problems.append(f"--generator: only with --mode {', '.join(modes)}")
    if mixes_weights(train.rule):
        problems.append("--generator: not with rule average, which sends no updates")
    if train.recipe.changes:
        problems.append(
            "--generator: not with --schedule, --warmup, --batch-warmup: how far the run is, is"
            " known to it alone"
        )
    return problems


def parse_widths(text: str | None, peers: int, option: str = "--peers") -> list[float]:
    """`4,2,1,1`: one for each peer, above 0; None: all alike."""
    if peers < 1:
        raise ConfigError(f"{option} {peers}: must be at least 1")
    if text is None:
        return [1.0] * peers
    try:
        widths = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--widths {text!r}: expected numbers like 4,2,1,1") from None
    if len(widths) != peers:
        raise ConfigError(f"--widths {text}: {len(widths)} widths for {peers} peers")
    for width in widths:
        if not 0 < width < float("inf"):
            raise ConfigError(f"--widths {text}: {width:g} must be above 0")
    return widths


def trajectories(plan: UpPlan) -> Path | None:
    """The folder for weights kept now and then: `out.trajectory` beside `out.json`."""
    path = plan.config.report.path
    return Path(path).with_suffix(".trajectory") if plan.trajectory and path else None


def command(plan: UpPlan, number: int, folder: Path, coordinator: str | None = None) -> list[str]:
    """How node `number` is started. `coordinator`: where the hub across groups is."""
    config, name, kept_in = plan.config, plan.names[number], trajectories(plan)
    given = passed_on(config, Role.PEER | Role.IN_STEP) | {
        "--name": name,
        "--listen": "127.0.0.1:0",
        "--peers": "-",
        "--threads": _threads(plan),
        "--shard": f"{number}/{plan.nodes}",
        "--codec": plan.codecs.get(name, config.train.codec),
        "--slow-s": plan.slow_s.get(name, config.train.slow_s),
        "--checkpoint": config.checkpoint.dir and Path(config.checkpoint.dir) / name,
        "--metrics": metrics_listen(config.metrics.listen, number),
        "--report": None,
        "--weights": folder / f"{name}.npy",
        "--trajectory": kept_in and kept_in / f"{name}.safetensors",
        "--coordinator": coordinator,
    }
    if plan.generator:  # the budget is its own
        given |= {"--generator": "-", "--samples": None, "--seconds": None}
    return _process("node", given)


def passed_on(config: Config, role: Role) -> dict[str, object]:
    """The options of `up` that such a process takes too, as they were given to it."""
    taken = (key for key in UP_KEYS.keys if key.roles & role)
    return {key.option: value_of(config, key) for key in taken}


def _threads(plan: UpPlan) -> int:
    return plan.config.node.threads or max(1, cores() // plan.nodes)


def metrics_listen(listen: str | None, number: int) -> str | None:
    """One port after the other; 0: a free one for each."""
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) + number if int(port) else 0}"


def generator_command(plan: UpPlan) -> list[str]:
    """How the one that deals the batches is started."""
    node, train, kept = plan.config.node, plan.config.train, plan.config.checkpoint
    return _process(
        COORDINATOR,
        {
            "--mode": "batches",
            "--run": node.run,
            "--listen": "127.0.0.1:0",
            "--checkpoint": kept.dir and Path(kept.dir) / GENERATOR,
            "--checkpoint-every-s": kept.every_s if kept.dir else None,
            "--seed": node.seed,
            "--workload": train.workload,
            "--data": train.data,
            "--batch-size": train.batch_size,
            "--samples": train.samples,
            "--seconds": train.seconds,
            "--validation": train.validation,
        },
    )


def said_of_a_hub(rule: str, config: Config, nodes: int) -> list[str]:
    """What of it this rule does not have, or not with so many members."""
    wrong = {
        f"hub-{name}": why for name, why in hub_problems(rule, config.hub.given, nodes).items()
    }
    recipe = config.train.recipe
    said = recipe.options() | ({"optimizer": recipe.optimizer} if recipe.optimizer else {})
    wrong |= optimizer_problems(rule, said)
    return [f"--{name.replace('_', '-')}: {accepted}" for name, accepted in wrong.items()]


def member_command(plan: UpPlan, number: int) -> list[str]:
    """How a member of a coordinator is started."""
    config, name = plan.config, plan.names[number]
    given = passed_on(config, MEMBER) | {
        "--name": name,
        "--peers": "-",
        "--coordinator": "-",
        "--width": plan.widths[number] if plan.widths else None,
        "--memory": config.ist.memory or None,
        "--threads": _threads(plan),
        "--shard": f"{number}/{plan.nodes}",
        "--slow-s": plan.slow_s.get(name, config.train.slow_s),
        "--metrics": metrics_listen(config.metrics.listen, number + 1),
        "--report": None,
    }
    return _process("node", given)


def coordinator_command(plan: UpPlan, *, listen: str = "127.0.0.1:0") -> list[str]:
    """How the coordinator is started; its budget, if it is the workload's, comes with go."""
    config, kept = plan.config, plan.config.checkpoint
    given = passed_on(config, Role.COORDINATOR) | {
        "--run": config.node.run,
        "--seed": config.node.seed,
        "--listen": listen,
        "--founders": plan.nodes,
        "--rule": plan.rule,
        "--checkpoint": kept.dir and Path(kept.dir) / COORDINATOR,
        "--metrics": metrics_listen(config.metrics.listen, 0),
        "--report": None,
    }
    return _process(COORDINATOR, given)


def hub_across_command(plan: UpPlan) -> list[str]:
    """How the hub with which groups exchange is started. Its end is told: the budget is theirs."""
    node, train = plan.config.node, plan.config.train
    size = train.group or GROUP_SIZE
    return _process(
        COORDINATOR,
        {
            "--mode": "hub",
            "--rule": "ea-wild",
            "--run": node.run,
            "--seed": node.seed,
            "--listen": "127.0.0.1:0",
            "--founders": -(-plan.nodes // size),
            "--workload": train.workload,
            "--data": train.data,
            "--batch-size": train.batch_size,
            "--lr": train.lr,
            "--evaluate-s": 0,
        },
    )


def _process(kind: str, given: Mapping[str, object]) -> list[str]:
    words = [f"{option}={written(value)}" for option, value in given.items() if value is not None]
    return [kind, "--events", *words]
