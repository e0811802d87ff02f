"""One key of a configuration: everything that follows from its one line in the table.

A key is declared as a field of its section, so that path, type, kind, default, help and roles stand
in one line, and mypy sees that kind, default and type agree:

    samples: int | None = key(whole(1), None, "end when …", TRAINS | Role.UP, unset="no limit")

TOML, environment variable, option, help, checks and the row of the reference are made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Flag, auto
from typing import Any, TypeVar, cast

from murmurate.programs.keys.kinds import KeyKind

PREFIX = "MURMURATE_"
TABLE = "murmurate"
"""Where a field of a section keeps what was said of it."""


class Role(Flag):
    """Who takes a key. What a node is follows from its `train.mode`."""

    PEER = auto()
    """A node in mode gossip."""
    IN_STEP = auto()
    """A node in mode allreduce or hogwild."""
    SUBNETS = auto()
    """A member in mode ist."""
    WHOLE = auto()
    """A member in mode hub."""
    COORDINATOR = auto()
    UP = auto()
    """`murmurate up`: an option of it, passed on to every process that takes the key too."""


MEMBER = Role.SUBNETS | Role.WHOLE
TRAINS = Role.PEER | Role.IN_STEP | MEMBER
NODE = TRAINS
NOBODY = Role(0)


@dataclass(frozen=True, slots=True)
class Key:
    """One key: where it stands, what it takes, what it means, and whose it is."""

    path: str
    kind: KeyKind[object]
    default: object
    help: str
    roles: Role
    unset: str = ""
    """What happens without a value, where the default does not say it."""
    name_of_option: str = ""

    @property
    def section(self) -> str:
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        return self.path.partition(".")[2]

    @property
    def option(self) -> str:
        # momentum is also a node's own
        name = f"hub_{self.name}" if self.section == "hub" else self.name
        return "--" + (self.name_of_option or name).replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def meaning(self) -> str:
        """As --help has it."""
        if self.unset:
            return f"{self.help} (default: {self.unset})"
        shown = self.default not in (None, False, ())
        return f"{self.help} (default {self.usual})" if shown else self.help

    @property
    def usual(self) -> str:
        """The default, for people."""
        if self.default is None or self.unset:
            return self.unset or "none"
        return f"{self.default:g}" if isinstance(self.default, float) else written(self.default)


T = TypeVar("T")
D = TypeVar("D")


def key(
    kind: KeyKind[T], default: D, says: str, roles: Role, *, unset: str = "", option: str = ""
) -> T | D:
    """A field of a section that is a key. `says`: its help; `unset`: what happens without a value;
    `option`: its name on the command line, where it is not the key's."""
    said = {"kind": kind, "help": says, "roles": roles, "unset": unset, "name_of_option": option}
    return cast("T | D", field(default=default, metadata={TABLE: said}))


class Book:
    """All keys of one program: what of its configuration's sections is for its roles."""

    def __init__(self, config: type, roles: Role) -> None:
        self.config = config
        self.keys = tuple(key for key in keys_of(config) if key.roles & roles)
        self.by_path = {key.path: key for key in self.keys}
        self.sections = tuple(dict.fromkeys(key.section for key in self.keys))

    def made(self, found: dict[str, dict[str, Any]]) -> Any:
        """The configuration of values by section and name."""
        sections = sections_of(self.config)
        return self.config(**{name: section(**found[name]) for name, section in sections})


def keys_of(config: type) -> Iterator[Key]:
    """Of all sections, in their order."""
    for section, made_by in sections_of(config):
        for each in fields(made_by):
            said = each.metadata[TABLE]
            yield Key(path=f"{section}.{each.name}", default=each.default, **said)


def value_of(config: object, key: Key) -> object:
    """Of this key in a configuration."""
    return getattr(getattr(config, key.section), key.name)


def written(value: object) -> str:
    """As an option has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def sections_of(config: type) -> Iterator[tuple[str, type]]:
    """Their names, and what each is made by."""
    for each in fields(config):
        yield each.name, cast(type, each.default_factory)
