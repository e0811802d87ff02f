"""Threads are started on the edge and by programs only, signals are handled in one place.

Whoever reads the core, what is shown, or what a training script sees may then assume one thread,
and finds all others in a few places. A name made at run time is not followed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY = (
    "node/murmurate/edge",
    "node/murmurate/programs",
    "coordinator/murmurate_coordinator/program.py",
    "coordinator/murmurate_coordinator/checkpoint_writing.py",  # the program's, in its pool
    "coordinator/murmurate_coordinator/evaluations.py",
    "coordinator/murmurate_coordinator/service.py",  # the one thread that owns the sessions
)
STARTERS = {
    "threading.Thread",
    "threading.Timer",
    "concurrent.futures.ThreadPoolExecutor",
    "concurrent.futures.thread.ThreadPoolExecutor",
    "multiprocessing.pool.ThreadPool",
    "_thread.start_new_thread",
    "asyncio.to_thread",
}
METHODS = {"run_in_executor", "set_default_executor"}


def imported(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `Thread` -> `threading.Thread`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{module}.{alias.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(value=value, attr=attr):
            return f"{base}.{attr}" if (base := dotted(value, names)) else ""
    return ""


def starts(source: str) -> Iterator[str]:
    """Every place that can start a thread."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and dotted(node, names) in STARTERS:
            yield f"line {node.lineno}: {dotted(node, names)}"
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            yield f"line {node.lineno}: {node.attr}"


def test_threads_are_started_on_the_edge_and_by_programs_only() -> None:
    found = {}
    for folder in ("node", "coordinator"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if not path.startswith(MAY) and (places := list(starts(file.read_text("utf-8")))):
                found[path] = places
    assert found == {}


def test_one_module_handles_signals() -> None:
    found = [
        str(file.relative_to(ROOT))
        for folder in ("node", "coordinator")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"\bsignal\.signal\(|add_signal_handler", file.read_text("utf-8"))
    ]
    assert found == ["node/murmurate/training/signals.py"]


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nthreading.Thread(target=f).start()",
        "from threading import Thread as T\nclass Mine(T): ...",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1)",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor(1)",
        "import asyncio\nasync def f():\n    await asyncio.to_thread(g)",
        "loop.run_in_executor(None, g)",
    ],
)
def test_a_thread_that_is_started_is_found(source: str) -> None:
    assert list(starts(source))


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nthreading.Lock()",
        "import threading\nthreading.current_thread() is threading.main_thread()",
        "class Thread: ...\nThread()",
    ],
)
def test_what_starts_none_is_let_through(source: str) -> None:
    assert not list(starts(source))
