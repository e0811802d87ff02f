"""A model of any size, for measurements: `synthetic:PARAMETERS`.

Ten clouds of points in 64 dimensions, made up from a fixed rng seed, so every peer has the same.
Batches are small: a step then costs hardly more than touching every parameter once or twice, and
what a run measures is the swarm, not matrix products.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from murmurate.errors import ConfigError
from murmurate.workloads.classification import Classification
from murmurate.workloads.split import random_state

INPUTS, CLASSES = 64, 10
TRAIN_SAMPLES, TEST_SAMPLES = 4096, 256
PARAMETERS_MIN, PARAMETERS_MAX = 1_000, 10_000_000_000
SPREAD = 3.0  # distance of a cloud's centre from the origin; each cloud has deviation 1


class Synthetic(Classification):
    """A perceptron 64-h-h-10; h is chosen for the number of parameters (right to 1/h or so)."""

    name = "synthetic"
    batch_size = 8
    samples = 40_000

    def __init__(self, parameters: str = "100000") -> None:
        try:
            wanted = int(parameters)
        except ValueError:
            wanted = 0
        if not PARAMETERS_MIN <= wanted <= PARAMETERS_MAX:
            raise ConfigError(
                f"parameters {parameters!r}: expected a whole number "
                f"from {PARAMETERS_MIN} to {PARAMETERS_MAX}"
            )
        # parameters = h² + h·(inputs + classes + 2 biases) + classes
        linear = INPUTS + CLASSES + 2
        self.hidden = round((math.sqrt(linear**2 + 4 * (wanted - CLASSES)) - linear) / 2)
        self.lr = 0.05
        rng = random_state(0)
        centres = rng.standard_normal((CLASSES, INPUTS)) * (SPREAD / math.sqrt(INPUTS))
        labels = rng.randint(CLASSES, size=TRAIN_SAMPLES + TEST_SAMPLES)
        points = centres[labels] + rng.standard_normal((len(labels), INPUTS))
        x = torch.from_numpy(points).to(torch.float32)
        y = torch.from_numpy(labels).to(torch.int64)
        super().__init__(
            (x[:TRAIN_SAMPLES], y[:TRAIN_SAMPLES]), (x[TRAIN_SAMPLES:], y[TRAIN_SAMPLES:])
        )

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(INPUTS, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, CLASSES),
        )
