"""Which atom each element of each tensor belongs to, as far as one run of a model has shown.

With each tensor goes an array of atoms that broadcasts to its shape. The rules of `elements`,
`layers` and `products` read and write it; `spread` watches the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from murmurate.core.partition.atoms import Atoms


@dataclass(slots=True)
class Axis:
    """One axis of a parameter or buffer that is dealt: the atom of each index along it."""

    atoms: torch.Tensor
    inward: bool
    """The layer sums over it: zeros there are as good as not being there."""


@dataclass(slots=True)
class Found:
    """What one run has shown."""

    axes: dict[str, dict[int, Axis]] = field(default_factory=dict)
    heads: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    """Of `nn.MultiheadAttention` by path: the size of a head, the atom of each."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a source stayed shared, as far as it is known."""
    normed: set[str] = field(default_factory=set)
    """Weights whose result goes straight into a norm: its size does not matter."""


class Labels:
    """The atoms of the tensors of one run, and what it has found."""

    def __init__(self, model: nn.Module) -> None:
        self.atoms = Atoms()
        self.found = Found()
        self.names = names_of(model)
        self._labels: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def label(self, tensor: object) -> torch.Tensor | None:
        """The atoms of a tensor's elements; None: nothing in it is dealt."""
        held = self._labels.get(id(tensor))
        return held[1] if held is not None else None

    def put(self, tensor: object, atoms: torch.Tensor | None) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        if atoms is None:
            self._labels.pop(id(tensor), None)
            return
        shape = tensor.shape
        if atoms.dim() < len(shape):
            atoms = atoms.reshape((1,) * (len(shape) - atoms.dim()) + tuple(atoms.shape))
        self._labels[id(tensor)] = (tensor, compressed(atoms))  # kept alive: ids are used again

    def current(self, tensor: object) -> torch.Tensor | None:
        """The same, with what was joined meanwhile taken for one."""
        atoms = self.label(tensor)
        return None if atoms is None else compressed(self.atoms.roots(atoms))

    def keep_whole(self, value: object, why: str) -> None:
        """Everything labelled in here is shared from now on."""
        for tensor in tensors_in(value):
            atoms = self.label(tensor)
            if atoms is not None:
                self.share(atoms, why)

    def share(self, atoms: torch.Tensor, why: str) -> None:
        self.because(atoms, why)
        self.atoms.share(atoms)

    def because(self, atoms: torch.Tensor, why: str) -> None:
        for source in self.atoms.sources(atoms):
            self.found.reasons.setdefault(source, why)

    def only(self, atoms: torch.Tensor, axis: int) -> torch.Tensor:
        """The atoms along one axis; those that differ along others are joined."""
        for dim in range(atoms.dim()):
            if dim != axis % atoms.dim():
                atoms = self.atoms.join_along(atoms, dim)
        return atoms.reshape(-1)

    def axis(
        self, tensor: torch.Tensor, axis: int, atoms: torch.Tensor | None, *, inward: bool
    ) -> torch.Tensor | None:
        """Give an axis of a parameter these atoms, or new ones; None where it is no parameter."""
        name = self.names.get(id(tensor))
        if name is None:
            return None
        axes = self.found.axes.setdefault(name, {})
        if axis in axes:  # tied, or called twice
            if atoms is not None:
                self.atoms.join(axes[axis].atoms, atoms)
            axes[axis].inward &= inward
            return axes[axis].atoms
        if atoms is None:
            atoms = self.atoms.fresh(tensor.shape[axis], f"{name}\t{axis}")
        else:
            atoms = atoms.expand(tensor.shape[axis]).clone()
        axes[axis] = Axis(atoms, inward)
        return atoms

    def both(self, a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
        if a is None or b is None:
            return b if a is None else a
        self.atoms.join(a, b)
        return torch.where(torch.ones_like(b, dtype=torch.bool), a, b)


def names_of(model: nn.Module) -> dict[int, str]:
    """Parameters and buffers by identity; a tied one has its first name."""
    names: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(id(tensor), name)
    return names


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def compressed(atoms: torch.Tensor) -> torch.Tensor:
    """Size 1 along every axis on which nothing differs."""
    for dim, size in enumerate(atoms.shape):
        if size > 1:
            first = atoms.narrow(dim, 0, 1)
            if bool((atoms == first).all()):
                atoms = first
    return atoms
