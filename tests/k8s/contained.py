"""Pods of rendered manifests in the real image, by podman: with every path as it is there."""

from __future__ import annotations

import shutil
import subprocess

from tests.k8s.containers import IMAGE, LIMITS, podman
from tests.k8s.kubelet import mounts, quantity
from tests.k8s.machines import Started


def no_image() -> str:
    """Why there can be none; empty: there can."""
    if shutil.which("podman") is None:
        return "no podman here"
    if not podman("image", "ls", "--quiet", IMAGE):
        return f"no image {IMAGE} here: make image-offline"
    return ""


class Contained(Started):
    """What the manifest asks for, in podman's words."""

    mapped = False

    @property
    def id(self) -> str:
        return f"{self.cluster.prefix}{self.name}"

    @property
    def pid(self) -> int:
        return int(podman("inspect", "--format", "{{.State.Pid}}", self.id))

    def command(self, *arguments: str, name: str = "") -> list[str]:
        whole, own = self.pod.spec["securityContext"], self.pod.container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        memory = int(quantity(self.pod.container["resources"]["limits"]["memory"]))
        words = ["podman", "--runtime", "runc", "run", "--rm"]
        words += [*LIMITS, "--network", f"ns:/run/netns/{self.space}"]
        words += ["--name", name] if name else []
        words += ["--read-only", "--read-only-tmpfs=false", "--security-opt", "no-new-privileges"]
        words += [f"--cap-drop={each}" for each in own["capabilities"]["drop"]]
        words += ["--user", f"{whole['runAsUser']}:{whole['runAsGroup']}", "--memory", str(memory)]
        words += ["-v", f"{self.cluster.resolver}:/etc/resolv.conf:ro"]
        for mount in mounts(self.pod, self.cluster.found):
            how = "rw" if mount.writable else "ro"
            words += ["-v", f"{self.places[mount.path]}:{mount.path}:{how}"]
        for key in sorted(set(self.environment) - {"PATH", "HOME", "TMPDIR"}):
            words += ["-e", f"{key}={self.environment[key]}"]
        return [*words, IMAGE, *arguments]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command(*self.arguments, name=self.id),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In the running container, else in one of its own."""
        command = self.command(*arguments)
        if self.alive:
            command = ["podman", "--runtime", "runc", "exec", self.id, "murmurate", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def terminate(self) -> None:
        podman("kill", "--signal", "TERM", self.id)

    def kill(self) -> None:
        if self.alive:
            podman("kill", "--signal", "KILL", self.id, check=False)
            assert self.child is not None
            self.child.wait(30)
