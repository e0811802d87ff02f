"""The small messages: one protobuf message for each class (proto/murmurate/v1/peer.proto)."""

from __future__ import annotations

from murmurate.core.figures.progress import Progress
from murmurate.core.gossip.average.push_sum import Receipt
from murmurate.core.message import (
    Accept,
    Accepted,
    Ack,
    Decided,
    Digest,
    Lack,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    SnapshotRequest,
    Want,
)
from murmurate.edge.net.messages import OneOfCodec
from murmurate.v1 import peer_pb2 as pb

NOTE_BYTES_MAX = 60 << 10
"""Leaves room for a small piece beside it in a frame."""

Note = (
    Digest
    | Want
    | Lack
    | SnapshotRequest
    | Ping
    | PingRequest
    | Ack
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Decided
    | Receipt
    | Progress
)

NOTE = OneOfCodec[Note](Note, pb.Note, "note", bytes_max=NOTE_BYTES_MAX)
encode_note, decode_note = NOTE.encode, NOTE.decode
