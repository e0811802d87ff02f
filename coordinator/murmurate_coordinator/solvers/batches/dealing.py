"""Batches for peers that gossip: each goes into exactly one update (`core.batches.dealer`).

The members are peers of a swarm. They push nothing: what becomes of a batch is in their own
updates, and they say what their weights hold. So there is no model here, and a lease is for as long
as a member stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from murmurate.core.batches.dealer import RESERVE, Dealer, Take
from murmurate.core.partition.structure import Held
from murmurate.core.values.member_half import FREELY
from murmurate.errors import SchemaMismatch
from murmurate_coordinator.solvers.effects import (
    Batch,
    DealBatches,
    Effect,
    MemberPush,
    Reason,
    SayLease,
    Waits,
)
from murmurate_coordinator.solvers.leases import LeasedSolver, Values
from murmurate_coordinator.solvers.protocol import Capacity, Json, Lease

SETTLE_EVERY_S = 0.1


class BatchDealing(LeasedSolver):
    """The one rule of mode batches."""

    mode = "batches"
    rule = "pull"
    half = FREELY
    follows_speed = False
    freed = "those of its batches that are in no update are dealt again"
    plan_wants_checkpoint = True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.dealer = Dealer()
        self.samples = 1
        """In each batch."""
        self.batch: Callable[[int], Batch] = _none_made
        """Where batches come from, by their numbers."""
        self.forget: Callable[[Callable[[int], bool]], None] = _nothing_kept
        """Told which numbers may be asked for again, now and then."""
        self._swarm = ""
        self._settle_at = 0.0
        self._wrong = (0, 0)

    # -- what comes in -----------------------------------------------------------------------------

    def join(self, peer: str, capacity: Capacity | None = None) -> list[Effect]:
        if peer in self.members:
            return [self.refuse(peer, Reason.EXISTS, f"{peer} is a member already")]
        self.members[peer] = capacity or Capacity()
        self._grant(peer, self.structure.everything())
        self.dealer.join(peer)
        return [Waits(peer, "batches come when they are asked for")]

    def leave(self, peer: str) -> list[Effect]:
        self.dealer.leave(peer)
        return super().leave(peer)

    def again(self, peer: str) -> list[Effect]:
        self.dealer.again(peer)
        return []

    def take(self, peer: str, take: Take, now: float) -> list[Effect]:
        self._swarm = self._swarm or take.swarm
        if take.swarm != self._swarm:
            raise SchemaMismatch(
                f"swarm {take.swarm!r}: this generator deals to {self._swarm!r}, and a batch is"
                " trained on once; start another one"
            )
        self.dealer.take(peer, take, now)
        out = list(self._settled(now))
        if take.beat:
            out.append(SayLease(peer, take.beat, self.dealer.lease(peer)))
        return out

    def tick(self, now: float) -> list[Effect]:
        return list(self._settled(now))

    def _settled(self, now: float) -> Iterator[Effect]:
        """What follows of what all have said: conclusions now and then, batches at once."""
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_EVERY_S
            self.dealer.settle(now)
            self.forget(self.dealer.needs)
            self.totals.samples = self.dealer.totals.consumed * self.samples
        for peer, numbers in self.dealer.deal().items():
            batches = tuple((number, self.batch(number)) for number in numbers)
            yield DealBatches(peer, self.samples, batches)
        self.plan = 1 + 2 * self.dealer.made // RESERVE

    def close(self) -> bool:
        self.dealer.close()
        return self.dealer.over

    # -- what it shows -----------------------------------------------------------------------------

    def wrong(self) -> str:
        """What people should hear of, once."""
        it, before = self.dealer.totals, self._wrong
        self._wrong = (it.repeated, it.undealt)
        said = []
        if it.repeated > before[0]:
            said.append(
                f"{it.repeated} batches are in two updates: a peer was cut off with updates that"
                " nobody had, and came back with them after its batches had been dealt again"
            )
        if it.undealt > before[1]:
            said.append(
                f"{it.undealt} batches are in the peers' weights and were never dealt: an update"
                " lies about what is in it, or this generator has begun anew"
            )
        return "; ".join(said)

    def row(self) -> Json:
        """It trains nothing: samples are counted where they are trained on."""
        return {
            "name": "generator",
            "role": "generator",
            "samples": 0,
            "totals": asdict(self.dealer.totals),
        }

    def more(self) -> Json:
        return {"totals": asdict(self.dealer.totals)}

    def told(self) -> str:
        it = self.dealer.totals
        return (
            f"{it.consumed:,} of {it.batches:,} batches consumed, {it.dealt_again} dealt again,"
            f" {it.repeated} in two updates"
        )

    # -- over a restart ----------------------------------------------------------------------------

    def kept(self, about: Json) -> None:
        self.dealer.reserved = int(about["dealer"]["reserved"])

    def _save(self, tensors: dict[str, Any], about: Json) -> None:
        super()._save(tensors, about)
        about["dealer"] = self.dealer.memory()
        about["swarm"] = self._swarm

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self.dealer.remember(about["dealer"])
        self._swarm = str(about["swarm"])
        for name in self.members:
            self.dealer.join(name)

    # -- what there is not -------------------------------------------------------------------------

    def check_room(self, members: object) -> None:
        """There are batches for as many as come."""

    def _shares(self) -> dict[str, Held]:
        return {}

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        """Nobody has anything to push: a push of no tensors is refused for its size."""

    def _joined(self, peer: str) -> Iterable[Effect]:
        return ()

    def _left(self, lease: Lease | None) -> Iterable[Effect]:
        return ()

    def _pushed(self, lease: Lease) -> Iterable[Effect]:
        return ()


def _none_made(number: int) -> Batch:
    raise LookupError(f"batch {number}: nobody makes batches")


def _nothing_kept(_: Callable[[int], bool]) -> None:
    """No batch is kept."""
