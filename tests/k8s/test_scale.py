"""Scale and churn are normal: 3 → 8 → 2 during a run, a drain, a lost machine, a rolling update.

Real processes, each with a share of the machine that never lasts: a step is short and followed by a
sleep, so that what is measured is waiting for others, not for a core. `make scale` runs all of it
and prints the figures; a short form is in `make test`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.k8s.pods import Cluster, Pod, cannot_start, wait_for

SLOW_S = 0.1
WINDOW_S = 10.0
LEFT = ("left", "")
"""What a member is that has said so; unknown once its record is dropped."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    if why := cannot_start():
        pytest.skip(why)
    made: list[Cluster] = []

    def make(train: str) -> Cluster:
        made.append(Cluster(tmp_path, train))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def line(sentence: str) -> None:
        with capfd.disabled():
            print(f"\nscale: {sentence}", end="", flush=True)

    return line


class Watch:
    """Steps of some pods, all the time; the rate of any window afterwards."""

    def __init__(self, pods: list[Pod]) -> None:
        self._pods = pods
        self._seen: dict[str, list[tuple[float, float]]] = {pod.name: [] for pod in pods}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            for pod in self._pods:
                if steps := pod.steps:
                    self._seen[pod.name].append((time.monotonic(), steps))

    def rate(self, since: float, until: float) -> float:
        """Steps per second of the slowest."""
        rates = []
        for points in self._seen.values():
            inside = [point for point in points if since <= point[0] <= until]
            rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
        return min(rates)

    def slowest(self, since: float, until: float) -> float:
        """Of all windows in that time."""
        starts = np.arange(since, until - WINDOW_S, 0.5)
        return min(self.rate(at, at + WINDOW_S) for at in starts)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def meet(cluster: Cluster, timeout_s: float = 30.0) -> None:
    names = set(cluster.pods)
    pods = list(cluster.pods.values())
    wait_for(
        lambda: all(pod.live() == names for pod in pods), f"{names} know each other", timeout_s
    )


def drained(cluster: Cluster, *names: str) -> tuple[float, float, float]:
    """SIGTERM to all of these at once: seconds until none is ready, until all that stay have seen
    all leaves, until the last exit; and all of it as it should be."""
    began = time.monotonic()
    gone = cluster.delete(*names)
    stay = list(cluster.pods.values())
    wait_for(lambda: not any(pod.ready for pod in gone), "not ready", 10)
    not_ready_s = time.monotonic() - began

    def seen() -> bool:
        states = [pod.states() for pod in stay]
        return all(state.get(name, "") in LEFT for state in states for name in names)

    wait_for(seen, f"{names} have left", 20)
    seen_s = time.monotonic() - began
    for pod in gone:
        assert pod.process.wait(30) == 0, pod.log.read_text()
    exit_s = time.monotonic() - began
    for pod in gone:
        whole = wrote_last(cluster, pod)
        assert whole > time.time() - exit_s - 1.0, f"{pod.name}: no last checkpoint"
        nothing_lost(cluster, pod)
    return not_ready_s, seen_s, exit_s


def wrote_last(cluster: Cluster, pod: Pod) -> float:
    files = (cluster.volume(pod.name) / "node").glob("checkpoint-*.safetensors")
    return max(file.stat().st_mtime for file in files)


def nothing_lost(cluster: Cluster, pod: Pod) -> None:
    """Each update it made is with every pod that stays: in its clock, or folded by all."""
    made = json.loads((cluster.volume(pod.name) / "report.json").read_text())["updates_published"]
    for other in cluster.pods.values():
        told = other.describe()
        lives = {key: told.clock.runs(key)[-1] for key in told.clock.keys() if key[0] == pod.name}
        lives |= {key: runs[-1] for key, runs in told.folds if key[0] == pod.name}
        last = lives[max(lives)] if lives else 0
        assert last == made, f"{other.name} has {last} of {made} updates of {pod.name}"


def end_with_the_same(cluster: Cluster) -> float:
    """A rolling update to another configuration: one after the other comes back from its volume.
    Then all are told to stop at once, in a sleep between steps: how far their weights are apart."""
    names = sorted(cluster.pods, reverse=True)
    for name in names:
        before = cluster.pods[name].figure("murmurate_samples_total")
        drained(cluster, name)
        weights = str(cluster.folder / f"{name}.npy")
        pod = cluster.start(
            name,
            MURMURATE_REPORT_WEIGHTS=weights,
        )[0]
        pod.until_ready()
        assert pod.describe().name == name, "it came back as somebody else"
        goes_on(pod, before)
        meet(cluster)
    for pod in cluster.pods.values():
        pod.term()
    for pod in cluster.pods.values():
        assert pod.process.wait(30) == 0, pod.log.read_text()
    ends = [np.load(cluster.folder / f"{name}.npy", allow_pickle=False) for name in names]
    return max(float(np.linalg.norm(a - ends[0]) / np.linalg.norm(a)) for a in ends)


def figures(not_ready_s: float, seen_s: float, exit_s: float) -> str:
    return f"not ready {not_ready_s:.2f} s, left for all {seen_s:.2f} s, exit 0 {exit_s:.1f} s"


def goes_on(pod: Pod, samples: float) -> None:
    wait_for(
        lambda: pod.figure("murmurate_samples_total") > samples and pod.steps > 2, "goes on", 30
    )


def only(cluster: Cluster, killed: tuple[str, int]) -> bool:
    """No clock remembers anybody but those who are there; a life that was killed, whose origin has
    left before the vote on it, stays for 10 minutes (docs/agreement.md)."""
    names = set(cluster.pods)
    clocks = [pod.describe().clock for pod in cluster.pods.values()]
    return all(key[0] in names for clock in clocks for key in clock.keys() if key != killed)


@pytest.mark.pods
def test_scale_3_8_2(cluster: Callable[..., Cluster], say: Callable[[str], None]) -> None:
    here = cluster(f"slow_s = {SLOW_S}")
    first = here.start(*(f"m-{i}" for i in range(3)))
    founded_s = max(pod.until_ready() for pod in first)
    meet(here)
    assert len({pod.describe().swarm for pod in first}) == 1
    watch = Watch(first[:2])
    began = time.monotonic()
    time.sleep(WINDOW_S + 2.0)  # the measure of what follows
    usual = watch.rate(began, time.monotonic())
    say(f"3 pods ready {founded_s:.1f} s after start, {usual:.2f} steps/s each")

    scaling = time.monotonic()
    here.yielding = True  # those who stay have the CPU they asked for
    more = here.start(*(f"m-{i}" for i in range(3, 8)))
    joined_s = max(pod.until_ready() for pod in more)
    meet(here)
    say(f"8: the last of 5 synced {joined_s:.1f} s after start")

    def lives() -> list[tuple[str, int]]:
        return [key for key in first[0].describe().clock.keys() if key[0] == "m-7"]

    wait_for(lambda: bool(lives()), "an update of m-7")
    life = max(lives())
    here.lose("m-7")
    lost_s = wait_for(
        lambda: all(pod.states().get("m-7") == "dead" for pod in here.pods.values()), "m-7 is dead"
    )
    spot = here.start("m-7")[0]
    back_s = spot.until_ready()
    meet(here)
    assert spot.describe().name == "m-7"
    say(f"a spot pod lost: dead for all after {lost_s:.1f} s, back as itself {back_s:.1f} s later")

    not_ready_s, seen_s, exit_s = drained(here, "m-6")
    say("one drained: " + figures(not_ready_s, seen_s, exit_s))
    back_s = here.start("m-6")[0].until_ready()
    meet(here)

    names = [f"m-{i}" for i in range(2, 8)]
    term = drained(here, *names)
    say("2: six at once: " + figures(*term))
    folded_s = wait_for(lambda: only(here, life), "folded away", 60)
    say(f"their identities folded away {folded_s:.1f} s later")
    slowest = watch.slowest(scaling, time.monotonic()) / usual
    watch.stop()
    say(f"step rate of the stayers: {slowest:.3f} of before in the slowest {WINDOW_S:.0f} s")

    apart = end_with_the_same(here)
    say(f"rolling restart of both; at the end weights {apart:.1e} apart\n")
    assert apart < 1e-6
    assert joined_s <= 10.0
    assert not_ready_s <= 1.0
    assert seen_s <= 2.0
    assert max(exit_s, term[2]) <= 10.0
    assert slowest >= 0.95


def test_a_pod_comes_goes_and_comes_back(cluster: Callable[..., Cluster]) -> None:
    """The short form, on whatever machine: everything but the times."""
    here = cluster(f"slow_s = {SLOW_S}")
    here.start("m-1", "m-0")
    for pod in here.pods.values():
        pod.until_ready()
    meet(here)
    assert len({pod.describe().swarm for pod in here.pods.values()}) == 1
    _, _, exit_s = drained(here, "m-1")
    assert exit_s < 20.0
    back = here.start("m-1")[0]
    back.until_ready()
    meet(here)
    assert back.describe().name == "m-1"
