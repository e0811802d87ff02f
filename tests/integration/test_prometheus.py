"""A real Prometheus (Debian's) scrapes real nodes: every panel has data, a killed node is noticed.

Run by `make monitoring`. Where Prometheus is not installed everything here is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.flock import wait_for

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"
NODES = 4
WITH_DATA_S = 120.0
ALERT_S = 30.0

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="not installed: apt-get install prometheus"
)


def panels() -> list[tuple[str, str, str]]:
    """Dashboard, panel and query, of all of them."""
    found = []
    for file in sorted((MONITORING / "grafana").glob("*.json")):
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                found.append((file.stem, panel["title"], target["expr"]))
    return found


# -- the files themselves -------------------------------------------------------------------------


@needs_promtool
def test_the_rules_do_what_they_say() -> None:
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=MONITORING, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_says_what_it_means() -> None:
    rules = (MONITORING / "rules.yml").read_text(encoding="utf-8")
    tests = (MONITORING / "rules_test.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"alert: (\w+)", rules)
    assert len(alerts) >= 8
    for alert in alerts:
        assert alert in tests, alert
    assert rules.count("summary:") == rules.count("description:") == len(alerts)


def test_dashboards_ask_only_for_what_there_is() -> None:
    """Names in queries are names of the collector, or of every process."""
    from murmurate.io import metrics

    source = Path(metrics.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'_(?:gauge|counter|histogram)s?\(\s*"(\w+)"', source)) | {"node_info"}
    for dashboard, title, query in panels():
        for name in re.findall(r"murmurate_(\w+)", query):
            base = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert base in names, (dashboard, title, name)


def test_dashboards_have_no_two_panels_in_one_place() -> None:
    for file in sorted((MONITORING / "grafana").glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, (file.name, panel["title"])
            assert at["x"] + at["w"] <= 24
            taken |= cells
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# -- with a real one ------------------------------------------------------------------------------


class Swarm:
    """Nodes that take it easy, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pages: list[str] = []
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MURMURATE_")}
        founder = ""
        for number in range(NODES):
            log = (folder / f"node-{number}.log").open("wb")
            words = [sys.executable, "-m", "murmurate.cli", "node", f"--name=node-{number}"]
            words += ["--slow-s=0.05", "--threads=1", "--metrics=127.0.0.1:0", "--batch-size=32"]
            words += [f"--checkpoint={folder / f'kept-{number}'}", "--checkpoint-every-s=5"]
            words += [f"--shard={number}/{NODES}", *([f"--peers={founder}"] if founder else [])]
            with log:
                process = subprocess.Popen(words, stderr=log, env=environment)
            self.processes.append(process)
            if not founder:
                founder = self.said(number)[0]
        self.pages = [self.said(number)[1] for number in range(NODES)]

    def said(self, number: int) -> tuple[str, str]:
        """Where it listens, and where its figures are."""
        file = self.folder / f"node-{number}.log"
        pattern = r"listens at (\S+), figures at http://(\S+)/"
        wait_for(
            lambda: (
                re.search(pattern, file.read_text()) is not None
                or self.processes[number].poll() is not None
            ),
            file.name,
            120.0,
        )
        match = re.search(pattern, file.read_text())
        assert match is not None, file.read_text()
        return match[1], match[2]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Prometheus:
    def __init__(self, folder: Path, targets: list[str]) -> None:
        config = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
        config = re.sub(r"targets: .*", f"targets: {json.dumps(targets)}", config)
        (folder / "prometheus.yml").write_text(config, encoding="utf-8")
        shutil.copy(MONITORING / "rules.yml", folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self.address}",
                ],
                stderr=log,
                stdout=log,
            )

    def ask(self, query: str) -> list[Any]:
        words = urllib.parse.urlencode({"query": query})
        try:
            url = f"http://{self.address}/api/v1/query?{words}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:
                    return []  # it is still starting
                raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return []  # it is still starting
        return [each for each in found["data"]["result"] if each["value"][1] != "NaN"]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, Prometheus]]:
    folder = tmp_path_factory.mktemp("prometheus")
    swarm = Swarm(folder)
    try:
        prometheus = Prometheus(folder, swarm.pages)
        try:
            wait_for(lambda: len(prometheus.ask("up == 1")) == NODES, "all are scraped", 60.0)
            yield swarm, prometheus
        finally:
            prometheus.end()
    finally:
        swarm.end()


@pytest.mark.slow
@needs_prometheus
def test_no_panel_is_without_data(watched: tuple[Swarm, Prometheus]) -> None:
    swarm, prometheus = watched
    missing = {
        (dashboard, title): query.replace("$job", "murmurate")
        .replace("$instance", swarm.pages[0])
        .replace("$__rate_interval", "30s")
        for dashboard, title, query in panels()
    }
    rules = (MONITORING / "rules.yml").read_text(encoding="utf-8")
    missing |= {("rules", name): name for name in re.findall(r"record: (\S+)", rules)}
    assert len(missing) > 40
    deadline = time.monotonic() + WITH_DATA_S
    while missing and time.monotonic() < deadline:
        missing = {key: query for key, query in missing.items() if not prometheus.ask(query)}
        time.sleep(1.0)
    assert missing == {}


@pytest.mark.slow
@needs_prometheus
def test_staleness_is_what_theory_expects(watched: tuple[Swarm, Prometheus]) -> None:
    """Within 10 % on an idle machine; here others may be using it."""
    _, prometheus = watched
    ratio = "avg(murmurate_staleness_measured_updates) / avg(murmurate_staleness_predicted_updates)"

    def agrees() -> bool:
        found = prometheus.ask(ratio)
        return bool(found) and abs(float(found[0]["value"][1]) - 1) < 0.2

    wait_for(agrees, "measured is near predicted", 60.0)


@pytest.mark.slow
@needs_prometheus
def test_nothing_alarms_while_all_is_well(watched: tuple[Swarm, Prometheus]) -> None:
    _, prometheus = watched
    assert prometheus.ask('ALERTS{alertstate="firing"}') == []


@pytest.mark.slow
@needs_prometheus
def test_a_killed_node_fires_an_alert(watched: tuple[Swarm, Prometheus]) -> None:
    swarm, prometheus = watched
    swarm.processes[-1].kill()
    began = time.monotonic()
    query = 'ALERTS{alertname="MurmurateNodeDown", alertstate="firing"}'
    wait_for(lambda: bool(prometheus.ask(query)), "the alert", ALERT_S)
    assert [each["metric"]["instance"] for each in prometheus.ask(query)] == [swarm.pages[-1]]
    print(f"fired {time.monotonic() - began:.1f} s after the kill")
    wait_for(
        lambda: bool(prometheus.ask('min(murmurate_members{state="alive"}) == 3')),
        "the others know",
        60.0,
    )
