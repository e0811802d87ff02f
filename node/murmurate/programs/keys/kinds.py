"""One value of a configuration: what text becomes, and what is accepted.

A kind of value is how it is written (`WrittenForm`) and a check, which takes what a TOML file holds
and gives back what is run with, or raises `Wrong` with a sentence on what is accepted. The caller
knows the key and the place.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from murmurate.core.clock import ClockLimits
from murmurate.core.codecs.choice import CODECS, EXPECTED, parse_codec
from murmurate.core.values.addresses import DNS, place_of, split_address, wildcard
from murmurate.core.values.limits import name_problem
from murmurate.core.values.names import nearest, ordinal
from murmurate.core.values.recipe import Schedule, parse_schedule
from murmurate.core.values.slowness import EXPECTED as SLOW_EXPECTED
from murmurate.core.values.slowness import Slowness, parse_slowness
from murmurate.errors import ConfigError

STDIN = "-"
"""In place of peers: one line with them comes on standard input (`murmurate up` does this)."""
ORDINAL = "ordinal"


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the data this node trains on: part `index` (from 0 on) of `count`."""

    index: int = 0
    count: int = 1
    ordinal: bool = False
    """The number at the end of the node's name is still to be added to the index (`of`)."""

    def of(self, name: str) -> Shard | None:
        """This node's; None: its name does not end in a number."""
        if not self.ordinal:
            return self
        number = ordinal(name)
        return None if number is None else Shard((self.index + number) % self.count, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Wrong(Exception):
    """Says what is accepted instead."""


class WrittenForm(NamedTuple):
    """How a value is written: its name, its placeholder in --help, and how text becomes one."""

    name: str
    metavar: str
    from_text: Callable[[str], object]

    @property
    def accepted(self) -> str:
        return self.name if self in (FLAG, TEXT) else f"a {self.name}"


def _from_flag(text: str) -> object:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise ValueError
    return known[text.lower()]


def _from_list(text: str) -> object:
    return [part for part in re.split(r"[,\s]+", text) if part]


TEXT = WrittenForm("text", "NAME", str)
ADDRESS = WrittenForm("text", "HOST:PORT", str)
FILE = WrittenForm("text", "FILE", str)
FOLDER = WrittenForm("text", "DIR", str)
WHOLE = WrittenForm("whole number", "N", int)
SIZE = WrittenForm("size", "SIZE", str)
NUMBER = WrittenForm("number", "X", float)
FLAG = WrittenForm("true or false", "true|false", _from_flag)
SLOW = WrittenForm("number of seconds, or a distribution", "S", str)
LIST = WrittenForm("list of text", "HOST:PORT", _from_list)


T = TypeVar("T")
Taken = TypeVar("Taken", covariant=True)


@dataclass(frozen=True, slots=True)
class KeyKind(Generic[Taken]):
    """What a key takes: how it is written, what is accepted, and how the reference names it."""

    form: WrittenForm
    check: Callable[[object], Taken]
    says: str


def is_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("expected text in quotes")
    return value


def is_name(value: object) -> str:
    text = is_text(value)
    if problem := name_problem(text, ClockLimits().name_bytes_max):
        raise Wrong(f"{problem}; expected a short printable name")
    return text


def is_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong("expected true or false")
    return value


def whole(least: int, most: int | None = None) -> KeyKind[int]:
    """A whole number, that one or more, and at most the other."""
    accepted = f"from {least} on" if most is None else f"from {least} to {most:,}"
    end = 2**63 - 1 if most is None else most

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= end:
            raise Wrong(f"expected a whole number {accepted}")
        return value

    return KeyKind(WHOLE, check, f"whole number {accepted.removesuffix(' on')}")


def number(least: float, *, above: bool = False) -> KeyKind[float]:
    """A finite number, that one or more; `above`: more."""
    accepted = f"expected a number {'above' if above else 'from'} {least:g}{'' if above else ' on'}"

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong(accepted)
        if not math.isfinite(value) or value < least or (above and value == least):
            raise Wrong(accepted)
        return float(value)

    return KeyKind(NUMBER, check, f"number {'above' if above else 'from'} {least:g}")


def is_part(value: object) -> float:
    """Of a whole: neither nothing nor all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise Wrong("expected a part above 0 and below 1, such as 0.1")
    return float(value)


def is_below_one(value: object) -> float:
    """Of a whole, or a momentum: nothing of it, or some."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise Wrong("expected a number from 0 on and below 1, such as 0.1")
    return float(value)


def is_schedule(value: object) -> Schedule:
    try:
        return parse_schedule(is_text(value))
    except ConfigError as error:
        raise Wrong(str(error).partition(": ")[2]) from None


def is_slowness(value: object) -> Slowness:
    """Seconds, as a number or as text, or a distribution of them."""
    text = str(value) if isinstance(value, str | int | float) else ""
    try:
        return parse_slowness("" if isinstance(value, bool) else text)
    except ConfigError:
        raise Wrong(f"expected {SLOW_EXPECTED}") from None


def one_of(names: Sequence[str]) -> KeyKind[str]:
    """Text: one of these."""

    def check(value: object) -> str:
        if value not in names:
            raise Wrong(f"expected one of {', '.join(names)}{nearest(str(value), names)}")
        return str(value)

    return KeyKind(TEXT, check, "text")


def is_address(value: object, *, port_min: int = 0) -> str:
    try:
        _, port = split_address(is_text(value))
    except ValueError as error:
        raise Wrong(str(error)) from None
    if port < port_min:
        raise Wrong(f"expected host:port with a port from {port_min} to 65535, not {port}")
    return str(value)


def is_advertise(value: object, *, port_min: int = 0) -> str:
    text = is_address(value, port_min=port_min)
    if wildcard(split_address(text)[0]):
        raise Wrong("expected an address that others can reach, this one stands for all interfaces")
    return text


def is_peers(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Wrong('expected a list of host:port, such as ["10.0.0.5:7000"]')
    if value == [STDIN]:
        return (STDIN,)
    for item in value:
        try:
            _is_peer(item)
        except Wrong as wrong:
            raise Wrong(f"{item!r} is not a peer: {wrong}") from None
    places = [place_of(item) for item in value]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise Wrong(f"{value[number]!r} is there twice; each peer once")
    return tuple(value)


def _is_peer(value: object) -> None:
    if not isinstance(value, str) or not value.startswith(DNS):
        is_advertise(value, port_min=1)
        return
    host, _ = split_address(is_address(value.removeprefix(DNS), port_min=1))
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        raise Wrong(f"{host} is an address, {DNS} wants a name")


def is_generator(value: object) -> str:
    """Where one is; `-`: the launcher says it together with go."""
    return STDIN if value == STDIN else is_advertise(value, port_min=1)


def is_size(value: object) -> int:
    """Bytes: a number, or one with kB, MB or GB (or KiB, MiB, GiB) behind it."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kKMGT]?)(i?)B?)?", str(value).strip())
    if isinstance(value, str) and match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kmgt".index((match[2] or " ").lower()))
        if size > 0:
            return size
    raise Wrong("expected a size such as 200MB or 1.5GiB")


def is_shard(value: object) -> Shard:
    form = rf"(?:({ORDINAL})(?:\+(\d{{1,6}}))?|(\d{{1,6}}))/(\d{{1,6}})"
    match = re.fullmatch(form, value) if isinstance(value, str) else None
    index = int(match[2] or match[3] or 0) if match else 0
    if match is None or not index < int(match[4]):
        raise Wrong(f'expected "i/n" with 0 <= i < n, such as "0/4", or "{ORDINAL}/n"')
    return Shard(index, int(match[4]), ordinal=match[1] is not None)


def is_workload(value: object) -> str:
    from murmurate.workloads import NAMES  # numpy: not for `murmurate --help`

    text = is_text(value)
    name, colon, argument = text.partition(":")
    file, _, made = text.rpartition(":")
    if file.endswith(".py") or text.endswith(".py"):
        if not made.isidentifier() or text.endswith(".py"):
            raise Wrong(f"expected FILE.py:CLASS, such as {text.partition(':')[0]}:Workload")
        if not Path(file).is_file():
            raise Wrong(f"there is no file {file}")
    elif name not in NAMES or (colon and not argument):
        names = ", ".join(NAMES).replace("synthetic", "synthetic:PARAMETERS")
        raise Wrong(f"expected one of {names}, or FILE.py:CLASS{nearest(name, NAMES)}")
    elif name == "synthetic" and colon and not argument.isdecimal():
        raise Wrong("expected synthetic:PARAMETERS with a whole number, such as synthetic:1000000")
    elif name != "synthetic" and colon:
        raise Wrong(f"expected {name} alone: only synthetic takes a number")
    return text


def is_split(value: object) -> str:
    from murmurate.workloads import parse_split

    try:
        parse_split(is_text(value))
    except ConfigError:
        raise Wrong(
            "expected none, dataset, labels or dirichlet(α), such as dirichlet(0.3)"
        ) from None
    return str(value)


def is_codec(value: object) -> str:
    try:
        parse_codec(is_text(value))
    except ConfigError:
        raise Wrong(f"expected {EXPECTED}{nearest(str(value), CODECS)}") from None
    return str(value)


def is_existing(value: object) -> str:
    if not Path(is_text(value)).exists():
        raise Wrong("expected a file or folder that exists")
    return str(value)


def is_folder(value: object) -> str:
    path = Path(is_text(value))
    if path.exists() and not path.is_dir():
        raise Wrong("expected a folder, there or to be made")
    return str(value)


def is_writable(value: object) -> str:
    path = Path(is_text(value))
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise Wrong("expected a file in a folder that exists")
    return str(value)


def is_momentum(value: object) -> float:
    """From 0 on, below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise Wrong("expected a number from 0 on, below 1")
    return float(value)


def is_slack(value: object) -> float:
    """A whole number, or infinite."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if not good or not (value == math.inf or float(value).is_integer()):  # type: ignore[arg-type]
        raise Wrong("expected a whole number from 0 on, or inf")
    return float(value)  # type: ignore[arg-type]


# -- kinds ---------------------------------------------------------------------------------------

SHORT_NAME = KeyKind(TEXT, is_name, "text")
ANY_ADDRESS = KeyKind(ADDRESS, is_address, '`"host:port"`')
REACHABLE = KeyKind(ADDRESS, is_advertise, '`"host:port"`')
PROGRAM = KeyKind(ADDRESS, is_generator, '`"host:port"`')
PEERS = KeyKind(LIST, is_peers, 'list of `"host:port"`')
YES_OR_NO = KeyKind(FLAG, is_flag, "true or false")
WORKLOAD = KeyKind(TEXT, is_workload, "text")
SPLIT = KeyKind(TEXT, is_split, "text")
SHARD = KeyKind(TEXT, is_shard, '`"i/n"`')
CODEC = KeyKind(TEXT, is_codec, "text")
SCHEDULE = KeyKind(TEXT, is_schedule, "text")
SLOWNESS = KeyKind(SLOW, is_slowness, "seconds from 0, or text")
PART = KeyKind(NUMBER, is_part, "part above 0, below 1")
BELOW_ONE = KeyKind(NUMBER, is_below_one, "number from 0, below 1")
MOMENTUM = KeyKind(NUMBER, is_momentum, "number from 0, below 1")
SLACK = KeyKind(NUMBER, is_slack, "whole number from 0, or `inf`")
ABOVE_ZERO = number(0, above=True)
SECONDS = KeyKind(NUMBER, ABOVE_ZERO.check, "seconds above 0")
BYTES = KeyKind(SIZE, is_size, 'bytes, or text such as `"200MB"`, `"1.5GiB"`')
THERE = KeyKind(FILE, is_existing, "path")
MADE = KeyKind(FILE, is_writable, "path")
KEPT_IN = KeyKind(FOLDER, is_folder, "path")


# -- addresses -----------------------------------------------------------------------------------


def cannot_listen(host: str, port: int) -> str:
    """Why nothing can listen there now; empty: it can. Told before torch is loaded."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return f"cannot listen there ({error.strerror or error})"
    return ""
