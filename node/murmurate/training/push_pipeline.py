"""Pushes of a member that does not wait for answers (protocol pipelined): in order, each once.

A push stays here until it is answered. When the stream breaks, those that the hub does not have are
sent again, in their order, so that nothing is lost and nothing counts twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.subnet_values import Values

OUTSTANDING_MAX = 8
"""Pushes without an answer; with more a member waits: its link, or the hub, is slower than it."""


class PushPipeline:
    """What was put and is not answered, oldest first."""

    def __init__(self) -> None:
        self._pushes: deque[tuple[wire.Return, Values]] = deque()
        self._sent = 0
        """So many of them are on their way."""

    def __len__(self) -> int:
        return len(self._pushes)

    @property
    def full(self) -> bool:
        return len(self._pushes) >= OUTSTANDING_MAX

    def put(self, push: wire.Return, values: Values) -> None:
        self._pushes.append((push, values))

    def next(self) -> tuple[wire.Return, Values] | None:
        """The next one that is to be sent."""
        if self._sent == len(self._pushes):
            return None
        self._sent += 1
        return self._pushes[self._sent - 1]

    def answered(self, version: int) -> wire.Return | None:
        """The hub has all up to this version: the newest of those that were waiting for that."""
        last = None
        while self._pushes and self._pushes[0][0].version <= version:
            last, _ = self._pushes.popleft()
            self._sent = max(0, self._sent - 1)
        return last

    def again(self, version: int) -> None:
        """Another stream, and a hub that has this version: what follows is sent again."""
        self._sent = 0
        self._pushes = deque(
            (replace(push, version=version + 1 + k), values)
            for k, (push, values) in enumerate(self._pushes)
        )

    def clear(self) -> None:
        self._pushes.clear()
        self._sent = 0
