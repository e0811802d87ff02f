"""What all chaos tests share: a laboratory each, and a line for each figure.

They measure time, so they want the machine for themselves. `CHAOS_JSON=file` collects the figures,
`CHAOS_FULL=1` takes the sizes and times that the figures are stated for (docs/chaos.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.chaos.lab import Lab, cannot_net

FULL = os.environ.get("CHAOS_FULL", "") not in ("", "0")


class Figure(Protocol):
    def __call__(self, what: str, sentence: str, **values: Any) -> None: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """`lab(deadline_s)`: closed at the end of the test."""
    made: list[Lab] = []

    def make(deadline_s: float, *, net: bool = False) -> Lab:
        if net and (why := cannot_net()):
            pytest.skip(why)
        made.append(Lab(tmp_path, deadline_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def figure(capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Figure:
    """Say a figure in one line, and keep it if asked to."""

    def say(what: str, sentence: str, **values: Any) -> None:
        with capfd.disabled():
            print(f"\nchaos: {what}: {sentence}", flush=True)
        if path := os.environ.get("CHAOS_JSON"):
            row = {"what": what, "test": request.node.name, "full": FULL, **values}
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    return say


def size(name: str, default: float, full: float) -> float:
    """A size of a test: from its variable, or for the full figures, or small."""
    return float(os.environ.get(f"CHAOS_{name}", full if FULL else default))
