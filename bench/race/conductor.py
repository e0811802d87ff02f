"""One race: processes are started, let go at one instant, killed and brought back, and judged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from report import busy_s, tree_cpu_s

from race import contenders
from race.contenders import CONTENDERS, PEERS, SLOW, STEP_S, VICTIM, Contender
from race.ground import HERE, Ground
from race.judge import POINTS, Judge
from race.track import Entry

START_S = 180.0
END_S = 8.0


class Race:
    """One contender in one scenario."""

    def __init__(
        self,
        contender: str,
        scenario: str,
        *,
        workload: str,
        seconds: float,
        seed: int,
        peers_python: Path,
        options: dict[str, Any] | None = None,
        keep: Path | None = None,
        quick: bool = False,
    ) -> None:
        self.contender: Contender = CONTENDERS[contender]
        self.scenario = scenario
        self.workload, self.seconds, self.seed = workload, seconds, seed
        self.python = str(peers_python) if self.contender.foreign else sys.executable
        self.options = {**self.contender.options, **(options or {})}
        self.keep, self.quick = keep, quick
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.folder = Path()

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            self.folder = self.keep or Path(name)
            if self.keep is not None:
                shutil.rmtree(self.keep, ignore_errors=True)
            (self.folder / "snapshots").mkdir(parents=True)
            count = self.contender.peers + bool(self.contender.server)
            self.ground = Ground(self.folder, count, narrow=self.scenario == "link")
            try:
                raced = self._race()
            finally:
                self._end()
                self.ground.close()
            judged = Judge(self.workload, self.seed, quick=self.quick).judge(
                self.folder / "snapshots", self.seconds, raced["killed_at"]
            )
            return {**raced, **judged, **self._told()}

    # -- processes -------------------------------------------------------------------------------

    def _entry(self, peer: int, life: int = 0) -> Entry:
        slow = self.scenario == "slow" and peer == VICTIM
        contender = self.contender
        is_server = peer == contender.peers
        options = dict(self.options)
        writes = not contender.server or is_server
        if contender.module == "race.ddp_agent":
            options["device"] = self.ground.device
            options["least"] = PEERS - 1 if self.scenario == "killed" else PEERS
            writes = peer == 0  # the others have the same weights
        return Entry(
            folder=str(self.folder),
            workload=self.workload,
            seed=self.seed,
            seconds=self.seconds,
            peer=peer,
            peers=contender.peers,
            hosts=self.ground.hosts,
            ports=self.ground.ports,
            step_s=STEP_S * (SLOW if slow else 1.0),
            life=life,
            begins_s=contenders.BACK_AT * self.seconds if life else 0.0,
            snapshot_s=self.seconds / POINTS,
            writes=writes,
            options=options,
        )

    def _start(self, peer: int, life: int = 0) -> None:
        contender = self.contender
        module = contender.server if peer == contender.peers else contender.module
        paths = [str(HERE)]
        if not contender.foreign:
            paths += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "no_proxy": "*",
        }
        command = [self.python, "-m", module, self._entry(peer, life).to_json()]
        log = (self.folder / f"{peer}.{life}.log").open("wb")
        self.children[peer] = subprocess.Popen(
            self.ground.within(peer) + command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

    def _lines(self, peer: int, what: str) -> list[dict[str, Any]]:
        """What a peer has said, of all its lives."""
        found = []
        for path in sorted(self.folder.glob(f"{peer}.*.jsonl")):
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1].splitlines()
            found += [line for line in map(json.loads, whole) if line["is"] == what]
        return found

    def _wait(self, true: Callable[[], bool], what: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                return False
            for peer, child in self.children.items():
                assert child.poll() is None, f"{what}: {peer} ended:\n{self._log(peer)}"
            time.sleep(0.02)
        return True

    def _log(self, peer: int) -> str:
        texts = [p.read_text(errors="replace") for p in sorted(self.folder.glob(f"{peer}.*.log"))]
        return "".join(texts)[-3000:]

    def _end(self) -> None:
        for child in self.children.values():
            kill_tree(child.pid)
        for pid in self.ground.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self.children.values():
            child.wait()

    # -- the race --------------------------------------------------------------------------------

    def _race(self) -> dict[str, Any]:
        contender = self.contender
        everybody = range(contender.peers + bool(contender.server))
        for peer in reversed(everybody):
            self._start(peer)
        ready = self._wait(
            lambda: all(self._lines(peer, "ready") for peer in everybody), "start", START_S
        )
        assert ready, f"not ready: {[p for p in everybody if not self._lines(p, 'ready')]}"
        start = time.monotonic() + 0.5
        half = self.folder / "start.half"
        half.write_text(repr(start))
        half.rename(self.folder / "start")
        sleep_until(start)
        sent, busy, used = self.ground.sent(), busy_s(), tree_cpu_s(os.getpid())
        killed_at = None
        if self.scenario == "killed" and contender.peers > 1:
            sleep_until(start + contenders.KILLED_AT * self.seconds)
            victim = self.children.pop(VICTIM)
            kill_tree(victim.pid)
            killed_at = time.monotonic() - start
            victim.wait()
            self._start(VICTIM, life=1)
        sleep_until(start + self.seconds)
        after = self.ground.sent()
        cpu = tree_cpu_s(os.getpid()) - used
        foreign = max(0.0, busy_s() - busy - cpu) / (self.seconds * (os.cpu_count() or 1))
        peers = range(contender.peers)
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and not all(self._lines(p, "finished") for p in peers):
            if contender.server:
                break  # its clients are told by nobody that it is over
            time.sleep(0.05)
        bytes_sent = [b - a for a, b in zip(sent, after, strict=True)]
        return {
            "bytes_sent": bytes_sent[: contender.peers],
            "server_bytes_sent": sum(bytes_sent[contender.peers :]),
            "bytes_by": "namespaces" if self.ground.spaces else "loopback",
            "killed_at": killed_at,
            "cpu_s": cpu,
            "foreign": foreign,
        }

    def _told(self) -> dict[str, Any]:
        """Steps of each peer, and what they said of themselves; that they exchanged something."""
        contender = self.contender
        steps, told = [], []
        for peer in range(contender.peers):
            made = 0
            for path in sorted(self.folder.glob(f"{peer}.*.jsonl")):
                made += steps_in(path.read_text())
            steps.append(made)
            told += [self._lines(peer, what)[-1:] for what in ("finished", "failed", "round")]
        said = [
            {key: value for key, value in line.items() if key not in ("is", "at", "steps")}
            for lines in told
            for line in lines
        ]
        if contender.peers > 1:
            exchanged = sum(line.get("exchanged", 0) for line in said)
            assert exchanged > 0, f"nothing was exchanged: {said}\n{self._log(0)}"
        rounds = self._lines(contender.peers, "round") if contender.server else []
        groups = self._lines(0, "group")
        return {
            "steps": steps,
            "said": said,
            "rounds": len(rounds),
            "groups": [{key: g[key] for key in ("at", "ranks", "restarted")} for g in groups],
        }


def steps_in(text: str) -> int:
    """Of one life; a process that was started again counts from 0 (torchrun)."""
    total = last = 0
    for line in text[: text.rfind("\n") + 1].splitlines():
        steps = json.loads(line)["steps"]
        total += last if steps < last else 0
        last = steps
    return total + last


def sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def kill_tree(pid: int) -> None:
    """A process and all it started, at once: as when a machine goes."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    doomed = [pid]
    for each in doomed:
        doomed += children.get(each, [])
    for each in doomed:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
