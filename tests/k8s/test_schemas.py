"""Everything that is rendered, against the schemas of Kubernetes and the checks of Prometheus.

The tools are installed by `make k8s`; without them these are skipped.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.k8s.manifests import (
    CHART,
    K8S,
    KUSTOMIZATIONS,
    ROOT,
    needs,
    needs_kubectl,
    objects,
    of_kind,
    rendered,
    run,
    tool,
)

pytestmark = [needs_kubectl, pytest.mark.slow]
VERSIONS = ("1.28", "1.30", "1.32", "1.34", "1.36", "1.37")
"""From the first that tells a pod its index to the last that is known here."""
FOREIGN = {"PodMonitor", "PrometheusRule"}


def validate(version: str, *files: Path) -> subprocess.CompletedProcess[str]:
    command = [str(tool("kubernetes-validate")), "--strict", "-k", version, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All that kustomize and the chart make."""
    folder = tmp_path_factory.mktemp("rendered")
    texts = {f"{name.replace('/', '-')}.yaml": rendered(name) for name in KUSTOMIZATIONS}
    if helm := tool("helm"):
        for values in sorted((CHART / "examples").glob("*.yaml")):
            words = ("template", "murmurate", str(CHART), "-f", str(values))
            texts[f"chart-{values.name}"] = run(helm, *words)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return sorted(folder.iterdir())


@needs("kubernetes-validate")
@pytest.mark.parametrize("version", VERSIONS)
def test_everything_fits_the_schemas(version: str, files: list[Path]) -> None:
    done = validate(version, *files)
    said = done.stdout + done.stderr
    assert done.returncode == 0, "\n".join(
        line for line in said.splitlines() if "passed" not in line
    )
    assert f"against version {version}" in said
    unknown = set(re.findall(r"Couldn't find schema for kind (\w+)", said))
    assert unknown <= FOREIGN
    assert said.count("passed for resource") >= 60


@needs("kubernetes-validate")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 3", 'replicas: "three"'),
        ("maxUnavailable", "maxUnavailabel"),
        ("publishNotReadyAddresses", "publishUnreadyAddresses"),
        ("readOnlyRootFilesystem: true", 'readOnlyRootFilesystem: "yes"'),
    ],
)
def test_a_mistake_does_not_fit(old: str, new: str, tmp_path: Path) -> None:
    text = rendered("base")
    assert old in text
    file = tmp_path / "bad.yaml"
    file.write_text(text.replace(old, new))
    assert validate(VERSIONS[0], file).returncode != 0
    assert validate(VERSIONS[-1], file).returncode != 0


@needs("promtool")
def test_the_rules_pass_as_objects_and_do_what_they_say(tmp_path: Path) -> None:
    promtool = str(tool("promtool"))
    (rule,) = of_kind(objects("overlays/operator"), "PrometheusRule")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    run(promtool, "check", "rules", "rules.yml", cwd=tmp_path)
    (tmp_path / "rules_test.yml").write_text((ROOT / "monitoring/rules_test.yml").read_text())
    run(promtool, "test", "rules", "rules_test.yml", cwd=tmp_path)


@needs("promtool")
def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    maps = {
        file: text
        for each in of_kind(objects("overlays/monitoring"), "ConfigMap")
        for file, text in each["data"].items()
    }
    (tmp_path / "rules.yml").write_text(maps["rules.yml"])
    config = maps["prometheus.yml"].replace("/etc/prometheus/rules/", f"{tmp_path}/")
    (tmp_path / "prometheus.yml").write_text(config)
    said = run(str(tool("promtool")), "check", "config", "prometheus.yml", cwd=tmp_path)
    assert re.search(r"[1-9]\d* rule files found", said)


def test_every_overlay_is_looked_at() -> None:
    found = {str(each.parent.relative_to(K8S)) for each in K8S.rglob("kustomization.yaml")}
    used = set(KUSTOMIZATIONS) | {f"base/{half}" for half in ("shared", "peers")}
    pools = {f"overlays/heterogeneous/{pool}" for pool in ("big", "small", "spot")}
    components = {each for each in found if each.startswith("components/")}
    assert found == used | pools | components
