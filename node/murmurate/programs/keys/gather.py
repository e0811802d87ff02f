"""Values for the keys of a program, from a TOML file, the environment and the command line.

An option beats the environment, the environment beats the file, the file beats the default. Nothing
is guessed: a key that is not known, or a value that cannot be run, is named with its place and with
what is accepted, and all of them are named at once. Which keys there are, the program's book says
(`programs.keys.key`). No torch here: a mistake is told in a blink.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from murmurate.core.values.names import nearest
from murmurate.errors import ConfigError
from murmurate.programs.keys.key import PREFIX, Book, Key
from murmurate.programs.keys.kinds import Wrong

# Kubernetes puts the addresses of a service «murmurate-node» into variables that look like keys.
_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")


class Given(NamedTuple):
    """A value as it was found, and where."""

    place: str
    value: object


def gather(
    book: Book,
    file: str | None,
    environment: Mapping[str, str],
    options: Mapping[str, str],
    together: Callable[[Mapping[str, Any], Mapping[str, Given]], list[str]],
) -> dict[str, dict[str, Any]]:
    """What was given, checked, by section and name; ConfigError with a line for each mistake.

    `together`: mistakes that only show when values are seen together (see `problem`).
    """
    problems: list[str] = []
    given: dict[str, Given] = {}
    if file is not None:
        given |= _from_file(book, file, problems)
    given |= _from_environment(book, environment, problems)
    for path, text in options.items():
        _take(given, book.by_path[path], book.by_path[path].option, text, problems)

    values: dict[str, Any] = {}
    for path, (place, value) in given.items():
        try:
            values[path] = book.by_path[path].kind.check(value)
        except Wrong as wrong:
            problems.append(problem(place, path, value, str(wrong)))
    problems += together(values, given)
    if problems:
        raise ConfigError("\n".join(sorted(problems, key=_order)))
    found: dict[str, dict[str, Any]] = {section: {} for section in book.sections}
    for path, value in values.items():
        found[book.by_path[path].section][book.by_path[path].name] = value
    return found


def child_environment() -> dict[str, str]:
    """The environment for nodes that get everything by options: without our own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def _take(given: dict[str, Given], key: Key, place: str, text: str, problems: list[str]) -> None:
    """Text from the environment or an option, as what a TOML file would have held."""
    try:
        given[key.path] = Given(place, key.kind.form.from_text(text))
    except ValueError:
        given.pop(key.path, None)
        problems.append(problem(place, key.path, text, f"expected {key.kind.form.accepted}"))


def _from_environment(
    book: Book, environment: Mapping[str, str], problems: list[str]
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    known = {key.variable: key for key in book.keys}
    ours = tuple(f"{PREFIX}{section}_".upper() for section in book.sections)
    for variable, text in sorted(environment.items()):
        if variable in known:
            _take(given, known[variable], variable, text, problems)
        elif variable.startswith(ours) and not _KUBERNETES.search(variable):
            near = nearest(variable, known)
            problems.append(
                f"{variable} = {_shown(text)}: unknown key{near or '; see docs/config.md'}"
            )
    return given


def _from_file(book: Book, file: str, problems: list[str]) -> dict[str, Given]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        problems.append(f"{file}: {why}; expected a TOML file")
        return {}
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        place = f"{file}:{line[1] if line else text.count(chr(10)) + 1}"
        problems.append(f"{place}: not TOML: {error}")
        return {}
    lines = key_lines(text)
    given: dict[str, Given] = {}
    for section, content in document.items():
        place = f"{file}:{lines.get((section, ''), 1)}"
        if section not in book.sections:
            what = f"[{section}]" if isinstance(content, dict) else f"{section} = {_shown(content)}"
            moved = [key.path for key in book.keys if key.name == section]
            near = f"; nearest: {moved[0]}" if moved else nearest(section, book.sections)
            accepted = ", ".join(f"[{name}]" for name in book.sections)
            problems.append(f"{place}: {what}: unknown; the sections are {accepted}{near}")
        elif not isinstance(content, dict):
            problems.append(problem(place, section, content, f"a section, [{section}]"))
        else:
            for name, value in content.items():
                at = f"{file}:{lines.get((section, name), lines.get((section, ''), 1))}"
                if f"{section}.{name}" in book.by_path:
                    given[f"{section}.{name}"] = Given(at, value)
                else:
                    problems.append(
                        problem(at, f"{section}.{name}", value, _unknown(book, section, name))
                    )
    return given


def _unknown(book: Book, section: str, name: str) -> str:
    """What to say about a key that is not there: the nearest one, else all of its section."""
    here = [key.name for key in book.keys if key.section == section]
    elsewhere = [key.path for key in book.keys if key.name == name]
    if elsewhere:
        return f"unknown key; nearest: {elsewhere[0]}"
    if close := difflib.get_close_matches(name, here, 1):
        return f"unknown key; nearest: {section}.{close[0]}"
    if close := difflib.get_close_matches(name, [key.name for key in book.keys], 1):
        return f"unknown key; nearest: {next(k.path for k in book.keys if k.name == close[0])}"
    return f"unknown key; [{section}] has {', '.join(here)}"


def key_lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each (section, key), and of each (section, ''), which tomllib does not tell.

    A scan by line: enough for files as people write them. What it misses is reported at the line of
    its section.
    """
    found: dict[tuple[str, str], int] = {}
    section = ""
    for at, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*[\"']?([^\[\]\"'.]+?)[\"']?\s*[\].]", line):
            section = header[1]
            found.setdefault((section, ""), at)
        elif pair := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            parts = [part.strip(" \"'") for part in pair[1].split(".")]
            path = [section, *parts] if section else parts
            found.setdefault((path[0], ""), at)
            if len(path) > 1:
                found.setdefault((path[0], path[1]), at)
    return found


def problem(place: str, path: str, value: object, accepted: str) -> str:
    return f"{place}: {path} = {_shown(value)}: {accepted}"


def _order(problem: str) -> int:
    """Those of the file first, line by line; the others as they came."""
    line = re.match(r".*?:(\d+): ", problem)
    return int(line[1]) if line else 1 << 30


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
