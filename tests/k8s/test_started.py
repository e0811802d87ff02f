"""The rendered manifests, started: the program serves and reads what they say it does.

Real processes in namespaces of their own (tests/k8s/machines.py); needs root. Run by `make k8s`.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.k8s.contained import Contained, no_image
from tests.k8s.machines import PROGRAM, Cluster, Started, cannot_start
from tests.k8s.manifests import ROOT, needs, needs_kubectl, objects, pods, tool

pytestmark = [
    needs_kubectl,
    pytest.mark.slow,
    pytest.mark.skipif(bool(cannot_start()), reason=cannot_start() or "all is there"),
]
PAGE = ROOT / "docs" / "kubernetes.md"
TOGETHER_S = 120.0
"""Torch is loaded by all of them at once, on cores that others use too."""

RESTRICTED = {
    "Uid": "10001",
    "Gid": "10001",
    "NoNewPrivs": "1",
    "root": "ro",
    "CapEff": "0" * 16,
    "CapBnd": "0" * 16,
}


@contextmanager
def started(overlay: str, count: int, kind: type[Started] = Started) -> Iterator[list[Started]]:
    """So many pods of each StatefulSet of peers, all started at the same time."""
    found = objects(overlay)
    cluster = Cluster(found, kind)
    try:
        every = [
            cluster.pod(pod, number)
            for pod in pods(found)
            if pod.labels["app.kubernetes.io/component"] == "peer"
            for number in range(count)
        ]
        for pod in every[::count]:
            checked = pod.ask(*pod.arguments, "--check-config")
            assert checked.returncode == 0, checked.stderr
        for pod in every:
            pod.start()
        yield every
    finally:
        cluster.close()


def wait_for(true: Callable[[], bool], what: str, every: list[Started], limit_s: float) -> float:
    began = time.monotonic()
    while not true():
        for pod in every:
            assert pod.alive, pod.said()
        assert time.monotonic() < began + limit_s, what + "\n" + "\n".join(p.said() for p in every)
        time.sleep(0.1)
    return time.monotonic() - began


def all_ready(every: list[Started]) -> bool:
    return all(pod.passes("readiness") for pod in every)


def alive_members(pod: Started) -> float:
    return pod.figures().get('murmurate_members{state="alive"}', 0.0)


def come_up(every: list[Started]) -> None:
    """Started within what the startup probe allows, ready, and aware of each other."""
    took_s = [pod.wait_started() for pod in every]
    wait_for(lambda: all_ready(every), "ready", every, TOGETHER_S)
    wait_for(
        lambda: all(alive_members(pod) == len(every) for pod in every), "one swarm", every, 30.0
    )
    memory = [pod.figures()["process_resident_memory_bytes"] / 2**20 for pod in every]
    print(f"started after {max(took_s):.1f} s, {max(memory):.0f} MiB")
    for pod in every:
        figures = pod.figures()
        assert figures["murmurate_ready"] == 1
        assert any(f'name="{pod.name}"' in key for key in figures if "node_info" in key)
        assert pod.passes("liveness")
        assert pod.restrictions() == RESTRICTED


def test_a_swarm_starts_trains_loses_one_and_gets_it_back() -> None:
    with started("overlays/gossip", 3) as every:
        come_up(every)
        before = [pod.figures()["murmurate_samples_total"] for pod in every]
        wait_for(
            lambda: all(
                pod.figures()["murmurate_samples_total"] > some
                for pod, some in zip(every, before, strict=True)
            ),
            "all train",
            every,
            30.0,
        )
        # `kubectl exec murmurate-0 -- murmurate status 127.0.0.1:7000`
        told = every[0].ask("status", "127.0.0.1:7000")
        assert told.returncode == 0, told.stderr
        assert all(pod.name in told.stdout for pod in every)

        leaver, stayers = every[1], every[:1] + every[2:]
        leaver.terminate()
        began = time.monotonic()
        wait_for(lambda: not leaver.passes("readiness"), "not ready any more", stayers, 5.0)
        unready_s = time.monotonic() - began
        assert leaver.child is not None
        assert leaver.child.wait(leaver.pod.spec["terminationGracePeriodSeconds"]) == 0
        print(f"not ready after {unready_s:.1f} s, gone after {time.monotonic() - began:.1f} s")
        wait_for(lambda: all(alive_members(pod) == 2 for pod in stayers), "it left", stayers, 30.0)

        leaver.start()  # with its volume: as itself
        come_up(every)
        told = stayers[0].ask("status", "127.0.0.1:7000")
        assert f"{leaver.name}.2" not in told.stdout

        come_from_outside(every)


def come_from_outside(every: list[Started]) -> None:
    """The line of the documentation joins, from a network of its own."""
    (line,) = re.findall(r"^    murmurate (node .*--peers .*)$", PAGE.read_text(), re.M)
    words = line.replace("10.1.2.3", every[2].address).split()
    address = words[words.index("--listen") + 1].split(":")[0]
    space = every[0].cluster.outside(address)
    log = every[0].cluster.folder / "outside.log"
    with log.open("wb") as file:
        outsider = subprocess.Popen(
            ["ip", "netns", "exec", space, str(PROGRAM), *words],
            stdin=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        wait_for(
            lambda: all(alive_members(pod) == len(every) + 1 for pod in every),
            "a member from outside",
            every,
            TOGETHER_S,
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()}") from None
    finally:
        outsider.terminate()
        try:
            outsider.wait(30)
        finally:
            outsider.kill()
    assert outsider.returncode == 0, log.read_text()


@pytest.mark.skipif(bool(no_image()), reason=no_image() or "it is there")
def test_the_image_runs_as_the_manifest_says() -> None:
    """Nothing is mapped here: arguments, environment, paths and user are those of the cluster."""
    with started("overlays/gossip", 2, Contained) as every:
        come_up(every)
        told = every[0].ask("status", "127.0.0.1:7000")
        assert all(pod.name in told.stdout for pod in every), told.stderr
        every[1].terminate()
        assert every[1].child is not None
        assert every[1].child.wait(every[1].pod.spec["terminationGracePeriodSeconds"]) == 0
        kept = every[1].places["/var/lib/murmurate"] / "node"
        assert list(kept.glob("checkpoint-*.safetensors"))


def test_pools_with_codecs_of_their_own_are_one_swarm() -> None:
    with started("overlays/heterogeneous", 1) as every:
        come_up(every)
        for pod in every:
            codec = pod.environment["MURMURATE_TRAIN_CODEC"]
            wait_for(
                lambda pod=pod, codec=codec: (  # type: ignore[misc]
                    pod.figures().get(f'murmurate_bytes_sent_total{{codec="{codec}"}}', 0) > 0
                ),
                f"{pod.name} sends {codec}",
                every,
                30.0,
            )


def test_a_workload_from_a_file_is_trained() -> None:
    with started("overlays/gpu", 1) as every:
        come_up(every)
        wait_for(
            lambda: every[0].figures().get("murmurate_accuracy", 0) > 0.3, "learns", every, 60.0
        )


def test_a_coordinator_and_its_members_train_and_survive_its_death() -> None:
    found = objects("overlays/ist")
    cluster = Cluster(found)
    try:
        by_component = {pod.labels["app.kubernetes.io/component"]: pod for pod in pods(found)}
        centre = cluster.pod(by_component["coordinator"], 0)
        members = [cluster.pod(by_component["peer"], number) for number in range(2)]
        every = [centre, *members]
        for pod in every[:2]:
            checked = pod.ask(*pod.arguments, "--check-config")
            assert checked.returncode == 0, checked.stderr
        for pod in every:
            pod.start()
        for pod in every:
            pod.wait_started()
        wait_for(lambda: all_ready(every), "ready", every, TOGETHER_S)

        def training() -> float:
            return centre.figures()['murmurate_members{state="training"}']

        wait_for(lambda: training() == 2, "both have a subnet", every, 30.0)
        for pod in every:
            assert pod.figures()["murmurate_ready"] == 1
            assert pod.passes("liveness")
            assert pod.restrictions() == RESTRICTED

        def pushes() -> float:
            return centre.figures()["murmurate_pushes_total"]

        wait_for(lambda: pushes() > 3, "subnets come back", every, 60.0)
        status, _ = centre.get("metrics", "/model.safetensors")
        assert status == 200
        told = centre.ask("status", "127.0.0.1:7100")
        assert told.returncode == 0, told.stderr
        assert all(pod.name in told.stdout for pod in members)

        centre.kill()
        centre.start()
        centre.wait_started()
        wait_for(lambda: training() == 2, "they come back to it", every, 60.0)
        before = pushes()
        wait_for(lambda: pushes() > before, "and go on", every, 60.0)
        grace_s = centre.pod.spec["terminationGracePeriodSeconds"]
        centre.terminate()  # evicted: not the end of the run
        assert centre.child is not None
        assert centre.child.wait(grace_s) == 0
        centre.start()
        centre.wait_started()
        wait_for(lambda: training() == 2, "they come back to the next pod", every, 60.0)
        before = pushes()
        wait_for(lambda: pushes() > before, "and go on again", every, 60.0)
        assert [pod.child.poll() for pod in members if pod.child] == [None, None]
        told = centre.ask("stop", "127.0.0.1:7100")
        assert told.returncode == 0, told.stderr
        for pod in every:
            assert pod.child is not None
            assert pod.child.wait(grace_s) == 0
    finally:
        cluster.close()


@needs("prometheus")
def test_prometheus_finds_the_pods_by_name_and_the_rules_work() -> None:
    """The rendered Prometheus, with the cluster's answers for the service's SRV record."""
    found = objects("overlays/gossip") + objects("overlays/monitoring")
    with started("overlays/gossip", 2) as every:
        cluster = every[0].cluster
        cluster.found = found
        (pod,) = (each for each in pods(found) if each.title == "StatefulSet/murmurate-prometheus")
        prometheus = cluster.pod(pod, 0, str(tool("prometheus")))
        prometheus.start()
        everyone = [*every, prometheus]
        come_up(every)
        wait_for(lambda: prometheus.passes("readiness"), "Prometheus", everyone, 60.0)

        def ask(query: str) -> list[tuple[str, float]]:
            path = "/api/v1/query?query=" + urllib.parse.quote(query)
            _, text = prometheus.get("web", path)
            rows = json.loads(text or '{"data": {"result": []}}')["data"]["result"]
            return sorted(
                (row["metric"].get("instance", ""), float(row["value"][1])) for row in rows
            )

        wanted = [(each.name, 1.0) for each in every]
        wait_for(lambda: ask('up{job="murmurate"}') == wanted, "both are scraped", everyone, 60.0)
        wait_for(lambda: ask("murmurate:nodes_ready:count") == [("", 2.0)], "rules", everyone, 60.0)
        every[1].kill()  # the cluster would start it again; its name stays until then
        wait_for(
            lambda: (
                ask('ALERTS{alertname="MurmurateNodeDown",alertstate="firing"}')
                == [(every[1].name, 1.0)]
            ),
            "an alert",
            [every[0], prometheus],
            60.0,
        )
