"""The models of 003's comparisons, on FashionMNIST: from few operations for each parameter to many,
and deep and wide ones of as many parameters."""

from __future__ import annotations

import torch
from torch import nn

from murmurate.workloads.fashion_mnist import SIZE, FashionMnist, FashionMnistMlp

ROWS_HIDDEN = 48
CHANNELS = 12
DEEP_HIDDEN = 100


class Rows(nn.Module):
    """28 rows of 28 pixels into an LSTM, as 003's on MNIST, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(SIZE, ROWS_HIDDEN)
        self.lstm = nn.LSTM(ROWS_HIDDEN, ROWS_HIDDEN, batch_first=True)
        self.decide = nn.Linear(ROWS_HIDDEN, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(images.squeeze(1)))
        logits: torch.Tensor = self.decide(states[:, -1])
        return logits


class RowsLstm(FashionMnist):
    name = "rows-lstm"

    def model(self) -> nn.Module:
        return Rows()


class Convolutions(FashionMnist):
    """Few parameters, each used at every place of the image."""

    name = "convolutions"

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, CHANNELS, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * CHANNELS, 10),
        )


def deep(layers: int) -> nn.Module:
    """So many hidden layers and about 100,000 parameters, however many layers it has."""
    hidden = 1
    while _parameters(layers, hidden + 1) <= _parameters(3, DEEP_HIDDEN):
        hidden += 1
    parts: list[nn.Module] = [nn.Flatten()]
    for before in (784, *[hidden] * (layers - 1)):
        parts += [nn.Linear(before, hidden), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(hidden, 10))


def _parameters(layers: int, hidden: int) -> int:
    return 785 * hidden + (layers - 1) * (hidden + 1) * hidden + 10 * (hidden + 1)


class OneLayer(FashionMnistMlp):
    name = "one-layer"

    def model(self) -> nn.Module:
        return deep(1)


class ThreeLayers(FashionMnistMlp):
    name = "three-layers"

    def model(self) -> nn.Module:
        return deep(3)


class SixLayers(FashionMnistMlp):
    name = "six-layers"

    def model(self) -> nn.Module:
        return deep(6)
