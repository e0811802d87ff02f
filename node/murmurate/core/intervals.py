"""Sets of sequence numbers as sorted, disjoint runs `(first, last, first, last, …)`.

Immutable, so that clocks share them; functions instead of a class, because a distance over 64
origins is to cost microseconds.
"""

from __future__ import annotations

Runs = tuple[int, ...]
SEQ_MAX = 2**62
"""No honest peer gets near it: a million updates a second for 146,000 years."""


def runs_size(runs: Runs) -> int:
    """How many numbers the runs hold."""
    if len(runs) == 2:
        return runs[1] - runs[0] + 1
    return sum(runs[i + 1] - runs[i] + 1 for i in range(0, len(runs), 2))


def runs_has(runs: Runs, seq: int) -> bool:
    """Whether `seq` is in the runs; newest runs are looked at first."""
    for i in range(len(runs) - 2, -1, -2):
        if seq >= runs[i]:
            return seq <= runs[i + 1]
    return False


def runs_add(runs: Runs, first: int, last: int) -> Runs:
    """The runs with `first..last` merged in, still sorted, disjoint and not adjacent."""
    n = len(runs)
    if n and runs[-1] + 1 == first:
        return (*runs[:-1], last)
    start = 0
    while start < n and runs[start + 1] + 1 < first:
        start += 2
    stop = start
    while stop < n and runs[stop] <= last + 1:
        stop += 2
    if stop > start:
        first = min(first, runs[start])
        last = max(last, runs[stop - 1])
    return (*runs[:start], first, last, *runs[stop:])


def runs_common(a: Runs, b: Runs) -> int:
    """How many numbers are in both; one linear merge."""
    total = i = j = 0
    while i < len(a) and j < len(b):
        low = a[i] if a[i] > b[j] else b[j]
        if a[i + 1] < b[j + 1]:
            high = a[i + 1]
            i += 2
        else:
            high = b[j + 1]
            j += 2
        if high >= low:
            total += high - low + 1
    return total


def runs_minus(a: Runs, b: Runs) -> Runs:
    """What is in `a` and not in `b`."""
    out: list[int] = []
    j = 0
    for i in range(0, len(a), 2):
        first, last = a[i], a[i + 1]
        while j < len(b) and b[j + 1] < first:
            j += 2
        k = j
        while k < len(b) and b[k] <= last:
            if b[k] > first:
                out += (first, b[k] - 1)
            first = b[k + 1] + 1
            k += 2
        if first <= last:
            out += (first, last)
    return tuple(out)


def runs_problem(runs: Runs) -> str:
    """Why these are not sorted, disjoint runs that do not touch, from 1 on; empty: they are."""
    if not runs or len(runs) % 2:
        return f"{len(runs)} ends"
    at = -1
    for i in range(0, len(runs), 2):
        if not at + 1 < runs[i] <= runs[i + 1]:
            return f"{runs[i]}-{runs[i + 1]} after {at}"
        at = runs[i + 1]
    return "" if at <= SEQ_MAX else f"{at} is beyond {SEQ_MAX}"
