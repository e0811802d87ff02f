"""Data loaders fork their workers from a process that has a swarm in it, and threads of gRPC."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

import murmurate

inputs = torch.randn(1024, 8)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
nodes, peers = [], []
for name in "ab":
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swarm = murmurate.join(model, optimizer, run="forks", name=name, peers=peers)
    nodes.append((model, optimizer, swarm))
    peers = [swarm.address]
for _ in range(3):
    loader = DataLoader(data, batch_size=64, num_workers=2, multiprocessing_context="fork")
    for batch, labels in loader:
        for model, optimizer, _ in nodes:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
swarms = [swarm for _, _, swarm in nodes]
for swarm in swarms:
    swarm.publish()
while swarms[0].clock != swarms[1].clock:
    for swarm in swarms:
        swarm.follow(lambda: False, 0.05)
for swarm in swarms:
    swarm.leave(timeout_s=0.5)  # the other one, in this thread too, does not answer meanwhile
print("trained")
"""


def test_workers_of_a_data_loader_do_not_crash() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "trained\n", done.stderr[-2000:]
    assert done.returncode == 0
