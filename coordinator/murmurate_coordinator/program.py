"""`murmurate coordinator`: deals subnets until the budget is spent, then says what it came to.

A first SIGTERM or SIGINT ends it like the budget does: members push what they have, it is folded
in, evaluated and kept; exit code 0. A second one does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import math
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from murmurate import report, workloads
from murmurate.core.partition.analysis import analyse
from murmurate.core.partition.subnet import load as load_into
from murmurate.core.partition.subnet import weights_of
from murmurate.errors import CheckpointError, ConfigError
from murmurate.io.coordinator_values import structure_digest
from murmurate.io.http import Page, Pages
from murmurate.io.malloc import keep_memory
from murmurate.io.metrics import exposition
from murmurate.partition import example_of
from murmurate.program import _Launcher as Launcher
from murmurate.program import _signals as signals
from murmurate.program import _Stop as Stop
from murmurate.program import _Stopped as Stopped
from murmurate.watch.curves import Curves
from murmurate.watch.html import HTML, html
from murmurate.workloads import Evaluation
from murmurate_coordinator import figures
from murmurate_coordinator.centre import Centre
from murmurate_coordinator.config import Config
from murmurate_coordinator.figures import Around
from murmurate_coordinator.keeper import Keeper, tied_names, write_model
from murmurate_coordinator.own import Own
from murmurate_coordinator.rules import Partitioner
from murmurate_coordinator.saved import LIFE, Saved, restore, save
from murmurate_coordinator.service import CoordinatorService

LOOK_S = 0.05
TELL_S = 0.25
REFRESH_S = 2.0
"""Between two looks at what takes time to count: coverage."""
EVALUATE_S, EVALUATE_SHARE = 5.0, 0.05
LAST_S = 15.0
"""For the last pushes."""
OWN_S = 3.0
"""For its own member to end."""
CACHE_S = 5.0
"""A model that is fetched is made at most so often."""
LIVES = 1_000_000


def run(config: Config, *, events: bool = False) -> int:
    with signals() as stop:
        launcher = Launcher() if events else None
        with contextlib.suppress(Stopped):  # before there was anything to leave
            asyncio.run(Program(config, stop, launcher, events).run())
    return 0


class Program:
    """The coordinator around its service. Everything here is on the event loop's thread."""

    def __init__(self, config: Config, stop: Stop, launcher: Launcher | None, events: bool) -> None:
        self.config = config
        self.stop = stop
        self.launcher = launcher
        self.events = events
        self.around = Around()
        self.curves = Curves()
        self.instance = secrets.token_hex(8)
        self.keeper: Keeper | None = None
        self.own: Own | None = None
        self.samples = config.train.samples
        self.before_s = 0.0
        self.began: float | None = None
        """When the first plan was made."""
        self._writing: asyncio.Task[bool] | None = None
        self._kept_plan = 0
        self._evaluating: asyncio.Task[None] | None = None
        self._evaluate_at = 0.0
        self._cache: tuple[float, int, bytes] | None = None
        self._caching = asyncio.Lock()

    async def run(self) -> None:
        keep_memory()
        torch.set_num_threads(self.config.coordinator.threads or torch.get_num_threads())
        self._load()
        self.emit("ready", samples=self.workload.samples)
        try:
            self._begin()
            await self._serve()
        finally:
            if self.keeper is not None:
                self.keeper.close()

    # -- beginning -------------------------------------------------------------------------------

    def _load(self) -> None:
        """The model, and what can be dealt of it."""
        it, train = self.config.coordinator, self.config.train
        self.workload = workloads.load(
            train.workload, data=train.data, batch_size=train.batch_size, lr=train.lr
        )
        torch.manual_seed(it.seed)
        self.model = self.workload.model()
        self.structure = analyse(self.model, example_of(self.workload, self.model))
        if not self.structure.groups:
            why = "; ".join(f"{name}: {text}" for name, text in self.structure.reasons.items())
            raise ConfigError(f"workload {train.workload}: none of its axes can be split ({why})")
        self.tied = tied_names(self.model)

    def _begin(self) -> None:
        """New, or as the last checkpoint says."""
        it, train, kept = self.config.coordinator, self.config.train, self.config.checkpoint
        rng = np.random.default_rng(it.seed)
        settings: dict[str, Any] = {"steps": train.every, "founders": it.founders}
        saved: Saved | None = None
        if kept.dir is not None:
            self.keeper = Keeper(
                kept.dir,
                every_s=kept.every_s,
                run=it.run,
                rule=train.rule,
                structure=structure_digest(self.structure).hex(),
                tied=self.tied,
            )
            saved = self.keeper.restored
        now = time.monotonic()
        if saved is None:
            first = secrets.randbelow(LIVES) * LIFE + 1
            rules = Partitioner(
                self.structure,
                weights_of(self.model),
                train.rule,
                rng,
                first_lease=first,
                **settings,
            )
            self.centre = Centre(rules, run=it.run, instance=self.instance, now=now)
            return
        try:
            rules = restore(saved, self.structure, rng, **settings)
            self.centre = Centre(rules, run=it.run, instance=self.instance, now=now)
            self.before_s = float(saved.about["trained_s"])
            self.centre.roll.remember(saved.about["tallies"])
            self.centre.late = int(saved.about["revoked"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{kept.dir}: {type(error).__name__}: {error}") from None
        self._say(
            f"goes on from {kept.dir}: plan {rules.plan}, {rules.totals.pushes:,} pushes,"
            f" {len(rules.leases)} leases"
        )

    # -- running ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        it = self.config.coordinator
        self.service = service = CoordinatorService(
            it.listen, self.centre, describe=self._description
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
                self.own = Own(self.config, service.address)
            gc.collect()
            gc.freeze()
            await self._until_stopped()
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
        self._evaluate_at = time.monotonic() + EVALUATE_S
        while not self._over():
            await asyncio.sleep(LOOK_S)
            self._look_after()
            now = time.monotonic()
            totals = self.centre.rules.totals
            if self.began is None and self.centre.rules.leases:
                self.began = now
            if self._over():
                break  # a signal came
            self._hear_launcher()
            if self.samples is not None and totals.samples >= self.samples:
                stop.reason = "samples"
            elif train.seconds is not None and self.trained_s(now) >= train.seconds:
                stop.reason = "seconds"
            elif self.launcher is not None and self.launcher.gone:
                stop.reason = "the launcher is gone"
            if now >= refresh_at:
                await self.service.own(self._refresh, now)
                if self._cache is not None and now > self._cache[0] + CACHE_S:
                    self._cache = None  # nobody fetches it: it is as large as the model
                refresh_at = time.monotonic() + REFRESH_S
            if now >= tell_at and self.events:
                await self._tell("progress")
                tell_at = now + TELL_S
            self._keep_when_due(now)
            if self._evaluating is None and now >= self._evaluate_at and self.began is not None:
                self._evaluating = asyncio.create_task(self._evaluate(now))

    def _keep_when_due(self, now: float) -> None:
        keeper, rules = self.keeper, self.centre.rules
        if keeper is None or self._writing is not None:
            return
        if rules.rule == "async" and rules.plan != self._kept_plan:
            keeper.soon()  # units that moved after the checkpoint would be given back
        if keeper.due(now):
            self._kept_plan = rules.plan
            self._writing = asyncio.create_task(self._keep())

    def _hear_launcher(self) -> None:
        """A budget that was not in the options comes with go."""
        line = (self.launcher.next() or "") if self.launcher is not None else ""
        words = line.split()
        if self.samples is None and words[:1] == ["go"] and words[-1].isdecimal():
            self.samples = int(words[-1])

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

    async def _end(self) -> None:
        """The last pushes, then what it came to."""
        service, centre, reason = self.service, self.centre, self.stop.reason
        wall_s = self.trained_s(time.monotonic())
        self.around.ready = False
        self.around.shares = await service.own(centre.shares)
        await service.own(centre.stop, reason)
        until = time.monotonic() + LAST_S
        while centre.awaited and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            if service.failed is not None:
                raise service.failed
        for task in (self._writing, self._evaluating):
            if task is not None:
                await task
        await service.own(self._refresh, time.monotonic())
        plain, served = await service.own(self._weights)
        self.around.plain = await asyncio.to_thread(self._evaluated, plain)
        self.around.evaluation = await asyncio.to_thread(self._evaluated, served)
        if self.keeper is not None:
            await self._keep()
        path = self.config.report.model
        if path is not None:
            await asyncio.to_thread(self._put_model, path, served)
        whole = await service.own(self._report, wall_s, reason)
        if self.config.report.path is not None:
            text = json.dumps(whole, indent=2) + "\n"
            Path(self.config.report.path).write_text(text, encoding="utf-8")
        await self._tell("done", settled=not centre.awaited, reason=reason, report=whole)
        own = whole["nodes"][0]
        accuracy = "" if own["accuracy"] is None else f", accuracy {own['accuracy']:.1%}"
        self._say(
            f"ends ({reason}): {whole['samples']:,} samples in {whole['pushes']:,} pushes,"
            f" {whole['plans']:,} plans{accuracy}"
        )

    def _report(self, wall_s: float, reason: str) -> report.Json:
        return figures.whole(
            self.centre,
            self._around(),
            workload=self.config.train.workload,
            seed=self.config.coordinator.seed,
            wall_s=wall_s,
            reason=reason,
        )

    def _put_model(self, path: str, model: Mapping[str, torch.Tensor]) -> None:
        with Path(path).open("wb") as file:
            write_model(file, model, self.tied, self.config.coordinator.run)

    # -- in the owner's thread -------------------------------------------------------------------

    def _weights(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Copies: as they are, and with zeros where nobody ever trained."""
        rules = self.centre.rules
        plain = {name: value.clone() for name, value in rules.weights.items()}
        if not rules.totals.pushes:
            return plain, plain
        served = {
            name: plain[name] if value is rules.weights[name] else value
            for name, value in rules.for_evaluation().items()
        }
        return plain, served

    def _saved(self) -> tuple[Saved, dict[str, torch.Tensor]]:
        saved = save(self.centre.rules)
        saved.about["trained_s"] = self.trained_s(time.monotonic())
        saved.about["tallies"] = self.centre.roll.memory()
        saved.about["revoked"] = self.centre.late
        return saved, self._weights()[1]

    def _refresh(self, now: float) -> None:
        self.around.coverage = self.centre.rules.coverage()
        kinds: dict[str, int] = {}
        for advice in self.centre.advice(now):
            kinds[advice.kind] = kinds.get(advice.kind, 0) + 1
        self.around.advice = kinds
        if self.began is not None:
            self.curves.note(now, figures.board(self.centre, self.around))

    def _around(self) -> Around:
        around, service, keeper = self.around, self.service, self.keeper
        around.rejected = dict(service.rejected)
        around.bytes_sent, around.bytes_received = service.bytes_sent, service.bytes_received
        if keeper is not None:
            around.checkpoint_age_s = keeper.age_s if math.isfinite(keeper.age_s) else math.nan
            around.checkpoint_every_s = keeper.every_s
            around.checkpoint_failures = keeper.failures
        return around

    def _description(self) -> Any:
        return figures.description(self.centre, self.service.address, self.instance)

    def _reading(self) -> figures.Reading:
        return figures.read(self.centre, self._around())

    # -- beside it -------------------------------------------------------------------------------

    async def _keep(self, *, first: bool = False) -> bool:
        assert self.keeper is not None
        saved, model = self._saved() if first else await self.service.own(self._saved)
        return await asyncio.to_thread(self.keeper.put, saved, model)

    async def _evaluate(self, began: float) -> None:
        _, served = await self.service.own(self._weights)
        self.around.evaluation = await asyncio.to_thread(self._evaluated, served)
        spent_s = time.monotonic() - began
        self._evaluate_at = began + max(EVALUATE_S, spent_s / EVALUATE_SHARE)

    def _evaluated(self, weights: Mapping[str, torch.Tensor]) -> Evaluation:
        load_into(self.model, weights)
        return self.workload.evaluate(self.model)

    # -- telling ---------------------------------------------------------------------------------

    def _pages(self) -> Pages | None:
        listen = self.config.metrics.listen
        if listen is None:
            return None

        page = html("murmurate_coordinator")

        async def metrics(accept: str) -> Page:
            reading = await self.service.own(self._reading)
            body, kind = exposition(lambda: reading, figures.FAMILIES)(accept)
            return Page(body, kind)

        def livez(_: Mapping[str, str]) -> Page:
            if self.service.failed is not None:
                return Page(b"failed; see the log\n", status=503)
            return Page(b"ok\n")

        def readyz(_: Mapping[str, str]) -> Page:
            return Page(b"ok\n") if self.around.ready else Page(b"it ends\n", status=503)

        return Pages(
            listen,
            {
                "/": lambda _: Page(page, HTML),
                "/metrics": lambda headers: metrics(headers.get("accept", "")),
                "/livez": livez,
                "/readyz": readyz,
                "/coordinator.json": lambda _: self._json(),
                "/model.safetensors": lambda _: self._fetched(),
            },
        )

    async def _json(self) -> Page:
        row = await self.service.own(lambda: figures.row(self.centre, self._around()))
        rows = await self.service.own(figures.rows, self.centre, self.trained_s(time.monotonic()))
        about = {
            "run": self.centre.run,
            "rule": self.centre.rules.rule,
            "at": time.monotonic(),
            "parameters": figures.parameters(self.centre),
        }
        told = about | {"coordinator": row, "members": rows, "curves": self.curves.lists()}
        body = json.dumps(told, allow_nan=False).encode()
        return Page(body, "application/json")

    async def _fetched(self) -> Page:
        """The model as it is now, give or take a few seconds."""
        async with self._caching:
            pushes = self.centre.rules.totals.pushes
            if self._cache is not None:
                at, then, body = self._cache
                if then == pushes or time.monotonic() < at + CACHE_S:
                    return Page(body, "application/octet-stream")
            _, served = await self.service.own(self._weights)
            body = await asyncio.to_thread(self._packed, served)
            self._cache = (time.monotonic(), pushes, body)
            return Page(body, "application/octet-stream")

    def _packed(self, model: Mapping[str, torch.Tensor]) -> bytes:
        file = io.BytesIO()
        write_model(file, model, self.tied, self.config.coordinator.run)
        return file.getvalue()

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
