"""What a peer says of itself to anyone who asks; read without torch, so that `status` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from murmurate.core.clock import Clock, Fold
from murmurate.core.figures.progress import NAMES_MAX, Progress
from murmurate.core.values.limits import Few, Line, Name, NameOrNone, Number
from murmurate.edge.net.messages import PROTOCOL_VERSION, Codec, Version, parsed
from murmurate.v1 import peer_pb2 as pb

DESCRIPTION_BYTES_MAX = 4 << 20
TENSORS_MAX = 1 << 15
MEMBERS_MAX = 4096
AXES_MAX = 16


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """One tensor of the model, in the order of the flat buffer."""

    name: Line
    dtype: Name
    shape: Annotated[tuple[Number, ...], Few(AXES_MAX)]


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as the described peer sees it, and why."""

    name: Name
    epoch: Number
    state: str
    address: Line = ""
    reason: Line = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Who a peer is, what it trains, whom it knows and how far all have got."""

    version: Version = PROTOCOL_VERSION
    instance: Name
    """Random for each process: so one's own address is recognised."""
    run: Name
    rule: NameOrNone = "sum"
    swarm: NameOrNone
    """The id of the founding; empty while not part of one."""
    name: Name
    epoch: Number
    address: Line
    synced: bool
    schema: Name
    tensors: Annotated[tuple[DescribedTensor, ...], Few(TENSORS_MAX)] = ()
    members: Annotated[tuple[DescribedMember, ...], Few(MEMBERS_MAX)] = ()
    clock: Clock = field(default_factory=Clock)
    progress: Annotated[tuple[Progress, ...], Few(NAMES_MAX)] = ()
    folds: Annotated[tuple[Fold, ...], Few(MEMBERS_MAX)] = ()
    """Lives that are over and left the clock, and what was held of them."""
    arrived: Clock | None = None
    """The clock there will be when all that is here is folded in; None: an older peer."""


DESCRIPTION = Codec(Description, pb.Description, "description", bytes_max=DESCRIPTION_BYTES_MAX)
encode_description, decode_description = DESCRIPTION.encode, DESCRIPTION.decode


def check_describe_request(data: bytes) -> None:
    """The request has no fields; whatever comes must at least be protobuf, and small."""
    parsed("describe", pb.DescribeRequest, data, 1024)
