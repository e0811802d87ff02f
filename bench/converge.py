"""Does adding peers help? Accuracy at equal virtual time, for n peers in unequal circumstances.

    python bench/converge.py [--workloads mlp,…] [--rules shared,sum,…] [--nodes 1,4,…]
        [--regimes equal,delay-1,…] [--seeds 3] [--lr-factors 1] [--splits none] [--text FILE]
        [--jobs N] [--quick] [--tune] [--show]

A cell is one training: a workload, a rule, n peers, a regime, a seed. Rates are those that suit one
node, for any n. Each finished cell is a line of bench/results/converge.jsonl; the same command
again goes on where it stopped, and --show tells what there is. Besides the table: converge.json
with means and ranges, and converge.png (matplotlib, from the extra `lab`).

regimes    equal; one-slow (10 times); half-slow (4 times); delay-1, delay-4, delay-16 (steps);
           narrow (one model takes 50 steps to send); churn (n/4, then n, then n/4)
rules      every rule of gossip there is, and `synchronous`: a mean of gradients with a barrier
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import converge_cells as cells
from converge_cells import Cell
from report import Effort, Goal, Report

RESULTS = Path(__file__).with_name("results")
NODES = (1, 2, 4, 8, 16, 32, 64)
QUICK_STEPS = 24

Results = dict[str, dict[str, Any]]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    some = {
        "--workloads": ("mlp", "of " + ", ".join(cells.TASKS)),
        "--rules": ("", "default: all there are"),
        "--nodes": (",".join(map(str, NODES)), ""),
        "--regimes": (",".join(cells.REGIMES), "also " + ", ".join(cells.MORE_REGIMES)),
        "--lr-factors": ("1", "of the rate that suits one node, such as 0.3,1,3,7"),
        "--splits": ("none", 'who trains on what: none, labels, "dirichlet(0.1)"'),
        "--codecs": ("auto", "how updates are sent"),
    }
    for option, (default, about) in some.items():
        shown = f"{about} (default {default})" if default else about
        parser.add_argument(option, default=default, help=shown)
    parser.add_argument("--seeds", type=int, default=3, help="so many, from 0 (default 3)")
    parser.add_argument("--steps", type=int, default=300, help="of a node at full speed")
    parser.add_argument("--text", type=Path, help="for the workloads on text; else one is made up")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument("--tune", action="store_true", help="one node, rates × 0.3, 1 and 3")
    parser.add_argument("--show", action="store_true", help="train nothing, tell what there is")
    parser.add_argument("--out", type=Path, default=RESULTS / "converge.jsonl", help="JSON lines")
    options = parser.parse_args(arguments)
    if options.text is not None and not options.text.is_file():
        parser.error(f"--text {options.text}: there is no such file")
    for option, known in (
        ("workloads", cells.TASKS),
        ("regimes", (*cells.REGIMES, *cells.MORE_REGIMES)),
        ("rules", cells.contenders("labels")),
    ):
        for name in filter(None, getattr(options, option).split(",")):
            if name not in known:
                parser.error(f"--{option} {name!r}: expected {', '.join(known)}")
    return options


def wanted(options: argparse.Namespace) -> list[Cell]:
    """The cells these options name, each once; one node alone for each that is compared with it."""
    made: dict[str, Cell] = {}
    nodes = [int(number) for number in options.nodes.split(",")]
    factors = [float(factor) for factor in options.lr_factors.split(",")]
    if options.tune:
        nodes, factors = [1], [0.3, 1.0, 3.0]
    axes = itertools.product(
        range(options.seeds),
        options.workloads.split(","),
        factors,
        options.splits.split(","),
        options.codecs.split(","),
        options.regimes.split(","),
        sorted(nodes),
    )
    for seed, workload, factor, split, codec, regime, n in axes:
        rules = [rule for rule in options.rules.split(",") if rule] or cells.contenders(split)
        for rule in rules:
            text = options.text is not None and cells.TASKS[workload].text
            cell = Cell(
                workload=workload,
                rule=rule,
                n=n,
                regime=regime,
                lr_factor=factor,
                split=split,
                codec=codec,
                seed=seed,
                steps=QUICK_STEPS if options.quick else options.steps,
                text=options.text.name if text else "",
            )
            made[cell.alone.key] = cell.alone
            if n > 1 and cell.problem() is None:
                made[cell.key] = cell
    return list(made.values())


# -- the sweep -------------------------------------------------------------------------------------


def read(path: Path) -> Results:
    """What is finished. A line that is cut off, as by a machine that went down, is done again."""
    found: Results = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            found[result["key"]] = result
    return found


def sweep(todo: Sequence[Cell], path: Path, jobs: int, text: str | None) -> Iterator[Cell]:
    """Train what is not there yet; each as it is finished, and by then on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and not path.read_bytes().endswith(b"\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
    with (
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool,
        path.open("a", encoding="utf-8") as file,
    ):
        running: dict[Future[dict[str, Any]], Cell] = {
            pool.submit(cells.run, cell, text): cell for cell in todo
        }
        try:
            for done in as_completed(running):
                file.write(json.dumps(done.result()) + "\n")
                file.flush()
                yield running[done]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run(options: argparse.Namespace) -> Results:
    """All that is wanted, from the file or trained now."""
    everything = wanted(options)
    known = read(options.out)
    todo = [] if options.show else [cell for cell in everything if cell.key not in known]
    todo.sort(key=lambda cell: (cell.seed, cell.cost))  # a whole picture soon, then more seeds
    if todo:
        print(f"{len(todo)} of {len(everything)} cells to do", file=sys.stderr, flush=True)
    began, cost, spent = time.monotonic(), sum(cell.cost for cell in todo), 0.0
    text = str(options.text) if options.text is not None else None
    for count, cell in enumerate(sweep(todo, options.out, options.jobs, text) if todo else (), 1):
        spent += cell.cost
        left_s = (time.monotonic() - began) * (cost - spent) / spent
        print(
            f"{count}/{len(todo)}  {cell.workload} {cell.rule} n={cell.n} {cell.regime}"
            f" seed {cell.seed}; about {left_s / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )
    keys = {cell.key for cell in everything}
    return {key: result for key, result in read(options.out).items() if key in keys}


# -- what came of it -------------------------------------------------------------------------------

GROUP = ("workload", "lr_factor", "split", "codec", "regime", "rule")


def rows(results: Results) -> list[dict[str, Any]]:
    """Means over seeds, each against one node alone with the same seed and rate."""
    found: dict[tuple[Any, ...], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for result in results.values():
        cell = Cell(**result["cell"])
        alone = results.get(cell.alone.key)
        if alone is not None:
            by = (*(getattr(cell, name) for name in GROUP), cell.n)
            found.setdefault(by, []).append((result, alone))
    made = []
    for by, pairs in sorted(found.items(), key=lambda each: tuple(map(str, each[0][:-1]))):
        values = [cells.value_of(result) for result, _ in pairs]
        lone = [cells.value_of(alone) for _, alone in pairs]
        times = [cells.time_to(result, cells.value_of(alone)) for result, alone in pairs]
        reached = [each for each in times if each is not None]
        made.append(
            dict(zip((*GROUP, "n"), by, strict=True))
            | {
                "seeds": len(pairs),
                "value": statistics.fmean(values),
                "low": min(values),
                "high": max(values),
                "alone": statistics.fmean(lone),
                "gain": statistics.fmean(a - b for a, b in zip(values, lone, strict=True)),
                "time_to_alone": statistics.fmean(reached) if len(reached) == len(times) else None,
                "models_per_node": statistics.fmean(r["models_per_node"] for r, _ in pairs),
                "bytes_per_node": statistics.fmean(r["bytes_per_node"] for r, _ in pairs),
                "steps_per_update": pairs[0][0]["steps_per_update"],
                "wait_share": max(result["wait_share"] for result, _ in pairs),
            }
        )
    return made


def shown(value: float) -> str:
    """Points of accuracy, or the loss where there is none."""
    return f"{value:.1f}" if value >= 0 else f"{-value:.3f}"


def table(made: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For each workload and regime: a line for each rule, a column for each n. In brackets the part
    of the time after which it was where one node ends."""
    lone = {(row["workload"], row["lr_factor"]): row["alone"] for row in made}
    together = [row for row in made if row["rule"] != cells.ALONE]
    keys = ("workload", "lr_factor", "split", "codec", "regime")
    for head, group in itertools.groupby(together, key=lambda row: [row[key] for key in keys]):
        here = list(group)
        workload, factor, split, codec, regime = head
        counts = sorted({row["n"] for row in here})
        more = [f"lr x {factor:g}"] * (factor != 1) + [split] * (split != "none")
        more += [codec] * (codec != "fp32")
        yield ""
        title = ", ".join([f"{workload}, {regime}", *more])
        yield f"{title}; alone {shown(lone[workload, factor])}; {here[0]['seeds']} seeds"
        yield f"  {'':14}" + "".join(f"{f'n={n}':>15}" for n in counts) + "   models sent by a node"
        for rule, of_rule in itertools.groupby(here, key=lambda row: row["rule"]):
            by_n = {row["n"]: row for row in of_rule}
            line = f"  {rule:14}"
            for n in counts:
                line += f"{_cell(by_n[n]) if n in by_n else '':>15}"
            sent = [f"{by_n[n]['models_per_node']:.0f}" if n in by_n else "-" for n in counts]
            yield line + "   " + " ".join(sent)


def _cell(row: dict[str, Any]) -> str:
    took = row["time_to_alone"]
    return (
        f"{shown(row['value'])} ({took:.2f})" if took is not None else f"{shown(row['value'])} (-)"
    )


def tell(options: argparse.Namespace, results: Results) -> list[dict[str, Any]]:
    made = rows(results)
    if options.tune:
        for row in made:
            print(f"{row['workload']:18} lr x {row['lr_factor']:<4g} {shown(row['value'])}")
    for line in table(made):
        print(line)
    path = options.out.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"\n{len(results)} cells in {options.out}, means in {path}")
    try:
        import converge_picture
    except ImportError as error:
        print(f"no picture: {error.name} is not here (pip install 'murmurate[lab]')")
    else:
        if picture := converge_picture.draw(made, options.out.with_suffix(".png")):
            print(f"picture: {picture}")
    return made


# -- among the benchmarks --------------------------------------------------------------------------


def scenario(report: Report, effort: Effort) -> None:
    """What the default rule must do, from a sweep of its own size (`bench/run.py converge`)."""
    options = parse(["--quick", "--nodes", "1,4", "--regimes", "equal", "--seeds", "1"])
    if effort.quick:
        options.out = RESULTS / "converge-quick.jsonl"
    else:
        options = parse([])
    made = tell(options, run(options))
    report.keep("rows", made)
    for row in _judged(made):
        name = f"{row['workload']} {row['regime']} n={row['n']}"
        goal = None if row["regime"] == "delay-16" else Goal(value=0.0, floor=-0.7)
        report.add(f"{name}: above one node", [row["gain"]], unit="pts", goal=goal)
        if row["n"] == 16 and row["regime"] == "equal" and row["time_to_alone"] is not None:
            goal = Goal(value=0.45, at_most=True)
            report.add(f"{name}: time to its end", [row["time_to_alone"]], unit="x", goal=goal)


def _judged(made: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in made if row["rule"] == "shared" and row["split"] == "none"]


SCENARIOS = {"converge": scenario}


def main() -> int:
    options = parse()
    tell(options, run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
