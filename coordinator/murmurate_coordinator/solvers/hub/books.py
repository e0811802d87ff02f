"""The conservation law of a hub's staleness, kept as integers (paper 004 for request-reply, F2).

A member that is there holds one snapshot of the weights at any time. Every update makes all of them
one version older, but for the one it answers, which is new again. So with n members over M updates,
whatever their speeds and delays,

    sum of the staleness of all pushes + residual = (n - 1) M

where the residual is what the snapshots that are out have missed so far. Members come and go, so
their presence is counted instead of n M: the updates that happened while each was there. What a
snapshot had missed that was never pushed (its owner died, or it got lost) stays in the residual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Books:
    """All of it in versions."""

    staleness: int = 0
    """Of all pushes that were accepted."""
    missed: int = 0
    """By snapshots that ended without a push."""
    gaps: int = 0
    """Updates between a push and its answer; where every push is answered at once this is the
    update that it made, if it made one."""
    gone: int = 0
    """Presence of those who left."""
    since: dict[str, int] = field(default_factory=dict)
    """Of each member: the version it was given first."""
    holds: dict[str, int] = field(default_factory=dict)
    """Of each member: the version of the snapshot it holds now, or at which it pushed it."""
    pushes: int = 0

    def came(self, name: str, version: int) -> None:
        self.since[name] = self.holds[name] = version

    def pushed(self, name: str, version: int, base: int) -> None:
        """At this version it pushed what was computed on `base`."""
        self.staleness += version - base
        self.pushes += 1
        self.holds[name] = version

    def answered(self, name: str, version: int) -> None:
        """It gets another snapshot."""
        self.gaps += version - self.holds[name]
        self.holds[name] = version

    def lost(self, name: str, version: int) -> None:
        """Its snapshot is gone, and it gets another."""
        if name in self.holds:
            self.missed += version - self.holds[name]
            self.holds[name] = version

    def left(self, name: str, version: int) -> None:
        if name in self.holds:
            self.missed += version - self.holds.pop(name)
            self.gone += version - self.since.pop(name)

    # -- the law -----------------------------------------------------------------------------------

    def residual(self, version: int) -> int:
        """What snapshots have missed that were not pushed, or not yet."""
        return self.missed + sum(version - held for held in self.holds.values())

    def presence(self, version: int) -> int:
        """Updates while each member was there, added up: n M if n were there all the time."""
        return self.gone + sum(version - since for since in self.since.values())

    def wrong(self, version: int, *, at_once: bool) -> str:
        """What does not add up; empty: all does."""
        residual, presence = self.residual(version), self.presence(version)
        total = self.staleness + residual + self.gaps
        if total != presence:
            return f"{self.staleness} + {residual} + {self.gaps} is not {presence}"
        if at_once and self.gaps != version:
            return f"{self.gaps} updates between pushes and their answers, {version} in all"
        return ""

    def told(self, version: int) -> dict[str, int]:
        """For the report."""
        return {
            "updates": version,
            "members": len(self.since),
            "gradients": self.pushes,
            "staleness": self.staleness,
            "residual": self.residual(version),
            "gaps": self.gaps,
            "presence": self.presence(version),
        }

    def memory(self) -> dict[str, Any]:
        return asdict(self)

    def remember(self, memory: Mapping[str, Any]) -> None:
        for name, value in memory.items():
            setattr(self, name, value)
