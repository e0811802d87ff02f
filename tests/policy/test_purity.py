"""What the source may not contain, read from its syntax tree.

The core takes time, randomness and network as arguments, so it imports none of them. Nothing in
the project may turn bytes from a peer or a file into code. Names are followed through
`import … as …` and `from … import …`; a name made at run time is not.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# fmt: off
IMPURE = {
    "time", "datetime", "random", "secrets", "uuid",
    "threading", "asyncio", "socket", "os", "pathlib", "logging", "subprocess",
    "grpc", "prometheus_client",
}
# fmt: on
UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
UNSAFE_NAMES = {
    "eval",
    "exec",
    "builtins.eval",
    "builtins.exec",
    "torch.load",
    "torch.save",
    "torch.serialization.load",
    "torch.serialization.save",
    "yaml.load",
}


def source_files(*folders: str) -> list[Path]:
    found = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    assert found, f"no Python files under {folders}"
    return found


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every absolute import, those by a literal string included."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def local_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `np` -> `numpy`, `load` -> `torch.load`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    if alias.asname:
                        names[alias.asname] = alias.name
                    else:
                        top = alias.name.partition(".")[0]
                        names[top] = top
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{module}.{alias.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name an expression stands for, or "" when it is not one (`self.model.eval`)."""
    match node:
        case ast.Name(id=name):
            return names.get(name, name if name in UNSAFE_NAMES else "")
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value, names)
            return f"{base}.{attr}" if base else ""
    return ""


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def impure(source: str) -> list[str]:
    """Every import that a core file may not have."""
    return [
        f"line {line}: {name}"
        for line, name in imported(ast.parse(source))
        if name.partition(".")[0] in IMPURE
    ]


def unsafe(source: str) -> list[str]:
    """Every place that can turn data into code."""
    tree = ast.parse(source)
    names = local_names(tree)
    found = [
        f"line {line}: {name}"
        for line, name in imported(tree)
        if name.partition(".")[0] in UNSAFE_MODULES or name in UNSAFE_NAMES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = dotted(node, names)
            if name in UNSAFE_NAMES:
                found.append(f"line {node.lineno}: {name}")
        elif isinstance(node, ast.Call):
            is_np_load = dotted(node.func, names) == "numpy.load"
            for keyword in node.keywords:
                if keyword.arg == "shell" and not is_false(keyword.value):
                    found.append(f"line {node.lineno}: shell=")
                if is_np_load and keyword.arg == "allow_pickle" and not is_false(keyword.value):
                    found.append(f"line {node.lineno}: numpy.load(allow_pickle=)")
    return found


@pytest.mark.parametrize(
    "file", source_files("node/murmurate/core"), ids=lambda file: str(file.relative_to(ROOT))
)
def test_core_is_pure(file: Path) -> None:
    assert impure(file.read_text(encoding="utf-8")) == []


def test_nothing_turns_data_into_code() -> None:
    found = {
        str(file.relative_to(ROOT)): places
        for file in source_files("node", "coordinator")
        if (places := unsafe(file.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path as p",
        "from random import Random",
        "def f():\n    from asyncio import sleep",
        "import importlib\nimportlib.import_module('socket')",
        "__import__('logging')",
    ],
)
def test_an_impure_import_is_found(source: str) -> None:
    assert impure(source)


@pytest.mark.parametrize(
    "source",
    ["import torch", "from murmurate.core import clock", "from . import time", "time = 3"],
)
def test_a_pure_import_is_let_through(source: str) -> None:
    assert not impure(source)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import dump",
        "import importlib\nimportlib.import_module('dill')",
        "import torch\ntorch.load(f)",
        "import torch as t\nsaver = t.save",
        "from torch import load",
        "import torch.serialization\ntorch.serialization.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "from numpy import load as fetch\nfetch(f, allow_pickle=flag)",
        "eval('1')",
        "exec(code)",
        "import builtins\nbuiltins.eval('1')",
        "import yaml\nyaml.load(f)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
    ],
)
def test_an_unsafe_place_is_found(source: str) -> None:
    assert unsafe(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "self.exec(1)",
        "state.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from safetensors.torch import load",
        "import yaml\nyaml.safe_load(f)",
    ],
)
def test_a_safe_place_is_let_through(source: str) -> None:
    assert not unsafe(source)
