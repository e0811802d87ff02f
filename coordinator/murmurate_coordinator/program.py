"""`murmurate coordinator`: deals subnets until the budget is spent, then says what it came to.

A run ends on its budget, or by `murmurate stop`: members push what they have, it is folded in,
evaluated and kept; exit code 0. A first SIGTERM or SIGINT is not the end of the run where there is
a checkpoint folder to come back with: everything that was answered as taken is kept, members train
on and come back. Without a folder nothing could go on, so it ends the run. A second one does not
wait.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Mapping
from typing import Any

import torch

from murmurate.core.figures.sources import Keeping
from murmurate.edge.net.http import Pages
from murmurate.errors import CheckpointError
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.run import OF_EACH, Outcome, Program
from murmurate.training.recipes import factors
from murmurate.watch import report
from murmurate_coordinator import figures
from murmurate_coordinator.batch_maker import BatchMaker
from murmurate_coordinator.budget import RunBudget
from murmurate_coordinator.checkpoint_writing import CheckpointWriting
from murmurate_coordinator.config import CoordinatorConfig
from murmurate_coordinator.evaluations import WholeEvaluations
from murmurate_coordinator.figures import Around
from murmurate_coordinator.learned_curves import LearnedCurves
from murmurate_coordinator.names import BATCHES
from murmurate_coordinator.opening import Opened, opened
from murmurate_coordinator.own_member import OwnMember
from murmurate_coordinator.pages import ServedModel, coordinator_pages
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.whole_model import WholeModel, plain_and_served

LOOK_S = 0.05
REFRESH_S = 2.0
"""Between two looks at what takes time to count: coverage."""
LAST_S = 15.0
"""For the last pushes."""
OWN_S = 3.0
"""For its own member to end."""
STOPPED = "stopped"
"""By `murmurate stop`."""
DIVERGED = "diverged"
"""The weights are no numbers any more, and never will be."""
FINAL = ("samples", "seconds", STOPPED, DIVERGED)
"""Why a run ends; whatever else ends this process, the run goes on from its checkpoint."""


def stop_goes_on(reason: str) -> bool:
    """Whether the run goes on when this process ends for that reason."""
    return reason not in FINAL


class CoordinatorRole:
    """The coordinator around its service. Everything here is on the event loop's thread, which is
    the main one: the loop runs while a step does."""

    program: Program
    whole: WholeModel | BatchMaker
    served: ServedModel
    centre: Sessions
    service: CoordinatorService
    evaluations: WholeEvaluations
    writing: CheckpointWriting | None = None
    """With a checkpoint folder."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.around = Around()
        self.learned = LearnedCurves()
        self.instance = secrets.token_hex(8)
        self.credentials = own_credentials()
        self.pages: Pages | None = None
        self.own: OwnMember | None = None
        train = config.train
        changes = factors(train.recipe) if train.recipe.changes else None
        self.budget = RunBudget(train.samples, train.seconds, changes)
        self._loop = asyncio.Runner()
        self._refresh_at = 0.0

    def open(self, program: Program) -> bool:
        """New, or as the last checkpoint says; then members may come."""
        self.program = program
        program.stack.callback(self._loop.close)
        torch.set_num_threads(self.config.coordinator.threads or torch.get_num_threads())
        batches = self.config.train.mode == BATCHES
        self.whole = BatchMaker(self.config) if batches else WholeModel(self.config)
        self.served = ServedModel(self._packed, lambda: self.centre.solver.totals.pushes)
        program.emit("ready", samples=self.whole.workload.samples)
        it = opened(self.config, self.whole, self.instance, program.stack)
        self.centre, self.budget.before_s = it.centre, it.before_s
        if it.restored:
            self._say(it.restored)
        self.whole.begin(self.centre.solver, self.budget.samples, opened=program.launcher is None)
        self._loop.run(self._serve(it))
        return True

    async def _serve(self, begun: Opened) -> None:
        it, program = self.config.coordinator, self.program
        self.service = service = CoordinatorService(
            it.listen,
            self.centre,
            describe=self._description,
            stop_run=lambda: program.end_for(STOPPED),  # the word of `murmurate stop`
            credentials=self.credentials,
        )
        self.pages = self._pages()
        if (factor := self._spend(time.monotonic())) is not None:  # before the first push
            self.centre.solver.at_rate(factor)
        if begun.keeper is not None:
            self.writing = CheckpointWriting(begun.keeper, begun.journal, service, self.budget)
            if not await self.writing.keep(first=True):
                raise CheckpointError(f"{self.config.checkpoint.dir}: cannot be written")
        await service.start()
        program.stack.callback(lambda: self._loop.run(self._close()))
        if self.pages is not None:
            await self.pages.start()
        program.stop.training = True
        self.around.ready = True
        page = self.pages.address if self.pages is not None else None
        program.listens(figures.NAME, service.address, page)
        more = f", figures at http://{page}/" if page is not None else ""
        self._say(f"listens at {service.address}{more}")
        if it.train:
            self.own = OwnMember(self.config, service.address)
        train = self.config.train
        self.evaluations = WholeEvaluations(
            self.whole,
            service,
            self.around,
            self.learned,
            program,
            asked_s=train.evaluate_s,
            validates=train.validation is not None,
        )

    async def _close(self) -> None:
        if self.own is not None:
            await asyncio.to_thread(self.own.end, OWN_S)
        if self.pages is not None:
            await self.pages.stop()
        await self.service.stop()

    # -- running ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Let the loop run: members are served."""
        self._loop.run(self._mind())

    async def _mind(self) -> None:
        await asyncio.sleep(LOOK_S)
        self._look_after()
        now = time.monotonic()
        if self.budget.began is None and self.centre.solver.leases:
            self.budget.began = now
            self._refresh_at = now  # the first point of all curves
        if (words := self.program.heard_go()) is not None:
            if self.budget.samples is None and words and words[-1].isdecimal():
                self.budget.samples = int(words[-1])  # a budget that was not in the options
                self.budget.of_each = words[0] == OF_EACH
            self.service.post(self._go, self.budget.samples)
        if self.program.stop.reason:
            return  # a signal came
        if (factor := self._spend(now)) is not None:
            await self.service.own(self.centre.solver.at_rate, factor)
        if now >= self._refresh_at:
            await self.service.own(self._refresh, now)
            self.served.forget(now)
            self._refresh_at = time.monotonic() + REFRESH_S
        if self.writing is not None:
            self.writing.begin_when_due(now)
        if self.budget.began is not None:
            self.evaluations.begin_when_due(now)

    def over(self, now: float) -> str:
        """By the budget, or when there is nothing left to save."""
        it = self.budget
        ends_at = None if it.of_each else it.samples
        if ends_at is not None and self.centre.samples_if_stopped(now) >= ends_at:
            return "samples"
        if it.seconds is not None and it.trained_s(now) >= it.seconds:
            return "seconds" if self._loop.run(self._closed()) else ""
        return DIVERGED if self.centre.concerns.hopeless else ""

    async def _closed(self) -> bool:
        return await self.service.own(self.centre.solver.close)

    def _spend(self, now: float) -> float | None:
        """Members hear how far the run is. The factor of the learning rate, if it is another one by
        now: a hub that makes the steps itself is to hear that."""
        self.centre.spent = self.budget.spent(now, self.centre.solver.totals.samples)
        return self.budget.new_factor(self.centre.spent)

    def _go(self, samples: int | None) -> None:
        self.whole.begin(self.centre.solver, samples, opened=True)

    def look(self, now: float) -> None:
        """Nothing: a step is a look."""

    def progress(self, now: float) -> None:
        """Nothing more than the row."""

    def end(self) -> Outcome:
        """The end of the run, or of this process only."""
        reason = self.program.stop.reason
        if self.writing is not None and stop_goes_on(reason):
            return self._loop.run(self._go_away(self.writing, reason))
        return self._loop.run(self._end(reason))

    def leave(self, outcome: Outcome) -> None:
        """Members were told."""

    def row(self) -> report.Json:
        """As the report has it."""
        return self._loop.run(self._row())

    async def _row(self) -> report.Json:
        return await self.service.own(lambda: figures.row(self.centre, self._around()))

    def details(self, event: str) -> report.Json:
        """It has no updates of its own."""
        return {"known": {}}

    def _look_after(self) -> None:
        """What went wrong in the background is raised here."""
        if self.service.failed is not None:
            raise self.service.failed
        if self.own is not None:
            self.own.look()
        if self.writing is not None:
            self.writing.look()
        self.evaluations.look()

    async def _through(self) -> None:
        """Until what was begun beside the serving is done."""
        if self.writing is not None:
            await self.writing.through()
        await self.evaluations.through()

    async def _go_away(self, writing: CheckpointWriting, reason: str) -> Outcome:
        """Not the end of the run: nobody is told to stop, and nothing that was taken is lost."""
        service, centre = self.service, self.centre
        wall_s = self.budget.trained_s(time.monotonic())
        self.around.ready = False
        self.around.shares = await service.own(centre.shares)
        self.around.loss = await service.own(lambda: figures.read(centre, self._around()).loss)
        if self.own is not None:  # it cannot outlive this process: its last push comes now
            self.own.dismiss()
            await asyncio.to_thread(self.own.end, OWN_S)
        await service.close()
        await self._through()
        folder = writing.keeper.folder.path
        if not (await writing.keep() or await writing.keep()):
            raise CheckpointError(
                f"{folder}: the last checkpoint could not be written: what was pushed"
                " since the one before is lost; members push it again where the rule allows"
            )
        files = self.config.report
        wanted = self.program.events or files.path or files.model
        whole = await self._conclude(wall_s, reason, evaluate=bool(wanted))
        return self._outcome(
            whole,
            f"goes away ({reason}): plan {centre.solver.plan}, {centre.solver.totals.pushes:,}"
            f" pushes are in {folder}; members train on and come back when it is"
            " started again (murmurate stop ends a run)",
        )

    async def _end(self, reason: str) -> Outcome:
        """The last pushes, then what it came to."""
        service, centre = self.service, self.centre
        wall_s = self.budget.trained_s(time.monotonic())
        self.around.ready = False
        self.around.shares = await service.own(centre.shares)
        self.around.more = await service.own(centre.solver.more)
        await service.own(self._refresh, time.monotonic())  # and their last
        self.around.loss = await service.own(lambda: figures.read(centre, self._around()).loss)
        await service.own(centre.stop, reason)
        until = time.monotonic() + LAST_S
        while centre.awaited and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            if service.failed is not None:
                raise service.failed
        await self._through()
        if self.writing is not None and reason == STOPPED:
            await asyncio.to_thread(self.writing.keeper.mark_ended, reason)
        keep = reason != DIVERGED  # those of before are worth more
        whole = await self._conclude(wall_s, reason, keep=keep)
        own = whole["nodes"][0]
        accuracy = "" if own["accuracy"] is None else f", accuracy {own['accuracy']:.1%}"
        return self._outcome(whole, f"ends ({reason}): {self.centre.solver.told()}{accuracy}")

    def _outcome(self, whole: report.Json, sentence: str) -> Outcome:
        return Outcome(
            settled=not self.centre.awaited,
            report=whole | self._curves(),
            sentence=f"{figures.NAME} {sentence}",
            more={"report": whole},
        )

    def _curves(self) -> report.Json:
        """Not in the event: `murmurate up` has them of the others."""
        it = self.budget
        if it.began is None or not self.whole.evaluates:
            return {}
        counts = {figures.NAME: sorted(self.centre.staleness.counts().items())}
        return self.learned.told(it.began - it.before_s) | {"staleness_counts": counts}

    async def _conclude(
        self, wall_s: float, reason: str, *, evaluate: bool = True, keep: bool = False
    ) -> report.Json:
        """What it came to: evaluated, kept, written where it was asked for."""
        service = self.service
        await service.own(self._refresh, time.monotonic())
        plain, served = await service.own(plain_and_served, self.centre.solver)
        if evaluate:
            await self.evaluations.last(plain)
        if keep and self.writing is not None:
            await self.writing.keep()
        path = self.config.report.model
        if path is not None:
            await asyncio.to_thread(self.whole.put, path, served)
        return await service.own(self._report, wall_s, reason)

    def _report(self, wall_s: float, reason: str) -> report.Json:
        return figures.whole(
            self.centre,
            self._around(),
            workload=self.config.train.workload,
            seed=self.config.coordinator.seed,
            wall_s=wall_s,
            reason=reason,
        )

    # -- in the owner's thread -------------------------------------------------------------------

    def _refresh(self, now: float) -> None:
        self.around.coverage = self.centre.solver.coverage()
        kinds: dict[str, int] = {}
        for advice in self.centre.concerns.advice(now):
            kinds[advice.kind] = kinds.get(advice.kind, 0) + 1
        self.around.advice = kinds
        if self.budget.began is not None:
            self.learned.curves.note(now, figures.board(self.centre, self.around))

    def _around(self) -> Around:
        around, service = self.around, self.service
        around.rejected = dict(service.rejections.counted)
        around.bytes_sent = service.server.bytes_sent
        around.bytes_received = service.server.bytes_received
        if self.writing is not None:
            keeper = self.writing.keeper
            age_s = keeper.age_s if math.isfinite(keeper.age_s) else math.nan
            around.keeping = Keeping(age_s=age_s, every_s=keeper.every_s, failures=keeper.failures)
        return around

    def _description(self) -> Any:
        return figures.description(self.centre, self.service.address, self.instance)

    # -- telling ---------------------------------------------------------------------------------

    def _pages(self) -> Pages | None:
        listen = self.config.metrics.listen
        if listen is None:
            return None
        return coordinator_pages(
            listen,
            self.credentials,
            values=lambda: self.service.own(lambda: figures.shown(self.centre, self._around())),
            told=self._told,
            model=self.served,
            failed=lambda: self.service.failed is not None,
            ready=lambda: self.around.ready,
        )

    async def _told(self) -> report.Json:
        row = await self._row()
        rows = await self.service.own(
            figures.rows, self.centre, self.budget.trained_s(time.monotonic())
        )
        about = {
            "run": self.centre.run,
            "rule": self.centre.solver.rule,
            "at": time.monotonic(),
            "parameters": figures.parameters(self.centre),
        }
        return about | {"coordinator": row, "members": rows, "curves": self.learned.curves.lists()}

    async def _served_weights(self) -> Mapping[str, torch.Tensor]:
        _, served = await self.service.own(plain_and_served, self.centre.solver)
        return served

    async def _packed(self) -> bytes:
        return await asyncio.to_thread(self.whole.packed, await self._served_weights())

    def _say(self, text: str) -> None:
        self.program.announce(f"{figures.NAME} {text}")
