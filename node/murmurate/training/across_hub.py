"""`ea-wild` across groups (003, section 3.1): one member of each makes the exchange with a hub.

    every so many steps of the group its weights go to the hub, which moves the centre towards them
    and gives the other half of the difference back; when that has come, the member adds it to its
    weights and broadcasts them inside

A group is one member of the hub, whose rule is `ea-wild`: nobody waits for an exchange. It begins
with the centre. If another member speaks for it from then on, the group keeps its weights: all that
is lost is its half of an exchange that was on its way.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from murmurate.core.figures.counters import Tally
from murmurate.core.partition.whole import whole_structure
from murmurate.core.staleness import Summary
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.errors import ConfigError
from murmurate.training.across import ACROSS_S, Speaker
from murmurate.training.held_lease import Gift
from murmurate.training.leasing import Leasing
from murmurate.training.member_link import MemberLink
from murmurate.training.member_values import MemberValues

log = logging.getLogger("murmurate")

RULE = "ea-wild"
EXCHANGES, EVEN = "exchanges", "even"
"""What is told of a group: that it goes on with exchanges; that its last one is in."""
LOOK_S = 0.02


class HubAcross:
    """A group's place at the hub. Obeys `Across`."""

    def __init__(self, speaker: Speaker, coordinator: str, credentials: Credentials) -> None:
        self._speaker = speaker
        self._model = speaker.model
        self._keeps = speaker.steps > 0
        """Whether the group goes on with the weights that it has."""
        self._owed = False
        """Something was taken that the group was not given yet."""
        self._word = EXCHANGES
        self._told_stop = False
        self._open = False
        """The last exchange is not over: its other half has not come."""
        self._values: MemberValues | None = None
        self._lease = 0
        self._tally = Tally()
        structure = whole_structure(speaker.model)
        self._leasing = Leasing(
            run=speaker.run,
            name=speaker.name,
            instance=secrets.token_hex(8),
            structure=structure,
            digest=structure_digest(structure),
            width=0.0,
            memory_bytes=0,
            tally=self._tally,
            mode="hub",
        )
        self._link = MemberLink(coordinator, self._leasing, None, None, credentials)

    @classmethod
    def open(cls, speaker: Speaker, coordinator: str, credentials: Credentials) -> HubAcross:
        """A group that has made no step begins with the centre, and waits for it a while."""
        made = cls(speaker, coordinator, credentials)
        try:
            if not made._keeps:
                made._wait(lambda: made._leasing.gift is not None, ACROSS_S)
            made._check_rule()
        except BaseException:
            made.leave()
            raise
        made.take()
        return made

    # -- what is known -----------------------------------------------------------------------------

    @property
    def word(self) -> str:
        return self._word

    @property
    def gives(self) -> bool:
        return self._owed or self._leasing.gift is not None

    @property
    def staleness_level(self) -> Summary:
        copy = Summary()
        with self._leasing.news:
            copy.merge(self._tally.staleness)
        return copy

    @property
    def exchanges(self) -> int:
        """That are in the centre."""
        return self._tally.applied

    def _check_rule(self) -> None:
        leasing = self._leasing
        leasing.check()
        if leasing.ever and leasing.rule != RULE:
            raise ConfigError(
                f"coordinator: its rule is {leasing.rule!r}; groups exchange with a hub of rule"
                f" {RULE!r}"
            )

    # -- training ----------------------------------------------------------------------------------

    def take(self) -> None:
        gift = self._leasing.next_gift()
        if gift is not None:
            self._adopt(gift)

    def _adopt(self, gift: Gift) -> None:
        if self._values is not None and gift.lease.number == self._lease:
            self._values.down(self._model, gift.values)
            self._owed, self._open = True, False
            return
        self._check_rule()
        self._values, self._lease = MemberValues(self._leasing.half), gift.lease.number
        if not self._keeps:
            self._values.replace(self._model, gift.values)
            self._owed = True
        self._keeps = True

    def given(self) -> None:
        self._owed = False

    def stepped(self, samples: int, seconds: float) -> None:
        leasing, tally, now = self._leasing, self._tally, time.monotonic()
        leasing.check()
        if leasing.stopped and not self._told_stop:
            self._told_stop = True
            log.warning("%s: the hub has ended the run: %s", self._speaker.name, leasing.stopped)
        if tally.began is None:
            tally.began = now - seconds
        tally.step(seconds)
        tally.samples += samples
        leasing.stepped(samples, seconds, now)
        if leasing.gift is None and leasing.wants_push():
            self._push()
        leasing.nothing_to_train()  # who has no lease for a while asks for one

    def _push(self) -> None:
        assert self._values is not None
        began = time.thread_time()
        values = self._values.up(self._model)
        self._leasing.put(values, time.thread_time() - began)
        self._open = True

    def _wait(self, until: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not until():
            self._speaker.check()
            self._leasing.check()
            if self._leasing.stopped or time.monotonic() > deadline:
                return False
            with self._leasing.news:
                self._leasing.news.wait(LOOK_S)
        return True

    # -- the end -----------------------------------------------------------------------------------

    def finish(
        self, timeout_s: float, all_end: Callable[[], bool], tell: Callable[[], None]
    ) -> None:
        """A last exchange; when all groups have made theirs, the centre is everybody's."""
        deadline = time.monotonic() + timeout_s
        self._settle(timeout_s / 2)
        self._wait(all_end, timeout_s / 2)
        self._word = EVEN
        tell()

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        if not self._wait(lambda: EXCHANGES not in self._speaker.words(), left_s()):
            return
        leasing, lease = self._leasing, self._leasing.lease
        if lease is None or not leasing.connected:
            return
        with leasing.news:
            leasing.gift, lease.valid = None, False  # another one comes, with the centre
        leasing.renew()

        def came() -> bool:
            gift = leasing.gift
            return gift is not None and gift.lease.number != lease.number

        if self._wait(came, left_s()):
            self._keeps = False
            self.take()

    def _settle(self, timeout_s: float) -> None:
        leasing = self._leasing

        def settled() -> bool:
            if leasing.gift is not None:
                self.take()
            if leasing.wants_push(all_of_it=True):
                self._push()
                return False
            return self._values is not None and leasing.settled() and not self._open

        self._wait(settled, timeout_s)

    def leave(self) -> None:
        self._link.close()
