"""`murmurate partition`: what of a workload's model would go to which peer, without training it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from murmurate.core.partition import (
    Held,
    Structure,
    Tensor,
    analyse,
    check_identity,
    coverage,
    cut,
    deal,
)
from murmurate.errors import ConfigError
from murmurate.programs.up.launch import parse_widths
from murmurate.workloads import DataShare, Split, Workload, load

COPIES = 3
"""Of a subnet in memory: its tensors, their gradients, one buffer of the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one peer has to hold and to compute."""

    parameters: int
    memory_bytes: int
    flops: int
    """Of a training step, for one sample."""


def run(workload: str, peers: int, widths: str | None, data: str | None, seed: int) -> int:
    weights = parse_widths(widths, peers)
    torch.manual_seed(seed)
    it = load(workload, data=data)
    model = it.model()
    example = example_of(it, model)
    structure = analyse(model, example)
    if not structure.groups:
        why = "; ".join(f"{name}: {reason}" for name, reason in structure.reasons.items())
        raise ConfigError(f"workload {workload}: none of its axes can be split ({why})")
    shares = deal(structure, weights, np.random.default_rng(seed))
    check_identity(structure, shares)
    show(Console(), it.name, model, structure, shares, example)
    return 0


class _Seen(Exception):
    """The model was called: its input is known."""


def example_of(workload: Workload, model: nn.Module, batch_size: int = 2) -> tuple[Any, ...]:
    """What the workload's loss gives to the model: taken from a call of it."""
    seen: list[tuple[Any, ...]] = []

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs:
            raise ConfigError(
                f"workload {workload.name}: its model is called with {', '.join(kwargs)} by name:"
                " give all by position"
            )
        seen.append(args)
        raise _Seen

    share = DataShare(index=0, count=1, split=Split("none"), seed=0, batch_size=batch_size)
    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        workload.loss(model, next(iter(workload.batches(share))))
    except _Seen:
        pass
    finally:
        handle.remove()
    if not seen:
        raise ConfigError(f"workload {workload.name}: its loss does not call the model")
    return seen[0]


def cost(model: nn.Module, structure: Structure, held: Held, example: tuple[Any, ...]) -> Cost:
    """Counted on a subnet that is cut for it."""
    subnet = cut(model, structure, held)
    with FlopCounterMode(display=False) as counter, torch.random.fork_rng(devices=[]):
        out = subnet(*example)
        first = out[0] if isinstance(out, tuple | list) else out
        first.sum().backward()
    batch = next((t.shape[0] for t in example if isinstance(t, torch.Tensor) and t.dim()), 1)
    return Cost(
        parameters=structure.parameters(held),
        memory_bytes=structure.nbytes(held) * COPIES,
        flops=counter.get_total_flops() // max(1, batch),
    )


def show(
    console: Console,
    name: str,
    model: nn.Module,
    structure: Structure,
    shares: Sequence[Held],
    example: tuple[Any, ...],
) -> None:
    """Three tables: axes, peers, and what stays shared."""
    peers = [f"peer-{k}" for k in range(len(shares))]
    axes = Table(title=f"{name}: which axis goes where", title_justify="left")
    axes.add_column("axis")
    axes.add_column("units", justify="right")
    axes.add_column("of these tensors")
    axes.add_column(f"units of peer-0 to peer-{len(shares) - 1}")
    for group in structure.groups:
        where = [_where(t, axis, n) for g, t, axis, n in structure.axes() if g is group]
        widths = [structure.width(group, held) for held in shares]
        whole = all(width == group.count for width in widths) and len(shares) > 1
        dealt = "all, each: too few to deal" if whole else " ".join(map(str, widths))
        axes.add_row(group.name, str(group.count), "\n".join(where), dealt)
    console.print(axes)

    all_of_it = cost(model, structure, structure.everything(), example)
    table = Table(title="what each peer has", title_justify="left")
    for heading in ("peer", "parameters", "share", "memory", "flops/sample", "share"):
        table.add_column(heading, justify="left" if heading == "peer" else "right")
    each = [cost(model, structure, held, example) for held in shares]
    for peer, its in [*zip(peers, each, strict=True), ("whole model", all_of_it)]:
        table.add_row(
            peer,
            f"{its.parameters:,}",
            f"{its.parameters / max(1, all_of_it.parameters):.1%}",
            _bytes(its.memory_bytes),
            _thousands(its.flops),
            f"{its.flops / max(1, all_of_it.flops):.1%}",
        )
    console.print(table)

    covered = coverage(structure, shares)
    partly = {key: part for key, part in covered.items() if part < 1.0}
    if partly:
        console.print("in some peer's subnet only in part (the rest is kept as it is):")
        for key, part in partly.items():
            console.print(f"  {key}: {part:.1%}", highlight=False)
    shared = [t.name for t in structure.tensors.values() if t.trained and not t.split]
    if shared:
        console.print(f"held by all, averaged: {', '.join(shared)}", highlight=False)
    for key, why in structure.reasons.items():
        console.print(f"  {key}: {why}", highlight=False)


def _where(tensor: Tensor, axis: int, indices: int) -> str:
    """`fc.weight[64, :]`: 64 indices of the first axis."""
    shown = [str(indices) if a == axis else ":" for a in range(len(tensor.shape))]
    return f"{tensor.name}\\[{', '.join(shown)}]"  # rich takes a bare bracket for a style


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _thousands(count: int) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.2f} {unit}"
    return str(count)
