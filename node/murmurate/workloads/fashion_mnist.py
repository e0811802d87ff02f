"""FashionMNIST: the setting of paper 002, and a perceptron that is quicker to train."""

from __future__ import annotations

import torch
from torch import nn

from murmurate.errors import ConfigError
from murmurate.workloads.classification import Classification
from murmurate.workloads.data import FASHION_MNIST, Bytes, Images, read_images

SIZE = 28


class Images28(Classification):
    """Images of 28 x 28 from idx files, normalised by the mean and deviation of training pixels."""

    def __init__(self, images: Images) -> None:
        if images.train_images.shape[1:] != (SIZE, SIZE):
            raise ConfigError(f"images must be {SIZE} x {SIZE}")
        mean, std = images.mean_and_std()
        if max(int(images.train_labels.max()), int(images.test_labels.max())) > 9:
            raise ConfigError("labels must be from 0 to 9")
        super().__init__(
            (_tensor(images.train_images), _tensor(images.train_labels)),
            (_tensor(images.test_images), _tensor(images.test_labels)),
            mean=mean,
            std=std,
        )


def _tensor(values: Bytes) -> torch.Tensor:
    """Images with a channel, as bytes; labels as the integers that cross-entropy wants."""
    tensor = torch.from_numpy(values)
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.to(torch.int64)


class FashionMnist(Images28):
    """LeNet-5 as in 002: 61,706 parameters; relu and max pooling; batch 32, lr 0.005, momentum 0.9.

    002 trains 6 passes per peer; the default here is 2 in all.
    """

    name = "fashion-mnist"
    batch_size = 32
    lr = 0.005
    momentum = 0.9
    samples = 120_000

    def __init__(self, data: str | None = None) -> None:
        super().__init__(read_images(data, FASHION_MNIST))

    def model(self) -> nn.Module:
        return nn.Sequential(
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


class FashionMnistMlp(FashionMnist):
    """784-64-10: 50,890 parameters, several times quicker than LeNet-5."""

    name = "fashion-mnist-mlp"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


class FashionMnistNormed(FashionMnist):
    """Three convolutions with batch-norm: 6,274 parameters, 112 running statistics."""

    name = "fashion-mnist-bn"
    lr = 0.05  # of 0.01, 0.05 and 0.2 the best for one node but for the last, which is as good

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
