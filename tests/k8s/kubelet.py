"""What the kubelet makes of a pod's description: its environment, its files, its probes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

from tests.k8s.manifests import Object, Pod, of_kind

UNITS = {"": 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: object) -> float:
    """Kubernetes' numbers: 250m, 1, 512Mi."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def environment(pod: Pod, number: int, address: str) -> dict[str, str]:
    """The variables of pod `number` of its owner; KeyError: it asks for what there is not."""
    fields = {
        "metadata.name": pod_name(pod, number),
        "metadata.namespace": pod.owner["metadata"]["namespace"],
        "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        "status.podIP": address,
    }
    container = pod.container
    found: dict[str, str] = {}
    for each in container.get("env", ()):
        if "value" in each:
            found[each["name"]] = re.sub(
                r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), each["value"]
            )
        elif "fieldRef" in (source := each["valueFrom"]):
            found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            kind, what = source["resourceFieldRef"]["resource"].split(".")
            assert source["resourceFieldRef"]["containerName"] == container["name"]
            found[each["name"]] = str(math.ceil(quantity(container["resources"][kind][what])))
    return found


def pod_name(pod: Pod, number: int) -> str:
    ending = str(number) if pod.owner["kind"] == "StatefulSet" else f"7d9c-{number}x"
    return f"{pod.owner['metadata']['name']}-{ending}"


class Mount(NamedTuple):
    """A place in a container, and what is there: files by name, or an empty folder to write to."""

    path: str
    files: dict[str, str] | None
    writable: bool
    megabytes: float | None = None


def mounts(pod: Pod, found: list[Object]) -> list[Mount]:
    """Of the pod's container, outer places first. AssertionError: something is not there."""
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(found, "ConfigMap")}
    volumes = {each["name"]: each for each in pod.spec.get("volumes", ())}
    claims = {
        each["metadata"]["name"] for each in pod.owner["spec"].get("volumeClaimTemplates", ())
    }
    result = []
    for each in pod.container.get("volumeMounts", ()):
        name, path, fixed = each["name"], each["mountPath"], each.get("readOnly", False)
        if name in claims:
            result.append(Mount(path, None, not fixed))
            continue
        assert name in volumes, f"{pod.title}: {path} mounts {name}, which is no volume of it"
        volume = volumes[name]
        if "configMap" in volume:
            source = volume["configMap"]
            assert source["name"] in maps, f"{pod.title}: no ConfigMap {source['name']}"
            data = maps[source["name"]]
            items = source.get("items")
            if items is not None:
                data = {item["path"]: data[item["key"]] for item in items}
            result.append(Mount(path, data, writable=False))
        elif "secret" in volume:
            assert volume["secret"]["optional"] is True, f"{pod.title}: needs a secret nobody makes"
            result.append(Mount(path, {}, writable=False))
        elif "emptyDir" in volume:
            size = volume["emptyDir"].get("sizeLimit")
            result.append(Mount(path, None, not fixed, quantity(size) / 2**20 if size else None))
        else:
            claim = volume["persistentVolumeClaim"]["claimName"]
            made = [each["metadata"]["name"] for each in of_kind(found, "PersistentVolumeClaim")]
            assert claim in made, f"{pod.title}: no PersistentVolumeClaim {claim}"
            result.append(Mount(path, None, not fixed))
    assert {each["name"] for each in pod.container.get("volumeMounts", ())} >= set(volumes), (
        f"{pod.title}: a volume that is mounted nowhere"
    )
    return sorted(result, key=lambda mount: mount.path)


def lay_out(root: Path, every: list[Mount]) -> dict[str, Path]:
    """The mounts as folders below `root`; where each is."""
    places: dict[str, Path] = {}
    for mount in every:
        place = root / mount.path.strip("/").replace("/", "__")
        place.mkdir(parents=True, exist_ok=True)
        for name, text in (mount.files or {}).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")
        places[mount.path] = place
    for path in places:  # one mount inside another: the kubelet makes its place there
        outer = [each for each in places if path.startswith(f"{each}/")]
        for each in outer:
            (places[each] / path.removeprefix(f"{each}/")).mkdir(parents=True, exist_ok=True)
    return places


def here(text: str, places: dict[str, Path]) -> str:
    """Text in which a container's paths are those of `lay_out`; as it is where there are none."""
    if not places:
        return text
    longest_first = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
    return re.sub(rf"(?<![\w/])({longest_first})(?![\w-])", lambda at: str(places[at[1]]), text)


def port_number(pod: Pod, port: str | int) -> int:
    """A port by number or by its name in the container."""
    if isinstance(port, int):
        return port
    named = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
    assert port in named, f"{pod.title}: no port is called {port}; there are {', '.join(named)}"
    return int(named[port])
