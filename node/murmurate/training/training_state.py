"""One instant of a model and its optimizer: copied between two steps, and put back at a restart."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from murmurate.core.layout import Layout, tracked
from murmurate.core.plain_names import plain_names
from murmurate.edge.disk import nested
from murmurate.edge.disk.checkpoint import DTYPES, OPTIMIZER, PREFIX, Checkpoint
from murmurate.edge.disk.copies import Copies
from murmurate.errors import CheckpointError, ConfigError, MurmurateError

if TYPE_CHECKING:
    from murmurate.training.publisher import Publisher

log = logging.getLogger("murmurate")


class Instant:
    """What there is to copy, beside the flat weights, and where it goes back."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        layout: Layout,
        parameters: list[torch.nn.Parameter],
    ) -> None:
        if taken := [name for name in model.state_dict() if name.startswith(PREFIX)]:
            raise ConfigError(f"model: {taken[0]}: names that begin with {PREFIX} are ours")
        self.layout = layout
        self._model = model
        self._optimizers = tuple(optimizers)
        self._kind = " + ".join(map(_kind, self._optimizers))
        self._plain = plain_names(model)
        self._parameters = parameters
        self._said: set[str] = set()

    def copy(self, weights: torch.Tensor, copies: Copies) -> dict[str, Any]:
        """The part of a `Checkpoint` that is tensors."""
        rest, tied = self._rest(copies)
        return {
            "layout": self.layout,
            "weights": copies.copy(PREFIX + "weights", weights),
            "rest": rest,
            "tied": tied,
            "optimizer": self._kind,
            "optimizer_state": self._state(copies),
        }

    def _rest(self, copies: Copies) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        rest: dict[str, torch.Tensor] = {}
        tied: dict[str, str] = {}
        first = {id(each): "" for each in self._in_weights()}
        for name, value in self._named().items():
            if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
                self._say(name, f"{name} is not kept in checkpoints: it is no plain tensor")
            elif first.get(id(value)):
                tied[name] = first[id(value)]
            else:
                if id(value) not in first:
                    rest[name] = copies.copy(name, value.detach())
                first[id(value)] = name
        return rest, tied

    def _in_weights(self) -> list[torch.Tensor]:
        """What a checkpoint has in its flat weights."""
        if self.layout.statistics.stop == self.layout.trained:
            return [*self._parameters]
        return [*self._parameters, *(each.tensor for each in tracked(self._model).values())]

    @staticmethod
    def plain(prefix: str, state: Any, copies: Copies) -> Any:
        """Nested plain values, with a copy of each tensor that is in them."""
        kept: dict[str, torch.Tensor] = {}

        def put(path: str, tensor: torch.Tensor) -> None:
            if path in kept or tensor.dtype not in DTYPES or tensor.is_sparse:
                raise nested.Unpackable(f"{path} is no plain tensor, or stands there twice")
            kept[path] = copies.copy(prefix + path, tensor.detach())

        return nested.unpack(nested.pack(state, put), kept)

    def _state(self, copies: Copies) -> Any:
        try:
            return self.plain(OPTIMIZER, self._states(), copies)
        except nested.Unpackable as error:
            self._say(
                "optimizer",
                f"the state of {self._kind} is not kept in checkpoints: {error}",
            )
            return None

    def _named(self) -> dict[str, Any]:
        """What the model saves, by its plain names."""
        saved = self._model.state_dict(keep_vars=True)
        return {self._plain(name): value for name, value in saved.items()}

    def _states(self) -> dict[str, Any]:
        """Of one optimizer its state as it is, of several each by its place in the list."""
        if len(self._optimizers) == 1:
            return self._optimizers[0].state_dict()
        return {str(at): each.state_dict() for at, each in enumerate(self._optimizers)}

    def _load(self, states: dict[str, Any]) -> None:
        if len(self._optimizers) == 1:
            self._optimizers[0].load_state_dict(states)
            return
        for at, each in enumerate(self._optimizers):
            each.load_state_dict(states[str(at)])

    def _say(self, about: str, what: str) -> None:
        """Once."""
        if about not in self._said:
            self._said.add(about)
            log.warning("%s", what)

    # -- back ------------------------------------------------------------------------------------

    def check(self, checkpoint: Checkpoint) -> None:
        """Whether all of it has a place here, before any of it is put there."""
        here = self._named()
        for name, tensor in checkpoint.rest.items():
            value = here.get(name)
            if not isinstance(value, torch.Tensor) or value.shape != tensor.shape:
                raise CheckpointError(
                    f"of another model: the checkpoint has {name} {list(tensor.shape)}, the model"
                    " here has not"
                )

    def put_back(self, checkpoint: Checkpoint, weights: torch.Tensor) -> None:
        """Into the model and the optimizer; `weights` may have gone on since."""
        self.check(checkpoint)
        here = self._named()
        with torch.no_grad():
            for name, tensor in checkpoint.rest.items():
                here[name].copy_(tensor)
        self.layout.scatter(weights, self._parameters)
        if checkpoint.optimizer_state is None:
            return
        if checkpoint.optimizer != self._kind:
            log.warning(
                "the checkpoint has the state of %s: %s starts anew",
                checkpoint.optimizer,
                self._kind,
            )
            return
        before = self._states()
        try:
            self._load(checkpoint.optimizer_state)
        except (ValueError, KeyError, TypeError) as error:
            self._load(before)
            log.warning("the checkpoint's optimizer state does not fit, it starts anew: %s", error)

    def put_back_publishing(self, checkpoint: Checkpoint, publisher: Publisher) -> None:
        """What the rule knew; without it the swarm's momentum fills again within a few updates."""
        if checkpoint.publishing is None:
            return  # of a version that did not keep it
        try:
            publisher.go_on(checkpoint.publishing)
        except (ValueError, KeyError, TypeError, RuntimeError, MurmurateError) as error:
            publisher.discard()
            log.warning("what the checkpoint has of the rule does not fit: %s", error)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
