"""Updates in fewer bytes: bf16, int8 by blocks, and the largest few (top-k).

What an encoded update says is what is added, by everyone, its origin too; so replicas agree. What
encoding left out stays in the origin's parameters, which are ahead of its weights by that much, and
goes into the next update: error feedback, without a buffer for it (docs/codecs.md).

All of it goes block by block through one small buffer: what fits the cache costs one pass over
memory however many operations it takes, and fresh memory costs more than all of them (100 MB, one
thread: bf16 6 ms, int8 18 ms, top-k 1 % 17 ms; a copy 10 ms, `torch.topk` 590 ms).

The bytes are little-endian, and a multiple of 4: so each form starts aligned behind another.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from murmurate.core import buffers
from murmurate.core.codecs import span, topk
from murmurate.core.codecs.choice import CODECS, Choice
from murmurate.core.message import Part, Push
from murmurate.errors import ConfigError, RemoteProtocolError

CODED = CODECS[1:]
"""Those a node can be told to use."""
READ = (*CODED, span.CODEC)
"""All that stand in `Push.parts`."""
BLOCK = 1 << 18
"""Elements at a time."""
ROW = 4096
"""Elements of int8 that share one scale, which is then a thousandth of the bytes."""
SMALLEST = 1e-37
"""A row whose scale is below is sent as zeros; 1 / scale must be a number."""

_SWAP = sys.byteorder == "big"


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Numbers of a model with `size` elements in one codec's bytes, checked: a `Part` of a push."""

    codec: str
    size: int
    data: torch.Tensor
    """uint8, as on the wire; it never changes."""

    @property
    def nbytes(self) -> int:
        return self.data.numel()

    def add_to(self, flat: torch.Tensor, *, start: int = 0, times: float = 1.0) -> None:
        """Decode and add, block by block. The result is the same on every machine, to the bit.
        `flat`: the model's numbers from `start` on, all or some; `times`: for one's own use."""
        _ADD[self.codec](self, flat, start, times)

    def norm(self) -> float:
        """Of what is decoded (int8: at most); NaN or inf where a number is not finite."""
        return _NORM[self.codec](self)

    def decoded(self) -> torch.Tensor:
        flat = torch.zeros(self.size)
        self.add_to(flat)
        return flat


class Encoder:
    """Encodes the updates of one node, always of one size."""

    def __init__(self, choice: Choice, size: int, dtype: torch.dtype = torch.float32) -> None:
        if choice.plain or choice.name not in CODED:
            raise ConfigError(f"codec {choice.name!r}: one of {', '.join(CODED)}")
        if dtype != torch.float32:
            raise ConfigError(
                f"codec {choice.name!r}: the model is {str(dtype).removeprefix('torch.')}, and only"
                " float32 models can be encoded; use codec 'fp32': numbers as they are"
            )
        if choice.name == "topk" and size > topk.SIZE_MAX:
            raise ConfigError(f"codec 'topk': {size} elements, at most {topk.SIZE_MAX}")
        self.choice = choice
        self.size = size
        self._scratch = torch.empty(min(BLOCK, size))

    def encode(self, delta: torch.Tensor) -> Encoded:
        """What is not finite comes out as something whose `norm` is not finite."""
        flat = delta.detach().contiguous()
        if self.choice.name == "bf16":
            data = _encode_bf16(flat)
        elif self.choice.name == "int8":
            data = _encode_int8(flat, self._scratch)
        else:
            data = _encode_topk(flat, self.choice.part, self._scratch)
        return Encoded(self.choice.name, self.size, data)

    def encode_last(self, rest: torch.Tensor) -> Encoded | None:
        """What is left at the end of a run, where no other update will put right what is lost. Of
        bf16 and int8 it is one rounding's, less than half a step, and not worth an update: None."""
        if self.choice.name != "topk":
            return None
        return Encoder(Choice("int8"), self.size).encode(rest)


# -- bytes from a stranger -----------------------------------------------------------------------


def check_bytes(codec: str, size: int, nbytes: int) -> None:
    """Whether a form of a model with `size` elements can have so many bytes: before any memory."""
    if codec not in READ:
        raise RemoteProtocolError("push.parts", f"codec {codec[:20]!r}, one of {', '.join(READ)}")
    if codec == span.CODEC:
        span.check_bytes(size, nbytes)
        return
    if codec == "topk":
        topk.check_bytes(size, nbytes)
        return
    expected = _bf16_bytes(size) if codec == "bf16" else _int8_bytes(size)
    if nbytes != expected:
        raise RemoteProtocolError("push.parts", f"{codec}: {nbytes} bytes, expected {expected}")


def opened(codec: str, size: int, data: torch.Tensor) -> Encoded:
    """A form that came in, checked; RemoteProtocolError names what is wrong with it."""
    check_bytes(codec, size, data.numel())
    if codec == "topk":
        topk.check(size, data.numpy())
    elif codec == "int8":
        scales, _ = _int8(size, data)
        if not bool(torch.isfinite(scales).all()) or bool((scales < 0).any()):
            raise RemoteProtocolError("push.parts", "int8: a scale that is negative or not finite")
    elif codec == span.CODEC:
        span.check(size, _little(data, 4))
    return Encoded(codec, size, data)


# -- bf16 ----------------------------------------------------------------------------------------


def _bf16_bytes(size: int) -> int:
    return (2 * size + 3) // 4 * 4


def _encode_bf16(flat: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest, ties to even."""
    size = flat.numel()
    data = buffers.empty(_bf16_bytes(size), torch.uint8)
    data[2 * size :] = 0
    data[: 2 * size].view(torch.bfloat16).copy_(flat)
    return _little(data, 2)


def _bf16(form: Encoded) -> torch.Tensor:
    return _little(form.data, 2)[: 2 * form.size].view(torch.bfloat16)


def _add_bf16(form: Encoded, flat: torch.Tensor, start: int, times: float) -> None:
    numbers = _bf16(form)[start : start + flat.numel()]
    scratch = torch.empty(min(BLOCK, form.size))
    for part, into in zip(torch.split(numbers, BLOCK), torch.split(flat, BLOCK), strict=True):
        wide = scratch[: part.numel()]
        wide.copy_(part)
        into.add_(wide, alpha=times)


def _norm_bf16(form: Encoded) -> float:
    scratch = torch.empty(min(BLOCK, form.size))
    total = 0.0
    for part in torch.split(_bf16(form), BLOCK):
        wide = scratch[: part.numel()]
        wide.copy_(part)
        total = math.hypot(total, float(torch.linalg.vector_norm(wide)))
    return total


# -- int8 by rows: scales, then numbers ----------------------------------------------------------


def _rows(size: int) -> int:
    return -(-size // ROW)


def _int8_bytes(size: int) -> int:
    return 4 * _rows(size) + (size + 3) // 4 * 4


def _encode_int8(flat: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """Each row by its largest magnitude, rounded to the nearest of 255 steps."""
    size = flat.numel()
    data = buffers.empty(_int8_bytes(size), torch.uint8)
    start = 4 * _rows(size)
    data[start + size :] = 0
    scales = data[:start].view(torch.float32)
    numbers = data[start : start + size].view(torch.int8)
    whole = size // ROW * ROW
    for at in range(0, whole, BLOCK):
        end = min(at + BLOCK, whole)
        _quantize(
            flat[at:end].view(-1, ROW),
            scratch[: end - at].view(-1, ROW),
            scales[at // ROW : end // ROW],
            numbers[at:end].view(-1, ROW),
        )
    if whole < size:
        rest = size - whole
        _quantize(
            flat[whole:].view(1, rest),
            scratch[:rest].view(1, rest),
            scales[-1:],
            numbers[whole:].view(1, rest),
        )
    if _SWAP:
        data[:start] = _little(data[:start], 4)
    return data


def _quantize(
    rows: torch.Tensor, scratch: torch.Tensor, scales: torch.Tensor, numbers: torch.Tensor
) -> None:
    # amax and amin run at memory speed; abs().amax() and aminmax() take ten times as long.
    largest = torch.maximum(torch.amax(rows, 1), torch.amin(rows, 1).neg_()).mul_(1 / 127)
    zero = largest < SMALLEST
    largest.masked_fill_(zero, 0.0)
    scales.copy_(largest)
    factors = largest.reciprocal_().masked_fill_(zero, 0.0)
    torch.mul(rows, factors.unsqueeze(1), out=scratch)
    numbers.copy_(scratch.round_())


def _int8(size: int, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    start = 4 * _rows(size)
    scales = _little(data[:start], 4).view(torch.float32)
    return scales, data[start : start + size].view(torch.int8)


def _add_int8(form: Encoded, flat: torch.Tensor, start: int, times: float) -> None:
    size, stop = form.size, start + flat.numel()
    scales, numbers = _int8(size, form.data)
    scratch = torch.empty(min(BLOCK, size))
    for at in range(start // ROW * ROW, stop, BLOCK):
        end = min(at + BLOCK, size)
        wide = scratch[: end - at]
        wide.copy_(numbers[at:end])
        whole = len(wide) // ROW
        factors = scales[at // ROW : at // ROW + whole].unsqueeze(1)
        wide[: whole * ROW].view(-1, ROW).mul_(factors)
        if whole * ROW < len(wide):  # the last row of all
            wide[whole * ROW :].mul_(scales[-1])
        first, last = max(at, start), min(end, stop)
        flat[first - start : last - start].add_(wide[first - at : last - at], alpha=times)


def _norm_int8(form: Encoded) -> float:
    """At most: as if every number were the largest of its row."""
    scales, _ = _int8(form.size, form.data)
    return 128.0 * math.sqrt(min(ROW, form.size)) * float(torch.linalg.vector_norm(scales.double()))


# -- top-k: gaps, then values --------------------------------------------------------------------


def _encode_topk(flat: torch.Tensor, part: float, scratch: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(topk.encode(flat.numpy(), part, scratch.numpy()))


def _add_topk(form: Encoded, flat: torch.Tensor, start: int, times: float) -> None:
    into, stop = flat.numpy(), start + flat.numel()
    for indices, values in topk.decode(form.data.numpy()):
        first, last = np.searchsorted(indices, (start, stop))
        there, what = indices[first:last] - np.int32(start), values[first:last]
        if times != 1.0:
            what = what * np.float32(times)
        np.add.at(into, there, what)  # half the time of `into[there] += what`


def _norm_topk(form: Encoded) -> float:
    return topk.norm(form.data.numpy())


# -- span: a part of the numbers, as they are ----------------------------------------------------


def part_in(place: slice, size: int, fill: Callable[[torch.Tensor], object]) -> Encoded:
    """A part that lies in this place of a model with `size` elements; `fill` writes its numbers,
    where they will be sent from."""
    data, numbers = span.empty(place)
    fill(numbers)
    return Encoded(span.CODEC, size, _little(data, 4))


def span_in(part: Part) -> tuple[slice, torch.Tensor] | None:
    """The place and the numbers of a part made by `part_in`; None: it is of another form."""
    if part.codec != span.CODEC:
        return None
    return span.opened(_little(cast("Encoded", part).data, 4))


def places_of(parts: Sequence[Part]) -> list[slice] | None:
    """Where each of these changes the weights; None: everywhere, for they are not all spans."""
    if not parts or any(part.codec != span.CODEC for part in parts):
        return None
    return [found[0] for part in parts if (found := span_in(part)) is not None]


def place_of(messages: Iterable[object]) -> slice:
    """Where these change the weights; all of them, unless they are pushes of spans."""
    places = []
    for message in messages:
        found = places_of(message.parts if isinstance(message, Push) else ())
        if found is None:
            return slice(None)
        places += found
    start = min((place.start for place in places), default=0)
    return slice(start, max((place.stop for place in places), default=0))


def _add_span(form: Encoded, flat: torch.Tensor, start: int, times: float) -> None:
    place, numbers = span.opened(_little(form.data, 4))
    first, last = max(place.start, start), min(place.stop, start + flat.numel())
    if first < last:
        there = numbers[first - place.start : last - place.start]
        flat[first - start : last - start].add_(there, alpha=times)


def _norm_span(form: Encoded) -> float:
    return float(torch.linalg.vector_norm(span.opened(_little(form.data, 4))[1]))


# -- all of them ---------------------------------------------------------------------------------


def _little(data: torch.Tensor, width: int) -> torch.Tensor:
    """Words of so many bytes from, or to, little-endian: as they are on most machines."""
    return data.view(-1, width).flip(1).reshape(-1) if _SWAP else data


_ADD = {"bf16": _add_bf16, "int8": _add_int8, "topk": _add_topk, span.CODEC: _add_span}
_NORM = {"bf16": _norm_bf16, "int8": _norm_int8, "topk": _norm_topk, span.CODEC: _norm_span}
