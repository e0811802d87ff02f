"""The restricted profile of the Pod Security Standards, and what we ask beyond it.

The profile's own words: kubernetes.io/docs/concepts/security/pod-security-standards. Schemas do not
check it, and a cluster would tell only once the pods do not come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
SYSCTLS = {
    *(
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
    ),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    "net.ipv4.tcp_keepalive_probes",
}
SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
Spec = dict[str, Any]


def containers(pod: Spec) -> Iterator[Spec]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, ())


def restricted(pod: Spec) -> list[str]:
    """Everything for which the API server would refuse this pod spec; empty: it is let in."""
    wrong: list[str] = []
    whole = pod.get("securityContext", {})
    wrong += [f"{key} is shared" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    for volume in pod.get("volumes", ()):
        kinds = set(volume) - {"name"} or {"emptyDir"}
        wrong += [f"volume {volume['name']}: {kind}" for kind in sorted(kinds - VOLUMES)]
    wrong += [
        f"sysctl {each['name']}" for each in whole.get("sysctls", ()) if each["name"] not in SYSCTLS
    ]
    if whole.get("runAsUser") == 0:
        wrong.append("runs as user 0")
    for each in containers(pod):
        own = each.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        seccomp = (own.get("seccompProfile") or whole.get("seccompProfile") or {}).get("type")
        apparmor = (own.get("appArmorProfile") or whole.get("appArmorProfile") or {}).get("type")
        selinux = own.get("seLinuxOptions") or whole.get("seLinuxOptions") or {}
        windows = own.get("windowsOptions") or whole.get("windowsOptions") or {}
        checks = {
            "may gain privileges": own.get("allowPrivilegeEscalation") is not False,
            "privileged": bool(own.get("privileged")),
            "may run as root": own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True,
            "runs as user 0": own.get("runAsUser") == 0,
            "keeps capabilities": "ALL" not in capabilities.get("drop", ()),
            "adds capabilities": not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
            "no seccomp profile": seccomp not in ("RuntimeDefault", "Localhost"),
            "AppArmor off": apparmor == "Unconfined",
            "SELinux options": selinux.get("type", "") not in SELINUX
            or bool(selinux.get("user") or selinux.get("role")),
            "host process": bool(windows.get("hostProcess")),
            "procMount": own.get("procMount", "Default") != "Default",
            "host port": any(port.get("hostPort") for port in each.get("ports", ())),
            "host in a probe": any(
                action.get("host")
                for probe in ("startupProbe", "readinessProbe", "livenessProbe")
                for action in (each.get(probe, {}).get(how, {}) for how in ("httpGet", "tcpSocket"))
            ),
        }
        wrong += [f"{each['name']}: {what}" for what, bad in checks.items() if bad]
    return wrong


def careful(pod: Spec) -> list[str]:
    """What we ask for beyond the profile."""
    wrong = [] if pod.get("automountServiceAccountToken") is False else ["mounts a token"]
    for each in containers(pod):
        own = each.get("securityContext", {})
        amounts = each.get("resources", {})
        if own.get("readOnlyRootFilesystem") is not True:
            wrong.append(f"{each['name']}: can write to its root file system")
        for kind in ("requests", "limits"):
            for what in ("cpu", "memory"):
                if what not in amounts.get(kind, {}):
                    wrong.append(f"{each['name']}: no {kind} of {what}")
        for probe in ("readinessProbe", "livenessProbe"):
            if probe not in each:
                wrong.append(f"{each['name']}: no {probe}")
        if ":" not in each["image"] or each["image"].endswith(":latest"):
            wrong.append(f"{each['name']}: image {each['image']} may be another one tomorrow")
    return wrong
