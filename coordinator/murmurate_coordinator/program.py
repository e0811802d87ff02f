"""`murmurate coordinator`: deals subnets until the budget is spent, then says what it came to.

A run ends on its budget, or by `murmurate stop`: members push what they have, it is folded in,
evaluated and kept; exit code 0. A first SIGTERM or SIGINT is not the end of the run where there is
a checkpoint folder to come back with: everything that was answered as taken is kept, members train
on and come back. Without a folder nothing could go on, so it ends the run. A second one does not
wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from murmurate.core.figures.curves import Curves
from murmurate.core.figures.sources import Keeping
from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import RULES_OF
from murmurate.edge.net.http import Pages
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.edge.runtime.malloc import keep_memory
from murmurate.errors import CheckpointError
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.roles.evaluating import EvaluationTimes, named
from murmurate.programs.roles.launcher import Launcher
from murmurate.training.signals import Stop, Stopped, stopped_by_signals
from murmurate.watch import report
from murmurate_coordinator import figures
from murmurate_coordinator.checkpoint import SavedSolver, restore, save
from murmurate_coordinator.checkpointer import MODEL, CoordinatorKeeper
from murmurate_coordinator.config import CoordinatorConfig
from murmurate_coordinator.figures import Around
from murmurate_coordinator.journal import BYTES_MAX, Journal, JournaledSolver
from murmurate_coordinator.own_member import OwnMember
from murmurate_coordinator.pages import ServedModel, coordinator_pages
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.protocol import LIFE, Solver
from murmurate_coordinator.solvers.table import new_solver
from murmurate_coordinator.whole_model import WholeModel

LOOK_S = 0.05
TELL_S = 0.25
REFRESH_S = 2.0
"""Between two looks at what takes time to count: coverage."""
EVALUATE_S = 5.0
LAST_S = 15.0
"""For the last pushes."""
OWN_S = 3.0
"""For its own member to end."""
LIVES = 1_000_000
STOPPED = "stopped"
"""By `murmurate stop`."""
DIVERGED = "diverged"
"""The weights are no numbers any more, and never will be."""
FINAL = ("samples", "seconds", STOPPED, DIVERGED)
"""Why a run ends; whatever else ends this process, the run goes on from its checkpoint."""


def run(config: CoordinatorConfig, *, events: bool = False) -> int:
    with stopped_by_signals() as stop:
        launcher = Launcher() if events else None
        with contextlib.suppress(Stopped):  # before there was anything to leave
            asyncio.run(CoordinatorProgram(config, stop, launcher, events).run())
    return 0


def stop_goes_on(reason: str) -> bool:
    """Whether the run goes on when this process ends for that reason."""
    return reason not in FINAL


class CoordinatorProgram:
    """The coordinator around its service. Everything here is on the event loop's thread."""

    def __init__(
        self, config: CoordinatorConfig, stop: Stop, launcher: Launcher | None, events: bool
    ) -> None:
        self.config = config
        self.stop = stop
        self.launcher = launcher
        self.events = events
        self.around = Around()
        self.curves = Curves()
        self.instance = secrets.token_hex(8)
        self.credentials = own_credentials()
        self.keeper: CoordinatorKeeper | None = None
        self.journal: Journal | None = None
        """Mode hub, with a folder: what came since the last checkpoint."""
        self.own: OwnMember | None = None
        self.samples = config.train.samples
        self.before_s = 0.0
        self.began: float | None = None
        """When the first plan was made."""
        self._writing: asyncio.Task[bool] | None = None
        self._kept_plan = 0
        self._evaluating: asyncio.Task[None] | None = None
        self._evaluations = EvaluationTimes(config.train.evaluate_s, EVALUATE_S, time.monotonic())

    async def run(self) -> None:
        keep_memory()
        torch.set_num_threads(self.config.coordinator.threads or torch.get_num_threads())
        self.whole = WholeModel(self.config)
        self.served = ServedModel(self._packed, lambda: self.centre.solver.totals.pushes)
        self.emit("ready", samples=self.whole.workload.samples)
        try:
            self._begin()
            await self._serve()
        finally:
            if self.journal is not None:
                self.journal.close()
            if self.keeper is not None:
                self.keeper.close()

    # -- beginning -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """New, or as the last checkpoint says."""
        it, train, kept = self.config.coordinator, self.config.train, self.config.checkpoint
        rng = np.random.default_rng(it.seed)
        rules = RULES_OF[train.mode]
        settings: dict[str, Any] = {
            "steps": train.every or (1 if rules[train.rule].central else 10),
            "founders": it.founders,
            "mode": train.mode,
            "settings": HubSettings(lr=self.whole.workload.lr, **self.config.hub.given),
        }
        saved: SavedSolver | None = None
        if kept.dir is not None:
            self.keeper = CoordinatorKeeper(
                kept.dir,
                every_s=kept.every_s,
                run=it.run,
                mode=train.mode,
                rule=train.rule,
                structure=structure_digest(self.whole.structure).hex(),
                tied=self.whole.tied,
            )
            saved = self.keeper.restored
            if train.mode == "hub":
                self.journal = Journal(Path(kept.dir), self.whole.structure)
            if (ended := self.keeper.ended) is not None:
                raise CheckpointError(
                    f"{kept.dir}: this run was ended by murmurate stop; its model is"
                    f" {kept.dir}/{MODEL}. To go on remove {ended}, to begin anew give another"
                    " folder"
                )
        now = time.monotonic()
        if saved is None:
            first = secrets.randbelow(LIVES) * LIFE + 1
            solver = new_solver(
                train.rule,
                self.whole.structure,
                self.whole.first_weights,
                rng,
                first_lease=first,
                **settings,
            )
            solver = self._journaled(solver)
            self.centre = Sessions(solver, run=it.run, instance=self.instance, now=now)
            return
        try:
            solver = restore(
                saved, self.whole.structure, rng, replay=self._replay(saved), **settings
            )
            solver = self._journaled(solver)
            self.centre = Sessions(solver, run=it.run, instance=self.instance, now=now)
            self.before_s = float(saved.about["trained_s"])
            self.centre.members.remember(saved.about["tallies"])
            self.centre.late = int(saved.about["revoked"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{kept.dir}: {type(error).__name__}: {error}") from None
        self._say(
            f"goes on from {kept.dir}: plan {solver.plan}, {solver.totals.pushes:,} pushes,"
            f" {len(solver.leases)} leases"
        )

    def _replay(self, saved: SavedSolver) -> Callable[[Solver], object] | None:
        journal = self.journal
        if journal is None:
            return None
        return lambda solver: journal.replay(solver, int(saved.about["journal"]))

    def _journaled(self, solver: Solver) -> Solver:
        journal = self.journal
        return solver if journal is None else cast(Solver, JournaledSolver(solver, journal))

    # -- running ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        it = self.config.coordinator
        self.service = service = CoordinatorService(
            it.listen,
            self.centre,
            describe=self._description,
            stop_run=self._stop_run,
            credentials=self.credentials,
        )
        self.pages = self._pages()
        if self.keeper is not None and not await self._keep(first=True):
            raise CheckpointError(f"{self.config.checkpoint.dir}: cannot be written")
        await service.start()
        try:
            if self.pages is not None:
                await self.pages.start()
            self.stop.training = True
            self.around.ready = True
            page = self.pages.address if self.pages is not None else None
            self.emit("listening", name=figures.NAME, address=service.address, metrics=page)
            more = f", figures at http://{page}/" if page is not None else ""
            self._say(f"listens at {service.address}{more}")
            if it.train:
                self.own = OwnMember(self.config, service.address)
            gc.collect()
            gc.freeze()
            await self._until_stopped()
            if self.keeper is not None and stop_goes_on(self.stop.reason):
                await self._go_away(self.keeper)
            else:
                await self._end()
        finally:
            if self.own is not None:
                await asyncio.to_thread(self.own.end, OWN_S)
            if self.pages is not None:
                await self.pages.stop()
            await service.stop()

    async def _until_stopped(self) -> None:
        stop, train = self.stop, self.config.train
        tell_at = refresh_at = 0.0
        asked_s = self.config.train.evaluate_s
        self._evaluations = EvaluationTimes(asked_s, EVALUATE_S, time.monotonic())
        while not self._over():
            await asyncio.sleep(LOOK_S)
            self._look_after()
            now = time.monotonic()
            if self.began is None and self.centre.solver.leases:
                self.began = now
            if self._over():
                break  # a signal came
            self._hear_launcher()
            if self.samples is not None and self.centre.samples_if_stopped(now) >= self.samples:
                stop.reason = "samples"
            elif train.seconds is not None and self.trained_s(now) >= train.seconds:
                stop.reason = "seconds"
            elif self.centre.hopeless:
                stop.reason = DIVERGED
            elif self.launcher is not None and self.launcher.gone:
                stop.reason = "the launcher is gone"
            if now >= refresh_at:
                await self.service.own(self._refresh, now)
                self.served.forget(now)
                refresh_at = time.monotonic() + REFRESH_S
            if now >= tell_at and self.events:
                await self._tell("progress")
                tell_at = now + TELL_S
            self._keep_when_due(now)
            if self._evaluating is None and self._evaluations.due(now) and self.began is not None:
                self._evaluating = asyncio.create_task(self._evaluate_on_the_way())

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

    def _hear_launcher(self) -> None:
        """A budget that was not in the options comes with go."""
        line = (self.launcher.next() or "") if self.launcher is not None else ""
        words = line.split()
        if self.samples is None and words[:1] == ["go"] and words[-1].isdecimal():
            self.samples = int(words[-1])

    def _stop_run(self) -> None:
        """The word of `murmurate stop`."""
        self.stop.reason = self.stop.reason or STOPPED

    def _over(self) -> bool:
        return bool(self.stop.reason)

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

    async def _go_away(self, keeper: CoordinatorKeeper) -> None:
        """Not the end of the run: nobody is told to stop, and nothing that was taken is lost."""
        service, centre, reason = self.service, self.centre, self.stop.reason
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
        wanted = self.events or self.config.report.path or self.config.report.model
        await self._conclude(wall_s, reason, evaluate=bool(wanted))
        self._say(
            f"goes away ({reason}): plan {centre.solver.plan}, {centre.solver.totals.pushes:,}"
            f" pushes are in {keeper.folder.path}; members train on and come back when it is"
            " started again (murmurate stop ends a run)"
        )

    async def _end(self) -> None:
        """The last pushes, then what it came to."""
        service, centre, reason = self.service, self.centre, self.stop.reason
        wall_s = self.trained_s(time.monotonic())
        self.around.ready = False
        self.around.shares = await service.own(centre.shares)
        self.around.more = await service.own(centre.solver.more)
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
        self._say(
            f"ends ({reason}): {whole['samples']:,} samples in {whole['pushes']:,} pushes,"
            f" {whole['plans']:,} plans{accuracy}"
        )

    async def _conclude(
        self, wall_s: float, reason: str, *, evaluate: bool = True, keep: bool = False
    ) -> report.Json:
        """What it came to: evaluated, kept, written where it was asked for."""
        service, centre = self.service, self.centre
        await service.own(self._refresh, time.monotonic())
        plain, served = await service.own(self._weights)
        if evaluate:
            self.around.plain = await asyncio.to_thread(self.whole.evaluated, plain)
            if self.validates:
                await self._evaluate(validation=True)
            await self._evaluate()
        if keep:
            await self._keep()
        path = self.config.report.model
        if path is not None:
            await asyncio.to_thread(self.whole.put, path, served)
        whole = await service.own(self._report, wall_s, reason)
        if self.config.report.path is not None:
            text = json.dumps(whole, indent=2) + "\n"
            Path(self.config.report.path).write_text(text, encoding="utf-8")
        await self._tell("done", settled=not centre.awaited, reason=reason, report=whole)
        return whole

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
            self.curves.note(now, figures.board(self.centre, self.around))

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
        return await asyncio.to_thread(self.keeper.put, saved, model)

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
        self.emit("evaluated", at=began, samples=samples, **known)

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
        row = await self.service.own(lambda: figures.row(self.centre, self._around()))
        rows = await self.service.own(figures.rows, self.centre, self.trained_s(time.monotonic()))
        about = {
            "run": self.centre.run,
            "rule": self.centre.solver.rule,
            "at": time.monotonic(),
            "parameters": figures.parameters(self.centre),
        }
        return about | {"coordinator": row, "members": rows, "curves": self.curves.lists()}

    async def _served_weights(self) -> Mapping[str, torch.Tensor]:
        _, served = await self.service.own(self._weights)
        return served

    async def _packed(self) -> bytes:
        return await asyncio.to_thread(self.whole.packed, await self._served_weights())

    async def _tell(self, event: str, **more: Any) -> None:
        if self.events:
            row = await self.service.own(lambda: figures.row(self.centre, self._around()))
            self.emit(event, at=time.monotonic(), node=row, known={}, **more)

    def emit(self, event: str, **more: Any) -> None:
        """One line of JSON for whoever started this."""
        if not self.events:
            return
        try:
            sys.stdout.write(json.dumps({"event": event, **more}, separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.stop.reason = self.stop.reason or "the launcher is gone"

    def _say(self, text: str) -> None:
        if not self.events:
            print(f"{figures.NAME} {text}", file=sys.stderr, flush=True)
