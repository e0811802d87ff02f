"""`murmurate node --mode ist` or `hub`: trains for a coordinator until it says stop.

Mode ist: the whole model is never here; it is made on the meta device, which has shapes and no
values. Mode hub: it is, and its weights are the hub's.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from murmurate.core.figures.training_loss import TrainingLoss
from murmurate.core.values.member_half import HUB_RULES
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import Config
from murmurate.programs.roles.progress_lines import ProgressLines, line
from murmurate.programs.roles.rounds import OVER, all_there_was, rounds
from murmurate.programs.roles.slowed import SlowedSteps
from murmurate.programs.roles.threads import ThreadShare
from murmurate.watch import report

if TYPE_CHECKING:
    import torch

    from murmurate.training.member import Member
    from murmurate.workloads import Workload

LOOK_S = 0.02
"""Between two looks at the launcher and the time."""
TELL_S = 0.25
NAP_S = 0.1
LEAVE_S = 3.0


class SubnetMemberProgram(Protocol):
    """The node program around it (`program._Node`)."""

    config: Config
    stop: Any
    launcher: Any
    events: bool

    def emit(self, event: str, **more: Any) -> None: ...


def train(program: SubnetMemberProgram) -> None:
    """Until the coordinator, the time or a signal ends it."""
    _Subnets(program).run()


class _Subnets:
    def __init__(self, program: SubnetMemberProgram) -> None:
        self.program = program
        self.config = program.config
        self.stop = program.stop
        self.launcher = program.launcher
        self.member: Member | None = None
        self.loss = TrainingLoss()
        self.began = time.monotonic()
        self.tell_at = 0.0
        self.lines = ProgressLines(self._say, shown=not program.events)
        self.threads: ThreadShare

    def run(self) -> None:
        import torch

        from murmurate import workloads
        from murmurate.errors import PeerUnavailable
        from murmurate.programs.cli.partition import example_of
        from murmurate.training.member import Member

        node, train, ist = self.config.node, self.config.train, self.config.ist
        self.threads = ThreadShare(node.threads, self._say)
        self.threads.look(time.monotonic())
        workload = workloads.load(
            train.workload,
            data=train.data,
            batch_size=train.batch_size,
            lr=train.lr,
            validation=train.validation,
            seed=node.seed,
            recipe=train.recipe,
        )
        share = workloads.DataShare(
            train.shard.index,
            train.shard.count,
            workloads.parse_split(train.split),
            node.seed,
            workload.batch_size,
        )
        ours = train.mode == "hub"
        model = workload.model() if ours else _hollow(workload)
        optimizer = workload.optimizer(model)
        example = None if ours else example_of(workload, model)
        batches = rounds(workload, share, self._say, again=lambda: True)
        torch.manual_seed((node.seed << 20) + train.shard.index)  # dropout: to each its own
        self.program.emit("ready", samples=workload.samples)
        coordinator = ist.coordinator
        if self.launcher is not None:
            line = self.launcher.line()
            if line is None:
                return
            coordinator = line.strip() if coordinator == STDIN else coordinator
        assert coordinator is not None
        self.stop.training = True
        try:
            member = Member(
                model,
                optimizer,
                run=node.run,
                coordinator=coordinator,
                name=node.name,
                width=ist.width,
                memory_bytes=ist.memory,
                example=example,
                metrics=self.config.metrics.listen,
                idle=self._idle,
                mode=train.mode,
                credentials=own_credentials(),
            )
        except PeerUnavailable:
            if self.stop.reason:
                return  # told to stop before there was anything to train
            raise
        with member:
            self.member = member
            page = member.metrics_address
            self.program.emit("listening", name=member.name, address="", metrics=page)
            if not self.program.events:
                more = f", figures at http://{page}/metrics" if page is not None else ""
                what = f"by rule {member.rule}" if ours else f"{member.share:.1%} of the model"
                self._say(f"{member.name} trains {what}{more}")
            gc.collect()
            gc.freeze()
            gc.enable()
            self.began = time.monotonic()
            self._train(member, workload, optimizer, batches)
            self._end(member)

    def _train(
        self,
        member: Member,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[tuple[torch.Tensor, ...]],
    ) -> None:
        """An ordinary loop; the value of a loss is looked at only now and then."""
        train, seed = self.config.train, self.config.node.seed
        slowed = SlowedSteps(train.slow_s, seed, member.name, self._sleep)
        look_at = 0.0
        # The gradient of each step goes to the hub, and its loss with it: nothing is fetched early.
        told = train.mode == "hub" and HUB_RULES[member.rule].central
        while not self.stop.reason:
            if (batch := next(batches, None)) is None:
                self.stop.reason = self.stop.reason or OVER
                self._say(all_there_was(member.samples, None))
                break
            optimizer.zero_grad()
            loss = workload.loss(member.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            if told:
                member.log(loss=float(loss.detach()))
            optimizer.step()
            self.loss.add(loss)
            slowed.stepped()
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_S
                self._idle()

    def _idle(self) -> bool:
        """Now and then, also while there is nothing to train: whether to stop."""
        now, member, stop = time.monotonic(), self.member, self.stop
        seconds = self.config.train.seconds
        if stop.reason:
            return True
        if member is not None:
            if member.stopped:
                stop.reason = f"coordinator: {member.stopped}"
            elif seconds is not None and now - self.began >= seconds:
                stop.reason = "seconds"
            elif now >= self.tell_at:
                self.tell_at = (now // TELL_S + 1) * TELL_S
                self.threads.look(now)
                member.log(loss=self.loss.mean())
                self._tell("progress", member)
                if self.lines.due(now):
                    self._say(_line(member))
        if self.launcher is not None and self.launcher.gone:
            stop.reason = stop.reason or "the launcher is gone"
        return bool(stop.reason)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.stop.reason:
            time.sleep(min(left, NAP_S))

    def _end(self, member: Member) -> None:
        member.log(loss=self.loss.mean())
        self._tell("progress", member)
        settled = bool(member.stopped) or member.settle(LEAVE_S)
        self._tell("done", member, settled=settled, reason=self.stop.reason)
        row = _row(member)
        if self.config.report.path is not None:
            Path(self.config.report.path).write_text(
                json.dumps(row, indent=2) + "\n", encoding="utf-8"
            )
        if not self.program.events:
            self._say(
                f"{row['name']} ends ({self.stop.reason}): {row['samples']:,} samples,"
                f" {row['updates_applied']:,} pushes, {row['steps_lost']:,} of {row['steps']:,}"
                " steps lost"
            )
        member.leave(0.0 if not settled else LEAVE_S)

    # -- telling -----------------------------------------------------------------------------------

    def _tell(self, event: str, member: Member, **more: object) -> None:
        if self.program.events:
            counts = list(member.staleness.counts().items())
            self.program.emit(
                event,
                at=time.monotonic(),
                node=_row(member),
                known={},
                staleness_counts=counts,
                **more,
            )

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _row(member: Member) -> report.Json:
    return report.node_row(member.progress()) | {
        "role": "member",
        "steps": member.steps,
        "steps_lost": member.steps_lost,
        "plan": member.plan,
        "lease": member.lease,
        "share": member.share,
    }


def _line(member: Member) -> str:
    mine = member.progress()
    if not member.connected:
        where = "the coordinator is not there, training goes on"
    else:
        where = f"plan {member.plan}, {member.share:.1%} of the parameters"
    return line(mine.name, mine.samples, None, mine.samples_per_s, mine.loss, math.nan, where)


def _hollow(workload: Workload) -> torch.nn.Module:
    """The model without values; with them where it cannot be made without."""
    import torch

    try:
        with torch.device("meta"):
            return workload.model()
    except (RuntimeError, NotImplementedError):
        return workload.model()
