"""`murmurate up`, as it stands on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from murmurate.core.synchronous.rules import GROUPS_EA_WILD
from murmurate.core.values.member_half import RULES_OF
from murmurate.errors import ConfigError
from murmurate.programs.cli.options import Commands, add_keys, command, given, positive
from murmurate.programs.cli.up_only import UP_OPTIONS, Time, add_options, misplaced, said
from murmurate.programs.keys.config import load
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import UP_KEYS

if TYPE_CHECKING:
    from murmurate.programs.up.launch import UpPlan

VIRTUAL = "murmurate.up"
"""The entry point of what `--virtual` runs: programs do not import studies."""


def add(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "train a swarm of real processes on this machine: start here",
        "Starts nodes on loopback, shows how they do, ends by itself when the swarm has seen its"
        " samples, and prints a table.",
        """\
examples:
  murmurate up                                      4 nodes, handwritten digits
  murmurate up --nodes 2 --workload fashion-mnist --data ~/fashion --seconds 60
  murmurate up --kill node-1@30%                    see the others go on
  murmurate up --slow node-2=0.09                   one of them on a slow machine
  murmurate up --codec topk --codec node-2=int8     fewer bytes on the wire
  murmurate up --checkpoint runs/1                  stop it, say the same again: it goes on
  murmurate up --split "dirichlet(0.3)" --topology ring --report out.json
  murmurate up --optimizer adamw --lr 0.002 --warmup 0.05 --schedule cosine
  murmurate up --mode ist --rule async --nodes 4 --widths 4,2,1,1      subnets (docs/ist.md)
  murmurate up --mode hub --rule async --nodes 4                       a hub (docs/hub.md)
  murmurate up --mode allreduce --rule hierarchical --nodes 8 --group 4   in step
  murmurate up --workload my_file.py:Workload       your own model and data
  murmurate up --virtual --nodes 64 --speed node-0=0.1 --delay-s 0.2 --seconds 60
""",
    )
    up.add_argument("--nodes", metavar="N", type=positive, default=4, help="default 4")
    up.add_argument(
        "--virtual",
        action="store_true",
        help="in virtual time, in one process: same command, same result (docs/virtual.md)",
    )
    add_options(up)
    add_keys(up, UP_KEYS)
    up.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from murmurate.programs.up import up

    if arguments.virtual:
        (found,) = entry_points(group=VIRTUAL, name="virtual")
        run: Callable[[argparse.Namespace], int] = found.load()
        return run(arguments)
    return up.run(plan_of(arguments))


def plan_of(arguments: argparse.Namespace) -> UpPlan:
    """What real processes are to do; ConfigError for what cannot be."""
    from murmurate import workloads
    from murmurate.programs.up import launch

    if misplaced(arguments, Time.REAL):
        virtual = ", ".join(each.option for each in UP_OPTIONS if each.time is Time.VIRTUAL)
        raise ConfigError(f"{virtual}: only with --virtual; --slow slows a real node")
    options = given(arguments, UP_KEYS)
    if options.get("train.rule") == GROUPS_EA_WILD:
        options["ist.coordinator"] = STDIN  # the hub that groups exchange with
    if options.get("train.mode") in RULES_OF:
        options["ist.coordinator"] = STDIN  # one of the processes that are started
    config = load(None, {}, options)
    workloads.check(config.train.workload, config.train.data)
    workloads.check_split(config.train.workload, config.train.split, arguments.nodes)
    return launch.plan(arguments.nodes, config, **said(arguments, Time.REAL))
