"""Nested plain values with tensors in them, as JSON and named tensors: an optimizer's state.

Only what can be read back without running code: numbers, text, None, lists, tuples, dicts, tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

DEPTH_MAX = 32


class Unpackable(Exception):
    """Says where something stands that is no plain value."""


def pack(value: object, put: Callable[[str, torch.Tensor], None], path: str = "") -> Any:
    """`value` as JSON; each tensor is `put` under the path to it."""
    if path.count("/") > DEPTH_MAX:
        raise Unpackable(f"{path[:80]} is nested too deep")
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        case torch.Tensor():
            put(path, value)
            return {"tensor": path}
        case dict():
            pairs = [
                [pack(key, _no_tensor, path), pack(each, put, _below(path, key))]
                for key, each in value.items()
            ]
            return {"dict": pairs}
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            if type(value) not in (list, tuple):
                raise Unpackable(f"{path or 'it'} is a {type(value).__name__}")
            return {kind: [pack(each, put, _below(path, i)) for i, each in enumerate(value)]}
    raise Unpackable(f"{path or 'it'} is a {type(value).__name__}")


def unpack(packed: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value again; ValueError: `pack` did not make this."""
    if packed is None or isinstance(packed, bool | int | float | str):
        return packed
    if not isinstance(packed, dict) or len(packed) != 1:
        raise ValueError(f"{str(packed)[:40]!r} is no packed value")
    ((kind, content),) = packed.items()
    match kind, content:
        case "float", "inf" | "-inf" | "nan":
            return float(content)
        case "tensor", str() if content in tensors:
            return tensors[content]
        case "list", list():
            return [unpack(each, tensors) for each in content]
        case "tuple", list():
            return tuple(unpack(each, tensors) for each in content)
        case "dict", list():
            return {_key(pair): unpack(pair[1], tensors) for pair in content}
    raise ValueError(f"{str(packed)[:40]!r} is no packed value")


def _key(pair: Any) -> Any:
    if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], list | dict):
        raise ValueError(f"{str(pair)[:40]!r} is no pair")
    return pair[0]


def _below(path: str, key: object) -> str:
    if not isinstance(key, bool | int | str):
        raise Unpackable(f"{path or 'it'} has a {type(key).__name__} for a key")
    return f"{path}/{key}" if path else str(key)


def _no_tensor(path: str, _: torch.Tensor) -> None:
    raise Unpackable(f"{path or 'it'} has a tensor for a key")
