"""Which indices belong together: a union-find over the indices of a model's axes.

Each index along an axis that a layer makes is an *atom*. Whatever the model does with it (a sum of
two branches, a head of attention, a group of a norm) joins atoms; those that end in one set are one
*unit*, dealt as a whole. Atom 0 stands for what every peer holds: joined with it is shared.
"""

from __future__ import annotations

import torch

SHARED = 0


class Atoms:
    """Atoms are counted from 0; each knows the axis it was made for (its source)."""

    def __init__(self) -> None:
        self._parent: list[int] = [SHARED]
        self._source: list[str] = [""]

    def fresh(self, count: int, source: str) -> torch.Tensor:
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        self._source.extend([source] * count)
        return torch.arange(first, first + count)

    def find(self, atom: int) -> int:
        parent = self._parent
        while parent[atom] != atom:
            parent[atom] = parent[parent[atom]]
            atom = parent[atom]
        return atom

    def join(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Element by element, after broadcasting."""
        if a is b:
            return
        zero = torch.zeros_like(a) * torch.zeros_like(b)  # broadcasts
        pairs = torch.stack([a + zero, b + zero]).reshape(2, -1)
        for one, other in torch.unique(pairs, dim=1).t().tolist():
            self._unite(one, other)

    def join_along(self, atoms: torch.Tensor, dim: int) -> torch.Tensor:
        """All along an axis become one; what is left has size 1 there."""
        first = atoms.narrow(dim, 0, 1)
        if atoms.shape[dim] > 1:
            self.join(first, atoms)
        return first

    def share(self, atoms: torch.Tensor) -> None:
        for atom in torch.unique(atoms).tolist():
            self._unite(SHARED, atom)

    def sources(self, atoms: torch.Tensor) -> frozenset[str]:
        """The axes these were made for, without those that are shared by now."""
        found = torch.unique(atoms).tolist()
        return frozenset(self._source[a] for a in found if self.find(a) != SHARED)

    def source(self, atom: int) -> str:
        return self._source[atom]

    def roots(self, atoms: torch.Tensor) -> torch.Tensor:
        flat = [self.find(atom) for atom in atoms.reshape(-1).tolist()]
        return torch.tensor(flat, dtype=torch.int64).reshape(atoms.shape)

    def _unite(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)  # the lowest is the root: SHARED always wins
