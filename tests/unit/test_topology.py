"""The graphs of `core/topology.py`: tables, properties, and a dumb twin of the treap."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import pytest

import murmurate
from murmurate.core import topology
from murmurate.core.topology import TOPOLOGIES, acyclic, neighbours, open_now, relays
from murmurate.errors import ConfigError

SIZES = (*range(1, 41), 64, 100, 257)
SYMMETRIC = ("full", "ring", "k-regular", "star", "tree")
Graph = dict[str, tuple[str, ...]]
Edges = set[frozenset[str]]


def names(n: int) -> list[str]:
    return [f"node-{i}" for i in range(n)]


def graph(kind: str, members: list[str], degree: int = 4) -> Graph:
    return {me: neighbours(kind, me, members, degree=degree) for me in members}


def edges(links: Graph) -> Edges:
    return {frozenset((a, b)) for a, others in links.items() for b in others}


def hops(links: Graph, start: str) -> dict[str, int]:
    """Breadth first: everybody who can be reached, and in how many hops."""
    found = {start: 0}
    queue = [start]
    for here in queue:
        for there in links[here]:
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found


# -- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "me", "members", "expected"),
    [
        ("full", "b", "abcd", "acd"),
        ("ring", "a", "abcd", "bd"),
        ("ring", "d", "abcd", "ac"),
        ("ring", "b", "cab", "ac"),  # the order of the view does not matter
        ("ring", "a", "ab", "b"),
        ("ring", "a", "aabb", "b"),  # nor do repeats
        ("exponential", "a", "abcdefgh", "bce"),  # distances 1, 2, 4
        ("exponential", "g", "abcdefgh", "ach"),
        ("exponential", "a", "abcde", "bce"),
        ("exponential", "e", "abcde", "abd"),
        ("exponential", "b", "ab", "a"),
        ("one-peer-exponential", "g", "abcdefgh", "ach"),
    ],
)
def test_neighbours_by_table(kind: str, me: str, members: str, expected: str) -> None:
    assert neighbours(kind, me, list(members)) == tuple(expected)


@pytest.mark.parametrize(
    ("members", "turn", "expected"),
    [
        ("abcdefgh", 0, "b"),
        ("abcdefgh", 1, "c"),
        ("abcdefgh", 2, "e"),
        ("abcdefgh", 3, "b"),
        ("abcdefgh", 3_000_002, "e"),
        ("abcde", 2, "e"),
        ("ab", 7, "b"),
        ("a", 7, ""),
        ("bcd", 7, ""),
    ],
)
def test_one_peer_turns_by_table(members: str, turn: int, expected: str) -> None:
    assert open_now("one-peer-exponential", "a", list(members), turn) == tuple(expected)


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_nobody_when_alone_or_not_a_member(kind: str) -> None:
    for members in ([], ["a"], ["b"], ["b", "c"]):
        assert neighbours(kind, "a", members) == ()
        assert open_now(kind, "a", members, 3) == ()


def test_what_each_kind_says_of_itself() -> None:
    assert [kind for kind in TOPOLOGIES if not relays(kind)] == ["full"]
    assert [kind for kind in TOPOLOGIES if acyclic(kind)] == ["star", "tree"]


def test_unknown_kind_lists_the_accepted_ones() -> None:
    for call in (
        lambda: neighbours("mesh", "a", ["a", "b"]),
        lambda: open_now("mesh", "a", ["a", "b"], 0),
        lambda: relays("mesh"),
        lambda: acyclic("mesh"),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert "'mesh'" in str(caught.value)
        assert all(kind in str(caught.value) for kind in TOPOLOGIES)


@pytest.mark.parametrize("degree", [-2, 0, 1, 3])
def test_a_degree_that_is_no_number_of_rings(degree: int) -> None:
    with pytest.raises(ConfigError, match="degree"):
        neighbours("k-regular", "a", ["a", "b"], degree=degree)


# -- properties of all ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_strongly_connected_sorted_and_without_me(kind: str) -> None:
    for n in SIZES:
        members = names(n)
        links = graph(kind, members)
        for me, others in links.items():
            assert list(others) == sorted(set(others) - {me})
            assert len(hops(links, me)) == n, (n, me)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_symmetric(kind: str) -> None:
    for n in SIZES:
        links = graph(kind, names(n))
        assert all(me in links[other] for me, others in links.items() for other in others)


@pytest.mark.parametrize("kind", [k for k in TOPOLOGIES if k != "one-peer-exponential"])
def test_every_neighbour_is_open_in_every_turn(kind: str) -> None:
    members = names(12)
    for me in members:
        for turn in range(5):
            assert open_now(kind, me, members, turn) == neighbours(kind, me, members)


def test_one_peer_turns_cover_all_exponential_neighbours() -> None:
    for n in SIZES[1:]:
        members = names(n)
        turns = math.ceil(math.log2(n))
        for me in members:
            opened = [open_now("one-peer-exponential", me, members, t) for t in range(5, 5 + turns)]
            assert all(len(one) == 1 for one in opened)
            assert sorted(name for one in opened for name in one) == sorted(
                neighbours("exponential", me, members)
            )


def test_one_peer_is_a_permutation_in_every_turn() -> None:
    """All in the same turn: everybody is sent to exactly once, so no mass piles up anywhere."""
    members = names(13)
    for turn in range(4):
        got = [open_now("one-peer-exponential", me, members, turn)[0] for me in members]
        assert sorted(got) == sorted(members)


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_the_order_of_the_view_does_not_matter(kind: str) -> None:
    members = names(30)
    assert graph(kind, members) == graph(kind, members[::-1])


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_the_same_in_every_process(hash_seed: str) -> None:
    code = (
        "from murmurate.core.topology import TOPOLOGIES, neighbours\n"
        "m = [f'node-{i}' for i in range(50)]\n"
        "print({k: {me: neighbours(k, me, m) for me in m} for k in TOPOLOGIES})\n"
    )
    env = os.environ | {
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": str(Path(murmurate.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ast.literal_eval(done.stdout) == {kind: graph(kind, names(50)) for kind in TOPOLOGIES}


def test_the_graph_is_pinned() -> None:
    """Peers of two releases in one run must compute the same edges: a change here is a new kind."""
    pinned = {
        "k-regular": ("node-1", "node-4", "node-5", "node-8"),
        "star": ("node-1",),
        "tree": ("node-4",),
    }
    assert {kind: neighbours(kind, "node-3", names(9)) for kind in pinned} == pinned


# -- k-regular, star -----------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [2, 4, 6])
def test_k_regular_has_at_most_k_links_and_mostly_k(degree: int) -> None:
    links = graph("k-regular", names(200), degree)
    assert max(len(others) for others in links.values()) == degree
    assert sum(len(others) for others in links.values()) / 200 >= degree - 0.2
    assert all(len(hops(links, me)) == 200 for me in names(200))


def test_k_regular_is_shallow() -> None:
    links = graph("k-regular", names(1000))
    assert max(max(hops(links, me).values()) for me in names(1000)[::50]) <= 10


def test_star_has_one_hub() -> None:
    for n in SIZES[2:]:
        sizes = sorted(len(others) for others in graph("star", names(n)).values())
        assert sizes == [1] * (n - 1) + [n - 1]


# -- tree ----------------------------------------------------------------------------------------


def dumb_treap(members: Iterable[str]) -> Edges:
    """The definition: the lowest priority is the root; the names before and after it, the same."""

    def priority(name: str) -> tuple[bytes, str]:
        return blake2b(name.encode(), digest_size=8, salt=b"priority").digest(), name

    def build(span: list[str], parent: str | None) -> None:
        if not span:
            return
        root = min(span, key=priority)
        if parent is not None:
            out.add(frozenset((parent, root)))
        cut = span.index(root)
        build(span[:cut], root)
        build(span[cut + 1 :], root)

    out: Edges = set()
    build(sorted(members), None)
    return out


def test_tree_equals_the_dumb_treap() -> None:
    for n in (*SIZES, 1000):
        assert edges(graph("tree", names(n))) == dumb_treap(names(n))
    odd = ["", "a", "b" * 200, "ä", "中", "node 1", "node-1", "NODE-1"]
    assert edges(graph("tree", odd)) == dumb_treap(odd)


def test_tree_has_n_minus_1_edges_and_at_most_3_at_each() -> None:
    for n in SIZES:
        links = graph("tree", names(n))
        assert len(edges(links)) == n - 1  # with connectedness above: acyclic
        assert max(map(len, links.values())) <= 3


def test_tree_is_shallow() -> None:
    links = graph("tree", names(1000))
    root = min(names(1000), key=topology._priority)
    assert max(hops(links, root).values()) <= 4 * math.log2(1000) + 4


def test_one_member_less_changes_few_edges() -> None:
    members = names(1000)
    before = edges(graph("tree", members))
    changed = [
        len(before ^ edges(graph("tree", members[:i] + members[i + 1 :])))
        for i in range(0, 1000, 125)
    ]
    assert sum(changed) / len(changed) <= 6
