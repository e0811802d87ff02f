"""The LSTM of paper 003: an image is read row by row, 28 steps of 28 pixels."""

from __future__ import annotations

import torch
from torch import nn

from murmurate.workloads.data import MNIST, read_images
from murmurate.workloads.fashion_mnist import SIZE, Images28

HIDDEN = 128


class RowReader(nn.Module):
    """28 x 28 -> linear 128 -> LSTM 128; the last state decides. 137,098 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(SIZE, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.decide = nn.Linear(HIDDEN, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(images.squeeze(1)))
        logits: torch.Tensor = self.decide(states[:, -1])
        return logits


class Lstm(Images28):
    """003 trains it with batches of 8,192 over many passes; these defaults fit 2 passes."""

    name = "lstm"
    batch_size = 32
    lr = 0.03
    momentum = 0.9
    samples = 120_000

    def __init__(self, data: str | None = None) -> None:
        super().__init__(read_images(data, MNIST))

    def model(self) -> nn.Module:
        return RowReader()
