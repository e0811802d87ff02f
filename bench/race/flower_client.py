"""A client of Flower's FedAvg: so many local steps in each round, with a fresh optimizer, as the
examples of Flower have it.

Through `start_client`, which keeps one process and one stream: what is deployed today
(`flower-supernode`) starts a process that imports torch in every round, six seconds each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.compat.client.app import start_client
from flwr.compat.client.numpy_client import NumPyClient

from race.track import LIMIT_S, Track


class Client(NumPyClient):
    def __init__(self, track: Track) -> None:
        self.track = track
        self.model = track.model()
        self.rounds = 0

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        track = self.track
        if not self.rounds:
            if not track.late:
                track.ready()
            track.line_up()
        self.rounds += 1
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), parameters, strict=True):
                mine.copy_(torch.from_numpy(theirs))
        optimizer = track.optimizer(self.model)
        steps = 0
        for batch in track.laps(self.model, int(config["steps"])):
            track.learn(self.model, optimizer, batch)
            steps += 1
        track.say("round", exchanged=self.rounds)
        weights = [p.detach().numpy() for p in self.model.parameters()]
        return weights, steps * track.workload.batch, {}


def main() -> None:
    track = Track.told()
    entry = track.entry
    track.warm_up()
    if track.late:
        track.line_up()
    client = Client(track).to_client()
    server = f"{entry.hosts[entry.peers]}:{entry.ports[entry.peers]}"
    start_client(server_address=server, client=client, max_wait_time=LIMIT_S)


if __name__ == "__main__":
    main()
