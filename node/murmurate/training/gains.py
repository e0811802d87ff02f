"""The gains of several optimizers that train one model, as a generator's and a critic's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from murmurate.training.gain import Everybodys, OptimizerGain


class OptimizerGains:
    """One step is one optimizer's: its gain is read, and the others' parameters did not change."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Sequence[torch.nn.Parameter],
    ) -> None:
        self._gains = {id(each): OptimizerGain(each, parameters) for each in optimizers}
        self._now = self._gains[id(optimizers[0])]

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """This is the one that has just made a step."""
        self._now = self._gains[id(optimizer)]

    @property
    def known(self) -> bool:
        """Whether every optimizer's gain can be read."""
        return all(gain.known for gain in self._gains.values())

    @property
    def kind(self) -> str:
        """Of all together (`OptimizerGain.kind`)."""
        kinds = {gain.kind for gain in self._gains.values()}
        return next(kind for kind in ("unread", "normalized", "plain") if kind in kinds)

    def divide_by(self, everybodys: Everybodys) -> None:
        """By everybody's second moments, those of these optimizers that have any."""
        for gain in self._gains.values():
            gain.divide_by(everybodys)

    def square(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """The second moment of a parameter (`OptimizerGain.square`), whosever it is."""
        found = (gain.square(parameter) for gain in self._gains.values())
        return next((square for square in found if square is not None), None)

    def others(self) -> list[slice]:
        """Where the parameters lie that none of these optimizers has."""
        first, *rest = (gain.others() for gain in self._gains.values())
        keys = [{(span.start, span.stop) for span in spans} for spans in rest]
        return [span for span in first if all((span.start, span.stop) in key for key in keys)]

    def mend(self) -> None:
        """Steps were taken back (`OptimizerGain.mend`)."""
        for gain in self._gains.values():
            gain.mend()

    def add_to(self, gain: torch.Tensor, view: Callable[[], torch.Tensor]) -> None:
        """Add what the last step gained (`OptimizerGain.add_to`)."""
        self._now.add_to(gain, view)
