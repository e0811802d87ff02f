"""A class of messages and its .proto message, compared and joined once, at import.

Every field of the one is a field of the other, of the same name and type, and carries a limit
(`core/values/limits.py`); otherwise a `TypeError` says what is missing. The rest becomes a `Shape`:
a function that writes values as protobuf's constructor takes them, and one that reads and checks.

Types: `int`, `float`, `str`, `bytes` and `bool` as they are; a `Clock` as bytes; a word of an enum
as `str`; classes and named tuples as messages, plain tuples too with the names of `WireNames`;
`tuple[X, ...]` and `Sequence[X]` as repeated fields, read as tuples; `X | None`: it may be missing.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, call
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from murmurate.core.clock import Clock
from murmurate.core.values.limits import Anything, Check, Checked, Few, Limit, WireNames
from murmurate.errors import RemoteProtocolError

Write = Callable[[Any], Any]
_PLAIN: dict[int, type] = {
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_UINT64: int,
    FieldDescriptor.TYPE_FIXED32: int,
    FieldDescriptor.TYPE_FIXED64: int,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
}


class Shape(NamedTuple):
    """How values of one type are written and read."""

    write: Write
    """Gives what protobuf's constructor takes."""
    read: Check
    kinds: frozenset[str] = frozenset()
    """The names of all .proto messages in it."""
    may_miss: bool = False
    """A message that is there or not; None stands for not."""


def shape_of(said: Any, kind: Descriptor, path: str, unwritten: Sequence[str] = ()) -> Shape:
    """The shape of a class, or tuple, that is said as this .proto message.

    `path` is how refusals begin. `unwritten`: fields that somebody else writes.
    """
    places = _places(said, kind)
    if wrong := {place.wire for place in places.all} ^ {field.name for field in kind.fields}:
        raise TypeError(f"{places.title} and {kind.full_name}: {', '.join(sorted(wrong))}")
    shapes = [
        _field_shape(place.hint, kind.fields_by_name[place.wire], path) for place in places.all
    ]
    kinds = frozenset({kind.full_name}).union(*(shape.kinds for shape in shapes))
    return Shape(_writer(places, shapes, unwritten), _reader(places, shapes), kinds)


def opened(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The bare type, what it is annotated with, and whether it may be None."""
    limits: tuple[Any, ...] = ()
    may_miss = False
    while True:
        if get_origin(hint) is Annotated:
            limits = (*hint.__metadata__, *limits)
            hint = hint.__origin__
        elif get_origin(hint) in (Union, types.UnionType):
            rest = [each for each in get_args(hint) if each not in (type(None), memoryview)]
            may_miss = may_miss or type(None) in get_args(hint)
            if len(rest) != 1:
                raise TypeError(f"{hint}: one type expected, or None")
            hint = rest[0]
        else:
            return hint, limits, may_miss


def words_of(enum: EnumDescriptor) -> tuple[str, ...]:
    """The words of an enum by number: STATE_ALIVE is "alive"; the first stands for none."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    if [value.number for value in enum.values] != list(range(len(enum.values))):
        raise TypeError(f"{enum.full_name}: numbers without gaps expected")
    return ("", *(value.name.removeprefix(prefix).lower() for value in enum.values[1:]))


# -- fields --------------------------------------------------------------------------------------


def _field_shape(hint: Any, field: FieldDescriptor, message_path: str) -> Shape:
    bare, limits, may_miss = opened(hint)
    path = f"{message_path}.{field.name}"
    many = get_origin(bare) is Sequence or get_args(bare)[-1:] == (...,)
    if bool(field.is_repeated) != many:
        raise TypeError(f"{path}: one or many? {hint} and {field.full_name} disagree")
    if many:
        return _many(get_args(bare)[0], limits, field, path)
    if not may_miss:
        return _one(bare, limits, field, path)
    if field.message_type is not None:
        return shape_of(hint, field.message_type, field.name)._replace(may_miss=True)
    one = _one(bare, limits, field, path)
    return one._replace(read=lambda value: one.read(value) if value else None)


def _many(hint: Any, limits: Any, field: FieldDescriptor, path: str) -> Shape:
    """The shape of a field that may come more than once; in a message it is a tuple."""
    few = next((each for each in limits if isinstance(each, Few)), None)
    if few is None:
        raise TypeError(f"{path}: no limit says how many there may be")
    most = few.most
    bare, of_each, _ = opened(hint)
    one = _one(bare, of_each, field, path)
    write, read = one.write, one.read
    plain_read = isinstance(read, type)

    def read_all(items: Sequence[Any]) -> tuple[Any, ...]:
        count = len(items)
        if count > most:
            raise RemoteProtocolError(path, f"{count}, at most {most}")
        if not count:
            return ()
        return tuple(items) if plain_read else tuple(map(read, items))

    def write_all(items: Sequence[Any]) -> list[Any] | None:
        return [write(item) for item in items] if items else None

    rest = [limit for limit in limits if limit is not few]
    plain = write is _itself
    return Shape(_itself if plain else write_all, _chained(read_all, rest, path), one.kinds)


def _one(bare: Any, limits: Any, field: FieldDescriptor, path: str) -> Shape:
    """The shape of a single value, or of one of many."""
    if field.message_type is not None:
        named = Annotated[(bare, *limits)] if limits else bare
        return shape_of(named, field.message_type, path)
    if field.enum_type is not None:
        return _word(bare, field, path)
    if bare is Clock and field.type == FieldDescriptor.TYPE_BYTES:
        return Shape(Clock.to_bytes, read_clock(path))
    plain = _PLAIN.get(field.type)
    if plain is None or bare is not plain:
        raise TypeError(f"{path}: {bare} cannot be said as {field.full_name}")
    if bare is not bool and not any(isinstance(each, Limit) for each in limits):
        raise TypeError(f"{path}: no limit says what it may be")
    # A type gives its own values back as they are, and is the quickest that does.
    return Shape(_itself, _chained(plain, limits, path))


def _word(bare: Any, field: FieldDescriptor, path: str) -> Shape:
    words = words_of(field.enum_type)
    if bare is not str:
        raise TypeError(f"{path}: {bare}, the words of {field.enum_type.full_name} are str")
    numbers = {word: number for number, word in enumerate(words) if number}

    def read(number: int) -> str:
        if 0 < number < len(words):
            return words[number]
        raise RemoteProtocolError(path, f"{number}, expected 1 to {len(words) - 1}")

    return Shape(numbers.__getitem__, read)


def read_clock(path: str) -> Check:
    """A check that makes a clock of its own form of bytes (docs/clock.md)."""

    def read(data: bytes) -> Clock:
        try:
            return Clock.from_bytes(data)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{path}: {error.field}", error.problem) from None

    return read


def _chained(first: Check, limits: Sequence[Any], path: str) -> Check:
    """One check after another; a type is no check and is left out when there are others."""
    checks: list[Check] = [each.check(path) for each in limits if _judges(each)]
    if not checks or not isinstance(first, type):
        checks.insert(0, first)
    if len(checks) == 1:
        return checks[0]

    def read(value: Any) -> Any:
        for check in checks:
            value = check(value)
        return value

    return read


def _judges(limit: Any) -> bool:
    return isinstance(limit, Limit) and not isinstance(limit, Anything)


# -- classes and tuples --------------------------------------------------------------------------


class _Place(NamedTuple):
    """A field of a class, or a place of a tuple."""

    name: str
    wire: str
    hint: Any


class _Places(NamedTuple):
    """What a class, or tuple, consists of."""

    title: str
    all: list[_Place]
    take: Callable[[Any], Sequence[Any]]
    """The values of all places, in order."""
    make: Callable[[Iterable[Any]], Any]
    filled: type | None = None
    """A class whose slots are filled instead."""


def _places(said: Any, kind: Descriptor) -> _Places:
    bare, marks, _ = opened(said)
    if dataclasses.is_dataclass(bare) and isinstance(bare, type):
        hints = get_type_hints(bare, include_extras=True)
        fields = dataclasses.fields(bare)
        places = [_Place(each.name, *_wire(each.name, hints[each.name])) for each in fields]
        take = _getter([each.name for each in fields])
        return _Places(bare.__name__, places, take, tuple, filled=bare)
    if hasattr(bare, "_make"):  # a named tuple
        hints = get_type_hints(bare, include_extras=True)
        places = [_Place(name, name, hints[name]) for name in bare._fields]
        return _Places(bare.__name__, places, _itself, bare._make)
    named = next((each for each in marks if isinstance(each, WireNames)), None)
    if get_origin(bare) is not tuple or named is None:
        raise TypeError(f"{bare} cannot be said as {kind.full_name}")
    places = [
        _Place(name, name, hint) for name, hint in zip(named.names, get_args(bare), strict=True)
    ]
    if places[0].name:
        return _Places(kind.name, places, _itself, tuple)
    inner = _places(places[0].hint, kind)
    many = len(inner.all)
    return _Places(
        kind.name,
        [*inner.all, *places[1:]],
        lambda value: (*value[0], *value[1:]),
        lambda values: _folded(tuple(values), many),
    )


def _wire(name: str, hint: Any) -> tuple[str, Any]:
    """The name on the wire, which is another where the class says so."""
    bare, marks, _ = opened(hint)
    named = next((each for each in marks if isinstance(each, WireNames)), None)
    if named is None or get_origin(bare) is tuple:
        return name, hint
    return named.names[0], hint


def _writer(places: _Places, shapes: list[Shape], unwritten: Sequence[str]) -> Write:
    kept = [place for place in places.all if place.wire not in unwritten]
    wires = [place.wire for place in kept]
    take = _getter([place.name for place in kept]) if unwritten else places.take
    writes = [
        (place.wire, shape.write)
        for place, shape in zip(places.all, shapes, strict=True)
        if shape.write is not _itself
    ]
    # With `strict` zip would take twice as long.
    if not writes:
        return lambda value: dict(zip(wires, take(value)))  # noqa: B905

    def write(value: Any) -> dict[str, Any]:
        said = dict(zip(wires, take(value)))  # noqa: B905
        for wire, convert in writes:
            part = said[wire]
            if part is not None:
                said[wire] = convert(part)
        return said

    return write


def _reader(places: _Places, shapes: list[Shape]) -> Check:
    both = list(zip(places.all, shapes, strict=True))
    always = [(place, shape) for place, shape in both if not shape.may_miss]
    take = _getter([place.wire for place, _ in always])
    checks = [shape.read for _, shape in always]
    cls, make = places.filled, places.make
    if cls is None:
        return lambda m: make(map(call, checks, take(m)))
    # A frozen class with slots is filled slot by slot: half the time of its `__init__`, which
    # would be given every field by name.
    new: Callable[[type], Any] = object.__new__
    setters = [getattr(cls, place.name).__set__ for place, _ in always]
    optional = [
        (getattr(cls, place.name).__set__, place.wire, shape.read)
        for place, shape in both
        if shape.may_miss
    ]
    after = getattr(cls, "__post_init__", None)
    if after is Checked.__post_init__:  # that is what the checks have done
        after = None

    def read(m: Any) -> Any:
        made = new(cls)
        for _ in map(call, setters, repeat(made), map(call, checks, take(m))):
            pass
        for put, wire, read_part in optional:
            put(made, read_part(getattr(m, wire)) if m.HasField(wire) else None)
        if after is not None:
            after(made)
        return made

    return read


def _getter(names: list[str]) -> Callable[[Any], Sequence[Any]]:
    match names:
        case []:
            return lambda value: ()
        case [name]:
            return lambda value: (getattr(value, name),)
    return attrgetter(*names)


def _itself(value: Any) -> Any:
    return value


def _folded(values: tuple[Any, ...], many: int) -> tuple[Any, ...]:
    return (values[:many], *values[many:])
