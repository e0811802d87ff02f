"""Models whose code names a size that a subnet has smaller: `x.view(batch, steps, 8, 64)`.

Their subnets are graphs (`torch.fx`): traced once from the model, with those sizes changed. The
names of the tensors stay. Only such models are traced; all others keep their own code.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from murmurate.core.partition.structure import Held, Rewrite
from murmurate.errors import ConfigError

SIZES = ("view", "reshape", "expand", "unflatten")
PIECES = ("split", "split_with_sizes")


def names_sizes(node: torch.fx.Node) -> bool:
    return _name(node) in (*SIZES, *PIECES)


def _name(node: torch.fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    if node.op == "call_function":
        return getattr(node.target, "__name__", "")
    return ""


class _Tracer(torch.fx.Tracer):
    """Remembers where it is, so that what cannot be traced is named."""

    path = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Unflatten):  # it names sizes: they must be seen
            return False
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        before, self.path = self.path, self.path_of_module(m)
        out = super().call_module(m, forward, args, kwargs)
        self.path = before
        return out


def trace(model: nn.Module, problem: str) -> torch.fx.GraphModule:
    """The model as a graph; `problem` is why its own code will not do."""
    tracer = _Tracer()
    try:
        graph = tracer.trace(model)
    except Exception as error:
        where = tracer.path or type(model).__name__
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"model: {where} names the size of an axis that is split ({problem}) and cannot be"
            f" traced ({reason}): take -1 for that size, or sizes of its tensors"
        ) from error
    return torch.fx.GraphModule(tracer.root, graph, type(model).__name__)


def rewritten(subnet: nn.Module, rewrites: Sequence[Rewrite], held: Held) -> nn.Module:
    """A subnet whose code has the sizes of these units."""
    if not isinstance(subnet, torch.fx.GraphModule):
        subnet = trace(subnet, "")
    graph = copy.deepcopy(subnet.graph)
    shapes: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for it in rewrites:
        shapes.setdefault(it.node, []).append((it.shape, it.sizes(held)))
    for node in graph.nodes:
        if node.name in shapes:
            _change(node, shapes[node.name])
    graph.lint()
    return torch.fx.GraphModule(subnet, graph, type(subnet).__name__)


def _change(node: torch.fx.Node, shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    name = _name(node)
    if name in PIECES:
        sizes, dim = _arguments(node, ("split_size", "dim"), (None, 0))
        axis = dim % len(shapes[0][0])
        node.args = (node.args[0], [new[axis] for _, new in shapes], dim)
        node.kwargs = {}
        return
    (old, new), *_ = shapes
    given = list(node.args[1:])
    if name == "unflatten":
        dim, sizes = _arguments(node, ("dim", "sizes"), (None, None))
        axis = dim % (len(old) - len(sizes) + 1)
        changed = _sizes(list(sizes), old[axis : axis + len(sizes)], new[axis : axis + len(sizes)])
        node.args, node.kwargs = (node.args[0], dim, tuple(changed)), {}
        return
    if node.kwargs:
        given, node.kwargs = [next(iter(node.kwargs.values()))], {}
    first: Any = given[0]
    nested = len(given) == 1 and isinstance(first, list | tuple)
    sizes = list(first) if nested else given
    changed = _sizes(sizes, old, new)
    node.args = (node.args[0], tuple(changed)) if nested else (node.args[0], *changed)


def _sizes(given: list[Any], old: tuple[int, ...], new: tuple[int, ...]) -> list[Any]:
    """-1 stays what it is; so does whatever the units do not change."""
    return [
        size if was == now or (isinstance(size, int) and size == -1) else now
        for size, was, now in zip(given, old, new, strict=True)
    ]


def _arguments(
    node: torch.fx.Node, names: tuple[str, str], default: tuple[Any, Any]
) -> tuple[Any, Any]:
    out = list(default)
    for at, value in enumerate(node.args[1:3]):
        out[at] = value
    for key, value in node.kwargs.items():
        out[names.index(key) if key in names else 0] = value
    return out[0], out[1]
