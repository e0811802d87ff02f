"""Paper 003 (Wongpanich, You, Demmel): its figures held against each other.

Its trainings need a hub and an all-reduce.
"""

from __future__ import annotations

import numpy as np

from murmurate.study.reproduce.claim import Effort, PaperStudy

RATIOS = (
    ("ResNet-50", 7.7e9, 25e6, 308.0),
    ("GoogLeNet", 9.7e9, 13.5e6, 736.0),
    ("DenseNet-40", 5e9, 9e6, 555.0),
)
"""Section 4.6: operations for a sample, parameters, the CC ratio as printed."""


def study(effort: Effort) -> PaperStudy:
    made = PaperStudy(paper="003", title="Synchronous and asynchronous solvers")
    for model, operations, parameters, printed in RATIOS:
        ratio = operations / parameters
        made.add(
            "Section 4.6",
            f"CC ratio of {model}, from its own operands",
            f"{printed:.0f}",
            f"{ratio:.1f}",
            agrees=abs(ratio / printed - 1) < 0.01,
            why="" if abs(ratio / printed - 1) < 0.01 else "its operands give another figure",
        )
    made.add(
        "Section 5",
        "async EA-wild slightly beats sync for cifar10-full in speed",
        "async faster",
        "Table 7: sync is 1.44 times faster",
        agrees=False,
        why="async wins in accuracy only (75.51 against 74.92); text and table contradict",
    )
    _elastic(made, effort)
    for where, what in (
        (
            "Tables 2 to 5",
            "EASGD, EA-wild, EA-MSGD, Async MSGD, Downpour, sync over workers; rates",
        ),
        ("Table 6", "the main conclusion: sync against EA-wild on four models by CC ratio"),
        ("Fig. 1", "deep against wide at equal parameters"),
        ("Fig. 2", "scaling to 256 workers in virtual time"),
        ("Fig. 3", "large batch: warm-up, LARS, two stages"),
        ("Proposition 1", "Ω, Δ, ρ on a sparse convex problem"),
    ):
        made.not_built(
            where,
            what,
            "",
            "reproduce does not drive modes hub and allreduce for it yet; murmurate race does",
        )
    return made


def _elastic(made: PaperStudy, effort: Effort) -> None:
    """Eqs 2 and 3 with both sides' old values and no gradient."""
    rng = np.random.default_rng(effort.seed)
    local, centre = rng.normal(size=100), rng.normal(size=100)
    total, gap = local + centre, np.linalg.norm(local - centre)
    alpha = 0.1
    for _ in range(10):
        difference = alpha * (local - centre)
        local, centre = local - difference, centre + difference
    kept = float(np.abs(local + centre - total).max())
    shrunk = float(np.linalg.norm(local - centre) / gap)
    made.add(
        "Eqs 2, 3",
        "the elastic step keeps w + w̃ and shrinks their distance by 1 − 2α (α = 0.1, ten steps)",
        f"0, {0.8**10:.4f}",
        f"{kept:.0e}, {shrunk:.4f}",
        agrees=kept < 1e-12 and abs(shrunk - 0.8**10) < 1e-9,
        why="arithmetic only; what it does to training needs the hub",
    )
