"""Paper 000 (Tosi, Venugopal, Theobald): staleness of gossip, and what it does to word vectors."""

from __future__ import annotations

from dataclasses import asdict
from math import log

import torch

from murmurate.core.clock import Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Fresh, Replica
from murmurate.core.theory import gossip_expected
from murmurate.study.lab.page import Line, chart
from murmurate.study.race import up_options
from murmurate.study.reproduce.claim import Effort, PaperStudy
from murmurate.study.reproduce.gossip_swarm import SwarmSetting, run
from murmurate.study.reproduce.stale_vectors import LossCurve, losses

GENERATED = 55.9
"""Batches in a compute time that one generator gives out: the one parameter behind 3 and 55."""
STEP_S, SAMPLE_S = 0.002, 1e-5
"""Of Fig. 2: a step takes so long, and for each sample more."""
BATCHES = (32, 128, 512, 2048)
OTHER_BATCHES = {32: 20_000, 512: 2_500, 2048: 2_500}
"""So many of each as it takes until they have learned something."""
CHANCE = log(5)
"""The loss of whoever knows nothing: one word of five."""
DIVERGED = 100.0
"""A loss beyond this is no figure."""


def study(effort: Effort) -> PaperStudy:
    made = PaperStudy(
        paper="000",
        title="Convergence time of asynchronous distributed neural networks",
        bends="Fig. 2 is bent by the generator, which gives out so many samples in a "
        "second; steps cost 2 ms and 10 µs a sample, folding nothing.",
    )
    _fig_1(made)
    _staleness(made, effort)
    _fig_2(made, effort)
    _fig_3(made, effort)
    _trained(made, effort)
    return made


def _fig_1(made: PaperStudy) -> None:
    one, two = Replica(torch.zeros(1)), Replica(torch.zeros(1))
    blue = (Stamp(Dot("model1", 1, 1), one.context()),)
    green = (Stamp(Dot("model2", 1, 1), two.context()),)
    seen = [
        one.fold(blue, torch.ones(1)),
        two.fold(green, torch.ones(1)),
        two.fold(blue, torch.ones(1)),
        one.fold(green, torch.ones(1)),
    ]
    counted = [each.staleness[0] for each in seen if isinstance(each, Fresh)]
    made.add(
        "Fig. 1",
        "staleness of blue at model 2, by hand",
        "1",
        str(counted[2]),
        agrees=counted == [0, 0, 1, 1],
        why="green at model 1 is 1 too, own updates 0: the figure is symmetric",
    )
    options = ["--virtual", "--workload=synthetic:1000", "--nodes=2", "--rule=sum", "--delay-s=1"]
    report = up_options.run([*options, "--seconds=1.9999", "--evaluate-s=0", "--seed=0"])
    live = [dict(each) for each in report["staleness_counts"].values()]
    made.add(
        "Fig. 1",
        "the same live: two peers that train, one update each, crossing on the way",
        "own 0, the other's 1",
        ", ".join(f"{value}: {times}×" for value, times in sorted(live[0].items())),
        agrees=live == [{0: 1, 1: 1}] * 2,
    )


def _staleness(made: PaperStudy, effort: Effort) -> None:
    seed = effort.seed
    many_s = 14.0 if effort.quick else 30.0
    few = run(SwarmSetting(means_s=[1.0] * 4, until_s=200, seed=seed))
    law = gossip_expected(4, 1.0, 1.0, 0.0)
    made.add(
        "Section 3",
        "mean staleness of 4 models",
        "3",
        f"{few.every.mean:.2f} (law {law:.2f})",
        agrees=abs(few.every.mean - 3) < 0.05,
        why="own updates are counted, or it would be 3 or 4, by when arrivals are folded",
    )
    dealt = run(
        SwarmSetting(means_s=[1.0] * 64, batches_per_s=GENERATED, until_s=many_s, seed=seed)
    )
    made.add(
        "Section 3",
        "mean staleness of 64 models",
        "55",
        f"{dealt.every.mean:.1f} with one generator of {GENERATED} batches per compute time"
        f" (n × busy − 1/2 = {64 * dealt.busy - 0.5:.1f})",
        agrees=abs(dealt.every.mean - 55) < 1.0,
        why="the law is 63 for models that never idle. The paper does not say what kept its models"
        " idle 13 % of the time; one generator as the bottleneck explains 3 and 55 with one number",
    )
    both = run(SwarmSetting(means_s=[1.0] * 4, batches_per_s=GENERATED, until_s=200, seed=seed))
    made.add(
        "Section 3",
        "4 models with the same generator",
        "3",
        f"{both.every.mean:.2f}",
        agrees=abs(both.every.mean - 3) < 0.05,
    )


def _trained(made: PaperStudy, effort: Effort) -> None:
    """The same with weights: 64 peers train on what one generator deals (`study.virtual`)."""
    seconds = 15 if effort.quick else 40
    options = ["--virtual", "--generator", f"--speed=generator={GENERATED}", "--nodes=64"]
    options += ["--workload=synthetic:1000", "--rule=sum", "--evaluate-s=0"]
    report = up_options.run([*options, f"--seconds={seconds}", f"--seed={effort.seed}"])
    mean = report["staleness"]["mean"]
    totals = report["nodes"][-1]["totals"]
    made.add(
        "Section 2",
        f"64 models that train {seconds} s on what one generator deals",
        "55",
        f"{mean:.1f}, {totals['consumed']:,} of {totals['batches']:,} batches in exactly one"
        " update that all have, the others on their way",
        agrees=abs(mean - 55) < 2.0 and not totals["repeated"],
        why="the first second is counted, in which nobody has anything to be stale against",
    )


def _fig_2(made: PaperStudy, effort: Effort) -> None:
    """Time for the same samples, over the number of models, against 4 models. The generator gives
    out samples, as many in a second as 55.9 batches of 128 per compute time of such a batch."""
    samples_s = GENERATED * 128 / (STEP_S + SAMPLE_S * 128)
    counts = (4, 16, 64) if effort.quick else (4, 8, 16, 32, 64)
    lines = []
    ratio: dict[int, list[float]] = {}
    for batch in BATCHES:
        compute_s = STEP_S + SAMPLE_S * batch
        made_s = []
        for n in counts:
            seen = run(
                SwarmSetting(
                    means_s=[compute_s] * n,
                    batches_per_s=samples_s / batch,
                    warm_s=2 * compute_s,
                    until_s=5 * compute_s,
                    seed=effort.seed,
                )
            )
            made_s.append(n * seen.busy * batch / compute_s)
        ratio[batch] = [made_s[0] / each for each in made_s]
        lines.append(
            Line(name=f"batch {batch}", points=list(zip(counts, ratio[batch], strict=True)))
        )
    ideal = [counts[0] / n for n in counts]
    lines.append(Line(name="ideal", points=list(zip(counts, ideal, strict=True)), dashed=True))
    made.figures["fig_2"] = {"models": counts, "time": {str(b): r for b, r in ratio.items()}}
    made.charts.append(
        chart(
            "Fig. 2: time for the same samples, against 4 models",
            lines,
            x="models",
            y="part of the time",
            log_x=True,
            log_y=True,
        )
    )
    small, large = ratio[32][-1] / ideal[-1], ratio[2048][-1] / ideal[-1]
    made.add(
        "Fig. 2",
        f"small batches: near-optimal reduction of time, with {counts[-1]} models",
        "near-optimal",
        f"{small:.2f} times the ideal time, batch 32",
        agrees=small < 1.15,
        why="virtual time; a step takes 2 ms + 10 µs per sample, chosen here: the paper has none",
    )
    made.add(
        "Fig. 2",
        "large batches: the margin shrinks",
        "reduced",
        f"{large:.2f} times the ideal time, batch 2048",
        agrees=large > 1.5 * small,
        why="bent by the generator, which gives out samples: large batches ask for more of them"
        " in a second. Folding would bend the other way (most updates with small batches)",
    )


def _curves(title: str, found: dict[int, LossCurve], kind: str) -> str:
    lines = [
        Line(
            name=f"staleness {staleness}",
            points=[
                (at, loss)
                for at, loss in zip(curve.batches, getattr(curve, kind), strict=True)
                if loss < DIVERGED
            ],
        )
        for staleness, curve in found.items()
    ]
    return chart(title, lines, x="batches", y=f"{kind} loss")


def _fig_3(made: PaperStudy, effort: Effort) -> None:
    batches = 2000 if effort.quick else 5000
    what = "the text given" if effort.text else "Python's reference (--text FILE for another)"
    tried = (0, 3, 55) if effort.quick else (0, 3, 15, 55, 255)
    found = {s: losses(effort.text, s, batches=batches, seed=effort.seed) for s in tried}
    made.figures["fig_3"] = {str(s): asdict(each) for s, each in found.items()}
    for kind in ("train", "test"):
        made.charts.append(_curves(f"Fig. 3: {kind} loss, batch 128", found, kind))
    fresh = found[0].test[-1]
    limits = {3: 0.002, 15: 0.01, 55: 0.01}
    for s in tried[1:]:
        train, test = found[s].train[-1], found[s].test[-1]
        off = test / fresh - 1
        agrees = abs(off) <= limits[s] if s in limits else not off <= 0.02
        made.add(
            "Fig. 3",
            f"Word2Vec, batch 128, staleness {s}: test loss against staleness 0"
            f" ({batches} batches of {what})",
            "overlapping" if s in limits else "eventually a difference",
            f"{test:.4f} against {fresh:.4f} ({100 * off:+.2f} %), training {train:.4f}"
            if test < DIVERGED
            else "diverges",
            agrees=agrees,
            why=f"chance is {CHANCE:.4f}"
            if agrees
            else "the text: one of few words is not as sparse as Wikipedia, and a row that every"
            " batch touches feels staleness (--text FILE for another)",
        )
    if effort.quick:
        made.add(
            "Fig. 3",
            "staleness 15 and 255; batches 32, 512 and 2048",
            "the same pattern",
            verdict="not run",
            why="without --quick",
        )
        return
    for batch, count in OTHER_BATCHES.items():
        by = {
            s: losses(effort.text, s, batches=count, batch_size=batch, seed=effort.seed)
            for s in (0, 3, 55)
        }
        made.figures[f"batch_{batch}"] = {str(s): asdict(each) for s, each in by.items()}
        for kind in ("train", "test"):
            made.charts.append(_curves(f"Section 3: {kind} loss, batch {batch}", by, kind))
        off = max(abs(by[s].test[-1] / by[0].test[-1] - 1) for s in (3, 55))
        made.add(
            "Section 3",
            f"batch {batch}: losses at staleness 0, 3 and 55 ({count} batches)",
            "overlapping",
            f"test {', '.join(f'{each.test[-1]:.4f}' for each in by.values())};"
            f" training {', '.join(f'{each.train[-1]:.4f}' for each in by.values())}",
            agrees=off <= 0.01,
            unless="early in training what is late is missing",
        )
