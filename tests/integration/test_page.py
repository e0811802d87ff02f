"""The page that every node serves, in a real browser, beside a live run of four nodes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.integration.browser import browser, program
from tests.integration.flock import Node, flock, sgd, small, wait_for
from tests.integration.test_metrics import get

import murmurate
from murmurate.core.figures.curves import EVERY_S, POINTS_MAX, Curves
from murmurate.core.figures.progress import Progress
from murmurate.watch.html import html
from murmurate.watch.pages import BARS_MAX, bars

needs_chromium = pytest.mark.skipif(
    program() is None, reason="chromium is not installed: apt-get install chromium"
)


@pytest.mark.parametrize("package", ["murmurate.watch", "murmurate_coordinator"])
def test_it_loads_nothing_from_elsewhere(package: str) -> None:
    text = html(package).decode()
    assert "/* look" not in text, "what is common is in it"
    addresses = set(re.findall(r"https?://[\w./]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name, not a place"
    assert "innerHTML" not in text, "names of peers must stay text"


def test_a_histogram_has_few_bars_and_loses_nothing() -> None:
    assert bars({}) == []
    assert bars({0: 4, 3: 2}) == [[0, 0, 4], [1, 1, 0], [2, 2, 0], [3, 3, 2]]
    wide = bars(dict.fromkeys(range(0, 1000, 7), 1))
    assert len(wide) <= BARS_MAX
    assert sum(count for _, _, count in wide) == 143
    assert wide[-1][0] <= 994 <= wide[-1][1]


def test_curves_stay_short_however_long_the_run() -> None:
    curves = Curves()
    for second in range(5 * POINTS_MAX):
        told = Progress(name="a", epoch=1, version=second, samples=second, loss=1 / (second + 1))
        curves.note(second * EVERY_S, [told])
    points = curves.points["a"]
    assert POINTS_MAX / 4 <= len(points) <= POINTS_MAX
    assert points[0].at == 0
    assert points[-1].at > 4 * POINTS_MAX
    gaps = {b.at - a.at for a, b in itertools.pairwise(points)}
    assert len(gaps) == 1, "evenly spaced"


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    with flock(4, metrics="127.0.0.1:0") as nodes:
        for node in nodes:
            node.train(pause_s=0.05)
            node.swarm.log(accuracy=0.5)
        yield nodes


def test_every_node_serves_the_page_and_its_data(nodes: list[Node]) -> None:
    for node in nodes:
        status, text = get(node.swarm.metrics_address, "/")
        assert status == 200
        assert text == html("murmurate.watch").decode()
    wait_for(lambda: '"curves": {"n0": [[' in get(nodes[1].swarm.metrics_address, "/swarm.json")[1])


@pytest.fixture
def silent_page() -> Iterator[str]:
    """Of a script with the README's three lines: it tells no losses."""
    model = small()
    optimizer = sgd(model)
    with murmurate.join(
        model, optimizer, run="test", listen="127.0.0.1:0", metrics="127.0.0.1:0"
    ) as swarm:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
        assert swarm.metrics_address is not None
        yield swarm.metrics_address


def test_a_script_that_tells_no_losses_is_told_how(silent_page: str) -> None:
    wait_for(lambda: "swarm.log(loss=" in get(silent_page, "/swarm.json")[1])


@pytest.mark.slow
@needs_chromium
def test_the_page_says_it_where_the_curve_is_missing(silent_page: str, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.go(f"http://{silent_page}/")
        page.until("document.querySelector('#hints')?.textContent.includes('swarm.log(loss=')")
        assert page.console == []


@pytest.mark.slow
@needs_chromium
def test_it_shows_the_swarm_in_a_browser(nodes: list[Node], tmp_path: Path) -> None:
    wait_for(lambda: all(len(node.swarm.board) == 4 and node.steps > 50 for node in nodes))
    pictures = Path(os.environ.get("PICTURES", tmp_path))
    with browser(tmp_path) as page:
        page.go(f"http://{nodes[0].swarm.metrics_address}/")
        seconds = page.until("document.querySelectorAll('circle.node').length === 4")
        print(f"first paint with data after {seconds:.2f} s")
        assert seconds < 2.0
        names = page.js(
            "[...document.querySelectorAll('#members tbody td:first-child')]"
            ".map(cell => cell.textContent).join()"
        )
        assert names == "n0,n1,n2,n3"
        page.until("Number(document.body.dataset.turns) >= 4")
        before = page.js("document.querySelector('#members tbody').textContent")
        page.until(f"document.querySelector('#members tbody').textContent !== {before!r}", 5.0)
        page.until("document.querySelectorAll('path.link').length === 12")
        page.until("document.querySelectorAll('polyline.curve').length >= 4")
        assert page.js("document.querySelectorAll('rect.bar').length") > 1
        page.until("document.querySelector('line.predicted') !== null", 30.0)
        page.picture(pictures / "page.png")
        page.size(1200, 900, dark=True)
        page.picture(pictures / "page-dark.png")
        page.size(390, 844)
        assert page.js("document.documentElement.scrollWidth") <= 390, "no sideways scrolling"
        page.picture(pictures / "page-phone.png")
        for node in nodes:
            node.stop()
        nodes[3].end()
        nodes[3].swarm.leave()
        page.until("[...document.querySelectorAll('#members td.left')].length === 1", 30.0)
        assert page.console == []
