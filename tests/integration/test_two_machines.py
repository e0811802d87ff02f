"""The README's three lines on two machines: two network namespaces with a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.lab import Lab, run

CAN = os.geteuid() == 0 and shutil.which("ip") is not None
pytestmark = pytest.mark.skipif(not CAN, reason="network namespaces need root and iproute2")

SCRIPT = """
import sys, torch, murmurate
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    with murmurate.join(model, optimizer, run="mnist", wait_for=2, **eval(sys.argv[1])) as swarm:
        print("at", swarm.address, flush=True)
        for _ in range(200):
            optimizer.zero_grad()
            x = torch.randn(16, 4)
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
except murmurate.errors.MurmurateError as error:
    sys.exit(str(error))
print("weights", *(f"{each:.5f}" for each in model.weight.flatten().tolist()))
"""


def at(index: int) -> str:
    return f"10.78.0.{index + 1}"


@pytest.fixture(name="spaces")
def of_two(tmp_path: Path) -> Iterator[list[str]]:
    """Two namespaces, and one cable."""
    with Lab(tmp_path, deadline_s=150.0) as lab:
        spaces = [lab.namespace(each) for each in ("one", "two")]
        cable = ["ip", "-n", spaces[0], "link", "add", "eth0", "type", "veth", "peer", "name"]
        run(*cable, "eth0", "netns", spaces[1])
        for index, space in enumerate(spaces):
            run("ip", "-n", space, "addr", "add", f"{at(index)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
        yield spaces


def script(space: str, asked: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["ip", "netns", "exec", space, sys.executable, "-c", SCRIPT, asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def lost(process: subprocess.Popen[str]) -> str:
    """What it says in the end, which is not the end of its training."""
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    return text.strip()


def test_three_lines_on_two_machines(spaces: list[str]) -> None:
    """The one that dials says nothing of where it listens: it is where the other reaches it."""
    one, two = spaces
    first = f"{at(0)}:7000"
    said = lost(script(two, repr({"peers": [first]})))
    assert "\n" not in said
    assert f"would listen at {at(1)}" in said
    assert "say insecure=True" in said

    founder = script(one, repr({"listen": first, "insecure": True}))
    other = script(two, repr({"peers": [first], "insecure": True}))
    ends = []
    for process in (founder, other):
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
        ends.append(text)
    assert f"at {at(1)}:" in ends[1]
    assert ends[0].splitlines()[-1] == ends[1].splitlines()[-1]


def test_a_founder_that_listens_to_its_own_machine_only(spaces: list[str]) -> None:
    _, two = spaces
    asked = {"peers": [f"{at(0)}:7000"], "insecure": True, "join_timeout_s": 3}
    said = lost(script(two, repr(asked)))
    assert f'listen="{at(0)}:7000", insecure=True' in said
