"""What all commands share: how one is added, an option for each key, and kinds of arguments."""

from __future__ import annotations

import argparse
import math
import textwrap
from typing import Any, TypeAlias

from murmurate.programs.keys.key import Book
from murmurate.programs.keys.kinds import FLAG, LIST

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    commands: Commands,
    name: str,
    summary: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, 79),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_keys(parser: argparse.ArgumentParser, book: Book) -> None:
    """An option for each key; values stay text, `gather` checks them with all the others. The
    command says its book to `reference` too."""
    parser.set_defaults(book=book)
    groups = {name: parser.add_argument_group(f"[{name}]") for name in book.sections}
    for key in book.keys:
        form = key.kind.form
        how: dict[str, Any] = {"metavar": form.metavar}
        if form is FLAG:
            how |= {"nargs": "?", "const": "true"}
        elif form is LIST:
            how |= {"nargs": "*"}
        groups[key.section].add_argument(key.option, dest=key.path, help=key.meaning, **how)


def given(arguments: argparse.Namespace, book: Book) -> dict[str, str]:
    """What the options say, by key."""
    values = {key.path: getattr(arguments, key.path, None) for key in book.keys}
    return {
        path: " ".join(value) if isinstance(value, list) else value
        for path, value in values.items()
        if value is not None
    }


def whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def seconds(text: str) -> float:
    return above_zero(text, "a number of seconds")


def above_zero(text: str, what: str = "a number") -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} above 0")
    return number


def span(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B, such as 0:500")
    return int(first), int(last)


def nodes(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    last = last if colon else first
    if not first.isdecimal() or not last.isdecimal() or not 1 <= int(first) <= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N:M with 1 <= N <= M")
    return int(first), int(last)
