"""What one local step gained, without the optimizer's own momentum: for rule `shared`.

A swarm has one momentum, which the rule keeps (`core.publishing.shared`). So what a peer gives it
is the gradient as the optimizer scales it: by its rate, and by its second moment where it has one.
Both are read in the hook after `step()`: `p.grad` is clipped and unscaled by then, the optimizer's
own state is as it should be, and nothing of the optimizer is touched. A momentum μ makes a constant
gradient's step 1 / (1 - μ) times as large; that factor is in the gain.

| optimizer | gain of a step |
|---|---|
| SGD | -lr g (1 - dampening) / (1 - μ) |
| Adam, AdamW, NAdam, RAdam | -lr g / (√v̂ + ε), rectified as RAdam does |
| Adamax | -lr g / u |
| RMSprop | -lr g / (√v + ε) / (1 - μ) |
| Adagrad | -lr g / (√s + ε), lr decayed |
| LARS | -lr local (g + wd x) / (1 - μ), local as LARS had it |
| SGD, then Adam | that of the stage it is in |
| any other | what it changed, momentum and all |

g has the weight decay of optimizers that put it there (x wd); decoupled decay comes on top.

Where peers hold different data, v is not the optimizer's own but everybody's (`training.moments`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from murmurate.training.lars import Lars
from murmurate.training.sgd_then_adam import ADAM, SgdThenAdam

Group: TypeAlias = dict[str, Any]
State: TypeAlias = dict[str, Any]
SquaresOf: TypeAlias = Callable[[Group, list[State]], list[torch.Tensor]]
"""Reads the second moments of an optimizer's parameters, bias-corrected; new tensors."""
Everybodys: TypeAlias = Callable[[torch.nn.Parameter, torch.Tensor], None]
"""Makes everybody's second moment of a parameter's own, in place."""


class OptimizerGain:
    """Reads the gain of each step of one optimizer, for parameters that lie flat in this order."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._optimizer = optimizer
        self._spans: dict[int, slice] = {}
        at = 0
        for parameter in parameters:
            self._spans[id(parameter)] = slice(at, at + parameter.numel())
            at += parameter.numel()
        self._scaled = _SCALED.get(type(optimizer))
        self.everybodys: Everybodys | None = None
        """What makes everybody's second moment of a parameter's own; None: the own one counts."""
        self._flat: torch.Tensor | None = None
        self._shaped: dict[int, torch.Tensor] = {}
        """The flat gain that was last added to, in the shapes of the parameters."""

    @property
    def known(self) -> bool:
        """Whether this optimizer's gain can be read; if not, what it changed is its gain."""
        return self._scaled is not None

    @property
    def kind(self) -> str:
        """`plain`; `normalized`: each number over its own second moment; `unread`: what was
        changed, the optimizer's own momentum included. How often to publish depends on it."""
        if not self.known:
            return "unread"
        return "plain" if self._scaled is _sgd else "normalized"

    def divide_by(self, everybodys: Everybodys) -> None:
        """From now on by everybody's second moments."""
        self.everybodys = everybodys

    def square(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Its second moment as it is now, bias-corrected; a new tensor. None: it was not stepped,
        or is not this optimizer's."""
        state = self._optimizer.state.get(parameter)
        if not state or not keeps_squares(self._optimizer):
            return None
        for group in self._optimizer.param_groups:
            if any(each is parameter for each in group["params"]):
                return _SQUARES[type(self._optimizer)](group, [state])[0]
        return None

    def others(self) -> list[slice]:
        """Where the parameters lie that are not this optimizer's, now; another may have them."""
        mine = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        return [span for parameter, span in self._spans.items() if parameter not in mine]

    def add_to(self, gain: torch.Tensor, view: Callable[[], torch.Tensor]) -> None:
        """Add what the last step gained. `view`: what decays, where weights do."""
        assert self._scaled is not None
        if float(getattr(self._optimizer, "found_inf", 0.0)):
            return  # a fused optimizer, told by AMP's scaler to leave this step out
        taken_at: torch.Tensor | None = None
        with torch.no_grad():
            for group in self._optimizer.param_groups:
                stepped = [p for p in group["params"] if p.grad is not None]
                stepped = [p for p in stepped if id(p) in self._spans]
                if not stepped:
                    continue
                if group.get("weight_decay") and taken_at is None:
                    taken_at = view()
                at = [] if taken_at is None else [self._of(taken_at, p) for p in stepped]
                states = [self._optimizer.state[p] for p in stepped]
                it = _Stepped(group, stepped, at, states, self.everybodys)
                steps, factor = self._scaled(it)
                into = self._into(gain, stepped)
                if steps[0].device != gain.device or steps[0].dtype != gain.dtype:
                    steps = [step.to(gain.device, gain.dtype) for step in steps]
                torch._foreach_add_(into, steps, alpha=factor if group.get("maximize") else -factor)

    def mend(self) -> None:
        """Steps were taken back: what the optimizer remembers of them is not kept where it is no
        number. Such a parameter begins anew, its count of steps too."""
        for parameter, state in list(self._optimizer.state.items()):
            tensors = [each for each in state.values() if isinstance(each, torch.Tensor)]
            floating = [each for each in tensors if each.is_floating_point()]
            if not all(bool(torch.isfinite(each).all()) for each in floating):
                del self._optimizer.state[parameter]

    def _of(self, flat: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The part of flat numbers that is a parameter's, as the parameter is."""
        part = flat[self._spans[id(parameter)]].view(parameter.shape)
        return part.to(parameter.device, parameter.dtype)

    def _into(self, gain: torch.Tensor, stepped: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        if self._flat is not gain:
            self._flat, self._shaped = gain, {}
        shaped = self._shaped
        for p in stepped:
            if id(p) not in shaped:
                shaped[id(p)] = gain[self._spans[id(p)]].view(p.shape)
        return [shaped[id(p)] for p in stepped]


def keeps_squares(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it divides by a mean, or a sum, of squares of gradients that can be read."""
    return type(optimizer) in _SQUARES


def without_bound(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps are as long as it likes, such as those of LBFGS, which looks for a place
    by calling the loss again and again: nobody else takes a step only with a closure.

    What it has learned of the surface is of weights that nobody else moves. Where others do, a
    difference of two gradients says nothing, and a step divided by it can be of any size: three
    peers ended at 1e26, with their steps added up, and with their weights averaged.
    """
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class _Stepped(NamedTuple):
    """The parameters of one group that a step has changed."""

    group: Group
    parameters: list[torch.nn.Parameter]
    views: list[torch.Tensor]
    """Where their gradients were taken; none: nothing decays."""
    states: list[State]
    everybodys: Everybodys | None = None

    @property
    def rate(self) -> float:
        return float(self.group["lr"])

    @property
    def decay(self) -> float:
        """What of the weights is added to a gradient, which is that of a loss to be maximized
        where the group says so."""
        decay = float(self.group.get("weight_decay", 0.0))
        return -decay if self.group.get("maximize") else decay

    def plain(self) -> list[torch.Tensor]:
        """The gradients, clipped and unscaled, as the optimizer saw them. To be read only."""
        out = []
        for parameter in self.parameters:
            gradient = parameter.grad
            assert gradient is not None
            out.append(gradient.to_dense() if gradient.is_sparse else gradient)
        return out

    def gradients(self) -> list[torch.Tensor]:
        """With the weight decay of an optimizer that adds it to the gradient."""
        if not self.decay:
            return self.plain()
        return _list(torch._foreach_add(self.plain(), self.views, alpha=self.decay))

    def counts(self) -> list[float]:
        return [float(state["step"]) for state in self.states]

    def roots(self, squares_of: SquaresOf) -> list[torch.Tensor]:
        """√v + ε: of the optimizer's own second moments, or of everybody's."""
        squares = squares_of(self.group, self.states)
        if self.everybodys is not None:
            for parameter, square in zip(self.parameters, squares, strict=True):
                self.everybodys(parameter, square)
        torch._foreach_sqrt_(squares)
        torch._foreach_add_(squares, float(self.group["eps"]))
        return squares

    def decayed(self, steps: list[torch.Tensor]) -> list[torch.Tensor]:
        """With decoupled weight decay, on top of what a gradient does."""
        if self.decay:
            torch._foreach_add_(steps, self.views, alpha=self.decay)
        return steps


Steps: TypeAlias = tuple[list[torch.Tensor], float]
"""What a step went against, and how far. The tensors are only read: they may be the gradients."""


def _list(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(tensors)


def _of_adam(group: Group, states: list[State]) -> list[torch.Tensor]:
    beta = float(group["betas"][1])
    name = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    corrections = [1.0 - beta ** float(state["step"]) for state in states]
    return _list(torch._foreach_div([state[name] for state in states], corrections))


def _of_rmsprop(group: Group, states: list[State]) -> list[torch.Tensor]:
    moments = [state["square_avg"] for state in states]
    if not group["centered"]:
        return [moment.clone() for moment in moments]
    means = [state["grad_avg"] for state in states]
    return _list(torch._foreach_addcmul(moments, means, means, value=-1))


def _of_adagrad(group: Group, states: list[State]) -> list[torch.Tensor]:
    return [state["sum"].clone() for state in states]


def _sgd(it: _Stepped) -> Steps:
    momentum = float(it.group["momentum"])
    factor = (1.0 - float(it.group["dampening"])) / (1.0 - momentum) if momentum else 1.0
    return it.gradients(), it.rate * factor


def _adam(it: _Stepped) -> Steps:
    if it.group.get("decoupled_weight_decay"):
        return _adamw(it)
    return _list(torch._foreach_div(it.gradients(), it.roots(_of_adam))), it.rate


def _adamw(it: _Stepped) -> Steps:
    steps = _list(torch._foreach_div(it.plain(), it.roots(_of_adam)))
    return it.decayed(steps), it.rate


def _radam(it: _Stepped) -> Steps:
    beta = float(it.group["betas"][1])
    longest = 2.0 / (1.0 - beta) - 1.0
    decoupled = bool(it.group.get("decoupled_weight_decay"))
    gradients = it.plain() if decoupled else it.gradients()
    steps = []
    for gradient, moment, count in zip(gradients, it.roots(_of_adam), it.counts(), strict=True):
        length = longest - 2.0 * count * beta**count / (1.0 - beta**count)
        if length <= 5.0:
            steps.append(gradient.clone())
            continue
        rectified = math.sqrt(
            (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        )
        steps.append(gradient.div(moment).mul_(rectified))
    return (it.decayed(steps) if decoupled else steps), it.rate


def _adamax(it: _Stepped) -> Steps:
    norms = [state["exp_inf"] for state in it.states]
    return _list(torch._foreach_div(it.gradients(), norms)), it.rate


def _rmsprop(it: _Stepped) -> Steps:
    rate = it.rate / (1.0 - float(it.group["momentum"]))
    return _list(torch._foreach_div(it.gradients(), it.roots(_of_rmsprop))), rate


def _adagrad(it: _Stepped) -> Steps:
    steps = _list(torch._foreach_div(it.gradients(), it.roots(_of_adagrad)))
    decay = float(it.group["lr_decay"])
    torch._foreach_div_(steps, [1.0 + (count - 1.0) * decay for count in it.counts()])
    return steps, it.rate


def _lars(it: _Stepped) -> Steps:
    steps = it.gradients()
    local = [float(state["local"]) for state in it.states]
    rate = it.rate / (1.0 - float(it.group["momentum"]))
    return _list(torch._foreach_mul(steps, local)), rate


def _sgd_then_adam(it: _Stepped) -> Steps:
    return _adam(it) if it.group["stage"] == ADAM else _sgd(it)


_SCALED: dict[type[torch.optim.Optimizer], Callable[[_Stepped], Steps]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.NAdam: _adam,
    torch.optim.RAdam: _radam,
    torch.optim.Adamax: _adamax,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
    Lars: _lars,
    SgdThenAdam: _sgd_then_adam,
}

_SQUARES: dict[type[torch.optim.Optimizer], SquaresOf] = {
    torch.optim.Adam: _of_adam,
    torch.optim.AdamW: _of_adam,
    torch.optim.NAdam: _of_adam,
    torch.optim.RAdam: _of_adam,
    torch.optim.RMSprop: _of_rmsprop,
    torch.optim.Adagrad: _of_adagrad,
}
"""Adamax is not among them: the mean of largest gradients is nobody's largest."""
