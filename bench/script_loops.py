"""Four training scripts as people have them, each at the rate it is published with.

Sizes, rates and schedules are those of public examples; data are what this machine has. A script
knows nothing of a swarm but the two lines in which it is adopted: `with adopt(model, optimizer)`
around its loop, and what it says at the end is the loss on the test part of its data.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Adopt = Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one process of one turn does."""

    steps: int
    seed: int
    rank: int
    of: int
    """Processes in this turn; each has an order of the data of its own."""
    batches: int
    """Batches of the public script in one of this one."""
    text: str | None
    adopt: Adopt

    @property
    def chance(self) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + self.rank)


# -- images: an autoencoder with Adam --------------------------------------------------------------


class Autoencoder(nn.Module):
    """Variational, 784-400-20."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, 400)
        self.mean, self.spread = nn.Linear(400, 20), nn.Linear(400, 20)
        self.unfold, self.image = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = functional.relu(self.hidden(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.image(functional.relu(self.unfold(code))), mean, spread


def bound(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The sum over the batch, as the public script has it."""
    image, mean, spread = model(x)
    told = functional.binary_cross_entropy_with_logits(image, x, reduction="sum")
    return told - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())


def vae(turn: Turn) -> float:
    """Adam 1e-3, batch 128."""
    from murmurate.workloads.data import FASHION_MNIST, read_images

    images = read_images(None, FASHION_MNIST)
    train = torch.from_numpy(images.train_images).reshape(-1, 784).float().div_(255)
    test = torch.from_numpy(images.test_images[:2000]).reshape(-1, 784).float().div_(255)
    torch.manual_seed(turn.seed)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(1000 * turn.seed + turn.rank)
    chance, size = turn.chance, 128 * turn.batches
    with turn.adopt(model, optimizer):
        model.train()
        for _ in range(turn.steps):
            x = train[torch.randint(len(train), (size,), generator=chance)]
            optimizer.zero_grad()
            bound(model, x).backward()
            optimizer.step()
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        return float(bound(model, test)) / len(test)


# -- words: an LSTM with SGD at 20 -----------------------------------------------------------------

WORDS = 2000
"""The most common ones; the public script has ten times as many, and a graphics card."""
BPTT = 35


class WordModel(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(words, 200)
        self.rnn = nn.LSTM(200, 200, 2, dropout=0.2)
        self.decoder = nn.Linear(200, words)
        for weight in (self.encoder.weight, self.decoder.weight):
            nn.init.uniform_(weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(out)), hidden


def corpus(file: str | None) -> str:
    """A text file, or what Python says of itself, which is English and everywhere."""
    if file is not None:
        from murmurate.workloads.data import read_text

        return read_text(file)
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def columns(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """Read down, `count` columns side by side."""
    rows = len(numbers) // count
    return numbers[: rows * count].view(count, rows).t().contiguous()


def spans(data: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for at in range(0, len(data) - 1 - BPTT, BPTT):
        yield data[at : at + BPTT], data[at + 1 : at + 1 + BPTT]


def perplexed(model: nn.Module, data: torch.Tensor) -> float:
    model.eval()
    total, count, hidden = 0.0, 0, None
    with torch.no_grad():
        for x, y in spans(data):
            out, hidden = model(x, hidden)
            total += float(functional.cross_entropy(out.flatten(0, 1), y.flatten()))
            count += 1
    model.train()
    return total / count


def lstm(turn: Turn) -> float:
    """SGD at 20, divided by 4 when the validation loss does not fall, clipped at 0.25; batch 20."""
    said = re.findall(r"\w+|[^\w\s]", corpus(turn.text).lower())
    known = [word for word, _ in Counter(said).most_common(WORDS - 1)]
    places = {word: place for place, word in enumerate(known, 1)}
    numbers = torch.tensor([places.get(word, 0) for word in said])
    held = min(len(numbers) // 10, 14_000)
    test, valid, train = numbers[-held:], numbers[-2 * held : -held], numbers[: -2 * held]
    train = columns(train.roll(-turn.rank * len(train) // turn.of), 20 * turn.batches)
    test, valid = columns(test, 20), columns(valid, 20)
    torch.manual_seed(turn.seed)
    model = WordModel(WORDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    torch.manual_seed(1000 * turn.seed + turn.rank)
    best, step = math.inf, 0
    with turn.adopt(model, optimizer):
        while step < turn.steps:
            model.train()
            hidden = None
            for x, y in spans(train):
                if hidden is not None:
                    hidden = tuple(each.detach() for each in hidden)
                optimizer.zero_grad()
                out, hidden = model(x, hidden)
                functional.cross_entropy(out.flatten(0, 1), y.flatten()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
                step += 1
                if step % max(1, turn.steps // 4) == 0:
                    loss = perplexed(model, valid)
                    if loss < best:
                        best = loss
                    else:
                        optimizer.param_groups[0]["lr"] /= 4.0
                if step == turn.steps:
                    break
    return perplexed(model, test)


# -- characters: a small GPT with AdamW ------------------------------------------------------------

BLOCK = 64


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.calm, self.calmer = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.ask = nn.Linear(width, 3 * width, bias=False)
        self.answer = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.ask(self.calm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.calmer(x))))


class CharacterModel(nn.Module):
    """4 layers, 4 heads, 128 wide; the embedding is the head, too."""

    def __init__(self, characters: int, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(BLOCK, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.calm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.characters.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("answer.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if deep else 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(x.shape[1]))
        return self.head(self.calm(self.blocks(self.characters(x) + places)))


def rate(step: int, steps: int) -> float:
    """Up to 1e-3 over 100 steps (or a quarter of a short run), down to 1e-4 by a cosine."""
    warm = min(100, steps // 4)
    if step < warm:
        return 1e-3 * (step + 1) / (warm + 1)
    return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * (step - warm) / (steps - warm))) * 9e-4


def gpt(turn: Turn) -> float:
    """AdamW 1e-3, betas .9 .99, weight decay .1 on matrices, clipped at 1; batch 12 of 64."""
    said = corpus(turn.text)
    places = {character: place for place, character in enumerate(sorted(set(said)))}
    numbers = torch.tensor([places[character] for character in said])
    cut = len(numbers) * 9 // 10
    train, test = numbers[:cut], numbers[cut:]
    torch.manual_seed(turn.seed)
    model = CharacterModel(len(places))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    chance = turn.chance

    def loss(data: torch.Tensor, size: int, chance: torch.Generator) -> torch.Tensor:
        begin = torch.randint(len(data) - BLOCK - 1, (size,), generator=chance)
        rows = torch.stack([data[b : b + BLOCK + 1] for b in begin])
        return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    with turn.adopt(model, optimizer):
        model.train()
        for step in range(turn.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate(step, turn.steps)
            optimizer.zero_grad()
            loss(train, 12 * turn.batches, chance).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    model.eval()
    same = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return sum(float(loss(test, 64, same)) for _ in range(10)) / 10


# -- curves: LBFGS ---------------------------------------------------------------------------------


class Wave(nn.Module):
    """Two cells of 51 and a line: the next point of a curve."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51)
        self.line = nn.Linear(51, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h1, h2, points = None, None, []
        for point in x.split(1, dim=1):
            h1 = self.first(point, h1)
            h2 = self.second(h1[0], h2)
            points.append(self.line(h2[0]))
        return torch.cat(points, dim=1)


def lbfgs(turn: Turn) -> float:
    """Sine waves at random phases, in double, all of them in every step; LBFGS at 0.8."""
    phases = torch.randint(-80, 80, (23,), generator=turn.chance)
    same = torch.randint(-80, 80, (7,), generator=torch.Generator().manual_seed(99))
    waves = torch.sin((torch.arange(100) + torch.cat([same, phases])[:, None]).double() / 20.0)
    test, train = waves[:7], waves[7:]
    torch.manual_seed(turn.seed)
    model = Wave().double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(train[:, :-1]), train[:, 1:])
        loss.backward()
        return loss

    with turn.adopt(model, optimizer):
        for _ in range(turn.steps):
            optimizer.step(closure)
    with torch.no_grad():
        return float(functional.mse_loss(model(test[:, :-1]), test[:, 1:]))


SCRIPTS: dict[str, Callable[[Turn], float]] = {"vae": vae, "lstm": lstm, "gpt": gpt, "lbfgs": lbfgs}
