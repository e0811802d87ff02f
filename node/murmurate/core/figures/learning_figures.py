"""Figures of what is learned: losses, accuracies, samples, warnings (`core.figures.table`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from murmurate.core.figures.figure import Figure, FigureKind, Shown
from murmurate.core.figures.learning import REASONS, Learning

CLASSES_MAX = 32
LOSS = "Training loss on own data, as logged last; murmurate node logs the mean of 20 local steps."
TEST_LOSS = "Loss on the test set, when it was last evaluated."
VALIDATION_LOSS = "Loss on training data that was held out, when it was last evaluated."
VALIDATION_ACCURACY = "Accuracy on training data that was held out, from 0 to 1."


def _classes(accuracy_of: Sequence[float]) -> dict[str, float]:
    return {str(number): value for number, value in enumerate(accuracy_of[:CLASSES_MAX])}


def _cosines(learning: Learning) -> dict[str, float] | None:
    if math.isnan(learning.own_cosine):
        return None
    return {"own": learning.own_cosine, "others": learning.others_cosine}


# fmt: off
LEARNING = (
    Figure(
        "loss", FigureKind.GAUGE,
        node=Shown(LOSS, lambda n: n.tally.loss),
        member=Shown(LOSS, lambda m: m.tally.loss),
        coordinator=Shown(
            "Mean of the members' latest training losses on their own data.", lambda c: c.loss
        ),
    ),
    Figure(
        "test_loss", FigureKind.GAUGE,
        node=Shown(TEST_LOSS, lambda n: n.tally.test_loss),
        member=Shown(TEST_LOSS, lambda m: m.tally.test_loss),
        coordinator=Shown(
            "Of the assembled model as it is served, on the test set.", lambda c: c.test_loss
        ),
    ),
    Figure(
        "accuracy", FigureKind.GAUGE,
        node=Shown(
            "The latest accuracy on the test set, from 0 to 1.", lambda n: n.tally.accuracy
        ),
        member=Shown("The latest accuracy that was logged, 0 to 1.", lambda m: m.tally.accuracy),
        coordinator=Shown(
            "Of the assembled model as it is served, on the test set, from 0 to 1.",
            lambda c: c.accuracy,
        ),
    ),
    Figure(
        "validation_loss", FigureKind.GAUGE,
        node=Shown(VALIDATION_LOSS, lambda n: n.tally.validation_loss),
        member=Shown(VALIDATION_LOSS, lambda m: m.tally.validation_loss),
        coordinator=Shown(VALIDATION_LOSS, lambda c: c.validation_loss),
    ),
    Figure(
        "validation_accuracy", FigureKind.GAUGE,
        node=Shown(VALIDATION_ACCURACY, lambda n: n.tally.validation_accuracy),
        member=Shown(VALIDATION_ACCURACY, lambda m: m.tally.validation_accuracy),
        coordinator=Shown(VALIDATION_ACCURACY, lambda c: c.validation_accuracy),
    ),
    Figure(
        "accuracy_plain", FigureKind.GAUGE,
        coordinator=Shown(
            "The same with what nobody has trained yet left in.", lambda c: c.accuracy_plain
        ),
    ),
    Figure(
        "class_accuracy", FigureKind.GAUGE, "class",
        node=Shown(
            "The same by class: of a class that only a lost or slow peer sees, it falls first.",
            lambda n: _classes(n.tally.accuracy_of),
        ),
    ),
    Figure(
        "samples", FigureKind.COUNTER,
        node=Shown("Samples this node has trained on.", lambda n: n.tally.samples),
        member=Shown("Samples this member has trained on.", lambda m: m.tally.samples),
        coordinator=Shown("Samples in the pushes that were folded in.", lambda c: c.samples),
    ),
    Figure(
        "gain_cosine", FigureKind.GAUGE, "to",
        node=Shown(
            "Mean cosine of what this node's steps gain with what they gained before (own) and with"
            " what the others add to the weights (others), over 32 publications.",
            lambda n: _cosines(n.tally.learning),
        ),
    ),
    Figure(
        "learning_warning", FigureKind.GAUGE, "reason",
        node=Shown(
            "1 while something goes wrong with the learning here; the sentence is in the log, on"
            " the page and in top.",
            lambda n: {each.reason: 1 for each in n.tally.learning.warnings}, REASONS,
        ),
    ),
    Figure(
        "cc_ratio", FigureKind.GAUGE,
        node=Shown(
            "Floating-point operations of the model for one sample, forward, per parameter: how"
            " much computing there is for each number exchanged.",
            lambda n: n.tally.flops_per_sample / max(1, n.parameters),
        ),
    ),
)
# fmt: on
