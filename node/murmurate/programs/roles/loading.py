"""The workload of a program, and its share of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from murmurate.programs.keys.table import Config, TrainConfig
    from murmurate.workloads import DataShare, Workload


def workload_of(train: TrainConfig, seed: int) -> Workload:
    """As it was asked for; torch comes with it."""
    from murmurate import workloads

    return workloads.load(
        train.workload,
        data=train.data,
        batch_size=train.batch_size,
        lr=train.lr,
        validation=train.validation,
        seed=seed,
        recipe=train.recipe,
    )


def share_of(config: Config, workload: Workload) -> DataShare:
    """What this node trains on."""
    from murmurate import workloads

    train = config.train
    return workloads.DataShare(
        train.shard.index,
        train.shard.count,
        workloads.parse_split(train.split),
        config.node.seed,
        workload.batch_size,
    )
