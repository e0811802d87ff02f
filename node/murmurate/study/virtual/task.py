"""What a training in virtual time is told, and what it tells: for gossip here, for subnets in the
coordinator's package. Both run on the same clock (`Events`) and network (`Steady`)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from murmurate.core.codecs.choice import Choice
from murmurate.core.figures.learning import Learning
from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.core.synchronous.rules import GROUP_SIZE
from murmurate.core.values.recipe import Recipe
from murmurate.core.values.slowness import Slowness
from murmurate.errors import ConfigError
from murmurate.study.sim.events import Events
from murmurate.study.sim.network import Steady
from murmurate.study.virtual.costs import Costs
from murmurate.workloads import Evaluation, Workload

SECONDS_MAX = 1e9
BYTES_MAX = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTraining:
    """One training. Seconds are virtual: a step of a peer takes what it is said to cost, divided by
    its speed, whatever it takes this machine."""

    workload: Workload
    nodes: int
    rule: str
    strength: float | None = None
    """Mode gossip: the one number of a rule that looks at staleness; None: the usual one."""
    mode: str = "gossip"
    hub: Mapping[str, Any] = field(default_factory=dict)
    """Mode hub: what the rule is told."""
    seed: int = 0
    speeds: Mapping[str, float] = field(default_factory=dict)
    """How fast, by name; 1 for the others: as nothing else is said, steps in a second. In mode ist:
    with the subnet a member has."""
    costs: Costs = field(default_factory=Costs)
    """Of a step and of folding, at speed 1."""
    cores: float | None = None
    """Mode gossip: all nodes are on one machine of so many, which they share; None: each has its
    own."""
    slow_s: Mapping[str, Slowness] = field(default_factory=dict)
    """What is waited after each step, by name; in step all wait for the slowest."""
    own_samples: int | None = None
    """The stop rule of 002. A node leaves when it has trained on so many by itself, and the last
    one goes on alone."""
    widths: Mapping[str, float] = field(default_factory=dict)
    """Mode ist: how large a subnet, relative to the others'; 1 for the others."""
    memory_bytes: int | None = None
    """Mode ist: what each member has for its subnet; None: enough."""
    delay_s: float = 0.0
    """One way, between any two."""
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """Of some nodes' links; a message takes the longer one of its two ends'."""
    link_bytes_s: float | None = None
    """Bytes in a second that each node's link takes, out and in; None: however many there are."""
    links_bytes_s: Mapping[str, float] = field(default_factory=dict)
    """Of some nodes' links."""
    joins_s: Mapping[str, float] = field(default_factory=dict)
    """Mode gossip: who comes later than all others, and when."""
    leaves_s: Mapping[str, float] = field(default_factory=dict)
    """Mode gossip: who goes before the end, and when."""
    group: int = GROUP_SIZE
    """Rules `groups`: members in a group."""
    regroup: int | None = None
    """… and steps after which they are drawn anew; None: never."""
    every: int | None = None
    """Local steps in an update, or for a lease; None: 1, or 10."""
    topology: str = "full"
    split: str = "none"
    data: str = "same"
    """Mode gossip: what is said of the peers' data."""
    recipe: Recipe = field(default_factory=Recipe)
    """How rate and batch size change on the way; the optimizer is the workload's."""
    generator: bool = False
    """Mode gossip: one more process deals the batches, each to one node."""
    batches_per_s: float | None = None
    """What it gives out, one after another; None: at once."""
    samples: int | None = None
    seconds: float | None = None
    """The budget, as far as the recipe goes by it; whoever carries out the events ends the run."""
    validates: bool = False
    """The workload holds a part of its training data out, which is evaluated on at the end too."""
    codecs: Mapping[str, Choice] = field(default_factory=dict)
    """Mode gossip: the forms in which nodes send; of the others the links decide, if narrow."""

    def __post_init__(self) -> None:
        known = set(self.names)
        for what, values, least in (
            ("speed", self.speeds, "above 0"),
            ("width", self.widths, "above 0"),
            ("delay", self.delays_s, "from 0 on"),
            ("link", self.links_bytes_s, "above 0"),
            ("join", self.joins_s, "from 0 on"),
            ("leave", self.leaves_s, "above 0"),
        ):
            for name, value in values.items():
                if name not in known:
                    raise ConfigError(f"{what} {name}={value:g}: one of {self._told}")
                enough = value > 0 or (value == 0 and least == "from 0 on")
                most = BYTES_MAX if what == "link" else SECONDS_MAX
                if not (enough and value < most):
                    raise ConfigError(f"{what} {name}={value:g}: must be a number {least}")
        if not 0 <= self.delay_s < SECONDS_MAX:
            raise ConfigError(f"delay {self.delay_s:g}: must be a number from 0 on")
        if self.link_bytes_s is not None and not 0 < self.link_bytes_s < BYTES_MAX:
            raise ConfigError(f"link {self.link_bytes_s:g}: must be a number above 0")
        if self.nodes and all(self.joins_s.get(name) for name in known):
            raise ConfigError("join: somebody must be there from the beginning")
        for name in self.joins_s.keys() & self.leaves_s.keys():
            if self.leaves_s[name] <= self.joins_s[name]:
                raise ConfigError(f"leave {name}: before it joins")

    @property
    def names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]

    @property
    def _told(self) -> str:
        names = self.names
        return ", ".join(names) if len(names) <= 8 else f"{names[0]} to {names[-1]}"

    def speed(self, name: str) -> float:
        return self.speeds.get(name, 1.0)

    def slowness(self, name: str) -> Slowness:
        return self.slow_s.get(name, Slowness())

    def part(self, samples: int, time_s: float) -> float:
        """Of the budget that is spent."""
        by_samples = samples / self.samples if self.samples else 0.0
        by_time = time_s / self.seconds if self.seconds else 0.0
        return min(1.0, max(by_samples, by_time))

    def step_s(self, name: str) -> float:
        """What a step of this node takes."""
        return self.costs.of_step(self.workload.batch_size) / self.speed(name)

    def paces(self) -> Callable[[str], float]:
        """Of a node: what its next step takes, with what is waited after it."""
        chances = {name: random.Random(f"slow/{self.seed}/{name}") for name in self.names}

        def next_step_s(name: str) -> float:
            step_s = self.step_s(name)
            return step_s + self.slowness(name).seconds(step_s, chances[name])

        return next_step_s

    def fold_s(self, name: str) -> float:
        """What this node takes for a message that it folds in."""
        return self.costs.fold_s / self.speed(name)

    def network(self) -> Steady:
        return Steady(self.delay_s, self.delays_s)


@dataclass(slots=True, eq=False)
class Figures:
    """Of one node."""

    name: str
    role: str = "peer"
    state: str = "training"
    samples: int = 0
    steps: int = 0
    loss: float = math.nan
    """Of training, as `core.figures.training_loss` has it; the rest is of the last evaluation."""
    test_loss: float = math.nan
    accuracy: float = math.nan
    accuracy_of: tuple[float, ...] = ()
    precision_of: tuple[float, ...] = ()
    validation_loss: float = math.nan
    validation_accuracy: float = math.nan
    published: int = 0
    applied: int = 0
    duplicates: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    staleness: Summary = field(default_factory=Summary)
    wait_s: float = 0.0
    bytes_sent: int = 0
    bytes_by_codec: Counter[str] = field(default_factory=Counter)
    learning: Learning = field(default_factory=Learning)
    more: dict[str, Any] = field(default_factory=dict)
    """Further keys of its row in the report."""

    def evaluated(self, found: Evaluation, *, validation: bool = False) -> None:
        """Take an evaluation down: on the test set, or on what was held out."""
        if validation:
            self.validation_loss, self.validation_accuracy = found.loss, found.accuracy
        else:
            self.test_loss, self.accuracy = found.loss, found.accuracy
            self.accuracy_of, self.precision_of = found.accuracy_of, found.precision_of


class Engine(Protocol):
    """A training that runs as its events are carried out."""

    events: Events

    def figures(self) -> list[Figures]:
        """Of all nodes, as they are now."""

    def samples(self) -> int:
        """That count for the budget."""

    def kill(self, name: str) -> None:
        """It is gone, without a word to anyone."""

    def evaluate(self, *, validation: bool = False) -> Figures | None:
        """Evaluate one live node, or the whole model, as it is now: on the test set, or on what was
        held out. Whose figures have it; None: nobody lives. Training does not notice."""

    def weights(self) -> tuple[str, Layout, torch.Tensor] | None:
        """Of what `evaluate` looks at: whose they are, their layout, and flat; for a trajectory.
        None: nobody lives."""

    def news(self) -> list[str]:
        """What a person should hear now, one line each."""

    def finish(self) -> dict[str, Any]:
        """Nothing more is trained: what is on its way arrives, all is evaluated. More keys of the
        report."""
