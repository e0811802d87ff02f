"""The hub of papers 002 and 004 in virtual time, by both of its protocols.

Pipelined (004, section 2): a node never waits; it starts on the newest weights that have reached
it. Nothing a node does depends on what arrives, so a whole run is a few sorted arrays.
Request-reply (002): a node waits for the reply to each push. Here it does depend, so it runs
on events; versions are production clocks, staleness is their distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Fresh, Replica
from murmurate.study.sim.events import Events

Draw = Callable[[tuple[int, int]], NDArray[np.float64]]
"""Compute times of the given shape (nodes, batches)."""


def pipelined(draw: Draw, *, n: int, k: int, transfer_s: float, batches: int) -> NDArray[np.int64]:
    """Staleness of each gradient in order of arrival: hub updates before the one it enters, minus
    those in the weights it was computed on.

    The run ends when the first node has sent its last batch, so that no node is missing at the end.
    """
    ends_s = np.cumsum(draw((n, batches)), axis=1)
    starts_s = np.hstack([np.zeros((n, 1)), ends_s[:, :-1]]).ravel()
    arrives_s = ends_s.ravel() + transfer_s / 2
    order = np.argsort(arrives_s, kind="stable")
    order = order[: int(np.searchsorted(arrives_s[order], ends_s[:, -1].min() + transfer_s / 2))]
    updates_s = arrives_s[order][k - 1 :: k]
    known = np.searchsorted(updates_s + transfer_s / 2, starts_s[order], side="right")
    return np.asarray(np.arange(len(order)) // k - known, dtype=np.int64)


@dataclass(frozen=True)
class ReplyBooks:
    """What a request-reply run adds up to, in integers."""

    updates: int
    gradients: tuple[int, ...]
    """How many each node sent."""
    staleness: tuple[int, ...]
    """The sum over each node's gradients."""
    residual: int
    """Updates that the weights still out at the nodes have missed so far."""


def request_reply(draw: Callable[[int], float], *, n: int, k: int, gradients: int) -> ReplyBooks:
    """`draw(node)` gives the time from a reply to the next push, way and all.

    A push is answered at once with the newest weights, whether or not it completed a group of k.
    """
    hub = Replica(torch.zeros(1))
    zero = torch.zeros(1)
    held = [hub.context() for _ in range(n)]
    sent = [0] * n
    staleness = [0] * n
    completed = [0] * n
    events = Events()

    def arrive(node: int) -> None:
        behind = held[node].distance(hub.clock)
        sent[node] += 1
        staleness[node] += behind
        if (
            events.happened % k == 0
        ):  # the update bears the name of the node whose gradient completed it
            completed[node] += 1
            stamp = Stamp(Dot(f"n{node}", 1, completed[node]), held[node])
            assert hub.fold((stamp,), zero) == Fresh((behind,))
        held[node] = hub.context()
        events.after(draw(node), arrive, node)

    for node in range(n):
        events.at(draw(node), arrive, node)
    for _ in range(gradients):
        events.step()
    return ReplyBooks(
        updates=len(hub.clock),
        gradients=tuple(sent),
        staleness=tuple(staleness),
        residual=sum(clock.distance(hub.clock) for clock in held),
    )


def outstanding(steps: Callable[[int, int], int], *, count: int) -> tuple[int, int, int]:
    """Any protocol with one update per gradient: who pulls and who pushes when is `steps`' choice.

    `steps(step, out)` returns -1 to hand out a snapshot, or which of the `out` snapshots that are
    out comes back. Gives the sum of staleness, the residual, and the sum over applications of the
    snapshots that were out beside the one applied: counted live, not derived from the staleness.
    """
    hub = Replica(torch.zeros(1))
    zero = torch.zeros(1)
    out: list[Clock] = []
    staleness = others = seq = 0
    for step in range(count):
        which = steps(step, len(out))
        if which < 0:
            out.append(hub.context())
            continue
        others += len(out) - 1
        seq += 1
        outcome = hub.fold((Stamp(Dot("hub", 1, seq), out.pop(which)),), zero)
        assert isinstance(outcome, Fresh)
        staleness += outcome.staleness[0]
    return staleness, sum(clock.distance(hub.clock) for clock in out), others
