"""The same script, trained by as many processes as you start.

python examples/adopted.py 0 3                  # says its address, and waits for two more
python examples/adopted.py 1 3 ADDRESS          # on the same machine
python examples/adopted.py 2 3 ADDRESS

Each has a number of its own, for its data. Whoever is done first waits for the others at the end of
the `with` block, so that all have one model after it.
"""

import sys

import torch
from torch import nn

import murmurate


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    label = torch.randint(3, (count,), generator=rng)
    radius = torch.rand(count, generator=rng)
    angle = 4 * radius + label * (2 * torch.pi / 3) + 0.15 * torch.randn(count, generator=rng)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def main() -> None:
    torch.set_num_threads(1)  # a small model: more would only get in each other's way
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    x, y = spirals(6000, seed)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    nodes, *peers = sys.argv[2:] or ["1"]
    with murmurate.join(model, optimizer, run="spirals", peers=peers, wait_for=int(nodes)) as swarm:
        print(f"listening at {swarm.address}", flush=True)
        for step in range(3000):
            batch = torch.randint(len(x), (64,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            if step % 500 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
        print(f"{len(swarm.clock)} updates, mean staleness {swarm.staleness.mean:.1f}")
    test_x, test_y = spirals(2000, seed=1_000_000)
    accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    print(f"sum of the weights {sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
