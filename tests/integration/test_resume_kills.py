"""`kill -9` at 100 random moments of checkpointing: 100 of 100 come back with all that was saved.

Each process is killed at a random moment while it writes one checkpoint after another, and says of
each that is durable that it is. The next one starts from what is there.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.integration.processes import Process, State, ended, free_port

from murmurate.edge.disk import checkpoint as files
from murmurate.edge.disk.folder import TMP, Folder

KILLS = 100
WIDTH = 100_000
"""A model of 4 MB, 12 MB with its optimizer: most of the time a file is being written."""


def is_there(folder: Path, said: State) -> bool:
    """Whether the newest file has what was said to be durable; True: one was half written."""
    names = sorted(os.listdir(folder))
    found = files.read(folder / [name for name in names if name.endswith(".safetensors")][-1])
    assert found.step >= said.step
    if found.step == said.step:
        assert found.clock.to_bytes() == said.clock
    return any(name.endswith(TMP) for name in names)


def went_on(before: State, after: State) -> None:
    assert after.has(before)
    assert after.step >= before.step
    assert (after.name, after.swarm) == (before.name, before.swarm)
    assert after.epoch > before.epoch


@pytest.mark.slow
def test_alone(tmp_path: Path) -> None:
    rng = random.Random(0)
    folder = tmp_path / "n0"
    last: State | None = None
    back = torn = 0
    for kill in range(KILLS + 1):
        torn += last is not None and is_there(folder, last)
        node = Process(
            "n0", folder, width=WIDTH, checkpoint_s=0.001, share=1.0, pause_s=0.0, seed=kill
        )
        with ended(node):
            state = node.hear("joined")
            if last is not None:
                went_on(last, state)
                back += 1
            node.hear("saved")
            time.sleep(rng.random() * 0.3)
            node.kill()
            last = node.saved[-1]
    assert back == KILLS
    Folder(folder).close()
    assert last is not None
    assert not is_there(folder, last)  # cleaned up
    print(f"{back} of {KILLS} came back, {torn} of them with a file left half written")
    assert torn > KILLS // 4, "the kills missed the moments of checkpointing"


@pytest.mark.slow
def test_beside_one_who_goes_on(tmp_path: Path) -> None:
    """Nothing that the other one has, or that was saved, is lost on either side."""
    rng = random.Random(1)
    folder = tmp_path / "n1"
    way = {"listen": f"127.0.0.1:{free_port()}", "checkpoint_s": 0.001, "share": 1.0}
    stays = Process("n0", tmp_path / "n0", width=10_000, checkpoint_s=1.0)
    with ended(stays):
        address = stays.hear("joined").address
        last: State | None = None
        victims: list[Process] = []
        for kill in range(KILLS // 5):
            if last is not None:
                is_there(folder, last)
            node = Process("n1", folder, width=10_000, seed=kill, peers=[address], **way)
            victims.append(node)
            with ended(node):
                state = node.hear("joined")
                if last is not None:
                    went_on(last, state)
                node.hear("saved")
                time.sleep(rng.random() * 0.5)
                node.kill()
                last = node.saved[-1]
        again = Process("n1", folder, width=10_000, peers=[address], **way)
        with ended(again):
            again.hear("joined")
            for node in (stays, again):
                node.tell("finish")
            done, other = stays.hear("done"), again.hear("done")
            assert done.clock == other.clock
            between = [state for node in (stays, *victims) for state in node.saved]
            for victim in victims:
                assert done.has(victim.saved[-1], between)
