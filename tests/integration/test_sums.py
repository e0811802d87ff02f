"""Real processes: what all nodes show together adds up, and is what their report says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.integration.test_metrics import get, parsed

NODES = 3
PATIENCE_S = 120.0


@pytest.mark.slow
def test_the_figures_of_all_processes_add_up_to_the_report(tmp_path: Path) -> None:
    """Scraped again and again until a node is gone: its last answer is of a swarm that settled."""
    file = tmp_path / "out.json"
    words = ["up", "--nodes", str(NODES), "--samples", "60000", "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "murmurate", *words, "--report", str(file)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        deadline = threading.Timer(PATIENCE_S, process.kill)
        deadline.start()
        try:
            pages: list[str] = []
            for line in process.stdout:
                if pages := re.findall(r"http://([\d.:]+)/", line):
                    break
            last = [_last(page) for page in _watched(pages)]
            process.stdout.read()
            assert process.wait() == 0
        finally:
            deadline.cancel()
            process.kill()
    report = json.loads(file.read_text())
    rows = {row["name"]: row for row in report["nodes"]}
    assert len(last) == len(rows) == NODES
    published = sum(each["updates_published_total"] for each in last)
    applied = sum(each["updates_applied_total"] for each in last)
    own = published  # each applies its own once
    assert applied == published * (NODES - 1) + own
    for each in last:
        name = next(k for k in each if k.startswith("node_info")).partition("name=")[2]
        row = rows[name.partition("}")[0]]
        assert each["updates_applied_total"] == each["staleness_updates_count"] == published
        assert each["updates_applied_total"] == row["updates_applied"]
        assert each["updates_published_total"] == row["updates_published"]
        assert each["samples_total"] == row["samples"]
        assert each["staleness_updates_count"] == row["staleness"]["count"]
        mean = each["staleness_updates_sum"] / each["staleness_updates_count"]
        assert abs(mean - row["staleness"]["mean"]) < 1e-9
        assert each["lag_updates"] == 0
    assert sum(each["staleness_updates_count"] for each in last) == report["staleness"]["count"]


class _Watch(threading.Thread):
    """Asks one node until it is gone."""

    def __init__(self, page: str) -> None:
        super().__init__(daemon=True)
        self.page = page
        self.text = ""

    def run(self) -> None:
        while True:
            try:
                self.text = get(self.page, "/metrics")[1]
            except OSError:
                return
            time.sleep(0.02)


def _watched(pages: list[str]) -> list[_Watch]:
    watches = [_Watch(page) for page in pages]
    for watch in watches:
        watch.start()
    for watch in watches:
        watch.join(PATIENCE_S)
        assert not watch.is_alive()
    return watches


def _last(watch: _Watch) -> dict[str, float]:
    return parsed(watch.text)
