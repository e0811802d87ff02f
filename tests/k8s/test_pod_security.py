"""The checker finds what it is there for: a good pod passes, each bad one is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from tests.k8s.pod_security import careful, restricted

GOOD = yaml.safe_load(
    """
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: node
    image: murmurate:dev
    ports: [{containerPort: 7000}]
    readinessProbe: {httpGet: {path: /readyz, port: 9464}}
    livenessProbe: {httpGet: {path: /livez, port: 9464}}
    resources:
      requests: {cpu: 250m, memory: 512Mi}
      limits: {cpu: 1, memory: 1Gi}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
volumes:
  - name: tmp
    emptyDir: {}
"""
)
NODE = ("containers", 0)
OWN = (*NODE, "securityContext")
GONE = object()


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    pod = copy.deepcopy(GOOD)
    at: Any = pod
    for step in path[:-1]:
        at = at[step]
    if value is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    assert isinstance(pod, dict)
    return pod


def test_a_good_pod_passes() -> None:
    assert restricted(GOOD) == careful(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("hostNetwork",), True, "hostNetwork"),
        (("hostPID",), True, "hostPID"),
        (("volumes", 0), {"name": "disk", "hostPath": {"path": "/"}}, "volume disk: hostPath"),
        (("volumes", 0), {"name": "share", "nfs": {"server": "a"}}, "volume share: nfs"),
        (("securityContext", "runAsNonRoot"), GONE, "may run as root"),
        (("securityContext", "runAsNonRoot"), False, "may run as root"),
        (("securityContext", "runAsUser"), 0, "user 0"),
        (("securityContext", "seccompProfile"), GONE, "no seccomp"),
        (("securityContext", "seccompProfile", "type"), "Unconfined", "no seccomp"),
        (("securityContext", "sysctls"), [{"name": "kernel.msgmax", "value": "1"}], "sysctl"),
        (OWN, {}, "may gain privileges"),
        ((*OWN, "allowPrivilegeEscalation"), True, "may gain privileges"),
        ((*OWN, "privileged"), True, "privileged"),
        ((*OWN, "runAsNonRoot"), False, "may run as root"),
        ((*OWN, "runAsUser"), 0, "user 0"),
        ((*OWN, "capabilities", "drop"), ["NET_RAW"], "keeps capabilities"),
        ((*OWN, "capabilities", "add"), ["SYS_PTRACE"], "adds capabilities"),
        ((*OWN, "seccompProfile"), {"type": "Unconfined"}, "no seccomp"),
        ((*OWN, "appArmorProfile"), {"type": "Unconfined"}, "AppArmor"),
        ((*OWN, "seLinuxOptions"), {"type": "spc_t"}, "SELinux"),
        ((*OWN, "procMount"), "Unmasked", "procMount"),
        ((*NODE, "ports", 0, "hostPort"), 7000, "host port"),
        ((*NODE, "livenessProbe", "httpGet", "host"), "example.org", "host in a probe"),
        (("initContainers",), [{"name": "first", "image": "a:1"}], "first: may gain"),
    ],
)
def test_what_the_profile_forbids_is_named(path: Any, value: object, said: str) -> None:
    problems = restricted(changed(path, value))
    assert problems
    assert said in " ".join(problems)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("automountServiceAccountToken",), GONE, "token"),
        ((*OWN, "readOnlyRootFilesystem"), False, "write to its root"),
        ((*NODE, "resources", "limits"), {"cpu": 1}, "no limits of memory"),
        ((*NODE, "resources"), GONE, "no requests of cpu"),
        ((*NODE, "readinessProbe"), GONE, "no readinessProbe"),
        ((*NODE, "image"), "murmurate", "tomorrow"),
        ((*NODE, "image"), "murmurate:latest", "tomorrow"),
    ],
)
def test_what_we_ask_beyond_it_is_named(path: Any, value: object, said: str) -> None:
    problems = careful(changed(path, value))
    assert len(problems) >= 1
    assert said in " ".join(problems)
