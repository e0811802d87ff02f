"""A larger and deeper net on FashionMNIST, for 002's Fig. 6, which does not say its sizes."""

from __future__ import annotations

from torch import nn

from murmurate.workloads.fashion_mnist import FashionMnist

HIDDEN, LAYERS = 192, 4


class LargeMlp(FashionMnist):
    name, lr = "large-mlp", 0.01

    def model(self) -> nn.Module:
        parts: list[nn.Module] = [nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU()]
        for _ in range(LAYERS - 1):
            parts += [nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(HIDDEN, 10))
