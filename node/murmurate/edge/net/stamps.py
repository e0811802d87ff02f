"""The stamps of a push as bytes: each update's id and the clock it was computed on.

A sum may hold thousands of stamps, whose contexts differ by a few updates each. Written whole they
would soon be larger than a small model; written as what each adds, 4 origins take 22 bytes a stamp.
"""

from __future__ import annotations

from collections.abc import Sequence

from murmurate.core.batches.held import STAMP_RUNS_MAX
from murmurate.core.clock import Clock, Dot, Key, Range
from murmurate.core.intervals import SEQ_MAX, Runs
from murmurate.core.message import STAMPS_MAX, Stamp
from murmurate.core.values.limits import NAME_BYTES_MAX, Ascending, Count, Few, Printable
from murmurate.edge.net.shapes import read_clock
from murmurate.errors import RemoteProtocolError
from murmurate.v1 import peer_pb2 as pb

CONTEXTS_MAX = 1 << 18
"""Entries and runs touched in all contexts of a sum: a small head must not unfold to gigabytes."""
STEPS_MAX = 4096
"""A context that takes more work to add to an earlier one is written whole."""


_STAMPS = Few(STAMPS_MAX).check("push.stamps")
_ORIGIN = Printable(NAME_BYTES_MAX, empty=False).check("push.lives.origin")
_EPOCH = Count(1).check("push.lives.epoch")
_CONTEXT = read_clock("push.context")
_FEW_RUNS = Few(2 * STAMP_RUNS_MAX).check("push.batches")
_RUNS = Ascending().check("push.batches")


def write_push(dtype: str, stamps: tuple[Stamp, ...]) -> tuple[pb.PushHead, int]:
    """The head of a push, and the work of reading it again (`_Contexts`), or a little more.

    The contexts of one life grow, so each is written as what it adds to the one before.
    """
    places: dict[Key, int] = {}
    newest: dict[Key, int] = {}
    out = []
    work = 0
    for index, stamp in enumerate(stamps):
        dot, context, batches = stamp.dot, stamp.context, stamp.batches
        key = (dot.origin, dot.epoch)
        life = places.setdefault(key, len(places))
        before = newest.get(key, index - 1)
        newest[key] = index
        work += len(context.keys()) + 1 + len(batches)
        if before >= 0:
            added, steps = _added(context, stamps[before].context, places)
            if 0 <= steps <= STEPS_MAX:
                work += steps
                out.append(pb.Stamp(life=life, seq=dot.seq, back=index - before, added=added))
                out[-1].batches.extend(batches)
                out[-1].written = stamp.written
                continue
        out.append(pb.Stamp(life=life, seq=dot.seq, context=context.to_bytes()))
        out[-1].batches.extend(batches)
        out[-1].written = stamp.written
    lives = [pb.Life(origin=origin, epoch=epoch) for origin, epoch in places]
    return pb.PushHead(dtype=dtype, lives=lives, stamps=out), work


def _added(context: Clock, earlier: Clock, places: dict[Key, int]) -> tuple[list[int], int]:
    """What a context has beyond an earlier one, as triples, and the work of adding it.

    The work is -1 when it does not hold all that the earlier one does.
    """
    if (context.generation, context.base, context.apart) != (
        earlier.generation,
        earlier.base,
        earlier.apart,
    ):
        return [], -1
    spans = context.missing(earlier)
    if len(context) - sum(span.last - span.first + 1 for span in spans) != len(earlier):
        return [], -1
    out: list[int] = []
    steps = 0
    lasts: dict[Key, int] = {}
    for span in spans:
        key = (span.origin, span.epoch)
        last = lasts[key] if key in lasts else earlier.last(*key)
        place = places.setdefault(key, len(places))
        out += (place, span.first - last - 1, span.last - span.first)
        lasts[key] = max(last, span.last)
        # While it grows, a life's runs are those of the one context up to some place and those of
        # the other after it.
        steps += 3 + len(earlier.runs(key)) + len(context.runs(key))
    return out, steps


def read_stamps(m: pb.PushHead) -> tuple[Stamp, ...]:
    few = _STAMPS(m.stamps)
    if not few:
        raise RemoteProtocolError("push.stamps", "none")
    lives = [(_ORIGIN(life.origin), _EPOCH(life.epoch)) for life in m.lives]
    contexts = _Contexts(lives)
    stamps = []
    for each in few:
        if each.life >= len(lives):
            raise RemoteProtocolError("push.stamps", f"life {each.life} of {len(lives)}")
        origin, epoch = lives[each.life]
        seq = each.seq
        if not 0 < seq <= SEQ_MAX:
            raise RemoteProtocolError("push.stamps", f"number {seq}")
        context = contexts.read(each)
        stamps.append(Stamp(Dot(origin, epoch, seq), context, _batches(each), each.written))
    return tuple(stamps)


def _batches(m: pb.Stamp) -> Runs:
    return _RUNS(tuple(_FEW_RUNS(m.batches))) if m.batches else ()


class _Contexts:
    """The contexts of a sum, each perhaps growing from an earlier one, within a budget of work."""

    def __init__(self, lives: list[Key]) -> None:
        self._lives = lives
        self._read: list[tuple[Clock, int]] = []
        """Each with its number of entries, plus one."""
        self._left = CONTEXTS_MAX

    def read(self, m: pb.Stamp) -> Clock:
        back = m.back
        if back == 0:
            context: Clock = _CONTEXT(m.context)
            entries = len(context.keys()) + 1
            self._spend(entries)
        elif back > len(self._read) or m.context:
            raise RemoteProtocolError("push.back", f"{back}, with {len(self._read)} stamps before")
        else:
            earlier, entries = self._read[-back]
            self._spend(entries)
            context = earlier.copy()
            entries += self._grow(context, m.added)
        self._read.append((context, entries))
        return context

    def _grow(self, context: Clock, added: Sequence[int]) -> int:
        """Returns how many entries are new."""
        if len(added) % 3:
            raise RemoteProtocolError("push.added", f"{len(added)} numbers, not triples")
        lives, triples, new = self._lives, iter(added), 0
        for life, gap, more in zip(triples, triples, triples, strict=True):
            if not 0 <= life < len(lives):
                raise RemoteProtocolError("push.added", f"life {life} of {len(lives)}")
            key = lives[life]
            runs = context.runs(key)
            first = (runs[-1] if runs else 0) + 1 + gap
            last = first + more
            if not 0 < first <= last <= SEQ_MAX:
                raise RemoteProtocolError("push.added", f"{first} to {last}")
            self._spend(1 + len(runs))
            if more:
                context.add_range(Range(*key, first, last))
            else:
                context.add(Dot(*key, first))  # the usual one, and the quicker
            new += not runs
        return new

    def _spend(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise RemoteProtocolError("push.context", f"more than {CONTEXTS_MAX} entries in all")
