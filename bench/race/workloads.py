"""What is trained in the race: a model, its data, its optimizer. Needs torch and numpy, no more:
contenders live in environments of their own.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
MEAN, STD = 0.2860, 0.3530
"""Of FashionMNIST's training pixels, from 0 to 1."""
Batch = tuple[Tensor, Tensor]


class LeNet5:
    """LeNet-5 on FashionMNIST. The rate was chosen for one node and is the same for all."""

    batch = 16
    tuned = "SGD, lr 0.02, momentum 0.9, batch 16"

    def __init__(self) -> None:
        self._train = _images("train")
        self._test = _images("t10k")

    @staticmethod
    def model() -> nn.Module:
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

    @staticmethod
    def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def batches(self, generator: torch.Generator) -> Iterator[Batch]:
        """Endless passes over all images, each in an order of its own."""
        images, labels = self._train
        while True:
            order = torch.randperm(len(labels), generator=generator)
            for chosen in order[: len(order) // self.batch * self.batch].split(self.batch):
                yield _normal(images[chosen]), labels[chosen]

    @torch.inference_mode()
    def accuracy(self, model: nn.Module, share: float = 1.0) -> float:
        """Of the test images, or of the first of them."""
        images, labels = (each[: round(share * len(each))] for each in self._test)
        right = 0
        for x, y in zip(images.split(250), labels.split(250), strict=True):
            right += int((model(_normal(x)).argmax(1) == y).sum())
        return right / len(labels)


class Transformer(nn.Module):
    """Two layers of 64 with 4 heads, 32 characters back: light enough for four on two cores."""

    width, context = 64, 32

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, self.width)
        self.place = nn.Parameter(0.02 * torch.randn(self.context, self.width))
        layer = nn.TransformerEncoderLayer(
            self.width, 4, 4 * self.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.read = nn.Linear(self.width, characters)
        mask = nn.Transformer.generate_square_subsequent_mask(self.context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        seen = self.layers(self.embed(text) + self.place, mask=self.mask, is_causal=True)
        return self.read(seen)


class Text:
    """A transformer that guesses the next character of Python's own help pages: English text that
    is wherever Python is."""

    batch = 16
    tuned = "Adam, lr 0.003, batch 16 of 32 characters"

    def __init__(self) -> None:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
        letters = sorted(set(text))
        numbers = {letter: number for number, letter in enumerate(letters)}
        self._characters = len(letters)
        values = torch.tensor([numbers[letter] for letter in text])
        cut = len(values) * 9 // 10
        self._train, self._test = values[:cut], values[cut:]

    def model(self) -> nn.Module:
        return Transformer(self._characters)

    @staticmethod
    def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.003)

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def batches(self, generator: torch.Generator) -> Iterator[Batch]:
        last = len(self._train) - Transformer.context - 1
        while True:
            yield self._cut(self._train, torch.randint(last, (self.batch,), generator=generator))

    @torch.inference_mode()
    def accuracy(self, model: nn.Module, share: float = 1.0) -> float:
        """Of the next character, over the last tenth of the text, or the beginning of that."""
        last = round(share * (len(self._test) - Transformer.context - 1))
        places = torch.arange(0, last, Transformer.context)
        right = total = 0
        for some in places.split(100):
            x, y = self._cut(self._test, some)
            right += int((model(x).argmax(2) == y).sum())
            total += y.numel()
        return right / total

    @staticmethod
    def _cut(text: Tensor, places: Tensor) -> Batch:
        pieces = text[places[:, None] + torch.arange(Transformer.context + 1)]
        return pieces[:, :-1], pieces[:, 1:]


WORKLOADS = {"lenet5": LeNet5, "text": Text}
Workload = LeNet5 | Text


def initial(workload: Workload, seed: int) -> nn.Module:
    """The model as every peer of every contender begins."""
    torch.manual_seed(seed)
    return workload.model()


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def put(model: nn.Module, weights: np.ndarray) -> None:
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())


def _normal(images: Tensor) -> Tensor:
    return (images.float() / 255.0 - MEAN) / STD


def _images(part: str) -> Batch:
    images = _idx(f"{part}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    return torch.from_numpy(images), torch.from_numpy(_idx(f"{part}-labels-idx1-ubyte", 8)).long()


def _idx(name: str, head: int) -> np.ndarray:
    """The bytes behind the header of an idx file, plain or .gz."""
    plain = FASHION_MNIST / name
    if plain.exists():
        raw = plain.read_bytes()
    else:
        with gzip.open(plain.with_name(f"{name}.gz")) as file:
            raw = file.read()
    assert struct.unpack(">I", raw[:4])[0] in (2049, 2051), f"{name} is not an idx file"
    return np.frombuffer(bytearray(raw[head:]), dtype=np.uint8)
