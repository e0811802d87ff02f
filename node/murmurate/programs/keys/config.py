"""What a node is told: its keys, their values, and what only shows when values are seen together.

One table of keys, from which the TOML file, the environment, the options, their help and the
reference are made; how values are found and refused is `programs.keys.gather`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from murmurate.core.codecs.choice import parse_codec
from murmurate.core.gossip.ways import DATA, WAYS, data_problem, mixes_weights, strength_problem
from murmurate.core.synchronous.rules import (
    GROUP_SIZE,
    GROUPS,
    HIERARCHICAL,
    RULES_IN_STEP,
    rules_in_step,
)
from murmurate.core.topology import TOPOLOGIES
from murmurate.core.values.addresses import DNS, loopback, same_place, split_address, wildcard
from murmurate.core.values.hub_settings import problems as hub_problems
from murmurate.core.values.member_half import HUB_RULES, IST_RULES, RULES_OF
from murmurate.core.values.recipe import OPTIMIZERS, Recipe, Schedule, problems
from murmurate.core.values.slowness import Slowness
from murmurate.errors import ConfigError
from murmurate.programs.keys.gather import Book, Given, Key, gather, problem
from murmurate.programs.keys.hub import HUB_KEYS
from murmurate.programs.keys.kinds import (
    ADDRESS,
    FILE,
    FLAG,
    FOLDER,
    LIST,
    NUMBER,
    SIZE,
    SLOW,
    STDIN,
    TEXT,
    WHOLE,
    Shard,
    cannot_listen,
    is_address,
    is_advertise,
    is_below_one,
    is_codec,
    is_existing,
    is_flag,
    is_folder,
    is_generator,
    is_name,
    is_part,
    is_peers,
    is_schedule,
    is_shard,
    is_size,
    is_slowness,
    is_split,
    is_workload,
    is_writable,
    number,
    one_of,
    whole,
)

MODES = ("gossip", *RULES_OF, *RULES_IN_STEP)
RULES = tuple(WAYS)
ALL_RULES = tuple(dict.fromkeys((*RULES, *IST_RULES, *HUB_RULES, *rules_in_step())))
ROLES = ("peer", "generator")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who this node is, and whom it knows."""

    name: str | None = None
    role: str = "peer"
    run: str = "murmurate"
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    peers: tuple[str, ...] = ()
    insecure: bool = False
    seed: int = 0
    threads: int = 0
    found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What is trained, how, and for how long. None: the workload decides (or: no limit)."""

    workload: str = "digits"
    data: str | None = None
    split: str = "none"
    shard: Shard = field(default_factory=Shard)
    batch_size: int | None = None
    lr: float | None = None
    optimizer: str | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    warmup: float = 0.0
    batch_warmup: float = 0.0
    every: int | None = None
    peers_data: str | None = None
    rule: str = "shared"
    strength: float | None = None
    mode: str = "gossip"
    group: int | None = None
    topology: str = "full"
    codec: str = "auto"
    slow_s: Slowness = field(default_factory=Slowness)
    generator: str | None = None
    own_samples: int | None = None
    samples: int | None = None
    seconds: float | None = None
    evaluate_s: float | None = None
    validation: float | None = None

    @property
    def recipe(self) -> Recipe:
        """What of the training is not the workload's own."""
        return recipe_of(self)

    @property
    def data_of_peers(self) -> str:
        """Whether peers' data are the same in kind: not if each has labels of its own."""
        if self.peers_data is not None:
            return self.peers_data
        parted = self.split == "labels" and self.rule in WAYS and "own" in WAYS[self.rule].every
        return "own" if parted else "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class IstConfig:
    """A member of independent subnet training: for whom, and how much it can do."""

    coordinator: str | None = None
    width: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """What the hub is told that `up` starts. None: its rule decides."""

    protocol: str | None = None
    gradients: int | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    dc_lambda: float | None = None
    dc_adaptive: bool | None = None
    slack: float | None = None
    power: float | None = None
    alpha: float | None = None
    pull: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What was said."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where this node keeps what it is, and how often."""

    dir: str | None = None
    every_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where this node's figures are served; None: nowhere."""

    listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What is written at the end."""

    path: str | None = None
    audit: str | None = None
    weights: str | None = None
    trajectory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it."""

    node: NodeConfig = field(default_factory=NodeConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    ist: IstConfig = field(default_factory=IstConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


def recipe_of(train: Any) -> Recipe:
    """Of a section that has the keys of a recipe: a node's, or another program's."""
    return Recipe(**{each.name: getattr(train, each.name) for each in fields(Recipe)})


# -- the keys ------------------------------------------------------------------------------------


OPTIMIZER_HELP = f"{', '.join(OPTIMIZERS)} (default: the workload's)"
SCHEDULE_HELP = "of the rate: constant, linear, poly(POWER), multistep(PART,…) or cosine"
WARMUP_HELP = "part of the budget over which the rate rises, such as 0.05"
BATCH_WARMUP_HELP = "part of the budget over which the batch grows to its size"
EVERY_HELP = "local steps in an update (default: 4 with rule shared, 2 with Adam; else 1)"
PEERS_DATA_HELP = (
    "rule shared: same, or own: each peer's is unlike (default: own if split by labels)"
)
IN_STEP = tuple(rules_in_step())
RULE_HELP = (
    f"what an update does: {' or '.join(RULES)}; up --mode ist: {', '.join(IST_RULES)};"
    f" --mode hub: {', '.join(HUB_RULES)};"
    f" --mode allreduce: {', '.join(RULES_IN_STEP['allreduce'])}"
)
MODE_HELP = (
    "gossip; ist: a subnet, from a coordinator; hub: the whole model, from a hub;"
    " allreduce: all in step; hogwild: one memory"
)
GROUP_HELP = f"rules hierarchical, groups: members in a group (default {GROUP_SIZE})"
STRENGTH_HELP = "the power of rule scaled, λ of compensated, the largest staleness for bound"
SLOW_HELP = "wait after each step, in s, or gaussian(M,D), exponential(SHIFT,M), xFACTOR"
OWN_SAMPLES_HELP = "end when this node alone has seen so many: the others' labels are forgotten"
EVALUATE_HELP = "seconds between evaluations (default 1; virtual: a tenth); 0: at the end only"
VALIDATION_HELP = "part of the training data to evaluate on instead of the test data until the end"
WIDTH_HELP = "how large a subnet, relative to the others' (default: as it is fast)"
MEMORY_HELP = "for subnet, gradients and optimizer, such as 200MB (default: enough)"

KEYS = (
    Key("node", "name", TEXT, is_name, "name in the swarm (default: chosen at the start)"),
    Key("node", "role", TEXT, one_of(ROLES), "peer, or generator: deals batches, has no model"),
    Key("node", "run", TEXT, is_name, "name of the training; peers of another run are refused"),
    Key("node", "listen", ADDRESS, is_address, "where to listen; port 0 takes a free one"),
    Key("node", "advertise", ADDRESS, is_advertise, "where others reach it (default: listen)"),
    Key(
        "node",
        "peers",
        LIST,
        is_peers,
        "some members, or dns:NAME:PORT; none: found a run",
    ),
    Key("node", "insecure", FLAG, is_flag, "listen beyond this machine, without encryption"),
    Key("node", "seed", WHOLE, whole(0), "of first weights and data order"),
    Key("node", "threads", WHOLE, whole(0), "for torch; 0: its share of the cores"),
    Key("node", "found", FLAG, is_flag, "with peers: found it if none of them is in a swarm"),
    Key("train", "workload", TEXT, is_workload, "name, or FILE.py:CLASS"),
    Key("train", "data", FILE, is_existing, "file or folder with the data, where one is needed"),
    Key("train", "split", TEXT, is_split, "none, dataset, labels or dirichlet(α): who sees what"),
    Key("train", "shard", TEXT, is_shard, "part i of n of the data, as i/n or ordinal/n"),
    Key("train", "batch_size", WHOLE, whole(1), "samples in a step (default: the workload's)"),
    Key("train", "lr", NUMBER, number(0, above=True), "learning rate (default: the workload's)"),
    Key("train", "optimizer", TEXT, one_of(tuple(OPTIMIZERS)), OPTIMIZER_HELP),
    Key("train", "momentum", NUMBER, is_below_one, "of the optimizer (default: the workload's)"),
    Key("train", "nesterov", FLAG, is_flag, "momentum that looks ahead (default: the workload's)"),
    Key("train", "weight_decay", NUMBER, number(0), "of the optimizer (default: the workload's)"),
    Key("train", "schedule", TEXT, is_schedule, SCHEDULE_HELP),
    Key("train", "warmup", NUMBER, is_below_one, WARMUP_HELP),
    Key("train", "batch_warmup", NUMBER, is_below_one, BATCH_WARMUP_HELP),
    Key(
        "train",
        "every",
        WHOLE,
        whole(1),
        EVERY_HELP,
    ),
    Key("train", "peers_data", TEXT, one_of(DATA), PEERS_DATA_HELP),
    Key("train", "rule", TEXT, one_of(ALL_RULES), RULE_HELP),
    Key("train", "strength", NUMBER, number(0), STRENGTH_HELP),
    Key("train", "mode", TEXT, one_of(MODES), MODE_HELP),
    Key("train", "group", WHOLE, whole(1), GROUP_HELP),
    Key("train", "topology", TEXT, one_of(TOPOLOGIES), f"who sends to whom: {TOPOLOGIES[0]}, …"),
    Key("train", "codec", TEXT, is_codec, "how updates are sent: auto, fp32, bf16, int8 or topk"),
    Key("train", "slow_s", SLOW, is_slowness, SLOW_HELP),
    Key("train", "generator", ADDRESS, is_generator, "take batches from there, not from own data"),
    Key("train", "own_samples", WHOLE, whole(1), OWN_SAMPLES_HELP),
    Key("train", "samples", WHOLE, whole(1), "end when the whole swarm has seen so many"),
    Key("train", "seconds", NUMBER, number(0, above=True), "end after so long"),
    Key("train", "evaluate_s", NUMBER, number(0), EVALUATE_HELP),
    Key("train", "validation", NUMBER, is_part, VALIDATION_HELP),
    Key("ist", "coordinator", ADDRESS, is_generator, "mode ist, hub: where the coordinator is"),
    Key("ist", "width", NUMBER, number(0, above=True), WIDTH_HELP),
    Key("ist", "memory", SIZE, is_size, MEMORY_HELP),
    *HUB_KEYS,
    Key("checkpoint", "dir", FOLDER, is_folder, "a folder of its own; goes on from what is there"),
    Key("checkpoint", "every_s", NUMBER, number(0, above=True), "seconds between two (default 30)"),
    Key("metrics", "listen", ADDRESS, is_address, "serve /metrics, probes and a page there"),
    Key("report", "path", FILE, is_writable, "JSON file for the report"),
    Key("report", "audit", FILE, is_writable, "file for a line per update: the batches in it"),
    Key("report", "weights", FILE, is_writable, ".npy file for the final weights, flat"),
    Key("report", "trajectory", FILE, is_writable, ".safetensors file for weights now and then"),
)


NODE = Book(KEYS)

# -- putting it together -------------------------------------------------------------------------


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Config:
    """The configuration; ConfigError with one line for each thing that is wrong.

    `options` are texts by path, such as {"train.lr": "0.1"}.
    """
    found = gather(NODE, file, environment or {}, options or {}, _together)
    if "shard" in found["train"]:
        found["train"]["shard"] = found["train"]["shard"].of(found["node"].get("name", ""))
    if (rules := RULES_IN_STEP.get(found["train"].get("mode", ""))) is not None:
        found["train"].setdefault("rule", rules[0])
    return Config(
        node=NodeConfig(**found["node"]),
        train=TrainConfig(**found["train"]),
        ist=IstConfig(**found["ist"]),
        hub=HubConfig(**found["hub"]),
        checkpoint=CheckpointConfig(**found["checkpoint"]),
        metrics=MetricsConfig(**found["metrics"]),
        report=ReportConfig(**found["report"]),
    )


def check_budget(config: Config) -> None:
    """ConfigError if something is to change by the part of a budget, and there is none.

    Not for whoever starts several nodes: there the workload's own budget is taken.
    """
    train = config.train
    told = config.node.peers == (STDIN,)
    budget = train.samples or train.own_samples
    if train.recipe.changes and not (budget or train.seconds or told):
        raise ConfigError(
            "train.schedule, train.warmup, train.batch_warmup: go by the part of the budget that is"
            " spent: say samples or seconds"
        )


# -- what only shows when values are seen together -----------------------------------------------


def _together(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    found: list[str] = recipe_problems(values, given)

    def wrong(path: str, accepted: str) -> None:
        place, value = given.get(path, Given("default", values.get(path)))
        found.append(problem(place, path, value, accepted))

    listen: str = values.get(
        "node.listen", NodeConfig().listen if "node.listen" not in given else ""
    )
    own = [address for address in (listen, values.get("node.advertise")) if address]
    peers: Collection[str] = values.get("node.peers", ())
    for peer in peers:
        named = peer == STDIN or peer.startswith(DNS)
        if not named and any(same_place(peer, address) for address in own):
            wrong(
                "node.peers", f"{peer} is this node itself; name others, or nobody to found a run"
            )
    if values.get("node.found") is False and not peers and not _failed("node.peers", values, given):
        wrong("node.found", "true, or name peers to join")
    found += _subnets(values, given)
    found += _in_step(values, given)
    rule = values.get("train.rule", TrainConfig().rule)
    if mixes_weights(rule) and not parse_codec(values.get("train.codec", "auto")).plain:
        wrong("train.codec", f"fp32 with rule {rule}, which exchanges weights as they are")
    if what := data_problem(rule, values.get("train.peers_data", DATA[0])):
        wrong("train.peers_data", what)
    gossips = values.get("train.mode", "gossip") == "gossip"
    if gossips and (what := strength_problem(rule, values.get("train.strength"))):
        wrong("train.strength", what)
    if "train.generator" in values and values.get("node.role") == "generator":
        wrong("train.generator", "none: a generator makes its batches itself")
    if "train.generator" in values and mixes_weights(rule):
        wrong(
            "train.generator",
            "not with rule average: what becomes of a batch is seen in the clocks of updates",
        )
    on_the_way = ("train.schedule", "train.warmup", "train.batch_warmup")
    for path in on_the_way if "train.generator" in values else ():
        if values.get(path, usual := getattr(TrainConfig(), path[6:])) != usual:
            wrong(path, "not with a generator: how far the run is, is known to it alone")
    if "train.own_samples" in values and {"train.samples", "train.generator"} & values.keys():
        wrong("train.own_samples", "either this, or samples of the whole swarm, or a generator")
    if "train.shard" in values and values["train.shard"].of(values.get("node.name", "")) is None:
        wrong("train.shard", "only with a node.name that ends in a number, such as murmurate-3")
    if listen and wildcard(split_address(listen)[0]) and "node.advertise" not in given:
        wrong("node.listen", "all interfaces; say with advertise where others reach this node")
    return found + listening("node", listen, values, given)


def recipe_problems(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What of a recipe does not go together."""
    said = {
        path.removeprefix("train."): value
        for path, value in values.items()
        if path.startswith("train.")
    }
    found = []
    for name, accepted in problems(said).items():
        place, value = given.get(path := f"train.{name}", Given("default", None))
        found.append(problem(place, path, value, accepted))
    return found


def listening(
    section: str, listen: str, values: Mapping[str, Any], given: Mapping[str, Given]
) -> list[str]:
    """What is wrong with where a program listens; empty `listen`: that was said already."""
    problems: list[str] = []

    def wrong(path: str, accepted: str) -> None:
        place, value = given.get(path, Given("default", values.get(path, listen)))
        problems.append(problem(place, path, value, accepted))

    if metrics := values.get("metrics.listen"):
        at, metrics_port = split_address(metrics)
        if listen and same_place(metrics, listen):
            wrong("metrics.listen", f"another port than {section}.listen")
        elif metrics_port and (why := cannot_listen(at, metrics_port)):
            wrong("metrics.listen", f"{why}; another port, or 0 for a free one")
    if not listen:
        return problems
    host, port = split_address(listen)
    insecure = f"{section}.insecure"
    if not loopback(host) and not values.get(insecure) and not _failed(insecure, values, given):
        wrong(
            f"{section}.listen",
            "reachable from other machines, and nothing is encrypted yet: say insecure = true in"
            f" [{section}] (or --insecure) to accept that, or listen on 127.0.0.1",
        )
    elif port and (why := cannot_listen(host, port)):
        wrong(f"{section}.listen", f"{why}; another port, or 0 for a free one")
    return problems


def _subnets(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What modes with a coordinator need, and what only another mode can use."""
    coordinator, mode = values.get("ist.coordinator"), values.get("train.mode", "gossip")
    rules, rule = RULES_OF.get(mode), values.get("train.rule")
    found: dict[str, str] = {}
    if rules is None:
        found |= {path: "only with mode ist or hub" for path in values if path.startswith("ist.")}
        found |= {path: "only with mode hub" for path in values if path.startswith("hub.")}
        if rule is not None and mode == "gossip" and rule not in RULES:
            found["train.rule"] = f"{' or '.join(RULES)} with mode gossip"
    else:
        whose = f"none with mode {mode}: it is the coordinator's"
        train = ("train.rule", "train.every", "train.samples", "train.evaluate_s")
        paths = (*train, "checkpoint.dir", "report.weights", *(k.path for k in HUB_KEYS))
        if mode != "hub":
            found |= {key.path: "only with mode hub" for key in HUB_KEYS}
            paths = paths[: -len(HUB_KEYS)]
        else:
            found |= dict.fromkeys(("ist.width", "ist.memory"), "only with mode ist")
        if coordinator != STDIN:  # else it is for the launcher, which starts the coordinator too
            found |= dict.fromkeys(paths, whose)
        elif mode == "hub" and (rule or "async") in rules:
            said = {p.removeprefix("hub."): v for p, v in values.items() if p.startswith("hub.")}
            wrong = hub_problems(rule or "async", said, None)
            found |= {f"hub.{name}": accepted for name, accepted in wrong.items()}
        if rule is not None and rule not in rules:
            found["train.rule"] = f"{', '.join(rules)} with mode {mode}"
        if values.get("node.peers") != (STDIN,):
            found["node.peers"] = f"none with mode {mode}: only the coordinator is spoken to"
        others = (
            "train.generator",
            "train.codec",
            "train.topology",
            "train.peers_data",
            "train.strength",
            "train.own_samples",
            "train.schedule",
            "train.warmup",
            "train.batch_warmup",
            "report.audit",
        )
        found |= dict.fromkeys(others, "only with mode gossip")
        found = {path: said for path, said in found.items() if path in values}
        if coordinator is None and not _failed("ist.coordinator", values, given):
            found["ist.coordinator"] = f"where it is, such as 10.0.0.5:7100: mode {mode} needs one"
    problems = []
    for path, accepted in found.items():
        place, value = given.get(path, Given("default", values.get(path)))
        problems.append(problem(place, path, value, accepted))
    return problems


def _in_step(values: Mapping[str, Any], given: Mapping[str, Given]) -> list[str]:
    """What a mode in which all train in step, or in one memory, has not, and what only it has."""
    mode, rule = values.get("train.mode", "gossip"), values.get("train.rule")
    found: dict[str, str] = {}
    if mode in RULES_IN_STEP:
        rules = RULES_IN_STEP[mode]
        if rule is not None and rule not in rules:
            found["train.rule"] = f"{' or '.join(rules)} with mode {mode}"
        no = f"none with mode {mode}"
        absent = (
            "train.every",
            "train.strength",
            "train.peers_data",
            "train.generator",
            "checkpoint.dir",
            "train.own_samples",
        )
        found |= {path: no for path in (*absent, "report.audit") if path in values}
        if values.get("train.topology", "full") != "full":
            found["train.topology"] = f"full with mode {mode}"
        if not parse_codec(values.get("train.codec", "auto")).plain:
            found["train.codec"] = f"fp32 with mode {mode}"
    if "train.group" in values and rule not in (HIERARCHICAL, GROUPS):
        found["train.group"] = "only with mode allreduce and rule hierarchical or groups"
    problems = []
    for path, accepted in found.items():
        place, value = given.get(path, Given("default", values.get(path)))
        problems.append(problem(place, path, value, accepted))
    return problems


def _failed(path: str, values: Mapping[str, Any], given: Mapping[str, Given]) -> bool:
    return path in given and path not in values
