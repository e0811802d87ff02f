"""What a node knows of itself and of the others in its run, in every mode that has peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from murmurate.core.figures.counters import Learned
from murmurate.core.figures.learning import LearningWarning
from murmurate.core.figures.progress import Progress
from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.edge.runtime.runtime import Runtime
from murmurate.watch.reading import read


class RunView:
    """The figures of one node, and its names. What a mode does with them is its own."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        self.runtime = runtime
        """What runs beside the training; for whoever builds on it."""
        self._figures = runtime.figures
        self._layout = layout
        self._tells_losses = False
        """Whether the script says what its losses are."""

    @property
    def name(self) -> str:
        return self._figures.name

    @property
    def run(self) -> str:
        return self._figures.run

    @property
    def address(self) -> str:
        return self._figures.address

    @property
    def metrics_address(self) -> str | None:
        """Where its figures are served; None: nowhere."""
        return self._figures.metrics_address

    def export(self, registry: Any) -> None:
        """Register this node's figures with a registry of prometheus_client of your own."""
        from murmurate.core.figures.table import NODE
        from murmurate.watch.metrics import Collector

        registry.register(Collector(lambda: read(self.runtime), NODE))

    @property
    def schema(self) -> str:
        """A hash of the names, types and shapes of what is trained; the same on all nodes."""
        return self._layout.schema

    @property
    def members(self) -> dict[str, str]:
        """Names and states (alive, suspect, dead, left), this node's included."""
        return self._figures.members()

    @property
    def staleness(self) -> Summary:
        """Of every update applied here, own included."""
        return self._figures.staleness()

    @property
    def staleness_level(self) -> Summary:
        """The same without what was applied before this node was level with the others: of one that
        was away that is old for no other reason."""
        return self._figures.staleness_level()

    @property
    def warnings(self) -> tuple[LearningWarning, ...]:
        """What went wrong with the learning here, each in a sentence that says what to do."""
        return self._figures.warnings()

    @property
    def board(self) -> list[Progress]:
        """The last word of every member about its progress, this node's as of now."""
        return self._figures.board()

    @property
    def samples(self) -> int:
        """Samples the whole swarm has trained on, as far as it is known here."""
        return sum(self.samples_of.values())

    @property
    def samples_of(self) -> dict[str, int]:
        """Of each node, also of those that are gone."""
        return self._figures.samples_of()

    def progress(self) -> Progress:
        return self._figures.progress()

    @property
    def delays(self) -> tuple[float, float]:
        """In updates, on average since the beginning: own ones made while one of another was on its
        way, and those of a third node that it overtook (`core.figures.staleness_forecast`)."""
        return self._figures.delays()

    @property
    def accuracy_of(self) -> tuple[float, ...]:
        """By class, as it was logged last."""
        return self._figures.accuracy_of()

    def log(
        self,
        *,
        samples: int = 0,
        loss: float | None = None,
        test_loss: float | None = None,
        accuracy: float | None = None,
        accuracy_of: Sequence[float] | None = None,
        validation_loss: float | None = None,
        validation_accuracy: float | None = None,
        flops_per_sample: float | None = None,
    ) -> None:
        """Count samples and note the latest figures, for the others, for reports and metrics.

        `loss` is of training; `test_loss` and `accuracy` (from 0 to 1; `accuracy_of`: by class) are
        of the test set, `validation_…` of data that was held out of training; `flops_per_sample` is
        of the model, forward."""
        self._tells_losses |= loss is not None
        self._figures.log(
            samples,
            Learned(
                loss=loss,
                test_loss=test_loss,
                accuracy=accuracy,
                accuracy_of=accuracy_of,
                validation_loss=validation_loss,
                validation_accuracy=validation_accuracy,
                flops_per_sample=flops_per_sample,
            ),
        )
