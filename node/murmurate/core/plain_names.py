"""A model's own names for its tensors, without those of what it is wrapped in.

`torch.compile` puts `_orig_mod.` before them, data-parallel wrappers `module.`; a peer may wrap its
model and another not, and it is one model all the same. A wrapper is a module with one child, of
one of these names, and with nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

WRAPPED = ("_orig_mod", "module")


def plain_names(model: torch.nn.Module) -> Callable[[str], str]:
    """What turns the names of this model's tensors into plain ones."""
    wrappers = [
        (f"{path}." if path else "", child)
        for path, module in model.named_modules(remove_duplicate=False)
        if (child := _wraps(module)) is not None
    ]
    wrappers.sort(key=lambda each: -len(each[0]))

    def plain(name: str) -> str:
        for before, child in wrappers:
            if name.startswith(f"{before}{child}."):
                name = before + name[len(before) + len(child) + 1 :]
        return name

    return plain


def _wraps(module: torch.nn.Module) -> str | None:
    """The name of the one child of a module that is a wrapper."""
    if isinstance(module, torch.jit.ScriptModule) or len(module._modules) != 1:
        return None
    (child,) = module._modules
    return child if child in WRAPPED and not (module._parameters or module._buffers) else None
