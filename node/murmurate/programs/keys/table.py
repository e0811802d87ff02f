"""The table: every key of a node, and of `murmurate up`, which starts nodes. One line for each.

A key of the coordinator's own stands in its configuration; what it shares with nodes stands here,
with `Role.COORDINATOR`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from murmurate.core.gossip.ways import DATA, EVERY_MAX, WAYS
from murmurate.core.synchronous.rules import GROUP_SIZE, RULES_IN_STEP, rules_in_step
from murmurate.core.topology import TOPOLOGIES
from murmurate.core.values.member_half import HUB_RULES, IST_RULES, PROTOCOLS, RULES_OF
from murmurate.core.values.recipe import OPTIMIZERS, Recipe, Schedule
from murmurate.core.values.slowness import Slowness
from murmurate.programs.keys.key import MEMBER, NODE, TRAINS, Book, Role, key
from murmurate.programs.keys.kinds import (
    ABOVE_ZERO,
    ANY_ADDRESS,
    BELOW_ONE,
    BYTES,
    CODEC,
    KEPT_IN,
    MADE,
    MOMENTUM,
    PART,
    PEERS,
    PROGRAM,
    REACHABLE,
    SCHEDULE,
    SECONDS,
    SHARD,
    SHORT_NAME,
    SLACK,
    SLOWNESS,
    SPLIT,
    THERE,
    WORKLOAD,
    YES_OR_NO,
    Shard,
    number,
    one_of,
    whole,
)

MODES = ("gossip", *RULES_OF, *RULES_IN_STEP)
RULES = tuple(WAYS)
ALL_RULES = tuple(dict.fromkeys((*RULES, *IST_RULES, *HUB_RULES, *rules_in_step())))
ROLES = ("peer", "generator")

BOTH = Role.COORDINATOR | Role.UP
"""What the coordinator takes too, and `up`, which may start one."""
GOSSIP = Role.PEER | Role.UP
SPENT = Role.PEER | Role.IN_STEP
"""Who sees the budget of the swarm; of a member it is the coordinator's."""

RULE_HELP = (
    f"what an update does: {' or '.join(RULES)}; up --mode ist: {', '.join(IST_RULES)};"
    f" --mode hub: {', '.join(HUB_RULES)};"
    f" --mode allreduce: {', '.join(RULES_IN_STEP['allreduce'])}"
)
MODE_HELP = (
    "gossip; ist: a subnet, from a coordinator; hub: the whole model, from a hub;"
    " allreduce: all in step; hogwild: one memory"
)
THEIRS = "the workload's"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who this node is, and whom it knows."""

    name: str | None = key(SHORT_NAME, None, "name in the swarm", NODE, unset="host and process id")
    role: str = key(
        one_of(ROLES), "peer", "peer (a generator is: murmurate coordinator --mode batches)", NODE
    )
    run: str = key(
        SHORT_NAME, "murmurate", "of the training; peers of another are refused", NODE | Role.UP
    )
    listen: str = key(ANY_ADDRESS, "127.0.0.1:0", "where to listen; port 0 takes a free one", NODE)
    advertise: str | None = key(REACHABLE, None, "where others reach it", NODE, unset="listen")
    peers: tuple[str, ...] = key(
        PEERS, (), "some members, or dns:NAME:PORT; none: found a run", NODE
    )
    insecure: bool = key(YES_OR_NO, False, "listen beyond this machine, without encryption", NODE)
    seed: int = key(whole(0), 0, "of first weights and data order", NODE | Role.UP)
    threads: int = key(whole(0), 0, "for torch; 0: its share of the cores", TRAINS | Role.UP)
    found: bool | None = key(
        YES_OR_NO,
        None,
        "with peers: found it if none of them is in a swarm",
        NODE,
        unset="without peers; with dns: if the name ends in -0",
    )
    wait_for: int = key(
        whole(1), 1, "begin when so many members are here, this one included", Role.PEER
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What is trained, how, and for how long. None: the workload decides (or: no limit)."""

    workload: str = key(WORKLOAD, "digits", "name, or FILE.py:CLASS", NODE | BOTH)
    data: str | None = key(
        THERE, None, "file or folder with the data, where one is needed", NODE | BOTH
    )
    split: str = key(
        SPLIT, "none", "none, dataset, labels or dirichlet(α): who sees what", TRAINS | BOTH
    )
    shard: Shard = key(
        SHARD, Shard(), "part i of n of the data, as i/n or ordinal/n", TRAINS | Role.COORDINATOR
    )
    batch_size: int | None = key(whole(1), None, "samples in a step", NODE | BOTH, unset=THEIRS)
    lr: float | None = key(ABOVE_ZERO, None, "learning rate", TRAINS | BOTH, unset=THEIRS)
    optimizer: str | None = key(
        one_of(tuple(OPTIMIZERS)), None, ", ".join(OPTIMIZERS), TRAINS | BOTH, unset=THEIRS
    )
    momentum: float | None = key(BELOW_ONE, None, "of the optimizer", TRAINS | BOTH, unset=THEIRS)
    nesterov: bool | None = key(
        YES_OR_NO, None, "momentum that looks ahead", TRAINS | BOTH, unset=THEIRS
    )
    weight_decay: float | None = key(
        number(0), None, "of the optimizer", TRAINS | BOTH, unset=THEIRS
    )
    schedule: Schedule = key(
        SCHEDULE,
        Schedule(),
        "of the rate: constant, linear, poly(POWER), multistep(PART,…) or cosine",
        SPENT | MEMBER | BOTH,
    )
    warmup: float = key(
        BELOW_ONE, 0.0, "part of the budget over which the rate rises", SPENT | MEMBER | BOTH
    )
    batch_warmup: float = key(
        BELOW_ONE, 0.0, "part of the budget over which the batch grows", SPENT | Role.UP
    )
    every: int | None = key(
        whole(1, EVERY_MAX),
        None,
        "local steps in an update",
        Role.PEER | BOTH,
        unset="4 with rule shared, with Adam and its kin 2, with an optimizer that cannot be read"
        " 16, with peers_data own 1; else 1",
    )
    peers_data: str | None = key(
        one_of(DATA),
        None,
        "rule shared: same, or own: each peer's is unlike",
        GOSSIP,
        unset="own if split by labels, else same",
    )
    rule: str = key(one_of(ALL_RULES), "shared", RULE_HELP, SPENT | BOTH)
    strength: float | None = key(
        number(0),
        None,
        "the power of rule scaled, λ of compensated, the largest staleness for bound",
        GOSSIP,
        unset="1, 2 or 8",
    )
    mode: str = key(one_of(MODES), "gossip", MODE_HELP, NODE | BOTH)
    group: int | None = key(
        whole(1),
        None,
        "rules hierarchical, groups: members in a group",
        Role.IN_STEP | Role.UP,
        unset=str(GROUP_SIZE),
    )
    regroup: int | None = key(
        whole(1),
        None,
        "rules groups: after so many steps, who is in which is drawn anew",
        Role.IN_STEP | Role.UP,
        unset="never",
    )
    topology: str = key(
        one_of(TOPOLOGIES), "full", f"who sends to whom: {', '.join(TOPOLOGIES)}", GOSSIP
    )
    codec: str = key(
        CODEC, "auto", "how updates are sent: auto, fp32, bf16, int8 or topk", Role.PEER
    )
    slow_s: Slowness = key(
        SLOWNESS,
        Slowness(),
        "wait after each step, in s, or gaussian(M,D), exponential(SHIFT,M), xFACTOR",
        TRAINS,
    )
    generator: str | None = key(
        PROGRAM, None, "take batches from there, not from own data", Role.PEER
    )
    own_samples: int | None = key(
        whole(1),
        None,
        "end when this node alone has seen so many: the others' labels are forgotten",
        GOSSIP | MEMBER,
        unset="no limit",
    )
    samples: int | None = key(
        whole(1),
        None,
        "end when the whole swarm has seen so many",
        SPENT | BOTH,
        unset="no limit",
    )
    seconds: float | None = key(SECONDS, None, "end after so long", NODE | BOTH, unset="no limit")
    evaluate_s: float | None = key(
        number(0),
        None,
        "seconds between evaluations; 0: at the end only",
        SPENT | BOTH,
        unset="1, sooner at the start; virtual: a tenth",
    )
    validation: float | None = key(
        PART,
        None,
        "part of the training data to evaluate on instead of the test data until the end",
        NODE | BOTH,
    )

    @property
    def recipe(self) -> Recipe:
        """What of the training is not the workload's own."""
        return Recipe(**{each.name: getattr(self, each.name) for each in fields(Recipe)})

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

    coordinator: str | None = key(
        PROGRAM,
        None,
        "mode ist, hub, rule groups-ea-wild: where the coordinator is",
        MEMBER | Role.IN_STEP,
    )
    width: float = key(
        ABOVE_ZERO,
        0.0,
        "how large a subnet, relative to the others'",
        Role.SUBNETS,
        unset="as it is fast",
    )
    memory: int = key(
        BYTES,
        0,
        "for subnet, gradients and optimizer, such as 200MB",
        Role.SUBNETS | Role.UP,
        unset="enough",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """What a hub is told: the coordinator's with mode hub. None: its rule decides."""

    protocol: str | None = key(
        one_of(PROTOCOLS),
        None,
        "request-reply: a push waits for its answer, the weights; pipelined: never",
        BOTH,
        unset="request-reply",
    )
    gradients: int | None = key(
        whole(1), None, "k-of-n, fedbuff: K, pushes in an update", BOTH, unset="1"
    )
    momentum: float | None = key(
        MOMENTUM, None, "async-msgd, dc: the hub's", BOTH, unset="0.9; dc 0"
    )
    nesterov: bool | None = key(
        YES_OR_NO, None, "async-msgd, dc: Nesterov's, not heavy-ball", BOTH, unset="false"
    )
    dc_lambda: float | None = key(number(0), None, "dc: λ", BOTH, unset="0.04; adaptive 2")
    dc_adaptive: bool | None = key(
        YES_OR_NO, None, "dc: λ over the root of the mean square gradient", BOTH, unset="false"
    )
    slack: float | None = key(
        SLACK, None, "ssp: updates ahead of the slowest, or inf", BOTH, unset="3"
    )
    power: float | None = key(
        number(0),
        None,
        "scaled: weight (1 + τ)^-power",
        BOTH,
        unset="1",
    )
    alpha: float | None = key(PART, None, "easgd, ea-*: part that moves", BOTH, unset="0.9/members")
    pull: int | None = key(
        whole(1), None, "downpour: steps between two pulls", BOTH, unset="as every"
    )

    @property
    def given(self) -> dict[str, Any]:
        """What was said."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where this program keeps what it is, and how often."""

    dir: str | None = key(
        KEPT_IN,
        None,
        "a folder of its own; goes on from what is there",
        Role.PEER | BOTH,
        option="checkpoint",
    )
    every_s: float = key(
        SECONDS, 30.0, "seconds between two", NODE | BOTH, option="checkpoint-every-s"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where this program's figures are served; None: nowhere."""

    listen: str | None = key(
        ANY_ADDRESS, None, "serve /metrics, probes and a page there", NODE | BOTH, option="metrics"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What is written at the end."""

    path: str | None = key(MADE, None, "JSON file for the report", NODE | BOTH, option="report")
    audit: str | None = key(MADE, None, "file for a line per update: the batches in it", Role.PEER)
    weights: str | None = key(MADE, None, ".npy file for the final weights, flat", SPENT)
    trajectory: str | None = key(MADE, None, ".safetensors file for weights now and then", NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it, of a node."""

    node: NodeConfig = field(default_factory=NodeConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    ist: IstConfig = field(default_factory=IstConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


NODE_KEYS = Book(Config, NODE | BOTH)
"""What `murmurate node` takes. Those of a hub only to say whose they are."""
UP_KEYS = Book(Config, Role.UP)
"""What all processes of `up` share; the rest (names, addresses, shards) it decides itself."""
