"""What a member believes of the others: one record each, and the questions asked of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from murmurate.core.message import ALIVE, DEAD, LEFT, SUSPECT, Rumour

LIVE = frozenset((ALIVE, SUSPECT))


@dataclass(slots=True, eq=False)
class MemberRecord:
    """What is believed of one member, and the evidence for it."""

    rumour: Rumour  # the belief, in the form in which it is passed on
    since: float = 0.0
    reason: str = ""
    suspecters: list[str] = field(default_factory=list)
    started: float = 0.0  # of the suspicion
    deadline: float = math.inf
    missed: int = 0  # probes without an answer since `silent_since`
    silent_since: float = 0.0
    told: float = -math.inf  # when it was last told what is said against it


class Beliefs:
    """Who is believed alive, and why the others are not. Only `Membership` changes it."""

    __slots__ = ("_dead", "_live", "_me", "_members", "name", "version")

    def __init__(self, name: str, epoch: int, address: str) -> None:
        self.name = name
        self.version = 0
        """Grows whenever `live()` changes."""
        self._me = MemberRecord(Rumour(name, epoch, 0, ALIVE, address, name))
        self._members = {name: self._me}
        self._dead: dict[str, MemberRecord] = {}
        self._live: tuple[str, ...] | None = None

    def live(self) -> tuple[str, ...]:
        """Sorted names of those alive or suspect, myself included unless I left."""
        if self._live is None:
            members = self._members.items()
            self._live = tuple(sorted(n for n, m in members if m.rumour.state in LIVE))
        return self._live

    def state(self, name: str) -> str | None:
        member = self._members.get(name)
        return member.rumour.state if member else None

    def epoch(self, name: str) -> int | None:
        """0: a seed peer that was not met yet."""
        member = self._members.get(name)
        return member.rumour.epoch if member else None

    def last(self, name: str) -> int:
        """How many updates a member that has left said it had made."""
        member = self._members.get(name)
        return member.rumour.last if member else 0

    def address(self, name: str) -> str:
        member = self._members.get(name)
        return member.rumour.address if member else ""

    def addresses(self) -> tuple[tuple[str, str], ...]:
        """The other members that are there, with their addresses where one is known."""
        others = (name for name in self.live() if name != self.name)
        return tuple((name, at) for name in others if (at := self.address(name)))

    def reason(self, name: str) -> str:
        member = self._members.get(name)
        return member.reason if member else ""

    def since(self, name: str) -> float:
        """When its present state began; never (inf), if there is no such member."""
        member = self._members.get(name)
        return member.since if member else math.inf

    def dead(self) -> tuple[str, ...]:
        """Names of those who did not answer, seed peers that I never met included."""
        return tuple(self._dead)

    def rumours(self) -> tuple[Rumour, ...]:
        """All I know, for a newcomer. Seed peers that I never met are not knowledge."""
        return tuple(m.rumour for m in self._members.values() if m.rumour.epoch)


def evidence(member: MemberRecord, now: float) -> str:
    said = f"suspected by {', '.join(member.suspecters)}"
    if member.missed:
        return f"no answer to {member.missed} probes in {now - member.silent_since:.1f} s, {said}"
    return f"no objection in {now - member.started:.1f} s, {said}" if now > member.started else said


def reason_of(member: MemberRecord, old: Rumour, now: float) -> str:
    """The sentence that goes with a belief taken over from others."""
    rumour = member.rumour
    if rumour.state == SUSPECT:
        return evidence(member, now)
    if rumour.state == DEAD:
        return f"declared dead by {rumour.source}"
    if rumour.state == LEFT:
        return "it said that it leaves"
    if rumour.epoch != old.epoch:
        return f"started as epoch {rumour.epoch}"
    return f"it objected: incarnation {rumour.incarnation}"
