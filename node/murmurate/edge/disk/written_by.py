"""Which murmurate wrote a file: what is said where this one is too old to read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from murmurate import __version__
from murmurate.errors import CheckpointError

FORMAT = 1
"""Of all files in a checkpoint folder. Older ones are read: what they do not have is left out."""


def mark() -> dict[str, Any]:
    """What each file says of its writer."""
    return {"format": FORMAT, "written_by": __version__}


def check(about: Mapping[str, Any], where: object) -> None:
    """`CheckpointError`: a later murmurate wrote it. KeyError: it does not say its format."""
    number = about["format"]
    if isinstance(number, int) and number <= FORMAT:
        return
    raise CheckpointError(
        f"{where}: written by murmurate {about.get('written_by', 'of a later version')} (format"
        f" {number}); this is {__version__}, which reads format {FORMAT}: start that version or a"
        " later one, or begin in another folder"
    )
