"""The `murmurate` command. Each subcommand imports what it needs: torch alone takes 2 to 3 s.

Exit codes: 0 done, 2 configuration, 3 checkpoint, 4 network, 5 a promise broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from murmurate import __version__
from murmurate.errors import (
    CheckpointError,
    ConfigError,
    MurmurateError,
    PromiseBroken,
    SchemaMismatch,
    TransportError,
)

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
        print(f"murmurate: {error}", file=sys.stderr)
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
    _add_sim(commands)
    return parser


def _add_sim(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
