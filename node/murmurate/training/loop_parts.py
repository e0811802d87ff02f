"""What a script hands to `join`: a model and the optimizers that train it, checked at once.

Every mistake here would be silent later: an optimizer of another model publishes nothing, one that
is joined twice publishes each step twice. So each is one line before anybody is asked.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from murmurate.errors import ConfigError

_joined: dict[int, tuple[weakref.ref[torch.nn.Parameter], str, str]] = {}
"""Parameters that are in a swarm of this process, by their identity; in which run, and as whom."""


def optimizers_of(model: Any, optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers themselves, of one or a list of them, out of whatever wraps them."""
    if isinstance(model, torch.optim.Optimizer) and isinstance(optimizer, torch.nn.Module):
        raise ConfigError("model and optimizer are swapped: it is join(model, optimizer, …)")
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model: expected a torch.nn.Module, not {_kind(model)}")
    if torch.is_inference_mode_enabled():
        raise ConfigError("join() inside torch.inference_mode(): what is made there cannot train")
    several = isinstance(optimizer, Sequence) and not isinstance(optimizer, str)
    given = list(optimizer) if several else [optimizer]
    if not given:
        raise ConfigError("optimizer: the list is empty; hand over those that train the model")
    found = [_unwrapped(each) for each in given]
    if len({id(each) for each in found}) < len(found):
        raise ConfigError("optimizer: one stands twice in the list")
    here = {id(parameter) for parameter in model.parameters()}
    for each in found:
        mine = [p for group in each.param_groups for p in group["params"]]
        if not any(id(parameter) in here for parameter in mine):
            raise ConfigError(
                f"optimizer {type(each).__name__}: none of its parameters are of this model: make"
                " it from model.parameters(), after the model has its last form"
            )
    return found


def states_of(state: Any) -> dict[str, Any]:
    """What goes into checkpoints beside model and optimizers, by name: of one thing, a list or
    a dictionary, each with `state_dict` and `load_state_dict`."""
    if state is None:
        return {}
    if not isinstance(state, Mapping):
        things = list(state) if isinstance(state, list | tuple) else [state]
        state = {str(at): each for at, each in enumerate(things)}
    for name, each in state.items():
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise ConfigError(
                f"state: {_kind(each)} ({name}) has no state_dict and load_state_dict, as"
                " schedulers and scalers have"
            )
    return dict(state)


def _unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """Of accelerate and others: their `step()` calls that of the one inside."""
    inner, depth = optimizer, 0
    while not _takes_hooks(inner) and depth < 8:
        inner, depth = getattr(inner, "optimizer", None), depth + 1
    if not _takes_hooks(inner):
        raise ConfigError(
            f"optimizer: expected a torch.optim.Optimizer or a list of them, not {_kind(optimizer)}"
        )
    out: torch.optim.Optimizer = inner
    return out


def _takes_hooks(optimizer: Any) -> bool:
    """A wrapper may be of the class, and have nothing of what torch puts into one."""
    return isinstance(optimizer, torch.optim.Optimizer) and hasattr(
        optimizer, "_optimizer_step_post_hooks"
    )


def _kind(given: Any) -> str:
    return "None" if given is None else f"{type(given).__module__}.{type(given).__qualname__}"


# -- in one swarm at a time ------------------------------------------------------------------------


def check_free(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Raise if one of them is in a swarm already: each step would be published by both."""
    for parameter in parameters:
        known = _joined.get(id(parameter))
        if known is not None and known[0]() is parameter:
            raise ConfigError(
                f"model: it is in run {known[1]!r} already, and each of its steps would count"
                " twice: leave() that one first"
            )


def check_name(run: str, name: str) -> None:
    """Raise if this process is in the run under that name already, and has not left."""
    if any(known[1:] == (run, name) for known in _joined.values()):
        raise ConfigError(
            f"run {run!r}: this process is in it already, as {name}: leave() that one first, or"
            " give this one a name"
        )


def take(parameters: Sequence[torch.nn.Parameter], run: str, name: str) -> None:
    """These are in a swarm from now on."""
    for parameter in parameters:
        _joined[id(parameter)] = (weakref.ref(parameter), run, name)


def give_back(parameters: Sequence[torch.nn.Parameter]) -> None:
    """They are not any more."""
    for parameter in parameters:
        _joined.pop(id(parameter), None)
