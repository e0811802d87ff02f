"""What a swarm trains: a model, its data and how well it does.

A workload is any object with the attributes of `Workload`. Those of this folder have a name; your
own is loaded from `my_file.py:Workload`. Importing this package does not import torch.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from murmurate.errors import ConfigError
from murmurate.workloads.split import Split, parse_split, split

if TYPE_CHECKING:
    import torch

    from murmurate.core.values.recipe import Recipe

__all__ = [
    "NAMES",
    "DataShare",
    "Evaluation",
    "Split",
    "Workload",
    "check",
    "load",
    "parse_split",
    "split",
]


@dataclass(frozen=True, slots=True)
class DataShare:
    """Which samples a peer trains on, and in which order.

    `count` peers split the data with the same `seed`; this one is number `index`, from 0. The seed
    is the swarm's: it must be the same for all. The order differs from peer to peer nevertheless.
    """

    index: int
    count: int
    split: Split
    seed: int
    batch_size: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"share {self.index}/{self.count}: shares are counted from 0")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size {self.batch_size}: must be at least 1")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed {self.seed}: must be from 0 to 2^64 - 1")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model does on data that it is not trained on; accuracy is from 0 to 1, nan where
    there is none."""

    loss: float
    accuracy: float
    accuracy_of: tuple[float, ...] = ()
    """By class, where there are classes; nan for one of which the data have none."""
    precision_of: tuple[float, ...] = ()
    """Of what was put into a class, how much belongs there; 0 where nothing was."""


class Workload(Protocol):
    """What a node needs to know to train something.

    One that can also keep a part of its training data for validation (`--validation`) has two
    methods more: `hold_out(part, seed)`, called once before `batches`, takes that part out of the
    training data, the same on every node; `validate(model)` is `evaluate` on it.
    """

    name: str
    batch_size: int  # default
    lr: float  # default; `optimizer` uses what stands here when it is called
    samples: int  # default budget of the whole swarm, for `murmurate up`

    def model(self) -> torch.nn.Module:
        """A new model, initialised from torch's generator, which the caller has seeded."""

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer: ...

    def batches(self, share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
        """Batches without end, each of exactly `share.batch_size` samples."""

    def loss(self, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor: ...

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        """On the test set. Leaves the model in training mode."""


ATTRIBUTES = ("name", "batch_size", "lr", "samples")
METHODS = ("model", "optimizer", "batches", "loss", "evaluate")

# name -> module and class: modules import torch, so they are loaded when they are asked for
_BUILT_IN = {
    "digits": ("digits", "Digits"),
    "digits-bn": ("digits", "DigitsNormed"),
    "fashion-mnist": ("fashion_mnist", "FashionMnist"),
    "fashion-mnist-bn": ("fashion_mnist", "FashionMnistNormed"),
    "fashion-mnist-mlp": ("fashion_mnist", "FashionMnistMlp"),
    "lstm": ("lstm", "Lstm"),
    "word2vec": ("word2vec", "Word2Vec"),
    "char-transformer": ("char_transformer", "CharTransformer"),
    "synthetic": ("synthetic", "Synthetic"),
}
NAMES = tuple(_BUILT_IN)


_CLASSES = dict.fromkeys([*list(_BUILT_IN)[:6]], 10)
"""Labels of those workloads whose number is known without their files."""


def check_split(spec: str, split: str, nodes: int) -> None:
    """ConfigError if it is known before anything is loaded that this split is impossible."""
    classes = _CLASSES.get(spec.partition(":")[0])
    if split == "labels" and classes is not None and nodes > classes:
        raise ConfigError(
            f"split labels: there are {classes} labels for {nodes} peers; take fewer peers,"
            " dataset or dirichlet(α)"
        )


def _check_class(spec: str, file: Path, name: str) -> None:
    """Whether such a file has such a class, without running it: what it imports may take long."""
    if not name.isidentifier():
        raise ConfigError(f"workload {spec!r}: expected FILE.py:CLASS")
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"workload {file}{line}: {type(error).__name__}: {error}") from None
    names: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef | ast.FunctionDef):
            names.add(each.name)
        elif isinstance(each, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in each.names}
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
    if name not in names and "*" not in names and "__getattr__" not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"workload {spec}: there is no {name} in {file}{hint}")


def check(spec: str, data: str | None) -> None:
    """ConfigError if it is known without torch that `load` would fail: an unknown name, files that
    are not there. For those who start processes that load it."""
    name, _, _ = spec.partition(":")
    if name not in _BUILT_IN:
        if ".py" not in spec:
            raise _unknown(spec, name)
        file, _, wanted = spec.rpartition(":")
        if not Path(file).is_file():
            raise ConfigError(f"workload {spec}: there is no file {file}")
        _check_class(spec, Path(file), wanted)
        return
    from murmurate.workloads import data as files

    try:
        match name:
            case "fashion-mnist" | "fashion-mnist-bn" | "fashion-mnist-mlp":
                files.FASHION_MNIST.files(data)
            case "lstm":
                files.MNIST.files(data)
            case "word2vec":
                files.text_file(data)
            case "char-transformer" if data is not None:
                files.text_file(data)
    except ConfigError as error:
        raise ConfigError(f"workload {spec}: {error}") from None


def _unknown(spec: str, name: str) -> ConfigError:
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    known = ", ".join(NAMES).replace("synthetic", "synthetic:PARAMETERS")
    return ConfigError(f"workload {spec!r}: expected {known} or FILE.py:CLASS{hint}")


def load(
    spec: str,
    *,
    data: str | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
    validation: float | None = None,
    seed: int = 0,
    recipe: Recipe | None = None,
) -> Workload:
    """The workload that `spec` names: `digits`, `synthetic:25000000`, `my_file.py:Workload`.

    `data` is where its files are, for those that need files; `lr`, `batch_size` and `samples`
    replace its defaults (None leaves them). `validation`: hold this part of the training data out,
    by `seed`, which is the swarm's. `recipe`: the optimizer it asks for is the workload's from then
    on. ConfigError, in one line, for whatever is not there.
    """
    name, _, argument = spec.partition(":")
    if name in _BUILT_IN:
        module, cls = _BUILT_IN[name]
        make = getattr(importlib.import_module(f"murmurate.workloads.{module}"), cls)
        workload = _make(spec, make, [argument] if argument else [], data)
    elif ".py" in spec:
        workload = _make(spec, _from_file(spec), [], data)
    else:
        raise _unknown(spec, name)
    if recipe is not None and recipe.optimizer == "sgd-adam":
        lr = None  # that one is Adam's, and SGD before it has the workload's own
    for key, value in (("lr", lr), ("batch_size", batch_size), ("samples", samples)):
        if value is not None:
            setattr(workload, key, value)
    checked = _checked(spec, workload)
    if recipe is not None and (recipe.optimizer is not None or recipe.options()):
        workload.optimizer = partial(_by_recipe, spec, workload.optimizer, recipe)
    if recipe is not None and recipe.batch_warmup:
        from murmurate.workloads.growing import unit_of

        unit_of(workload.batch_size)  # says now what cannot be
    if validation is not None:
        _hold_out(spec, workload, validation, seed)
    return checked


def _by_recipe(
    spec: str,
    own: Callable[[torch.nn.Module], torch.optim.Optimizer],
    recipe: Recipe,
    model: torch.nn.Module,
) -> torch.optim.Optimizer:
    from murmurate.training.recipes import made

    try:
        return made(own(model), model, recipe)
    except ConfigError as error:
        raise ConfigError(f"workload {spec}: {error}") from None


def _hold_out(spec: str, workload: Any, part: float, seed: int) -> None:
    methods = ("hold_out", "validate")
    lacking = [f"{each}()" for each in methods if not callable(getattr(workload, each, None))]
    if lacking:
        raise ConfigError(f"workload {spec}: lacks {', '.join(lacking)}, which validation needs")
    try:
        workload.hold_out(part, seed)
    except ConfigError as error:
        raise ConfigError(f"workload {spec}: {error}") from None


def _make(spec: str, make: Callable[..., object], arguments: list[str], data: str | None) -> Any:
    keywords = {} if data is None else {"data": data}
    try:
        inspect.signature(make).bind(*arguments, **keywords)
    except TypeError as error:
        given = " and ".join([f"argument {text!r}" for text in arguments] + [*keywords])
        problem = f"does not take {given}" if given else f"cannot be made: {error}"
        raise ConfigError(f"workload {spec}: {problem}") from None
    try:
        return make(*arguments, **keywords)
    except ConfigError as error:
        raise ConfigError(f"workload {spec}: {error}") from error.__cause__
    except OSError as error:
        raise ConfigError(f"workload {spec}: {error}") from error


def _from_file(spec: str) -> Callable[..., object]:
    """The class that FILE.py:CLASS names. It is the user's own code, on the user's own machine."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"workload {spec!r}: expected FILE.py:CLASS")
    if not path.is_file():
        raise ConfigError(f"workload {spec}: there is no file {file}")
    module_name = f"murmurate_workload_{path.stem}"
    found = importlib.util.spec_from_file_location(module_name, path.resolve())
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    folder = str(path.resolve().parent)
    sys.modules[module_name] = module  # dataclasses look their module up here
    sys.path.insert(0, folder)  # while it is loaded, so that it can import its neighbours
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        trace = error.__traceback__
        line = error.lineno if isinstance(error, SyntaxError) else None
        while trace is not None:
            if Path(trace.tb_frame.f_code.co_filename) == path.resolve():
                line = trace.tb_lineno
            trace = trace.tb_next
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        where = file if line is None else f"{file}:{line}"
        raise ConfigError(f"workload {where}: {type(error).__name__}: {message}") from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    make = getattr(module, name, None)
    if not callable(make):
        raise ConfigError(f"workload {spec}: {file} has no class {name}")
    return cast("Callable[..., object]", make)


def _checked(spec: str, workload: Any) -> Workload:
    """The same, once it is sure that what a node will ask for is there."""
    lacking = [name for name in ATTRIBUTES if not hasattr(workload, name)]
    lacking += [f"{name}()" for name in METHODS if not callable(getattr(workload, name, None))]
    if lacking:
        raise ConfigError(
            f"workload {spec}: lacks {', '.join(lacking)}; expected are "
            f"{', '.join(ATTRIBUTES)}, {'(), '.join(METHODS)}()"
        )
    for name in ("batch_size", "samples"):
        value = getattr(workload, name)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"workload {spec}: {name} {value!r}: must be a whole number above 0")
    if not isinstance(workload.lr, int | float) or not 0 < workload.lr < math.inf:
        raise ConfigError(f"workload {spec}: lr {workload.lr!r}: must be a number above 0")
    return cast("Workload", workload)
