"""Pods that are containers: the real image, held as the manifests hold it.

They share this machine's network, each with an address of its own out of 127.0.0.0/8. podman runs
here with runc and with limits that need not be raised.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.k8s.pods import WAIT_S, Cluster, Pod

IMAGE = os.environ.get("IMAGE", "murmurate:dev")
UID = 10001
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
RESTRICTED = (
    *("--read-only", "--read-only-tmpfs=false"),
    *("--cap-drop=ALL", "--security-opt", "no-new-privileges"),
    *("--memory", "1g", "--tmpfs", "/tmp:rw,size=256m,mode=1777"),
)


def podman(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["podman", "--runtime", "runc", *arguments], capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Container(Pod):
    """A pod whose process is podman's; signals go to process 1 inside."""

    @property
    def id(self) -> str:
        return f"{self.log.parent.name}-{self.log.stem}".replace("_", "-")

    def run(self, *command: str) -> str:
        """Inside, as the container's own user."""
        return podman("exec", self.id, *command)

    def term(self) -> None:
        podman("kill", "--signal", "TERM", self.id)

    def kill(self) -> None:
        podman("kill", "--signal", "KILL", self.id, check=False)
        self.process.wait(WAIT_S)


class Containers(Cluster):
    """`Cluster` with the image in place of this folder's program."""

    kind = Container

    def _launch(self, name: str, volume: Path, environment: dict[str, str], log: Path) -> list[str]:
        os.chown(volume, UID, UID)  # as fsGroup does
        given = {key: value for key, value in environment.items() if key.startswith("MURMURATE_")}
        given = {
            key: each.replace(str(volume), "/var/lib/murmurate") for key, each in given.items()
        }
        variables = [word for pair in given.items() for word in ("-e", "=".join(pair))]
        container = f"{log.parent.name}-{log.stem}".replace("_", "-")
        return [
            *("podman", "--runtime", "runc", "run", "--rm", "--name", container, "--network=host"),
            *(*LIMITS, *RESTRICTED, *variables),
            *("-v", f"{volume}:/var/lib/murmurate"),
            *("-v", f"{self.config}:/etc/murmurate/node.toml:ro"),
            *("-v", f"{self.resolv}:/etc/resolv.conf:ro"),
            IMAGE,
        ]
