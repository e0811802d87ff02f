"""The commands of the studies: found by the entry point `murmurate.commands`. Without torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from murmurate.core.values.member_half import RULES_OF
from murmurate.programs.cli.options import (
    Commands,
    command,
    given,
    nodes,
    positive,
    span,
    whole,
)
from murmurate.programs.keys.config import load
from murmurate.programs.keys.kinds import STDIN

if TYPE_CHECKING:  # torch comes with it
    from murmurate.study.virtual.command import VirtualPlan


def add(commands: Commands) -> None:
    """Their options and help."""
    _add_plot(commands)
    _add_race(commands)
    _add_sim(commands)


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


def _plot(arguments: argparse.Namespace) -> int:
    from murmurate.study.lab import plot

    return plot.run(arguments.report, arguments.out)


def _add_race(commands: Commands) -> None:
    race = command(
        commands,
        "race",
        "solvers against each other: one TOML file, one table (docs/race.md)",
        "Trains every solver in every setting with every seed, in virtual time or with real"
        " processes, and compares: accuracy, time and bytes to a target, staleness, throughput,"
        " waiting. Stopped or killed, the same command goes on with what is missing.",
        """\
examples:
  murmurate race examples/race.toml --quick
  murmurate race examples/race.toml --out results/race
""",
    )
    race.add_argument("file", metavar="FILE.toml", help="solvers, settings, seeds")
    race.add_argument("--out", metavar="DIR", help="default: FILE-race beside the file")
    race.add_argument("--jobs", metavar="N", type=positive, help="processes (default: all cores)")
    race.add_argument("--quick", action="store_true", help="one seed and a tenth of the budget")
    race.set_defaults(run=_race)


def _race(arguments: argparse.Namespace) -> int:
    from murmurate.study.race import command as race

    return race.run(arguments.file, out=arguments.out, jobs=arguments.jobs, quick=arguments.quick)


def _add_sim(commands: Commands) -> None:
    sim = commands.add_parser(
        "sim",
        help="try to break the protocol: virtual time, seeded faults, the production core",
        description="Simulates swarms under loss, reordering, duplication, cuts, crashes, joins and"
        " leaves, and checks every promise after every event. One seed decides everything.",
    )
    which = sim.add_mutually_exclusive_group()
    which.add_argument("--seeds", metavar="A:B", type=span, help="seeds A to B-1 (default 0:500)")
    which.add_argument("--seed", metavar="S", type=whole, help="one seed, told in detail")
    which.add_argument(
        "--full",
        action="store_true",
        help="everything: 10,000 seeds, all mutants, all scenarios",
    )
    which.add_argument("--list-mutants", action="store_true", help="the mistakes it must find")
    sim.add_argument("--nodes", metavar="N[:M]", type=nodes, help="peers at the start (3:16)")
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
    sim.add_argument("--jobs", metavar="N", type=positive, help="processes (default: all cores)")
    sim.set_defaults(run=_sim)


def _sim(arguments: argparse.Namespace) -> int:
    from murmurate.study.sim import command

    return command.run(arguments)


def up_virtual(arguments: argparse.Namespace) -> int:
    """`murmurate up --virtual`."""
    from murmurate.study.virtual import command as virtual

    return virtual.run(virtual_plan(arguments))


def virtual_plan(arguments: argparse.Namespace) -> VirtualPlan:
    """What was asked for; ConfigError for what cannot be."""
    from murmurate.study.virtual import command as virtual

    options = given(arguments)
    if options.get("train.mode") in RULES_OF:
        options["ist.coordinator"] = STDIN  # there is one, and nobody has to know where
        options.setdefault("train.rule", "async")
    config = load(None, {}, options)
    return virtual.plan(
        arguments.nodes,
        config,
        speed=arguments.speed,
        slow=arguments.slow,
        step=arguments.step_s,
        fold=arguments.fold_s,
        delay=arguments.delay_s,
        link=arguments.link_bytes_s,
        join=arguments.join,
        leave=arguments.leave,
        widths=arguments.widths,
        kill=arguments.kill,
        codec=arguments.codec,
        every=config.train.every if "train.every" in options else None,
        refused={
            "--generator": arguments.generator,
            "--trajectory": arguments.trajectory,
            "--checkpoint": config.checkpoint.dir,
            "--metrics": config.metrics.listen,
        },
    )
