"""Which rumour replaces which, and how often each is passed on."""

from __future__ import annotations

import math
from itertools import islice

from murmurate.core.message import LEFT, STATES, Rumour

_SEVERITY = {state: i for i, state in enumerate(STATES)}


def newer(a: Rumour, b: Rumour) -> bool:
    """Whether `a` replaces `b`: by epoch, then `left`, then incarnation, then the worse state."""
    if a.epoch != b.epoch:
        return a.epoch > b.epoch
    if a.state == LEFT or b.state == LEFT:
        return b.state != LEFT
    if a.incarnation != b.incarnation:
        return a.incarnation > b.incarnation
    return _SEVERITY[a.state] > _SEVERITY[b.state]


def retransmissions(members: int, factor: float) -> int:
    """How often a rumour is passed on before it is old news."""
    return math.ceil(factor * math.log2(members + 1))


class News:
    """Names to talk about: the least talked about first, each a bounded number of times."""

    __slots__ = ("_levels", "_times")

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._levels: list[dict[str, None]] = [{}]  # by times; dicts keep the order of arrival

    def __len__(self) -> int:
        return len(self._times)

    def put(self, name: str, times: int = 0) -> None:
        self.drop(name)
        if times == len(self._levels):
            self._levels.append({})
        self._levels[times][name] = None
        self._times[name] = times

    def drop(self, name: str) -> None:
        times = self._times.pop(name, -1)
        if times >= 0:
            del self._levels[times][name]

    def take(self, count: int, limit: int) -> list[str]:
        """Up to `count` names; those taken `limit` times are old news from now on."""
        out: list[str] = []
        for level in self._levels:
            out += islice(level, count - len(out))
            if len(out) >= count:
                break
        for name in out:
            times = self._times[name] + 1
            if times < limit:
                self.put(name, times)
            else:
                self.drop(name)
        return out
