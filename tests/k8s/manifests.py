"""The manifests as a cluster would get them, and what is in them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
CHART = K8S / "chart"
KUSTOMIZATIONS = ("base", *sorted(f"overlays/{each.name}" for each in (K8S / "overlays").iterdir()))
SWARMS = tuple(
    each for each in KUSTOMIZATIONS if each.split("/")[-1] not in ("monitoring", "operator")
)
"""Those with peers in them; the other two are applied beside one."""
IST = tuple(each for each in SWARMS if each.endswith(("ist", "/hub")))
"""Those with a coordinator."""
GOSSIP = tuple(each for each in SWARMS if each not in IST)

Object = dict[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: it renders the manifests"
)


def tool(name: str) -> str | None:
    """A program that `make k8s` has put into its own folder, or that is installed anyway."""
    for place in (ROOT / ".venv-k8s/bin", ROOT / ".venv-k8s/deb/usr/bin"):
        if (place / name).exists():
            return str(place / name)
    return shutil.which(name)


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(tool(name) is None, reason=f"no {name} here: `make k8s` gets it")


def run(*command: str, text: str | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=cwd, input=text, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def rendered(name: str) -> str:
    """The text of `kubectl kustomize k8s/NAME`."""
    return run("kubectl", "kustomize", str(K8S / name))


def parsed(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, LOADER) if each is not None]


@functools.cache
def objects(name: str) -> list[Object]:
    """What it makes; the same objects each time: not to be changed."""
    return parsed(rendered(name))


def of_kind(found: list[Object], *kinds: str) -> list[Object]:
    return [each for each in found if each["kind"] in kinds]


def title(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


class Pod(NamedTuple):
    """What a controller makes pods from."""

    owner: Object
    labels: Mapping[str, str]
    spec: Object

    @property
    def title(self) -> str:
        return title(self.owner)

    @property
    def container(self) -> Object:
        (only,) = self.spec["containers"]
        return dict(only)


def pods(found: list[Object]) -> Iterator[Pod]:
    for each in of_kind(found, "StatefulSet", "Deployment"):
        template = each["spec"]["template"]
        yield Pod(each, template["metadata"]["labels"], template["spec"])


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """An equality selector, plain or as `matchLabels`; an empty one takes all."""
    assert "matchExpressions" not in selector
    wanted: Mapping[str, str] = selector.get("matchLabels", selector)
    return all(labels.get(key) == value for key, value in wanted.items())
