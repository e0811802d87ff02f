"""How a member finds the others it trains in step with: it meets them, and all connect.

Members are those that membership knows; whoever is waited for is alive and can be reached, so
nobody waits for one that is gone. All of it happens in the training thread, between two steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from murmurate.core.synchronous.agreement import Claim, GroupPlan, draw_up, meets_at
from murmurate.edge.net.collective import Collective, GroupBroken, MeetingPlace, reachable
from murmurate.errors import RemoteProtocolError, TransportError

if TYPE_CHECKING:
    import torch

    from murmurate.edge.runtime.training_port import TrainingPort

log = logging.getLogger("murmurate")

NOWHERE = "-"
POLL_S = 0.02
PROBED_S = 0.5
"""For so long it is believed whether a member can be reached."""
READY_S = 1.0
"""For all members of a plan to hear of it."""
FIRST_S = 3.0
"""For so long the first group waits for all that are there, so that they begin together."""


class Formed(NamedTuple):
    """A group that has come about."""

    plan: GroupPlan
    rank: int
    collective: Collective | None
    """None: this member is alone."""


class Formation:
    """Finds the members of the next group."""

    def __init__(
        self,
        port: TrainingPort,
        place: MeetingPlace,
        device: torch.device,
        *,
        group: int = 0,
        take_in: Callable[[], None] = lambda: None,
        mine: Callable[[str, str], bool] = lambda name, more: True,
    ) -> None:
        """`take_in` is called while nothing else happens; `mine`: who may be in my group, by name
        and by what else it tells."""
        self._port = port
        self._place = place
        self._device = device
        self._group = group
        self._take_in = take_in
        self._mine = mine
        self.more = ""
        """What else is told of where this member is met."""
        self.closed = False
        """Whether it is met nowhere, and only that is told."""
        self._claims = 0
        self._formed = 0
        self._probed: dict[str, tuple[float, bool]] = {}
        self._gone: set[str] = set()
        """Who has said that it leaves, until the others say so."""

    def leaves(self, names: Collection[str]) -> None:
        """These said so with their last step."""
        self._gone |= set(names)

    def tell(self) -> None:
        """Say where I am met."""
        address = NOWHERE if self.closed else self._place.address
        self._port.others.meet(f"{address} {self.more}".strip())

    def _meetings(self) -> dict[str, str]:
        """Who may be in my group, and where each is met."""
        told = {name: said.partition(" ") for name, said in self._port.others.meetings().items()}
        return {
            name: "" if address == NOWHERE else address
            for name, (address, _, more) in told.items()
            if self._mine(name, more) or name == self._port.name
        }

    def newcomer(self, members: Collection[str]) -> bool:
        """Whether somebody waits who is not one of these."""
        return any(name not in members for name in self._present(probe=True, known=members))

    def waiting(self) -> bool:
        """Whether others train in step, or wait to."""
        mine = self._port.name
        return any(at and name != mine for name, at in self._meetings().items())

    def _present(self, *, probe: bool, known: Collection[str] = ()) -> dict[str, str]:
        """Who waits or trains, and where it is met."""
        now, mine = time.monotonic(), self._port.name
        meetings = self._meetings()
        self._gone = {name for name in self._gone if meetings.get(name)}
        found = {}
        for name, address in meetings.items():
            if not address or name in self._gone:
                continue
            if probe and name != mine and name not in known:
                at, there = self._probed.get(address, (-PROBED_S, False))
                if now - at >= PROBED_S:
                    there = reachable(address)
                    self._probed[address] = (now, there)
                if not there:
                    continue
            found[name] = address
        return found

    def form(
        self,
        step: int,
        *,
        founder: bool,
        deadline: float,
        speaks: bool = False,
        first: bool = False,
        of: int = 0,
    ) -> Formed:
        """The next group, with all who are there. TransportError: not before the deadline."""
        began = time.monotonic()
        self.tell()
        self._probed.clear()
        while True:
            self._claims += 1
            claim = Claim(
                name=self._port.name,
                number=self._claims,
                step=step,
                founder=founder,
                speaks=speaks,
                first=first,
                of=of,
            )
            plan, address = self._agree(claim, began, deadline)
            rank = plan.members.index(claim.name)
            collective = None
            if len(plan.members) > 1:
                if not self._all_ready(plan, address):
                    log.info("%s: group %s did not come about", claim.name, plan.key)
                    self._probed.clear()
                    continue
                try:
                    collective = Collective(
                        self._place.store(address),
                        plan.key,
                        rank,
                        len(plan.members),
                        self._place.host,
                        group=self._group,
                        device=self._device,
                    )
                except GroupBroken as error:
                    log.info("%s: group %s: %s", claim.name, plan.key, error)
                    self._probed.clear()
                    continue
            self._formed += 1
            return Formed(plan, rank, collective)

    def _agree(self, claim: Claim, began: float, deadline: float) -> tuple[GroupPlan, str]:
        """A plan that has this claim in it, and where it was drawn up."""
        mine = claim.name
        while True:
            self._port.check()
            self._take_in()
            present = self._present(probe=True)
            present[mine] = self._place.address
            leader = meets_at(present)
            now = time.monotonic()
            if now > deadline:
                raise TransportError("no group in time")
            if leader == mine:
                if not self._waits_for_more(present, now - began):
                    claims = self._place.claims(set(present) - {mine})
                    claims[mine] = claim
                    if set(claims) == set(present):
                        plan = draw_up(claims.values(), self._place.next_key(mine))
                        self._place.announce(plan, claims)
                        return plan, self._place.address
            else:
                try:
                    found = self._place.visit(present[leader], claim)
                except (TransportError, RemoteProtocolError) as error:
                    log.info("%s: %s", mine, error)
                    self._probed[present[leader]] = (now, False)
                    found = None
                if found is not None and mine in found.members:
                    return found, present[leader]
            self._port.wait_for_news(POLL_S)

    def _all_ready(self, plan: GroupPlan, address: str) -> bool:
        """Whether all have the plan: connecting is waited for without a look at who is gone."""
        until = time.monotonic() + READY_S
        while (there := self._place.ready(address, plan, self._port.name)) is False:
            self._port.check()
            if time.monotonic() > until:
                self._place.give_up(address, plan)
                return False
            self._port.wait_for_news(POLL_S / 4)
        return bool(there)

    def _waits_for_more(self, present: Collection[str], waited_s: float) -> bool:
        """The first time all who are in the run should come; later only those who train."""
        if self._formed or waited_s > FIRST_S:
            return False
        return any(name not in present for name in self._meetings())
