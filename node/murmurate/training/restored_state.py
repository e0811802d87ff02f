"""Whether a state that weights are restored from is one of this model, and a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from murmurate.core.plain_names import plain_names
from murmurate.errors import ConfigError

NAMED_MAX = 3
"""Names in a line; the rest is counted."""


def state_for(model: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state by this model's own names. It may be by those of the same model wrapped otherwise.

    `ConfigError`, before anything was changed: it is another model's, or these are the tensors that
    are trained, which an unfortunate `best = model.state_dict()` keeps and every step changes.
    """
    own = model.state_dict()
    plain = plain_names(model)
    names = {plain(name): name for name in own}
    given = dict(zip(map(plain, state), state.values(), strict=True))
    for what, odd in (("lacks", names.keys() - given.keys()), ("has", given.keys() - names.keys())):
        if odd:
            shown = ", ".join(sorted(odd)[:NAMED_MAX])
            more = f" and {len(odd) - NAMED_MAX} more" if len(odd) > NAMED_MAX else ""
            raise ConfigError(f"state: not one of this model: it {what} {shown}{more}")
    for name, value in given.items():
        mine = own[names[name]]
        if not isinstance(mine, torch.Tensor):
            continue
        if not isinstance(value, torch.Tensor) or value.shape != mine.shape:
            shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"state: {name} is {shape}, expected {list(mine.shape)}")
        if value.numel() and value.data_ptr() == mine.data_ptr():
            raise ConfigError(
                f"state: {name} is the model's own tensor, which each step has changed: keep"
                " swarm.state_dict(), which is a copy"
            )
    return {names[name]: value for name, value in given.items()}
