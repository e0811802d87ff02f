"""`murmurate sim`: what it runs and what it prints."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from murmurate.core.topology import TOPOLOGIES
from murmurate.errors import ConfigError, PromiseBroken
from murmurate.study.sim.mutants import MUTANTS, applied
from murmurate.study.sim.options import Options
from murmurate.study.sim.runner import SeedsSummary, kill, run_seeds
from murmurate.study.sim.world import Result, simulate

DEFAULT_SEEDS = (0, 500)
FULL_SEEDS = (0, 10_000)
KILL_SEEDS = 500

console = Console(highlight=False, soft_wrap=True)


def run(arguments: argparse.Namespace) -> int:
    """Carry out the command line; 5 when a promise was broken."""
    if arguments.list_mutants:
        for name, mutant in MUTANTS.items():
            console.print(f"{name:24} {mutant.mistake}")
        return 0
    if arguments.mutant is not None and arguments.mutant not in MUTANTS:
        raise ConfigError(f"--mutant {arguments.mutant!r}: one of {', '.join(MUTANTS)}")
    if arguments.topology is not None and arguments.topology not in TOPOLOGIES:
        raise ConfigError(f"--topology {arguments.topology!r}: one of {', '.join(TOPOLOGIES)}")
    options = MUTANTS[arguments.mutant].where if arguments.mutant else Options()
    if arguments.topology:
        options = replace(options, topology=arguments.topology)
    if arguments.nodes:
        options = replace(options, nodes=arguments.nodes)
    if arguments.full:
        return _full(arguments.jobs)
    if arguments.scenario != "faults":
        for flag in ("seeds", "nodes", "topology", "mutant", "trace_hash", "jobs"):
            if getattr(arguments, flag):
                name = flag.replace("_", "-")
                raise ConfigError(f"--{name}: --scenario {arguments.scenario} takes only --seed")
        with console.status(f"{arguments.scenario}: this takes a few minutes"):
            table = scenario(arguments.scenario, arguments.seed or 0)
        console.print(table)
        return 0
    if arguments.seed is not None:
        return _one(arguments, options)
    first, last = arguments.seeds or DEFAULT_SEEDS
    return _many(f"seeds {first} to {last - 1}", (first, last), options, arguments)


def _one(arguments: argparse.Namespace, options: Options) -> int:
    with applied(arguments.mutant):
        result = simulate(arguments.seed, options)
    if arguments.trace_hash:
        console.print(result.trace_hash)
    else:
        console.print(
            f"seed {result.seed}: {result.nodes} peers, {result.topology}; {result.events:,} events"
            f" in {result.virtual_s:.1f} virtual s; {result.staleness_checks:,} staleness checks;"
            f" settled {result.settle_s:.1f} s after the last fault; trace {result.trace_hash}"
        )
        for kind, count in result.counts.most_common():
            console.print(f"  {count:8,} {kind}")
    return _failures([result], arguments)


def _many(
    title: str, seeds: tuple[int, int], options: Options, arguments: argparse.Namespace
) -> int:
    with _progress(title, seeds[1] - seeds[0]) as update:
        summary = run_seeds(
            range(*seeds), options, mutant=arguments.mutant, jobs=arguments.jobs, progress=update
        )
    if arguments.trace_hash:
        console.print(summary.trace_hash)
    else:
        _table(title, summary)
    return _failures(summary.failures, arguments)


def _full(jobs: int | None) -> int:
    """All that `make sim` promises; stops at the first thing that fails."""
    plain = argparse.Namespace(mutant=None, jobs=jobs, topology=None, nodes=None, trace_hash=False)
    code = _many("10,000 seeds", FULL_SEEDS, Options(), plain)
    code = code or _kill_all(jobs)
    return code or _scenarios(jobs)


def _scenarios(jobs: int | None) -> int:
    """The long ones side by side."""
    code = 0
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(min(jobs or 2, 2), context) as pool:
        for future in [pool.submit(scenario, name) for name in ("churn", "scale", "average")]:
            try:
                console.print(future.result())
            except PromiseBroken as error:
                console.print(f"[red]broken[/]: {error}")
                code = 5
    return code


def scenario(name: str, seed: int = 0) -> Table:
    """Run one of the scenarios that are not made of many seeds."""
    from murmurate.study.sim import averaging, churn, scale

    reports: dict[str, Callable[[int], Table]] = {
        "average": averaging.report,
        "churn": churn.report,
        "scale": scale.report,
    }
    return reports[name](seed)


def _kill_all(jobs: int | None) -> int:
    table = Table("mutant", "found by seed", "as", title="deliberate mistakes")
    survivors = 0
    for name in MUTANTS:
        summary = kill(name, KILL_SEEDS, MUTANTS[name].where, jobs=jobs)
        if summary.failures:
            found = summary.failures[0]
            table.add_row(name, str(found.seed), _short(found.failure))
        else:
            survivors += 1
            table.add_row(name, "[red]not found[/]", f"{summary.seeds} seeds")
    console.print(table)
    return 5 if survivors else 0


def _failures(results: list[Result], arguments: argparse.Namespace) -> int:
    failed = [result for result in results if result.failure]
    for result in failed[:3]:
        console.print(f"[red]seed {result.seed} failed[/]: {result.failure}", markup=True)
        console.print("the last events before it:")
        for line in result.last_events:
            console.print(f"  {line}", markup=False)
        again = f"murmurate sim --seed {result.seed}"
        if arguments.topology:
            again += f" --topology {arguments.topology}"
        if arguments.nodes:
            again += f" --nodes {arguments.nodes[0]}:{arguments.nodes[1]}"
        if arguments.mutant:
            again += f" --mutant {arguments.mutant}"
        console.print(f"replay: {again}")
    return 5 if failed else 0


def _table(title: str, summary: SeedsSummary) -> None:
    table = Table("what", "count", title=title)
    table.columns[1].justify = "right"
    rows = [
        ("seeds", f"{summary.seeds:,}"),
        ("failed", f"{len(summary.failures):,}"),
        ("peers at the start, at most", f"{summary.nodes_max}"),
        ("events", f"{summary.events:,}"),
        ("updates applied", f"{summary.applied:,}"),
        ("staleness checks", f"{summary.staleness_checks:,}"),
        ("virtual seconds", f"{summary.virtual_s:,.0f}"),
        ("times real time, on one core", f"{summary.speed:,.0f}"),
        ("slowest to agree after the faults, virtual s", f"{summary.settle_s_max:.1f}"),
        ("wall seconds", f"{summary.wall_s:.1f}"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    table.add_section()
    for kind in sorted(summary.topologies):
        table.add_row(f"topology: {kind}", f"{summary.topologies[kind]:,}")
    table.add_section()
    for kind, count in sorted(summary.counts.items()):
        table.add_row(kind, f"{count:,}")
    console.print(table)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[SeedsSummary], None] | None]:
    """A bar on a terminal; nothing elsewhere."""
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)

        def update(summary: SeedsSummary) -> None:
            progress.update(task, completed=summary.seeds)

        yield update


def _short(failure: str) -> str:
    line = failure.partition("Traceback")[0].removeprefix("PromiseBroken ")
    return line if len(line) <= 90 else line[:87] + "…"
