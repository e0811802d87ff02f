"""Which mode and rule, from a forecast of each, with the reason in a sentence."""

from __future__ import annotations

import math

from murmurate.study.plan.prediction import BUSY_MAX, Circumstances, gossip, hub, synchronous

UNEVEN = 1.5
"""Speeds further apart than this make waiting dear."""
NEAR = 0.95
"""Synchronous training that is as fast as this part of the asynchronous one costs nothing."""
HIGH_CC = 300.0
"""003's rule, as far as it holds: ResNet-50's 308 is among those where sync was better."""
STALENESS_AIM = 2.0
HUB_BUSY_AIM = 0.5


def advice(told: Circumstances) -> list[str]:
    """The first sentence is the recommendation."""
    free, step = gossip(told), synchronous(told)
    apart = max(told.speeds) / min(told.speeds)
    said = []
    share = step.samples_per_s / free.samples_per_s
    if told.n == 1:
        return ["one peer: nothing to exchange"]
    if share >= NEAR and apart <= UNEVEN:
        said.append(
            f"mode allreduce: in step it has {100 * share:.0f} % of the throughput of gossip, and"
            " no staleness"
        )
        if told.cc_ratio is not None and told.cc_ratio >= HIGH_CC:
            said.append(f"a CC ratio of {told.cc_ratio:.0f} speaks for sync too (003's rule)")
    else:
        why = (
            f"speeds are {apart:.1f} times apart"
            if apart > UNEVEN
            else "the exchange takes long beside a step"
        )
        said.append(
            f"mode gossip, rule shared: {why}, and in step {100 * (1 - share):.0f} % of the"
            " throughput would be waited away; shared is the rule that more peers cannot break"
        )
    if free.limit.startswith("links"):
        said.append(
            "links are the limit of gossip: fewer bytes (--codec int8 or topk), fewer updates"
            " (--every), fewer neighbours (--topology), or subnets (--mode ist)"
        )
    elif free.limit:
        said.append("folding is the limit: --every 4 has a quarter of the updates to fold")
    said.append(hub_advice(told))
    return said


def hub_advice(told: Circumstances) -> str:
    """Which K, and from which batch on the hub keeps up."""
    k = min(told.n, max(1, math.ceil((told.n - 1) / STALENESS_AIM)))
    pushes = hub(told).samples_per_s / told.batch_size / told.every
    each_s = max(told.fold_s, told.message_s)
    text = f"for a hub: K = {k} (mean staleness (n − 1)/K = {(told.n - 1) / k:.1f})"
    if each_s and pushes * each_s > HUB_BUSY_AIM:
        times = math.ceil(pushes * each_s / HUB_BUSY_AIM)
        full = "it is full" if pushes * each_s > BUSY_MAX else "it is busy"
        return f"{text}; {full}: a batch of {times * told.batch_size} or more, or --every {times}"
    return f"{text}; a batch of {told.batch_size} keeps it {100 * pushes * each_s:.0f} % busy"
