"""Real processes: a generator, three peers, and `kill -9` of one in the middle, or of itself."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.programs import Program
from tests.integration.test_up import run, wait_until

SAMPLES, BATCH = 100_096, 128
BATCHES = SAMPLES // BATCH


class Process(Program):
    """A node, or a generator, that tells its events."""

    def __init__(self, stack: ExitStack, *words: str, kind: str = "node") -> None:
        super().__init__(kind, "--events", "--threads", "1", *words)
        stack.callback(self.kill)

    def wait_for(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def said() -> bool:
            told = (json.loads(line) for line in tuple(self.out) if line.endswith("\n"))
            found[:] = [event for event in told if event["event"] == name]
            return bool(found)

        wait_until(said)
        return found[0]


def lines(file: Path) -> list[tuple[tuple[str, int, int], list[int]]]:
    """The updates a node has published, and the batches in each; a torn last line is not one."""
    out: list[tuple[tuple[str, int, int], list[int]]] = []
    if not file.exists():
        return out
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            entry = json.loads(line)
            out.append((tuple(entry["update"]), entry["batches"]))
    return out


def dealer(stack: ExitStack, *words: str, listen: str = "127.0.0.1:0") -> Process:
    return Process(stack, "--mode", "batches", "--listen", listen, *words, kind="coordinator")


def flock(stack: ExitStack, folder: Path, address: str) -> list[Process]:
    """Three peers that take their batches from there, and train."""
    peers = []
    for name in ("a", "b", "c"):
        files = ("--report", f"{folder}/{name}.json", "--audit", f"{folder}/{name}.jsonl")
        train = ("--generator", "-", "--rule", "sum", "--lr", "0.02")
        peers.append(Process(stack, "--name", name, "--peers", "-", *train, *files))
    for peer in peers:
        peer.wait_for("ready")
    peers[0].say("")
    founder = peers[0].wait_for("listening")["address"]
    for peer in peers[1:]:
        peer.say(founder)
        peer.wait_for("listening")
    for peer in peers:
        peer.say(f"go {address}")
    return peers


def consumed(folder: Path, known: dict[str, int]) -> Counter[int]:
    """In how many updates of the clock at the end each batch is."""
    counts: Counter[int] = Counter()
    for name in ("a", "b", "c"):
        for (origin, _, seq), numbers in lines(folder / f"{name}.jsonl"):
            if seq <= known[origin]:
                counts.update(numbers)
    return counts


def test_every_batch_is_in_exactly_one_update_when_a_peer_is_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        dealing = dealer(stack, "--samples", str(SAMPLES))
        dealing.say("go")
        peers = flock(stack, tmp_path, dealing.wait_for("listening")["address"])
        wait_until(lambda: len(lines(tmp_path / "c.jsonl")) >= 3)
        peers[2].process.send_signal(signal.SIGKILL)
        done = [peer.wait_for("done") for peer in peers[:2]]
        totals = dealing.wait_for("done")["node"]["totals"]
        assert [peer.wait(30) for peer in [*peers[:2], dealing]] == [0, 0, 0]
    assert totals["batches"] == totals["consumed"] == BATCHES
    assert totals["repeated"] == totals["spent"] == 0
    assert totals["dealt_again"] > 0, "the one that was killed held some"
    assert done[0]["known"] == done[1]["known"]
    assert consumed(tmp_path, done[0]["known"]) == Counter(range(1, BATCHES + 1))
    rows = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("a", "b")]
    assert min(row["accuracy"] for row in rows) > 0.9, "0.956 to 0.967 in 8 runs"
    assert not any(row["rejected"] for row in rows)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_and_when_the_generator_is_killed_or_evicted_and_started_again(
    how: signal.Signals, tmp_path: Path
) -> None:
    """Its checkpoint is older than what it dealt: the peers say what they have of it."""
    kept = ("--samples", str(SAMPLES), "--checkpoint", str(tmp_path / "kept"))
    with ExitStack() as stack:
        dealing = dealer(stack, *kept)
        dealing.say("go")
        address = dealing.wait_for("listening")["address"]
        peers = flock(stack, tmp_path, address)
        wait_until(lambda: len(lines(tmp_path / "c.jsonl")) >= 3)
        dealing.process.send_signal(how)
        assert dealing.wait(30) == (0 if how == signal.SIGTERM else -how)
        again = dealer(stack, *kept, listen=address)
        again.say("go")
        done = [peer.wait_for("done") for peer in peers]
        totals = again.wait_for("done")["node"]["totals"]
        assert [peer.wait(30) for peer in [*peers, again]] == [0, 0, 0, 0]
    assert totals["batches"] == totals["consumed"] == BATCHES
    assert totals["repeated"] == totals["spent"] == 0
    assert consumed(tmp_path, done[0]["known"]) == Counter(range(1, BATCHES + 1))
    assert done[0]["known"] == done[1]["known"] == done[2]["known"]


def test_up_with_a_generator(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = run(
        *("up", "--nodes", "3", "--generator", "--samples", "100000"),
        *("--kill", "node-1@30%", "--report", str(file)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text())
    roles = {node["name"]: (node["role"], node["state"]) for node in report["nodes"]}
    assert roles == {
        "node-0": ("peer", "done"),
        "node-1": ("peer", "killed"),
        "node-2": ("peer", "done"),
        "generator": ("generator", "done"),
    }
    totals = report["nodes"][-1]["totals"]
    assert totals["batches"] == totals["consumed"] == -(-100_000 // BATCH)
    assert totals["repeated"] == 0
    assert report["accuracy_min"] > 0.6, "it learns; how far depends on how busy the machine is"
    assert report["replica_distance_max"] < 1e-5


def test_a_generator_that_is_told_to_stop() -> None:
    with ExitStack() as stack:
        dealing = dealer(stack, "--samples", "128")
        dealing.wait_for("listening")
        dealing.process.send_signal(signal.SIGTERM)
        event = dealing.wait_for("done")
        assert event["reason"] == "SIGTERM"
        assert event["node"]["totals"]["batches"] == 0
        assert dealing.wait(30) == 0
