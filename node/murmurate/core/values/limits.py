"""Limits of the fields of messages: what a stranger's value must be before it is believed.

A field of a message carries its limit in its annotation: `number: Number`, `rumours:
Annotated[tuple[Rumour, ...], Few(64)]`. Whoever reads messages (`edge/net/shapes.py`) makes a check
of each limit once, at import. To the type checker the field is a plain `int`, `str` or tuple.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import call
from typing import (
    Annotated,
    Any,
    Protocol,
    get_args,
    get_type_hints,
    runtime_checkable,
)

from murmurate.core.intervals import SEQ_MAX, Runs, runs_problem
from murmurate.errors import RemoteProtocolError

NAME_BYTES_MAX = 128
"""Names of peers and runs, reasons."""
LINE_BYTES_MAX = 1024
"""Addresses, sentences, names of tensors."""

Check = Callable[[Any], Any]
"""Gives back the value, or raises a `RemoteProtocolError` that names the field."""


@runtime_checkable
class Limit(Protocol):
    """What a value must be."""

    def check(self, field: str) -> Check: ...


@dataclass(frozen=True, slots=True)
class Anything:
    """Every value of the type may come; the reason stands beside the field."""

    def check(self, field: str) -> Check:
        return _as_it_is


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number from `least` to `most`, both included."""

    least: int = 0
    most: int = SEQ_MAX

    def check(self, field: str) -> Check:
        least, most = self.least, self.most

        def checked(value: int) -> int:
            if least <= value <= most:
                return value
            raise RemoteProtocolError(field, f"{value}, expected {least} to {most}")

        return checked


@dataclass(frozen=True, slots=True)
class FromZero:
    """A finite number that is not negative, and not above `most`."""

    most: float = math.inf

    def check(self, field: str) -> Check:
        most = self.most
        expected = "a number from 0 on" if math.isinf(most) else f"0 to {most:g}"

        def checked(value: float) -> float:
            if 0.0 <= value <= most and value < math.inf:
                return value
            raise RemoteProtocolError(field, f"{value:g}, expected {expected}")

        return checked


@dataclass(frozen=True, slots=True)
class Finite:
    """A number that is one."""

    def check(self, field: str) -> Check:
        def checked(value: float) -> float:
            if math.isfinite(value):
                return value
            raise RemoteProtocolError(field, f"{value:g}, expected a number")

        return checked


@dataclass(frozen=True, slots=True)
class Printable:
    """Text in one line; `empty`: it may be missing."""

    bytes_max: int
    empty: bool

    def check(self, field: str) -> Check:
        bytes_max, empty = self.bytes_max, self.empty
        surely = bytes_max // 4  # no character takes more than four bytes

        def checked(value: str) -> str:
            if not value:
                if empty:
                    return value
                raise RemoteProtocolError(field, "empty")
            if len(value) <= surely and value.isprintable():
                return value
            if len(value) > bytes_max:  # said without the value, which may be long
                raise RemoteProtocolError(
                    field, f"{len(value)} characters, at most {bytes_max} bytes"
                )
            if problem := name_problem(value, bytes_max):
                raise RemoteProtocolError(field, problem)
            return value

        return checked


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, field: str) -> Check:
        words = frozenset(self.words)
        said = ", ".join(self.words)

        def checked(value: str) -> str:
            if value in words:
                return value
            raise RemoteProtocolError(field, f"{value[:20]!r}, one of {said}")

        return checked


@dataclass(frozen=True, slots=True)
class Octets:
    """So many bytes; `empty`: or none."""

    least: int
    most: int
    empty: bool = False

    def check(self, field: str) -> Check:
        least, most, empty = self.least, self.most, self.empty
        expected = f"expected {least} to {most}" if least else f"at most {most}"
        if least == most:
            expected = f"expected {most}"
        if empty:
            expected += " or none"

        def checked(value: bytes) -> bytes:
            if least <= len(value) <= most or (empty and not value):
                return value
            raise RemoteProtocolError(field, f"{len(value)} bytes, {expected}")

        return checked


@dataclass(frozen=True, slots=True)
class Few:
    """At most so many items, looked at before any of them is."""

    most: int

    def check(self, field: str) -> Check:
        most = self.most

        def checked(items: Sequence[Any]) -> Sequence[Any]:
            if len(items) <= most:
                return items
            raise RemoteProtocolError(field, f"{len(items)}, at most {most}")

        return checked


@dataclass(frozen=True, slots=True)
class ByName:
    """Tuples that begin with a name, sorted by it, none twice."""

    def check(self, field: str) -> Check:
        def checked(items: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
            previous = ""
            for name, *_ in items:
                if name <= previous:
                    raise RemoteProtocolError(field, f"{name!r} is not in order")
                previous = name
            return items

        return checked


@dataclass(frozen=True, slots=True)
class Ascending:
    """Ends of runs, as `core/intervals.py` has them; `empty`: or none."""

    empty: bool = False

    def check(self, field: str) -> Check:
        empty = self.empty

        def checked(runs: Runs) -> Runs:
            if not runs and empty:
                return runs
            if problem := runs_problem(runs):
                raise RemoteProtocolError(field, problem)
            return runs

        return checked


@dataclass(frozen=True, slots=True)
class WireNames:
    """The names that the places of a plain tuple, or a field, have on the wire.

    An empty name: the names of the tuple in that place stand beside the others.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


Number = Annotated[int, Count()]
AnyNumber = Annotated[int, Anything()]
Ordinal = Annotated[int, Count(1)]
"""Lives, updates, transfers: they are counted from 1."""
Name = Annotated[str, Printable(NAME_BYTES_MAX, empty=False)]
NameOrNone = Annotated[str, Printable(NAME_BYTES_MAX, empty=True)]
Line = Annotated[str, Printable(LINE_BYTES_MAX, empty=True)]
Amount = Annotated[float, FromZero()]
Figure = Annotated[float, Anything()]
"""Something measured: also not a number, when it is not known or that is what came out."""


class Checked:
    """A message that holds the limits of its fields against itself, also when it was made here."""

    __slots__ = ()

    def __post_init__(self) -> None:
        made: Any = type(self)
        for name, check in _checks(made, made.__name__.lower()):
            check(getattr(self, name))


def name_problem(name: str, bytes_max: int) -> str:
    """Why this cannot be an origin's name; empty: it can."""
    if not name or not name.isprintable():
        return f"{name!r} is not a printable name"
    size = len(name.encode())
    return "" if size <= bytes_max else f"a name of {size} bytes, at most {bytes_max}"


@cache
def _checks(cls: Any, path: str) -> list[tuple[str, Check]]:
    hints = get_type_hints(cls, include_extras=True)
    made = [(each.name, _check(hints[each.name], f"{path}.{each.name}")) for each in fields(cls)]
    return [(name, check) for name, check in made if check is not _as_it_is]


def _check(hint: Any, path: str) -> Check:
    """The check of a value that may hold others."""
    limits = getattr(hint, "__metadata__", ())
    bare = hint.__origin__ if limits else hint
    checks = [each.check(path) for each in limits if isinstance(each, Limit)]
    places = get_args(bare)
    if hasattr(bare, "_fields"):  # a named tuple
        places = tuple(get_type_hints(bare, include_extras=True).values())
    if is_dataclass(bare):
        made: Any = bare
        inner = _checks(made, path)
        checks.append(lambda value: [check(getattr(value, name)) for name, check in inner])
    elif places[-1:] == (...,):
        each_one = _check(places[0], path)
        checks.append(lambda values: [each_one(value) for value in values])
    elif places:
        each_place = [_check(place, path) for place in places]
        checks.append(lambda values: [*map(call, each_place, values)])
    match checks:
        case []:
            return _as_it_is
        case [check]:
            return check
    return lambda value: [check(value) for check in checks]


def _as_it_is(value: Any) -> Any:
    return value
