"""`murmurate coordinator`: found by the entry point `murmurate.commands`. Without torch."""

from __future__ import annotations

import argparse
import os

from murmurate import workloads
from murmurate.errors import ConfigError
from murmurate.programs.cli.options import Commands, add_keys, command, given
from murmurate_coordinator.config import COORDINATOR_KEYS, load


def add(commands: Commands) -> None:
    """The command's options and help."""
    it = command(
        commands,
        "coordinator",
        "deal subnets to peers and assemble them (docs/ist.md), or be a hub (docs/hub.md)",
        "Mode ist, for models that no peer has to hold as a whole: each member gets a subnet of its"
        " own size, trains it by itself and pushes it back. Mode hub: each has the whole model, and"
        " its gradients or weights come here. Members may come, leave, die and be slow; killed and"
        " started again with its folder, it goes on where it was.",
        """\
examples:
  murmurate coordinator --workload fashion-mnist-mlp --data ~/fashion --rule async
  murmurate node --mode ist --coordinator 127.0.0.1:7100 --workload …       its members
  murmurate coordinator --mode hub --rule k-of-n --hub-gradients 3 --founders 4
  murmurate coordinator --config coordinator.toml --check-config         is it right? all errors
  murmurate coordinator --checkpoint state/ --metrics 127.0.0.1:9464     restartable, watched
  curl -O http://127.0.0.1:9464/model.safetensors                        the model as it is now

Every key of the file is an option here and a variable MURMURATE_SECTION_KEY; an option beats the
environment, the environment beats the file.
""",
    )
    it.add_argument("--config", metavar="FILE", help="TOML file with [coordinator], [train], …")
    it.add_argument(
        "--check-config", action="store_true", help="list every error and exit: 0 none, 2 some"
    )
    it.add_argument(
        "--events",
        action="store_true",
        help="a line of JSON for each event (for programs); ends when standard input does",
    )
    add_keys(it, COORDINATOR_KEYS)
    it.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    config = load(arguments.config, os.environ, given(arguments, COORDINATOR_KEYS))
    workloads.check(config.train.workload, config.train.data)
    train = config.train
    if train.recipe.changes and not (train.samples or train.seconds or arguments.events):
        raise ConfigError(
            "train.schedule, train.warmup: go by the part of the budget that is spent: say samples"
            " or seconds"
        )
    if arguments.check_config:
        print("murmurate: the configuration is right")
        return 0
    from murmurate.programs.run import run
    from murmurate_coordinator.program import CoordinatorRole

    events = arguments.events
    return run(config, CoordinatorRole(config), events=events, launched=events)
