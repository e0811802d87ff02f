"""`study/sim/mixing.py`: the real peers of averaging under the driver, on a bad network."""

from __future__ import annotations

from collections import Counter

import pytest

from murmurate.core.gossip.average.push_sum import Averager, IsFar, Merged, Share, Stale
from murmurate.errors import PromiseBroken
from murmurate.study.sim import mixing


def test_40_seeds_conserve_the_mass_and_end_with_one_model() -> None:
    runs = [mixing.run(seed) for seed in range(40)]
    counts = sum((one.counts for one in runs), Counter[str]())
    assert max(one.leak for one in runs) <= mixing.LEAK_MAX
    for kind in ("crash", "join", "leave", "cut", "one-way cut", "lost", "late duplicate"):
        assert counts[kind] > 5, kind
    assert counts["merges"] > 10_000


@pytest.mark.parametrize("seed", [163, 1159, 1466])
def test_nobody_is_cut_off_for_good(seed: int) -> None:
    """Where two ends of a link could refuse each other for ever, a tree or ring ended in parts that
    had each their own model: only the two ends knew of it."""
    assert mixing.run(seed).counts["merges"] > 100  # and they agree in the end, or it raises


def test_one_seed_decides_everything() -> None:
    assert mixing.run(3).trace_hash == mixing.run(3).trace_hash != mixing.run(4).trace_hash


def test_a_share_that_is_put_in_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Averager.receive

    def again(
        self: Averager, sender: str, share: Share, is_far: IsFar | None = None
    ) -> Merged | Stale:
        tie = self.ties.get(sender)
        if tie is not None and tie.epoch == share.epoch and share.seq <= tie.taken:
            tie.taken = share.seq - 1
        return receive(self, sender, share, is_far)

    monkeypatch.setattr(Averager, "receive", again)
    with pytest.raises(PromiseBroken, match="twice"):
        mixing.run(1)


def test_mass_that_goes_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = Averager.assign

    def leaky(self: Averager, partner: str, epoch: int, part: float) -> Share | None:
        share = assign(self, partner, epoch, part)
        self.weight *= 1.0 - 1e-6
        return share

    monkeypatch.setattr(Averager, "assign", leaky)
    with pytest.raises(PromiseBroken, match="mass"):
        mixing.run(0)
