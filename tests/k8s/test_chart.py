"""The Helm chart makes the same objects as kustomize, from values that are checked.

Helm is installed by `make k8s`; without it these are skipped.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.k8s.manifests import (
    CHART,
    K8S,
    Object,
    needs,
    needs_kubectl,
    objects,
    parsed,
    pods,
    run,
    title,
    tool,
)
from tests.k8s.pod_security import careful, restricted

pytestmark = [needs("helm"), pytest.mark.slow]
EXAMPLES = CHART / "examples"
GPU = ("--set-file", f"workload={K8S / 'overlays/gpu/workload.py'}")
PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "base": (("base",), ()),
    **{
        each.stem: ((f"overlays/{each.stem}",), ("-f", str(each)))
        for each in sorted(EXAMPLES.glob("*.yaml"))
    },
}
PAIRS["gpu"] = (PAIRS["gpu"][0], (*PAIRS["gpu"][1], *GPU))
PAIRS["operator"] = (("base", "overlays/operator"), PAIRS["operator"][1])
every = pytest.mark.parametrize("name", PAIRS)
HELMS_OWN = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def helm(*options: str, check: bool = True) -> str:
    words = [str(tool("helm")), "template", "murmurate", str(CHART), "-n", "murmurate", *options]
    if check:
        return run(*words)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def plain(found: list[Object]) -> dict[str, Object]:
    """By kind and name, without what each of the two tools adds and without order of no meaning."""
    result = {}
    for each in copy.deepcopy(found):
        if each["kind"] == "Namespace":  # with Helm it is made by the one who installs
            continue
        meta = each["metadata"]
        meta.pop("namespace", None)
        for key in HELMS_OWN:
            meta.get("labels", {}).pop(key, None)
        if each["kind"] == "ConfigMap":
            meta["name"] = re.sub(r"-[2456789bcdfghkmt]{10}$", "", meta["name"])
            meta["labels"].pop("app.kubernetes.io/name", None)
            for file, text in each["data"].items():
                if file.endswith(".toml"):
                    each["data"][file] = tomllib.loads(text)
                elif file.endswith(".json"):
                    each["data"][file] = json.loads(text)
        if each["apiVersion"].startswith("monitoring."):
            meta["labels"].pop("app.kubernetes.io/name", None)
        for pod in pods([each]):
            notes = each["spec"]["template"]["metadata"].get("annotations", {})
            assert notes.pop("checksum/config", "") != "" or "helm.sh/chart" not in meta["labels"]
            for volume in pod.spec["volumes"]:
                if "configMap" in volume:
                    name = volume["configMap"]["name"]
                    volume["configMap"]["name"] = re.sub(r"-[2456789bcdfghkmt]{10}$", "", name)
            pod.spec["volumes"].sort(key=lambda volume: str(volume["name"]))
            for container in pod.spec["containers"]:
                container["env"].sort(key=lambda variable: str(variable["name"]))
                container["volumeMounts"].sort(key=lambda mount: str(mount["mountPath"]))
        assert title(each) not in result
        result[title(each)] = each
    return result


@needs_kubectl
@every
def test_the_chart_and_kustomize_make_the_same(name: str) -> None:
    overlays, options = PAIRS[name]
    wanted = plain([each for overlay in overlays for each in objects(overlay)])
    made = plain(parsed(helm(*options)))
    assert sorted(made) == sorted(wanted)
    for key, each in wanted.items():
        assert made[key] == each, key


@every
def test_its_pods_are_restricted(name: str) -> None:
    for pod in pods(parsed(helm(*PAIRS[name][1]))):
        assert restricted(pod.spec) == careful(pod.spec) == []


def test_lint_has_nothing_to_say() -> None:
    run(str(tool("helm")), "lint", "--strict", str(CHART))


def test_a_packed_chart_has_the_rules_and_dashboards_in_it(tmp_path: Path) -> None:
    """They are links here; what is handed on must hold the files."""
    run(str(tool("helm")), "package", str(CHART), "-d", str(tmp_path))
    (packed,) = tmp_path.glob("*.tgz")
    words = ["template", "murmurate", str(packed), "-f", str(EXAMPLES / "operator.yaml")]
    kinds = {each["kind"] for each in parsed(run(str(tool("helm")), *words, cwd=tmp_path))}
    assert {"PrometheusRule", "PodMonitor"} <= kinds


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("replica=3", "replica"),
        ("replicas=three", "replicas"),
        ("image.digest=sha256:12", "digest"),
        ("config.node.listen=0.0.0.0:1", "listen"),
        ("config.train.lr.x=1", "lr"),
        ("pools[0].name=Big_One", "name"),
        ("networkPolicy.outside[0]=everywhere", "outside"),
        ("terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds"),
        ("resources.limits.memory=lots", "memory"),
    ],
)
def test_a_wrong_value_is_refused_by_name(value: str, named: str) -> None:
    assert named in helm("--set", value, check=False)


def test_every_value_is_in_the_schema_and_has_a_word_of_explanation() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (CHART / "values.yaml").read_text()
    assert set(yaml.safe_load(text)) == set(schema["properties"]) - {"global"}
    assert text.count("#") >= 12


def test_what_can_be_set_arrives() -> None:
    """Values that no overlay has a counterpart of."""
    made = parsed(
        helm(
            *("--set", f"image.digest=sha256:{'a' * 64}"),
            *("--set", "networkPolicy.outside={10.20.0.0/16}"),
            *("--set", "storage.className=fast"),
            *("--set", "imagePullSecrets[0].name=mine"),
            *("--set", "config.train.samples=1000000"),
            *("--set", "nodeSelector.disk=ssd"),
        )
    )
    (pod,) = pods(made)
    assert pod.container["image"] == f"murmurate@sha256:{'a' * 64}"
    assert pod.spec["imagePullSecrets"] == [{"name": "mine"}]
    assert pod.spec["nodeSelector"] == {"disk": "ssd"}
    (claim,) = pod.owner["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    by_title: dict[str, Any] = {title(each): each for each in made}
    config = tomllib.loads(by_title["ConfigMap/murmurate-config"]["data"]["node.toml"])
    assert config["train"]["samples"] == 1_000_000
    assert isinstance(config["train"]["samples"], int)
    policy = by_title["NetworkPolicy/murmurate-peers"]["spec"]
    outside = {"ipBlock": {"cidr": "10.20.0.0/16"}}
    assert outside in policy["ingress"][0]["from"]
    assert policy["egress"][-1] == {"to": [outside], "ports": [{"protocol": "TCP", "port": 7000}]}


def test_switches_switch_off() -> None:
    options = ("networkPolicy.enabled=false", "podDisruptionBudget.enabled=false")
    made = parsed(helm(*(word for each in options for word in ("--set", each))))
    assert not {"NetworkPolicy", "PodDisruptionBudget"} & {each["kind"] for each in made}
