"""`murmurate …` in processes of their own, forked from one that has loaded everything.

A process that imports torch works for about three seconds before it says a word. One that is
forked, as `murmurate up` forks its nodes, is the same program from `main` on. That the command
starts from nothing too is tested in `test_up`, `test_resume` and `test_ist`.
"""

from __future__ import annotations

import atexit
import threading
from typing import IO

from murmurate.programs.up.forked import Forked, Loader

_LOADER = Loader()
atexit.register(_LOADER.close)


class Program:
    """A program that was started. What it writes is read as it comes, or it would wait for us."""

    def __init__(self, *words: str) -> None:
        self.process: Forked = _LOADER.fork("murmurate", words)
        self.out: list[str] = []
        self.errors: list[str] = []
        """The lines of both streams so far."""
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[bytes], lines: list[str]) -> None:
        for line in stream:
            lines.append(line.decode())

    def say(self, text: str) -> None:
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Then all that it wrote has been read."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join()
        return code

    def kill(self) -> None:
        """Over as by a power cut, if it is not over yet."""
        if not self.process.stdin.closed:
            self.process.kill()
            self.wait(60.0)
            self.process.close()
