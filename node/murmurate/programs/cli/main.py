"""The `murmurate` command. Each subcommand imports what it needs: torch alone takes 2 to 3 s.

Exit codes: 0 done, 2 configuration, 3 checkpoint, 4 network, 5 a promise broken.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from murmurate import __version__, workloads
from murmurate.errors import (
    CheckpointError,
    ConfigError,
    MurmurateError,
    PromiseBroken,
    SchemaMismatch,
    TransportError,
)
from murmurate.programs.cli import completion, up
from murmurate.programs.cli.options import (
    Commands,
    add_keys,
    command,
    given,
    positive,
    seconds,
    whole,
)
from murmurate.programs.keys.config import check_budget, load
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import NODE_KEYS
from murmurate.training.signals import Stopped

EXIT_CODES: tuple[tuple[type[MurmurateError], int], ...] = (
    (ConfigError, 2),
    (SchemaMismatch, 2),
    (CheckpointError, 3),
    (TransportError, 4),
    (PromiseBroken, 5),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a known error is one line on stderr and its exit code."""
    arguments = command_line().parse_args(argv)
    try:
        return _run(arguments)
    except (KeyboardInterrupt, Stopped):  # also while an error is being reported
        return 130


def _run(arguments: argparse.Namespace) -> int:
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except MurmurateError as error:
        for line in str(error).splitlines():  # a configuration is told all its mistakes at once
            print(f"murmurate: {line}", file=sys.stderr)
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: that is its right
        return 0


def command_line() -> argparse.ArgumentParser:
    """All commands, also those that other packages add."""
    parser = argparse.ArgumentParser(
        prog="murmurate",
        description="Train one model across a flock of unequal machines.",
        epilog="Pages that are named docs/… lie in the folder docs of the source.",
    )
    parser.add_argument("--version", action="version", version=f"murmurate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    up.add(commands)
    _add_node(commands)
    _add_status(commands)
    _add_top(commands)
    _add_stop(commands)
    _add_partition(commands)
    _add_completion(commands)
    for found in entry_points(group="murmurate.commands"):  # the coordinator's, the studies'
        add: Callable[[Commands], None] = found.load()
        add(commands)
    return parser


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
    add_keys(node, NODE_KEYS)
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
        "--timeout", metavar="S", type=seconds, default=5.0, help="seconds (default 5)"
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
        "--interval", metavar="S", type=seconds, default=1.0, help="seconds (default 1)"
    )
    top.add_argument("--count", metavar="N", type=positive, help="so many tables, then end")
    top.add_argument(
        "--timeout", metavar="S", type=seconds, default=5.0, help="seconds (default 5)"
    )
    top.set_defaults(run=_top)


def _add_stop(commands: Commands) -> None:
    stop = command(
        commands,
        "stop",
        "end the run of a coordinator",
        "Members push what they have and leave, the coordinator evaluates, writes its last"
        " checkpoint and its report, and ends. A SIGTERM of the coordinator is not that: members"
        " train on, and it comes back.",
        """\
examples:
  murmurate stop 10.0.0.5:7100
""",
    )
    stop.add_argument("address", metavar="ADDRESS", help="host:port of the coordinator")
    stop.add_argument(
        "--timeout", metavar="S", type=seconds, default=5.0, help="seconds (default 5)"
    )
    stop.set_defaults(run=_stop)


def _node(arguments: argparse.Namespace) -> int:
    config = load(arguments.config, os.environ, given(arguments, NODE_KEYS))
    check_budget(config)
    train = config.train
    workloads.check(train.workload, train.data)
    workloads.check_split(train.workload, train.split, train.shard.count)
    if arguments.check_config:
        print("murmurate: the configuration is right")
        return 0
    from murmurate.programs.roles.choice import role_of
    from murmurate.programs.run import run

    launched = config.node.peers == (STDIN,)
    return run(config, role_of(config), events=arguments.events, launched=launched)


def _status(arguments: argparse.Namespace) -> int:
    from murmurate.programs.keys.credentials import own_credentials
    from murmurate.watch import status

    return status.run(
        arguments.address, arguments.timeout, own_credentials(), as_json=arguments.json
    )


def _stop(arguments: argparse.Namespace) -> int:
    import asyncio

    from murmurate.edge.net.coordinator_link import stop_run
    from murmurate.edge.net.transport import Limits
    from murmurate.programs.keys.credentials import own_credentials
    from murmurate.watch.status import check

    check(arguments.address)
    told = asyncio.run(stop_run(arguments.address, arguments.timeout, Limits(), own_credentials()))
    print(f"run {told.run!r} ends: {told.members} members push what they have and leave")
    return 0


def _top(arguments: argparse.Namespace) -> int:
    from murmurate.programs.keys.credentials import own_credentials
    from murmurate.watch import top

    return top.run(
        arguments.address,
        own_credentials(),
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
    partition.add_argument("--peers", metavar="N", type=positive, default=4, help="default 4")
    partition.add_argument(
        "--widths", metavar="W,W,…", help="what each peer gets, relative to the others"
    )
    partition.add_argument("--seed", metavar="S", type=whole, default=0, help="default 0")
    partition.add_argument("--show", action="store_true", help="print it (so it does anyway)")
    partition.set_defaults(run=_partition)


def _partition(arguments: argparse.Namespace) -> int:
    from murmurate.programs.cli import partition

    return partition.run(
        arguments.workload, arguments.peers, arguments.widths, arguments.data, arguments.seed
    )


def _add_completion(commands: Commands) -> None:
    it = command(
        commands,
        "completion",
        "print a script by which a shell completes commands and options",
        "To be read by the shell when it starts, or once for this one.",
        """\
examples:
  source <(murmurate completion bash)                       in ~/.bashrc
  source <(murmurate completion zsh)                        in ~/.zshrc, after compinit
  murmurate completion fish > ~/.config/fish/completions/murmurate.fish
""",
    )
    it.add_argument("shell", metavar="SHELL", choices=completion.SHELLS, help="bash, zsh or fish")
    it.set_defaults(run=_completion)


def _completion(arguments: argparse.Namespace) -> int:
    print(completion.script(arguments.shell, command_line()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
