"""What it costs, as ratios from one interleaved run.

    python bench/run.py [SCENARIO …] [--repetitions 7] [--seconds 4] [--quick] [--json FILE]

core       distance of clocks, a fold against the bare add
messages   small messages there and back, against bare protobuf
wire       a push against bare TCP, torch.distributed send/recv, one protobuf message
exchange   averaging a model between two peers, against gloo's all_reduce and bare TCP both ways
pair pair128 default four straggler
           LeNet-5 against processes that do not communicate, DDP over gloo, Hogwild
latency memory start
           from the hook to applied; a node's peak; the command line
scrape     what it costs to be watched by Prometheus
ist ist_memory
           four unequal members of a coordinator, against the same four in silence; a member that
           may not hold the model
hub        four members of a hub, a push every step, against the same four in silence
asleep     one of four sleeps 90 ms a step: what is left of the samples, under each rule
fold       a push of 100 MB at the hub, in copies of that memory
codec      what the codecs cost (bench/codec.py)
generator  batches from a generator, against data of one's own
virtual    four nodes in virtual time, against the same four as real processes
converge   does adding peers help? In virtual time, for hours: only if it is named; it goes on where
           it stopped (bench/converge.py has more options)

Without names: all but virtual and converge, in a quarter of an hour. The JSON goes to bench/results
unless a file is given; how to read it: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import converge
import core
import exchange
import generator
import hub
import ist
import messages
import report
import scrape
import train
import virtual_time
import wire
from report import Effort, Goal, Report

RESULTS = Path(__file__).with_name("results")
LONG = {**converge.SCENARIOS, **virtual_time.SCENARIOS}
"""Takes hours, or ten minutes for one answer: only if it is named."""


def scenarios() -> dict[str, report.Scenario]:
    found = {
        **core.SCENARIOS,
        **messages.SCENARIOS,
        **wire.SCENARIOS,
        **exchange.SCENARIOS,
        **train.SCENARIOS,
    }
    return found | {
        **scrape.SCENARIOS,
        **ist.SCENARIOS,
        **hub.SCENARIOS,
        **generator.SCENARIOS,
        "codec": codecs,
        **virtual_time.SCENARIOS,
        **converge.SCENARIOS,
    }


def codecs(report: Report, effort: Effort) -> None:
    """Speeds only; `python bench/codec.py accuracy` has what they cost in accuracy."""
    import codec

    if effort.quick:
        codec.ELEMENTS, codec.PAIRS = 1_000_000, 1
    found = codec.speeds()
    report.keep("speeds", found)
    for what, row in found.items():
        goal = Goal(value=codec.GOALS[what]) if what in codec.GOALS else None
        report.add(what, (row["ratio_min"], row["ratio"], row["ratio_max"]), unit="x", goal=goal)


def parse(known: dict[str, report.Scenario], what: str | None) -> argparse.Namespace:
    """The options all entries share."""
    parser = argparse.ArgumentParser(
        description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(known))
    parser.add_argument("--repetitions", type=int, default=7, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=4.0, help="of training in one turn")
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--size", help="only this one where there are several, as '100 MB'")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path, help="default: a new file in bench/results")
    options = parser.parse_args()
    if unknown := [name for name in options.scenarios if name not in known]:
        parser.error(f"{unknown[0]!r}: expected {', '.join(known)}")
    return options


def main(known: dict[str, report.Scenario], what: str | None) -> int:
    options = parse(known, what)
    effort = report.Effort(
        repetitions=1 if options.quick else options.repetitions,
        seconds=0.5 if options.quick else options.seconds,
        seed=options.seed,
        quick=options.quick,
        size=options.size,
    )
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    names = options.scenarios or [name for name in known if name not in LONG] or list(known)
    chosen = {name: known[name] for name in names}
    return report.run_all(chosen, effort, options.json or RESULTS / f"{stamp}.json")


if __name__ == "__main__":
    sys.exit(main(scenarios(), __doc__))
