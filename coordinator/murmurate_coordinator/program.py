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
from functools import partial
from typing import Any

import torch

from murmurate.core.figures.sources import Keeping
from murmurate.edge.net.http import Pages
from murmurate.errors import CheckpointError
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.roles.evaluating import EvaluationTimes, named
from murmurate.programs.run import Outcome, Program
from murmurate.training.recipes import PARTS, factors
from murmurate.watch import report
from murmurate_coordinator import figures
from murmurate_coordinator.batch_maker import BatchMaker
from murmurate_coordinator.checkpoint import SavedSolver, save
from murmurate_coordinator.checkpointer import CoordinatorKeeper
from murmurate_coordinator.config import CoordinatorConfig
from murmurate_coordinator.figures import Around
from murmurate_coordinator.journal import BYTES_MAX, Journal
from murmurate_coordinator.learned_curves import LearnedCurves
from murmurate_coordinator.names import BATCHES
from murmurate_coordinator.opening import opened
from murmurate_coordinator.own_member import OwnMember
from murmurate_coordinator.pages import ServedModel, coordinator_pages
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.whole_model import WholeModel

LOOK_S = 0.05
REFRESH_S = 2.0
"""Between two looks at what takes time to count: coverage."""
EVALUATE_S = 5.0
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
    began: float | None = None
    """When the first plan was made."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.around = Around()
        self.learned = LearnedCurves()
        self.instance = secrets.token_hex(8)
        self.credentials = own_credentials()
        self.keeper: CoordinatorKeeper | None = None
        self.journal: Journal | None = None
        self.pages: Pages | None = None
        self.own: OwnMember | None = None
        self.samples = config.train.samples
        self._factors = factors(config.train.recipe) if config.train.recipe.changes else None
        """Of the rate, by thousandths of the budget; None: it does not change."""
        self._factor = 1.0
        """What the solver was told."""
        self.before_s = 0.0
        self._loop = asyncio.Runner()
        self._writing: asyncio.Task[bool] | None = None
        self._kept_plan = 0
        self._evaluating: asyncio.Task[None] | None = None
        self._evaluations = EvaluationTimes(config.train.evaluate_s, EVALUATE_S, time.monotonic())
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
        self.centre, self.keeper, self.journal = it.centre, it.keeper, it.journal
        self.before_s = it.before_s
        if it.restored:
            self._say(it.restored)
        self.whole.begin(self.centre.solver, self.samples, opened=program.launcher is None)
        self._loop.run(self._serve())
        return True

    async def _serve(self) -> None:
        it, program = self.config.coordinator, self.program
        self.service = service = CoordinatorService(
            it.listen,
            self.centre,
            describe=self._description,
            stop_run=lambda: program.end_for(STOPPED),  # the word of `murmurate stop`
            credentials=self.credentials,
        )
        self.pages = self._pages()
        self.centre.spent = self._spent(time.monotonic())
        if self._factors is not None:  # before the first push
            self._factor = self._rate_factor()
            self.centre.solver.at_rate(self._factor)
        if self.keeper is not None and not await self._keep(first=True):
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
        asked_s = self.config.train.evaluate_s
        self._evaluations = EvaluationTimes(asked_s, EVALUATE_S, time.monotonic())

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
        if self.began is None and self.centre.solver.leases:
            self.began = now
            self._refresh_at = now  # the first point of all curves
        if (words := self.program.heard_go()) is not None:
            if self.samples is None and words and words[-1].isdecimal():
                self.samples = int(words[-1])  # a budget that was not in the options
            self.service.post(partial(self._go, self.samples))
        if self.program.stop.reason:
            return  # a signal came
        await self._follow_schedule(now)
        if now >= self._refresh_at:
            await self.service.own(self._refresh, now)
            self.served.forget(now)
            self._refresh_at = time.monotonic() + REFRESH_S
        self._keep_when_due(now)
        if not self.whole.evaluates or self.began is None:
            return
        if self._evaluating is None and self._evaluations.due(now):
            self._evaluating = asyncio.create_task(self._evaluate_on_the_way())

    def over(self, now: float) -> str:
        """By the budget, or when there is nothing left to save."""
        if self.samples is not None and self.centre.samples_if_stopped(now) >= self.samples:
            return "samples"
        seconds = self.config.train.seconds
        if seconds is not None and self.trained_s(now) >= seconds:
            return "seconds" if self._loop.run(self._closed()) else ""
        return DIVERGED if self.centre.hopeless else ""

    async def _closed(self) -> bool:
        return await self.service.own(self.centre.solver.close)

    async def _follow_schedule(self, now: float) -> None:
        """Members hear how far the run is; a hub that makes the steps follows by itself."""
        self.centre.spent = self._spent(now)
        factor = self._rate_factor()
        if factor != self._factor:
            self._factor = factor
            await self.service.own(self.centre.solver.at_rate, factor)

    def _spent(self, now: float) -> float:
        """The part of the budget, whichever ends first."""
        seconds, samples = self.config.train.seconds, self.centre.solver.totals.samples
        by_samples = samples / self.samples if self.samples else 0.0
        by_time = self.trained_s(now) / seconds if seconds else 0.0
        return min(1.0, max(by_samples, by_time))

    def _rate_factor(self) -> float:
        return 1.0 if self._factors is None else self._factors[int(self.centre.spent * PARTS)]

    def _go(self, samples: int | None) -> None:
        self.whole.begin(self.centre.solver, samples, opened=True)

    def look(self, now: float) -> None:
        """Nothing: a step is a look."""

    def progress(self, now: float) -> None:
        """Nothing more than the row."""

    def end(self) -> Outcome:
        """The end of the run, or of this process only."""
        reason = self.program.stop.reason
        if self.keeper is not None and stop_goes_on(reason):
            return self._loop.run(self._go_away(self.keeper, reason))
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

    def _keep_when_due(self, now: float) -> None:
        keeper, solver = self.keeper, self.centre.solver
        if keeper is None or self._writing is not None:
            return
        if solver.plan_wants_checkpoint and solver.plan != self._kept_plan:
            keeper.soon()
        if self.journal is not None and self.journal.nbytes > BYTES_MAX:
            keeper.soon()
        if keeper.due(now):
            self._kept_plan = solver.plan
            self._writing = asyncio.create_task(self._keep())

    def _look_after(self) -> None:
        """What went wrong in the background is raised here."""
        if self.service.failed is not None:
            raise self.service.failed
        if self.own is not None:
            self.own.look()
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None
        if self._evaluating is not None and self._evaluating.done():
            self._evaluating.result()
            self._evaluating = None

    def trained_s(self, now: float) -> float:
        return self.before_s + (now - self.began if self.began is not None else 0.0)

    async def _go_away(self, keeper: CoordinatorKeeper, reason: str) -> Outcome:
        """Not the end of the run: nobody is told to stop, and nothing that was taken is lost."""
        service, centre = self.service, self.centre
        wall_s = self.trained_s(time.monotonic())
        self.around.ready = False
        self.around.shares = await service.own(centre.shares)
        self.around.loss = await service.own(lambda: figures.read(centre, self._around()).loss)
        if self.own is not None:  # it cannot outlive this process: its last push comes now
            self.own.dismiss()
            await asyncio.to_thread(self.own.end, OWN_S)
        await service.close()
        for task in (self._writing, self._evaluating):
            if task is not None:
                await task
        kept = await self._keep() or await self._keep()
        if not kept:
            raise CheckpointError(
                f"{keeper.folder.path}: the last checkpoint could not be written: what was pushed"
                " since the one before is lost; members push it again where the rule allows"
            )
        files = self.config.report
        wanted = self.program.events or files.path or files.model
        whole = await self._conclude(wall_s, reason, evaluate=bool(wanted))
        return self._outcome(
            whole,
            f"goes away ({reason}): plan {centre.solver.plan}, {centre.solver.totals.pushes:,}"
            f" pushes are in {keeper.folder.path}; members train on and come back when it is"
            " started again (murmurate stop ends a run)",
        )

    async def _end(self, reason: str) -> Outcome:
        """The last pushes, then what it came to."""
        service, centre = self.service, self.centre
        wall_s = self.trained_s(time.monotonic())
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
        for task in (self._writing, self._evaluating):
            if task is not None:
                await task
        if self.keeper is not None and reason == STOPPED:
            await asyncio.to_thread(self.keeper.mark_ended, reason)
        keep = self.keeper is not None and reason != DIVERGED  # those of before are worth more
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
        if self.began is None or not self.whole.evaluates:
            return {}
        counts = {figures.NAME: sorted(self.centre.staleness.counts().items())}
        return self.learned.told(self.began - self.before_s) | {"staleness_counts": counts}

    async def _conclude(
        self, wall_s: float, reason: str, *, evaluate: bool = True, keep: bool = False
    ) -> report.Json:
        """What it came to: evaluated, kept, written where it was asked for."""
        service = self.service
        await service.own(self._refresh, time.monotonic())
        plain, served = await service.own(self._weights)
        if evaluate and self.whole.evaluates:
            self.around.plain = await asyncio.to_thread(self.whole.evaluated, plain)
            if self.validates:
                await self._evaluate(validation=True)
            await self._evaluate()
        if keep:
            await self._keep()
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

    def _weights(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Copies: as they are, and with zeros where nobody ever trained."""
        solver = self.centre.solver
        plain = {name: value.clone() for name, value in solver.weights.items()}
        if not solver.totals.pushes:
            return plain, plain
        served = {
            name: plain[name] if value is solver.weights[name] else value
            for name, value in solver.for_evaluation().items()
        }
        return plain, served

    def _to_evaluate(self) -> tuple[int, Mapping[str, torch.Tensor]]:
        """Samples and the model they are in."""
        return self.centre.solver.totals.samples, self._weights()[1]

    def _saved(self) -> tuple[SavedSolver, dict[str, torch.Tensor]]:
        saved = save(self.centre.solver)
        if self.journal is not None:
            saved.about["journal"] = self.journal.next_file()
        saved.about["trained_s"] = self.trained_s(time.monotonic())
        saved.about["tallies"] = self.centre.members.memory()
        saved.about["revoked"] = self.centre.late
        return saved, self._weights()[1]

    def _refresh(self, now: float) -> None:
        self.around.coverage = self.centre.solver.coverage()
        kinds: dict[str, int] = {}
        for advice in self.centre.advice(now):
            kinds[advice.kind] = kinds.get(advice.kind, 0) + 1
        self.around.advice = kinds
        if self.began is not None:
            self.learned.curves.note(now, figures.board(self.centre, self.around))

    def _around(self) -> Around:
        around, service, keeper = self.around, self.service, self.keeper
        around.rejected = dict(service.rejections.counted)
        around.bytes_sent = service.server.bytes_sent
        around.bytes_received = service.server.bytes_received
        if keeper is not None:
            age_s = keeper.age_s if math.isfinite(keeper.age_s) else math.nan
            around.keeping = Keeping(age_s=age_s, every_s=keeper.every_s, failures=keeper.failures)
        return around

    def _description(self) -> Any:
        return figures.description(self.centre, self.service.address, self.instance)

    # -- beside it -------------------------------------------------------------------------------

    async def _keep(self, *, first: bool = False) -> bool:
        assert self.keeper is not None
        saved, model = self._saved() if first else await self.service.own(self._saved)
        done = await asyncio.to_thread(self.keeper.put, saved, model)
        if done and first:
            self.centre.solver.kept(saved.about)
        elif done:
            await self.service.own(self.centre.solver.kept, saved.about)
        return done

    @property
    def validates(self) -> bool:
        """Whether what was held out is evaluated on until the end, not the test set."""
        return self.config.train.validation is not None

    async def _evaluate_on_the_way(self) -> None:
        began = time.monotonic()
        await self._evaluate(validation=self.validates)
        self._evaluations.took(began, time.monotonic())

    async def _evaluate(self, *, validation: bool = False) -> None:
        """The model as it is served now, told with the samples that are in it."""
        began = time.monotonic()
        samples, served = await self.service.own(self._to_evaluate)
        found = await asyncio.to_thread(self.whole.evaluated, served, validation=validation)
        if validation:
            self.around.validation = found
        else:
            self.around.evaluation = found
        told = named(found, validation=validation).items()
        known = {key: report.number(each) for key, each in told}
        self.learned.evaluated(began, samples, known)
        self.program.emit("evaluated", at=began, samples=samples, **known)

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
        rows = await self.service.own(figures.rows, self.centre, self.trained_s(time.monotonic()))
        about = {
            "run": self.centre.run,
            "rule": self.centre.solver.rule,
            "at": time.monotonic(),
            "parameters": figures.parameters(self.centre),
        }
        return about | {"coordinator": row, "members": rows, "curves": self.learned.curves.lists()}

    async def _served_weights(self) -> Mapping[str, torch.Tensor]:
        _, served = await self.service.own(self._weights)
        return served

    async def _packed(self) -> bytes:
        return await asyncio.to_thread(self.whole.packed, await self._served_weights())

    def _say(self, text: str) -> None:
        self.program.announce(f"{figures.NAME} {text}")
