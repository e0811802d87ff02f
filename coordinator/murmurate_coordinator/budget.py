"""How long a run is, how much of it is over, and what the learning rate is by then."""

from __future__ import annotations

from collections.abc import Sequence

from murmurate.training.recipes import PARTS


class RunBudget:
    """Samples, seconds, or whichever ends first."""

    def __init__(
        self, samples: int | None, seconds: float | None, factors: Sequence[float] | None
    ) -> None:
        """`factors`: of the rate, by thousandths of the budget; None: it does not change."""
        self.samples = samples
        self.of_each = False
        """Each member ends by itself, after its part: schedules go by these samples, and they are
        no end, for what was lost on the way never comes."""
        self.seconds = seconds
        self.before_s = 0.0
        """Trained in earlier lives."""
        self.began: float | None = None
        """When the first plan was made."""
        self._factors = factors
        self._factor: float | None = None
        """The one that was told last."""

    def trained_s(self, now: float) -> float:
        return self.before_s + (now - self.began if self.began is not None else 0.0)

    def spent(self, now: float, samples: int) -> float:
        """The part of it that is over, with so many samples trained."""
        by_samples = samples / self.samples if self.samples else 0.0
        by_time = self.trained_s(now) / self.seconds if self.seconds else 0.0
        return min(1.0, max(by_samples, by_time))

    def new_factor(self, spent: float) -> float | None:
        """Of the rate, at that part; None: as it was when last asked, or it never changes."""
        if self._factors is None:
            return None
        before, self._factor = self._factor, self._factors[int(spent * PARTS)]
        return self._factor if self._factor != before else None
