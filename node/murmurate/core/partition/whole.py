"""A model of which nothing is dealt: everybody holds all of it. For hubs, whose members may train
models that no axis of can be found in; nothing is traced, and no example is needed."""

from __future__ import annotations

from torch import nn

from murmurate.core.partition.structure import Structure, Tensor
from murmurate.core.partition.subnet import weights_of


def whole_structure(model: nn.Module) -> Structure:
    """Its tensors, each of them shared."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    tensors = {
        name: Tensor(
            name=name,
            shape=tuple(value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            axes=(None,) * value.dim(),
            inward=(False,) * value.dim(),
            trained=name in trained,
        )
        for name, value in weights_of(model).items()
    }
    return Structure(groups=(), tensors=tensors, heads={}, reasons={}, normed=frozenset())
