"""Word vectors trained with gradients of a known staleness: each is applied so many steps after the
weights it was computed on. One model, so staleness is all that changes."""

from __future__ import annotations

import tempfile
from collections import deque
from functools import cache
from pydoc_data.topics import topics

import torch

from murmurate.workloads import DataShare, parse_split
from murmurate.workloads.word2vec import Word2Vec

RATE_PER_PAIR, RATE_OF_REFERENCE = 0.05, 0.02
"""000 has a fixed rate and does not say which. The first suits a text like Wikipedia's; Python's
reference is short, with the same words again and again: there staleness 55 diverges at it."""


@cache
def vectors(text: str | None) -> Word2Vec:
    """On this text; None: on Python's own language reference, which is wherever Python is. It must
    be words of a language: they are many and rare, which is what the paper's claim rests on."""
    if text is not None:
        return Word2Vec(text)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(topics.values()))
        file.flush()
        return Word2Vec(file.name)


def losses(
    text: str | None, staleness: int, *, batches: int, batch_size: int = 128, seed: int = 0
) -> tuple[float, float]:
    """Training loss (mean of the last tenth) and test loss after so many batches. Gradients touch
    few rows of the tables, so those that wait are kept as rows."""
    workload = vectors(text)
    torch.manual_seed(seed)
    model = workload.model()
    tables = list(model.parameters())
    share = DataShare(index=0, count=1, split=parse_split("none"), seed=seed, batch_size=batch_size)
    waiting: deque[list[tuple[torch.Tensor, torch.Tensor]]] = deque()
    lr = (RATE_OF_REFERENCE if text is None else RATE_PER_PAIR) * batch_size
    lately: deque[float] = deque(maxlen=max(1, batches // 10))
    drawn = workload.batches(share)
    for _ in range(batches):
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
    return sum(lately) / len(lately), workload.evaluate(model).loss
