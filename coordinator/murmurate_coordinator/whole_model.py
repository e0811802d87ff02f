"""The whole model, as only the coordinator has it: made, evaluated, and written as a file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch

from murmurate.core.partition.analysis import analyse
from murmurate.core.partition.subnet import load, weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.errors import ConfigError
from murmurate.programs.cli.partition import example_of
from murmurate.programs.roles.loading import workload_of
from murmurate.workloads import Evaluation
from murmurate.workloads.measuring import measured
from murmurate_coordinator.checkpointer import tied_names, write_model
from murmurate_coordinator.config import CoordinatorConfig
from murmurate_coordinator.solvers.protocol import Solver

Tensors = Mapping[str, torch.Tensor]


class WholeModel:
    """A workload's model and what can be dealt of it. The module itself is for evaluation; the
    weights that are trained are the solver's."""

    evaluates = True

    def __init__(self, config: CoordinatorConfig) -> None:
        """ConfigError: there is no such workload, or nothing of it can be dealt."""
        it, train = config.coordinator, config.train
        self.run = it.run
        self.workload = workload_of(train, it.seed)
        torch.manual_seed(it.seed)
        self.module = self.workload.model()
        if train.mode == "hub":
            self.structure = whole_structure(self.module)
        else:
            self.structure = analyse(self.module, example_of(self.workload, self.module))
        if not self.structure.groups and train.mode != "hub":
            why = "; ".join(f"{name}: {text}" for name, text in self.structure.reasons.items())
            raise ConfigError(f"workload {train.workload}: none of its axes can be split ({why})")
        self.tied = tied_names(self.module)

    def begin(self, solver: Solver, samples: int | None, *, opened: bool) -> None:
        """Nothing of it is asked for by the solver."""

    @property
    def first_weights(self) -> Tensors:
        """As they are before any training."""
        return weights_of(self.module)

    def evaluated(self, weights: Tensors, *, validation: bool = False) -> Evaluation:
        """On the test set, or on what was held out; it takes a while."""
        load(self.module, weights)
        return measured(self.workload, self.module, validation=validation)

    def put(self, path: str, weights: Tensors) -> None:
        """Into a file that loads into the plain model."""
        with Path(path).open("wb") as file:
            write_model(file, weights, self.tied, self.run)

    def packed(self, weights: Tensors) -> bytes:
        """The same file in memory."""
        file = io.BytesIO()
        write_model(file, weights, self.tied, self.run)
        return file.getvalue()


def plain_and_served(solver: Solver) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Copies of a solver's weights: as they are, and with zeros where nobody ever trained."""
    plain = {name: value.clone() for name, value in solver.weights.items()}
    if not solver.totals.pushes:
        return plain, plain
    served = {
        name: plain[name] if value is solver.weights[name] else value
        for name, value in solver.for_evaluation().items()
    }
    return plain, served
