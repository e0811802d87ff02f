"""What it costs to assemble a model of 100 MB from 8 subnets, in copies of that model.

    python bench/assemble.py          # figure to reach: at most 3 copies

Weights are put together in place, as the coordinator does it. The subnets are drawn at random, as
plans are, so columns lie scattered.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from murmurate.core.partition import analyse, deal, part_of, weights_of
from murmurate.core.partition.cover import Cover
from murmurate_coordinator.solvers.subnets.assemble import covers, fold

PEERS = 8
REPEATS = 7
COPIES_MAX = 3.0


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """784-h-h-10 with batch-norm, as in paper 001."""
    h = 4560
    layers = [nn.Linear(784, h), nn.BatchNorm1d(h), nn.ReLU()]
    layers += [nn.Linear(h, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, 10)]
    return nn.Sequential(*layers), (torch.randn(2, 784),)


def wide() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """One hidden layer: all of it is in some subnet, half of it by columns, the slow way."""
    return nn.Sequential(nn.Linear(1600, 8192), nn.ReLU(), nn.Linear(8192, 1600)), (
        torch.randn(2, 1600),
    )


def encoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Eight torch layers 512 wide."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), (torch.randn(2, 4, 512),)


def best_s(act: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    torch.set_num_threads(1)
    worst = 0.0
    print("model          MB   copy ms   assemble ms   copies   one push, ms")
    for make in (perceptron, wide, encoder):
        torch.manual_seed(0)
        model, example = make()
        structure = analyse(model, example)
        full = {name: value.detach().clone() for name, value in weights_of(model).items()}
        other = {name: value.clone() for name, value in full.items()}
        shares = deal(structure, [1.0] * PEERS, np.random.default_rng(0))
        by_tensor = covers(structure, shares)
        values = [part_of(full, structure, held) for held in shares]

        def copy(
            full: dict[str, torch.Tensor] = full, other: dict[str, torch.Tensor] = other
        ) -> None:
            for name, value in other.items():
                full[name].copy_(value)

        copy_s = best_s(copy)

        def assemble(
            full: dict[str, torch.Tensor] = full,
            by_tensor: Mapping[str, Cover] = by_tensor,
            values: list[dict[str, torch.Tensor]] = values,
        ) -> None:
            for k, each in enumerate(values):
                fold(full, by_tensor, k, each, each)

        assemble_s = best_s(assemble)
        push_s = best_s(lambda f=full, b=by_tensor, v=values: fold(f, b, 0, v[0], v[0]))  # type: ignore[misc]
        worst = max(worst, assemble_s / copy_s)
        size = sum(value.nbytes for value in full.values()) / 1e6
        print(
            f"{make.__name__:<12}{size:>6.0f}{copy_s * 1e3:>10.1f}{assemble_s * 1e3:>14.1f}"
            f"{assemble_s / copy_s:>9.2f}{push_s * 1e3:>15.1f}"
        )
    return 0 if worst <= COPIES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
