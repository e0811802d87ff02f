"""Every reference in the rendered manifests leads somewhere, and to what was meant.

Needs kubectl, which renders them, and nothing else: no cluster, no program is started here.
"""

from __future__ import annotations

import os
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.k8s.kubelet import environment, here, lay_out, mounts, port_number, quantity
from tests.k8s.manifests import (
    GOSSIP,
    IST,
    K8S,
    KUSTOMIZATIONS,
    ROOT,
    SWARMS,
    Object,
    Pod,
    needs_kubectl,
    objects,
    of_kind,
    pods,
    rendered,
    selects,
    title,
)
from tests.k8s.pod_security import careful, restricted

pytestmark = needs_kubectl
PEER = "peer"
COMPONENT = "app.kubernetes.io/component"

every = pytest.mark.parametrize("name", KUSTOMIZATIONS)
every_swarm = pytest.mark.parametrize("name", SWARMS)
every_gossip = pytest.mark.parametrize("name", GOSSIP)
every_ist = pytest.mark.parametrize("name", IST)


def with_swarm(name: str) -> list[Object]:
    """What is applied, and beside what: two of the overlays only make sense beside a swarm."""
    return objects(name) + ([] if name in SWARMS else objects("base"))


def peers(found: list[Object]) -> list[Pod]:
    return [pod for pod in pods(found) if pod.labels.get(COMPONENT) == PEER]


# -- what is there ---------------------------------------------------------------------------------


@every
def test_pods_are_restricted(name: str) -> None:
    for pod in pods(objects(name)):
        assert restricted(pod.spec) == [], pod.title
        assert careful(pod.spec) == [], pod.title


@every
def test_everything_is_in_the_namespace_and_named_once(name: str) -> None:
    found = objects(name)
    assert len({title(each) for each in found}) == len(found)
    for each in found:
        if each["kind"] == "Namespace":
            assert each["metadata"]["name"] == "murmurate"
            assert each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
        else:
            assert each["metadata"]["namespace"] == "murmurate", title(each)


def test_what_is_applied_beside_a_swarm_takes_nothing_of_it_along_when_deleted() -> None:
    own = {title(each) for each in objects("base")}
    for name in set(KUSTOMIZATIONS) - set(SWARMS):
        assert not own & {title(each) for each in objects(name)}


def test_only_the_operators_overlay_needs_its_kinds() -> None:
    for name in KUSTOMIZATIONS:
        foreign = [each for each in objects(name) if "monitoring.coreos.com" in each["apiVersion"]]
        assert bool(foreign) == (name == "overlays/operator"), name


@every_swarm
def test_a_swarm_has_all_it_needs(name: str) -> None:
    kinds = {each["kind"] for each in objects(name)}
    assert kinds >= {
        *("Namespace", "ServiceAccount", "ConfigMap", "Service", "StatefulSet"),
        *("PodDisruptionBudget", "NetworkPolicy"),
    }


# -- references ------------------------------------------------------------------------------------


@every
def test_selectors_of_controllers_take_their_own_pods_only(name: str) -> None:
    found = list(pods(objects(name)))
    for pod in found:
        selector = pod.owner["spec"]["selector"]
        taken = [other.title for other in found if selects(selector, other.labels)]
        assert taken == [pod.title]


@every
def test_services_lead_to_ports_of_pods(name: str) -> None:
    found = with_swarm(name)
    for service in of_kind(found, "Service"):
        behind = [pod for pod in pods(found) if selects(service["spec"]["selector"], pod.labels)]
        assert behind, title(service)
        for pod in behind:
            for port in service["spec"]["ports"]:
                assert port_number(pod, port["targetPort"]) == port["port"], title(service)


@every
def test_stateful_sets_have_the_service_they_name(name: str) -> None:
    found = with_swarm(name)
    services = {each["metadata"]["name"]: each for each in of_kind(found, "Service")}
    for pod in pods(found):
        if pod.owner["kind"] == "StatefulSet":
            service = services[pod.owner["spec"]["serviceName"]]
            assert selects(service["spec"]["selector"], pod.labels), pod.title


@every_gossip
def test_the_name_that_peers_ask_for_stands_for_all_of_them_ready_or_not(name: str) -> None:
    found = objects(name)
    services = {each["metadata"]["name"]: each for each in of_kind(found, "Service")}
    asked = set()
    for pod in peers(found):
        for mount in mounts(pod, found):
            if "node.toml" in (mount.files or {}):
                config = tomllib.loads((mount.files or {})["node.toml"])
                asked |= set(config["node"]["peers"])
    assert len(asked) == 1
    _, host, port = asked.pop().split(":")
    spec = services[host]["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert int(port) in [each["port"] for each in spec["ports"]]
    assert all(selects(spec["selector"], pod.labels) for pod in peers(found))


@every_swarm
def test_one_budget_covers_all_peers(name: str) -> None:
    found = objects(name)
    for pod in peers(found):
        covers = [
            each
            for each in of_kind(found, "PodDisruptionBudget")
            if selects(each["spec"]["selector"], pod.labels)
        ]
        assert [each["spec"]["maxUnavailable"] for each in covers] == [1]


@every
def test_every_volume_config_map_and_key_is_there(name: str) -> None:
    found = objects(name)
    accounts = {
        each["metadata"]["name"]: each for each in of_kind(with_swarm(name), "ServiceAccount")
    }
    for pod in pods(found):
        places = [mount.path for mount in mounts(pod, found)]
        assert len(set(places)) == len(places)
        account = accounts[pod.spec["serviceAccountName"]]
        assert account["automountServiceAccountToken"] is False
    used = set(re.findall(r"name: (\S+)", "\n".join(rendered(name).split("kind: StatefulSet")[1:])))
    for each in of_kind(found, "ConfigMap"):
        if name != "overlays/operator":  # those are for Grafana's sidecar, which goes by the label
            assert each["metadata"]["name"] in used | _mentioned(found), title(each)


def _mentioned(found: list[Object]) -> set[str]:
    return {
        volume["configMap"]["name"]
        for pod in pods(found)
        for volume in pod.spec.get("volumes", ())
        if "configMap" in volume
    }


@every
def test_probes_and_annotations_name_ports_of_their_container(name: str) -> None:
    for pod in pods(objects(name)):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in pod.container:
                port_number(pod, pod.container[probe]["httpGet"]["port"])
        notes = pod.owner["spec"]["template"]["metadata"].get("annotations", {})
        if "prometheus.io/port" in notes:
            assert int(notes["prometheus.io/port"]) == port_number(pod, "metrics")


@every_swarm
def test_ready_is_synced_and_starting_has_time(name: str) -> None:
    for pod in peers(objects(name)):
        probes = {
            kind: pod.container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")
        }
        assert probes["readiness"]["httpGet"]["path"] == "/readyz"
        assert (
            probes["startup"]["httpGet"]["path"]
            == probes["liveness"]["httpGet"]["path"]
            == "/livez"
        )
        assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 120
        assert pod.spec["terminationGracePeriodSeconds"] >= 20  # SIGTERM takes up to 10 s


# -- who may talk to whom --------------------------------------------------------------------------


def allowed(found: list[Object], source: Pod, target: Pod, port: str) -> bool:
    """Whether policies let `source` open a connection to that port of `target`, both sides."""

    def side(pod: Pod, way: str, key: str, other: Pod) -> bool:
        policies = [
            each["spec"]
            for each in of_kind(found, "NetworkPolicy")
            if selects(each["spec"]["podSelector"], pod.labels)
            and way in each["spec"]["policyTypes"]
        ]
        assert policies, f"nothing restricts {pod.title}"
        return any(
            any(each["port"] == port_number(target, port) for each in rule["ports"])
            and any(
                selects(peer["podSelector"], other.labels)
                for peer in rule[key]
                if "podSelector" in peer
            )
            for policy in policies
            for rule in policy.get(way.lower(), ())
        )

    return side(source, "Egress", "to", target) and side(target, "Ingress", "from", source)


@every_gossip
def test_peers_reach_peers_and_nobody_reaches_more(name: str) -> None:
    found = objects(name)
    for source in peers(found):
        for target in peers(found):
            assert allowed(found, source, target, "peer")
            assert not allowed(found, source, target, "metrics")


@every_ist
def test_peers_reach_the_coordinator_and_only_it(name: str) -> None:
    found = objects(name)
    (coordinator,) = (pod for pod in pods(found) if pod.labels[COMPONENT] == "coordinator")
    for peer in peers(found):
        assert allowed(found, peer, coordinator, "coordinator")
        assert not allowed(found, peer, coordinator, "metrics")
        assert not allowed(found, coordinator, peer, "metrics")
        assert not any(allowed(found, peer, other, "metrics") for other in peers(found))


def test_prometheus_reaches_metrics_and_nothing_else() -> None:
    found = with_swarm("overlays/monitoring")
    by_name = {pod.owner["metadata"]["name"]: pod for pod in pods(found)}
    prometheus, grafana = by_name["murmurate-prometheus"], by_name["murmurate-grafana"]
    peer = by_name["murmurate"]
    assert allowed(found, prometheus, peer, "metrics")
    assert not allowed(found, prometheus, peer, "peer")
    assert allowed(found, grafana, prometheus, "web")
    assert not allowed(found, grafana, peer, "metrics")
    assert not allowed(found, peer, prometheus, "web")


@every_swarm
def test_everything_is_denied_that_is_not_allowed(name: str) -> None:
    policies = {
        each["metadata"]["name"]: each["spec"] for each in of_kind(objects(name), "NetworkPolicy")
    }
    assert policies["murmurate-default-deny"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }


# -- what the program is told ----------------------------------------------------------------------


def told(pod: Pod, found: list[Object], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the program understands, from the rendered files and variables; they must be right."""
    from murmurate.programs.keys import config
    from murmurate_coordinator import config as coordinator_config

    monkeypatch.setattr(config, "cannot_listen", lambda *_: "")  # others use this machine's ports
    places = lay_out(folder / pod.owner["metadata"]["name"], mounts(pod, found))
    command, option, path = (here(each, places) for each in pod.container["args"])
    assert option == "--config"
    file = Path(path)
    file.write_text(here(file.read_text(), places))
    variables = {key: here(value, places) for key, value in environment(pod, 3, "10.1.2.3").items()}
    read: Any = {"node": config.load, "coordinator": coordinator_config.load}[command]
    result = read(str(file), variables)
    limit = quantity(pod.container["resources"]["limits"]["cpu"])
    assert getattr(result, command).threads == int(limit)
    assert result.metrics.listen == f"0.0.0.0:{port_number(pod, 'metrics')}"
    assert result.train.samples is result.train.seconds is None  # a pod that ends is started again
    if result.checkpoint.dir is not None:
        assert Path(result.checkpoint.dir).is_relative_to(places["/var/lib/murmurate"])
    return result


@every_gossip
def test_a_peer_understands_what_its_pod_tells_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pod in peers(objects(name)):
        it = told(pod, objects(name), tmp_path, monkeypatch)
        assert it.node.name == f"{pod.owner['metadata']['name']}-3"
        assert it.node.advertise == f"10.1.2.3:{port_number(pod, 'peer')}"
        assert it.node.listen == f"0.0.0.0:{port_number(pod, 'peer')}"
        assert it.checkpoint.dir is not None


@every_ist
def test_a_coordinator_and_its_members_understand_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = objects(name)
    (pod,) = (pod for pod in pods(found) if pod.labels[COMPONENT] == "coordinator")
    centre = told(pod, found, tmp_path, monkeypatch)
    assert centre.coordinator.listen == f"0.0.0.0:{port_number(pod, 'coordinator')}"
    assert centre.checkpoint.dir is not None
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(found, "Service")}
    widths = []
    for each in peers(found):
        it = told(each, found, tmp_path, monkeypatch)
        assert it.train.mode == centre.train.mode == ("hub" if name.endswith("/hub") else "ist")
        assert (it.node.run, it.train.workload) == (centre.coordinator.run, centre.train.workload)
        host, port = it.ist.coordinator.split(":")
        assert selects(services[host]["selector"], pod.labels)
        assert int(port) == port_number(pod, "coordinator")
        widths.append(it.ist.width)
    assert len(set(widths)) == len(widths)  # each pool its own


@every_swarm
def test_no_two_pods_take_the_same_place_in_the_data(name: str) -> None:
    found = objects(name)
    places: list[Any] = []
    for pod in peers(found):
        for number in range(pod.owner["spec"]["replicas"]):
            variables = environment(pod, number, "10.1.2.3")
            places.append(variables.get("MURMURATE_TRAIN_SHARD", (pod.title, number)))
    assert len(set(places)) == len(places)
    if len(peers(found)) > 1:
        assert all(isinstance(place, str) for place in places), "ordinals are the same in all pools"


def test_the_pools_differ_in_size_and_codec() -> None:
    found = peers(objects("overlays/heterogeneous"))
    assert [pod.labels["murmurate/pool"] for pod in found] == ["big", "small", "spot"]
    variables = [environment(pod, 0, "10.1.2.3") for pod in found]
    for what in ("MURMURATE_TRAIN_CODEC", "MURMURATE_NODE_THREADS"):
        assert len({each[what] for each in variables}) == 3


# -- what is watched -------------------------------------------------------------------------------


def test_the_operators_rules_are_the_shipped_ones() -> None:
    """Otherwise: python k8s/operator_rules.py"""
    (made,) = of_kind(objects("overlays/operator"), "PrometheusRule")
    shipped = yaml.safe_load((ROOT / "monitoring/rules.yml").read_text())
    assert made["spec"] == shipped
    script = runpy.run_path(str(K8S / "operator_rules.py"))
    assert script["OBJECT"].read_text() == script["text"]()


@pytest.mark.parametrize("name", ["overlays/operator", "overlays/monitoring"])
def test_the_dashboards_and_rules_are_the_shipped_ones(name: str) -> None:
    maps = {
        file: text
        for each in of_kind(objects(name), "ConfigMap")
        for file, text in each["data"].items()
    }
    for file in sorted((ROOT / "monitoring/grafana").glob("*.json")):
        assert maps.get(file.name) == file.read_text(), "is it in monitoring/kustomization.yaml?"
    if name == "overlays/monitoring":
        assert maps["rules.yml"] == (ROOT / "monitoring/rules.yml").read_text()


PODMONITOR = {"jobLabel": str, "selector": dict, "podMetricsEndpoints": list}
ENDPOINT = {"port": str, "path": str, "interval": str, "scrapeTimeout": str, "relabelings": list}


@every_swarm
def test_the_pod_monitor_finds_all_pods_and_calls_them_what_the_rules_do(name: str) -> None:
    """Its schema is not in Kubernetes: the few fields used here, with their types."""
    (monitor,) = of_kind(objects("overlays/operator"), "PodMonitor")
    spec = monitor["spec"]
    assert {key: type(value) for key, value in spec.items()} == PODMONITOR
    for pod in pods(objects(name)):
        assert selects(spec["selector"], pod.labels), pod.title
        assert pod.labels[spec["jobLabel"]] == "murmurate"
        for endpoint in spec["podMetricsEndpoints"]:
            assert {key: type(value) for key, value in endpoint.items()} == ENDPOINT
            port_number(pod, endpoint["port"])


def test_prometheus_and_grafana_find_what_their_files_name() -> None:
    found = objects("overlays/monitoring") + objects("overlays/ist")
    by_name = {pod.owner["metadata"]["name"]: pod for pod in pods(found)}
    prometheus = {
        mount.path: mount.files or {} for mount in mounts(by_name["murmurate-prometheus"], found)
    }
    config = yaml.safe_load(prometheus["/etc/prometheus"]["prometheus.yml"])
    for file in config["rule_files"]:
        assert os.path.basename(file) in prometheus[os.path.dirname(file)]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "murmurate"  # as in the rules
    (search,) = job["dns_sd_configs"]
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(found, "Service")}
    for name in search["names"]:
        port, protocol, service = name.split(".")
        assert port[1:] in [each["name"] for each in services[service]["ports"]]
        assert protocol == "_tcp"

    grafana = {
        mount.path: mount.files or {} for mount in mounts(by_name["murmurate-grafana"], found)
    }
    given = grafana["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load(given["datasources/datasources.yml"])["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert int(port) in [each["port"] for each in services[host]["ports"]]
    (provider,) = yaml.safe_load(given["dashboards/dashboards.yml"])["providers"]
    assert "swarm.json" in grafana[provider["options"]["path"]]
    variables = environment(by_name["murmurate-grafana"], 0, "10.1.2.3")
    home = variables["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert os.path.basename(home) in grafana[os.path.dirname(home)]
