"""10,000 joins and leaves: clocks must grow with the live members, not with history."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.table import Table

from murmurate.core.message import Snapshot
from murmurate.errors import PromiseBroken
from murmurate.study.sim.options import Options
from murmurate.study.sim.truth import without
from murmurate.study.sim.world import World

LIVE_MAX = 32
ENTRIES_MAX = 64
WIRE_BYTES_MAX = 2048
RECORDS_MAX = 2 * ENTRIES_MAX
"""Member records: the live, and those whose epoch is not folded yet."""
CHANGE_S = 0.4
"""Virtual seconds between two joins or leaves."""
UPDATE_S = 4.0
"""Virtual seconds between two updates of one peer: who stays for a minute makes some fifteen."""


@dataclass(slots=True)
class ChurnResult:
    """The largest of everything that must stay small."""

    changes: int = 0
    live_max: int = 0
    entries_max: int = 0
    wire_bytes_max: int = 0
    records_max: int = 0
    kept_bytes_max: int = 0
    generations: int = 0
    applied: int = 0
    hasty: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0


class ChurnWorld(World):
    """No faults but people: somebody comes or goes all the time."""

    def __init__(self, seed: int, changes: int) -> None:
        options = Options(
            nodes=(16, 16),
            topology="full",
            faults=False,
            faults_s=changes * CHANGE_S + 5.0,
            updates_per_node=int((changes * CHANGE_S + 5.0) / UPDATE_S),
            as_joined=False,
            form="",
            digest_interval_s=1.0,
            compact=True,
            exact=True,
            drain=False,
        )
        super().__init__(seed, options)
        self.changes_left = changes
        self.result = ChurnResult()

    def _fault(self) -> None:
        if self.network.calm:
            return
        self.at(self.time + CHANGE_S, self._fault)
        self._measure()
        if not self.changes_left:
            return
        live = self.live()
        self._forget_old()
        staying = [node for node in live if not node.leaving_until and node.peer is not None]
        if len(live) < LIVE_MAX and (len(staying) < 16 or self.rng.random() < 0.5):
            self._join()
        elif len(staying) > 12:
            self._leave(self.rng.choice(staying))
        else:
            return
        self.changes_left -= 1
        self.result.changes = self.counts["join"] + self.counts["leave"]

    def _join(self) -> None:
        """Always somebody new: who comes back from an old disk is for the other runs."""
        self.counts["join"] += 1
        node = self._machine(f"n{self._next_name:02}")
        self._next_name += 1
        self._start(node, self.some_live(""))

    def _forget_old(self) -> None:
        """What every live peer has in its baseline is not applied any more: nobody crashes here."""
        live = [node for node in self.live() if node.peer and node.peer.synced]
        behind = min(node.peer.baseline.number for node in live if node.peer)
        passed = [number for number in self.decided if number <= behind]
        if not passed:
            return
        on_disk = {id(saved.snapshot) for node in live for saved in node.disk.checkpoints}
        on_the_way = {
            id(value)
            for args in self.events.pending()
            for value in args
            if isinstance(value, Snapshot)
        }
        for number in passed:
            gone = self.truth.forget(self.decided.pop(number), on_disk | on_the_way)
            for node in live:
                if node.batch is not None:
                    node.batch = (node.batch[0], without(node.batch[1], gone))

    def _measure(self) -> None:
        result = self.result
        live = self.live()
        result.live_max = max(result.live_max, len(live))
        for node in live:
            peer = node.peer
            assert peer is not None
            result.entries_max = max(result.entries_max, len(peer.clock.keys()))
            result.records_max = max(result.records_max, len(peer.membership.rumours()))
            result.kept_bytes_max = max(result.kept_bytes_max, peer.log.nbytes + peer.store.nbytes)
        node = live[self.events.happened % len(live)]
        assert node.peer is not None
        result.wire_bytes_max = max(result.wire_bytes_max, len(node.peer.clock.to_bytes()))
        if result.entries_max > ENTRIES_MAX:
            raise PromiseBroken(
                "P12", f"{result.entries_max} entries in a clock, {ENTRIES_MAX} allowed"
            )
        if result.wire_bytes_max > WIRE_BYTES_MAX:
            raise PromiseBroken("P12", f"a clock of {result.wire_bytes_max} bytes")
        if result.records_max > RECORDS_MAX:
            raise PromiseBroken("P12", f"{result.records_max} member records")


def run(seed: int = 0, changes: int = 10_000) -> ChurnResult:
    """Let peers come and go; raises `PromiseBroken` when something grows with history."""
    started = time.monotonic()
    world = ChurnWorld(seed, changes)
    end = world.run()
    result = world.result
    result.generations = end.generations
    result.applied = end.applied
    result.hasty = world.counts["left in haste"]
    result.virtual_s = end.virtual_s
    result.wall_s = time.monotonic() - started
    return result


def report(seed: int = 0) -> Table:
    result = run(seed)
    table = Table("what", "largest", "allowed", title=f"{result.changes:,} joins and leaves")
    for name, value, allowed in (
        ("live peers, those about to leave included", result.live_max, LIVE_MAX),
        ("entries in a clock", result.entries_max, ENTRIES_MAX),
        ("bytes of a clock on the wire", result.wire_bytes_max, WIRE_BYTES_MAX),
        ("member records", result.records_max, RECORDS_MAX),
        ("bytes of updates kept", result.kept_bytes_max, None),
        ("generations agreed on", result.generations, None),
        ("updates applied, each with its staleness checked", result.applied, None),
        ("left before all was handed over", result.hasty, None),
        ("virtual seconds", round(result.virtual_s), None),
        ("wall seconds", round(result.wall_s), None),
    ):
        table.add_row(name, f"{value:,}", "" if allowed is None else f"{allowed:,}")
    return table
