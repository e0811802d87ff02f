"""Paper 001's kind of model, on FashionMNIST: 784-512-512-10, batch-norm without statistics."""

from __future__ import annotations

from torch import nn

from murmurate.workloads.fashion_mnist import FashionMnist

HIDDEN = 512


class WideMlp(FashionMnist):
    name, batch_size, lr, momentum = "wide-mlp", 128, 0.01, 0.0

    def model(self) -> nn.Module:
        def norm() -> nn.Module:
            return nn.BatchNorm1d(HIDDEN, track_running_stats=False)

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, HIDDEN, bias=False),
            norm(),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            norm(),
            nn.ReLU(),
            nn.Linear(HIDDEN, 10),
        )
