"""Who races, with what settings, and in which scenarios."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PEERS = 4
VICTIM = 3
"""Is slow, or killed."""
STEP_S = 0.05
SLOW = 10.0
KILLED_AT, BACK_AT = 1 / 3, 2 / 3
LINK_BYTES_S, LINK_DELAY_MS = 12_500_000, 20.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """How its processes are started, and how it was set."""

    title: str
    module: str
    peers: int = PEERS
    server: str = ""
    """Another process, on a machine of its own."""
    foreign: bool = False
    """Runs in the environment of `make bench-peers`."""
    package: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    settings: str = ""
    """In words, for the tables; what was tuned besides is in `race.tuning`."""


CONTENDERS = {
    "alone": Contender(title="alone", module="race.alone", peers=1, settings="one process"),
    "ddp": Contender(
        title="DDP",
        module="race.ddp_agent",
        options={
            "rendezvous": {
                "last_call_timeout": 1,
                "keep_alive_interval": 1,
                "keep_alive_max_attempt": 2,
            }
        },
        settings="gloo, bucket views, static graph; torchrun, a checkpoint every second; when one"
        " is killed elastic (3 to 4 nodes), rendezvous told to wait 1 s and to see a death in 2 s"
        " (by default 30 s and 15 s)",
    ),
    "hivemind": Contender(
        title="hivemind",
        module="race.hive",
        foreign=True,
        package="hivemind",
        options={
            "use_local_updates": True,
            "averaging_timeout": 10.0,
            "tracker_opts": {"min_refresh_period": 0.1, "default_refresh_period": 0.3},
        },
        settings="Optimizer with local updates, progress refreshed every 0.1 to 0.3 s (0.5 to 3 by"
        " default), averaging_timeout=10",
    ),
    "flower": Contender(
        title="Flower FedAvg",
        module="race.flower_client",
        server="race.flower_server",
        foreign=True,
        package="flwr",
        settings="FedAvg, start_server and start_client",
    ),
    "murmurate": Contender(
        title="Murmurate",
        module="race.ours",
        settings="murmurate.join(model, optimizer, run=…, peers=[…]), as it comes",
    ),
}

SCENARIOS = {
    "equal": f"{PEERS} peers, {1e3 * STEP_S:g} ms a step",
    "slow": f"one of {PEERS} is {SLOW:g}× slower",
    "killed": f"one of {PEERS} killed at a third, back at two thirds",
    "link": f"{8 * LINK_BYTES_S / 1e6:g} Mbit/s, {LINK_DELAY_MS:g} ms each way",
}
