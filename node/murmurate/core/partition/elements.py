"""Functions of single elements: those that move, meet, or are summed along an axis.

Functions that only move elements are applied to the atoms as to the tensor. Whatever mixes along an
axis (softmax, reductions) joins its atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from murmurate.core.partition.atoms import SHARED
from murmurate.core.partition.labels import Labels, tensors_in

# fmt: off
MOVES = frozenset({
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "view_as",
    "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "adjoint", "expand",
    "expand_as", "repeat", "repeat_interleave", "tile", "chunk", "split", "tensor_split", "unbind",
    "select", "narrow", "__getitem__", "cat", "concat", "concatenate", "stack", "roll", "flip",
    "clone", "detach", "to", "type_as", "float", "double", "half", "bfloat16", "broadcast_to",
    "hstack", "vstack", "dstack", "split_with_sizes", "ravel", "reshape_as", "atleast_2d",
    "pixel_unshuffle",
})
"""Only put elements elsewhere."""
CASTS = frozenset({"to", "type_as", "float", "double", "half", "bfloat16", "detach", "clone"})
ALONE = frozenset({
    "relu", "relu6", "gelu", "silu", "tanh", "sigmoid", "elu", "selu", "celu", "leaky_relu", "mish",
    "softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "tanhshrink",
    "dropout", "feature_dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "exp",
    "log", "log1p", "sqrt", "rsqrt", "square", "abs", "neg", "__neg__", "sin", "cos", "erf",
    "clamp", "clamp_min", "clamp_max", "reciprocal", "sign", "round", "floor", "__abs__", "relu_",
    "silu_",
    "nan_to_num", "identity", "requires_grad_", "positive", "__pos__", "expm1", "threshold",
})
"""Each element for itself."""
SUMS = frozenset({"add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__rsub__",
                  "__isub__", "sub_", "rsub"})
PAIRS = SUMS | {
    "mul", "__mul__", "__rmul__", "__imul__", "mul_", "div", "__truediv__", "__rtruediv__",
    "__itruediv__", "div_", "pow", "__pow__", "__rpow__", "maximum", "minimum", "where",
    "masked_fill", "masked_fill_", "lerp", "addcmul", "prelu", "multiply", "divide", "true_divide",
}
"""Several elements that stand at the same place."""
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "var", "std", "norm", "logsumexp", "prod",
                        "nanmean", "all", "any"})
ALONG = frozenset({"softmax", "log_softmax", "cumsum", "normalize", "_softmax", "glu"})
POOLS = frozenset({
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "lp_pool1d", "lp_pool2d", "interpolate", "pad",
    "boolean_dispatch", "_max_pool1d", "_max_pool2d", "_max_pool3d", "instance_norm",
})
"""Mix within a channel, never between channels."""
# fmt: on


class ElementRules:
    """What becomes of the atoms of a function's arguments, by the function's name."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels

    def apply(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> bool:
        """False: no such function is known here."""
        if name in MOVES:
            self._move(name, func, args, kwargs, out)
        elif name in ALONE:
            self.labels.put(out, self.labels.label(args[0] if args else kwargs["input"]))
        elif name in PAIRS:
            self._pair(name, args, out)
        elif name in REDUCTIONS or name in ALONG:
            self._along(name, args, kwargs, out)
        elif name in POOLS:
            self._pool(args, kwargs, out)
        else:
            return False
        return True

    def _move(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> None:
        if name in CASTS:
            self.labels.put(out, self.labels.label(args[0]))
            return

        def swap(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim():
                atoms = self.labels.label(value)
                if atoms is None and not value.is_floating_point():
                    return value  # an index
                if atoms is None:
                    atoms = torch.full((1,) * value.dim(), SHARED)
                return atoms.expand(value.shape).contiguous()  # or it cannot be viewed
            if type(value) in (list, tuple):
                return type(value)(swap(v) for v in value)
            return value

        moved = func(*swap(args), **{k: swap(v) for k, v in kwargs.items()})
        if isinstance(out, torch.Tensor):
            self.labels.put(out, moved)
        else:
            for tensor, atoms in zip(out, moved, strict=True):
                self.labels.put(tensor, atoms)

    def _pair(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        result: torch.Tensor | None = None
        for tensor in tensors_in(args):
            atoms = self.labels.current(tensor)
            if atoms is None:
                continue
            for other in tensors_in(args):
                if self.labels.label(other) is None:
                    atoms = self._meet(atoms, other, out.dim())
            if result is None:
                result = atoms
                continue
            a, b = self.labels.atoms.sources(result), self.labels.atoms.sources(atoms)
            if name in SUMS and a != b:
                # Two layers' results are added: a residual stream. It stays whole, or all layers
                # on it would have to be cut alike and every peer would lose most of the stream.
                for both in (result, atoms):
                    self.labels.share(
                        both, "a residual stream: results of several layers are added"
                    )
            result = self.labels.both(result, atoms)
        self.labels.put(out, result)

    def _meet(self, atoms: torch.Tensor, other: torch.Tensor, dims: int) -> torch.Tensor:
        """Element by element with a tensor that is not dealt.

        A parameter (a scale, a bias, positions) is cut along the same axis. Whatever else differs
        along a dealt axis cannot be cut: the axis is whole then.
        """
        atoms = atoms.reshape((1,) * (dims - atoms.dim()) + tuple(atoms.shape))
        offset = dims - other.dim()
        for dim in range(max(0, offset), dims):
            if other.shape[dim - offset] == 1 or atoms.shape[dim] == 1:
                continue
            alone = all(size == 1 for d, size in enumerate(atoms.shape) if d != dim)
            if alone and id(other) in self.labels.names:
                self.labels.axis(other, dim - offset, atoms.reshape(-1), inward=False)
            else:
                self.labels.because(
                    atoms, "it meets a tensor that is not split, element by element"
                )
                atoms = self.labels.atoms.join_along(atoms, dim)
        return atoms

    def _along(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """The axes that `dim` names (all, if it names none) are mixed."""
        source = args[0] if args else kwargs["input"]
        atoms = self.labels.label(source)
        if atoms is None or name == "glu":
            self.labels.keep_whole(source, f"{name}() mixes it")
            return
        default = 1 if name in ("softmax", "log_softmax", "normalize") else None
        dims = kwargs.get("dim", args[1] if len(args) > 1 else default)
        if name == "norm" or name == "normalize":
            dims = kwargs.get("dim", args[2] if len(args) > 2 else default)
        if not isinstance(dims, int | list | tuple | torch.Size):
            dims = range(source.dim())
        axes = {d % source.dim() for d in ([dims] if isinstance(dims, int) else dims)}
        for dim in axes:
            atoms = self.labels.atoms.join_along(atoms, dim)
        if name in REDUCTIONS and isinstance(out, torch.Tensor) and out.dim() < source.dim():
            atoms = atoms.reshape([s for d, s in enumerate(atoms.shape) if d not in axes])
        self.labels.put(out, atoms)

    def _pool(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        source = args[0] if args else kwargs["input"]
        atoms = self.labels.label(source)
        tensors = list(tensors_in(out))
        if atoms is None:
            return
        for dim in range(atoms.dim()):
            if source.shape[dim] != tensors[0].shape[dim] or dim >= 2:
                atoms = self.labels.atoms.join_along(atoms, dim)
        for tensor in tensors:
            self.labels.put(tensor, atoms)
