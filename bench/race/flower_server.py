"""The server of Flower's FedAvg, which keeps the model of each round with its time."""

from __future__ import annotations

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.server.app import start_server
from flwr.server.server_config import ServerConfig
from flwr.server.strategy import FedAvg

from race.track import Track

FOR_EVER = 1_000_000


class Kept(FedAvg):
    def __init__(self, track: Track) -> None:
        entry = track.entry
        start = [p.detach().numpy().copy() for p in track.model().parameters()]
        steps = entry.options["steps"]
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=1,
            min_evaluate_clients=0,
            min_available_clients=entry.peers - 1,
            initial_parameters=ndarrays_to_parameters(start),
            on_fit_config_fn=lambda _: {"steps": steps},
        )
        self.track = track
        self.waits_for = entry.peers

    def configure_fit(self, server_round: int, parameters, client_manager):  # type: ignore[no-untyped-def]
        if server_round == 1:
            client_manager.wait_for(self.waits_for)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results, failures):  # type: ignore[no-untyped-def]
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        track = self.track
        if parameters is not None and track.has_begun():
            arrays = parameters_to_ndarrays(parameters)
            track.snapshot(np.concatenate([a.reshape(-1) for a in arrays]))
            track.say("round", clients=len(results), failures=len(failures))
        return parameters, metrics


def main() -> None:
    track = Track.told()
    track.ready()
    start_server(
        server_address=track.entry.address,
        config=ServerConfig(num_rounds=FOR_EVER, round_timeout=None),
        strategy=Kept(track),
    )


if __name__ == "__main__":
    main()
