"""What n peers will do: throughput, staleness, bytes on each link, memory. By formulas alone.

The laws are those of `core.theory`; `tests/unit/test_plan.py` holds them against training in
virtual time, where they are within 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from murmurate.core.theory import (
    exact_expected,
    folding_rates,
    gossip_expected_unequal,
    renewals_fixed,
    request_reply_expected,
)
from murmurate.errors import ConfigError

NUMBER_BYTES = 4
MODELS = {"sum": 3.5, "shared": 5.5, "hub": 2.0}
"""A member's copies of the model with plain SGD, as docs/session.md has it: parameters, gradients,
and what gossip keeps; at a hub parameters and gradients."""
IMPORTS_BYTES = 40 << 20
"""What a process holds beside them, about."""
BUSY_MAX = 0.9
"""A link or hub that is busier than this is a bottleneck: queues grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Some peers of one kind."""

    count: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"peers: {self.count}, expected 1 or more")
        if not 0 < self.speed < math.inf:
            raise ConfigError(f"peers of speed {self.speed:g}: must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """All that a prediction needs. Times are of a peer of speed 1."""

    peers: Sequence[Peers]
    step_s: float
    """Of a whole batch."""
    batch_size: int
    parameters: int
    fold_s: float = 0.0
    delay_s: float = 0.0
    link_bytes_s: float | None = None
    every: int = 1
    """Local steps in an update."""
    flops_per_sample: float | None = None

    def __post_init__(self) -> None:
        if not self.peers:
            raise ConfigError("peers: at least one")
        if not 0 < self.step_s < math.inf:
            raise ConfigError(f"a step of {self.step_s:g} s: must be above 0")
        if self.parameters < 1 or self.batch_size < 1 or self.every < 1:
            raise ConfigError("parameters, batch and every: must be at least 1")
        if self.fold_s < 0 or self.delay_s < 0:
            raise ConfigError("folding and delay: must not be negative")
        if self.link_bytes_s is not None and not self.link_bytes_s > 0:
            raise ConfigError(f"a link of {self.link_bytes_s:g} bytes a second: must be above 0")

    @property
    def n(self) -> int:
        return sum(kind.count for kind in self.peers)

    @property
    def speeds(self) -> list[float]:
        return [kind.speed for kind in self.peers for _ in range(kind.count)]

    @property
    def model_bytes(self) -> int:
        return NUMBER_BYTES * self.parameters

    @property
    def message_s(self) -> float:
        """What a model takes over one link."""
        return self.model_bytes / self.link_bytes_s if self.link_bytes_s else 0.0

    @property
    def cc_ratio(self) -> float | None:
        """003's: operations of a sample for each parameter."""
        return None if self.flops_per_sample is None else self.flops_per_sample / self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is to be expected; None: there is no formula for it here."""

    samples_per_s: float
    updates_per_s: float
    staleness: float | None
    bytes_out_s: float
    """Of the busiest link, in a second."""
    bytes_in_s: float
    memory_bytes: float
    """Of each peer."""
    limit: str = ""
    """What holds it up, if anything does."""


def gossip(told: Circumstances, *, rule: str = "sum") -> Forecast:
    """Everybody sends every update to all others."""
    n, speeds = told.n, told.speeds
    compute_s = [told.every * told.step_s / speed for speed in speeds]
    rates = folding_rates(compute_s, [told.fold_s / speed for speed in speeds])
    steps_s = [told.every * rate for rate in rates]
    limit = ""
    total = math.fsum(rates)
    busy = max(max(rates) * (n - 1), total - min(rates)) * told.message_s
    staleness: float | None
    if busy > BUSY_MAX:
        # What waits is summed: fewer and fuller messages, as many as the links take.
        rates = [rate * BUSY_MAX / busy for rate in rates]
        total = math.fsum(rates)
        limit = f"links: an update becomes {told.every * busy / BUSY_MAX:.1f} steps"
        staleness = None
    else:
        # Copies leave one after another: on average half of them are before one's own.
        way_s = told.delay_s + (n / 2 * told.message_s if n > 1 else 0.0)
        staleness = gossip_expected_unequal(rates, [1 / rate for rate in rates], way_s)
    idle = 1 - min(step * told.step_s / speed for step, speed in zip(steps_s, speeds, strict=True))
    if not limit and idle > 0.2:
        limit = f"folding: {100 * idle:.0f} % of a peer's time"
    return Forecast(
        samples_per_s=math.fsum(steps_s) * told.batch_size,
        updates_per_s=total,
        staleness=staleness,
        bytes_out_s=max(rates) * (n - 1) * told.model_bytes,
        bytes_in_s=(total - min(rates)) * told.model_bytes,
        memory_bytes=MODELS.get(rule, MODELS["sum"]) * told.model_bytes + IMPORTS_BYTES,
        limit=limit,
    )


def hub(told: Circumstances, *, k: int = 1, pipelined: bool = False) -> Forecast:
    """Gradients go to a hub, which folds one after another and makes an update of every K."""
    n = told.n
    if not 1 <= k <= n:
        raise ConfigError(f"K = {k}: expected 1 to {n} peers")
    way_s = 2 * (told.delay_s + told.message_s)
    compute_s = [told.every * told.step_s / speed for speed in told.speeds]
    cycles_s = compute_s if pipelined else [each + way_s + told.fold_s for each in compute_s]
    pushes = math.fsum(1 / each for each in cycles_s)
    busy = pushes * max(told.fold_s, told.message_s)
    limit = ""
    if busy > BUSY_MAX:
        pushes /= busy
        what = "its link" if told.message_s > told.fold_s else "folding"
        limit = f"the hub: {what} takes {max(told.fold_s, told.message_s):.3g} s for each push"
    if not pipelined:
        staleness: float | None = request_reply_expected(n, k)
    elif limit or len(set(told.speeds)) > 1:
        staleness = None
    else:
        mean_s = compute_s[0]
        staleness = exact_expected(n, k, mean_s, way_s, renewals_fixed(way_s, mean_s))
    return Forecast(
        samples_per_s=pushes * told.every * told.batch_size,
        updates_per_s=pushes / k,
        staleness=staleness,
        bytes_out_s=pushes * told.model_bytes,
        bytes_in_s=pushes * told.model_bytes,
        memory_bytes=MODELS["hub"] * told.model_bytes + IMPORTS_BYTES,
        limit=limit,
    )


def synchronous(told: Circumstances) -> Forecast:
    """All wait for the slowest, and a ring's all-reduce."""
    n = told.n
    part = 2 * (n - 1) / n
    exchange_s = (told.delay_s if n > 1 else 0.0) + part * told.message_s
    step_s = told.step_s / min(told.speeds) + exchange_s
    idle = 1 - math.fsum(told.step_s / speed for speed in told.speeds) / n / step_s
    return Forecast(
        samples_per_s=n * told.batch_size / step_s,
        updates_per_s=1 / step_s,
        staleness=0.0,
        bytes_out_s=part * told.model_bytes / step_s,
        bytes_in_s=part * told.model_bytes / step_s,
        memory_bytes=MODELS["hub"] * told.model_bytes + IMPORTS_BYTES,
        limit=f"waiting: {100 * idle:.0f} % of the peers' time" if idle > 0.2 else "",
    )
