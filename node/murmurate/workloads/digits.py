"""Handwritten digits of 8 x 8 pixels: ships with the package, done in seconds.

1,437 images to learn from, 360 for the test (UCI optical digits, see docs/workloads.md).
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
from torch import nn

from murmurate.workloads.classification import Classification

TRAIN_SAMPLES = 1437  # the file is already shuffled


class Digits(Classification):
    name = "digits"
    batch_size = 128  # a step of some milliseconds: long beside what an update costs to send
    lr = 0.2  # of 0.05 to 0.4 the best for one node in 320,000 samples; 4 and 16 take it as it is
    samples = 320_000

    def __init__(self) -> None:
        with (
            resources.files("murmurate.workloads").joinpath("digits.npz").open("rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            images = torch.from_numpy(arrays["images"]).unsqueeze(1)
            labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
        super().__init__(
            (images[:TRAIN_SAMPLES], labels[:TRAIN_SAMPLES]),
            (images[TRAIN_SAMPLES:], labels[TRAIN_SAMPLES:]),
            mean=8.0,  # pixels are from 0 to 16
            std=8.0,
        )

    def model(self) -> nn.Module:
        """6,090 parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )


class DigitsNormed(Digits):
    """The same with batch-norm."""

    name = "digits-bn"

    def model(self) -> nn.Module:
        """6,138 parameters, 96 running statistics."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )
