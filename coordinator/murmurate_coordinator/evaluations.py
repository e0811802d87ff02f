"""Evaluates the whole model: now and then while members train, and at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import torch

from murmurate.programs.roles.evaluating import EvaluationTimes, named
from murmurate.programs.run import Program
from murmurate.watch import report
from murmurate_coordinator.batch_maker import BatchMaker
from murmurate_coordinator.figures import Around
from murmurate_coordinator.learned_curves import LearnedCurves
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.whole_model import WholeModel, plain_and_served

EVALUATE_S = 5.0


class WholeEvaluations:
    """Never two at once. On the loop's thread; a model is evaluated in one of the pool's."""

    def __init__(
        self,
        whole: WholeModel | BatchMaker,
        service: CoordinatorService,
        around: Around,
        learned: LearnedCurves,
        program: Program,
        *,
        asked_s: float | None,
        validates: bool,
    ) -> None:
        """`validates`: until the end what was held out is evaluated on, not the test set."""
        self._whole = whole
        self._service = service
        self._around = around
        self._learned = learned
        self._program = program
        self._validates = validates
        self._times = EvaluationTimes(asked_s, EVALUATE_S, time.monotonic())
        self._running: asyncio.Task[None] | None = None

    def begin_when_due(self, now: float) -> None:
        if self._whole.evaluates and self._running is None and self._times.due(now):
            self._running = asyncio.create_task(self._on_the_way())

    def look(self) -> None:
        """What went wrong with one that was begun is raised here."""
        if self._running is not None and self._running.done():
            self._running.result()
            self._running = None

    async def through(self) -> None:
        """Until the one that was begun is over."""
        if self._running is not None:
            await self._running

    async def last(self, plain: Mapping[str, torch.Tensor]) -> None:
        """All that a report says. `plain`: the weights as they are, not as they are served."""
        if not self._whole.evaluates:
            return
        self._around.plain = await asyncio.to_thread(self._whole.evaluated, plain)
        if self._validates:
            await self._evaluate(validation=True)
        await self._evaluate()

    async def _on_the_way(self) -> None:
        began = time.monotonic()
        await self._evaluate(validation=self._validates)
        self._times.took(began, time.monotonic())

    async def _evaluate(self, *, validation: bool = False) -> None:
        """The model as it is served now, told with the samples that are in it."""
        began = time.monotonic()
        samples, served = await self._service.own(self._to_evaluate)
        found = await asyncio.to_thread(self._whole.evaluated, served, validation=validation)
        if validation:
            self._around.validation = found
        else:
            self._around.evaluation = found
        told: dict[str, Any] = named(found, validation=validation)
        known = {key: report.number(each) for key, each in told.items()}
        self._learned.evaluated(began, samples, known)
        self._program.emit("evaluated", at=began, samples=samples, **known)

    def _to_evaluate(self) -> tuple[int, Mapping[str, torch.Tensor]]:
        """Samples and the model they are in; in the owner's thread."""
        solver = self._service.centre.solver
        return solver.totals.samples, plain_and_served(solver)[1]
