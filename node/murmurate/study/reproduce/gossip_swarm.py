"""A swarm of paper 000 in virtual time, over the production `Replica` and `Clock`.

Only time and delivery are simulated: events, one seeded rng, payloads of one number.
Compute times are uniform from half to one and a half times a node's mean, so no two nodes stay in
step; the law does not depend on the distribution.

The start is no steady state (nobody has anything to be stale against), so it is left out openly:
nodes start at random phases, and only applications from `warm_s` to `until_s` are counted, each at
the time it happens. Counting by the time of application needs no correction at the end either.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Fresh, Replica
from murmurate.core.staleness import Summary
from murmurate.study.sim.events import Events

Update = tuple[tuple[Stamp], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class SwarmSetting:
    """`means_s`: mean compute time of each node."""

    means_s: Sequence[float]
    delay_s: float = 0.0
    between: bool = False
    """Fold arrivals between two computations (the own update first), not at once."""
    batches_per_s: float = float("inf")
    """What one mini-batch generator can give out, first come first served."""
    warm_s: float = 5.0
    until_s: float = 30.0
    seed: int = 0


@dataclass
class Seen:
    """What happened from `warm_s` to `until_s`; `replicas` as they stood at `until_s`."""

    every: Summary = field(default_factory=Summary)
    own: Summary = field(default_factory=Summary)
    remote: Summary = field(default_factory=Summary)
    busy: float = 0.0
    """Part of the time a node computes, on average."""
    replicas: list[Replica] = field(default_factory=list)
    updates: dict[Dot, torch.Tensor] = field(default_factory=dict)


def run(setting: SwarmSetting) -> Seen:
    rng = random.Random(setting.seed)
    n = len(setting.means_s)
    seen = Seen(replicas=[Replica(torch.zeros(1, dtype=torch.int64)) for _ in range(n)])
    replicas = seen.replicas
    context = [Clock()] * n
    started_s = [0.0] * n
    computing = [False] * n
    seq = [0] * n
    inbox: list[list[Update]] = [[] for _ in range(n)]
    events = Events()
    generator_free_s = 0.0

    def ask_for_batch(who: int) -> None:
        nonlocal generator_free_s
        given_s = max(events.time, generator_free_s)
        generator_free_s = given_s + 1 / setting.batches_per_s
        events.at(given_s, start, who)

    def fold(who: int, message: Update, into: Summary) -> None:
        outcome = replicas[who].fold(*message)
        assert isinstance(outcome, Fresh)
        if events.time >= setting.warm_s:
            into.add(outcome.staleness[0])

    def arrive(origin: int, message: Update) -> None:
        for who in range(n):
            if who == origin:
                continue
            if setting.between and computing[who]:
                inbox[who].append(message)
            else:
                fold(who, message, seen.remote)

    def start(who: int) -> None:
        context[who] = replicas[who].context()
        started_s[who] = events.time
        computing[who] = True
        events.after(setting.means_s[who] * rng.uniform(0.5, 1.5), finish, who)

    def finish(who: int) -> None:
        computing[who] = False
        seen.busy += max(0.0, events.time - max(started_s[who], setting.warm_s))
        seq[who] += 1
        dot = Dot(f"n{who}", 1, seq[who])
        payload = torch.tensor([rng.randrange(-(2**40), 2**40)])
        seen.updates[dot] = payload
        message = ((Stamp(dot, context[who]),), payload)
        fold(who, message, seen.own)
        for waiting in inbox[who]:
            fold(who, waiting, seen.remote)
        inbox[who].clear()
        if setting.delay_s:
            events.after(setting.delay_s, arrive, who, message)
        else:
            arrive(who, message)
        ask_for_batch(who)

    for who, mean_s in enumerate(setting.means_s):
        events.at(rng.uniform(0, mean_s), start, who)
    while events.next_time < setting.until_s:
        events.step()
    for who in range(n):
        if computing[who]:
            seen.busy += setting.until_s - max(started_s[who], setting.warm_s)
    seen.busy /= n * (setting.until_s - setting.warm_s)
    seen.every.merge(seen.own)
    seen.every.merge(seen.remote)
    return seen
