"""How much a model computes for one sample: half of the CC ratio of paper 003.

The ratio, operations per parameter, says how much computing there is for each number that is
exchanged: 003 finds that high ones (ResNet-50: 308) favour synchronous training. Here it is shown,
not acted on.

One convention throughout: operations of the forward pass as torch's FlopCounterMode counts them, a
multiplication and an addition being two; that counter does not see what a recurrent layer does on a
CPU (1.48 for the LSTM of 003, where it is 55.0), so recurrent layers are counted by hand. The
papers' figures are on other scales (AlexNet is 109.2 in 003 and 23.4 here): they are never to be
compared with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from murmurate.workloads import Workload

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""Of a recurrent layer by its mode: so many matrices for what comes in, and for its own state."""


def flops_per_sample(
    workload: Workload, model: nn.Module, batch: tuple[torch.Tensor, ...]
) -> float:
    """Forward; a multiplication and an addition are two. Leaves model and rng as they are."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            count = flops(model, lambda: workload.loss(model, batch))
    finally:
        for module, training in modes:
            module.training = training
    return count / workload.batch_size


def flops(model: nn.Module, call: Callable[[], object]) -> float:
    """What is computed in a call that runs this model, recurrent layers included."""
    counter = _Counter()  # type: ignore[no-untyped-call]
    with _recurrent_by_hand(model, counter) as by_hand, counter:
        call()
    return counter.total + sum(by_hand)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by torch's own table, as FlopCounterMode does. That one loads the compiler
    when it sees the first of them, which takes 2 s and more; this takes milliseconds."""

    total = 0.0


def _counted(
    self: _Counter, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    out = func(*args, **(kwargs or {}))
    if (formula := flop_registry.get(func._overloadpacket)) is not None:
        self.total += float(formula(*args, **(kwargs or {}), out_val=out))
    return out


# Not in the class: torch wraps what stands there, and what it wraps it in loads the compiler.
_Counter.__torch_dispatch__ = _counted  # type: ignore[assignment,method-assign]


def recurrent_flops(layer: nn.RNNBase, inputs: torch.Tensor) -> float:
    """Of one call of a recurrent layer: at each place of each sequence, in each direction, for each
    gate, a product with what comes in and one with its own state."""
    places = inputs.numel() / inputs.shape[-1]
    directions = 2 if layer.bidirectional else 1
    state = layer.proj_size or layer.hidden_size
    total = 0.0
    for depth in range(layer.num_layers):
        width = layer.input_size if depth == 0 else directions * state
        per_place = GATES[layer.mode] * layer.hidden_size * (width + state)
        per_place += layer.hidden_size * layer.proj_size
        total += 2.0 * places * directions * per_place
    return total


@contextmanager
def _recurrent_by_hand(model: nn.Module, counter: _Counter) -> Iterator[list[float]]:
    """What is to be added to what the counter says, a number for each call of a recurrent layer:
    counted by hand, less what the counter has seen of it."""
    found: list[float] = []
    before: list[float] = []

    def begin(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        before.append(counter.total)

    def end(layer: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        seen = counter.total - before.pop()
        first = inputs[0]
        numbers = first.data if isinstance(first, nn.utils.rnn.PackedSequence) else first
        assert isinstance(layer, nn.RNNBase)
        found.append(recurrent_flops(layer, numbers) - seen)

    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    hooks: list[Any] = [layer.register_forward_pre_hook(begin) for layer in layers]
    hooks += [layer.register_forward_hook(end) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def cc_ratio(flops_each: float, parameters: float) -> float:
    """Operations for a sample per parameter: computing for each number that is exchanged."""
    return flops_each / max(1.0, parameters)
