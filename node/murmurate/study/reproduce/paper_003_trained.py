"""What of paper 003 is trained here: FashionMNIST, virtual time, the global batch the same for all.

A step costs 2 ms and so much for each sample as its operations take at 20 GFLOP a second; a message
takes the model's bytes at 1 GB a second, the hub so much again to fold it in. Workers draw up to a
fifth of a step more for each step, so that there is something to wait for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from murmurate.study.lab import page
from murmurate.study.lab.page import Line, chart
from murmurate.study.reproduce.claim import Effort, PaperStudy
from murmurate.study.reproduce.training import trained

HERE = Path(__file__).with_name("models_003.py")
MLP, LENET = "fashion-mnist-mlp", "fashion-mnist"
ROWS, CONVOLUTIONS = f"{HERE}:RowsLstm", f"{HERE}:Convolutions"
GLOBAL_BATCH = 256
FIXED_S, FLOP_S, LINK_BYTES_S, DRAW = 0.002, 2e10, 1e9, 0.2
SYNC = ("--mode=allreduce", "--rule=flat")
SOLVERS = {
    "sync": SYNC,
    "EA-wild": ("--mode=hub", "--rule=ea-wild"),
    "EASGD": ("--mode=hub", "--rule=easgd"),
    "EA-MSGD": ("--mode=hub", "--rule=ea-msgd"),
    "parameter server": ("--mode=hub", "--rule=async"),
    "Async MSGD": ("--mode=hub", "--rule=async-msgd"),
    "Downpour": ("--mode=hub", "--rule=downpour"),
}
RATE = 0.1


@dataclass(frozen=True, slots=True)
class SolverRun:
    points: float
    nc: bool
    samples_per_s: float
    cc_ratio: float

    def __str__(self) -> str:
        return "NC" if self.nc else f"{self.points:.1f}"


class SolverRuns:
    """Each training once."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.samples = 7_680 if effort.quick else 15_360
        self._done: dict[tuple[Any, ...], SolverRun] = {}

    def get(
        self,
        solver: str,
        workers: int,
        *,
        workload: str = MLP,
        lr: float = RATE,
        more: Sequence[str] = (),
        samples: int | None = None,
        global_batch: int = GLOBAL_BATCH,
    ) -> SolverRun:
        """NotHere: there is no such rule, or no such data."""
        key = (solver, workers, workload, lr, tuple(more), samples, global_batch)
        if key not in self._done:
            batch = global_batch // workers
            flops, nbytes = _sizes(workload)
            step_s = FIXED_S + batch * flops / FLOP_S
            message_s = nbytes / LINK_BYTES_S
            report = trained(
                *SOLVERS[solver],
                *(f"--nodes={workers}", f"--workload={workload}", f"--batch-size={batch}"),
                *(f"--samples={samples or self.samples}", f"--lr={lr}", "--momentum=0.0"),
                *(f"--seed={self.effort.seed}", "--evaluate-s=0", f"--step-s={step_s:.9f}"),
                *(f"--slow=gaussian({DRAW * step_s:.9f},{DRAW * step_s:.9f})",),
                *(
                    (f"--link-bytes-s={LINK_BYTES_S}", "--delay-s=0.0001")
                    if solver == "sync"
                    else (
                        *("--every=1", f"--fold-s={message_s:.9f}"),
                        f"--delay-s={0.0001 + message_s:.9f}",
                    )
                ),
                *more,
            )
            self._done[key] = SolverRun(
                100 * float(report["accuracy_mean"] or 0.0),
                bool(report["nc"]),
                report["samples"] / report["wall_s"],
                float(report["cc_ratio"] or 0.0),
            )
        return self._done[key]


@cache
def _sizes(workload: str) -> tuple[float, int]:
    """Operations for a sample, forwards and back (three times those of the CC ratio), and bytes."""
    from murmurate import workloads
    from murmurate.workloads.flops import flops_per_sample

    loaded = workloads.load(workload)
    model = loaded.model()
    share = workloads.DataShare(0, 1, workloads.parse_split("none"), 0, loaded.batch_size)
    numbers = sum(p.numel() for p in model.parameters())
    flops = flops_per_sample(loaded, model, next(loaded.batches(share))) or 2 * numbers
    return 3.0 * flops, 4 * numbers


def solvers(made: PaperStudy, runs: SolverRuns) -> None:
    found = {name: runs.get(name, 4) for name in SOLVERS}
    made.figures["solvers"] = {name: str(each) for name, each in found.items()}
    rows = [
        [page.text(name), str(each), f"{each.samples_per_s:,.0f}"] for name, each in found.items()
    ]
    made.charts.append(page.table(["4 workers, batch 256", "accuracy, %", "samples/s"], rows))
    wild = found["EA-wild"]
    slower = [n for n, e in found.items() if n != "sync" and e.samples_per_s < wild.samples_per_s]
    others = len(found) - 2
    made.add(
        "Section 4.2",
        "EA-wild is much faster than the other asynchronous solvers",
        "much faster",
        f"more samples in a second than {len(slower)} of {others} others; "
        + ", ".join(f"{name} {each} %" for name, each in found.items()),
        agrees=len(slower) >= others - 1,
        why="who never waits for an answer is as fast (Downpour); whether there is a lock does not"
        " show, for folding is short beside a step",
    )
    made.not_built(
        "Section 4.2",
        "Hogwild! among them",
        "slower than EA-wild",
        "processes that race for the same memory have no virtual time: murmurate up --mode hogwild",
    )


def workers(made: PaperStudy, runs: SolverRuns) -> None:
    counts = (2, 8) if runs.effort.quick else (2, 4, 8, 16)
    names = ("sync", "EA-wild", "EA-MSGD")
    by = {name: {n: runs.get(name, n) for n in counts} for name in names}
    made.figures["workers"] = {
        name: {n: str(run) for n, run in each.items()} for name, each in by.items()
    }
    made.charts.append(
        chart(
            "Tables 2 to 4: accuracy over workers, global batch 256",
            [Line(name=k, points=[(n, r.points) for n, r in v.items()]) for k, v in by.items()],
            x="workers",
            y="accuracy, %",
        )
    )
    fell = {name: each[counts[0]].points - each[counts[-1]].points for name, each in by.items()}
    made.add(
        "Table 4",
        "more workers at the same global batch: EA-wild gets worse, sync does not",
        "65.68, 59.26, 50.03, 35.69 for 8, 16, 32, 64; sync 71.26",
        "; ".join(f"{k} {', '.join(map(str, v.values()))}" for k, v in by.items())
        + f" for {', '.join(map(str, counts))} workers",
        agrees=fell["EA-wild"] > 3 and abs(fell["sync"]) < 3,
        unless="without momentum EA-wild bears it: its workers' batches get smaller and their steps"
        " more. With momentum it falls, as in the paper, which says momentum 0.9",
    )
    lstm_counts = (4,) if runs.effort.quick else (2, 4, 8)
    apart = {
        n: runs.get("EA-wild", n, workload=ROWS, lr=0.3).points
        - runs.get("sync", n, workload=ROWS, lr=0.3).points
        for n in lstm_counts
    }
    made.figures["lstm"] = apart
    made.add(
        "Figs 5 to 7",
        "LSTM on rows of an image (FashionMNIST's here): EA-wild minus sync over workers",
        "slightly below with 2, 96.5 against 98.6 % with 4, clearly below with 8",
        ", ".join(f"{n}: {value:+.1f} points" for n, value in apart.items()),
        agrees=apart[lstm_counts[-1]] < -0.5,
        unless="in one short pass more and smaller steps learn more than few large ones",
    )


def rates(made: PaperStudy, runs: SolverRuns) -> None:
    tried = (0.1, 1.0) if runs.effort.quick else (0.01, 0.03, 0.1, 0.3, 1.0)
    by = {name: {lr: runs.get(name, 8, lr=lr) for lr in tried} for name in ("sync", "EA-wild")}
    made.charts.append(
        chart(
            "Fig. 8, Tables 4 and 5: the rate, 8 workers",
            [Line(name=k, points=[(lr, r.points) for lr, r in v.items()]) for k, v in by.items()],
            x="rate",
            y="accuracy, %",
            log_x=True,
        )
    )
    best = {name: max((run.points, lr) for lr, run in each.items())[1] for name, each in by.items()}
    made.figures["rates"] = {n: {str(lr): str(r) for lr, r in e.items()} for n, e in by.items()}
    tuned = {name: by[name][lr].points for name, lr in best.items()}
    made.add(
        "Tables 3 to 5",
        "each at its best rate, 8 workers: sync is above EA-wild",
        "94.15 against 90.59, 71.26 against 65.68, 75.30 against 47.51",
        ", ".join(f"{n} {tuned[n]:.1f} % at {lr:g}" for n, lr in best.items()),
        agrees=tuned["sync"] > tuned["EA-wild"] + 0.5,
        unless="one pass: EA-wild's workers make eight times as many steps, which is worth more"
        " here than what it loses; the paper trains 72 to 290 passes",
    )


def large_batch(made: PaperStudy, runs: SolverRuns) -> None:
    """A batch of 2048 at once, as sync of any number of workers makes it."""
    size = 1024 if runs.effort.quick else 2048
    samples = 15_360 if runs.effort.quick else 61_440
    usual = ["--nodes=1", "--rule=sum", f"--workload={MLP}", f"--samples={samples}"]
    usual += ["--evaluate-s=0", f"--seed={runs.effort.seed}"]
    large = [*usual, f"--batch-size={size}"]
    kinds = {
        "batch 128": [*usual, "--batch-size=128", "--lr=0.02"],
        f"batch {size}, the same rate": [*large, "--lr=0.02"],
        "rate times 8": [*large, "--lr=0.16"],
        "and warm-up of the rate": [*large, "--lr=0.16", "--warmup=0.15", "--schedule=poly"],
        "and of the batch": [*large, "--lr=0.16", "--batch-warmup=0.15"],
        "LARS, warm-up": [*large, "--optimizer=lars", "--lr=4", "--momentum=0.9", "--warmup=0.15"],
        "two stages, SGD then Adam": [*large, "--optimizer=sgd-adam", "--warmup=0.15"],
    }
    found = {}
    for name, options in kinds.items():
        report = trained(*options)
        found[name] = 100 * float(report["accuracy_mean"] or 0.0)
    made.figures["large_batch"] = found
    made.charts.append(
        page.table(["large batch", "accuracy, %"], [[n, f"{v:.1f}"] for n, v in found.items()])
    )
    plain = found[f"batch {size}, the same rate"]
    helped = max(list(found.values())[2:])
    made.add(
        "Section 4.5, Fig. 3",
        f"a batch of {size}: warm-up, LARS and two stages recover what it loses",
        "82.08 to 82.15 % from 100 to 2K, 74.92 at 8K",
        ", ".join(f"{name} {value:.1f} %" for name, value in found.items()),
        agrees=helped > plain + 1 and found["batch 128"] - helped < 5,
        unless="few steps are made of so many samples; what is left is for more passes",
    )
    _largest(made, runs, size, samples)


def _largest(made: PaperStudy, runs: SolverRuns, size: int, samples: int) -> None:
    """Table 2's last two rows and Fig. 4: each at its best rate, warmed up."""
    tried = (0.3,) if runs.effort.quick else (0.1, 0.3, 1.0)
    best = {
        solver: max(
            runs.get(
                solver, 8, lr=lr, more=("--warmup=0.15",), samples=samples, global_batch=size
            ).points
            for lr in tried
        )
        for solver in ("sync", "EA-wild")
    }
    made.figures["largest_batch"] = best
    made.add(
        "Table 2, Fig. 4",
        f"the largest batch ({size} of 8 workers, warm-up): EA-wild slightly above sync",
        "75.51 against 74.92 %",
        ", ".join(f"{name} {points:.1f} %" for name, points in best.items()),
        agrees=best["EA-wild"] > best["sync"],
        unless="the centre follows its workers by a part of the way for each push, which is slow"
        " where there are few",
    )


def deep_and_wide(made: PaperStudy, runs: SolverRuns) -> None:
    depths = {"OneLayer": 1, "ThreeLayers": 3, "SixLayers": 6}
    found = {}
    for name, layers in depths.items():
        report = trained(
            *("--nodes=1", "--rule=sum", f"--workload={HERE}:{name}", "--lr=0.02"),
            *(f"--samples={2 * runs.samples}", "--evaluate-s=0", f"--seed={runs.effort.seed}"),
        )
        found[layers] = 100 * float(report["accuracy_mean"] or 0.0)
    made.figures["fig_1"] = found
    made.add(
        "Fig. 1",
        "deep beats wide at equal parameters (1, 3 and 6 hidden layers, 99,000 each)",
        "constantly",
        ", ".join(f"{layers}: {value:.1f} %" for layers, value in found.items()),
        agrees=found[1] < found[3] < found[6],
        unless="perceptrons on images gain little from depth; the paper's example has convolutions,"
        " and one model for each",
    )


def conclusion(made: PaperStudy, runs: SolverRuns) -> None:
    """High CC: sync. Each at its better rate of two."""
    models = {"MLP": MLP, "LeNet-5": LENET, "LSTM": ROWS, "convolutions": CONVOLUTIONS}
    rates_tried = (0.1,) if runs.effort.quick else (0.1, 0.3)
    samples = 5_120 if runs.effort.quick else None
    rows: list[tuple[str, float, SolverRun, SolverRun]] = []
    for name, workload in models.items():
        best = {
            solver: max(
                (
                    runs.get(solver, 4, workload=workload, lr=lr, samples=samples)
                    for lr in rates_tried
                ),
                key=lambda run: run.points,
            )
            for solver in ("sync", "EA-wild")
        }
        rows.append((name, best["sync"].cc_ratio, best["sync"], best["EA-wild"]))
    rows.sort(key=lambda row: row[1])
    made.charts.append(
        page.table(
            ["4 workers", "CC ratio, our scale", "sync, %", "EA-wild, %", "speed, sync : EA-wild"],
            [
                [page.text(n), f"{cc:.1f}", str(s), str(w),
                 f"{s.samples_per_s / w.samples_per_s:.2f}"]
                for n, cc, s, w in rows
            ],
        )
    )  # fmt: skip
    gains = [s.points - w.points for _, _, s, w in rows]
    speeds = [s.samples_per_s / w.samples_per_s for _, _, s, w in rows]
    made.figures["conclusion"] = {
        n: {"cc": cc, "sync": s.points, "ea_wild": w.points, "speed": speed}
        for (n, cc, s, w), speed in zip(rows, speeds, strict=True)
    }
    told = "; ".join(
        f"{n} (CC {cc:.0f}) {gain:+.1f} points, {speed:.2f} x"
        for (n, cc, _, _), gain, speed in zip(rows, gains, speeds, strict=True)
    )
    rule = all(b > a - 1 for a, b in itertools.pairwise(gains)) and gains[-1] > gains[0] + 1
    made.add(
        "Section 4.6, its main conclusion",
        "high CC: sync is better; low CC: EA-wild. Sync minus EA-wild in accuracy, and speed",
        "from AlexNet's 109 to GoogLeNet's 736, on mixed scales",
        told,
        agrees=rule,
        unless="accuracy goes by how many steps a model needs, not by CC, in so few passes",
    )
    quicker = all(a <= b + 0.02 for a, b in itertools.pairwise(speeds))
    made.add(
        "Section 4.6",
        "speed of sync against EA-wild rises with CC, for communication weighs less",
        "by the definition of CC",
        ", ".join(f"{speed:.2f}" for speed in speeds) + " from low to high CC",
        agrees=quicker,
        unless="small models' bytes cost little either way; a hub folds one push at"
        " a time, and waiting for the slowest of four costs the same share at every CC",
    )


def scaling(made: PaperStudy, runs: SolverRuns) -> None:
    """Samples in a second over workers, each with the same batch; the model does not matter."""
    counts = (4, 16, 64) if runs.effort.quick else (4, 16, 64, 256)
    made_s: dict[str, list[float]] = {"EA-wild": [], "sync": []}
    for solver, n in ((solver, n) for solver in made_s for n in counts):
        report = trained(
            *SOLVERS[solver],
            *(f"--nodes={n}", "--workload=synthetic:1000", "--step-s=0.02", "--seconds=0.6"),
            *("--slow=gaussian(0.002,0.002)", "--delay-s=0.001", "--evaluate-s=0"),
            *(() if solver == "sync" else ("--every=4", "--fold-s=0.0005")),
            f"--seed={runs.effort.seed}",
        )
        made_s[solver].append(report["samples"] / report["wall_s"])
    ideal = [made_s["sync"][0] * n / counts[0] for n in counts]
    lines = [Line(name=k, points=list(zip(counts, v, strict=True))) for k, v in made_s.items()]
    lines.append(Line(name="ideal", points=list(zip(counts, ideal, strict=True)), dashed=True))
    made.figures["fig_2"] = {"workers": counts, "samples_per_s": made_s}
    made.charts.append(
        chart("Fig. 2: scaling", lines, x="workers", y="samples/s", log_x=True, log_y=True)
    )
    part = {k: v[-1] / v[0] / (counts[-1] / counts[0]) for k, v in made_s.items()}
    made.add(
        "Fig. 2",
        f"EA-wild scales nearly ideally, {counts[0]} to {counts[-1]} workers",
        "nearly ideal, to 217,600 cores",
        ", ".join(f"{k} {100 * v:.0f} % of ideal" for k, v in part.items()),
        agrees=part["EA-wild"] > 0.8,
        why="bent by the hub, which folds one push at a time (0.5 ms, a push every 4 steps of 20"
        " ms): from 160 workers on it is the limit. The paper's master is many machines",
    )
