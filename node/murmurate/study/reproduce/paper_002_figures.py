"""Figures 1 to 7 of paper 002, trained here: landscapes with the ways of several runs in one plane,
loss and length of the weights over time, and a larger model."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

from murmurate.study.lab import landscape, several
from murmurate.study.lab.page import Line, chart
from murmurate.study.lab.relief import relief
from murmurate.study.reproduce.claim import Effort, PaperStudy
from murmurate.study.reproduce.hub_cells import HubCell
from murmurate.study.reproduce.training import kept, trained

LARGE = f"{Path(__file__).with_name('large_mlp.py')}:LargeMlp"
LARGE_SAMPLES = 60_000
GRID, GRID_QUICK = 13, 7


def figures(made: PaperStudy, effort: Effort, samples: int) -> None:
    """NotHere: it cannot be trained here."""
    with tempfile.TemporaryDirectory(prefix="murmurate-002-") as folder:
        _landscape(made, effort, samples, Path(folder))
        _over_time(made, effort, samples, Path(folder))
    _larger(made, effort, samples)


def _landscape(made: PaperStudy, effort: Effort, samples: int, folder: Path) -> None:
    momenta = (0.0, 0.9, 0.99) if effort.quick else (0.0, 0.5, 0.9, 0.95, 0.99)
    runs: dict[str, tuple[dict[str, Any], Path]] = {}
    for m in momenta:
        cell = HubCell(workers=2, split="none", momentum=m, own=False)
        file = folder / f"momentum-{m}.json"
        runs[f"momentum {m}"] = kept(file, *cell.options(samples, effort.seed)), folder
    part, more = _plane(made, "Figs 1, 2, 7", runs, effort)
    if not effort.quick:  # 0.99 goes so far that the others are one point beside it
        near = {name: run for name, run in runs.items() if name != "momentum 0.99"}
        _plane(made, "The same without 0.99", near, effort)
    ends = {name: 100 * (report["accuracy_mean"] or 0.0) for name, (report, _) in runs.items()}
    made.figures["fig_1"] = {"accuracy": ends, "explained": [part, more]}
    usual, none = ends["momentum 0.9"], ends["momentum 0.0"]
    made.add(
        "Figs 1, 2, 7",
        "ways of several momenta in one plane of two principal components, from one start",
        "0.9 ends lowest, 0.99 elsewhere and high",
        ", ".join(f"{name} {value:.1f} %" for name, value in ends.items())
        + f"; {100 * (part + more):.0f} % of the variance in the plane",
        agrees=usual >= none and usual > ends["momentum 0.99"] + 2,
        unless="momentum 0.99 is too much with staleness 1 at this rate; no NC in so short a run",
    )


def _plane(
    made: PaperStudy, title: str, runs: dict[str, tuple[dict[str, Any], Path]], effort: Effort
) -> tuple[float, float]:
    """The parts of the variance that are in the plane of these runs."""
    found = landscape.of_runs(runs, grid=GRID_QUICK if effort.quick else GRID)
    part, more = found.explained
    made.charts.append(
        relief(
            f"{title}: test loss, plane of {part:.0%} + {more:.0%} of the variance",
            found.first.tolist(),
            found.second.tolist(),
            found.loss.tolist(),
            {name: path.tolist() for name, path in found.paths.items()},
        )
    )
    return part, more


def _over_time(made: PaperStudy, effort: Effort, samples: int, folder: Path) -> None:
    kinds = {
        "aSGD, one 90 ms": HubCell(workers=5, split="labels", delay_ms=90, who="one"),
        "aSGD, no delay": HubCell(workers=5, split="labels"),
        "sSGD": HubCell(workers=5, split="labels", rule="sync"),
    }
    losses, lengths = [], []
    last: dict[str, tuple[float, float]] = {}
    for number, (name, cell) in enumerate(kinds.items()):
        report = kept(folder / f"time-{number}.json", *cell.options(samples, effort.seed))
        points = several.evaluated(report, "seconds", "test_loss")
        norms = next(iter(several.norms(report, folder).values()))
        losses.append(Line(name=name, points=points))
        lengths.append(Line(name=name, points=norms))
        last[name] = min(value for _, value in points), points[-1][1]
    for title, lines, what in (
        ("Figs 3 to 5: test loss, label split", losses, "test loss"),
        ("Figs 3 to 5: length of the weights", lengths, "length"),
    ):
        made.charts.append(chart(title, lines, x="virtual seconds", y=what))
    made.figures["figs_3_to_5"] = {
        line.name: {"loss": list(line.points), "length": list(norm.points)}
        for line, norm in zip(losses, lengths, strict=True)
    }
    least, end = last["aSGD, one 90 ms"]
    rises = [norm.points[-1][1] > norm.points[0][1] for norm in lengths]
    made.add(
        "Figs 3 to 5",
        "loss over time, one worker slow: it rises again at the end; weights grow throughout",
        "figures only",
        f"loss {least:.2f} at its least, {end:.2f} at the end;"
        f" without delay {last['aSGD, no delay'][0]:.2f}, {last['aSGD, no delay'][1]:.2f};"
        f" weights grow in {sum(rises)} of {len(rises)}",
        agrees=end > 1.1 * least and all(rises),
        why="the rise begins when the others have ended",
    )


def _larger(made: PaperStudy, effort: Effort, samples: int) -> None:
    counts = (2, 10) if effort.quick else (1, 2, 5, 10)
    samples = samples if effort.quick else LARGE_SAMPLES
    found: dict[str, dict[int, float]] = {"async-msgd": {}, "flat": {}}
    for rule, n in itertools.product(found, counts):
        mode = (
            ["--mode=hub", "--hub-momentum=0.9"]
            if rule == "async-msgd"
            else ["--mode=allreduce", "--momentum=0.9"]
        )
        report = trained(
            *(*mode, f"--rule={rule}", f"--nodes={n}", f"--workload={LARGE}"),
            *(f"--samples={samples}", "--evaluate-s=0", f"--seed={effort.seed}"),
        )
        loss = report["test_loss_mean"]
        good = loss is not None and math.isfinite(loss) and not report["nc"]
        found[rule][n] = 100 * report["accuracy_mean"] if good else 10.0
    names = {"async-msgd": "aSGD", "flat": "sSGD"}
    made.charts.append(
        chart(
            "Fig. 6: a larger model",
            [Line(name=names[rule], points=list(by.items())) for rule, by in found.items()],
            x="workers",
            y="accuracy, %",
        )
    )
    made.figures["fig_6"] = {names[rule]: by for rule, by in found.items()}
    least, most = counts[0], counts[-1]
    free, step = found["async-msgd"], found["flat"]
    fell, kept_up = free[least] - free[most], step[least] - step[most]
    made.add(
        "Fig. 6",
        "a larger model: aSGD without delay fails with more workers, sSGD does not",
        "aSGD to vanishing gradients, sSGD as before",
        ", ".join(
            f"{names[rule]} {by[least]:.1f} to {by[most]:.1f} %" for rule, by in found.items()
        )
        + f" from {least} to {most} workers",
        agrees=fell > 20 and fell > 2 * kept_up,
        why="momentum 0.9 and a staleness of 9: steps are too long; sSGD loses what fewer updates"
        " of the same samples cost",
    )
