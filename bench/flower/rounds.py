"""Rounds of FedAvg in which nobody trains: what a deployed round costs beside the training.

Each of two nodes adds its own constant and returns the model at once; the server takes the mean and
notes when each round began and ended. There is no evaluation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    (values,) = message.content["arrays"].to_numpy_ndarrays()
    values = values + np.float32(1.0 + 2.0 * int(context.node_config["rank"]))
    content = RecordDict(
        {"arrays": ArrayRecord([values]), "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when a round's messages are made and when their mean is there."""

    def __init__(self) -> None:
        super().__init__(
            fraction_evaluate=0.0, min_train_nodes=2, min_evaluate_nodes=0, min_available_nodes=2
        )
        self.began: list[float] = []
        self.ended: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        while len(list(grid.get_node_ids())) < 2:  # not part of the round
            time.sleep(0.1)
        self.began.append(time.monotonic())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        result = super().aggregate_train(server_round, replies)
        self.ended.append(time.monotonic())
        return result


@server.main()
def main(grid: Grid, context: Context) -> None:
    rounds = int(context.run_config["rounds"])
    start = ArrayRecord([np.zeros(int(context.run_config["bytes"]) // 4, dtype=np.float32)])
    strategy = Timed()
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
    (values,) = result.arrays.to_numpy_ndarrays()
    right = 2.0 * rounds  # the mean of 1 and 3, added each time
    answer = {
        "began": strategy.began,
        "ended": strategy.ended,
        "off": float(np.abs(values - right).max() / right),
    }
    Path(str(context.run_config["out"])).write_text(json.dumps(answer))
