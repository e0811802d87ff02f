"""The flat view of a model: which tensor lies where in one buffer, and a hash that says so.

Exchanged are the parameters that are trained (`requires_grad`), each once however often it is tied.
Behind them, where it is asked for, lie running statistics (batch-norm's `running_mean` and
`running_var`): what is published of these is their own (`core.publishing.statistics`), for sums of
running averages are no running average. Other buffers and frozen parameters stay with their peer.

The flat buffer is float32, or float64 as soon as one parameter is. Parameters of fewer bits keep
their dtype in the model; their full weights live in the flat buffer, so that updates too small for
the model's dtype still add up. What such a parameter gained is counted from the *rounded* weights:
counted from the full ones, rounding would look like training and undo what others sent.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch

from murmurate.core import buffers, second_moments
from murmurate.core.plain_names import plain_names
from murmurate.errors import ConfigError

_NARROW = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
STATISTICS = ("running_mean", "running_var")
"""What modules call them."""
SHOWN_MAX = 3
"""Differences named in a message; the rest is counted."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the model, as peers compare it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


class Tracked(NamedTuple):
    """A running statistic of a module. The tensor is asked for when it is used: `model.to()` and
    its like put another in its place."""

    module: torch.nn.Module
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        return cast("torch.Tensor", getattr(self.module, self.key))


def tracked(model: torch.nn.Module) -> dict[str, Tracked]:
    """The running statistics of a model by name: of every module that keeps a mean and a variance,
    as torch's batch-norm and instance-norm do."""
    found: dict[str, Tracked] = {}
    for prefix, module in model.named_modules():
        here = dict(module.named_buffers(recurse=False))
        if not all(_is_statistic(here.get(key)) for key in STATISTICS):
            continue
        for key in STATISTICS:
            found[f"{prefix}.{key}" if prefix else key] = Tracked(module, key)
    return found


def _is_statistic(buffer: torch.Tensor | None) -> bool:
    return buffer is not None and buffer.is_floating_point() and not buffer.is_meta


class Layout:
    """Where each trained parameter lies, and behind them each statistic and what is known of each
    second moment, if these travel. Two peers can exchange updates when `schema` is equal.

    What is asked with a list of parameters concerns these: the first `trained` numbers.
    """

    __slots__ = (
        "_first_moment",
        "_narrow",
        "_offsets",
        "_pointers",
        "_row",
        "_shaped",
        "_viewed",
        "dtype",
        "moments",
        "schema",
        "size",
        "statistics",
        "tensors",
        "trained",
    )

    def __init__(
        self, tensors: Iterable[TensorSpec], statistics: int = 0, moments: int = 0
    ) -> None:
        """So many tensors, the last, are no parameters: `statistics`, and behind them `moments`."""
        self.tensors = tuple(tensors)
        if len(self.tensors) == statistics + moments:
            raise ConfigError("model: no parameter requires a gradient, so there is nothing to do")
        self.dtype = (
            torch.float64 if any(t.dtype == "float64" for t in self.tensors) else torch.float32
        )
        offsets = [0]
        for tensor in self.tensors:
            offsets.append(offsets[-1] + tensor.size)
        self._offsets = offsets
        self.size = offsets[-1]
        self.trained = offsets[len(self.tensors) - statistics - moments]
        """So many numbers are of parameters."""
        self._first_moment = len(self.tensors) - moments
        self.statistics = slice(self.trained, offsets[self._first_moment])
        """Where the running statistics lie."""
        self.moments = slice(self.statistics.stop, self.size)
        """Where everybody's second moments lie, in few numbers (`core.second_moments`)."""
        self._row: torch.Tensor | None = None
        self._pointers: list[int] = []
        self._viewed: torch.Tensor | None = None
        self._shaped: list[torch.Tensor] = []
        self._narrow = [i for i, t in enumerate(self.tensors) if t.dtype in ("float16", "bfloat16")]
        text = "\n".join(f"{t.name}\t{t.dtype}\t{t.shape}" for t in self.tensors)
        self.schema = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @staticmethod
    def of(
        model: torch.nn.Module, *, statistics: bool = False, moments: bool = False
    ) -> tuple[Layout, list[torch.nn.Parameter]]:
        """The layout of a model's trained parameters, and these, in the same order; with room for
        its running statistics behind them, and for second moments, if that is asked for."""
        specs: list[TensorSpec] = []
        parameters: list[torch.nn.Parameter] = []
        plain = plain_names(model)
        for wrapped, parameter in model.named_parameters():
            name = plain(wrapped)
            if torch.nn.parameter.is_lazy(parameter):
                raise ConfigError(f"model: {name} has no shape yet: pass one batch through first")
            if parameter.is_meta:
                raise ConfigError(f"model: {name} is on the meta device, it has no values")
            if not parameter.requires_grad:
                continue
            if parameter.dtype not in (*_NARROW, *_WIDE) or parameter.is_sparse:
                raise ConfigError(
                    f"model: {name} is {parameter.dtype}, expected float16, bfloat16, float32 or"
                    " float64"
                )
            dtype = str(parameter.dtype).removeprefix("torch.")
            specs.append(TensorSpec(name, dtype, tuple(parameter.shape)))
            parameters.append(parameter)
        running = tracked(model) if statistics and specs else {}
        # They are kept and sent as the flat weights are, whatever they are in the model.
        wide = "float64" if any(spec.dtype == "float64" for spec in specs) else "float32"
        shapes = {plain(name): tuple(each.tensor.shape) for name, each in running.items()}
        specs += [TensorSpec(name, wide, shape) for name, shape in shapes.items()]
        kept = [second_moments.kept_of(t.name, t.shape) for t in specs[: len(parameters)]]
        kept = kept if moments else []
        specs += [TensorSpec(name, wide, shape) for name, shape in kept]
        return Layout(specs, len(running), len(kept)), parameters

    @property
    def narrow(self) -> bool:
        """Whether some parameters have fewer bits than the flat weights."""
        return bool(self._narrow)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def span(self, index: int) -> slice:
        return slice(self._offsets[index], self._offsets[index + 1])

    def moment_spans(self) -> list[slice]:
        """Where each parameter's second moment lies, counted from the first of them."""
        first = self.moments.start
        spans = [self.span(i) for i in range(self._first_moment, len(self.tensors))]
        return [slice(span.start - first, span.stop - first) for span in spans]

    def line_up(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Move the parameters' values into one buffer, in this order, where that can be done.

        What concerns all of them is then one operation. The parameters stay the objects they are.
        """
        if self._row is not None or not all(map(self._movable, parameters)):
            return
        row = self.gather(parameters)
        for index, parameter in enumerate(parameters):
            parameter.data = row[self.span(index)].view(parameter.shape)
        self._row, self._pointers = row, [p.data_ptr() for p in parameters]

    def let_go(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Give each parameter memory of its own again."""
        if self.in_line(parameters) is not None:
            buffers.release()  # or for a moment this would be the most a node ever takes
            for parameter in parameters:
                lined_up, parameter.data = parameter.data, parameter.data.clone()
                buffers.forget(lined_up)
        self._row = None

    def _movable(self, parameter: torch.nn.Parameter) -> bool:
        return (
            type(parameter) is torch.nn.Parameter
            and parameter.is_cpu
            and parameter.dtype is self.dtype
            and parameter.is_contiguous()
            and not parameter.is_shared()  # type: ignore[no-untyped-call]
            and parameter.untyped_storage().nbytes() == parameter.numel() * self.dtype.itemsize
        )

    def in_line(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The buffer that the parameters lie in, one after another; None: one does not."""
        if self._row is None or [p.data_ptr() for p in parameters] != self._pointers:
            return None
        return self._row

    def gather(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """A new flat CPU buffer with the values of these: of the parameters, and of the statistics
        if they are with them."""
        row = self.in_line(parameters)
        if row is not None:
            return buffers.clone(row)
        flat = buffers.empty(self._offsets[len(parameters)], self.dtype)
        self._fill(flat, parameters)
        return flat

    def gather_all(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same for a buffer of all numbers: 0 where none of these lies."""
        given = self._offsets[len(tensors)]
        flat = buffers.empty(self.size, self.dtype)
        self._fill(flat[:given], tensors)
        flat[given:] = 0.0
        return flat

    def _fill(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            if all(p.is_cpu and p.dtype is self.dtype for p in parameters):
                torch.cat([p.reshape(-1) for p in parameters], out=flat)
                return
            for index, p in enumerate(parameters):
                flat[self.span(index)].view(p.shape).copy_(p)

    def gained(self, parameters: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
        """A new buffer: what the parameters have that `weights`, last scattered, had not. Nothing
        where no parameters lie."""
        flat = buffers.empty(self.size, self.dtype)
        flat[self.trained :] = 0.0
        gain, weights = flat[: self.trained], weights[: self.trained]
        row = self.in_line(parameters)
        if row is not None:
            torch.sub(row, weights, out=gain)
            return flat
        self._fill(gain, parameters)
        for index in self._narrow:
            span = self.span(index)
            seen = weights[span].to(parameters[index].dtype).to(self.dtype)
            gain[span].sub_(seen)
        if not self._narrow:
            gain.sub_(weights)
            return flat
        narrow = frozenset(self._narrow)
        for index in range(len(parameters)):
            if index not in narrow:
                flat[self.span(index)].sub_(weights[self.span(index)])
        return flat

    def equal(self, parameters: Sequence[torch.Tensor], weights: torch.Tensor) -> bool:
        """Whether the parameters are what scattering these weights makes of them."""
        row = self.in_line(parameters)
        if row is not None:  # numpy takes a quarter of the time of `torch.equal`
            return np.array_equal(row.detach().numpy(), weights[: self.trained].numpy())
        return all(
            torch.equal(p.detach(), flat.to(p.device, p.dtype))
            for p, flat in zip(parameters, self._views(weights, parameters), strict=True)
        )

    def values(self, parameters: Sequence[torch.Tensor], place: slice) -> torch.Tensor:
        """The parameters' values at that place of the flat buffer, as far as they lie there; to be
        read at once."""
        place = self._of_parameters(place)
        row = self.in_line(parameters)
        if row is not None:
            return row[place]
        flat = torch.empty(place.stop - place.start, dtype=self.dtype)
        with torch.no_grad():
            for index in range(len(parameters)):
                span = self.span(index)
                first, last = max(span.start, place.start), min(span.stop, place.stop)
                if first < last:
                    part = parameters[index].reshape(-1)[first - span.start : last - span.start]
                    flat[first - place.start : last - place.start].copy_(part)
        return flat

    def scatter(self, weights: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Write flat weights into the parameters, rounded where they have fewer bits."""
        row = self.in_line(parameters)
        if row is not None:
            row.copy_(weights[: self.trained])
            return
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), self._views(weights, parameters))

    def ahead(
        self,
        parameters: Sequence[torch.Tensor],
        weights: torch.Tensor,
        place: slice = slice(None),
    ) -> Ahead:
        """Set aside what the parameters have and `weights`, about to change, has not. `place`: it
        changes nowhere else."""
        return Ahead(self, parameters, weights, self._of_parameters(place))

    def _of_parameters(self, place: slice) -> slice:
        """As much of a place as parameters lie in."""
        start, stop, _ = place.indices(self.size)
        return slice(min(start, self.trained), min(stop, self.trained))

    def _views(
        self, weights: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The flat weights in the shapes of these; those of the last buffer are kept."""
        if self._viewed is not weights:
            self._viewed = weights
            self._shaped = self._shapes(weights)
        return self._shaped[: len(parameters)]

    def _shapes(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [flat[self.span(i)].view(t.shape) for i, t in enumerate(self.tensors)]

    def difference(self, theirs: Sequence[TensorSpec]) -> str:
        """What another model has, lacks or has in another shape; empty: nothing."""
        mine, kept = _by_name(self.tensors)
        other, theirs_kept = _by_name(theirs)
        if mine == other and kept != theirs_kept:
            here, there = ("has not", "has") if theirs_kept else ("has", "has not")
            return (
                f"{there} everybody's second moments in it and this node {here}: all members need"
                ' the same word for data, and with "own" the same kind of optimizer'
            )
        found = [f"lacks {tensor}" for name, tensor in mine.items() if name not in other]
        found += [f"has {tensor} more" for name, tensor in other.items() if name not in mine]
        found += [
            f"has {other[name]}, here it is {tensor.dtype}{list(tensor.shape)}"
            for name, tensor in mine.items()
            if name in other and other[name] != tensor
        ]
        if not found and tuple(theirs) != self.tensors:
            found = ["has the same tensors in another order"]
        more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        return "; ".join(found[:SHOWN_MAX]) + more


def _by_name(
    tensors: Sequence[TensorSpec],
) -> tuple[dict[str, TensorSpec], dict[str, TensorSpec]]:
    """Those of the model, and second moments."""
    mine = {t.name: t for t in tensors if not t.name.startswith(second_moments.PREFIX)}
    return mine, {t.name: t for t in tensors if t.name not in mine}


class Ahead:
    """Local steps that are not published yet, while the weights below them change.

    In the memory of the parameters themselves where that can be done; models may be large.
    """

    __slots__ = ("_flat", "_layout", "_parameters", "_place", "_row")

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.Tensor],
        weights: torch.Tensor,
        place: slice,
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._flat: torch.Tensor | None = None
        self._row = layout.in_line(parameters)
        self._place = place
        if self._row is not None:
            self._row[place].sub_(weights[place])
        elif all(p.is_cpu and p.dtype is layout.dtype for p in parameters):
            with torch.no_grad():
                torch._foreach_sub_(list(parameters), layout._views(weights, parameters))
        else:
            self._flat = layout.gained(parameters, weights)

    def put_back(self, weights: torch.Tensor) -> None:
        """Onto the weights as they are now, in whichever buffer that is."""
        if self._row is not None:
            self._row[self._place].add_(weights[self._place])
        elif self._flat is not None:
            values = self._layout._shapes(self._flat.add_(weights))[: len(self._parameters)]
            with torch.no_grad():
                torch._foreach_copy_(list(self._parameters), values)
        else:
            values = self._layout._views(weights, self._parameters)
            with torch.no_grad():
                torch._foreach_add_(list(self._parameters), values)
