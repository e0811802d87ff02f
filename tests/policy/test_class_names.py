"""No public class name stands twice: a name in a log, an issue or a search means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "node" / "murmurate" / "v1"


def defined_twice() -> dict[str, list[str]]:
    """Such names, and where they stand."""
    places = defaultdict(list)
    for folder in ("node", "coordinator"):
        for file in (ROOT / folder).rglob("*.py"):
            if not file.is_relative_to(GENERATED):
                for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 100
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_public_class_name_stands_twice() -> None:
    assert defined_twice() == {}
