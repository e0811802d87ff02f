"""One node under test: an ordinary training loop with `murmurate.join`, which writes down what
happens to it, line by line, in a file that survives its `kill -9`.

    python -m tests.chaos.node '{"name": "n0", "out": "n0.jsonl", …}'

Standard input steers it: `stop` ends training (it goes on folding in what comes), `train` resumes
it, `end` lets it leave. When standard input is closed, it ends. Times are those of the machine's
monotonic clock, the same in all processes.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.chaos.audit import Seen

import murmurate
import murmurate.edge.net.grpc_transport
import murmurate.training.join  # both, or the first join() would import them while it is timed
from murmurate import workloads
from murmurate.core import driver as core_driver
from murmurate.core.driver import Driver, Life
from murmurate.core.effect import Adopted, Applied, Drop, Effect, Rejoin, Verdict
from murmurate.core.gossip.config import PeerConfig
from murmurate.edge.net.wire import BulkHead
from murmurate.edge.runtime import lives
from murmurate.edge.runtime.counting import Counting
from murmurate.edge.runtime.ears import NodeEars
from murmurate.edge.runtime.lives import NodeLives

TELL_S = 0.1
LINES_S = 0.05


class Book:
    """The file. One `write` per line: what was written before a SIGKILL is there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, **more: Any) -> None:
        line = json.dumps({"is": kind, "at": time.monotonic(), **more}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


class Audit:
    """Listens to every effect the core asks for, before the runtime carries it out."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.seen = Seen()
        self.applied = 0
        self.drops: dict[str, int] = {}

    def listen(self) -> None:
        begin, saw, begin_again = Driver.begin, Counting.saw, NodeLives.begin_again
        audit = self

        def lives(driver: Driver[Any], life: Life[Any], now: float) -> None:
            audit.seen.replace(life.peer.clock.ranges())  # with what its checkpoint had
            begin(driver, life, now)

        def hears(counting: Counting, effect: core_driver.Seen) -> None:
            audit.hear(effect)
            saw(counting, effect)

        def rejoins(lives: NodeLives, reason: str, now: float) -> Life[Any]:
            audit.hear(Rejoin(reason))
            return begin_again(lives, reason, now)

        Driver.begin = lives  # type: ignore[method-assign,assignment]
        Counting.saw = hears  # type: ignore[method-assign,assignment]
        NodeLives.begin_again = rejoins  # type: ignore[method-assign,assignment]

    def watch(self) -> None:
        """Tell of the first piece of a long transfer: somebody is giving a snapshot."""
        heard, told = NodeEars.heard, set[str]()
        audit = self

        def piece(ears: NodeEars, sender: str, head: BulkHead | None = None) -> None:
            if sender not in told:
                told.add(sender)
                here = ears.state.transport.bytes_received
                audit.book.write("piece", sender=sender, at_bytes=here)
            heard(ears, sender, head)

        NodeEars.heard = piece  # type: ignore[method-assign,assignment]

    def hear(self, effect: Effect) -> None:
        match effect:
            case Applied(dots):
                self.applied += len(dots)
                for dot in dots:
                    if not self.seen.add((dot.origin, dot.epoch), dot.seq):
                        self.book.write("broken", promise="P1", what=f"{dot} was applied twice")
            case Adopted(giver, snapshot, kept, retired, given_up):
                self.seen.replace(snapshot.clock.ranges())
                for dot in kept:
                    self.seen.add((dot.origin, dot.epoch), dot.seq)
                self.book.write(
                    "adopted",
                    giver=giver,
                    kept=len(kept),
                    retired=len(retired),
                    given_up=len(given_up),
                )
            case Verdict(name, epoch, state, reason):
                self.book.write("verdict", who=name, epoch=epoch, state=state, why=reason)
            case Drop(_, reason):
                self.drops[reason] = self.drops.get(reason, 0) + effect.count
            case Rejoin(reason):
                self.book.write("rejoin", why=reason)
            case _:
                pass


class Node:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.book = Book(options["out"])
        self.audit = Audit(self.book)
        self._text = b""
        self._steps: list[tuple[float, float]] = []
        self._tell_at = 0.0
        self._collected_at = 0.0
        gc.callbacks.append(self.collecting)
        self.training = bool(options.get("train", True))
        self.over = False

    def run(self) -> None:
        options = self.options
        torch.set_num_threads(1)
        workload = workloads.load(options.get("workload", "digits"))
        torch.manual_seed(options.get("seed", 0))
        model = workload.model()
        optimizer = workload.optimizer(model)
        shard, shards = options.get("shard", (0, 1))
        batches = workload.batches(
            workloads.DataShare(
                shard,
                shards,
                workloads.parse_split("none"),
                options.get("data_seed", 0),
                workload.batch_size,
            )
        )
        if options.get("held"):
            self.book.write("ready")
            self.command(wait_s=None)
        self.audit.listen()
        if core := options.get("core"):
            make = functools.partial(PeerConfig, **core)
            lives.PeerConfig = make  # type: ignore[attr-defined,assignment]
        if options.get("watch"):
            self.audit.watch()
        self.book.write("joining")
        began = time.monotonic()
        with murmurate.join(
            model,
            optimizer,
            run=options.get("run", "chaos"),
            name=options["name"],
            listen=options.get("listen", "127.0.0.1:0"),
            peers=options.get("peers", []),
            insecure=True,
            join_timeout_s=options.get("join_timeout_s", 60.0),
            **{"rule": "sum", **options.get("join", {})},
        ) as swarm:
            self.book.write(
                "joined", name=swarm.name, address=swarm.address, took_s=time.monotonic() - began
            )
            self.swarm = swarm
            gc.collect()  # as `murmurate node` does, for the same reason
            gc.freeze()
            while not self.over:
                if self.training:
                    self.train(workload, model, optimizer, batches)
                else:
                    self.rest()
            accuracy = workload.evaluate(model).accuracy
            if "weights" in options:
                import numpy as np

                with Path(options["weights"]).open("wb") as file:
                    np.save(file, swarm.weights().numpy(), allow_pickle=False)
            self.book.write("ended", accuracy=accuracy, clock=self.clock(), drops=self.audit.drops)
        self.book.write("left")

    def train(
        self,
        workload: workloads.Workload,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[tuple[torch.Tensor, ...]],
    ) -> None:
        slow_s, budget = self.options.get("slow_s", 0.0), self.options.get("samples")
        look_at = 0.0
        while self.training and not self.over:
            began = time.monotonic()
            optimizer.zero_grad()
            workload.loss(model, next(batches)).backward()
            optimizer.step()
            now = time.monotonic()
            self._steps.append((now, now - began))
            self.swarm.log(samples=workload.batch_size)
            if now >= look_at:
                look_at = now + LINES_S
                self.tell(now)
                self.command(wait_s=0.0)
                if budget is not None and self.swarm.samples >= budget:
                    self.training = False
            if slow_s:
                time.sleep(slow_s)
        self.swarm.publish()
        self.tell(time.monotonic(), at_once=True)
        self.book.write("stopped", samples=self.swarm.samples)

    def rest(self) -> None:
        """Fold in what comes, and say each time which set it has come to."""
        told = ""
        while not self.training and not self.over:
            self.swarm.follow(lambda: self.command(wait_s=0.0), TELL_S / 2)
            clock = self.clock()
            if clock["digest"] != told:
                told = clock["digest"]
                self.book.write("set", **clock)

    def clock(self) -> dict[str, Any]:
        clock = self.swarm.clock
        text = clock.to_bytes()
        return {"digest": hashlib.sha256(text).hexdigest()[:16], "updates": len(clock)}

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """Python's garbage collector stops the process too."""
        if phase == "start":
            self._collected_at = time.monotonic()
        elif (took_s := time.monotonic() - self._collected_at) > 0.02:
            self.book.write("gc", generation=info["generation"], took_s=round(took_s, 4))

    def tell(self, now: float, *, at_once: bool = False) -> None:
        if now < self._tell_at and not at_once:
            return
        self._tell_at = now + TELL_S
        upto, count, seq, life = self.swarm.runtime.look(
            lambda here: (
                self.audit.seen.upto(),
                self.audit.seen.count(),
                here.peer.seq,
                here.peer.epoch,
            )
        )
        self.book.write(
            "steps",
            steps=[[round(at, 4), round(took_s, 5)] for at, took_s in self._steps],
            mine=[f"{self.swarm.name}/{life}", seq],
            upto=upto,
            count=count,
            applied=self.audit.applied,
        )
        self._steps.clear()

    # -- being told ------------------------------------------------------------------------------

    def command(self, wait_s: float | None) -> bool:
        """Whether a line came; None: wait for one."""
        while select.select([0], [], [], wait_s)[0]:
            part = os.read(0, 4096)
            if not part:
                self.over = True
                return True
            self._text += part
            if b"\n" in self._text:
                break
        heard = False
        while b"\n" in self._text:
            line, _, self._text = self._text.partition(b"\n")
            heard = True
            match line.decode().split():
                case ["train"]:
                    self.training = True
                case ["stop"]:
                    self.training = False
                case ["end"]:
                    self.over = True
                case ["peers", *peers]:
                    self.options["peers"] = peers
                case _:
                    pass
        return heard


def main(make: Callable[[dict[str, Any]], Node] = Node) -> None:
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    make(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
