"""From a model and one example of its input to its `Structure`, checked before it is used."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from murmurate.core.partition import rewrite
from murmurate.core.partition.atoms import SHARED as SHARED_ATOM
from murmurate.core.partition.atoms import Atoms
from murmurate.core.partition.labels import Found
from murmurate.core.partition.spread import Spread
from murmurate.core.partition.structure import SHARED, Group, Indices, Rewrite, Structure, Tensor
from murmurate.core.partition.subnet import cut, hollow, masked, weights_of
from murmurate.errors import ConfigError

TOLERANCE = 1e-8
"""Between a subnet and the masked model, both in float64, relative to the largest output."""


def analyse(model: nn.Module, example: tuple[Any, ...]) -> Structure:
    """Find the units of a model. `example`: what its `forward` takes, a small batch will do.

    The structure is then tried: some units are cut away, and the subnet must do what the whole
    model does without them. So a model that is misunderstood is refused, not trained wrongly.
    """
    check(model)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ConfigError(f"model: {name} is on the meta device, it has no values")
    return _found(model, copy.deepcopy(model).double().train(), _wide(example))


def observe(model: nn.Module, example: tuple[Any, ...]) -> Structure:
    """The same from shapes alone, on the meta device: it holds no values and computes none.

    So the structure is not tried. For a member: its coordinator has tried it, and they compare
    digests. The model and the example may be on the meta device themselves. A model whose code
    looks at values cannot be run there: it is analysed as it is, if it has any.
    """
    check(model)
    try:
        return _found(model, hollow(model).double().train(), _on_meta(_wide(example)))
    except (RuntimeError, NotImplementedError) as error:
        if not any(p.is_meta for p in model.parameters()):
            return analyse(model, example)
        why = " ".join(str(error).split())[:160]
        raise ConfigError(f"model: it cannot be run on the meta device ({why})") from error


def _found(model: nn.Module, wide: nn.Module, example: tuple[Any, ...]) -> Structure:
    structure = _observe(wide, example)
    problem = _problem(wide, structure, example)
    if problem:  # sizes are written into the model's code: they must be changed there
        traced = rewrite.trace(wide, problem)
        structure = _observe_traced(traced, example)
        problem = _problem(traced, structure, example)
    if problem:
        raise ConfigError(f"model: a subnet of it does not do what it should: {problem}")
    return _of(structure, model)


def check(model: nn.Module) -> None:
    """Refuse what no subnet can be made of, naming the layer."""
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ConfigError(f"model: {name} has no shape yet: pass one batch through first")
        if parameter.is_sparse:
            raise ConfigError(f"model: {name} is sparse, expected a dense tensor")


def _observe(model: nn.Module, example: tuple[Any, ...]) -> Structure:
    spread = Spread(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), spread:
        out = model(*example)
    spread.labels.keep_whole(out, "it is the model's output")
    return _structure(spread.labels.atoms, spread.labels.found, model, ())


def _observe_traced(model: torch.fx.GraphModule, example: tuple[Any, ...]) -> Structure:
    spread = Spread(model)
    results: list[tuple[str, tuple[int, ...], torch.Tensor]] = []

    class Watched(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            out = super().run_node(n)
            if rewrite.names_sizes(n):
                for piece in out if isinstance(out, list | tuple) else [out]:
                    atoms = spread.labels.label(piece)
                    if atoms is not None:
                        results.append((n.name, tuple(piece.shape), atoms))
            return out

    with torch.random.fork_rng(devices=[]), torch.no_grad(), spread:
        out = Watched(model).run(*example)
    spread.labels.keep_whole(out, "it is the model's output")
    return _structure(spread.labels.atoms, spread.labels.found, model, tuple(results))


def _structure(
    atoms: Atoms,
    found: Found,
    model: nn.Module,
    results: tuple[tuple[str, tuple[int, ...], torch.Tensor], ...],
) -> Structure:
    """Number the units: joined atoms are one, axes that have a unit in common are one group."""
    rows: dict[tuple[str, int], list[int]] = {}
    for name, axes in found.axes.items():
        for axis, it in axes.items():
            rows[name, axis] = atoms.roots(it.atoms).tolist()
    group_of: dict[int, int] = {}  # root -> a root that stands for the group

    def leader(root: int) -> int:
        while group_of.setdefault(root, root) != root:
            root = group_of[root]
        return root

    for roots in rows.values():
        mine = [r for r in dict.fromkeys(roots) if r != SHARED_ATOM]
        for root in mine[1:]:
            a, b = leader(mine[0]), leader(root)
            group_of[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = {}
    for root in sorted(group_of):
        members.setdefault(leader(root), []).append(root)
    number: dict[int, int] = {}
    groups: list[Group] = []
    for first, roots in members.items():
        if len(roots) < 2:
            found.reasons.setdefault(atoms.source(first), "all of it belongs together: one unit")
            continue
        groups.append(Group(_title(atoms.source(first)), len(number), len(roots)))
        for root in roots:
            number[root] = len(number)
    numbered = {
        key: np.array([number.get(root, SHARED) for root in roots], dtype=np.int64)
        for key, roots in rows.items()
    }
    tensors = {}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    for name, value in weights_of(model).items():
        dealt = [numbered.get((name, axis)) for axis in range(value.dim())]
        known = found.axes.get(name, {})
        tensors[name] = Tensor(
            name=name,
            shape=tuple(value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            axes=tuple(u if u is not None and (u >= 0).any() else None for u in dealt),
            inward=tuple(a in known and known[a].inward for a in range(value.dim())),
            trained=name in trained,
        )
    return Structure(
        groups=tuple(groups),
        tensors=tensors,
        heads={p: (s, _units(atoms, h, number)) for p, (s, h) in found.heads.items()},
        reasons={_title(source): why for source, why in found.reasons.items()},
        normed=frozenset(found.normed),
        rewrites=tuple(
            Rewrite(node, units, shape)
            for node, shape, label in results
            if ((units := _units(atoms, label, number)) >= 0).any()
        ),
    )


def _units(atoms: Atoms, label: torch.Tensor, number: Mapping[int, int]) -> Indices:
    roots = atoms.roots(label)
    flat = [number.get(root, SHARED) for root in roots.reshape(-1).tolist()]
    return np.array(flat, dtype=np.int64).reshape(tuple(roots.shape))


def _title(source: str) -> str:
    """`fc1.weight\t0` -> `fc1`; `attention\theads` -> `attention.heads`; `table\t1` -> `table`."""
    name, _, axis = source.partition("\t")
    if axis == "heads":
        return f"{name}.heads" if name else "heads"
    return name.removesuffix(".weight") or name


def _of(structure: Structure, model: nn.Module) -> Structure:
    """The same, with the model's own dtypes: it was looked at in float64."""
    values = weights_of(model)
    tensors = {
        name: Tensor(
            name=name,
            shape=t.shape,
            dtype=str(values[name].dtype).removeprefix("torch."),
            axes=t.axes,
            inward=t.inward,
            trained=t.trained,
        )
        for name, t in structure.tensors.items()
    }
    return Structure(
        groups=structure.groups,
        tensors=tensors,
        heads=structure.heads,
        reasons=structure.reasons,
        normed=structure.normed,
        rewrites=structure.rewrites,
    )


def _problem(model: nn.Module, structure: Structure, example: tuple[Any, ...]) -> str:
    """What goes wrong with a subnet of about half the units; empty: nothing."""
    if not structure.groups:
        return ""
    held = structure.nothing()
    for group in structure.groups:
        held[[u for u in group.units if (u - group.first) % 5 in (0, 3)]] = True
    subnet = cut(model, structure, held, scale=False).eval()
    values = not any(p.is_meta for p in model.parameters())
    whole = masked(model, structure, held).eval() if values else model
    with torch.random.fork_rng(devices=[]):
        expected = _flat(whole(*copy.deepcopy(example)))
        try:
            got = _flat(subnet(*copy.deepcopy(example)))
        except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
            return " ".join(str(error).split())[:200] or type(error).__name__
    if got.shape != expected.shape:
        return f"its output has {got.numel()} elements, expected {expected.numel()}"
    if not got.numel() or not values:
        return ""
    apart = float((got - expected).abs().max())
    largest = max(1.0, float(expected.abs().max()))
    if not apart <= TOLERANCE * largest:
        return f"its output is off by {apart:.3g}"
    return ""


def _flat(out: Any) -> torch.Tensor:
    if isinstance(out, torch.Tensor):
        return out.detach().double().reshape(-1)
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, list | tuple):
        parts = [_flat(o) for o in out if o is not None]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    return torch.zeros(0, dtype=torch.float64)


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, list | tuple):
        return type(value)(_on_meta(v) for v in value)
    return value


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(_wide(v) for v in value)
    return value
