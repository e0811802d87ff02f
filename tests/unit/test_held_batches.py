"""Batches beside the clock: what the updates in some weights say, however they came there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.test_checkpoint import made

from murmurate.core.batches.held import (
    NO_BATCHES,
    HeldBatches,
    runs_both,
    runs_of,
    runs_union,
)
from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.peer import Peer
from murmurate.core.intervals import Runs
from murmurate.core.message import Push, Snapshot, Stamp, summed
from murmurate.core.replica import Fresh, Replica
from murmurate.edge.disk import checkpoint
from murmurate.edge.net.tensor_messages import (
    decode_piece,
    encode_piece,
    put_together,
    take_apart,
)
from murmurate.errors import CheckpointError, LocalProtocolError, RemoteProtocolError
from murmurate.v1 import peer_pb2 as pb


def numbers(runs: Runs) -> set[int]:
    return {n for i in range(0, len(runs), 2) for n in range(runs[i], runs[i + 1] + 1)}


def test_beside_a_dumb_twin_that_keeps_plain_sets() -> None:
    rng = random.Random(7)
    for _ in range(200):
        held, seen, twice = NO_BATCHES, set[int](), set[int]()
        for _ in range(rng.randrange(1, 12)):
            some = {rng.randrange(1, 40) for _ in range(rng.randrange(5))}
            twice |= seen & some
            seen |= some
            held = held.add(runs_of(some))
        assert (numbers(held.numbers), numbers(held.repeated)) == (seen, twice)
        assert held == HeldBatches(runs_of(seen), runs_of(twice)), "in one form only"
        other = {rng.randrange(1, 40) for _ in range(9)}
        assert numbers(runs_both(runs_of(seen), runs_of(other))) == seen & other
        assert numbers(runs_union(runs_of(seen), runs_of(other))) == seen | other


def update(seq: int, batches: Runs, origin: str = "a") -> Push:
    return Push((Stamp(Dot(origin, 1, seq), Clock(), batches),), torch.ones(3))


def test_a_sum_says_the_batches_of_each_update_and_a_duplicate_counts_once() -> None:
    replica = Replica(torch.zeros(3))
    total = summed([update(1, (1, 2)), update(2, (3, 3, 7, 7))])
    assert isinstance(replica.fold(total.stamps, total.payload), Fresh)
    assert replica.batches == HeldBatches((1, 3, 7, 7))
    replica.fold(total.stamps, total.payload)
    assert replica.batches.repeated == (), "the same update, not the same batch in another"
    again = update(1, (3, 4), "b")
    replica.fold(again.stamps, again.payload)
    assert replica.batches == HeldBatches((1, 4, 7, 7), (3, 3))


def test_on_the_wire_and_back() -> None:
    push = summed([update(1, (1, 2)), update(2, ()), update(3, (3, 3, 7, 9))])
    snapshot = Snapshot(torch.ones(3), Clock(), (), batches=HeldBatches((1, 9), (4, 4)))
    for message in (push, snapshot):
        head, tensor = take_apart(message)
        data = encode_piece(number=1, total=12, head=head)
        piece = decode_piece(data, 12)
        assert piece.head is not None
        back: Any = put_together(piece.head, tensor)
        if isinstance(message, Push):
            assert back.stamps == push.stamps
        else:
            assert back.batches == snapshot.batches


@pytest.mark.parametrize("runs", [(0, 3), (3,), (2, 1), (1, 2, 3, 4), tuple(range(1, 9000, 2))])
def test_batches_that_cannot_be_are_refused_with_their_name(runs: Runs) -> None:
    head, _ = take_apart(update(1, (1, 1)))
    m = pb.Bulk.FromString(encode_piece(number=1, total=12, head=head))
    m.push.stamps[0].batches[:] = runs
    with pytest.raises(RemoteProtocolError, match=r"push\.batches"):
        decode_piece(m.SerializeToString(), 12)


def test_a_checkpoint_keeps_them_and_an_older_one_has_none(tmp_path: Path) -> None:
    held = HeldBatches((1, 9, 11, 12), (4, 4))
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        checkpoint.write(file, made(batches=held))
    assert checkpoint.read(path).batches == held
    for runs in ((2, 1), (0, 4)):
        with path.open("wb") as file:
            checkpoint.write(file, made(batches=HeldBatches(runs)))
        with pytest.raises(CheckpointError, match="batches"):
            checkpoint.read(path)


def peer(name: str = "a", **more: Any) -> Peer:
    return Peer.found(name, torch.zeros(3), rng=random.Random(1), **more)


def test_an_own_update_and_a_snapshot_of_it() -> None:
    a = peer()
    a.publish(torch.ones(3), a.context(), (5, 6))
    assert a.replica.batches == HeldBatches((5, 6))
    assert a.snapshot().batches == a.account(0.0).batches == HeldBatches((5, 6))
    b = Peer("b", 1, Replica(torch.zeros(3)), rng=random.Random(2), synced=False)
    b.fold("a", a.snapshot(), 0.0)
    assert b.replica.batches == HeldBatches((5, 6))
    assert Replica(torch.zeros(3)).batches == NO_BATCHES


def test_weights_that_are_exchanged_do_not_say_whose_batches_they_are() -> None:
    from murmurate.core.gossip.average.mixing import MixingPeer

    one = MixingPeer("a", 1, Replica(torch.zeros(3)), rng=random.Random(1))
    with pytest.raises(LocalProtocolError, match="batches"):
        one.publish(torch.ones(3), one.context(), (1, 1))
