"""How a coordinator begins: a new run, or one that goes on from its last checkpoint."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import FREELY, RULES_OF
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.errors import CheckpointError
from murmurate_coordinator.batch_maker import BatchMaker
from murmurate_coordinator.checkpoint import SavedSolver, restore
from murmurate_coordinator.checkpointer import MODEL, CoordinatorKeeper
from murmurate_coordinator.config import CoordinatorConfig
from murmurate_coordinator.journal import Journal, JournaledSolver
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.protocol import LIFE, Solver
from murmurate_coordinator.solvers.table import new_solver
from murmurate_coordinator.whole_model import WholeModel

LIVES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What there is before anybody comes."""

    centre: Sessions
    keeper: CoordinatorKeeper | None = None
    journal: Journal | None = None
    """Mode hub, with a folder: what came since the last checkpoint."""
    before_s: float = 0.0
    """Trained in earlier lives."""
    restored: str = ""
    """What it goes on from, in words; empty: from nothing."""


def opened(
    config: CoordinatorConfig, whole: WholeModel | BatchMaker, instance: str, stack: ExitStack
) -> Opened:
    """What must be closed goes on the stack. CheckpointError: what is there cannot go on."""
    it, train, kept = config.coordinator, config.train, config.checkpoint
    rng = np.random.default_rng(it.seed)
    half = RULES_OF[train.mode][train.rule] if train.mode in RULES_OF else FREELY
    settings: dict[str, Any] = {
        "steps": train.every or (1 if half.central else 10),
        "founders": it.founders,
        "mode": train.mode,
        "settings": HubSettings(
            lr=whole.workload.lr, weight_decay=train.weight_decay or 0.0, **config.hub.given
        ),
    }
    keeper: CoordinatorKeeper | None = None
    journal: Journal | None = None
    saved: SavedSolver | None = None
    if kept.dir is not None:
        keeper = CoordinatorKeeper(
            kept.dir,
            every_s=kept.every_s,
            run=it.run,
            mode=train.mode,
            rule=train.rule,
            structure=structure_digest(whole.structure).hex(),
            tied=whole.tied,
        )
        stack.callback(keeper.close)
        saved = keeper.restored
        if train.mode == "hub":
            journal = Journal(Path(kept.dir), whole.structure)
            stack.callback(journal.close)
        if (ended := keeper.ended) is not None:
            raise CheckpointError(
                f"{kept.dir}: this run was ended by murmurate stop; its model is"
                f" {kept.dir}/{MODEL}. To go on remove {ended}, to begin anew give another"
                " folder"
            )

    def sessions(solver: Solver) -> Sessions:
        journaled = solver if journal is None else cast(Solver, JournaledSolver(solver, journal))
        return Sessions(journaled, run=it.run, instance=instance, now=now)

    now = time.monotonic()
    since: list[tuple[MemberPush, int]] = []
    if saved is None:
        first = secrets.randbelow(LIVES) * LIFE + 1
        solver = new_solver(
            train.rule,
            whole.structure,
            whole.first_weights,
            rng,
            first_lease=first,
            **settings,
        )
        return Opened(centre=sessions(solver), keeper=keeper, journal=journal)
    try:
        replay = _replay(saved, journal, since)
        solver = restore(saved, whole.structure, rng, replay=replay, **settings)
        centre = sessions(solver)
        before_s = float(saved.about["trained_s"])
        centre.remember(saved.about["tallies"], since)
        centre.late = int(saved.about["revoked"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{kept.dir}: {type(error).__name__}: {error}") from None
    restored = (
        f"goes on from {kept.dir}: plan {solver.plan}, {solver.totals.pushes:,} pushes,"
        f" {len(solver.leases)} leases"
    )
    return Opened(
        centre=centre, keeper=keeper, journal=journal, before_s=before_s, restored=restored
    )


def _replay(
    saved: SavedSolver, journal: Journal | None, taken: list[tuple[MemberPush, int]]
) -> Callable[[Solver], object] | None:
    """Makes the calls since the checkpoint again. The pushes that were taken are put down, each
    with its staleness."""
    if journal is None:
        return None
    first = int(saved.about["journal"])
    return lambda solver: taken.extend(journal.replay(solver, first))
