"""Layers with weights of their own: linear, convolutions, embeddings, norms.

A layer that sums over an axis with its own weights may get a part of it only, for a part of the sum
is still a sum: the columns of its weight get the atoms of what comes in, and new ones are made for
the rows. `do_…` are torch's functions by their names, called with what they returned and with what
they were given.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate.core.partition.labels import Labels


class LayerRules:
    """What a layer does to atoms."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._made_by: dict[int, tuple[torch.Tensor, str]] = {}

    def do_linear(
        self,
        out: Any,
        input: Any,  # noqa: A002 (torch's names)
        weight: Any,
        bias: Any = None,
    ) -> None:
        self.layer(out, input, -1, weight, (0, 1), bias)

    def layer(
        self, out: Any, source: Any, axis: int, weight: Any, axes: tuple[int, int], bias: Any
    ) -> None:
        """`axes`: of the weight, first the one of the result, then the one that is summed over."""
        if id(weight) not in self.labels.names:
            self.labels.keep_whole((source, weight, bias), "it meets a weight that is computed")
            return
        atoms = self.labels.current(source)
        if atoms is not None:
            if atoms.shape[axis] == 1 and atoms.numel() > 1 and out.dim() == source.dim():
                # One small layer for all units (say, for each head): the layer stays whole.
                self._whole_layer(weight, bias)
                self.labels.put(out, atoms)
                return
            self.labels.axis(weight, axes[1], self.labels.only(atoms, axis), inward=True)
        rows = self.labels.axis(weight, axes[0], None, inward=False)
        assert rows is not None
        if bias is not None and self.labels.axis(bias, 0, rows, inward=False) is None:
            self.labels.atoms.share(rows)
        shape = [1] * out.dim()
        shape[axis % out.dim()] = out.shape[axis]
        self.labels.put(out, rows.reshape(shape))
        self._made_by[id(out)] = (out, self.labels.names[id(weight)])

    def _whole_layer(self, *tensors: Any) -> None:
        for tensor in tensors:
            if tensor is not None:
                for axis in range(tensor.dim()):
                    atoms = self.labels.axis(tensor, axis, None, inward=False)
                    if atoms is not None:
                        self.labels.share(atoms, "one layer for all units")

    def _conv(
        self, out: Any, source: Any, weight: Any, bias: Any, groups: int, *, transposed: bool
    ) -> None:
        axis = 1 if out.dim() == weight.dim() else 0  # without a batch
        if groups == 1:
            self.layer(out, source, axis, weight, (1, 0) if transposed else (0, 1), bias)
            return
        if transposed or id(weight) not in self.labels.names:
            self.labels.keep_whole(
                (source, weight, bias), "a grouped convolution that is not known"
            )
            return
        rows = self.labels.axis(weight, 0, None, inward=False)
        assert rows is not None
        joined = self.labels.atoms.join_along(rows.reshape(groups, -1), 1)
        atoms = self.labels.label(source)
        if atoms is None:
            self.labels.atoms.share(rows)
        else:
            columns = self.labels.only(atoms, axis).expand(source.shape[axis])
            self.labels.atoms.join(
                self.labels.atoms.join_along(columns.reshape(groups, -1), 1), joined
            )
        if bias is not None:
            self.labels.axis(bias, 0, rows, inward=False)
        shape = [1] * out.dim()
        shape[axis] = out.shape[axis]
        self.labels.put(out, rows.reshape(shape))

    def do_conv1d(
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

    do_conv2d = do_conv1d
    do_conv3d = do_conv1d

    def do_conv_transpose1d(
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

    do_conv_transpose2d = do_conv_transpose1d
    do_conv_transpose3d = do_conv_transpose1d

    def do_embedding(self, out: Any, input: Any, weight: Any, *_: Any, **__: Any) -> None:  # noqa: A002
        columns = self.labels.axis(weight, 1, None, inward=False)
        if columns is not None:
            self.labels.put(out, columns)

    def do_batch_norm(
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
        atoms = self.labels.label(input)
        if atoms is None:
            return
        channels = self.labels.only(atoms, 1)
        for tensor in (running_mean, running_var, weight, bias):
            if tensor is not None:
                self.labels.axis(tensor, 0, channels, inward=False)
        self._normed(input)
        self.labels.put(out, channels.reshape(1, -1, *(1,) * (out.dim() - 2)))

    def do_group_norm(
        self,
        out: Any,
        input: Any,  # noqa: A002
        num_groups: int,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> None:
        atoms = self.labels.label(input)
        if atoms is None:
            return
        channels = self.labels.only(atoms, 1).expand(input.shape[1])
        self.labels.atoms.join_along(channels.reshape(num_groups, -1), 1)
        for tensor in (weight, bias):
            if tensor is not None:
                self.labels.axis(tensor, 0, channels, inward=False)
        self._normed(input)
        self.labels.put(out, channels.reshape(1, -1, *(1,) * (out.dim() - 2)))

    def do_layer_norm(
        self,
        out: Any,
        input: Any,  # noqa: A002
        normalized_shape: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        atoms = self.labels.current(input)
        self._normed(input)
        if atoms is None:
            return
        for dim in range(out.dim() - len(normalized_shape), out.dim()):
            if atoms.shape[dim] > 1:  # the mean is over all: it cannot be had from some of them
                self.labels.because(atoms, "a LayerNorm is over it")
                atoms = self.labels.atoms.join_along(atoms, dim)
        self.labels.put(out, atoms)

    do_rms_norm = do_layer_norm

    def do_prelu(self, out: Any, input: Any, weight: Any) -> None:  # noqa: A002
        atoms = self.labels.label(input)
        if atoms is not None:
            if weight.numel() > 1:
                self.labels.axis(weight, 0, self.labels.only(atoms, 1), inward=False)
            self.labels.put(out, atoms)

    def _normed(self, source: Any) -> None:
        made = self._made_by.get(id(source))
        if made is not None:
            self.labels.found.normed.add(made[1])
