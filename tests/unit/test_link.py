"""What a link puts into its next frame, without a network: the size of pieces, and their pace."""

from __future__ import annotations

import zlib

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Generation, Ping, Push, Snapshot, Stamp
from murmurate.edge.net import wire
from murmurate.edge.net.deadline import Deadline
from murmurate.edge.net.pieces import PIECE_BYTES_FIRST, PIECE_BYTES_MIN
from murmurate.edge.net.send_queue import Packed, SendQueue
from murmurate.edge.net.transport import Limits

MIB = 1 << 20
NBYTES = 8 * MIB


class Clocked:
    """A link whose time stands still unless it is moved on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stall = Deadline(first=30.0, pause=3.0, most=30.0)
        self.link = SendQueue(Limits(), lambda: self.now, self.stall)

    def carry(self, nbytes: int = NBYTES) -> None:
        stamp = Stamp(Dot("a", 1, 1), Clock())
        self.link.carry(Packed.of(Push((stamp,), torch.zeros(nbytes // 4))))

    def frame(self, seconds: float) -> int:
        """Send one frame, which takes so long; the raw bytes in it."""
        data = self.link.next_frame()
        assert data is not None
        self.now += seconds
        self.link.took(seconds)
        return len(wire.decode_frame(data).raw)


def test_pieces_grow_while_they_leave_fast() -> None:
    it = Clocked()
    it.carry()
    sizes = [it.frame(0.001) for _ in range(5)]
    assert sizes == [PIECE_BYTES_FIRST, 2 * PIECE_BYTES_FIRST, MIB // 2, MIB, MIB]


def test_pieces_shrink_on_a_slow_way_and_small_messages_do_not_make_them_grow() -> None:
    it = Clocked()
    it.carry(256 << 10)
    sizes = [it.frame(2.0) for _ in range(3)]
    assert sizes == [2 * PIECE_BYTES_MIN, PIECE_BYTES_MIN, PIECE_BYTES_MIN]
    for number in range(5):
        it.link.post(wire.encode_note(Ping(number)))
        assert it.frame(0.001) == 0
    it.carry()
    assert it.frame(0.001) == PIECE_BYTES_MIN


def test_what_has_landed_sets_how_long_to_wait() -> None:
    it = Clocked()
    assert it.stall.limit == 30.0
    for number in range(1, 40):
        it.carry()
        sent = 0
        while sent < NBYTES:
            sent += it.frame(0.01)
        it.now += 0.1
        assert len(it.link.on_landed(number)) == 1
    assert 3.0 < it.stall.limit < 3.2


def test_pieces_of_a_snapshot_say_what_their_bytes_are() -> None:
    """Also those of one that goes on in the middle; those of a push say nothing."""
    it = Clocked()
    weights = torch.arange(3 * MIB, dtype=torch.float32)
    it.link.carry(Packed.of(Snapshot(weights, Clock(), (Generation(0, ("a",)),))))
    assert it.frame(0.001) == 0, "the offer"
    it.link.on_grants([wire.Grant(1, 5 * MIB)])
    left = 7 * MIB
    while left:
        data = it.link.next_frame()
        assert data is not None
        frame = wire.decode_frame(data)
        assert frame.piece is not None
        assert frame.piece.offset == 12 * MIB - left
        assert frame.piece.checksum == zlib.crc32(frame.raw) != 0
        left -= len(frame.raw)
    it.link.on_landed(1)
    it.carry()
    data = it.link.next_frame()
    assert data is not None
    frame = wire.decode_frame(data)
    assert frame.piece is not None
    assert frame.piece.checksum == 0


def test_a_bulk_message_waits_until_its_last_byte_has_left() -> None:
    it = Clocked()
    it.link.post(wire.encode_note(Ping(1)))
    assert not it.link.has_bulk
    it.carry(2 * PIECE_BYTES_FIRST)
    seen = []
    for _ in range(2):
        seen.append(it.link.has_bulk)
        it.frame(1.0)
    assert seen == [True, True]
    assert not it.link.has_bulk
    assert not it.link.idle  # it has not landed


def test_what_has_not_landed_is_lost_with_the_link_and_nothing_waits_then() -> None:
    it = Clocked()
    for _ in range(3):
        it.carry(PIECE_BYTES_FIRST)
    it.link.post(wire.encode_note(Ping(1)))
    it.frame(1.0)
    it.frame(1.0)
    it.link.on_landed(1)
    assert len(it.link.broke()) == 2
    assert it.link.idle
    assert it.link.free
    assert it.link.next_frame() is None
    assert it.link.broke() == []
