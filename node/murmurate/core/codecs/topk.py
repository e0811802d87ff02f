"""The largest few of a model's numbers: which they are, and their bytes, two for each.

Error feedback sends what is left out later, so a number need not be exact: it takes one byte, a
float of its own with a sign, 16 octaves below the largest of the update and 8 steps in each (off by
a 16th at most). The way from one to the next takes another. With indices and floats of 4 bytes each
it would be four times as much for the same numbers (docs/codecs.md).

    word    bytes of gaps, G
    word    base: what the smallest code stands for
    G       gaps: so many numbers are passed over before an entry; 255: 255 are, and no entry comes
    V       values, one for each gap that is not 255: sign (1 bit), code (7 bits)

Words are little-endian; gaps and values are each filled up with zeros to a multiple of 4. A value
is the float32 with the bits `sign << 31 | (base + code) << 20`: whole numbers only, so all machines
read the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmurate.errors import RemoteProtocolError

SAMPLES = (1 << 14, 1 << 18)
"""Elements a threshold is taken from: the first that hits, else all of them."""
SIZE_MAX = 2**31 - 1
FAR = 255
"""A gap that is not the way to an entry yet."""
CODES = 128
SHIFT = 20
"""Bits of a float32 that a code leaves out; it has those above: the exponent, 3 of the fraction."""
BASE_MAX = (1 << (31 - SHIFT)) - CODES
HEAD = 8
_SIGN = np.int32(-(2**31))

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]


# -- the bytes -----------------------------------------------------------------------------------


def encode(flat: Floats, part: float, scratch: Floats) -> Bytes:
    """About a `part` of all, the largest; none that is 16 octaves below the largest of them."""
    indices, values = largest(flat, part, scratch)
    bits = values.view(np.int32)
    sizes = bits & ~_SIGN
    # Half a step is added: rounded to the nearest. Not where it is not finite: that must be seen.
    sizes += np.where(sizes < 0x7F800000, np.int32(1 << (SHIFT - 1)), np.int32(0))
    sizes >>= SHIFT
    base = max(0, int(sizes.max()) - CODES + 1)
    codes = sizes - np.int32(base)
    if int(codes.min()) < 0:
        near = codes >= 0
        indices, codes, bits = indices[near], codes[near], bits[near]
    coded = codes.astype(np.uint8)
    coded |= (bits < 0).view(np.uint8) << np.uint8(7)
    gaps = _gaps(indices)
    data = np.zeros(HEAD + _filled(gaps.size) + _filled(coded.size), dtype=np.uint8)
    data[:HEAD] = np.array([gaps.size, base], dtype="<u4").view(np.uint8)
    data[HEAD : HEAD + gaps.size] = gaps
    start = HEAD + _filled(gaps.size)
    data[start : start + coded.size] = coded
    return data


def _gaps(indices: Indices) -> Bytes:
    between = np.diff(indices, prepend=np.int32(-1)) - np.int32(1)
    far = between // FAR
    if not far.any():
        return between.astype(np.uint8)
    places = np.cumsum(far + 1) - 1
    gaps = np.full(int(places[-1]) + 1, FAR, dtype=np.uint8)
    gaps[places] = between % FAR
    return gaps


def bytes_max(size: int) -> int:
    """Of a model with `size` elements: an entry for every second one."""
    return HEAD + _filled(max(1, size // 2) + size // FAR) + _filled(max(1, size // 2))


def check_bytes(size: int, nbytes: int) -> None:
    """Whether a form of such a model can have so many bytes: before any memory."""
    if nbytes % 4 or not HEAD + 8 <= nbytes <= bytes_max(size) or size > SIZE_MAX:
        raise RemoteProtocolError("push.parts", f"topk: {nbytes} bytes for {size} elements")


def check(size: int, data: Bytes) -> None:
    """Bytes from a stranger, of a size that can be."""
    count, base = _head(data)
    room = data.size - HEAD - 4  # the values take a word at least
    if not 1 <= count <= room or base > BASE_MAX:
        raise RemoteProtocolError("push.parts", f"topk: {count} gaps, base {base}")
    gaps = data[HEAD : HEAD + count]
    entries = count - int(np.count_nonzero(gaps == FAR))
    if gaps[-1] == FAR or HEAD + _filled(count) + _filled(entries) != data.size:
        problem = f"topk: {entries} values for {count} gaps in {data.size} bytes"
        raise RemoteProtocolError("push.parts", problem)
    if int(gaps.sum(dtype=np.int64)) + entries > size:
        raise RemoteProtocolError("push.parts", f"topk: an index that is not below {size}")


def decode(data: Bytes) -> tuple[Indices, Floats]:
    """Where, rising, and what; of bytes that were checked."""
    count, _ = _head(data)
    gaps = data[HEAD : HEAD + count]
    near = gaps != FAR
    ends = np.cumsum(gaps + near.astype(np.int32), dtype=np.int32)
    return (ends if near.all() else ends[near]) - np.int32(1), values(data)


def values(data: Bytes) -> Floats:
    count, base = _head(data)
    entries = int(np.count_nonzero(data[HEAD : HEAD + count] != FAR))
    start = HEAD + _filled(count)
    coded = data[start : start + entries]
    bits = (coded & np.uint8(CODES - 1)).astype(np.int32)
    bits += np.int32(base)
    bits <<= SHIFT
    bits[coded >= CODES] |= _SIGN
    return bits.view(np.float32)


def _head(data: Bytes) -> tuple[int, int]:
    count, base = data[:HEAD].view("<u4")
    return int(count), int(base)


def _filled(count: int) -> int:
    return (count + 3) // 4 * 4


# -- which they are ------------------------------------------------------------------------------


def largest(flat: Floats, part: float, scratch: Floats) -> tuple[Indices, Floats]:
    """Where the largest magnitudes are, and the numbers there: about a `part` of all.

    The threshold comes from a sample, so the count is not exact: half to one and a half times what
    was asked for, fewer only where no more are not zero. It is a function of the numbers alone.
    """
    size = flat.size
    wanted = max(1, round(part * size))
    for count in SAMPLES:
        if size < 2 * count:
            break
        sample = np.abs(flat[:: size // count | 1])  # odd: rows of a layer are often even
        place = max(1, round(wanted * sample.size / size))
        threshold = float(np.partition(sample, sample.size - place)[sample.size - place])
        found = _above(flat, threshold, scratch, int(1.5 * wanted))
        if found is not None and (len(found[0]) >= 0.5 * wanted or threshold == 0.0):
            return _some(flat, found)
    return _some(flat, _exactly(flat, wanted))


def _above(
    flat: Floats, threshold: float, scratch: Floats, most: int
) -> tuple[Indices, Floats] | None:
    """What is not at most the threshold (so NaN is); None: more than `most`."""
    indices: list[Indices] = []
    values: list[Floats] = []
    mask = np.empty(scratch.size, dtype=bool)
    count = 0
    for at in range(0, flat.size, scratch.size):
        block = flat[at : at + scratch.size]
        size, above = scratch[: block.size], mask[: block.size]
        np.abs(block, out=size)
        np.less_equal(size, threshold, out=above)
        np.logical_not(above, out=above)
        places = np.flatnonzero(above)
        count += len(places)
        if count > most:
            return None
        values.append(block[places])
        indices.append((places + at).astype(np.int32))
    return np.concatenate(indices), np.concatenate(values)


def _exactly(flat: Floats, wanted: int) -> tuple[Indices, Floats]:
    """So many, of equals those that come first; only zeros are never in it."""
    size = np.abs(flat)
    if wanted < flat.size:
        threshold = np.partition(size, flat.size - wanted)[flat.size - wanted]
        above = np.flatnonzero(~(size <= threshold))
        if not np.isfinite(threshold):
            above = np.flatnonzero(~np.isfinite(size))[:1]
        elif threshold > 0:
            equal = np.flatnonzero(size == threshold)[: wanted - len(above)]
            above = np.sort(np.concatenate((above, equal)))
    else:
        above = np.flatnonzero(size != 0)
    return above.astype(np.int32), flat[above]


def _some(flat: Floats, found: tuple[Indices, Floats]) -> tuple[Indices, Floats]:
    """At least one, though it be zero: an update has an id, and must arrive."""
    return found if len(found[0]) else (np.zeros(1, dtype=np.int32), flat[:1])
