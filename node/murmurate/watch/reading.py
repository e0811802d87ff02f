"""From a runtime to a `Reading`: the lock is held for as long as it takes to copy some counters."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from murmurate import __version__
from murmurate.core.message import Push
from murmurate.core.peer import Peer
from murmurate.io.metrics import Histogram, Reading
from murmurate.report import counts
from murmurate.tally import NAMES_MAX, OTHER, STEP_BOUNDS_S

if TYPE_CHECKING:
    from murmurate.runtime import Runtime


def is_ready(runtime: Runtime) -> bool:
    """Part of the swarm, with its weights, and not leaving."""
    with runtime.lock:
        return runtime.joined and runtime.peer.synced and not runtime.leaving


def read(runtime: Runtime) -> Reading:
    """All figures of this instant."""
    settings, now = runtime.settings, time.monotonic()
    ready = is_ready(runtime)
    with runtime.lock:
        tally, outlook = runtime.tally, runtime.outlook
        peer = runtime.peer if runtime.joined else None
        staleness = counts(tally.staleness)
        steps = Histogram(STEP_BOUNDS_S, tuple(tally.steps), tally.steps_s)
        pieces: dict[str, Any] = {
            "published": tally.published,
            "applied": tally.applied,
            "duplicates": tally.duplicates,
            "rejected": dict(tally.rejected),
            "dropped": dict(tally.dropped),
            "staleness_total": tally.staleness.total,
            "staleness_now": outlook.staleness(),
            "applied_of": dict(tally.applied_of),
            "staleness_of": dict(tally.staleness_of),
            "update_s": tally.compute_s if tally.published else math.nan,
            "delay_s": outlook.delay_s(now),
            "wait_s": tally.wait_s,
            "sent_by_codec": dict(tally.sent_by_codec),
            "sent_to": dict(tally.sent_to),
            "loss": tally.loss,
            "accuracy": tally.accuracy,
            "accuracy_of": tally.accuracy_of,
            "samples": tally.samples,
            "inbox_updates": sum(
                len(item.message.stamps) if isinstance(item.message, Push) else 1
                for item in runtime.inbox
            ),
        }
        silence = outlook.silence_s(now)
        sketches = [(told.name, told.sketch_at, told.sketch) for told in runtime.board]
        if peer is not None:
            live = peer.membership.live()
            pieces["members"] = Counter(each.state for each in peer.membership.rumours())
            pieces["lag"] = runtime.lag()
            if settings.rule != "average":
                pieces["staleness_predicted"] = outlook.predicted()
            if isinstance(peer, Peer):
                pieces["outbox_bytes"] = sum(peer.outbox.nbytes(to) for to in peer.outbox.waiting())
            distances = [
                runtime.sketches.apart(name, at, told)
                for name, at, told in sketches
                if name != runtime.name and name in live
            ]
            known = [each for each in distances if not math.isnan(each)]
            pieces["replica_distance"] = max(known, default=math.nan)
    keeper = runtime.keeper
    if keeper is not None:
        pieces["checkpoint_age_s"] = min(keeper.age_s, now - runtime.born)
        pieces["checkpoint_every_s"] = keeper.every_s
        pieces["checkpoint_failures"] = keeper.failures
    return Reading(
        name=runtime.name,
        run=settings.run,
        rule=settings.rule,
        topology=settings.topology,
        version=__version__,
        ready=ready,
        staleness=staleness,
        steps=steps,
        sent_bytes=runtime.transport.bytes_sent,
        received_bytes=runtime.transport.bytes_received,
        silence_s=few_longest(silence),
        pace_s=runtime.pace.message_s,
        communication=runtime.pace.communication,
        parameters=runtime.layout.size,
        cc_ratio=runtime.tally.flops_per_sample / max(1, runtime.layout.size),
        **pieces,
    )


def few_longest(silence: dict[str, float]) -> dict[str, float]:
    """By name, in order of the names; of those beyond the limit only the longest."""
    names = sorted(silence)
    few = {name: silence[name] for name in names[:NAMES_MAX]}
    if rest := names[NAMES_MAX:]:
        few[OTHER] = max(silence[name] for name in rest)
    return few
