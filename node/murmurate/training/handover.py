"""What a newcomer is given by a group that trains in step: weights, statistics, optimizer state.

As a safetensors file in memory: tensors with names, and JSON for the rest. Nothing in it is run.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from murmurate.core.layout import Layout, tracked
from murmurate.edge.disk import nested
from murmurate.errors import RemoteProtocolError
from murmurate.training.statistics import first_weights

log = logging.getLogger("murmurate")

WEIGHTS, STATE, OPTIMIZER = "weights", "state", "optimizer/"


class Handover:
    """A model and its optimizer, to be given away or replaced as a whole."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._layout = layout
        self._parameters = parameters
        self._statistics = list(tracked(model).values()) if layout.trained < layout.size else []

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights, with the running statistics behind them."""
        return first_weights(self._layout, self._parameters, self._model)

    def put(self, weights: torch.Tensor) -> None:
        """Into the model."""
        self._layout.scatter(weights, self._parameters)
        place = self._layout.trained
        for each in self._statistics:
            tensor = each.tensor
            end = place + tensor.numel()
            tensor.data.copy_(weights[place:end].view(tensor.shape))
            place = end

    def pack(self, **numbers: int) -> torch.Tensor:
        """All of it, and these numbers, as bytes."""
        tensors = {WEIGHTS: self.weights()}

        def put(path: str, tensor: torch.Tensor) -> None:
            tensors[OPTIMIZER + path] = tensor.detach().cpu().clone().contiguous()

        try:
            state = nested.pack(self._optimizer.state_dict(), put)
        except nested.Unpackable as error:
            log.warning("the optimizer's state is not handed over to newcomers: %s", error)
            state = None
        text = json.dumps({**numbers, STATE: state})
        tensors[STATE] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        return torch.frombuffer(bytearray(save(tensors)), dtype=torch.uint8)

    def unpack(self, packed: torch.Tensor) -> dict[str, int]:
        """Take all of it over; the numbers that came along. RemoteProtocolError: it does not fit,
        nothing was changed."""
        try:
            tensors = load(packed.numpy().tobytes())
            about: dict[str, Any] = json.loads(tensors.pop(STATE).numpy().tobytes())
            weights = tensors.pop(WEIGHTS)
            state = about.pop(STATE)
            found = {name.removeprefix(OPTIMIZER): each for name, each in tensors.items()}
            state = nested.unpack(state, found)
        except (SafetensorError, KeyError, ValueError) as error:
            raise RemoteProtocolError("handover", f"it cannot be read: {error}") from None
        if weights.shape != (self._layout.size,) or weights.dtype != self._layout.dtype:
            raise RemoteProtocolError("handover", "its weights are those of another model")
        if any(type(each) is not int for each in about.values()):
            raise RemoteProtocolError("handover", "expected numbers")
        before = self._optimizer.state_dict()
        if state is not None:
            try:
                self._optimizer.load_state_dict(state)
            except (ValueError, KeyError, TypeError) as error:
                self._optimizer.load_state_dict(before)
                raise RemoteProtocolError(
                    "handover", f"the optimizer here is another one: {error}"
                ) from None
        self.put(weights)
        return about
