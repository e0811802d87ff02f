"""The coordinator's state at one instant, as tensors and JSON and back. Pure.

The full weights are among the tensors under their own names. Beside them, under names that begin
with `murmurate.`, is what the solver says it must not forget. Of each lease that is also what it
has of tensors that others hold too, as it was given or pushed last. That is what makes a push after
a restart count right: its change is taken against what the checkpoint has, so it holds everything
since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from murmurate.core.partition.structure import Structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate_coordinator.solvers.protocol import Json, Solver, SolverState
from murmurate_coordinator.solvers.table import new_solver

PREFIX = "murmurate."


@dataclass(frozen=True, slots=True, eq=False)
class SavedSolver:
    """Copies: what is written does not change meanwhile."""

    tensors: Mapping[str, torch.Tensor]
    about: Json


def save(solver: Solver) -> SavedSolver:
    """All that a restart needs of it."""
    state = solver.state()
    tensors = {name: value.clone() for name, value in solver.weights.items()}
    tensors |= {PREFIX + name: value for name, value in state.tensors.items()}
    return SavedSolver(tensors, {"rule": solver.rule, **state.about})


def restore(
    saved: SavedSolver,
    structure: Structure,
    rng: np.random.Generator,
    *,
    steps: int,
    founders: int,
    mode: str = "ist",
    settings: HubSettings | None = None,
    replay: Callable[[Solver], object] | None = None,
) -> Solver:
    """The same solver, in its next life. KeyError, ValueError, TypeError: it is none. `replay`
    makes the calls that came after it was saved."""
    about, tensors = saved.about, saved.tensors
    weights = {name: tensors[name] for name in structure.tensors}
    for name, tensor in structure.tensors.items():
        if tuple(weights[name].shape) != tensor.shape:
            raise ValueError(f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}")
    solver = new_solver(
        about["rule"],
        structure,
        weights,
        rng,
        mode=mode,
        settings=settings,
        steps=steps,
        founders=founders,
        first_lease=int(about["next"]),
    )
    own = {n.removeprefix(PREFIX): value for n, value in tensors.items() if n.startswith(PREFIX)}
    solver.restore(SolverState(own, about))
    if replay is not None:
        replay(solver)
    solver.begin_life()
    return solver
