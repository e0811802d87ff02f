"""Pods without Kubernetes: real `murmurate node` processes that see what they would see there.

Each has an address of its own (all of 127.0.0.0/8 is this machine), a name with an ordinal, a
folder that outlives it, a configuration file with the rest in the environment, a resolver that
knows only the headless service, and gets SIGTERM or SIGKILL. In mount namespaces, so that each has
its resolv.conf.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.k8s.names import DOMAIN, Names

from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.grpc_terms import describe
from murmurate.edge.net.transport import Limits
from murmurate.edge.net.wire import Description

SERVICE = "murmurate-peers"
PORT, METRICS = 7000, 9464
WAIT_S = 60.0
LOOK_S = 0.1
"""Between two looks: whoever looks all the time takes a core from those it looks at."""


def cannot_start() -> str:
    """Why there can be no pods here; empty: there can."""
    if os.geteuid() != 0:
        return "needs root: mount namespaces, port 53"
    if shutil.which("unshare") is None:
        return "needs unshare"
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no mount namespaces here"


def wait_for(true: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> float:
    """Seconds until it was."""
    began = time.monotonic()
    while not true():
        if time.monotonic() > began + timeout_s:
            raise AssertionError(f"{what}: not in {timeout_s} s")
        time.sleep(LOOK_S)
    return time.monotonic() - began


class Pod:
    """One life of one: from its start to its end."""

    def __init__(self, name: str, host: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.host, self.process, self.log = name, host, process, log
        self.started = time.monotonic()

    @property
    def address(self) -> str:
        return f"{self.host}:{PORT}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0: nobody listens, as a probe sees it."""
        connection = http.client.HTTPConnection(self.host, METRICS, timeout=1.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    @property
    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def figure(self, name: str) -> float:
        """A figure of /metrics, over all its labels; it need not be there."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines if line[len(name)] in " {")

    @property
    def steps(self) -> float:
        return self.figure("murmurate_step_seconds_count")

    def describe(self) -> Description:
        return asyncio.run(describe(self.address, 10.0, Limits(), PLAINTEXT))

    def states(self) -> dict[str, str]:
        """Of the members, as this pod sees them."""
        return {member.name: member.state for member in self.describe().members}

    def live(self) -> set[str]:
        return {name for name, state in self.states().items() if state in ("alive", "suspect")}

    def until_ready(self, timeout_s: float = WAIT_S) -> float:
        """Seconds from its start."""

        def ready() -> bool:
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
            return self.ready

        wait_for(ready, f"{self.name} is ready", timeout_s)
        return time.monotonic() - self.started

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


class Cluster:
    """A headless service and the pods behind it; `close` leaves nothing."""

    kind: type[Pod] = Pod

    yielding = False
    """Whether pods started from now on only get what is left of the CPU. In a cluster a pod has the
    CPU it requests, whoever else loads torch on that machine; here, on two cores, the scheduler's
    class for idle work sees to that."""

    def __init__(self, folder: Path, train: str = "", **environment: str) -> None:
        self._net = f"127.{random.randint(64, 191)}.{random.randint(1, 254)}"
        self._next = 1
        self.names = Names(f"{self._net}.254")
        self.names.start()
        self.folder = folder
        self.environment = environment
        self.pods: dict[str, Pod] = {}
        self._all: list[Pod] = []
        self.resolv = folder / "resolv.conf"
        self.resolv.write_text(
            f"nameserver {self.names.host}\nsearch {DOMAIN}\noptions timeout:1 attempts:1\n"
        )
        folder.chmod(0o755)  # pytest's are for one user only
        self.config = folder / "node.toml"
        self.config.write_text(
            f'[node]\nrun = "pods"\npeers = ["dns:{SERVICE}:{PORT}"]\nthreads = 1\n'
            f'[train]\nworkload = "digits"\nshard = "ordinal/16"\n{train}\n'
            "[checkpoint]\nevery_s = 2\n"
        )

    def volume(self, name: str) -> Path:
        return self.folder / f"volume-{name}"

    def start(self, *names: str, **environment: str) -> list[Pod]:
        return [self._start(name, environment) for name in names]

    def _start(self, name: str, more: dict[str, str]) -> Pod:
        host = f"{self._net}.{self._next}"  # a pod's address is new each time
        self._next += 1
        volume = self.volume(name)
        volume.mkdir(exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MURMURATE_")},
            "MURMURATE_NODE_NAME": name,
            "MURMURATE_NODE_LISTEN": f"{host}:{PORT}",
            "MURMURATE_NODE_ADVERTISE": f"{host}:{PORT}",
            "MURMURATE_METRICS_LISTEN": f"{host}:{METRICS}",
            "MURMURATE_CHECKPOINT_DIR": f"{volume}/node",
            "MURMURATE_REPORT_PATH": f"{volume}/report.json",
            **self.environment,
            **more,
        }
        log = self.folder / f"{name}-{self._next}.log"
        command = self._launch(name, volume, environment, log)
        if self.yielding:
            command = ["chrt", "--idle", "0", *command]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        pod = self.kind(name, host, process, log)
        self.pods[name] = pod
        self._all.append(pod)
        self.names.add(SERVICE, name, host, {"peer": PORT})
        return pod

    def _launch(self, name: str, volume: Path, environment: dict[str, str], log: Path) -> list[str]:
        own = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        command = [sys.executable, "-m", "murmurate", "node", "--config", str(self.config)]
        return ["unshare", "-m", "sh", "-c", own, str(self.resolv), *command]

    def delete(self, *names: str) -> list[Pod]:
        """As `kubectl delete pod` does: out of the name's answers, and SIGTERM, at once."""
        gone = [self.pods.pop(name) for name in names]
        for pod in gone:
            self.names.remove(SERVICE, pod.name)
            pod.term()
        return gone

    def lose(self, name: str) -> Pod:
        """A machine is gone without a word; its address stays in the answers for a while."""
        pod = self.pods.pop(name)
        pod.kill()
        return pod

    def close(self) -> None:
        for pod in self._all:
            if pod.process.poll() is None:
                pod.kill()
        self.names.close()
