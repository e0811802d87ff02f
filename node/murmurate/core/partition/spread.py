"""Watches a model run once and follows the indices of its axes through it.

Not a graph: the model's own code runs on an example, and every torch function it calls passes
through here (`TorchFunctionMode`). So any Python control flow is fine, and modules need not be
known by their class: a Linear, a subclass of it and `F.linear` are the same call.

Which atom each element belongs to is in `labels`; what a function does to that is said by the rules
of `layers`, `products` and `elements`. A function that is not known keeps all it touches shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from murmurate.core.partition.elements import ElementRules
from murmurate.core.partition.labels import Labels, tensors_in
from murmurate.core.partition.layers import LayerRules
from murmurate.core.partition.products import ProductRules


class Spread(TorchFunctionMode):
    """Runs over one model; what it found is in `labels`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.labels = Labels(model)
        layers = LayerRules(self.labels)
        self._of_arguments = (layers, ProductRules(self.labels, layers, model))
        self._of_elements = ElementRules(self.labels)

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
            if isinstance(out, torch.Tensor) and self.labels.label(args[0]) is not None:
                self._property(func, args[0], out)
            return out
        if name == "__setitem__":
            self.labels.keep_whole(args, "elements of it are assigned")
            return out
        if any(True for _ in tensors_in(out)):
            self._rule(name, func, args, kwargs, out)
        return out

    def _property(self, func: Callable[..., Any], source: torch.Tensor, out: torch.Tensor) -> None:
        atoms = self.labels.label(source)
        assert atoms is not None
        turned: tuple[Any, ...] = (torch.Tensor.T, torch.Tensor.mT)
        data: Any = torch.Tensor.data
        for view in turned:
            if func == view.__get__:
                self.labels.put(out, func(atoms.expand(source.shape)))
                return
        if func == data.__get__:
            self.labels.put(out, atoms)
        else:
            self.labels.keep_whole(source, "a property of it is used")

    def _rule(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> None:
        labels = self.labels
        labelled = any(labels.label(t) is not None for t in tensors_in((args, kwargs)))
        for rules in self._of_arguments:
            rule: Callable[..., None] | None = getattr(rules, f"do_{name.strip('_')}", None)
            if rule is not None:
                rule(out, *args, **kwargs)
                return
        if labelled and not self._of_elements.apply(name, func, args, kwargs, out):
            labels.keep_whole((args, kwargs), f"{name}() is not known")
