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
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from tests.integration.browser import browser, program
from tests.integration.flock import wait_for
from tests.integration.test_metrics import get

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"
NODES = 4
TARGETS = [f"127.0.0.1:{9100 + number}" for number in range(NODES)]
"""As in the configuration that is shipped."""
WIDTHS = (1, 2, 3)
"""Of the members of the IST run."""
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
    from murmurate.core.figures.table import FIGURES

    names = {figure.name for figure in FIGURES} | {"node_info"}
    recorded = re.findall(r"record: (\S+)", (MONITORING / "rules.yml").read_text(encoding="utf-8"))
    for dashboard, title, query in panels():
        assert set(re.findall(r"murmurate:[\w:]+", query)) <= set(recorded), (dashboard, title)
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


class Crew:
    """Processes that say where they are, their logs; gone at the end, also of a failed start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def gather(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.gather()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, words: list[str]) -> int:
        """Its number."""
        number = len(self.processes)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MURMURATE_")}
        with (self.folder / f"{number}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, *words], stderr=log, env=environment)
        self.processes.append(process)
        return number

    def said(self, number: int) -> tuple[str, str]:
        """Where it listens, and where its figures are."""
        file = self.folder / f"{number}.log"
        pattern = r"(?:listens at (\S+), )?figures at http://([^/\s]+)/"
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


class Swarm(Crew):
    """Nodes that take it easy, each in a process of its own."""

    def gather(self) -> None:
        founder = ""
        for number in range(NODES):
            words = ["-m", "murmurate", "node", f"--name=node-{number}"]
            words += ["--slow-s=0.05", "--threads=1", "--metrics=127.0.0.1:0", "--batch-size=32"]
            words += [f"--checkpoint={self.folder / f'kept-{number}'}", "--checkpoint-every-s=5"]
            words += [f"--shard={number}/{NODES}", *([f"--peers={founder}"] if founder else [])]
            self.start(words)
            if not founder:
                founder = self.said(number)[0]
        self.pages = [self.said(number)[1] for number in range(NODES)]


class Subnets(Crew):
    """A coordinator, and unequal members that take it easy."""

    def gather(self) -> None:
        words = ["-m", "murmurate", "coordinator", "--rule=lease", "--every=5"]
        words += ["--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--founders=2"]
        words += [f"--checkpoint={self.folder / 'kept'}", "--checkpoint-every-s=5"]
        self.start(words)
        address, self.page = self.said(0)
        member = str(Path(__file__).with_name("subnets.py"))
        for number, width in enumerate(WIDTHS):
            self.start([member, address, f"member-{number}", str(width)])


class Prometheus:
    def __init__(self, folder: Path, targets: list[str], subnets: Sequence[str] = ()) -> None:
        config = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
        if subnets:  # what is there as an example, with their addresses
            config = config.replace("  # - job_name: murmurate-ist", "  - job_name: murmurate-ist")
            config = re.sub(r"  #  ( +)", r"   \1", config)
            config = config.replace('["127.0.0.1:9464"]', json.dumps(list(subnets)))
        config = config.replace(json.dumps(TARGETS), json.dumps(targets))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, Prometheus]]:
    folder = tmp_path_factory.mktemp("prometheus")
    with Swarm(folder) as swarm, Prometheus(folder, swarm.pages) as prometheus:
        wait_for(lambda: len(prometheus.ask("up == 1")) == NODES, "all are scraped", 60.0)
        yield swarm, prometheus


class Race(Crew):
    """Two swarms and two coordinators with two members each: four rules, one workload."""

    def gather(self) -> None:
        for rule in ("sum", "average"):
            founder = self.node(rule)
            self.node(rule, f"--peers={self.said(founder)[0]}")
        self.nodes = [self.said(number)[1] for number in range(len(self.processes))]
        for rule in ("async", "fedavg"):
            words = ["-m", "murmurate", "coordinator", f"--run={rule}", f"--rule={rule}"]
            words += ["--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--founders=2", "--every=5"]
            centre = self.start(words)
            for _ in range(2):
                self.node(rule, "--mode=ist", f"--coordinator={self.said(centre)[0]}")
        rest = range(len(self.nodes), len(self.processes))
        self.subnets = [self.said(number)[1] for number in rest]

    def node(self, rule: str, *more: str) -> int:
        number = len(self.processes)
        words = ["-m", "murmurate", "node", f"--name=node-{number}", f"--run={rule}"]
        words += ["--slow-s=0.05", "--threads=1", "--metrics=127.0.0.1:0", "--batch-size=32"]
        if "--mode=ist" not in more:
            words += [f"--rule={rule}"]
        return self.start([*words, *more])


def without_data(
    prometheus: Prometheus, missing: dict[tuple[str, str], str], runs: int = 1
) -> object:
    """What still has none, or not of all runs, when the time is over."""
    deadline = time.monotonic() + WITH_DATA_S
    while missing and time.monotonic() < deadline:
        missing = {
            key: query for key, query in missing.items() if len(prometheus.ask(query)) < runs
        }
        time.sleep(1.0)
    return missing


def queries(dashboards: Sequence[str], job: str, instance: str) -> dict[tuple[str, str], str]:
    """By dashboard and panel, with the query itself where a panel has several."""
    return {
        (dashboard, f"{title}: {query}"): query.replace("$job", job)
        .replace("$instance", instance)
        .replace("$run", ".+")
        .replace("$target", "0.5")
        .replace("$__range", "10m")
        .replace("$__rate_interval", "30s")
        for dashboard, title, query in panels()
        if dashboard in dashboards
    }


@pytest.mark.slow
@needs_prometheus
def test_no_panel_is_without_data(watched: tuple[Swarm, Prometheus]) -> None:
    swarm, prometheus = watched
    missing = queries(("swarm", "node"), "murmurate", swarm.pages[0])
    rules = (MONITORING / "rules.yml").read_text(encoding="utf-8")
    missing |= {("rules", name): name for name in re.findall(r"record: (\S+)", rules)}
    assert len(missing) > 40
    assert without_data(prometheus, missing) == {}


@pytest.mark.slow
@needs_prometheus
def test_no_panel_of_an_ist_run_is_without_data(tmp_path: Path) -> None:
    """A real coordinator with three members; and what its page shows in a browser."""
    with Subnets(tmp_path) as subnets:
        with Prometheus(tmp_path, [], [subnets.page]) as prometheus:
            missing = queries(("ist",), "murmurate-ist", subnets.page)
            assert len(missing) > 20
            assert without_data(prometheus, missing) == {}
            shares = prometheus.ask("murmurate_subnet_share_ratio")
            named = {each["metric"]["member"]: float(each["value"][1]) for each in shares}
            assert sorted(named, key=lambda name: named[name]) == [
                f"member-{number}" for number in range(len(WIDTHS))
            ], "the wider, the more"
            assert prometheus.ask('ALERTS{alertstate="firing"}') == []
        _, text = get(subnets.page, "/metrics")
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert sum(not line.startswith("#") for line in text.splitlines()) <= 500
        if program() is not None:
            look_at_coordinator(subnets.page, tmp_path)


def look_at_coordinator(address: str, folder: Path) -> None:
    """Its page loads with data in 2 s, goes on, and fits a phone."""
    pictures = Path(os.environ.get("PICTURES", folder))
    with browser(folder) as page:
        page.go(f"http://{address}/")
        seconds = page.until("document.querySelectorAll('#members tbody tr').length === 3")
        assert seconds < 2.0
        print(f"the coordinator's page has data after {seconds:.2f} s")
        page.until("Number(document.body.dataset.turns) >= 4")
        before = page.js("document.querySelector('#members tbody').textContent")
        page.until(f"document.querySelector('#members tbody').textContent !== {before!r}", 10.0)
        assert page.js("document.querySelectorAll('#coverage .row').length") >= 3
        assert page.js("document.querySelectorAll('#shares .row').length") == len(WIDTHS)
        assert page.js("document.querySelectorAll('#members td.training').length") >= 1
        page.until("document.querySelector('polyline.curve') !== null", 30.0)
        page.picture(pictures / "coordinator.png")
        page.size(390, 844)
        assert page.js("document.documentElement.scrollWidth") <= 390, "no sideways scrolling"
        page.picture(pictures / "coordinator-phone.png")
        assert page.console == []


@pytest.mark.slow
@needs_prometheus
def test_a_race_of_four_rules_is_scored_run_by_run(tmp_path: Path) -> None:
    """All rules in every panel; a coordinator and its members count once."""
    with (
        Race(tmp_path) as race,
        Prometheus(tmp_path, race.nodes, race.subnets) as prometheus,
    ):
        missing = queries(("race",), "", "")
        assert len(missing) > 15
        assert without_data(prometheus, missing, runs=4) == {}
        samples = "murmurate:run_samples:sum"
        rules = {each["metric"]["run"]: each["metric"]["rule"] for each in prometheus.ask(samples)}
        assert rules == {run: run for run in ("sum", "average", "async", "fedavg")}
        both = prometheus.ask(
            f'{samples}{{run="async"}} / on (run) sum by (run) (murmurate_samples_total'
            ' * on (instance) group_left (run) murmurate_node_info{name!="coordinator"})'
        )
        assert float(both[0]["value"][1]) < 1.3, "not those of coordinator and members together"


@pytest.mark.slow
@needs_prometheus
def test_staleness_is_what_theory_expects(watched: tuple[Swarm, Prometheus]) -> None:
    """Within 10 %, over 20 s."""
    _, prometheus = watched
    names = [f"murmurate_staleness_{what}_updates" for what in ("measured", "predicted")]
    ratio = " / ".join(f"avg(avg_over_time({name}[20s]))" for name in names)
    seen: list[float] = []

    def agrees() -> bool:
        found = prometheus.ask(ratio)
        seen.extend(float(each["value"][1]) for each in found)
        return bool(found) and abs(seen[-1] - 1) < 0.1

    wait_for(agrees, f"measured is near predicted: {seen}", 60.0)
    print(f"measured / predicted {seen[-1]:.3f}")


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
