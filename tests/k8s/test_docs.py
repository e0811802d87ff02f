"""What docs/kubernetes.md shows is there and works, as far as it can be seen without a cluster."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.k8s.kubelet import port_number
from tests.k8s.manifests import (
    K8S,
    KUSTOMIZATIONS,
    ROOT,
    Object,
    needs,
    needs_kubectl,
    objects,
    of_kind,
    parsed,
    pods,
    run,
    selects,
    title,
    tool,
)

pytestmark = needs_kubectl
TEXT = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
JOINED = TEXT.replace("\\\n", " ")
COMMANDS = [
    re.sub(r"\s+#.*", "", line.strip()) for line in re.findall(r"^    (\w.*)$", JOINED, re.M)
]
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)


def block(kind: str) -> str:
    (found,) = [each for each in BLOCKS if f"kind: {kind}\n" in each]
    return str(found)


def test_every_overlay_is_named_and_every_named_one_is_there() -> None:
    named = set(re.findall(r"`k8s/([\w/-]+)`", TEXT)) - {"chart"}
    named |= set(re.findall(r"apply -k k8s/([\w/-]+)", TEXT))
    named = {each for each in named if "." not in each and each != "base/shared/node"}
    assert named == set(KUSTOMIZATIONS)


def test_what_commands_ask_for_exists() -> None:
    every = [each for name in KUSTOMIZATIONS for each in objects(name)]
    titles = {title(each) for each in every}
    kinds = {"statefulset": "StatefulSet", "service": "Service", "deployment": "Deployment"}
    asked = re.findall(rf"\b({'|'.join(kinds)})/([\w-]+)", " ".join(COMMANDS))
    assert len(asked) >= 6
    for kind, name in asked:
        assert f"{kinds[kind]}/{name}" in titles
    for name, port in re.findall(r"(?:exec|port-forward) (murmurate-\d+) (?:-- .*:)?(\d+)", TEXT):
        assert name.rsplit("-", 1)[0] in {pod.owner["metadata"]["name"] for pod in pods(every)}
        (peer,) = pods(objects("base"))
        assert int(port) in (port_number(peer, "peer"), port_number(peer, "metrics"))


def test_an_overlay_of_your_own_renders(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s", ignore=shutil.ignore_patterns("chart"))
    (tmp_path / "my-swarm").mkdir()
    (tmp_path / "my-swarm/kustomization.yaml").write_text(block("Kustomization"))
    (peer,) = pods(parsed(run("kubectl", "kustomize", str(tmp_path / "my-swarm"))))
    assert re.fullmatch(r"your/murmurate@sha256:0{64}", peer.container["image"])
    assert peer.owner["spec"]["replicas"] == 4


def test_the_policy_for_peers_outside_is_about_peers() -> None:
    (policy,) = parsed(block("NetworkPolicy"))
    (peer,) = pods(objects("base"))
    assert selects(policy["spec"]["podSelector"], peer.labels)
    for rule in (*policy["spec"]["ingress"], *policy["spec"]["egress"]):
        assert rule["ports"] == [{"protocol": "TCP", "port": port_number(peer, "peer")}]


@needs("helm")
@pytest.mark.slow
def test_helm_takes_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "my_workload.py").write_text("class Spirals: ...\n")
    shown = [each for each in COMMANDS if each.startswith("helm install")]
    assert len(shown) == 2
    for command in shown:
        words = [each for each in shlex.split(command)[2:] if each != "--create-namespace"]
        words[1] = str(ROOT / words[1])
        made = parsed(run(str(tool("helm")), "template", *words, cwd=tmp_path))
        assert of_kind(made, "StatefulSet")
    options = re.findall(r"`(--set '[^`]+')`", TEXT)
    for option in options:
        words = shlex.split(option)
        run(str(tool("helm")), "template", "murmurate", str(K8S / "chart"), *words)
    assert options


@needs("kubernetes-validate")
@pytest.mark.slow
def test_the_policy_fits_the_schema(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(block("NetworkPolicy"))
    run(str(tool("kubernetes-validate")), "--strict", "-k", "1.28", str(file))


def test_files_it_names_are_there() -> None:
    for path in re.findall(r"`(k8s/[\w/.-]+\.\w+)`", TEXT):
        assert (ROOT / path).exists(), path
    config: list[Object] = of_kind(objects("base"), "ConfigMap")
    assert "node.toml" in config[0]["data"]
