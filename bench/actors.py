"""Processes that are told what to do, one line of JSON for each order and each answer.

For contenders that stay, with their links, while others have their turn; and for those that run in
another environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

END_S = 10.0


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def orders() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


class Actor:
    """One process, as seen by the conductor."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r}: ended with {self._process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
