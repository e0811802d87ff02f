"""Scripts of other people, at their own rates: alone, with a larger batch, and three of them.

    python bench/scripts.py [--script vae …] [--steps N] [--seeds 3] [--text FILE] [--quick]

vae     an autoencoder on FashionMNIST with Adam
lstm    a word model with SGD at 20, clipping, and a rate that falls when validation does not
gpt     a character model with AdamW, warm-up, cosine and clipping
lbfgs   curves, with steps of unbounded size

The scripts are in bench/script_loops.py; each is adopted as the README says, with every option left
alone. Three real processes over loopback, one thread of torch each. Steps are equal: every process
makes as many as the one that is alone; what is compared is the loss on the test part after
`finish()`, the worst of the three. The processes wait for each other once, before the first step,
unless `--apart` says how many seconds after the first the others come.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from actors import Actor, orders, say
from report import Goal, Report, machine

RESULTS = Path(__file__).with_name("results")
STEPS = {"vae": 470, "lstm": 200, "gpt": 300, "lbfgs": 6}
QUICK_STEPS = {"vae": 20, "lstm": 4, "gpt": 8, "lbfgs": 1}
LARGER = ("vae", "lstm", "gpt")
"""Where three times the batch is a contender: steps on all data have no batch."""
PROCESSES = 3
FINISH_S = 120.0
JOIN_S = 120.0


# -- one process -----------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """Prepare, wait to be told the peers, run the script, say the loss."""
    import torch
    from script_loops import SCRIPTS, Turn

    torch.set_num_threads(1)
    told = orders()
    figures: dict[str, Any] = {}

    @contextmanager
    def adopt(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        import murmurate
        from murmurate.errors import ConfigError

        say(ready=True)
        order = next(told, None)
        if order is None:
            sys.exit()  # the first was refused
        rule = {"rule": options.rule} if options.rule else {}
        more = {"every": options.every} if options.every else {}
        try:
            joined = murmurate.join(
                model,
                optimizer,
                run="script",
                peers=order["peers"],
                name=f"p{options.rank}",
                **rule,
                **more,
            )
        except ConfigError as error:
            say(refused=str(error))
            sys.exit()
        with joined as swarm:
            say(address=swarm.address)
            if not options.apart:
                swarm.follow(lambda: len(swarm.members) == PROCESSES, JOIN_S)
            began = time.monotonic()
            yield
            figures["seconds"] = time.monotonic() - began
            figures["finished"] = swarm.finish(FINISH_S)
            figures["published"] = swarm.progress().published
            figures["staleness"] = swarm.staleness.mean

    turn = Turn(
        steps=options.steps,
        seed=options.seed,
        rank=options.rank,
        of=PROCESSES,
        batches=options.batches,
        text=options.text,
        adopt=(lambda *_: nullcontext()) if options.alone else adopt,
    )
    loss = SCRIPTS[options.work](turn)
    say(loss=loss, **figures)


# -- the conductor ---------------------------------------------------------------------------------


def actor(script: str, seed: int, options: argparse.Namespace, *more: str) -> Actor:
    command = [sys.executable, __file__, "--work", script, "--seed", str(seed), *more]
    command += ["--steps", str(steps_of(script, options))]
    command += ["--text", options.text] if options.text else []
    return Actor(command, OMP_NUM_THREADS="1")


def steps_of(script: str, options: argparse.Namespace) -> int:
    return options.steps or (QUICK_STEPS if options.quick else STEPS)[script]


def alone(script: str, seed: int, options: argparse.Namespace, batches: int = 1) -> dict[str, Any]:
    """One process that knows of nobody."""
    one = actor(script, seed, options, "--alone", "--batches", str(batches))
    heard = one.hear()
    one.end()
    return heard


def together(script: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Three; the first founds the run. Or why the script was not taken."""
    more = ["--apart", str(options.apart)]
    more += ["--rule", options.rule] if options.rule else []
    more += ["--every", str(options.every)] if options.every else []
    actors = [actor(script, seed, options, "--rank", str(rank), *more) for rank in range(PROCESSES)]
    for each in actors:
        each.hear()  # it has its data and its model
    address = actors[0].ask(peers=[])
    if "refused" in address:
        for each in actors:
            each.end()
        return address
    if options.apart:
        time.sleep(options.apart)
    for each in actors[1:]:
        each.tell(peers=[address["address"]])
    for each in actors[1:]:
        each.hear()
    each_heard = [each.hear() for each in actors]
    for each in actors:
        each.end()
    return {
        "loss": max(heard["loss"] for heard in each_heard),
        "losses": [heard["loss"] for heard in each_heard],
        "seconds": max(heard["seconds"] for heard in each_heard),
        "staleness": statistics.mean(heard["staleness"] for heard in each_heard),
        "published": [heard["published"] for heard in each_heard],
        "finished": all(heard["finished"] for heard in each_heard),
    }


def contenders(
    script: str, seed: int, options: argparse.Namespace
) -> dict[str, Callable[[], dict[str, Any]]]:
    ours = {"three processes": partial(together, script, seed, options)}
    if options.only_ours:
        return ours
    one = {"alone": partial(alone, script, seed, options)}
    if script in LARGER:
        one["three times the batch"] = partial(alone, script, seed, options, batches=PROCESSES)
    return one | ours


def compare(report: Report, script: str, options: argparse.Namespace) -> None:
    """All contenders of one script, seed by seed."""
    report.begin(f"{script}, {steps_of(script, options)} steps")
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for name, turn in contenders(script, seed, options).items():
            heard = turn()
            found.setdefault(name, []).append(heard)
            print(f"  {seed}: {name}: {heard}", file=sys.stderr, flush=True)
    report.keep("turns", found)
    for name, turns in found.items():
        if refused := [turn["refused"] for turn in turns if "refused" in turn]:
            report.remark(f"{name}: refused: {refused[0]}")
        else:
            report.add(f"{name}: test loss", (turn["loss"] for turn in turns))
    if options.only_ours or "refused" in found["three processes"][0]:
        return
    ours = [turn["loss"] for turn in found["three processes"]]
    one = [turn["loss"] for turn in found["alone"]]
    report.add(
        "three processes / alone",
        [a / b for a, b in zip(ours, one, strict=True)],
        goal=Goal(value=1.0, at_most=True),
        unit="x",
    )
    if script in LARGER:
        larger = [turn["loss"] for turn in found["three times the batch"]]
        gained = statistics.mean(one) - statistics.mean(ours)
        possible = statistics.mean(one) - statistics.mean(larger)
        goal = Goal(value=0.5) if script == "gpt" else None
        report.add("of what three times the batch gains", [gained / possible], goal=goal, unit="x")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--script", nargs="*", choices=tuple(STEPS), default=tuple(STEPS))
    parser.add_argument("--steps", type=int, help=f"of each process (default: {STEPS})")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--text", help="a text file; default: what Python says of itself")
    parser.add_argument("--apart", type=float, default=0.0, metavar="S", help="see above")
    parser.add_argument("--rule", help="another rule than join's default")
    parser.add_argument("--every", type=int, help="another interval than join's default")
    parser.add_argument("--only-ours", action="store_true", help="three processes, nothing beside")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path, help="default: a new file in bench/results")
    one = parser.add_argument_group("one process, started by the others")
    one.add_argument("--work", choices=tuple(STEPS), help=argparse.SUPPRESS)
    one.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    one.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    one.add_argument("--batches", type=int, default=1, help=argparse.SUPPRESS)
    one.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.work:
        work(options)
        return
    if options.quick:
        options.seeds = 1
    date = datetime.now(UTC)
    path = options.json or RESULTS / f"scripts-{date:%Y%m%d-%H%M%S}.json"
    report, began = Report(judged=not options.quick), time.monotonic()
    about = {"date": date.isoformat(timespec="seconds"), "machine": machine()}
    for script in options.script:
        compare(report, script, options)
        said = {key: str(value) for key, value in vars(options).items() if value is not None}
        report.write(path, **about, seconds=time.monotonic() - began, options=said)
    print(f"all samples: {path}")


if __name__ == "__main__":
    main()
