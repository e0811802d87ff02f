"""The `murmurate` command. Each subcommand imports what it needs: torch alone takes 2 to 3 s.

Exit codes: 0 done, 2 configuration, 3 checkpoint, 4 network, 5 a promise broken.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from murmurate import __version__
from murmurate.config import KEYS, Key, load
from murmurate.errors import (
    CheckpointError,
    ConfigError,
    MurmurateError,
    PromiseBroken,
    SchemaMismatch,
    TransportError,
)
from murmurate.values import FLAG, LIST, STDIN

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

UP_KEYS = {
    "node": ("run", "seed", "threads"),
    "train": (
        *("workload", "data", "split", "batch_size", "lr", "every", "rule", "mode", "topology"),
        *("samples", "seconds"),
    ),
    "ist": ("memory",),
    "checkpoint": ("dir", "every_s"),
    "metrics": ("listen",),
    "report": ("path",),
}
"""What all nodes of `up` share; the rest (names, addresses, shards) it decides itself."""

EXIT_CODES: tuple[tuple[type[MurmurateError], int], ...] = (
    (ConfigError, 2),
    (SchemaMismatch, 2),
    (CheckpointError, 3),
    (TransportError, 4),
    (PromiseBroken, 5),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a known error is one line on stderr and its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except MurmurateError as error:
        for line in str(error).splitlines():  # a configuration is told all its mistakes at once
            print(f"murmurate: {line}", file=sys.stderr)
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: that is its right
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmurate",
        description="Train one model across a flock of unequal machines.",
    )
    parser.add_argument("--version", action="version", version=f"murmurate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_up(commands)
    _add_node(commands)
    _add_status(commands)
    _add_top(commands)
    _add_plot(commands)
    _add_partition(commands)
    _add_sim(commands)
    for found in entry_points(group="murmurate.commands"):  # murmurate never imports them
        add: Callable[[Commands], None] = found.load()
        add(commands)
    return parser


def _add_up(commands: Commands) -> None:
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
  murmurate up --mode ist --rule async --nodes 4 --widths 4,2,1,1      subnets (docs/ist.md)
  murmurate up --workload my_file.py:Workload       your own model and data
  murmurate up --virtual --nodes 64 --speed node-0=0.1 --delay-s 0.2 --seconds 60
""",
    )
    up.add_argument("--nodes", metavar="N", type=_positive, default=4, help="default 4")
    up.add_argument(
        "--kill",
        metavar="NAME@PART%",
        action="append",
        default=[],
        help="kill -9 a node when the swarm has that part of its budget; again for more nodes",
    )
    up.add_argument(
        "--slow",
        metavar="NAME=SECONDS",
        action="append",
        default=[],
        help="let a node sleep after each of its steps; again for more nodes",
    )
    up.add_argument(
        "--codec",
        metavar="[NAME=]CODEC",
        action="append",
        default=[],
        help="how updates are sent: fp32, bf16, int8 or topk; of all nodes, or of one; again for"
        " more",
    )
    up.add_argument(
        "--widths",
        metavar="W,W,…",
        help="mode ist: how large each node's subnet is, relative to the others' (default: as it is"
        " fast)",
    )
    up.add_argument(
        "--generator",
        action="store_true",
        help="one more process deals the batches, each to one node (docs/generator.md)",
    )
    up.add_argument(
        "--trajectory",
        action="store_true",
        help="keep weights now and then beside the report: murmurate plot then draws the loss"
        " landscape",
    )
    up.add_argument(
        "--virtual",
        action="store_true",
        help="in virtual time, in one process: same command, same result (docs/virtual.md)",
    )
    up.add_argument(
        "--speed",
        metavar="[NAME=]STEPS",
        action="append",
        default=[],
        help="with --virtual: steps a node makes in a virtual second (default 1); again for more",
    )
    up.add_argument(
        "--delay-s",
        metavar="[NAME=]S",
        action="append",
        default=[],
        help="with --virtual: seconds a message takes (default 0), of all links or of one node's",
    )
    add_keys(up, [key for key in KEYS if key.name in UP_KEYS[key.section]])
    up.set_defaults(run=_up)


def _add_node(commands: Commands) -> None:
    node = command(
        commands,
        "node",
        "one peer: what a machine or a container runs",
        "Trains until the swarm has seen its samples, the time is over, or a SIGTERM: then it"
        " publishes what it has and leaves. Without peers it founds a run.",
        """\
examples:
  murmurate node --listen 10.0.0.5:7000 --insecure                     the first machine
  murmurate node --listen 10.0.0.6:7000 --insecure --peers 10.0.0.5:7000   another one
  murmurate node --config node.toml --check-config                     is it right? all errors
  MURMURATE_TRAIN_LR=0.05 murmurate node --config node.toml            a key by environment

Every key of the file is an option here and a variable MURMURATE_SECTION_KEY; an option beats the
environment, the environment beats the file. docs/config.md explains each.
""",
    )
    node.add_argument("--config", metavar="FILE", help="TOML file with [node], [train], [report]")
    node.add_argument(
        "--check-config", action="store_true", help="list every error and exit: 0 none, 2 some"
    )
    node.add_argument(
        "--events", action="store_true", help="a line of JSON for each event (for programs)"
    )
    add_keys(node, KEYS)
    node.set_defaults(run=_node)


def _add_status(commands: Commands) -> None:
    status = command(
        commands,
        "status",
        "ask a running node how its swarm is",
        "Members, samples, loss, accuracy and staleness, as the asked node knows them.",
        """\
examples:
  murmurate status 10.0.0.5:7000
  murmurate status 10.0.0.5:7000 --json | jq '.members[] | {name, state, lag}'
""",
    )
    status.add_argument("address", metavar="ADDRESS", help="host:port of any member")
    status.add_argument(
        "--timeout", metavar="S", type=_seconds, default=5.0, help="seconds (default 5)"
    )
    status.add_argument("--json", action="store_true", help="everything, for programs")
    status.set_defaults(run=_status)


def _add_top(commands: Commands) -> None:
    top = command(
        commands,
        "top",
        "watch a running swarm, from any one of its nodes",
        "Every member with its speed, staleness now and predicted, traffic, loss, accuracy and lag,"
        " once a second until Ctrl-C. Without a terminal: a plain table each time.",
        """\
examples:
  murmurate top 10.0.0.5:7000
  murmurate top 10.0.0.5:7000 --sort lag
  ssh host murmurate top 127.0.0.1:7000 --count 1
""",
    )
    top.add_argument("address", metavar="ADDRESS", help="host:port of any member")
    top.add_argument("--sort", metavar="COLUMN", default="name", help="by this column (name)")
    top.add_argument(
        "--interval", metavar="S", type=_seconds, default=1.0, help="seconds (default 1)"
    )
    top.add_argument("--count", metavar="N", type=_positive, help="so many tables, then end")
    top.add_argument(
        "--timeout", metavar="S", type=_seconds, default=5.0, help="seconds (default 5)"
    )
    top.set_defaults(run=_top)


def _add_plot(commands: Commands) -> None:
    plot = command(
        commands,
        "plot",
        "pictures of a run, from its report",
        "Loss and accuracy over samples and time, and the staleness at each node; with a trajectory"
        " also the loss landscape around it, in a second picture. Needs matplotlib: pip install"
        " 'murmurate[lab]'.",
        """\
examples:
  murmurate up --report out.json && murmurate plot out.json
  murmurate up --report out.json --trajectory && murmurate plot out.json
""",
    )
    plot.add_argument("report", metavar="REPORT", help="JSON file of murmurate up --report")
    plot.add_argument("--out", metavar="FILE", help="PNG, PDF or SVG (default: beside the report)")
    plot.set_defaults(run=_plot)


def command(
    commands: Commands,
    name: str,
    summary: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, 79),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_keys(parser: argparse.ArgumentParser, keys: Iterable[Key]) -> None:
    """An option for each key; values stay text, `config.load` checks them with all the others."""
    for section in dict.fromkeys(key.section for key in keys):
        group = parser.add_argument_group(f"[{section}]")
        for key in keys:
            if key.section != section:
                continue
            how: dict[str, Any] = {"metavar": key.kind.metavar}
            if key.kind is FLAG:
                how |= {"nargs": "?", "const": "true"}
            elif key.kind is LIST:
                how |= {"nargs": "*"}
            group.add_argument(key.option, dest=key.path, help=key.meaning, **how)


def given(arguments: argparse.Namespace, keys: Iterable[Key] = KEYS) -> dict[str, str]:
    """What the options say, by key."""
    values = {key.path: getattr(arguments, key.path, None) for key in keys}
    return {
        path: " ".join(value) if isinstance(value, list) else value
        for path, value in values.items()
        if value is not None
    }


def _up_virtual(arguments: argparse.Namespace) -> int:
    from murmurate import virtual

    options = given(arguments)
    if options.get("train.mode") == "ist":
        options["ist.coordinator"] = STDIN  # there is one, and nobody has to know where
        options.setdefault("train.rule", "async")
    config = load(None, {}, options)
    return virtual.run(
        virtual.plan(
            arguments.nodes,
            config,
            speed=arguments.speed,
            delay=arguments.delay_s,
            widths=arguments.widths,
            kill=arguments.kill,
            codec=arguments.codec,
            every=config.train.every if "train.every" in options else None,
            refused={
                "--slow": arguments.slow,
                "--generator": arguments.generator,
                "--trajectory": arguments.trajectory,
                "--checkpoint": config.checkpoint.dir,
                "--metrics": config.metrics.listen,
            },
        )
    )


def _up(arguments: argparse.Namespace) -> int:
    from murmurate import launch, up, workloads

    if arguments.virtual:
        return _up_virtual(arguments)
    if arguments.speed or arguments.delay_s:
        raise ConfigError("--speed, --delay-s: only with --virtual; --slow slows a real node")
    options = given(arguments)
    if options.get("train.mode") == "ist":
        options["ist.coordinator"] = STDIN  # one of the processes that are started
    config = load(None, {}, options)
    workloads.check(config.train.workload, config.train.data)
    return up.run(
        launch.plan(
            arguments.nodes,
            config,
            kill=arguments.kill,
            slow=arguments.slow,
            codec=arguments.codec,
            generator=arguments.generator,
            trajectory=arguments.trajectory,
            widths=arguments.widths,
        )
    )


def _node(arguments: argparse.Namespace) -> int:
    config = load(arguments.config, os.environ, given(arguments))
    if arguments.check_config:
        print("murmurate: the configuration is right")
        return 0
    from murmurate import program

    return program.run(config, events=arguments.events)


def _status(arguments: argparse.Namespace) -> int:
    from murmurate import status

    return status.run(arguments.address, arguments.timeout, as_json=arguments.json)


def _plot(arguments: argparse.Namespace) -> int:
    from murmurate import plot

    return plot.run(arguments.report, arguments.out)


def _top(arguments: argparse.Namespace) -> int:
    from murmurate.watch import top

    return top.run(
        arguments.address,
        sort=arguments.sort,
        interval_s=arguments.interval,
        count=arguments.count,
        timeout_s=arguments.timeout,
    )


def _add_partition(commands: Commands) -> None:
    partition = command(
        commands,
        "partition",
        "show how a model would be split over peers (docs/ist.md)",
        "Which axis of which layer goes where, and the parameters, memory and FLOPs of each peer."
        " Nothing is trained.",
        """\
examples:
  murmurate partition --workload fashion-mnist-mlp --peers 4 --widths 4,2,1,1
  murmurate partition --workload my_file.py:Workload --peers 8
""",
    )
    partition.add_argument("--workload", metavar="NAME", default="digits", help="default digits")
    partition.add_argument("--data", metavar="PATH", help="where the workload's files are")
    partition.add_argument("--peers", metavar="N", type=_positive, default=4, help="default 4")
    partition.add_argument(
        "--widths", metavar="W,W,…", help="what each peer gets, relative to the others"
    )
    partition.add_argument("--seed", metavar="S", type=_whole, default=0, help="default 0")
    partition.add_argument("--show", action="store_true", help="print it (so it does anyway)")
    partition.set_defaults(run=_partition)


def _partition(arguments: argparse.Namespace) -> int:
    from murmurate import partition

    return partition.run(
        arguments.workload, arguments.peers, arguments.widths, arguments.data, arguments.seed
    )


def _add_sim(commands: Commands) -> None:
    sim = commands.add_parser(
        "sim",
        help="try to break the protocol: virtual time, seeded faults, the production core",
        description="Simulates swarms under loss, reordering, duplication, cuts, crashes, joins and"
        " leaves, and checks every promise after every event. One seed decides everything.",
    )
    which = sim.add_mutually_exclusive_group()
    which.add_argument("--seeds", metavar="A:B", type=_span, help="seeds A to B-1 (default 0:500)")
    which.add_argument("--seed", metavar="S", type=_whole, help="one seed, told in detail")
    which.add_argument(
        "--full",
        action="store_true",
        help="everything: 10,000 seeds, all mutants, all scenarios",
    )
    which.add_argument("--list-mutants", action="store_true", help="the mistakes it must find")
    sim.add_argument("--nodes", metavar="N[:M]", type=_nodes, help="peers at the start (3:16)")
    sim.add_argument(
        "--topology",
        metavar="KIND",
        help="full, ring, k-regular, exponential,"
        " one-peer-exponential, star or tree (default: by seed)",
    )
    sim.add_argument(
        "--scenario",
        choices=("faults", "churn", "scale", "average"),
        default="faults",
        help="faults: all kinds, by seed (default); churn: 10,000 joins and leaves; scale: 1,000"
        " peers on a merge tree; average: gossip of weights over lossy links",
    )
    sim.add_argument("--mutant", metavar="NAME", help="put this mistake in; the run must fail")
    sim.add_argument("--trace-hash", action="store_true", help="print the hash of all events")
    sim.add_argument("--jobs", metavar="N", type=_positive, help="processes (default: all cores)")
    sim.set_defaults(run=_sim)


def _sim(arguments: argparse.Namespace) -> int:
    from murmurate.sim import command

    return command.run(arguments)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _span(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B, such as 0:500")
    return int(first), int(last)


def _nodes(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    last = last if colon else first
    if not first.isdecimal() or not last.isdecimal() or not 1 <= int(first) <= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N:M with 1 <= N <= M")
    return int(first), int(last)


if __name__ == "__main__":
    sys.exit(main())
