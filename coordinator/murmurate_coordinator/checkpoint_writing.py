"""Has the coordinator's state kept: while members are served, and before it goes."""

from __future__ import annotations

import asyncio
import time

import torch

from murmurate_coordinator.budget import RunBudget
from murmurate_coordinator.checkpoint import SavedSolver, save
from murmurate_coordinator.checkpointer import CoordinatorKeeper
from murmurate_coordinator.journal import BYTES_MAX, Journal
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.whole_model import plain_and_served


class CheckpointWriting:
    """One checkpoint after another, never two at once. On the loop's thread; what is written is
    copied in the owner's, and written in one of the pool's."""

    def __init__(
        self,
        keeper: CoordinatorKeeper,
        journal: Journal | None,
        service: CoordinatorService,
        budget: RunBudget,
    ) -> None:
        self.keeper = keeper
        self._journal = journal
        self._service = service
        self._centre = service.centre
        self._budget = budget
        self._writing: asyncio.Task[bool] | None = None
        self._kept_plan = 0

    def begin_when_due(self, now: float) -> None:
        solver = self._centre.solver
        if self._writing is not None:
            return
        if solver.plan_wants_checkpoint and solver.plan != self._kept_plan:
            self.keeper.soon()
        if self._journal is not None and self._journal.nbytes > BYTES_MAX:
            self.keeper.soon()
        if self.keeper.due(now):
            self._kept_plan = solver.plan
            self._writing = asyncio.create_task(self.keep())

    def look(self) -> None:
        """What went wrong with one that was begun is raised here."""
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None

    async def through(self) -> None:
        """Until the one that was begun is written."""
        if self._writing is not None:
            await self._writing

    async def keep(self, *, first: bool = False) -> bool:
        """Now; whether it is on disk. `first`: before the owner's thread has begun."""
        saved, model = self._saved() if first else await self._service.own(self._saved)
        done = await asyncio.to_thread(self.keeper.put, saved, model)
        if done and first:
            self._centre.solver.kept(saved.about)
        elif done:
            await self._service.own(self._centre.solver.kept, saved.about)
        return done

    def _saved(self) -> tuple[SavedSolver, dict[str, torch.Tensor]]:
        """In the owner's thread."""
        saved = save(self._centre.solver)
        if self._journal is not None:
            saved.about["journal"] = self._journal.next_file()
        saved.about["trained_s"] = self._budget.trained_s(time.monotonic())
        saved.about["tallies"] = self._centre.members.memory()
        saved.about["revoked"] = self._centre.late
        return saved, plain_and_served(self._centre.solver)[1]
