"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_ten_lines_run() -> None:
    block = re.search(
        r"((?:^    .*\n|^\n)*^    import random, torch\n(?:^    .*\n|^\n)+)", README, re.M
    )
    assert block is not None
    code = textwrap.dedent(block.group(1))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensor([1., 1., 1., 1.]) Clock(a/1/1-1)" in done.stdout


def test_every_link_leads_somewhere() -> None:
    front = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages = [*front, *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_make_target_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"\bmake ([a-z0-9-]+)", README + contributing)) <= targets
