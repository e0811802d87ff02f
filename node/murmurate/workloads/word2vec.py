"""Word vectors, the workload of paper 000: skip-gram with negative sampling on any text.

As in the tutorial the paper takes its model from: given a word, tell the one that stands near it
in the text from four drawn at random; cross-entropy over the five. Chance is a loss of ln 5 = 1.609
and an accuracy of 0.2. 85 % of the text is for training, the rest for the test.

A word's row in the tables is its CRC-32 modulo their size. So all peers agree on it without having
the same text, which a vocabulary counted from the text would require, silently training nonsense
where it is not so. The price: words share rows.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from murmurate.errors import ConfigError
from murmurate.workloads import DataShare, Evaluation
from murmurate.workloads.classification import order
from murmurate.workloads.data import read_text
from murmurate.workloads.split import random_state, split

ROWS = 4096
DIMENSIONS = 64
NEGATIVES = 4
WINDOW = 2
TRAIN_FRACTION = 0.85
WORDS_MIN = 100
TEST_SAMPLES_MAX = 20_000


class SkipGram(nn.Module):
    """Two tables: a word as itself, and a word as a neighbour. 524,288 parameters."""

    def __init__(self) -> None:
        super().__init__()
        # sparse=False: an update is a dense difference of all weights
        self.word = nn.Embedding(ROWS, DIMENSIONS)
        self.neighbour = nn.Embedding(ROWS, DIMENSIONS)
        nn.init.uniform_(self.word.weight, -0.05, 0.05)
        nn.init.uniform_(self.neighbour.weight, -0.05, 0.05)

    def forward(self, words: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """The score of each candidate (batch, 1 + negatives) as a neighbour of its word (batch)."""
        return torch.einsum("bd,bcd->bc", self.word(words), self.neighbour(candidates))


def rows_of(text: str) -> torch.Tensor:
    """The row of each word, in the order of the text."""
    known: dict[str, int] = {}
    rows = array("q")
    for match in re.finditer(r"\w+", text.lower()):
        word = match[0]
        row = known.get(word)
        if row is None:
            row = known[word] = zlib.crc32(word.encode()) % ROWS
        rows.append(row)
    return torch.from_numpy(np.frombuffer(rows, dtype=np.int64).copy())


class Word2Vec:
    name = "word2vec"
    batch_size = 128
    lr = 6.4  # 0.05 for each pair of words; the loss is the mean of 128
    samples = 640_000  # pairs

    def __init__(self, data: str | None = None) -> None:
        rows = rows_of(read_text(data))
        if len(rows) < WORDS_MIN:
            raise ConfigError(f"{data} has {len(rows)} words, less than {WORDS_MIN}")
        cut = int(len(rows) * TRAIN_FRACTION)
        self._train, self._test, self._held = rows[:cut], rows[cut:], rows[:0]
        self._count_words()

    def _count_words(self) -> None:
        # negatives come as often as the power 3/4 of their frequency (Mikolov et al.)
        weights = torch.bincount(self._train, minlength=ROWS).to(torch.float64).pow(0.75)
        self._cumulative = weights.cumsum(0) / weights.sum()
        self._cumulative[-1] = 1.0

    def model(self) -> nn.Module:
        return SkipGram()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr)

    def batches(self, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        places = np.zeros(len(self._train) - 2 * WINDOW, dtype=np.int64)  # text has no labels
        mine = split(places, share.split, share.index, share.count, share.seed)
        return self._endless(torch.from_numpy(mine + WINDOW), share)

    def _endless(self, mine: torch.Tensor, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        draw = torch.Generator().manual_seed(
            int(random_state(share.seed, share.index + 1, 1).randint(1 << 31))
        )
        for places in order(mine, share):
            yield self._examples(self._train, places, draw)

    def _examples(
        self, text: torch.Tensor, places: torch.Tensor, draw: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The words at these places; their candidates, the true neighbour first."""
        count = len(places)
        offset = torch.randint(1 - WINDOW, WINDOW + 1, (count,), generator=draw)
        offset -= (offset <= 0).to(torch.int64)  # -2, -1, 1, 2
        chance = torch.rand(count, NEGATIVES, generator=draw, dtype=torch.float64)
        negatives = torch.searchsorted(self._cumulative, chance, right=True).clamp_(max=ROWS - 1)
        neighbours = text.index_select(0, places + offset).unsqueeze(1)
        return text.index_select(0, places), torch.cat((neighbours, negatives), 1)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        words, candidates = batch
        return nn.functional.cross_entropy(model(words, candidates), torch.zeros_like(words))

    def hold_out(self, part: float, seed: int) -> None:
        """One passage: words that are drawn one by one would stand beside those of training."""
        cut = round(part * len(self._train))
        if not 2 * WINDOW < cut < len(self._train) - 2 * WINDOW:
            raise ConfigError(f"validation {part:g}: not of {len(self._train)} words")
        start = int(random_state(seed, 0).randint(len(self._train) - cut + 1))
        self._held = self._train[start : start + cut]
        self._train = torch.cat((self._train[:start], self._train[start + cut :]))
        self._count_words()

    def evaluate(self, model: nn.Module) -> Evaluation:
        return self._evaluated(model, self._test)

    def validate(self, model: nn.Module) -> Evaluation:
        return self._evaluated(model, self._held)

    def _evaluated(self, model: nn.Module, text: torch.Tensor) -> Evaluation:
        places = torch.arange(WINDOW, len(text) - WINDOW)
        step = -(-len(places) // TEST_SAMPLES_MAX)
        batch = self._examples(text, places[::step], torch.Generator().manual_seed(0))
        model.eval()
        with torch.no_grad():
            logits = model(*batch)
            loss = nn.functional.cross_entropy(logits, torch.zeros_like(batch[0]))
        model.train()
        return Evaluation(float(loss), float((logits.argmax(1) == 0).double().mean()))
