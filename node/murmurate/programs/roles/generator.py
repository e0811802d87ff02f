"""`murmurate node` with `role = "generator"`: makes batches and deals them to the peers of a run.

It needs the workload's data and no model. It ends when every batch of its budget is in an update
that all have; what that comes to, each peer is told (`End`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from murmurate.core.batches.dealer import Totals
from murmurate.errors import ConfigError
from murmurate.programs.keys.table import Config
from murmurate.programs.roles.loading import workload_of
from murmurate.programs.run import GATE_S, Outcome, Program
from murmurate.watch import report

if TYPE_CHECKING:
    import torch

    from murmurate.edge.net.generator_service import GeneratorService
    from murmurate.edge.net.generator_watch import Watch
    from murmurate.workloads import Workload

LOOK_S = 1.0
"""Between two looks at the swarm; when all is dealt, SOON_S."""
SOON_S = 0.2
WAIT_S = 0.02
LINGER_S = 15.0
"""At the end, for peers that have not closed their streams."""
QUIET_S = 1.0
"""… and for one whose stream broke just then."""
MAKE_S = 0.02
"""Batches are made in a thread, for about this long at a time."""
NAME = "generator"


class GeneratorRole:
    """Who deals batches. Everything here is on the loop's thread, which runs while a step does."""

    program: Program
    service: GeneratorService
    watch: Watch
    batches: Iterator[tuple[torch.Tensor, ...]]

    def __init__(self, config: Config) -> None:
        self.config = config
        self.name = config.node.name or NAME
        self.samples = config.train.samples
        self.began = 0.0
        self._loop = asyncio.Runner()
        self._tasks: list[asyncio.Task[None]] = []
        self._tensors: Any = ()
        self._over_at: float | None = None
        self._quiet_since = 0.0

    def open(self, program: Program) -> bool:
        """Load the data, listen, wait for go."""
        self.program = program
        program.stack.callback(self._loop.close)
        return self._loop.run(self._open())

    async def _open(self) -> bool:
        from murmurate.edge.net.generator_batch import pack, shape_of
        from murmurate.edge.net.generator_service import GeneratorService
        from murmurate.edge.net.generator_watch import Watch
        from murmurate.programs.keys.credentials import own_credentials

        program, node, credentials = self.program, self.config.node, own_credentials()
        workload, self.batches = self._load()
        first = next(self.batches)
        self._tensors = shape_of(first)
        program.emit("ready", samples=workload.samples)
        if program.first_line("") is None:
            return False
        self.service = service = GeneratorService(
            node.listen,
            advertise=node.advertise,
            run=node.run,
            samples=workload.batch_size,
            tensors=self._tensors,
            credentials=credentials,
        )
        self.watch = Watch(node.run, service.limits, credentials)
        service.on_peer = self.watch.meet
        await service.start()
        program.stack.callback(lambda: self._loop.run(self._close()))
        program.stop.training = True
        program.listens(self.name, service.address, None)
        program.say(f"{self.name} deals at {service.address}")
        if await self._may_open():
            total = None if self.samples is None else -(-self.samples // workload.batch_size)
            service.open(total)
            service.put(pack(first))
            self._tasks = [asyncio.create_task(each) for each in (self._make(), self._look())]
        self.began = self._quiet_since = time.monotonic()
        return True

    def _load(self) -> tuple[Workload, Iterator[tuple[torch.Tensor, ...]]]:
        import torch

        from murmurate import workloads

        node = self.config.node
        torch.set_num_threads(node.threads or 1)
        workload = workload_of(self.config.train, node.seed)
        torch.manual_seed(node.seed)
        share = workloads.DataShare(
            0, 1, workloads.parse_split("none"), node.seed, workload.batch_size
        )
        return workload, workload.batches(share)

    async def _may_open(self) -> bool:
        """With a launcher: wait until it says go, with the budget."""
        program = self.program
        until = time.monotonic() + GATE_S
        while program.launcher is not None and not program.stop.reason:
            if (words := program.heard_go()) is not None:
                if words and words[0].isdecimal():
                    self.samples = int(words[0])
                break
            if program.abandoned or time.monotonic() > until:
                program.end_for("no go from the launcher")
            await asyncio.sleep(WAIT_S)
        return not program.stop.reason

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.stop()

    # -- dealing ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Let the loop run; what went wrong there is raised here."""
        self._loop.run(asyncio.sleep(WAIT_S))
        for task in self._tasks:
            if task.done():
                task.result()

    def over(self, now: float) -> str:
        """When all is consumed, and nobody is heard of any more."""
        service, seconds = self.service, self.config.train.seconds
        if seconds is not None and now - self.began >= seconds:
            service.close()
        if service.dealer is None or not service.dealer.over:
            return ""
        self._over_at = self._over_at or now
        self._quiet_since = now if service.peers else self._quiet_since
        quiet = now > max(self._over_at, self._quiet_since) + QUIET_S
        return "all consumed" if quiet or now > self._over_at + LINGER_S else ""

    def look(self, now: float) -> None:
        """Nothing: the tasks look for themselves."""

    def progress(self, now: float) -> None:
        """Nothing more than the row."""

    async def _make(self) -> None:
        """Keep some in stock."""
        service = self.service
        while service.left != 0:
            await service.wanted.wait()
            for raw in await asyncio.to_thread(self._some, service.left):
                service.put(raw)

    def _some(self, most: int | None) -> list[bytes]:
        from murmurate.edge.net.generator_batch import pack, shape_of

        made: list[bytes] = []
        until = time.monotonic() + MAKE_S
        while (most is None or len(made) < most) and (not made or time.monotonic() < until):
            batch = next(self.batches)
            if (shape := shape_of(batch)) != self._tensors:
                was, now = (" ".join(map(str, each)) for each in (self._tensors, shape))
                raise ConfigError(f"workload: a batch of {now} after one of {was}")
            made.append(pack(batch))
            if len(made) == 8:
                break
        return made

    async def _look(self) -> None:
        """Find out which batches are done, and which must be dealt again."""
        service = self.service
        while True:
            dealer = service.dealer
            assert dealer is not None
            await asyncio.sleep(SOON_S if dealer.idle or service.full else LOOK_S)
            if service.swarm and not dealer.over:
                service.settle(await self.watch.look(service.swarm))

    # -- telling ---------------------------------------------------------------------------------

    def row(self) -> report.Json:
        """As the report has it."""
        dealer = self.service.dealer
        return report.empty_row(self.name) | {
            "role": "generator",
            "rejected": dict(self.service.rejections.counted),
            "bytes_sent": self.service.server.bytes_sent,
            "bytes_received": self.service.server.bytes_received,
            "totals": asdict(dealer.totals if dealer is not None else Totals()),
        }

    def details(self, event: str) -> report.Json:
        """It has no updates."""
        return {"known": {}}

    def end(self) -> Outcome:
        """All is told; the streams end with the program."""
        row = self.row()
        totals = row["totals"]
        self.program.say(
            f"{self.name} ends ({self.program.stop.reason}): {totals['consumed']:,} of"
            f" {totals['batches']:,} batches consumed, {totals['dealt_again']} dealt again,"
            f" {totals['repeated']} in two updates"
        )
        return Outcome(settled=True, report=row, sentence="")

    def leave(self, outcome: Outcome) -> None:
        """There is nothing to say."""
