"""The launcher of a program: `murmurate up`, at the other end of standard input."""

from __future__ import annotations

import os
import select


class Launcher:
    """Who started this and tells it what to do; when it is gone, so are we.

    It writes one line with peers and, when all are there, one more: go, with the budget if it is
    not in the options.
    """

    def __init__(self) -> None:
        self._text = b""
        self._open = True

    def line(self) -> str | None:
        """Wait for the next line; None: there will be none."""
        while b"\n" not in self._text and self._open:
            self._read()
        return self.next()

    def next(self) -> str | None:
        """The next line if it is there already."""
        while self._open and select.select([0], [], [], 0)[0]:
            self._read()
        if b"\n" not in self._text:
            return None
        line, _, self._text = self._text.partition(b"\n")
        return line.decode(errors="replace").strip()

    @property
    def gone(self) -> bool:
        self._text = b"" if len(self._text) > 1 << 16 else self._text
        while self._open and select.select([0], [], [], 0)[0]:
            self._read()
        return not self._open

    def _read(self) -> None:
        part = os.read(0, 4096)
        self._open = bool(part)
        self._text += part
