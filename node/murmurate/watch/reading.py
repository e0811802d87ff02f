"""From a runtime to its figures; the lock is held while some counters are copied."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from murmurate.core.figures.figure import Value
from murmurate.core.figures.sources import Keeping, NodeInstant
from murmurate.core.figures.table import NODE, values
from murmurate.core.message import Push

if TYPE_CHECKING:
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.edge.runtime.runtime import Runtime


def is_ready(runtime: Runtime) -> bool:
    """Part of the swarm, with its weights, and not leaving."""
    return runtime.look(lambda node: node.ready)


def read(runtime: Runtime) -> Mapping[str, Value]:
    """All figures of this instant."""
    return runtime.look(lambda node: values(NODE, _instant(node)))


def _instant(node: NodeState) -> NodeInstant:
    settings, now = node.settings, time.monotonic()
    return NodeInstant(
        name=node.name,
        run=settings.run,
        rule=settings.rule,
        topology=settings.topology,
        now=now,
        tally=node.tally,
        outlook=node.outlook,
        ready=node.ready,
        parameters=node.layout.trained,
        inbox_updates=sum(
            len(item.message.stamps) if isinstance(item.message, Push) else 1
            for item in node.driver.inbox
        ),
        bytes_sent=node.transport.bytes_sent,
        bytes_received=node.transport.bytes_received,
        pace_s=node.pace.message_s,
        communication=node.pace.communication,
        keeping=_keeping(node, now),
        **(_among_others(node) if node.joined else {}),
    )


def _keeping(node: NodeState, now: float) -> Keeping | None:
    keeper = node.keeper
    if keeper is None:
        return None
    age_s = min(keeper.age_s, now - node.born)
    return Keeping(age_s=age_s, every_s=keeper.every_s, failures=keeper.failures)


def _among_others(node: NodeState) -> dict[str, Any]:
    """What is known once the node is part of a swarm."""
    peer = node.peer
    live = peer.membership.live()
    apart = [
        node.sketches.apart(told.name, told.sketch_at, told.sketch)
        for told in node.board
        if told.name != node.name and told.name in live
    ]
    return {
        "members": Counter(each.state for each in peer.membership.rumours()),
        "lag": node.lag(),
        "foresees": node.way.sends_updates,
        "outbox_bytes": peer.links.outbox_bytes(),
        "replica_distance": max((each for each in apart if not math.isnan(each)), default=math.nan),
    }
