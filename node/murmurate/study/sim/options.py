"""What a simulated run is made of, drawn from its seed unless given."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TypeVar

from murmurate.core.codecs import span
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.membership.timing import Timing
from murmurate.core.topology import TOPOLOGIES, acyclic

FORMS = ("bf16", "int8", "topk", "span")
"""In which updates may travel, beside plain numbers. `span`: a part of the model in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller fixes; None is drawn from the seed."""

    nodes: tuple[int, int] = (3, 16)
    topology: str | None = None
    faults_s: float | None = None
    long: bool | None = None
    """Cuts in which both sides take the other for dead, and many generations."""
    updates_per_node: int | None = None
    settle_s_max: float = 20.0
    """With up to 16 peers at the end; with more, so many times more."""
    compact: bool | None = None
    """Also wait until finished epochs have left the clocks."""
    faults: bool = True
    exact: bool | None = None
    drain: bool | None = None
    pace_s: float | None = None
    as_joined: bool | None = None
    """What `join` chooses, with small buffers; else each bound is drawn by itself."""
    form: str | None = None
    """In which updates travel; empty: as plain numbers."""
    digest_interval_s: float = 0.5
    forget_after_s: float | None = None
    """Else 6, and 2 in long runs: these have cuts in which one side votes the other out, which
    comes back and must begin a new life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How bad one run's surroundings are. Rates are per node and second."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.002
    reorder_s: float = 0.0
    late_duplicate_s: float = 0.0
    cut_rate: float = 0.0
    cut_s_max: float = 3.0
    one_way: bool = False
    clog_rate: float = 0.0
    slow_links: float = 0.0
    pause_rate: float = 0.0
    pause_s_max: float = 0.0
    crash_rate: float = 0.0
    crash_between_rate: float = 0.0
    """Chance of a crash between making and sending one update."""
    torn_write: float = 0.0
    """Chance of a crash in the middle of writing a checkpoint."""
    disk_loss: bool = False
    forgets: float = 0.0
    """Share of the crashes that take the disk; the machine comes back under its name."""
    disk_full_rate: float = 0.0
    bit_flip: float = 0.0
    clock_jumps: bool = False
    join_rate: float = 0.0
    leave_rate: float = 0.0
    hostile_rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that is fixed before the first event of a run."""

    nodes: int
    faults_s: float
    step_s: float
    exact: bool
    drain: bool
    """Fold at step boundaries, as the training thread does; else on arrival."""
    compact: bool
    as_joined: bool
    form: str
    elements: int
    heeds_room: bool
    """As nodes do: no update while there is no room for one. Else the log overflows at times."""
    config: PeerConfig
    faults: Faults = field(default_factory=Faults)

    @property
    def element_bytes(self) -> int:
        return 8 if self.exact else 4

    @property
    def model_bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def update_bytes(self) -> int:
        """As a node counts it when it asks whether there is room."""
        return span.turn_bytes(self.elements) if self.form == "span" else self.model_bytes


T = TypeVar("T")


def _given(fixed: T | None, drawn: T) -> T:
    return drawn if fixed is None else fixed


SIM_TIMING = Timing(probe_interval_s=1.0, probe_timeout_s=0.4)


def draw(rng: random.Random, options: Options) -> Setting:
    """The setting of one seed. Each fault is on in about every other run (swarm testing)."""
    low, high = options.nodes
    # Small swarms find most mistakes, large ones are dear: most have at most 5 above the least.
    nodes = rng.randint(low, high) if rng.random() < 0.15 else rng.randint(low, min(high, low + 5))
    topology = options.topology or rng.choice(TOPOLOGIES)
    # One run in ten is long.
    long = _given(options.long, rng.random() < 0.1 and options.faults_s is None)
    faults_s = _given(options.faults_s, rng.uniform(15.0, 30.0) if long else rng.uniform(4.0, 8.0))
    updates = options.updates_per_node or (28 if low < 20 else 8)

    def sometimes(value: float, chance: float = 0.5) -> float:
        return value if rng.random() < chance else 0.0

    faults = Faults()
    if options.faults:
        faults = Faults(
            loss=sometimes(rng.uniform(0.0, 0.3)),
            duplicate=sometimes(rng.uniform(0.0, 0.5)),
            delay_s=rng.choice((0.002, 0.03, 0.1)),
            reorder_s=sometimes(0.3),
            late_duplicate_s=sometimes(2.0, 0.3),
            # Long cuts are for who is voted out and comes back: most long runs have them.
            cut_rate=sometimes(rng.uniform(0.0, 0.05), 0.9)
            if long
            else sometimes(rng.uniform(0.0, 0.15)),
            cut_s_max=20.0 if long else 3.0,
            one_way=rng.random() < 0.3,
            clog_rate=sometimes(0.05, 0.3),
            slow_links=sometimes(rng.uniform(0.0, 0.5), 0.4),
            pause_rate=sometimes(0.04, 0.4),
            pause_s_max=rng.choice((0.5, 3.0, 10.0)),
            crash_rate=sometimes(rng.uniform(0.0, 0.08)),
            crash_between_rate=sometimes(0.01, 0.4),
            torn_write=sometimes(0.05, 0.4),
            disk_loss=rng.random() < 0.25,
            forgets=sometimes(0.5, 0.4),
            disk_full_rate=sometimes(0.03, 0.3),
            bit_flip=sometimes(0.3, 0.3),
            clock_jumps=rng.random() < 0.2,
            join_rate=sometimes(0.04, 0.4),
            leave_rate=sometimes(0.04, 0.4),
            hostile_rate=sometimes(0.2, 0.3),
        )
    exact = _given(options.exact, rng.random() < 0.9)
    drain = _given(options.drain, rng.random() < 0.5)
    compact = _given(options.compact, rng.random() < 0.25)
    form = _given(options.form, rng.choice(FORMS) if rng.random() < 0.3 else "")
    as_joined = _given(options.as_joined, rng.random() < 0.6)
    buffers = rng.choice((1, 4, 16, 1024))
    setting = Setting(
        nodes=nodes,
        faults_s=faults_s,
        step_s=faults_s / updates,
        exact=exact and not form,
        drain=drain,
        compact=compact,
        as_joined=as_joined,
        form=form,
        elements=16 if form else 2,
        heeds_room=buffers == 1 or as_joined,
        config=PeerConfig(
            topology=topology,
            pace_s=_given(options.pace_s, rng.choice((0.0, 0.2)) if acyclic(topology) else 0.0),
            forget_after_s=_given(options.forget_after_s, 2.0 if long else 6.0),
            history_max=rng.choice((2, 8)),
            agree_interval_s=1.0,
            snapshot_wait_s=1.0,
            timing=SIM_TIMING,
        ),
        faults=faults,
    )
    size = buffers * setting.model_bytes
    if as_joined:
        config = setting.config.for_updates(
            setting.update_bytes, buffer_bytes=size, one=form == "span"
        )
    else:
        config = replace(
            setting.config,
            outbox_bytes_max=size,
            log_bytes_max=size,
            store_bytes_max=4096 * setting.model_bytes,
            digest_interval_s=options.digest_interval_s,
        )
    return replace(setting, config=config)
