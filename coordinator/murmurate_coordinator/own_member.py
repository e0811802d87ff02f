"""The coordinator's own member (`--train`), as in paper 001.

A process of its own that comes in by the same door as everybody else: it cannot hold up the
streams, and nothing about it is special. It ends when its standard input does, so it never
outlives the coordinator, however that dies.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys

from murmurate.core.values.addresses import split_address, wildcard
from murmurate.programs.keys.gather import child_environment
from murmurate_coordinator.config import CoordinatorConfig

log = logging.getLogger("murmurate")

NAME = "own-member"


class OwnMember:
    """Started at once; `end` waits for it."""

    def __init__(self, config: CoordinatorConfig, address: str) -> None:
        self._told = False
        self._process = subprocess.Popen(
            command(config),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is the coordinator's to pass on
        )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{reachable(address)}\n".encode())
        self._process.stdin.flush()

    def look(self) -> None:
        """A line when it has died; the others go on."""
        if not self._told and (code := self._process.poll()) is not None:
            self._told = True
            log.warning("the coordinator's own member has ended (exit code %d)", code)

    def dismiss(self) -> None:
        """Let it push what it has and leave."""
        self._told = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, timeout_s: float) -> None:
        """It was told to stop over its stream; at the latest now it is over."""
        assert self._process.stdin is not None
        self._told = True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()


def command(config: CoordinatorConfig) -> list[str]:
    it, train = config.coordinator, config.train
    options = {
        "--mode": train.mode,
        "--coordinator": "-",
        "--peers": "-",
        "--name": NAME,
        "--run": it.run,
        "--seed": it.seed,
        "--threads": it.threads,
        "--workload": train.workload,
        "--data": train.data,
        "--batch-size": train.batch_size,
        "--lr": train.lr,
        "--optimizer": train.optimizer,
        "--momentum": train.momentum,
        "--nesterov": train.nesterov,
        "--weight-decay": train.weight_decay,
        "--schedule": train.schedule,
        "--warmup": train.warmup or None,
        "--split": train.split,
        "--shard": train.shard,
        "--validation": train.validation,
        "--width": it.width or None,
    }
    words = [w for name, value in options.items() if value is not None for w in (name, str(value))]
    return [sys.executable, "-m", "murmurate", "node", *words]


def reachable(address: str) -> str:
    """From this machine: all interfaces are also the own one."""
    host, port = split_address(address)
    if not wildcard(host):
        return address
    return f"[::1]:{port}" if ":" in host else f"127.0.0.1:{port}"
