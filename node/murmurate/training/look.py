"""Where the parameters are: ahead of the weights to take a gradient, at them to be looked at.

A rule may want the next gradient taken about where the swarm will be (`PublishingRule.leads`). A
person, an evaluation or a file is to get the weights. Running statistics follow: the node's own
where it trains, the swarm's otherwise (`training.statistics`).
"""

from __future__ import annotations

from murmurate.core import buffers
from murmurate.core.publishing.rule import PublishingRule
from murmurate.training.gain import OptimizerGain
from murmurate.training.gains import OptimizerGains
from murmurate.training.placed_parameters import ALL, PlacedParameters, StepsGain
from murmurate.training.statistics import ModelStatistics


class Look:
    """Sets one node's parameters for whoever uses them next."""

    def __init__(
        self,
        placed: PlacedParameters,
        rule: PublishingRule,
        gain: OptimizerGain | OptimizerGains,
        statistics: ModelStatistics,
    ) -> None:
        self._placed = placed
        self._rule = rule
        self._gain = gain
        self._statistics = statistics
        self._looked = self._eager = False
        """Whether the parameters went ahead for this step's gradient. If they did not, though the
        rule wants it, this model is not called as a whole, so that nobody can tell when a gradient
        is about to be taken: from then on they go ahead as soon as a step is over."""

    def stepped(self) -> None:
        """The step is over that the parameters were set for."""
        if not (self._eager or self._looked):
            self._eager = True
            self._statistics.watch(lambda: self._placed.background.weights)
        self._looked = False

    def ahead(self) -> None:
        """Set the parameters to where the rule wants the next gradient taken, if not there yet."""
        self._looked = True
        placed, rule, weights = self._placed, self._rule, self._placed.background.weights
        self._statistics.called(weights)
        if placed.ahead or not rule.leads(StepsGain(placed, self._gain, ALL, None)):
            return
        if (written := placed.written()) is not None:
            rule.changed(written)
            placed.to_weights()
        placed.ahead = True
        read = rule.reads_gains and self._gain.known and not self._gain.others()
        row = placed.layout.in_line(placed.parameters)
        if read and row is not None and not self._statistics:
            rule.lead(row)  # no other memory is needed
            return
        view = buffers.clone(weights)
        rule.lead(view)
        placed.to_view(view, known=read)

    def ahead_if_eager(self) -> None:
        """The same, where nobody will say that a gradient is about to be taken."""
        if self._eager:
            self.ahead()

    def at_statistics(self) -> None:
        """A training call without a gradient: running statistics are the node's own."""
        self._statistics.called(self._placed.background.weights)

    def end_at_weights(self) -> None:
        """The loop is over: nobody keeps what was written into the parameters since."""
        placed = self._placed
        at = placed.background.weights if placed.view is None else placed.view
        if placed.ahead and placed.view is None:
            self._rule.lead(at := buffers.clone(at))
        placed.end_at_weights(at)

    def at_weights(self, *, within_step: bool = False) -> None:
        """Set the parameters to the weights, for whoever looks at the model. `within_step`: that
        may be an optimizer which looks at the loss on its way, and what it has moved is its own."""
        self._statistics.show(self._placed.background.weights)
        if self._placed.ahead and not (within_step and self._placed.moved):
            self._placed.to_weights()
