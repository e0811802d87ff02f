"""The commands of the studies: found by the entry point `murmurate.commands`. Without torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from murmurate.core.synchronous.rules import GROUPS_EA_WILD
from murmurate.core.values.member_half import RULES_OF
from murmurate.errors import ConfigError
from murmurate.programs.cli.options import (
    Commands,
    above_zero,
    command,
    given,
    nodes,
    positive,
    seconds,
    span,
    whole,
)
from murmurate.programs.cli.up_only import Time, misplaced, said
from murmurate.programs.keys.config import load
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import UP_KEYS

if TYPE_CHECKING:  # torch comes with it
    from murmurate.study.virtual.plan import VirtualPlan

STATUS_S = 5.0
"""So long a running node has to answer."""
PAPERS = ("000", "001", "002", "003", "004", "all")


def add(commands: Commands) -> None:
    """Their options and help."""
    _add_plan(commands)
    _add_plot(commands)
    _add_race(commands)
    _add_reproduce(commands)
    _add_sim(commands)


def _add_plan(commands: Commands) -> None:
    plan = command(
        commands,
        "plan",
        "what if peers were added: staleness, throughput, bytes, memory (docs/plan.md)",
        "From a few numbers, a workload that is measured here, or a running node: what to expect"
        " now and with more peers, and which mode and rule would suit.",
        """\
examples:
  murmurate plan --peers 4 --add 4@0.25 --step-s 0.02 --parameters 61706 --batch-size 32
  murmurate plan --peers 8 --workload digits --delay-s 0.01 --link-bytes-s 1e8
  murmurate plan --status 10.0.0.5:7000 --batch-size 32 --add 4
""",
    )
    plan.add_argument(
        "--peers", metavar="N[@SPEED]", action="append", default=[], help="again for other speeds"
    )
    plan.add_argument(
        "--add", metavar="N[@SPEED]", action="append", default=[], help="peers to be added"
    )
    plan.add_argument("--step-s", metavar="A[+B]", help="seconds of a step at speed 1")
    plan.add_argument("--fold-s", metavar="S", help="seconds to fold an update in (default 0)")
    plan.add_argument("--batch-size", metavar="N", type=positive, help="samples of a step")
    plan.add_argument("--parameters", metavar="N", type=positive, help="of the model")
    plan.add_argument("--every", metavar="N", type=positive, default=1, help="steps in an update")
    plan.add_argument("--delay-s", metavar="S", type=seconds, default=0.0, help="one way")
    plan.add_argument("--link-bytes-s", metavar="N", type=above_zero, help="of each link")
    plan.add_argument("--workload", metavar="NAME", help="measured on this machine")
    plan.add_argument("--data", metavar="PATH", help="where the workload's files are")
    plan.add_argument("--status", metavar="ADDRESS", help="host:port of a running node")
    plan.add_argument("--json", action="store_true", help="for programs")
    plan.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from murmurate.study.plan import command as plan

    if arguments.status is not None:
        now = plan.of_status(_status(arguments.status), arguments.batch_size or 1)
        return plan.tell(now, plan.added(now, arguments.add), as_json=arguments.json)
    told = {
        "batch_size": arguments.batch_size,
        "parameters": arguments.parameters,
        "step": arguments.step_s,
        "fold": arguments.fold_s,
    }
    if arguments.workload is not None:
        found = plan.of_workload(arguments.workload, arguments.data, arguments.batch_size)
        told = found | {key: value for key, value in told.items() if value is not None}
    missing = [key for key in ("step", "batch_size", "parameters") if told[key] is None]
    if missing:
        names = {"step": "--step-s", "batch_size": "--batch-size", "parameters": "--parameters"}
        raise ConfigError(
            f"{', '.join(names[key] for key in missing)}: needed, or --workload, or --status"
        )
    now = plan.circumstances(
        peers=arguments.peers or ["4"],
        delay_s=arguments.delay_s,
        link_bytes_s=arguments.link_bytes_s,
        every=arguments.every,
        **told,
    )
    return plan.tell(now, plan.added(now, arguments.add), as_json=arguments.json)


def _status(address: str) -> dict[str, Any]:
    import asyncio

    from murmurate.programs.keys.credentials import own_credentials
    from murmurate.watch import status, swarm

    status.check(address)
    return swarm.as_json(asyncio.run(status.ask(address, STATUS_S, own_credentials())))


def _add_plot(commands: Commands) -> None:
    plot = command(
        commands,
        "plot",
        "pictures of a run, from its report",
        "Loss and accuracy over samples and time, and the staleness at each node; with a trajectory"
        " also the loss landscape around it, in a second picture. Several reports are drawn into"
        " the same frames, and into one plane. Needs matplotlib: pip install 'murmurate[lab]'.",
        """\
examples:
  murmurate up --report out.json && murmurate plot out.json
  murmurate up --report out.json --trajectory && murmurate plot out.json
  murmurate plot sync.json async.json --out both.png
""",
    )
    plot.add_argument(
        "reports",
        metavar="REPORT",
        nargs="+",
        help="JSON files of murmurate up or coordinator --report",
    )
    plot.add_argument("--out", metavar="FILE", help="PNG, PDF or SVG (default: beside the report)")
    plot.set_defaults(run=_plot)


def _plot(arguments: argparse.Namespace) -> int:
    from murmurate.study.lab import plot

    return plot.run(arguments.reports, arguments.out)


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


def _add_reproduce(commands: Commands) -> None:
    reproduce = command(
        commands,
        "reproduce",
        "the papers' figures at the scale of a laptop (docs/papers.md)",
        "For each figure, table and claim: the paper's number, ours, whether they agree, and why"
        " not. As a table, JSON and a page.",
        """\
examples:
  murmurate reproduce 004 --quick
  murmurate reproduce 000 --text enwiki.txt
  murmurate reproduce all --out results/papers
""",
    )
    reproduce.add_argument(
        "paper", metavar="PAPER", choices=PAPERS, help=f"one of {', '.join(PAPERS)}"
    )
    reproduce.add_argument("--quick", action="store_true", help="at most a minute each")
    reproduce.add_argument("--out", metavar="DIR", default="papers", help="default: papers")
    reproduce.add_argument(
        "--text", metavar="FILE", help="for 000's word vectors (default: Python's reference)"
    )
    reproduce.add_argument("--seed", metavar="S", type=whole, default=0, help="default 0")
    reproduce.set_defaults(run=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    from murmurate.study.reproduce import command as reproduce
    from murmurate.study.reproduce.claim import Effort

    effort = Effort(quick=arguments.quick, seed=arguments.seed, text=arguments.text)
    return reproduce.run(arguments.paper, effort, arguments.out)


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
    from murmurate.study.virtual.plan import plan

    options = given(arguments, UP_KEYS)
    if options.get("train.rule") == GROUPS_EA_WILD:
        options["ist.coordinator"] = STDIN  # the hub that groups exchange with
    if options.get("train.mode") in RULES_OF:
        options["ist.coordinator"] = STDIN  # there is one, and nobody has to know where
        options.setdefault("train.rule", "async")
    config = load(None, {}, options)
    refused = {each.option: each.why_not for each in misplaced(arguments, Time.VIRTUAL)}
    return plan(arguments.nodes, config, refused=refused, **said(arguments, Time.VIRTUAL))
