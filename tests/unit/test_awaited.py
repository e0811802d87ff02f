"""Who is not on the roster yet and is away: what it may have is not closed without it, and what it
will need is kept."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from tests.unit.test_peer import ELEMENTS, Disk, Swarm, founding, value

from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Adopted
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.past import Past
from murmurate.core.gossip.peer import Peer
from murmurate.core.message import ALIVE, Ack, Rumour, Snapshot
from murmurate.core.replica import Replica

CONFIG = PeerConfig(digest_interval_s=0.25)
"""As a node has it whose log is in its checkpoints."""


class Nodes(Swarm):
    """A crash takes what was made since the last checkpoint. Nobody finds a stranger by itself."""

    def __init__(self, kept: int = 1) -> None:
        self.kept = kept
        self.files: dict[str, list[tuple[Snapshot, Past]]] = {}
        super().__init__("a", CONFIG)

    def start(self, name: str, *, founder: bool = False, seeds: Iterable[str] = ()) -> None:
        disk = self.disks.setdefault(name, Disk())
        disk.epoch += 1
        files = self.files.setdefault(name, [])
        old, past = files[-1] if files else (None, Past())
        weights = torch.zeros(ELEMENTS, dtype=torch.int64) if old is None else old.weights.clone()
        made = Peer(
            name,
            disk.epoch,
            Replica(weights, Clock() if old is None else old.clock.copy()),
            rng=random.Random(f"{name}/{disk.epoch}"),
            config=self.config,
            history=old.history if old is not None else founding(self.names) if founder else (),
            past=Past(
                log=past.log, store=past.store, vow=disk.vow, history=disk.history, met=disk.met
            ),
            synced=founder or old is not None,
        )
        for kept, (snapshot, _) in enumerate(files, 1):
            made.checkpointed(snapshot.clock, kept=kept)
        if founder:
            made.checkpointed(Clock())
        self.begin(name, made, seeds)

    def checkpoint(self, *names: str) -> None:
        for name in names or tuple(self.peers):
            peer = self[name]
            if peer.synced:
                snapshot = peer.snapshot()
                file = (snapshot, Past(log=tuple(peer.log), store=tuple(peer.store)))
                self.files[name] = [*self.files[name], file][-self.kept :]
                peer.checkpointed(snapshot.clock, kept=len(self.files[name]))

    def introduce(self, one: str, other: str) -> None:
        word = Rumour(other, self[other].epoch, 0, ALIVE)
        self.receive(one, other, Ack(0, other, rumours=(word,)))

    def publish(self, name: str) -> Dot:
        by = self[name]
        dot = Dot(name, by.epoch, by.seq + 1)
        self.made.append(dot)
        self.drivers[name].publish(value(dot), by.context(), self.now)
        self.pump(name)
        return dot


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("early", [True, False], ids=["before any vote", "a vote was on its way"])
def test_two_that_come_back_alone_and_meet_lose_nothing_a_disk_has(kept: int, early: bool) -> None:
    """`a` founded the run, `b` had just joined it. What `a` made after its last checkpoint is in
    `b`'s; what each made alone is in no checkpoint of the other."""
    nodes = Nodes(kept)
    nodes.run(0.1 if early else 1.9)  # of the 2 s between two votes
    nodes.start("b", seeds="a")
    nodes.run(0.1)
    for _ in range(3):
        nodes.publish("a")
        nodes.publish("b")
        nodes.run(0.1)
    nodes.checkpoint("a")
    for _ in range(3):
        nodes.publish("a")
    nodes.run(0.1)
    nodes.checkpoint("b")
    assert len(nodes["b"].clock) == len(nodes.made)
    for name in "ab":
        nodes.crash(name)
    nodes.cut("a", "b")
    for name in "ab":
        nodes.start(name)
    for _ in range(10):
        nodes.run(0.2)
        for name in "ab":
            nodes.publish(name)
            nodes.checkpoint(name)
    nodes.heal()
    nodes.introduce("a", "b")
    nodes.run(20.0)
    nodes.assert_converged()
    assert not any(effect.given_up or effect.retired for effect in nodes.effects(Adopted))
    assert nodes["a"].baseline.roster == ("a", "b")
    assert set(nodes["a"].clock.keys()) == {("a", 2), ("b", 2)}, "the rest is folded"


def test_who_left_is_folded_though_another_is_waited_for() -> None:
    """By its own word it made no more than all have."""
    nodes = Nodes()
    nodes.start("b", seeds="a")
    nodes.run(5.0)
    assert "b" in nodes["a"].baseline.roster
    nodes.publish("b")
    nodes.start("c", seeds="a")
    nodes.run(0.2)
    assert nodes.disks["a"].met == ("c",)
    nodes.publish("c")
    nodes.run(0.1)
    nodes.crash("c")
    nodes.run(6.0)  # until it is dead
    nodes.leave("b")
    nodes.run(10.0)
    assert nodes["a"].standing.awaited(nodes.now) == ["c"]
    assert "b" not in nodes["a"].baseline.roster
    assert nodes["a"].clock.keys() == [("c", 1)]


def test_who_was_voted_out_while_i_was_away_is_not_waited_for() -> None:
    """My old roster has it, and nobody is left who would speak of it."""
    s = Swarm("abcd")
    for name in "ad":
        s.run(3.0)
        s.leave(name)
        s.run(6.0)
        assert s[name].others.settled()
        s.crash(name)
    s.start("a")
    s.publish("c")
    s.run(6.0)
    s.crash("c")
    s.start("c")
    s.run(15.0)
    assert s["b"].baseline.roster == ("a", "b", "c")
    assert s["b"].clock.keys() == [], "the first life of c is folded"
