"""Real nodes, each a process and if need be in a network of its own, and what can be done to them.

Processes are killed, stopped and continued by their pid. A network is a bridge in a namespace of
its own with one namespace per node on it: nothing of it is seen from outside, nothing of the
machine's own network is touched, and a cut is a rule in the namespaces of those who must not hear.

Whatever happens, nothing stays behind: the end of the `with` block, the end of this process (by
SIGKILL too: nodes are told to die with it) and a hard deadline all end the nodes; namespaces of
runs that were killed are removed by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUBNET = "10.77.0"
PORT = 7000
PREFIX = "mmc"
POLL_S = 0.02
START_S = 180.0
"""Eight imports of torch on two cores that others use too."""
Line = dict[str, Any]


def cannot_net() -> str:
    """Why there can be no namespaces here; empty: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} missing (apt-get install iproute2 iptables)" if missing else ""


def run(*command: str, check: bool = True, text: str | None = None) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=20, input=text
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Process:
    """One node under test and the lines it has written."""

    def __init__(self, lab: Lab, options: Line, namespace: str | None) -> None:
        self.lab = lab
        self.options = options
        self.name: str = options["name"]
        self.namespace = namespace
        self.log: list[Line] = []
        self._read = 0
        self._rest = b""
        self.killed_at: float | None = None
        command = [sys.executable, "-m", "tests.chaos.node", json.dumps(options)]
        if namespace is not None:
            command = ["ip", "netns", "exec", namespace, *command]
        self._errors = Path(options["out"]).with_suffix(".err").open("ab")
        self.child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            preexec_fn=_die_with_parent,  # noqa: PLW1509
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    # -- what it says ----------------------------------------------------------------------------

    def lines(self, *kinds: str) -> list[Line]:
        """All it has written so far, of these kinds."""
        path = Path(self.options["out"])
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                more = file.read()
            self._read += len(more)
            *whole, self._rest = (self._rest + more).split(b"\n")
            self.log += [json.loads(line) for line in whole if line]
        return [line for line in self.log if line["is"] in kinds] if kinds else self.log

    def last(self, kind: str) -> Line | None:
        found = self.lines(kind)
        return found[-1] if found else None

    def steps(self, since: float = 0.0, until: float = float("inf")) -> list[tuple[float, float]]:
        """End and duration of the steps that ended in that time."""
        return [
            (at, took_s)
            for line in self.lines("steps")
            for at, took_s in line["steps"]
            if since <= at < until
        ]

    def errors(self) -> str:
        return Path(self.options["out"]).with_suffix(".err").read_text(errors="replace")

    # -- what is done to it ----------------------------------------------------------------------

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(line.encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"{self.name} is gone: {self.errors()[-2000:]}") from None

    def kill(self) -> float:
        """SIGKILL; when."""
        self.killed_at = time.monotonic()
        self.child.kill()
        self.child.wait()
        return self.killed_at

    def freeze(self) -> None:
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.child.send_signal(signal.SIGCONT)

    def usage(self) -> tuple[float, int, int]:
        """Resident memory in MiB, threads, open files."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        files = len(os.listdir(f"/proc/{self.pid}/fd"))
        return int(values["VmRSS"].split()[0]) / 1024, int(values["Threads"]), files

    def close(self) -> None:
        if self.alive:
            self.child.kill()
            self.child.wait()
        if self.child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.child.stdin.close()
        self._errors.close()


class Lab:
    """Nodes and networks of one test."""

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self.folder = folder
        self.nodes: list[Process] = []
        self.others: list[subprocess.Popen[bytes]] = []
        self.expired = False
        self._namespaces: list[str] = []
        self._lives: dict[str, int] = {}
        self._timer = threading.Timer(deadline_s, self._expire)
        self._timer.daemon = True
        self._deadline_s = deadline_s
        self._timer.start()
        atexit.register(self.close)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _expire(self) -> None:
        self.expired = True
        for process in self.nodes:
            process.child.kill()

    def close(self) -> None:
        atexit.unregister(self.close)
        self._timer.cancel()
        for other in self.others:
            other.kill()
            other.wait()
            for pipe in (other.stdin, other.stdout):
                if pipe is not None:
                    pipe.close()
        for process in self.nodes:
            process.close()
        for namespace in self._namespaces:
            run("ip", "netns", "del", namespace, check=False)
        self._namespaces.clear()

    # -- networks --------------------------------------------------------------------------------

    def namespace(self, what: str) -> str:
        """A new one, with loopback."""
        if not self._namespaces:
            _remove_stale()
        name = f"{PREFIX}{os.getpid()}-{what}"
        run("ip", "netns", "add", name)
        self._namespaces.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def network(self, count: int) -> list[str]:
        """So many namespaces on one bridge; node i has address `at(i)`."""
        hub = self.namespace("hub")
        run("ip", "-n", hub, "link", "add", "name", "bridge0", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge0", "up")
        out = []
        for i in range(count):
            space = self.namespace(str(i))
            run("ip", "-n", hub, "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0",
                "netns", space)  # fmt: skip
            run("ip", "-n", hub, "link", "set", f"v{i}", "master", "bridge0", "up")
            run("ip", "-n", space, "addr", "add", f"{SUBNET}.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            out.append(space)
        return out

    @staticmethod
    def at(index: int) -> str:
        return f"{SUBNET}.{index + 1}:{PORT}"

    def deafen(self, spaces: Iterable[str], sources: Sequence[int]) -> float:
        """What comes from these nodes does not arrive in those namespaces any more; since when."""
        rules = "".join(f"-A INPUT -s {SUBNET}.{i + 1} -j DROP\n" for i in sources)
        for space in spaces:
            _rules(space, rules)
        return time.monotonic()

    def heal(self, spaces: Iterable[str]) -> float:
        for space in spaces:
            _rules(space, "")
        return time.monotonic()

    # -- processes -------------------------------------------------------------------------------

    def start(self, name: str, *, namespace: str | None = None, **options: Any) -> Process:
        life = self._lives[name] = self._lives.get(name, 0) + 1
        options |= {
            "name": name,
            "out": str(self.folder / f"{name}.{life}.jsonl"),
            "weights": str(self.folder / f"{name}.npy"),
        }
        process = Process(self, options, namespace)
        self.nodes.append(process)
        return process

    def swarm(
        self, count: int, *, spaces: Sequence[str] = (), timeout_s: float = START_S, **options: Any
    ) -> list[Process]:
        """Nodes n0, n1, … which have all met each other; n0 has founded the run."""
        nodes = []
        for i in range(count):
            mine = {"held": True, "shard": (i, count), **options}
            if spaces:
                mine |= {"listen": self.at(i), "namespace": spaces[i]}
            nodes.append(self.start(f"n{i}", **mine))
        self.wait(lambda: all(n.last("ready") for n in nodes), "imports", timeout_s)
        nodes[0].tell("begin")
        self.wait(lambda: nodes[0].last("joined"), "the founder", timeout_s)
        joined = nodes[0].last("joined")
        assert joined is not None
        for node in nodes[1:]:
            node.tell(f"peers {joined['address']}")
        self.wait(lambda: all(n.last("joined") for n in nodes), "joining", timeout_s)
        self.wait(lambda: all(self.knows(n, nodes) for n in nodes), "meeting", timeout_s)
        return nodes

    @staticmethod
    def knows(node: Process, others: Sequence[Process]) -> bool:
        """Whether all these are alive, as this node sees it."""
        states = {line["who"]: line["state"] for line in node.lines("verdict")}
        return all(states.get(o.name) == "alive" for o in others if o is not node)

    def burn(self, count: int) -> None:
        """Keep so many cores busy."""
        for _ in range(count):
            self._other(sys.executable, "-c", "while True: pass")

    def helper(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Another program of the tests, with pipes."""
        return self._other(sys.executable, "-m", module, *arguments)

    def _other(self, *command: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=_die_with_parent,  # noqa: PLW1509
        )
        self.others.append(child)
        return child

    # -- waiting ---------------------------------------------------------------------------------

    def wait(self, true: Callable[[], object], what: str, timeout_s: float) -> float:
        """Until it is true; when."""
        deadline = time.monotonic() + timeout_s
        while not true():
            self.check()
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not in {timeout_s:g} s")
            time.sleep(POLL_S)
        return time.monotonic()

    def rest(self, seconds: float) -> None:
        """Let time pass: what is measured goes on in the nodes."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, 0.2))

    def check(self) -> None:
        """That nobody died who was not killed."""
        assert not self.expired, f"the test took longer than {self._deadline_s:g} s"
        for node in self.nodes:
            if node.killed_at is None and not node.alive and not node.last("ended"):
                raise AssertionError(f"{node.name} died by itself:\n{node.errors()[-3000:]}")

    # -- judging ---------------------------------------------------------------------------------

    def broken(self) -> list[str]:
        """Promises that nodes saw broken."""
        return [f"{n.name}: {line['what']}" for n in self.nodes for line in n.lines("broken")]

    def end(self, nodes: Sequence[Process], timeout_s: float = 90.0) -> None:
        for node in nodes:
            node.tell("end")
        try:
            self.wait(lambda: not any(n.alive for n in nodes), "ending", timeout_s)
        except AssertionError as error:
            hanging = [node for node in nodes if node.alive]
            for node in hanging:
                node.child.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            stacks = "\n".join(f"{node.name}:\n{node.errors()[-4000:]}" for node in hanging)
            raise AssertionError(f"{error}\n{stacks}") from None

    def same_set(self, nodes: Sequence[Process]) -> bool:
        """Whether nodes that do not train any more have the same updates."""
        sets = []
        for node in nodes:
            lines = node.lines("set", "stopped")
            if not lines or lines[-1]["is"] != "set":
                return False
            sets.append(lines[-1]["digest"])
        return len(set(sets)) == 1


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _rules(space: str, rules: str) -> None:
    """Replace the namespace's filter table, in one go."""
    text = f"*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n{rules}COMMIT\n"
    run("ip", "netns", "exec", space, "iptables-restore", text=text)


def _remove_stale() -> None:
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.strip() else ""
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            run("ip", "netns", "del", name, check=False)
