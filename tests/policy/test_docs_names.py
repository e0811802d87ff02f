"""The files, folders, modules, classes' members and mutants that the documentation names are there.

A path may be written from the repository, from one of the packages or from tests/; a bare file name
stands for any file of that name. docs/names.md is about names that are gone, and is left out.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmurate.study.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
STARTS = (
    ROOT,
    ROOT / "node",
    ROOT / "node" / "murmurate",
    ROOT / "coordinator",
    ROOT / "coordinator" / "murmurate_coordinator",
    ROOT / "tests",
)
KINDS = ("py", "md", "proto")
FILE = re.compile(rf"(?<![\w./*])(?:[\w*.-]+/)*[\w*-]+\.(?:{'|'.join(KINDS)})\b(?![\w/])")
FOLDER = re.compile(
    r"`((?:core|edge|watch|training|workloads|programs|study|solvers|tests)(?:/\w+)+)/?`"
)
MODULE = re.compile(r"`((?:murmurate|murmurate_coordinator)(?:\.[a-z]\w*){2,})`")
MEMBER = re.compile(r"(?<![\w.])([A-Z]\w+)\.([a-z_]\w+)\b(?!\.(?:py|md))")
"""A class of ours and what it has: `Peer.publish`, in running text as in a picture."""
MUTANT = re.compile(r"mutants? ((?:`[a-z-]+`(?:, | and )?)+)")
MINE = {"FILE.py", "my_file.py"}
"""What a reader's own file is called."""
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if page.name != "names.md"
]
FOLDERS = ("bench", "container", "coordinator", "docs", "examples", "k8s", "node", "proto", "tests")
FILES = {
    file.name
    for kind in KINDS
    for found in (ROOT.glob(f"*.{kind}"), *((ROOT / f).rglob(f"*.{kind}") for f in FOLDERS))
    for file in found
}


def is_there(path: str, beside: Path) -> bool:
    if "/" not in path:
        return path in FILES | MINE
    if ".." in path:
        return (beside / path).exists()
    return any(any(start.glob(path)) for start in (*STARTS, beside))


def is_module(name: str) -> bool:
    """A module, or something in one."""
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    inside, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(inside), last)
    except ModuleNotFoundError:
        return False


def _tree_of_classes() -> dict[str, tuple[set[str], list[str]]]:
    """By name: what each has of its own, and the names of its bases."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for package in ("node/murmurate", "coordinator/murmurate_coordinator"):
        for file in (ROOT / package).rglob("*.py"):
            for one in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(one, ast.ClassDef):
                    own = {each.name for each in ast.walk(one) if isinstance(each, CALLED)}
                    for each in ast.walk(one):
                        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                            own.add(each.attr)
                        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                            own.add(each.id)
                    bases = [ast.unparse(base).partition("[")[0] for base in one.bases]
                    found[one.name] = own, bases
    return found


CALLED = (ast.FunctionDef, ast.AsyncFunctionDef)
CLASSES = _tree_of_classes()
ELSEWHERE = {"Tensor"}
"""Whoever writes of it means torch's, mostly."""


def has(name: str, member: str) -> bool:
    own, bases = CLASSES.get(name, (set[str](), []))
    return member in own or any(has(base, member) for base in bases)


def missing(text: str, beside: Path = ROOT) -> Iterator[str]:
    """What a text names and nobody has."""
    for path in sorted({*FILE.findall(text), *FOLDER.findall(text)}):
        if not is_there(path, beside):
            yield path
    for module in sorted(set(MODULE.findall(text))):
        if not is_module(module):
            yield module
    for name, member in sorted(set(MEMBER.findall(text))):
        if name in CLASSES.keys() - ELSEWHERE and not has(name, member):
            yield f"{name}.{member}"
    for names in MUTANT.findall(text):
        yield from sorted(set(re.findall(r"[a-z-]+", names.replace(" and ", " "))) - MUTANTS.keys())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert list(missing(page.read_text(encoding="utf-8"), page.parent)) == []


def test_no_page_has_marks_of_a_merge() -> None:
    marks = re.compile(r"^(?:<{7}|={7}|>{7})(?: |$)", re.M)
    pages = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "docs" / "names.md"]
    assert [page.name for page in pages if marks.search(page.read_text("utf-8"))] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([^)#]+)\)", index))
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"README.md"}
    assert pages <= listed


@pytest.mark.parametrize(
    "text",
    [
        "`entry.py`",
        "see tests/integration/test_gone.py and more",
        "`core/gone/clock.py`",
        "`edge/io`",
        "`murmurate.core.gone`",
        "`murmurate_coordinator.rules.sync`",
        "mutants `no-dedupe`, `no-such-mistake`",
        "then Peer.prepare, and so on",
    ],
)
def test_a_name_that_is_gone_is_found(text: str) -> None:
    assert len(list(missing(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`clock.py`, `core/clock.py`, node/murmurate/core/clock.py, `edge/net/*.py`",
        "`--workload FILE.py:CLASS`",
        "`core/gossip/`, `murmurate.core.partition.analyse`, `murmurate.join`",
        "`Peer.publish`, `Peer.name`, `Tensor.dot`, `NoClassOfOurs.away`, and Driver.give_back()",
        "mutant `no-dedupe`; mutants `counters`, `no-fold` and `no-gate`",
    ],
)
def test_a_name_that_is_there_is_let_through(text: str) -> None:
    assert list(missing(text)) == []
