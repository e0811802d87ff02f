"""Paper 003, tables 5 and 6: with the global batch fixed, elastic averaging gets worse with the
number of members, and a synchronous mean does not."""

from __future__ import annotations

from murmurate import workloads
from murmurate.core.values.hub_settings import HubSettings
from murmurate_coordinator.virtual import VirtualSetting, VirtualSubnets

BATCH = 128
SECONDS = 100.5
"""A step takes one: 100 updates of a synchronous hub, 8 passes over the digits."""


def accuracy(rule: str, members: int) -> float:
    """In percent, at the digits' own rate; ea-msgd has momentum 0.9 and exchanges in 10 steps."""
    workload = workloads.load("digits")
    setting = VirtualSetting(
        rule=rule,
        mode="hub",
        peers=members,
        seconds=SECONDS,
        steps=1 if rule == "sync" else 10,
        batch_size=BATCH // members,
        hub=HubSettings(lr=workload.lr),
    )
    found = VirtualSubnets(workload, setting).run().evaluation.accuracy
    assert found is not None
    return 100 * found


def test_ea_msgd_gets_worse_with_its_members_and_sync_does_not() -> None:
    """Measured, one seed: sync 95.8 with 2 members, 93.9 with 16; ea-msgd 99.2 with 2, 97.8 with 4,
    then 7.8 with 8 and 8.1 with 16, which is chance. Why was not looked into: too large a rate for
    momentum and batches of 8 would do it, and so would a coupling of 0.9 / 16. Of the rates 0.02,
    0.1 and 0.2 only the last shows it: at 0.02 ea-msgd has 92.5 with 2 members and 93.6 with 16, at
    0.1 97.5 with 8 (16 was not run). The sync hub has no momentum, so ea-msgd with 2 is above it.
    """
    sync = {members: accuracy("sync", members) for members in (2, 16)}
    assert abs(sync[2] - sync[16]) <= 3
    assert accuracy("ea-msgd", 2) >= sync[2] - 3
    assert accuracy("ea-msgd", 16) <= sync[16] - 20
