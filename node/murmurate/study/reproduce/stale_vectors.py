"""Word vectors trained with gradients of a known staleness: each is applied so many steps after the
weights it was computed on. One model, so staleness is all that changes."""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from statistics import fmean

import torch

from murmurate.workloads import DataShare, parse_split
from murmurate.workloads.word2vec import Word2Vec

RATE, RATE_BATCH = 6.4, 128
"""Of a batch's mean loss: 0.05 for each pair of 128. 000 has a fixed rate and does not say which,
so larger batches have the same; smaller ones, which learn nothing at it (a test loss of 1.627 after
5,000 of 32, chance is 1.609), have 0.05 for each pair."""
OFTEN = 1e-3
"""Of a text: words that are more of it are left out at random, as the tutorial that the paper
trains (its footnote 1) does, by the formula of Mikolov et al. Without it the rows of the few words
that every batch has are what staleness hurts: 55 then costs 1.7 to 4.7 % or diverges."""


class Thinned(Word2Vec):
    """Words that come often are drawn less often."""

    def __init__(self, data: str | None = None) -> None:
        super().__init__(data)
        both = torch.cat((self._train, self._test))
        share = torch.bincount(both, minlength=int(both.max()) + 1).double() / len(both)
        kept = ((share / OFTEN).sqrt() + 1) * OFTEN / share.clamp(min=1e-12)
        draw = torch.Generator().manual_seed(0)
        self._train, self._test = (
            rows[torch.rand(len(rows), generator=draw, dtype=torch.float64) < kept[rows]]
            for rows in (self._train, self._test)
        )
        self._count_words()


@cache
def vectors(text: str | None) -> Word2Vec:
    """On this text; None: on Python's own language reference, which is wherever Python is. It must
    be words of a language: they are many and rare, which is what the paper's claim rests on."""
    if text is not None:
        return Thinned(text)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(topics.values()))
        file.flush()
        return Thinned(file.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Of one training, at every tenth of it."""

    batches: list[int]
    train: list[float]
    """Mean over the tenth before."""
    test: list[float]


def losses(
    text: str | None, staleness: int, *, batches: int, batch_size: int = 128, seed: int = 0
) -> LossCurve:
    """Training with so many batches. Gradients touch few rows of the tables, so those that wait
    are kept as rows."""
    workload = vectors(text)
    torch.manual_seed(seed)
    model = workload.model()
    tables = list(model.parameters())
    share = DataShare(index=0, count=1, split=parse_split("none"), seed=seed, batch_size=batch_size)
    waiting: deque[list[tuple[torch.Tensor, torch.Tensor]]] = deque()
    lr = RATE * min(1.0, batch_size / RATE_BATCH)
    made = LossCurve(batches=[], train=[], test=[])
    lately: list[float] = []
    drawn = workload.batches(share)
    for done in range(1, batches + 1):
        words, candidates = next(drawn)
        for table in tables:
            table.grad = None
        loss = workload.loss(model, (words, candidates))
        loss.backward()  # type: ignore[no-untyped-call]
        lately.append(float(loss.detach()))
        rows = (torch.unique(words), torch.unique(candidates))
        found = []
        for table, touched in zip(tables, rows, strict=True):
            assert table.grad is not None
            found.append((touched, table.grad[touched]))
        waiting.append(found)
        if len(waiting) > staleness:
            with torch.no_grad():
                for table, (touched, gradient) in zip(tables, waiting.popleft(), strict=True):
                    table.index_add_(0, touched, gradient, alpha=-lr)
        if done * 10 // batches > (done - 1) * 10 // batches:
            made.batches.append(done)
            made.train.append(fmean(lately))
            made.test.append(workload.evaluate(model).loss)
            lately.clear()
    return made
