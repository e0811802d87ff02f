"""Values of a subnet as pieces of bytes and back, its units as bits, a structure as a digest.

Tensors go in the order of the structure, in rows, little-endian, without gaps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from murmurate.core.partition.structure import Held, Indices, Structure
from murmurate.edge.net.batch_values import as_bytes, swapped
from murmurate.edge.net.pieces import PieceOrder, PieceSize
from murmurate.errors import LocalProtocolError, RemoteProtocolError

Values = Mapping[str, torch.Tensor]


class Outgoing:
    """Values to be sent. They must not change until the last piece is out."""

    def __init__(self, structure: Structure, values: Values) -> None:
        if values.keys() != structure.tensors.keys():
            odd = sorted(values.keys() ^ structure.tensors.keys())
            raise LocalProtocolError(f"values: missing or unknown tensors: {odd[:3]}")
        self._views = []
        for name, tensor in structure.tensors.items():
            value = values[name]
            if value.dtype != dtype_of(tensor.dtype):
                raise LocalProtocolError(f"values: {name} is {value.dtype}, not {tensor.dtype}")
            if value.numel():
                self._views.append(as_bytes(swapped(value.detach().cpu().contiguous())))
        self.value_bytes = sum(view.nbytes for view in self._views)

    def pieces(self, size: PieceSize) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes, in order, each piece of the size that is right when it is made. Each
        byte is copied once, then."""
        offset, parts, filled, most = 0, [], 0, size.nbytes
        for view in self._views:
            start = 0
            while start < view.nbytes:
                part = view[start : start + most - filled]
                parts.append(part)
                start, filled = start + part.nbytes, filled + part.nbytes
                if filled == most:
                    yield offset, b"".join(parts)
                    offset, parts, filled, most = offset + filled, [], 0, size.nbytes
        if parts:
            yield offset, b"".join(parts)


class Incoming:
    """Values that come in, written straight into tensors of their own. `values` once `take` said
    that all are there; until then they are nobody's business."""

    def __init__(
        self,
        what: str,
        structure: Structure,
        held: Held,
        value_bytes: int,
    ) -> None:
        """`what`: push or give, for errors. RemoteProtocolError: not the size of such a subnet."""
        shapes = {
            name: (tensor.part(held), dtype_of(tensor.dtype))
            for name, tensor in structure.tensors.items()
        }
        expected = value_size(structure, held)
        if value_bytes != expected:  # before anything is allocated
            raise RemoteProtocolError(
                f"{what}.value_bytes", f"{value_bytes}, expected {expected} for these units"
            )
        self._what = what
        self._tensors = {n: torch.empty(shape, dtype=dtype) for n, (shape, dtype) in shapes.items()}
        self._views = [as_bytes(t) for t in self._tensors.values() if t.numel()]
        self._order = PieceOrder(what, value_bytes)
        self._at = self._within = 0

    def take(self, offset: int, raw: bytes | memoryview) -> bool:
        """Whether these were the last bytes."""
        done = self._order.take(offset, len(raw))
        rest = memoryview(raw)
        while rest:
            view = self._views[self._at]
            part = rest[: view.nbytes - self._within]
            view[self._within : self._within + len(part)] = part
            self._within += len(part)
            rest = rest[len(part) :]
            if self._within == view.nbytes:
                self._at, self._within = self._at + 1, 0
        return done

    @property
    def values(self) -> dict[str, torch.Tensor]:
        if not self._order.done:
            raise LocalProtocolError(f"{self._what}: not all of its values are here")
        return {name: swapped(tensor) for name, tensor in self._tensors.items()}


class Unwanted:
    """The same for values that are not kept: what is announced next comes after them."""

    def __init__(self, what: str, value_bytes: int) -> None:
        self._order = PieceOrder(what, value_bytes)

    def take(self, offset: int, raw: bytes | memoryview) -> bool:
        return self._order.take(offset, len(raw))


# -- units as bits -------------------------------------------------------------------------------


def encode_held(held: Held) -> bytes:
    """A bit for each unit, the lowest bit of the first byte for unit 0."""
    return np.packbits(held[:-1], bitorder="little").tobytes()  # the last place is SHARED's


def decode_held(structure: Structure, data: bytes) -> Held:
    """RemoteProtocolError unless it is of this structure, with a unit of every axis."""
    expected = (structure.units + 7) // 8
    if len(data) != expected:
        raise RemoteProtocolError(
            "give.held", f"{len(data)} bytes, expected {expected} for {structure.units} units"
        )
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little").astype(np.bool_)
    if bits[structure.units :].any():
        raise RemoteProtocolError("give.held", f"a unit beyond the {structure.units} there are")
    held = structure.nothing()
    held[:-1] = bits[: structure.units]
    for group in structure.groups:
        if not structure.width(group, held):
            raise RemoteProtocolError("give.held", f"no unit of {group.name}, expected at least 1")
    return held


# -- what both sides must have found -------------------------------------------------------------


def structure_digest(structure: Structure) -> bytes:
    """sha256 of all that a subnet depends on: groups, units along every axis, tensors, heads,
    calls that name sizes. Not of the example it was found with: of a call that names sizes only
    those count that units change."""
    digest = hashlib.sha256(b"murmurate structure 1\n")

    def add(*what: Any) -> None:
        digest.update(json.dumps(what, separators=(",", ":")).encode() + b"\n")

    def units(array: Indices | None) -> None:
        if array is None:
            add("shared")
            return
        add("units", *array.shape)
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())

    for group in structure.groups:
        add("group", group.name, group.first, group.count)
    for name, tensor in structure.tensors.items():
        add("tensor", name, tensor.shape, tensor.dtype, tensor.trained, name in structure.normed)
        for axis, inward in zip(tensor.axes, tensor.inward, strict=True):
            add("axis", inward)
            units(axis)
    for path, (size, heads) in sorted(structure.heads.items()):
        add("heads", path, size)
        units(heads)
    for call in structure.rewrites:
        sizes = [size if n > 1 else 0 for size, n in zip(call.shape, call.units.shape, strict=True)]
        add("call", call.node, sizes)
        units(call.units)
    return digest.digest()


def value_size(structure: Structure, held: Held) -> int:
    """Bytes of the values of such a subnet."""
    total = 0
    for tensor in structure.tensors.values():
        size = dtype_of(tensor.dtype).itemsize
        for each in tensor.part(held):
            size *= each
        total += size
    return total


@cache
def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise LocalProtocolError(f"{name!r} is no type of a tensor")
    return dtype
