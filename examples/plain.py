"""An ordinary PyTorch script: tell three intertwined spirals apart."""

import sys

import torch
from torch import nn


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
    for step in range(3000):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    test_x, test_y = spirals(2000, seed=1_000_000)
    accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
