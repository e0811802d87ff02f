"""Pods of rendered manifests as real processes: what a kubelet would start, without one.

Each pod has its address on a bridge that nothing else sees, the rendered files, variables and
arguments, user 10001, no capabilities, and a root file system it cannot write to. Paths of its
mounts are folders below one temporary folder. A name server answers for the services.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.k8s.kubelet import environment, here, lay_out, mounts, pod_name, port_number
from tests.k8s.manifests import Object, Pod, of_kind, selects
from tests.k8s.names import DOMAIN, Names

SUBNET = "10.79.0"
CLONE_NEWNET = 0x40000000
PROGRAM = Path(sys.executable).parent / "murmurate"
SETPRIV = ("setpriv", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
T = TypeVar("T")


def cannot_start() -> str:
    """Why there can be no pods here; empty: there can."""
    if os.geteuid() != 0:
        return "network and mount namespaces need root"
    missing = [each for each in ("ip", "unshare", "setpriv", "mount") if shutil.which(each) is None]
    return f"{', '.join(missing)} missing (apt-get install iproute2 util-linux)" if missing else ""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Started:
    """One pod, and what is done to it."""

    mapped = True
    """Whether paths of the container are folders elsewhere."""

    def __init__(
        self, cluster: Cluster, pod: Pod, number: int, index: int, program: str = str(PROGRAM)
    ) -> None:
        self.cluster, self.pod, self.program = cluster, pod, program
        self.user = pod.spec["securityContext"]["runAsUser"]
        self.name = pod_name(pod, number)
        self.address = f"{SUBNET}.{index + 1}"
        self.space = f"{cluster.prefix}{index}"
        self.log = cluster.folder / f"{self.name}.log"
        self.child: subprocess.Popen[bytes] | None = None
        every = mounts(pod, cluster.found)
        self.places = lay_out(cluster.folder / self.name, every)
        there = self.places if self.mapped else {}
        self.writable = [self.places[mount.path] for mount in every if mount.writable]
        for place in self.places.values():
            for file in (*place.rglob("*.toml"), *place.rglob("prometheus.yml")):
                file.write_text(here(file.read_text(), there))
        for place in self.writable:
            os.chown(place, self.user, self.user)  # what fsGroup is for
        told = environment(pod, number, self.address)
        self.environment = {
            "PATH": f"{PROGRAM.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            **{key: str(self.places.get("/tmp", "/")) for key in ("HOME", "TMPDIR")},
            "PYTHONDONTWRITEBYTECODE": "1",
            **{key: here(value, there) for key, value in told.items()},
        }
        self.arguments = [here(each, there) for each in pod.container["args"]]

    def command(self, *arguments: str) -> list[str]:
        """The program with these arguments as in the container."""
        quoted = shlex.quote
        user = (f"--reuid={self.user}", f"--regid={self.user}")
        steps = [
            "mount --make-rprivate /",
            f"mount --bind {quoted(str(self.cluster.resolver))} /etc/resolv.conf",
            *(f"mount --bind {quoted(str(at))} {quoted(str(at))}" for at in self.writable),
            "mount -o remount,bind,ro /",
            shlex.join(["exec", *SETPRIV, *user, self.program, *arguments]),
        ]
        return [
            *("ip", "netns", "exec", self.space, "unshare", "--mount"),
            *("sh", "-ec", " && ".join(steps)),
        ]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command(*self.arguments),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
            )

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another `murmurate` in the same pod: what `kubectl exec` does."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def terminate(self) -> None:
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def restrictions(self) -> dict[str, str]:
        """What the kernel says of the process."""
        process = Path(f"/proc/{self.pid}")
        lines = (line.split(":", 1) for line in (process / "status").read_text().splitlines())
        status = {name: value.split()[0] for name, value in lines if value.strip()}
        (root,) = (
            line.split()[5]
            for line in (process / "mountinfo").read_text().splitlines()
            if line.split()[4] == "/"
        )
        wanted = ("Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs")
        return {**{name: status[name] for name in wanted}, "root": root.split(",")[0]}

    # -- what is asked from outside ----------------------------------------------------------------

    def get(self, port: str | int, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
        """Status and text; 0: nobody answers."""
        url = f"http://{self.address}:{port_number(self.pod, port)}{path}"

        def fetch() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(url, timeout=timeout_s) as answer:
                    return answer.status, answer.read().decode(errors="replace")
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()
            except OSError:
                return 0, ""

        return self.cluster.inside(fetch)

    def passes(self, probe: str) -> bool:
        """One try of a probe, as the manifest has it."""
        how = self.pod.container[f"{probe}Probe"]
        action = how["httpGet"]
        status, _ = self.get(action["port"], action["path"], how.get("timeoutSeconds", 1))
        return 200 <= status < 400

    def wait_started(self) -> float:
        """As the kubelet does: so many tries, and no more; seconds it took."""
        how = self.pod.container["startupProbe"]
        began = time.monotonic()
        limit_s = how["periodSeconds"] * how["failureThreshold"]
        while not self.passes("startup"):
            assert self.alive, self.said()
            assert time.monotonic() < began + limit_s, f"{self.name} would be restarted"
            time.sleep(0.2)
        return time.monotonic() - began

    def figures(self) -> dict[str, float]:
        """What is scraped where the annotations say."""
        notes = self.pod.owner["spec"]["template"]["metadata"]["annotations"]
        status, text = self.get(int(notes["prometheus.io/port"]), notes["prometheus.io/path"])
        assert status == 200, self.said()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def said(self) -> str:
        return f"{self.name}: {self.log.read_text()[-3000:]}"


class Cluster:
    """A bridge, and pods on it."""

    def __init__(self, found: list[Object], kind: type[Started] = Started) -> None:
        self.found, self.kind = found, kind
        self.prefix = f"mmk{os.getpid()}-"
        self.folder = Path(tempfile.mkdtemp(prefix="murmurate-k8s-"))
        self.folder.chmod(0o755)
        # As a kubelet writes it.
        self.resolver = self.folder / "resolv.conf"
        self.resolver.write_text(
            f"search {DOMAIN} svc.cluster.local cluster.local\n"
            f"nameserver {SUBNET}.254\noptions ndots:5\n"
        )
        self.pods: list[Started] = []
        self.others: list[str] = []
        self.hub = f"{self.prefix}hub"
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "name", "bridge0", "type", "bridge")
        run("ip", "-n", self.hub, "addr", "add", f"{SUBNET}.254/24", "dev", "bridge0")
        run("ip", "-n", self.hub, "link", "set", "bridge0", "up")
        self.names = self.inside(lambda: Names(f"{SUBNET}.254"))
        self.names.start()

    def pod(self, pod: Pod, number: int, program: str = str(PROGRAM)) -> Started:
        """A new one, not yet started; the names of its services stand for it at once."""
        started = self.kind(self, pod, number, len(self.pods), program)
        self.pods.append(started)
        space = started.space
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        link = f"v{len(self.pods)}"
        run(
            *("ip", "-n", self.hub, "link", "add", link, "type", "veth"),
            *("peer", "name", "eth0", "netns", space),
        )
        run("ip", "-n", self.hub, "link", "set", link, "master", "bridge0", "up")
        run("ip", "-n", space, "addr", "add", f"{started.address}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        for service in of_kind(self.found, "Service"):
            if selects(service["spec"]["selector"], pod.labels):
                ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
                self.names.add(service["metadata"]["name"], started.name, started.address, ports)
        return started

    def outside(self, address: str) -> str:
        """A machine elsewhere that pods reach by a route, and it them; its network's name."""
        near = address.rsplit(".", 1)[0] + ".1"
        space = f"{self.prefix}out"
        self.others.append(space)
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        run(
            *("ip", "-n", self.hub, "link", "add", "out", "type", "veth"),
            *("peer", "name", "eth0", "netns", space),
        )
        run("ip", "-n", self.hub, "addr", "add", f"{near}/24", "dev", "out")
        run("ip", "-n", self.hub, "link", "set", "out", "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", space, "route", "add", "default", "via", near)
        run("ip", "netns", "exec", self.hub, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for pod in self.pods:
            run("ip", "-n", pod.space, "route", "add", "default", "via", f"{SUBNET}.254")
        return space

    def inside(self, work: Callable[[], T]) -> T:
        """Do it in the network of the bridge, from a thread that ends with it."""
        result: list[T] = []

        def enter() -> None:
            with Path(f"/run/netns/{self.hub}").open("rb") as space:
                assert ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) == 0
            result.append(work())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return result[0]

    def close(self) -> None:
        for pod in self.pods:
            pod.kill()
        self.names.close()
        for space in (*(pod.space for pod in self.pods), *self.others, self.hub):
            with contextlib.suppress(AssertionError):
                run("ip", "netns", "del", space)
        shutil.rmtree(self.folder)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
