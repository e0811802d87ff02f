"""`make reference`: the tables of keys in docs/config.md, from the table of keys.

Which keys there are, what each takes, what happens without it and its option are written anew; the
last column is the page's own where it says something, because it may link and explain. A new key
gets its row with its help in it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from murmurate.programs.cli.main import command_line
from murmurate.programs.keys.key import Book, Key

MARK = re.compile(
    r"<!-- keys of (?P<program>\w+)(?: in \[(?P<section>\w+)\])?: make reference -->\n"
    r"(?P<table>(?:\|.*\n)*)"
)
HEAD = "| key | type | default | option | meaning |\n|---|---|---|---|---|\n"


def books() -> dict[str, Book]:
    """The keys of each command that has some, also of those that other packages add."""
    (commands,) = (
        action
        for action in command_line()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found = {name: parser.get_default("book") for name, parser in commands.choices.items()}
    return {name: book for name, book in found.items() if book is not None}


def renewed(page: str, known: Mapping[str, Book]) -> str:
    """The page, with its tables as they must be."""
    nodes = {key.path: key for key in known["node"].keys}

    def table(found: re.Match[str]) -> str:
        section = found["section"]
        keys = [key for key in known[found["program"]].keys if section in (None, key.section)]
        if section is None:  # of another program: what it does not share with nodes
            keys = [key for key in keys if nodes.get(key.path) != key]
        mark = found[0].partition("\n")[0]
        said = _meanings(found["table"].splitlines())
        return f"{mark}\n{HEAD}{''.join(_rows(keys, said, whole_path=section is None))}"

    return MARK.sub(table, page)


def _meanings(rows: Iterable[str]) -> dict[str, str]:
    """The last column by the first."""
    split = ([part.strip() for part in re.split(r"(?<!\\)\|", row)] for row in rows)
    return {cells[1]: cells[-2] for cells in split}


def _rows(keys: Iterable[Key], said: Mapping[str, str], *, whole_path: bool) -> Iterable[str]:
    for key in keys:
        name = f"`{key.path if whole_path else key.name}`"
        meaning = said.get(name) or key.help
        yield f"| {name} | {key.kind.says} | {_usual(key)} | `{key.option}` | {meaning} |\n"


def _usual(key: Key) -> str:
    if key.default is None or key.unset:
        return key.usual
    if key.default == ():
        return "`[]`"
    return f"`{key.usual}`" if isinstance(key.default, bool | int | float) else f'`"{key.usual}"`'


def main() -> int:
    """Write the pages that are named."""
    known = books()
    for file in map(Path, sys.argv[1:]):
        file.write_text(renewed(file.read_text(encoding="utf-8"), known), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
