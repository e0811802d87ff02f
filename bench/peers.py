"""Averaging a model between two peers, against hivemind, and beside a deployed round of Flower.

    make bench-peers          (python bench/peers.py [hivemind flower] [--quick] …)

hivemind and flwr live in an environment of their own, .venv-peers; a contender that is not there is
left out, with a line that says so. Each turn is of fresh processes, contenders take turns.

hivemind   DecentralizedAverager of two peers, each with its DHT, over its Go daemon on loopback;
           the group is found before the time begins. Given: malloc as a node of ours sets it, a
           target group of 2, no compression, and parts of 512 KiB (its default) or 4 MiB.
flower     a superlink, two supernodes and FedAvg, all as processes of their own, plaintext, without
           installing dependencies at run time. The nodes train nothing and nobody evaluates. An
           exchange is not a round: a round of Flower starts processes and polls for messages, and
           its model is in one place. So this stands beside, not against.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import exchange
import run
from actors import Actor
from report import Effort, Goal, Report, Scenario, busy_s, disturbed, ratios, tree_cpu_s

HERE = Path(__file__).parent
BIN = HERE.parent / ".venv-peers" / "bin"
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""What `murmurate.edge.runtime.malloc` sets."""
PART_BYTES = {"hivemind": 512 << 10, "hivemind, 4 MiB parts": 4 << 20}
TIMES = {"0.24 MB": 10, "100 MB": 3}
ROUNDS = {"0.24 MB": 3, "100 MB": 2}
WARM_UP = 1
START_S = 60.0
RUN_S = 180.0


def missing(package: str) -> str:
    """Why a package cannot be used; empty: it can."""
    python = BIN / "python"
    if not python.exists():
        return f"{python.parent.parent.name} is not there: `make bench-peers` makes it"
    command = [python, "-c", f"import {package}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def foreign(busy: float, used_s: float, seconds: float) -> float:
    """The share of the machine that others had."""
    return max(0.0, busy - used_s) / (seconds * (os.cpu_count() or 1))


# -- hivemind ------------------------------------------------------------------------------------


def hivemind_turn(nbytes: int, times: int, part_bytes: int) -> dict[str, Any]:
    command = [str(BIN / "python"), str(HERE / "hive.py")]
    command += ["--bytes", str(nbytes), "--part-bytes", str(part_bytes)]
    first = Actor(command, **MALLOC)
    second = Actor([*command, "--peers", *first.hear()["peers"]], **MALLOC)
    second.hear()
    pair = (first, second)
    took, cpu_s, off = [], [], []
    busy = used_s = start = 0.0
    for number in range(WARM_UP + times):
        if number == WARM_UP:
            busy, used_s = busy_s(), tree_cpu_s(first.pid, second.pid)
            start = time.monotonic()
        for rank, actor in enumerate(pair):
            actor.tell(number=number, rank=rank)
        for actor in pair:
            actor.hear()  # it has found the group
        for actor in pair:
            actor.tell()
        done = [actor.hear() for actor in pair]
        took.append(max(d["ended"] for d in done) - min(d["began"] for d in done))
        cpu_s.append(sum(d["cpu_s"] for d in done))
        off.append(max(d["off"] for d in done))
    used_s = tree_cpu_s(first.pid, second.pid) - used_s
    share = foreign(busy_s() - busy, used_s, time.monotonic() - start)
    for actor in pair:
        actor.end()
    # Now and then one of its all-reduces fails («received 0.0% results»): it is not timed.
    good = [n for n in range(WARM_UP, WARM_UP + times) if off[n] <= exchange.OFF_MAX]
    assert 2 * len(good) > times, f"hivemind: {off} from the mean"
    return {
        "seconds": statistics.median(took[n] for n in good),
        "cpu_s_per_gb": sum(cpu_s[n] for n in good) / (len(good) * nbytes / 1e9),
        "foreign": share,
        "failed": times - len(good),
        "took": took,
    }


def hivemind(report: Report, effort: Effort) -> None:
    if problem := missing("hivemind"):
        report.remark(f"left out: hivemind: {problem}")
        return
    goals = {
        (size, name): Goal(value=value, floor=3.0)
        for size, value in (("0.24 MB", 5.0), ("100 MB", 4.0))
        for name in PART_BYTES
    }
    for size in effort.sizes(exchange.SIZES):
        nbytes = exchange.SIZES[size]
        turns = {"murmurate": lambda s=size: exchange.repetition("murmurate", s)}
        for name, part_bytes in PART_BYTES.items():
            if part_bytes == min(PART_BYTES.values()) or nbytes > part_bytes:
                turns[name] = lambda n=nbytes, s=size, p=part_bytes: hivemind_turn(n, TIMES[s], p)
        samples = effort.interleaved(turns)
        report.keep(size, samples)
        exchange.tell(report, size, samples, goals)
        mine = samples.pop("murmurate")
        for name, theirs in samples.items():
            if failed := sum(sample["failed"] for sample in theirs):
                report.remark(f"{size}: {failed} all-reduces of {name} failed and were not timed")
            report.add(
                f"{size}: CPU, murmurate / {name}",
                ratios([s["cpu_s_per_gb"] for s in mine], [s["cpu_s_per_gb"] for s in theirs]),
                unit="x",
                goal=Goal(value=0.25, floor=0.34, at_most=True),
                disturbed=disturbed(mine, theirs),
            )


# -- Flower --------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def reachable(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def deployed(folder: Path, port: int, environment: dict[str, str]) -> Iterator[list[int]]:
    """A superlink and two supernodes; their process ids. All of it is gone afterwards."""
    processes: list[subprocess.Popen[bytes]] = []
    log = (folder / "log").open("wb")

    def start(program: str, *options: str) -> None:
        command = [str(BIN / program), "--insecure", *options]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        )

    try:
        start("flower-superlink", "--port", str(port), "--disable-runtime-dependency-installation")
        deadline = time.monotonic() + START_S
        while not reachable(port):
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        for rank in range(2):
            address = ("--superlink", f"127.0.0.1:{port}", "--port", str(free_port()))
            start("flower-supernode", *address, "--node-config", f"rank={rank}")
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def flower_turn(nbytes: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        out, home = folder / "out.json", folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "bench"\n\n[superlink.bench]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        environment = {
            **os.environ,
            **MALLOC,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        with deployed(folder, port, environment) as pids:
            busy, used_s, start = busy_s(), tree_cpu_s(*pids), time.monotonic()
            config = f'bytes={nbytes} rounds={WARM_UP + rounds} out="{out}"'
            command = [str(BIN / "flwr"), "run", str(HERE / "flower"), "bench", "-c", config]
            subprocess.run(
                command, env=environment, check=True, timeout=RUN_S, stdout=subprocess.DEVNULL
            )
            deadline = time.monotonic() + RUN_S
            while not out.exists():
                assert time.monotonic() < deadline, (folder / "log").read_text()[-4000:]
                time.sleep(0.1)
            used_s = tree_cpu_s(*pids) - used_s
            share = foreign(busy_s() - busy, used_s, time.monotonic() - start)
        answer = json.loads(out.read_text())
    assert answer["off"] <= exchange.OFF_MAX, f"flower: {answer['off']} from the mean"
    took = [end - begin for begin, end in zip(answer["began"], answer["ended"], strict=True)]
    return {
        "seconds": statistics.median(took[WARM_UP:]),
        "cpu_s_per_gb": used_s / ((WARM_UP + rounds) * nbytes / 1e9),
        "foreign": share,
        "took": took,
    }


def flower(report: Report, effort: Effort) -> None:
    if problem := missing("flwr"):
        report.remark(f"left out: Flower: {problem}")
        return
    goals = {
        ("0.24 MB", "flower round"): Goal(value=300),
        ("100 MB", "flower round"): Goal(value=15),
    }
    for size in effort.sizes(exchange.SIZES):
        turns = {
            "murmurate": lambda s=size: exchange.repetition("murmurate", s),
            "flower round": lambda s=size: flower_turn(exchange.SIZES[s], ROUNDS[s]),
        }
        samples = effort.few(3).interleaved(turns)
        report.keep(size, samples)
        exchange.tell(report, size, samples, goals)
    report.remark("an exchange is not a round: a round starts processes and polls for messages")


SCENARIOS: dict[str, Scenario] = {"hivemind": hivemind, "flower": flower}


if __name__ == "__main__":
    sys.exit(run.main(SCENARIOS, __doc__))
