"""Products of activations: matmul, einsum, attention. What is summed over is joined."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from murmurate.core.partition.labels import Labels, tensors_in
from murmurate.core.partition.layers import LayerRules


class ProductRules:
    """What a product does to the atoms of its factors; `do_…` as in `LayerRules`."""

    def __init__(self, labels: Labels, layers: LayerRules, model: nn.Module) -> None:
        self.labels = labels
        self._layers = layers
        self._attention = {
            id(m.out_proj.weight): (path, m)
            for path, m in model.named_modules()
            if isinstance(m, nn.MultiheadAttention)
        }

    def do_matmul(self, out: Any, a: Any, b: Any) -> None:
        if id(b) in self.labels.names and b.dim() == 2:
            self._layers.layer(out, a, -1, b, (1, 0), None)
            return
        if id(a) in self.labels.names or id(b) in self.labels.names or min(a.dim(), b.dim()) < 2:
            self.labels.keep_whole((a, b), "a product with a bare parameter")
            return
        left, right = self.labels.current(a), self.labels.current(b)
        if left is not None:
            left = self.labels.atoms.join_along(left, -1)
            left = self._beside(left, a, b) if right is None else left
        if right is not None:
            right = self.labels.atoms.join_along(right, -2)
            right = self._beside(right, b, a) if left is None else right
        self.labels.put(out, self.labels.both(left, right))

    def _beside(self, atoms: torch.Tensor, mine: Any, other: Any) -> torch.Tensor:
        """In a product with a tensor that is not dealt: axes that only go along in both."""
        for dim in range(3, min(mine.dim(), other.dim()) + 1):
            if atoms.shape[-dim] > 1 and other.shape[-dim] > 1:
                atoms = self.labels.atoms.join_along(atoms, -dim)
        return atoms

    do_bmm = do_matmul

    def do_rmatmul(self, out: Any, b: Any, a: Any) -> None:
        self.do_matmul(out, a, b)

    def do_einsum(self, out: Any, equation: str, *operands: Any) -> None:
        tensors = list(tensors_in(operands))
        if all(self.labels.label(t) is None for t in tensors):
            return
        inputs, arrow, output = equation.replace(" ", "").partition("->")
        if not arrow or "." in equation or any(id(t) in self.labels.names for t in tensors):
            self.labels.keep_whole(operands, "an einsum with a bare parameter, dots or no arrow")
            return
        result: torch.Tensor | None = None
        for letters, tensor in zip(inputs.split(","), tensors, strict=True):
            atoms = self.labels.current(tensor)
            if atoms is None:
                continue
            foreign = {
                letter
                for its, t in zip(inputs.split(","), tensors, strict=True)
                for letter in its
                if self.labels.label(t) is None
            }
            for dim, letter in enumerate(letters):
                if letter not in output or letter in foreign:
                    atoms = self.labels.atoms.join_along(atoms, dim)
            kept = [letters.index(c) for c in output if c in letters]
            gone = [d for d, c in enumerate(letters) if c not in output]
            shape = [atoms.shape[letters.index(c)] if c in letters else 1 for c in output]
            result = self.labels.both(result, atoms.permute(*kept, *gone).reshape(shape))
        self.labels.put(out, result)

    def do_scaled_dot_product_attention(
        self,
        out: Any,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *_: Any,
        enable_gqa: bool = False,
        **__: Any,
    ) -> None:
        heads = query.shape[-3] if query.dim() > 2 else 1
        labels: list[torch.Tensor | None] = []
        for tensor in (query, key, value):
            atoms = self.labels.current(tensor)
            if atoms is not None:
                for other in (query, key, value, attn_mask):
                    if other is not None and self.labels.label(other) is None:
                        atoms = self._beside(atoms, tensor, other)
                atoms = self.labels.atoms.join_along(atoms, -2)
                if tensor is not value:
                    atoms = self.labels.atoms.join_along(atoms, -1)
                if enable_gqa and tensor.dim() > 2 and atoms.shape[-3] > 1:
                    atoms = atoms.repeat_interleave(heads // tensor.shape[-3], -3)
            labels.append(atoms)
        self.labels.put(out, self.labels.both(self.labels.both(labels[0], labels[1]), labels[2]))

    def do_multi_head_attention_forward(
        self,
        out: Any,
        query: Any,
        key: Any,
        value: Any,
        embed_dim_to_check: int,
        num_heads: int,
        in_proj_weight: Any,
        in_proj_bias: Any,
        bias_k: Any,
        bias_v: Any,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: Any,
        out_proj_bias: Any,
        **more: Any,
    ) -> None:
        """`nn.MultiheadAttention`: its heads are dealt, what goes in and out stays whole."""
        self.labels.keep_whole((query, key, value), "attention reads it")
        known = self._attention.get(id(out_proj_weight))
        if known is None or bias_k is not None or add_zero_attn:
            return
        size = embed_dim_to_check // num_heads
        if known[0] in self.labels.found.heads:
            return
        heads = self.labels.atoms.fresh(num_heads, f"{known[0]}\theads")
        each = heads.repeat_interleave(size)
        if in_proj_weight is not None:
            self.labels.axis(in_proj_weight, 0, each.repeat(3), inward=False)
        else:
            for part in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.labels.axis(more[part], 0, each, inward=False)
        if in_proj_bias is not None:
            self.labels.axis(in_proj_bias, 0, each.repeat(3), inward=False)
        self.labels.axis(out_proj_weight, 1, each, inward=True)
        self.labels.found.heads[known[0]] = (size, heads)
