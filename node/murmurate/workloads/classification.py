"""What the workloads that put samples into classes have in common."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from murmurate.workloads import DataShare, Evaluation
from murmurate.workloads.split import held_out, random_state, split

EVALUATION_BATCH = 1000


def order(samples: torch.Tensor, share: DataShare) -> Iterator[torch.Tensor]:
    """Batches of these, without end: pass after pass, shuffled anew each time.

    A batch always has `batch_size` samples. What is left over at the end of a pass opens the next
    batch, so that every sample comes once per pass.
    """
    generator = torch.Generator().manual_seed(
        int(random_state(share.seed, share.index + 1).randint(1 << 31))
    )
    waiting = samples[:0]
    while True:
        start = 0
        while start + share.batch_size <= len(waiting):
            yield waiting[start : start + share.batch_size]
            start += share.batch_size
        shuffled = torch.randperm(len(samples), generator=generator)
        waiting = torch.cat((waiting[start:], samples[shuffled]))


class Classification:
    """Samples in, logits out, cross-entropy, accuracy.

    Inputs stay as they are stored, usually bytes (FashionMNIST: 47 MB, not 188), and become
    numbers batch by batch: `(x - mean) / std`.
    """

    name: str
    batch_size: int
    lr: float
    momentum: float = 0.0
    samples: int

    def __init__(
        self,
        train: tuple[torch.Tensor, torch.Tensor],
        test: tuple[torch.Tensor, torch.Tensor],
        *,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        self._inputs, self._labels = train
        self._test_inputs, self._test_labels = test
        self._held_inputs, self._held_labels = train[0][:0], train[1][:0]
        self._mean, self._std = mean, std

    def model(self) -> nn.Module:
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    def batches(self, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        mine = split(self._labels.numpy(), share.split, share.index, share.count, share.seed)
        return self._endless(torch.from_numpy(mine), share)

    def _endless(self, mine: torch.Tensor, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        for chosen in order(mine, share):
            inputs = self._numbers(self._inputs.index_select(0, chosen))
            yield inputs, self._labels.index_select(0, chosen)

    def _numbers(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(torch.float32).sub_(self._mean).div_(self._std)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def shorten_test(self, samples: int) -> None:
        """Evaluate on the first so many of the test set, from now on."""
        self._test_inputs = self._test_inputs[:samples]
        self._test_labels = self._test_labels[:samples]

    def hold_out(self, part: float, seed: int) -> None:
        kept, held = map(torch.from_numpy, held_out(len(self._labels), part, seed))
        self._held_inputs, self._held_labels = self._inputs[held], self._labels[held]
        self._inputs, self._labels = self._inputs[kept], self._labels[kept]

    def evaluate(self, model: nn.Module) -> Evaluation:
        return self._evaluated(model, self._test_inputs, self._test_labels)

    def validate(self, model: nn.Module) -> Evaluation:
        return self._evaluated(model, self._held_inputs, self._held_labels)

    def _evaluated(
        self, model: nn.Module, all_inputs: torch.Tensor, all_labels: torch.Tensor
    ) -> Evaluation:
        model.eval()
        loss, count = 0.0, len(all_labels)
        classes = int(max(self._labels.max(), self._test_labels.max())) + 1
        there, right, said = torch.zeros(3, classes, dtype=torch.int64)
        with torch.no_grad():
            for start in range(0, count, EVALUATION_BATCH):
                here = slice(start, start + EVALUATION_BATCH)
                labels = all_labels[here]
                logits = model(self._numbers(all_inputs[here]))
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
                chosen = logits.argmax(1)
                there += torch.bincount(labels, minlength=classes)
                right += torch.bincount(labels[chosen == labels], minlength=classes)
                # A class that no label names may be chosen all the same, of a larger output.
                said += torch.bincount(chosen, minlength=classes)[:classes]
        model.train()
        recall = tuple((right.double() / there).tolist())  # 0 / 0 is nan
        precision = tuple((right.double() / said.clamp(min=1)).tolist())
        return Evaluation(loss / count, int(right.sum()) / count, recall, precision)
