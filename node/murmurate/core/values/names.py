"""What can be read from a name, and which known one a mistyped word comes nearest to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection


def ordinal(name: str) -> int | None:
    """The number at the end of a name, as a StatefulSet gives its pods: 3 of `murmurate-3`."""
    match = re.search(r"-(\d{1,9})$", name)
    return int(match[1]) if match else None


def nearest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"; nearest: {close[0]}" if close else ""
