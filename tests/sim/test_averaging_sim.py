"""`study/sim/averaging.py`: it holds for the code as it is, and for none of the mistakes made
here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from murmurate.core.gossip.average.push_sum import TWICE, Averager, IsFar, Merged, Share, Stale
from murmurate.errors import ConfigError, PromiseBroken
from murmurate.study.sim.averaging import (
    ERROR_MAX,
    GRAPHS,
    LEAK_MAX,
    MUTANTS,
    PATTERNS,
    report,
    run,
)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(4))
def test_promises_hold(seed: int, pattern: str) -> None:
    result = run(seed, nodes=3 + seed, pattern=pattern)
    assert (result.seed, result.nodes, result.pattern) == (seed, 3 + seed, pattern)
    assert result.graph == GRAPHS[seed % 3]
    assert result.error <= ERROR_MAX
    assert result.leak <= LEAK_MAX
    assert result.staleness_checks >= result.merges > 20


def test_every_fault_comes_up() -> None:
    kinds = {kind for seed in range(8) for kind in +run(seed, nodes=4, pattern="pairwise").counts}
    assert kinds >= {"lost", "duplicated", "reordered", "late duplicate", "cut", "cut off"}
    assert kinds >= {"restart", "departure"}


# -- mistakes ------------------------------------------------------------------------------------


class AfterTheUnion(Averager):
    """Staleness is measured when the clocks are already one."""

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        outcome = super().receive(sender, share, is_far)
        if isinstance(outcome, Merged):
            return Merged(share.clock.distance(self.clock))
        return outcome


class ClockOfTheOther(Averager):
    """A merge takes the sender's clock and forgets its own."""

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        outcome = super().receive(sender, share, is_far)
        if isinstance(outcome, Merged):
            self.clock = share.clock.copy()
        return outcome


class AnyLife(Averager):
    """A share for an earlier life is taken by the one after."""

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        return super().receive(sender, replace(share, to_epoch=self.epoch), is_far)


class TakesBackWhatWasLost(Averager):
    """What a departed partner has not confirmed is put in here again; it may have it."""

    def let_go(self, partner: str) -> None:
        if (share := self.unconfirmed(partner)) is not None:
            self.put_in(share.model, share.weight)
        super().let_go(partner)


class CountsTwice(Averager):
    """A duplicate is put in again."""

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        outcome = super().receive(sender, share, is_far)
        if outcome is TWICE:
            self.put_in(share.model, share.weight / 2)
        return outcome


class OutOfOrder(Averager):
    """What was sent before is put in after what was sent later."""

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        tie = self.ties.get(sender)
        if tie is not None and tie.epoch == share.epoch and share.seq < tie.taken:
            tie.taken = share.seq - 1
        return super().receive(sender, share, is_far)


class SendsAnew(Averager):
    """What is sent again is not what it was."""

    def assign(self, partner: str, epoch: int, part: float) -> Share | None:
        share = super().assign(partner, epoch, part)
        return replace(share, model=self.model.clone()) if share is not None else None


MISTAKES: list[tuple[type[Averager], str]] = [
    (MUTANTS["lossy"], "mass"),
    (MUTANTS["no-weights"], "mass"),
    (MUTANTS["share-twice"], "lives"),
    (OutOfOrder, "lives"),
    (SendsAnew, "mass"),
    (AfterTheUnion, "P4"),
    (ClockOfTheOther, "P4"),
    (AnyLife, "lives"),
    (TakesBackWhatWasLost, "mass"),
    (CountsTwice, "mass"),
]


def found(kind: type[Averager]) -> PromiseBroken | None:
    for seed in range(20):
        for pattern in PATTERNS:
            try:
                run(seed, nodes=4, pattern=pattern, kind=kind)
            except PromiseBroken as broken:
                return broken
    return None


@pytest.mark.parametrize(("kind", "promise"), MISTAKES)
def test_mistakes_are_found(kind: type[Averager], promise: str) -> None:
    broken = found(kind)
    assert broken is not None
    assert broken.promise == promise


def test_all_shipped_mutants_are_among_them() -> None:
    assert set(MUTANTS.values()) <= {kind for kind, _ in MISTAKES}


# -- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_seed_is_one_story(pattern: str) -> None:
    first, second, other = (run(seed, nodes=4, pattern=pattern) for seed in (5, 5, 6))
    assert first == second
    assert len(first.trace_hash) == 16
    assert first.trace_hash != other.trace_hash


def test_the_story_does_not_depend_on_the_hash_seed() -> None:
    code = "from murmurate.study.sim.averaging import run; print(run(3, nodes=4).trace_hash)"
    environment = {**os.environ, "PYTHONHASHSEED": "1234"}
    command = [sys.executable, "-c", code]
    other = subprocess.run(
        command, env=environment, capture_output=True, check=True, text=True, timeout=60
    )
    assert other.stdout.strip() == run(3, nodes=4).trace_hash


def test_report_has_a_row_for_each_pattern() -> None:
    table = report(seed=15, seeds=2)
    assert [column.header for column in table.columns][:2] == ["pattern", "seeds"]
    assert list(table.columns[0].cells) == [*PATTERNS, "real peers"]
    assert list(table.columns[1].cells) == ["2"] * 3


def test_report_says_which_seed_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Averager, "put_in", MUTANTS["no-weights"].put_in)
    with pytest.raises(PromiseBroken, match=r"seed 15, 3 nodes, neighbours on exponential"):
        report(seed=15, seeds=1)


@pytest.mark.parametrize(("nodes", "pattern"), [(2, "neighbours"), (8, "star")])
def test_misuse(nodes: int, pattern: str) -> None:
    with pytest.raises(ConfigError):
        run(0, nodes=nodes, pattern=pattern)
