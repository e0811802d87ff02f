"""Consecutive numbers of a model, as they are: how large models speak, a part at a time.

A node holds what it sends until all have it, and what it receives until all of it is here. Of an
update that is a part of the model it holds a part (docs/session.md, Memory).

The bytes: the place of the first number in two words of 32 bits, the lower first; then the numbers,
float32.
"""

from __future__ import annotations

import numpy as np
import torch

from murmurate.core import buffers
from murmurate.errors import RemoteProtocolError

CODEC = "span"
PLACE_BYTES = 8
TURNS = 4
"""A large model is sent in so many spans, one after another."""


def spans(size: int) -> list[slice]:
    """What is sent in each turn, for a model with so many elements."""
    length = turn_length(size)
    return [slice(at, min(at + length, size)) for at in range(0, size, length)]


def turn_length(size: int) -> int:
    return -(-size // TURNS)


def turn_bytes(size: int) -> int:
    """The largest form a node makes of such a model."""
    return PLACE_BYTES + 4 * turn_length(size)


def empty(span: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for a form, its place written, and the numbers in it: all in this machine's order."""
    data = buffers.empty(PLACE_BYTES + 4 * (span.stop - span.start), torch.uint8)
    place = data[:PLACE_BYTES].view(torch.int32).numpy().view(np.uint32)
    place[0], place[1] = span.start & 0xFFFFFFFF, span.start >> 32
    return data, data[PLACE_BYTES:].view(torch.float32)


def opened(data: torch.Tensor) -> tuple[slice, torch.Tensor]:
    """Where they belong, and the numbers."""
    low, high = data[:PLACE_BYTES].view(torch.int32).numpy().view(np.uint32)
    start = int(low) | int(high) << 32
    values = data[PLACE_BYTES:].view(torch.float32)
    return slice(start, start + values.numel()), values


def check_bytes(size: int, nbytes: int) -> None:
    """Whether a form of a model with `size` elements can have so many bytes."""
    if nbytes % 4 or not PLACE_BYTES < nbytes <= PLACE_BYTES + 4 * size:
        raise RemoteProtocolError("push.parts", f"span: {nbytes} bytes for {size} elements")


def check(size: int, data: torch.Tensor) -> None:
    """Whether it lies in the model."""
    place, _ = opened(data)
    if place.stop > size:
        problem = f"span: {place.start} to {place.stop} of {size} elements"
        raise RemoteProtocolError("push.parts", problem)
