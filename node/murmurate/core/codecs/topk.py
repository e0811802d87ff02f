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

import math
from collections.abc import Iterator

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
CHUNK = 1 << 18
"""Entries at a time: of a large model they are many, and each is several numbers on its way."""
_SIGN = np.int32(-(2**31))

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]


# -- the bytes -----------------------------------------------------------------------------------


def encode(flat: Floats, part: float, scratch: Floats) -> Bytes:
    """About a `part` of all, the largest; none that is 16 octaves below the largest of them."""
    indices, values = largest(flat, part, scratch)
    bits = values.view(np.int32)
    chunks = [slice(at, at + CHUNK) for at in range(0, bits.size, CHUNK)]
    base = max(0, max(int(_sizes(bits[chunk]).max()) for chunk in chunks) - CODES + 1)
    gaps, coded, last = [], [], -1
    for chunk in chunks:
        codes, there = _sizes(bits[chunk]) - np.int32(base), indices[chunk]
        code = codes.astype(np.uint8)
        code |= (bits[chunk] < 0).view(np.uint8) << np.uint8(7)
        if int(codes.min()) < 0:
            near = codes >= 0
            there, code = there[near], code[near]
        if there.size:
            gaps.append(_gaps(there, last))
            coded.append(code)
            last = int(there[-1])
    count, entries = (sum(each.size for each in some) for some in (gaps, coded))
    data = np.zeros(HEAD + _filled(count) + _filled(entries), dtype=np.uint8)
    data[:HEAD] = np.array([count, base], dtype="<u4").view(np.uint8)
    np.concatenate(gaps, out=data[HEAD : HEAD + count])
    start = HEAD + _filled(count)
    np.concatenate(coded, out=data[start : start + entries])
    return data


def _sizes(bits: Indices) -> Indices:
    """The magnitudes of these floats, of as many bits as a code is of, more or less."""
    sizes = bits & ~_SIGN
    # Half a step is added: rounded to the nearest. Not where it is not finite: that must be seen.
    sizes += np.where(sizes < 0x7F800000, np.int32(1 << (SHIFT - 1)), np.int32(0))
    sizes >>= SHIFT
    return sizes


def _gaps(indices: Indices, last: int) -> Bytes:
    """From the one before them, which is the last of those before, each to the next."""
    between = np.diff(indices, prepend=np.int32(last)) - np.int32(1)
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


def decode(data: Bytes) -> Iterator[tuple[Indices, Floats]]:
    """Where, rising, and what; of bytes that were checked. So many at a time, for models are
    large."""
    count, base = _head(data)
    gaps = data[HEAD : HEAD + count]
    start = HEAD + _filled(count)
    passed = np.int32(0)
    for at in range(0, count, CHUNK):
        some = gaps[at : at + CHUNK]
        near = some != FAR
        ends = np.cumsum(some + near.astype(np.int32), dtype=np.int32)
        ends += passed
        passed = ends[-1]
        entries = int(np.count_nonzero(near))
        coded = data[start : start + entries]
        start += entries
        yield (ends if entries == ends.size else ends[near]) - np.int32(1), _values(coded, base)


def norm(data: Bytes) -> float:
    """Of what is decoded; NaN or inf where a number is not finite."""
    total = 0.0
    for _, found in decode(data):
        total = math.hypot(total, float(np.linalg.norm(found.astype(np.float64))))
    return total


def _values(coded: Bytes, base: int) -> Floats:
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
    indices, values = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.float32)
    mask = np.empty(scratch.size, dtype=bool)
    count = 0
    for at in range(0, flat.size, scratch.size):
        block = flat[at : at + scratch.size]
        size, above = scratch[: block.size], mask[: block.size]
        np.abs(block, out=size)
        np.less_equal(size, threshold, out=above)
        np.logical_not(above, out=above)
        places = np.flatnonzero(above)
        before, count = count, count + len(places)
        if count > most:
            return None
        values[before:count] = block[places]
        indices[before:count] = places + at
    return indices[:count], values[:count]


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
