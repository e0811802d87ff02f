"""Whom a member sends to, computed by each member alone.

Every graph is a function of the *sorted names* and nothing else: members with the same view compute
the same edges without a word between them, and views that differ in one name differ in a few edges.
Hence blake2b and never `hash()`, which is another function in every process.

    kind                  edges                                        links each    hops at most
    full                  everybody                                    n-1           1
    ring                  previous and next name                       2             n/2
    k-regular             `degree`/2 rings in salted hash orders       <= degree     O(log n)
    exponential           distances 1, 2, 4, ... along the names, one way  log2 n    log2 n
    one-peer-exponential  the same, one distance in each turn          1 in a turn   log2 n turns
    star                  the hub with the lowest hash                 1 (hub: n-1)  2
    tree                  a treap over the names: the merge tree       <= 3          O(log n)

All are strongly connected. All but the exponential two are symmetric.

Why a treap for the merge tree (key = name, priority = hash): its shape depends on the set of
members and not on who came first, and one member more or less changes O(1) edges on average, where
a heap numbered by position would move almost all of them. Measured at 1,000 members: depth 19, two
members at most 38 hops apart, 3.6 edges changed by one departure (19 at most).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

from murmurate.errors import ConfigError

TOPOLOGIES = ("full", "ring", "k-regular", "exponential", "one-peer-exponential", "star", "tree")
DEGREE = 4
"""Of k-regular: two rings. Measured at 1,000 members: 3.998 links each, 8 hops at most."""


def neighbours(
    kind: str, me: str, members: Sequence[str], *, degree: int = DEGREE
) -> tuple[str, ...]:
    """Whom `me` may ever send to: sorted, without `me`; nobody if alone or not a member."""
    _check(kind, degree)
    names = sorted(set(members))
    if me not in names or len(names) == 1:
        return ()
    if kind == "full":
        chosen: Iterable[str] = names
    elif kind == "ring":
        chosen = _beside(me, names)
    elif kind == "k-regular":
        chosen = _rings(me, names, degree)
    elif kind == "star":
        hub = min(names, key=_priority)
        chosen = names if me == hub else (hub,)
    elif kind == "tree":
        chosen = _tree(me, names)
    else:
        chosen = (_ahead(me, names, 1 << j) for j in range(_distances(names)))
    return tuple(sorted(set(chosen) - {me}))


def open_now(
    kind: str, me: str, members: Sequence[str], turn: int, *, degree: int = DEGREE
) -> tuple[str, ...]:
    """The neighbours to send to in this turn; only one-peer-exponential leaves any out.

    Turns need not agree between members: each goes round its own neighbours, and the union over
    ceil(log2 n) turns is all of them whatever the others do.
    """
    if kind != "one-peer-exponential":
        return neighbours(kind, me, members, degree=degree)
    names = sorted(set(members))
    if me not in names or len(names) == 1:
        return ()
    return (_ahead(me, names, 1 << turn % _distances(names)),)


def relays(kind: str) -> bool:
    """Whether updates of others must be passed on: not where the origin reaches all itself."""
    _check(kind)
    return kind != "full"


def acyclic(kind: str) -> bool:
    """Whether two members have one path only: then an edge may carry sums without duplicates."""
    _check(kind)
    return kind in ("star", "tree")


# -- one function for each shape; `names` are sorted, `me` is one of at least two ------------------


def _ahead(me: str, names: list[str], distance: int) -> str:
    return names[(names.index(me) + distance) % len(names)]


def _distances(names: list[str]) -> int:
    """ceil(log2 n): how many powers of two are below n."""
    return (len(names) - 1).bit_length()


def _beside(me: str, names: list[str]) -> tuple[str, str]:
    return _ahead(me, names, -1), _ahead(me, names, 1)


def _rings(me: str, names: list[str], degree: int) -> set[str]:
    """The neighbours on `degree`/2 rings, each in the order of another hash.

    Each ring alone visits everybody: connected for certain, and not only very likely as a random
    regular graph is. Two rings may share an edge: then a member has fewer than `degree` links.
    """
    out: set[str] = set()
    for ring in range(degree // 2):
        salt = ring.to_bytes(8, "big")
        out.update(_beside(me, sorted(names, key=lambda name: _salted(name, salt))))
    return out


def _tree(me: str, names: list[str]) -> list[str]:
    """Parent and children of `me` in the treap, in one walk to each side; no tree is built.

    A treap is the Cartesian tree of the priorities in name order. The span around `me` up to the
    nearest lower priority on each side is its subtree; of those two the higher one is the parent,
    and the lowest priority inside the span on one side is the child on that side.
    """
    at = names.index(me)
    mine = _priority(me)
    out: list[str] = []
    fences: list[tuple[bytes, str]] = []
    for side in (range(at - 1, -1, -1), range(at + 1, len(names))):
        child: tuple[bytes, str] | None = None
        for i in side:
            priority = _priority(names[i])
            if priority < mine:
                fences.append((priority, names[i]))
                break
            if child is None or priority < child[0]:
                child = (priority, names[i])
        if child is not None:
            out.append(child[1])
    if fences:
        out.append(max(fences)[1])
    return out


def _hash(name: str, salt: bytes) -> bytes:
    """What orders names: the hash, and the name after it, so that no two are ever equal."""
    data = name.encode()
    return blake2b(data, digest_size=8, salt=salt).digest() + data


@lru_cache(maxsize=1 << 16)
def _salted(name: str, salt: bytes) -> bytes:
    """The place of a name on one ring of k-regular."""
    return _hash(name, salt)


@lru_cache(maxsize=1 << 16)
def _priority(name: str) -> bytes:
    """The priority in the treap and the claim to be the hub: the lowest is the root and the hub."""
    return _hash(name, b"priority")


def _check(kind: str, degree: int = DEGREE) -> None:
    if kind not in TOPOLOGIES:
        raise ConfigError(f"topology: {kind!r} is not known; one of {', '.join(TOPOLOGIES)}")
    if degree < 2 or degree % 2:
        raise ConfigError(f"topology degree: {degree}; an even number from 2 on (rings, two links)")
