"""A small transformer that reads characters: given 32 of them, tell the next, at every place.

`char-transformer` trains with Adam, `char-transformer:adamw` and `char-transformer:sgd` with those.
It has a loss and no accuracy: chance is ln 96 = 4.56.

Without a file it reads a text that is made up from a fixed seed: a thousand words of syllables, a
few of them frequent, each with some that it likes to be followed by. So there are letters,
syllables, words and pairs of words to be learnt, in this order, as in a language.

A character is its place among the 95 printable ones of ASCII, and all others are one more. So all
peers agree on it without having the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from murmurate.errors import ConfigError
from murmurate.workloads import DataShare, Evaluation
from murmurate.workloads.classification import order
from murmurate.workloads.data import read_text
from murmurate.workloads.split import random_state, split

SYMBOLS = 96
CONTEXT = 32
WIDTH = 64
HEADS = 4
LAYERS = 2
TRAIN_FRACTION = 0.9
TEST_WINDOWS_MAX = 512
CHARACTERS_MIN = 1000

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float], float]] = {
    "adam": (torch.optim.Adam, {}, 0.003),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}, 0.003),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}, 0.1),
}
"""How each is made, and the rate that suits one node."""


class Block(nn.Module):
    """Attention to what came before, then a perceptron, each added to what goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.before_perceptron = nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attend(self.before_attention(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        out: torch.Tensor = x + self.perceptron(self.before_perceptron(x))
        return out


class Reader(nn.Module):
    """A decoder of two blocks: 114,528 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        self.next = nn.Linear(WIDTH, SYMBOLS)
        for table in (self.symbol, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """The score of each symbol as the next one, at every place of (batch, length)."""
        places = torch.arange(symbols.shape[1], device=symbols.device)
        x = self.blocks(self.symbol(symbols) + self.place(places))
        scores: torch.Tensor = self.next(self.last(x))
        return scores


class CharTransformer:
    name = "char-transformer"
    batch_size = 8  # windows of 32 characters
    lr: float
    samples = 20_000

    def __init__(self, optimizer: str = "adam", data: str | None = None) -> None:
        if optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer {optimizer!r}: expected {', '.join(OPTIMIZERS)}")
        self._make, self._options, self.lr = OPTIMIZERS[optimizer]
        text = made_up_text() if data is None else read_text(data)
        if len(text) < CHARACTERS_MIN:
            raise ConfigError(f"{data} has {len(text)} characters, less than {CHARACTERS_MIN}")
        symbols = symbols_of(text)
        cut = int(len(symbols) * TRAIN_FRACTION)
        self._train, self._test = symbols[:cut], symbols[cut:]
        self._held = symbols[:0]

    def model(self) -> nn.Module:
        return Reader()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self._make(model.parameters(), lr=self.lr, **self._options)

    def batches(self, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        places = np.zeros(len(self._train) - CONTEXT, dtype=np.int64)  # text has no labels
        mine = split(places, share.split, share.index, share.count, share.seed)
        return self._endless(torch.from_numpy(mine), share)

    def _endless(self, mine: torch.Tensor, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        for places in order(mine, share):
            yield (_windows(self._train, places),)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (windows,) = batch
        scores = model(windows[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())

    def hold_out(self, part: float, seed: int) -> None:
        """One passage: windows that are drawn one by one would overlap with those of training."""
        cut = round(part * len(self._train))
        if not 2 * CONTEXT < cut < len(self._train) - 2 * CONTEXT:
            raise ConfigError(f"validation {part:g}: not of {len(self._train)} characters")
        start = int(random_state(seed, 0).randint(len(self._train) - cut + 1))
        self._held = self._train[start : start + cut]
        self._train = torch.cat((self._train[:start], self._train[start + cut :]))

    def evaluate(self, model: nn.Module) -> Evaluation:
        return self._evaluated(model, self._test)

    def validate(self, model: nn.Module) -> Evaluation:
        return self._evaluated(model, self._held)

    def _evaluated(self, model: nn.Module, text: torch.Tensor) -> Evaluation:
        starts = torch.arange(0, len(text) - CONTEXT, CONTEXT)
        windows = _windows(text, starts[:: -(-len(starts) // TEST_WINDOWS_MAX)])
        model.eval()
        with torch.no_grad():
            loss = float(self.loss(model, (windows,)))
        model.train()
        return Evaluation(loss, float("nan"))


def _windows(symbols: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """From each of these places on, a context and the symbol after it: (starts, context + 1)."""
    return symbols[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)].to(torch.int64)


def symbols_of(text: str) -> torch.Tensor:
    """The number of each character."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.int64) - 32
    codes[(codes < 0) | (codes >= SYMBOLS - 1)] = SYMBOLS - 1
    return torch.from_numpy(codes.astype(np.uint8))


def made_up_text(words: int = 80_000) -> str:
    """Half a million characters, always the same."""
    rng = random_state(0, 1)
    syllables = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "s", "r")]
    known = 1000
    spelt = ["".join(rng.choice(syllables, size=rng.randint(1, 4))) for _ in range(known)]
    often = 1.0 / np.arange(1, known + 1)
    often /= often.sum()
    liked = rng.choice(known, size=(known, 4), p=often)
    free = rng.choice(known, size=words, p=often)
    follows, which, ends = rng.rand(words) < 0.6, rng.randint(4, size=words), rng.rand(words)
    text, word = [], 0
    for place in range(words):
        word = int(liked[word, which[place]] if follows[place] else free[place])
        text.append(spelt[word] + (". " if ends[place] < 0.1 else " "))
    return "".join(text)
