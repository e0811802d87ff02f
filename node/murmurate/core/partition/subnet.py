"""A subnet: the same model with smaller layers. It trains by itself, with an optimizer of its own.

It is a deep copy of the model, of the same class, whose tensors are parts of the whole's, under the
same names. What is added to it are factors on partial sums (see `Scaled`), and a narrow form of
`nn.MultiheadAttention`, which torch's own cannot be.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from murmurate.core.partition import rewrite
from murmurate.core.partition.attention import NarrowAttention
from murmurate.core.partition.structure import Held, Indices, Structure, Tensor
from murmurate.errors import ConfigError

Weights = Mapping[str, torch.Tensor]
"""Parameters and buffers by name, each once."""


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a model as they are, not copied. Buffers that are not saved are left out:
    they follow from the model's settings."""
    out: dict[str, torch.Tensor] = dict(model.named_parameters())
    if buffers := dict(model.named_buffers()):
        saved = model.state_dict(keep_vars=True).keys()
        out.update((name, b) for name, b in buffers.items() if name in saved)
    return out


def take(value: torch.Tensor, kept: tuple[Indices | None, ...]) -> torch.Tensor:
    """A new tensor: these indices of each axis."""
    out = value
    for axis, indices in enumerate(kept):
        if indices is not None:
            out = out.index_select(axis, torch.from_numpy(indices))
    return out.clone() if out is value else out


def part_of(weights: Weights, structure: Structure, held: Held) -> dict[str, torch.Tensor]:
    """What a peer with these units gets of the full weights: copies."""
    with torch.no_grad():
        return {
            name: take(weights[name].detach(), tensor.kept(held))
            for name, tensor in structure.tensors.items()
        }


def cut(model: nn.Module, structure: Structure, held: Held, *, scale: bool = True) -> nn.Module:
    """A subnet with these units, and the model's own values of them.

    `scale`: multiply partial sums in training, as F10 of the algorithms page asks for.
    """
    return build(model, structure, held, part_of(weights_of(model), structure, held), scale=scale)


def build(
    model: nn.Module, structure: Structure, held: Held, values: Weights, *, scale: bool = True
) -> nn.Module:
    """A subnet with these units around these values, which are its own from now on.

    Nothing is taken from the tensors of the model, which may be on the meta device: so whoever has
    only room for the subnet needs no more.
    """
    for group in structure.groups:
        if not structure.width(group, held):
            raise ConfigError(f"subnet: no unit of {group.name}: it needs at least one")
    subnet = _copied(model, values)
    with torch.no_grad():
        for path, (size, units) in structure.heads.items():
            if (units >= 0).all():
                _replace(subnet, path, NarrowAttention.of(_at(subnet, path), size))
        if scale:
            _scale(subnet, structure, held)
    if structure.rewrites:
        return rewrite.rewritten(subnet, structure.rewrites, held)
    return subnet


def hollow(model: nn.Module) -> nn.Module:
    """The model on the meta device: shapes without values. Nothing is copied on the way."""
    empty = {name: t.detach().to("meta") for name, t in weights_of(model).items()}
    return _copied(model, empty).to("meta")


def load(subnet: nn.Module, values: Weights) -> None:
    """Write values into a subnet of the same shapes."""
    write(weights_of(subnet), values)


def write(mine: Weights, values: Weights) -> None:
    """Write values into tensors of the same shapes."""
    with torch.no_grad():
        for name, value in values.items():
            mine[name].copy_(value)


def masked(model: nn.Module, structure: Structure, held: Held) -> nn.Module:
    """The whole model without the units that are not held: zeros where layers sum over them."""
    whole = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in weights_of(whole).items():
            tensor = structure.tensors[name]
            for axis, (units, inward) in enumerate(zip(tensor.axes, tensor.inward, strict=True)):
                if units is not None and inward:
                    gone = np.flatnonzero((units >= 0) & ~held[units])
                    value.index_fill_(axis, torch.from_numpy(gone), 0.0)
    return whole


class Scaled:
    """A hook: the partial sum of a layer that got h of H units is sqrt(H / h) times as large.

    Without it a subnet learns for sums of h terms what is then used in sums of H. Measured on
    FashionMNIST, a perceptron for 8 peers: 63 % without, 80 % with it (82 % for one peer alone).
    Not where a norm follows, which undoes it, and not in evaluation. It is the input that is
    multiplied: a bias is no part of the sum.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not module.training:
            return None
        return (args[0] * self.factor, *args[1:])


def _scale(subnet: nn.Module, structure: Structure, held: Held) -> None:
    for name, tensor in structure.tensors.items():
        path, _, leaf = name.rpartition(".")
        if leaf != "weight" or name in structure.normed:
            continue
        for units, inward in zip(tensor.axes, tensor.inward, strict=True):
            if units is None or not inward:
                continue
            kept = int(((units < 0) | held[units]).sum())
            if kept < len(units):
                factor = math.sqrt(len(units) / kept)
                layer = _at(subnet, path)
                if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
                    parent, _, _ = path.rpartition(".")
                    owner = _at(subnet, parent)
                    if isinstance(owner, NarrowAttention):
                        owner.factor = factor
                        continue
                layer.register_forward_pre_hook(Scaled(factor))


# -- making layers smaller -------------------------------------------------------------------------


def _copied(model: nn.Module, values: Weights) -> nn.Module:
    """A deep copy with these tensors in place of its own; a tied one stays tied."""
    instead: dict[int, Any] = {}  # what deepcopy takes to be copied already
    for name, tensor in weights_of(model).items():
        value = values[name].detach()
        if isinstance(tensor, nn.Parameter):
            value = nn.Parameter(value, requires_grad=tensor.requires_grad)
        instead[id(tensor)] = value
    subnet = copy.deepcopy(model, instead)
    for module in subnet.modules():
        _resize(module)
    return subnet


def _resize(module: nn.Module) -> None:
    """Let a layer's numbers say what its tensors are."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = weight.shape[1]
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        module.num_features = weight.shape[0]
    elif isinstance(module, nn.GroupNorm):
        size = module.num_channels // module.num_groups
        module.num_channels = weight.shape[0]
        module.num_groups = weight.shape[0] // size
    elif isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.conv._ConvNd):
        rows = weight.shape[0]
        if module.groups > 1:
            module.groups = module.groups * rows // module.out_channels
        module.out_channels, module.in_channels = rows, weight.shape[1] * module.groups


def _at(model: nn.Module, path: str) -> nn.Module:
    return model.get_submodule(path)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def named(structure: Structure) -> Iterator[Tensor]:
    yield from structure.tensors.values()
