"""What `murmurate up --virtual` was asked for. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from murmurate.core.synchronous.rules import (
    ALLREDUCE,
    GROUP_SIZE,
    GROUPED,
    HIERARCHICAL,
    group_problem,
)
from murmurate.core.values.slowness import Slowness
from murmurate.errors import ConfigError
from murmurate.programs.keys.table import Config
from murmurate.programs.up.launch import (
    GENERATOR,
    Kill,
    generator_problems,
    parse_codecs,
    parse_kill,
    parse_slow,
    parse_widths,
    said_of_a_hub,
)
from murmurate.study.virtual.costs import SaidCosts, cores_said, parse_costs
from murmurate.study.virtual.said import moment, moments_that_cannot_be, number


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPlan:
    """What was asked for, checked as far as that goes without the workload."""

    nodes: int
    config: Config
    speeds: Mapping[str, float] = field(default_factory=dict)
    costs: SaidCosts = field(default_factory=SaidCosts)
    cores: float | None = None
    """That all nodes share; None: each has its own."""
    slow_s: Mapping[str, Slowness] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)
    delay_s: float = 0.0
    delays_s: Mapping[str, float] = field(default_factory=dict)
    link_bytes_s: float | None = None
    links_bytes_s: Mapping[str, float] = field(default_factory=dict)
    joins_s: Mapping[str, float] = field(default_factory=dict)
    leaves_s: Mapping[str, float] = field(default_factory=dict)
    kills: tuple[Kill, ...] = ()
    trajectory: bool = False
    codecs: Mapping[str, str] = field(default_factory=dict)
    generator: bool = False
    batches_per_s: float | None = None
    """What the generator gives out; None: at once."""


def plan(
    nodes: int,
    config: Config,
    *,
    speed: Sequence[str] = (),
    step: str | None = None,
    fold: str | None = None,
    message: str | None = None,
    cores: str | None = None,
    slow: Sequence[str] = (),
    delay: Sequence[str] = (),
    link: Sequence[str] = (),
    join: Sequence[str] = (),
    leave: Sequence[str] = (),
    widths: str | None = None,
    kill: Sequence[str] = (),
    codec: Sequence[str] = (),
    generator: bool = False,
    trajectory: bool = False,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> VirtualPlan:
    """ConfigError with a line for each mistake. `refused`: options that need a real machine, and
    why."""
    problems = [f"{option}: not with --virtual; {why}" for option, why in refused.items()]
    if config.checkpoint.dir is not None:
        problems.append("--checkpoint: not with --virtual; the same command gives the same run")
    if config.metrics.listen is not None:
        problems.append("--metrics: not with --virtual; there is no process to ask; see --report")
    names = [f"node-{number}" for number in range(nodes)]
    speeds: dict[str, float] = {}
    slow_s: dict[str, Slowness] = {}
    delays: dict[str, float] = {}
    links: dict[str, float] = {}
    moments: dict[str, dict[str, float]] = {"--join": {}, "--leave": {}}
    kills: list[Kill] = []
    shares: dict[str, float] = {}
    codecs: dict[str, str] = {}
    delay_s, link_bytes_s = 0.0, None
    costs = SaidCosts()
    cores_of = None
    try:
        costs = parse_costs(step, fold, message)
        cores_of = cores_said(cores)
    except ConfigError as error:
        problems.append(str(error))
    try:
        codecs = parse_codecs(codec, names, config.train.rule)
    except ConfigError as error:
        problems.append(str(error))
    if codec and config.train.mode != "gossip":
        problems.append("--codec: only with --mode gossip")
    try:
        if widths is not None and config.train.mode == "ist":
            shares = dict(zip(names, parse_widths(widths, nodes, "--nodes"), strict=True))
    except ConfigError as error:
        problems.append(str(error))
    for option, given in (("--widths", widths), ("--memory", config.ist.memory)):
        if given and config.train.mode != "ist":
            problems.append(f"{option}: only with --mode ist")
    if config.train.mode == "hub":
        problems += said_of_a_hub(config.train.rule, config, nodes)
    for option, some in (
        *(("--link-bytes-s", link), ("--join", join), ("--leave", leave)),
        *(("--message-s", message), ("--cores", cores)),
    ):
        in_step = config.train.mode == ALLREDUCE and option == "--link-bytes-s"
        if some and config.train.mode != "gossip" and not in_step:
            problems.append(f"{option}: only with --mode gossip")
    if generator:
        problems += generator_problems(config.train, ("gossip",))
    if config.train.rule in (HIERARCHICAL, *GROUPED) and (
        what := group_problem(nodes, config.train.group or GROUP_SIZE)
    ):
        problems.append(f"--group {config.train.group or GROUP_SIZE}: {what}")
    for option, texts, out in (
        ("--speed", speed, speeds),
        ("--delay-s", delay, delays),
        ("--link-bytes-s", link, links),
    ):
        for text in texts:
            try:
                dealt = [GENERATOR] if generator and option == "--speed" else []
                name, value = number(option, text, [*names, *dealt])
            except ConfigError as error:
                problems.append(str(error))
                continue
            if name:
                out[name] = value
            elif option == "--delay-s":
                delay_s = value
            elif option == "--link-bytes-s":
                link_bytes_s = value
            else:
                speeds |= {each: value for each in names if each not in speeds}
    if trajectory and config.report.path is None:
        problems.append("--trajectory: needs --report FILE: the weights are kept beside it")
    for text in slow:
        try:
            slow_s |= parse_slow(text, names)
        except ConfigError as error:
            problems.append(str(error))
    for text in kill:
        try:
            kills.append(parse_kill(text, names))
        except ConfigError as error:
            problems.append(str(error))
    for option, texts in (("--join", join), ("--leave", leave)):
        for text in texts:
            try:
                name, value = moment(option, text, names)
            except ConfigError as error:
                problems.append(str(error))
            else:
                moments[option][name] = value
    problems += moments_that_cannot_be(moments["--join"], moments["--leave"], names)
    batches_per_s = speeds.pop(GENERATOR, None)
    if problems:
        raise ConfigError("\n".join(problems))
    return VirtualPlan(
        nodes=nodes,
        config=config,
        speeds=speeds,
        costs=costs,
        cores=cores_of,
        slow_s=slow_s,
        widths=shares,
        delay_s=delay_s,
        delays_s=delays,
        link_bytes_s=link_bytes_s,
        links_bytes_s=links,
        joins_s=moments["--join"],
        leaves_s=moments["--leave"],
        kills=tuple(kills),
        trajectory=trajectory,
        codecs=codecs,
        generator=generator,
        batches_per_s=batches_per_s,
    )
