"""`murmurate node` with `role = "generator"`: makes batches and deals them to the peers of a run.

It needs the workload's data and no model. It ends when every batch of its budget is in an update
that all have; what that comes to, each peer is told (`End`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from murmurate.core.batches.dealer import Totals
from murmurate.errors import ConfigError
from murmurate.programs.keys.table import Config
from murmurate.watch import report

if TYPE_CHECKING:
    import torch

    from murmurate.edge.net.generator_service import GeneratorService
    from murmurate.edge.net.generator_watch import Watch
    from murmurate.workloads import Workload

LOOK_S = 1.0
"""Between two looks at the swarm; when all is dealt, SOON_S."""
SOON_S = 0.2
TELL_S = 0.25
WAIT_S = 0.02
LINGER_S = 15.0
"""At the end, for peers that have not closed their streams."""
QUIET_S = 1.0
"""… and for one whose stream broke just then."""
MAKE_S = 0.02
"""Batches are made in a thread, for about this long at a time."""
GATE_S = 120.0
NAME = "generator"


class GeneratorProgram(Protocol):
    """The node program around it (`program._Node`)."""

    config: Config
    stop: Any
    launcher: Any

    def emit(self, event: str, **more: Any) -> None: ...


def serve(program: GeneratorProgram) -> None:
    """Deal until everything is consumed, or somebody says stop."""
    asyncio.run(_Generator(program).run())


class _Generator:
    def __init__(self, program: GeneratorProgram) -> None:
        self.program = program
        self.config = program.config
        self.name = self.config.node.name or NAME
        self.service: GeneratorService
        self.watch: Watch
        self.samples = self.config.train.samples
        self._tensors: Any = ()

    async def run(self) -> None:
        from murmurate.edge.net.generator_batch import pack, shape_of
        from murmurate.edge.net.generator_service import GeneratorService
        from murmurate.edge.net.generator_watch import Watch
        from murmurate.programs.keys.credentials import own_credentials

        node, train, credentials = self.config.node, self.config.train, own_credentials()
        workload, batches = self._load()
        first = next(batches)
        self._tensors = shape_of(first)
        self.program.emit("ready", samples=workload.samples)
        if self.program.launcher is not None and self.program.launcher.line() is None:
            return
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
        self.program.stop.training = True
        self.program.emit("listening", name=self.name, address=service.address)
        print(f"{self.name} deals at {service.address}", file=sys.stderr, flush=True)
        try:
            if await self._may_open():
                total = None if self.samples is None else -(-self.samples // workload.batch_size)
                service.open(total)
                service.put(pack(first))
                await self._deal(batches, train.seconds)
            self._tell("done", settled=True, reason=self.program.stop.reason)
            self._report()
        finally:
            await service.stop()

    def _load(self) -> tuple[Workload, Iterator[tuple[torch.Tensor, ...]]]:
        import torch

        from murmurate import workloads

        node, train = self.config.node, self.config.train
        torch.set_num_threads(node.threads or 1)
        workload = workloads.load(
            train.workload,
            data=train.data,
            batch_size=train.batch_size,
            lr=train.lr,
            validation=train.validation,
            seed=node.seed,
        )
        torch.manual_seed(node.seed)
        share = workloads.DataShare(
            0, 1, workloads.parse_split("none"), node.seed, workload.batch_size
        )
        return workload, workload.batches(share)

    async def _may_open(self) -> bool:
        """With a launcher: wait until it says go, with the budget."""
        launcher, stop = self.program.launcher, self.program.stop
        until = time.monotonic() + GATE_S
        while launcher is not None and not stop.reason:
            line = launcher.next() or ""
            if line.startswith("go"):
                words = line.split()
                if len(words) > 1 and words[1].isdecimal():
                    self.samples = int(words[1])
                break
            if launcher.gone or time.monotonic() > until:
                stop.reason = "no go from the launcher"
            await asyncio.sleep(WAIT_S)
        return not stop.reason

    # -- dealing ---------------------------------------------------------------------------------

    async def _deal(
        self, batches: Iterator[tuple[torch.Tensor, ...]], seconds: float | None
    ) -> None:
        service, stop = self.service, self.program.stop
        dealer = service.dealer
        assert dealer is not None
        tasks = [asyncio.create_task(self._make(batches)), asyncio.create_task(self._look())]
        began = time.monotonic()
        tell_at = quiet_since = began
        over_at: float | None = None
        try:
            while not stop.reason:
                await asyncio.sleep(WAIT_S)
                for task in tasks:
                    if task.done():
                        task.result()
                now = time.monotonic()
                if seconds is not None and now - began >= seconds:
                    service.close()
                if self.program.launcher is not None and self.program.launcher.gone:
                    stop.reason = "the launcher is gone"
                if now >= tell_at:
                    self._tell("progress")
                    tell_at = now + TELL_S
                if dealer.over:
                    over_at = over_at or now
                    quiet_since = now if service.peers else quiet_since
                    if now > over_at + LINGER_S or now > max(over_at, quiet_since) + QUIET_S:
                        stop.reason = "all consumed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, batches: Iterator[tuple[torch.Tensor, ...]]) -> None:
        """Keep some in stock."""
        service = self.service
        while service.left != 0:
            await service.wanted.wait()
            for raw in await asyncio.to_thread(self._some, batches, service.left):
                service.put(raw)

    def _some(self, batches: Iterator[tuple[torch.Tensor, ...]], most: int | None) -> list[bytes]:
        from murmurate.edge.net.generator_batch import pack, shape_of

        made: list[bytes] = []
        until = time.monotonic() + MAKE_S
        while (most is None or len(made) < most) and (not made or time.monotonic() < until):
            batch = next(batches)
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
        dealer = self.service.dealer
        return report.empty_row(self.name) | {
            "role": "generator",
            "rejected": dict(self.service.rejections.counted),
            "bytes_sent": self.service.server.bytes_sent,
            "bytes_received": self.service.server.bytes_received,
            "totals": asdict(dealer.totals if dealer is not None else Totals()),
        }

    def _tell(self, event: str, **more: object) -> None:
        self.program.emit(event, at=time.monotonic(), node=self.row(), known={}, **more)

    def _report(self) -> None:
        import json

        row = self.row()
        if self.config.report.path is not None:
            text = json.dumps(row, indent=2) + "\n"
            Path(self.config.report.path).write_text(text, encoding="utf-8")
        totals = row["totals"]
        print(
            f"{self.name} ends ({self.program.stop.reason}): {totals['consumed']:,} of"
            f" {totals['batches']:,} batches consumed, {totals['dealt_again']} dealt again,"
            f" {totals['repeated']} in two updates",
            file=sys.stderr,
            flush=True,
        )
