"""Watches a model run once and follows the indices of its axes through it.

Not a graph: the model's own code runs on an example, and every torch function it calls passes
through here (`TorchFunctionMode`). So any Python control flow is fine, and modules need not be
known by their class: a Linear, a subclass of it and `F.linear` are the same call.

With each tensor goes an array of atoms that broadcasts to its shape: which atom each element
belongs to. Functions that only move elements are applied to that array as to the tensor. Layers
that sum over an axis with their own weights (Linear, Conv) may get a part of it only, for a part of
the sum is still a sum: the columns of their weight get the atoms, and new ones are made for the
rows. Whatever else mixes along an axis (softmax, norms, products of activations) joins its atoms. A
function that is not known keeps all it touches shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from murmurate.core.partition.atoms import SHARED, Atoms

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


class Spread(TorchFunctionMode):
    """Runs over one model; what it found is in `found` and `atoms`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.atoms = Atoms()
        self.found = Found()
        self.names = _names(model)
        self._labels: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._made_by: dict[int, tuple[torch.Tensor, str]] = {}
        self._attention = {
            id(m.out_proj.weight): (path, m)
            for path, m in model.named_modules()
            if isinstance(m, nn.MultiheadAttention)
        }

    # -- labels ----------------------------------------------------------------------------------

    def label(self, tensor: object) -> torch.Tensor | None:
        """The atoms of a tensor's elements; None: nothing in it is dealt."""
        held = self._labels.get(id(tensor))
        return held[1] if held is not None else None

    def _put(self, tensor: object, atoms: torch.Tensor | None) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        if atoms is None:
            self._labels.pop(id(tensor), None)
            return
        shape = tensor.shape
        if atoms.dim() < len(shape):
            atoms = atoms.reshape((1,) * (len(shape) - atoms.dim()) + tuple(atoms.shape))
        self._labels[id(tensor)] = (tensor, _compressed(atoms))  # kept alive: ids are used again

    def _current(self, tensor: object) -> torch.Tensor | None:
        """The same, with what was joined meanwhile taken for one."""
        atoms = self.label(tensor)
        return None if atoms is None else _compressed(self.atoms.roots(atoms))

    def keep_whole(self, value: object, why: str) -> None:
        """Everything labelled in here is shared from now on."""
        for tensor in _tensors(value):
            atoms = self.label(tensor)
            if atoms is not None:
                self._share(atoms, why)

    def _share(self, atoms: torch.Tensor, why: str) -> None:
        self._because(atoms, why)
        self.atoms.share(atoms)

    def _because(self, atoms: torch.Tensor, why: str) -> None:
        for source in self.atoms.sources(atoms):
            self.found.reasons.setdefault(source, why)

    def _only(self, atoms: torch.Tensor, axis: int) -> torch.Tensor:
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

    # -- the mode --------------------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            if isinstance(out, torch.Tensor) and self.label(args[0]) is not None:
                self._property(func, args[0], out)
            return out
        if name == "__setitem__":
            self.keep_whole(args, "elements of it are assigned")
            return out
        if any(True for _ in _tensors(out)):
            self._rule(name, func, args, kwargs, out)
        return out

    def _property(self, func: Callable[..., Any], source: torch.Tensor, out: torch.Tensor) -> None:
        atoms = self.label(source)
        assert atoms is not None
        turned: tuple[Any, ...] = (torch.Tensor.T, torch.Tensor.mT)
        data: Any = torch.Tensor.data
        for view in turned:
            if func == view.__get__:
                self._put(out, func(atoms.expand(source.shape)))
                return
        if func == data.__get__:
            self._put(out, atoms)
        else:
            self.keep_whole(source, "a property of it is used")

    def _rule(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> None:
        rule: Callable[..., None] | None = getattr(self, f"_do_{name.strip('_')}", None)
        labelled = any(self.label(t) is not None for t in _tensors((args, kwargs)))
        if rule is not None:
            rule(out, *args, **kwargs)
        elif not labelled:
            return
        elif name in MOVES:
            self._move(name, func, args, kwargs, out)
        elif name in ALONE:
            self._put(out, self.label(args[0] if args else kwargs["input"]))
        elif name in PAIRS:
            self._pair(name, args, out)
        elif name in REDUCTIONS or name in ALONG:
            self._along(name, args, kwargs, out)
        elif name in POOLS:
            self._pool(args, kwargs, out)
        else:
            self.keep_whole((args, kwargs), f"{name}() is not known")

    # -- elements that move, meet or are summed ----------------------------------------------------

    def _move(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> None:
        if name in CASTS:
            self._put(out, self.label(args[0]))
            return

        def swap(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim():
                atoms = self.label(value)
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
            self._put(out, moved)
        else:
            for tensor, atoms in zip(out, moved, strict=True):
                self._put(tensor, atoms)

    def _pair(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        result: torch.Tensor | None = None
        for tensor in _tensors(args):
            atoms = self._current(tensor)
            if atoms is None:
                continue
            for other in _tensors(args):
                if self.label(other) is None:
                    atoms = self._meet(atoms, other, out.dim())
            if result is None:
                result = atoms
                continue
            a, b = self.atoms.sources(result), self.atoms.sources(atoms)
            if name in SUMS and a != b:
                # Two layers' results are added: a residual stream. It stays whole, or all layers
                # on it would have to be cut alike and every peer would lose most of the stream.
                for both in (result, atoms):
                    self._share(both, "a residual stream: results of several layers are added")
            result = self._both(result, atoms)
        self._put(out, result)

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
            if alone and id(other) in self.names:
                self.axis(other, dim - offset, atoms.reshape(-1), inward=False)
            else:
                self._because(atoms, "it meets a tensor that is not split, element by element")
                atoms = self.atoms.join_along(atoms, dim)
        return atoms

    def _along(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """The axes that `dim` names (all, if it names none) are mixed."""
        source = args[0] if args else kwargs["input"]
        atoms = self.label(source)
        if atoms is None or name == "glu":
            self.keep_whole(source, f"{name}() mixes it")
            return
        default = 1 if name in ("softmax", "log_softmax", "normalize") else None
        dims = kwargs.get("dim", args[1] if len(args) > 1 else default)
        if name == "norm" or name == "normalize":
            dims = kwargs.get("dim", args[2] if len(args) > 2 else default)
        if not isinstance(dims, int | list | tuple | torch.Size):
            dims = range(source.dim())
        axes = {d % source.dim() for d in ([dims] if isinstance(dims, int) else dims)}
        for dim in axes:
            atoms = self.atoms.join_along(atoms, dim)
        if name in REDUCTIONS and isinstance(out, torch.Tensor) and out.dim() < source.dim():
            atoms = atoms.reshape([s for d, s in enumerate(atoms.shape) if d not in axes])
        self._put(out, atoms)

    def _pool(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        source = args[0] if args else kwargs["input"]
        atoms = self.label(source)
        tensors = list(_tensors(out))
        if atoms is None:
            return
        for dim in range(atoms.dim()):
            if source.shape[dim] != tensors[0].shape[dim] or dim >= 2:
                atoms = self.atoms.join_along(atoms, dim)
        for tensor in tensors:
            self._put(tensor, atoms)

    # -- layers ------------------------------------------------------------------------------------

    def _do_linear(
        self,
        out: Any,
        input: Any,  # noqa: A002 (torch's names)
        weight: Any,
        bias: Any = None,
    ) -> None:
        self._layer(out, input, -1, weight, (0, 1), bias)

    def _layer(
        self, out: Any, source: Any, axis: int, weight: Any, axes: tuple[int, int], bias: Any
    ) -> None:
        """`axes`: of the weight, first the one of the result, then the one that is summed over."""
        if id(weight) not in self.names:
            self.keep_whole((source, weight, bias), "it meets a weight that is computed")
            return
        atoms = self._current(source)
        if atoms is not None:
            if atoms.shape[axis] == 1 and atoms.numel() > 1 and out.dim() == source.dim():
                # One small layer for all units (say, for each head): the layer stays whole.
                self._whole_layer(weight, bias)
                self._put(out, atoms)
                return
            self.axis(weight, axes[1], self._only(atoms, axis), inward=True)
        rows = self.axis(weight, axes[0], None, inward=False)
        assert rows is not None
        if bias is not None and self.axis(bias, 0, rows, inward=False) is None:
            self.atoms.share(rows)
        shape = [1] * out.dim()
        shape[axis % out.dim()] = out.shape[axis]
        self._put(out, rows.reshape(shape))
        self._made_by[id(out)] = (out, self.names[id(weight)])

    def _whole_layer(self, *tensors: Any) -> None:
        for tensor in tensors:
            if tensor is not None:
                for axis in range(tensor.dim()):
                    atoms = self.axis(tensor, axis, None, inward=False)
                    if atoms is not None:
                        self._share(atoms, "one layer for all units")

    def _conv(
        self, out: Any, source: Any, weight: Any, bias: Any, groups: int, *, transposed: bool
    ) -> None:
        axis = 1 if out.dim() == weight.dim() else 0  # without a batch
        if groups == 1:
            self._layer(out, source, axis, weight, (1, 0) if transposed else (0, 1), bias)
            return
        if transposed or id(weight) not in self.names:
            self.keep_whole((source, weight, bias), "a grouped convolution that is not known")
            return
        rows = self.axis(weight, 0, None, inward=False)
        assert rows is not None
        joined = self.atoms.join_along(rows.reshape(groups, -1), 1)
        atoms = self.label(source)
        if atoms is None:
            self.atoms.share(rows)
        else:
            columns = self._only(atoms, axis).expand(source.shape[axis])
            self.atoms.join(self.atoms.join_along(columns.reshape(groups, -1), 1), joined)
        if bias is not None:
            self.axis(bias, 0, rows, inward=False)
        shape = [1] * out.dim()
        shape[axis] = out.shape[axis]
        self._put(out, rows.reshape(shape))

    def _do_conv1d(
        self,
        out: Any,
        input: Any,  # noqa: A002
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        self._conv(out, input, weight, bias, groups, transposed=False)

    _do_conv2d = _do_conv1d
    _do_conv3d = _do_conv1d

    def _do_conv_transpose1d(
        self,
        out: Any,
        input: Any,  # noqa: A002
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> None:
        self._conv(out, input, weight, bias, groups, transposed=True)

    _do_conv_transpose2d = _do_conv_transpose1d
    _do_conv_transpose3d = _do_conv_transpose1d

    def _do_embedding(self, out: Any, input: Any, weight: Any, *_: Any, **__: Any) -> None:  # noqa: A002
        columns = self.axis(weight, 1, None, inward=False)
        if columns is not None:
            self._put(out, columns)

    def _do_batch_norm(
        self,
        out: Any,
        input: Any,  # noqa: A002
        running_mean: Any = None,
        running_var: Any = None,
        weight: Any = None,
        bias: Any = None,
        *_: Any,
        **__: Any,
    ) -> None:
        atoms = self.label(input)
        if atoms is None:
            return
        channels = self._only(atoms, 1)
        for tensor in (running_mean, running_var, weight, bias):
            if tensor is not None:
                self.axis(tensor, 0, channels, inward=False)
        self._normed(input)
        self._put(out, channels.reshape(1, -1, *(1,) * (out.dim() - 2)))

    def _do_group_norm(
        self,
        out: Any,
        input: Any,  # noqa: A002
        num_groups: int,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> None:
        atoms = self.label(input)
        if atoms is None:
            return
        channels = self._only(atoms, 1).expand(input.shape[1])
        self.atoms.join_along(channels.reshape(num_groups, -1), 1)
        for tensor in (weight, bias):
            if tensor is not None:
                self.axis(tensor, 0, channels, inward=False)
        self._normed(input)
        self._put(out, channels.reshape(1, -1, *(1,) * (out.dim() - 2)))

    def _do_layer_norm(
        self,
        out: Any,
        input: Any,  # noqa: A002
        normalized_shape: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        atoms = self._current(input)
        self._normed(input)
        if atoms is None:
            return
        for dim in range(out.dim() - len(normalized_shape), out.dim()):
            if atoms.shape[dim] > 1:  # the mean is over all: it cannot be had from some of them
                self._because(atoms, "a LayerNorm is over it")
                atoms = self.atoms.join_along(atoms, dim)
        self._put(out, atoms)

    _do_rms_norm = _do_layer_norm

    def _do_prelu(self, out: Any, input: Any, weight: Any) -> None:  # noqa: A002
        atoms = self.label(input)
        if atoms is not None:
            if weight.numel() > 1:
                self.axis(weight, 0, self._only(atoms, 1), inward=False)
            self._put(out, atoms)

    def _normed(self, source: Any) -> None:
        made = self._made_by.get(id(source))
        if made is not None:
            self.found.normed.add(made[1])

    # -- products of activations -------------------------------------------------------------------

    def _do_matmul(self, out: Any, a: Any, b: Any) -> None:
        if id(b) in self.names and b.dim() == 2:
            self._layer(out, a, -1, b, (1, 0), None)
            return
        if id(a) in self.names or id(b) in self.names or min(a.dim(), b.dim()) < 2:
            self.keep_whole((a, b), "a product with a bare parameter")
            return
        left, right = self._current(a), self._current(b)
        if left is not None:
            left = self.atoms.join_along(left, -1)
            left = self._beside(left, a, b) if right is None else left
        if right is not None:
            right = self.atoms.join_along(right, -2)
            right = self._beside(right, b, a) if left is None else right
        self._put(out, self._both(left, right))

    def _beside(self, atoms: torch.Tensor, mine: Any, other: Any) -> torch.Tensor:
        """In a product with a tensor that is not dealt: axes that only go along in both."""
        for dim in range(3, min(mine.dim(), other.dim()) + 1):
            if atoms.shape[-dim] > 1 and other.shape[-dim] > 1:
                atoms = self.atoms.join_along(atoms, -dim)
        return atoms

    _do_bmm = _do_matmul

    def _do_rmatmul(self, out: Any, b: Any, a: Any) -> None:
        self._do_matmul(out, a, b)

    def _both(self, a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
        if a is None or b is None:
            return b if a is None else a
        self.atoms.join(a, b)
        return torch.where(torch.ones_like(b, dtype=torch.bool), a, b)

    def _do_einsum(self, out: Any, equation: str, *operands: Any) -> None:
        tensors = list(_tensors(operands))
        if all(self.label(t) is None for t in tensors):
            return
        inputs, arrow, output = equation.replace(" ", "").partition("->")
        if not arrow or "." in equation or any(id(t) in self.names for t in tensors):
            self.keep_whole(operands, "an einsum with a bare parameter, dots or no arrow")
            return
        result: torch.Tensor | None = None
        for letters, tensor in zip(inputs.split(","), tensors, strict=True):
            atoms = self._current(tensor)
            if atoms is None:
                continue
            foreign = {
                letter
                for its, t in zip(inputs.split(","), tensors, strict=True)
                for letter in its
                if self.label(t) is None
            }
            for dim, letter in enumerate(letters):
                if letter not in output or letter in foreign:
                    atoms = self.atoms.join_along(atoms, dim)
            kept = [letters.index(c) for c in output if c in letters]
            gone = [d for d, c in enumerate(letters) if c not in output]
            shape = [atoms.shape[letters.index(c)] if c in letters else 1 for c in output]
            result = self._both(result, atoms.permute(*kept, *gone).reshape(shape))
        self._put(out, result)

    def _do_scaled_dot_product_attention(
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
            atoms = self._current(tensor)
            if atoms is not None:
                for other in (query, key, value, attn_mask):
                    if other is not None and self.label(other) is None:
                        atoms = self._beside(atoms, tensor, other)
                atoms = self.atoms.join_along(atoms, -2)
                if tensor is not value:
                    atoms = self.atoms.join_along(atoms, -1)
                if enable_gqa and tensor.dim() > 2 and atoms.shape[-3] > 1:
                    atoms = atoms.repeat_interleave(heads // tensor.shape[-3], -3)
            labels.append(atoms)
        self._put(out, self._both(self._both(labels[0], labels[1]), labels[2]))

    def _do_multi_head_attention_forward(
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
        self.keep_whole((query, key, value), "attention reads it")
        known = self._attention.get(id(out_proj_weight))
        if known is None or bias_k is not None or add_zero_attn:
            return
        size = embed_dim_to_check // num_heads
        if known[0] in self.found.heads:
            return
        heads = self.atoms.fresh(num_heads, f"{known[0]}\theads")
        each = heads.repeat_interleave(size)
        if in_proj_weight is not None:
            self.axis(in_proj_weight, 0, each.repeat(3), inward=False)
        else:
            for part in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.axis(more[part], 0, each, inward=False)
        if in_proj_bias is not None:
            self.axis(in_proj_bias, 0, each.repeat(3), inward=False)
        self.axis(out_proj_weight, 1, each, inward=True)
        self.found.heads[known[0]] = (size, heads)


def _names(model: nn.Module) -> dict[int, str]:
    """Parameters and buffers by identity; a tied one has its first name."""
    names: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        names.setdefault(id(tensor), name)
    return names


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _compressed(atoms: torch.Tensor) -> torch.Tensor:
    """Size 1 along every axis on which nothing differs."""
    for dim, size in enumerate(atoms.shape):
        if size > 1:
            first = atoms.narrow(dim, 0, 1)
            if bool((atoms == first).all()):
                atoms = first
    return atoms
