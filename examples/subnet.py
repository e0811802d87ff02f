"""A training loop as a member of independent subnet training: it trains the part it is given.

    murmurate coordinator --workload digits --founders 2 --samples 60000
    python examples/subnet.py 0 127.0.0.1:7100
    python examples/subnet.py 1 127.0.0.1:7100

The whole model is never here: on the meta device it has shapes and no values.
"""

import sys

import torch
from torch.nn.functional import cross_entropy

import murmurate
from murmurate import workloads

torch.set_num_threads(1)  # a small model: more would only get in each other's way
rank, coordinator = int(sys.argv[1]), sys.argv[2]
digits = workloads.load("digits")
share = workloads.DataShare(rank, 2, workloads.parse_split("none"), 0, digits.batch_size)

with torch.device("meta"):
    model = digits.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

with murmurate.join(
    model,
    optimizer,
    run="murmurate",
    mode="ist",
    coordinator=coordinator,
    name=f"example-{rank}",
    width=1 + rank,
) as swarm:
    for images, labels in digits.batches(share):
        optimizer.zero_grad()
        loss = cross_entropy(swarm.model(images), labels)
        loss.backward()
        optimizer.step()
        swarm.log(loss=loss.item())
        if swarm.stopped:
            break
    print(f"{swarm.share:.0%} of the model, {swarm.steps} steps, loss {swarm.tally.loss:.3f}")
