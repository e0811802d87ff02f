"""Nobody asks which way a peer gossips: where the ways differ, the peer or its `Way` answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from murmurate.core.gossip.average.links import ShareLinks
from murmurate.core.gossip.average.mixing import MixingPeer
from murmurate.core.gossip.average.partners import Partners
from murmurate.core.gossip.comparison import Comparison
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.peer import Peer
from murmurate.core.gossip.protocol import Driven, GossipPeer, OthersKnown, OutgoingLinks
from murmurate.core.gossip.ways import WAYS

ROOT = Path(__file__).parents[2]
KINDS = {"Peer", "MixingPeer"}
OWN = "node/murmurate/core/gossip/"
"""The rules' own files."""


def _names(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _asks(tree: ast.AST) -> Iterator[int]:
    """Lines that ask for the kind of a peer, or compare a rule with one of the names."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
            and KINDS & set(_names(node.args[1]))
        ):
            yield node.lineno
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = {name for side in sides for name in _names(side)}
            if WAYS.keys() & named and any(name.endswith("rule") for name in named):
                yield node.lineno


def test_no_caller_asks_for_the_kind_of_a_peer_or_its_rule() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / "node").rglob("*.py"))
        if not str(file.relative_to(ROOT)).startswith(OWN)
        for line in _asks(ast.parse(file.read_text()))
    ]
    assert found == []


def test_the_check_sees_what_it_should() -> None:
    bad = "isinstance(self.peer, Peer)\nisinstance(p, core.Peer | MixingPeer)\n"
    bad += 'task.rule == "average"\nvalues.get("train.rule") != "sum"\nrule in ("sum", "average")\n'
    good = 'isinstance(error, PeerTimeout)\nother.rule != wish.rule\nreduction == "sum"\n'
    assert list(_asks(ast.parse(bad))) == [1, 2, 3, 4, 5]
    assert list(_asks(ast.parse(good))) == []


def test_both_kinds_have_all_that_the_protocol_names() -> None:
    """mypy compares the signatures; this is for those who do not run it."""
    made = {"name", "epoch", "config", "replica", "membership", "links", "others"}
    for protocols, kinds in (
        ((Driven, GossipPeer), (Peer, MixingPeer)),
        ((OutgoingLinks,), (PushDelivery, ShareLinks)),
        ((OthersKnown,), (Comparison, Partners)),
    ):
        named = {name for each in protocols for name in vars(each) if not name.startswith("_")}
        for kind in kinds:
            assert named <= {*dir(kind), *made}, kind
