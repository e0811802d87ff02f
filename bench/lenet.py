"""What is trained: LeNet-5 on images that look like FashionMNIST to a processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

PARAMETERS = 61_706
IMAGES = 4096
LR = 0.005


def lenet() -> nn.Module:
    """As in 002."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    return model


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Noise around ten patterns, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    patterns = torch.randn(10, 1, 28, 28, generator=generator)
    noise = torch.randn(IMAGES, 1, 28, 28, generator=generator)
    return patterns[labels] + noise, labels


def batches(rank: int, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless, in an order of this rank. Views: a batch costs nothing, which is hardest for us."""
    x, y = images()
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(rank))
    x, y = x[order], y[order]
    while True:
        for start in range(0, IMAGES - batch + 1, batch):
            yield x[start : start + batch], y[start : start + batch]


def stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, batch: int
) -> Callable[[], None]:
    """One ordinary training step, as anybody writes it."""
    stream = batches(rank, batch)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        x, y = next(stream)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step
