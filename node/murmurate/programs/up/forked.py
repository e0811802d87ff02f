"""Processes of `murmurate up`, forked from one that has loaded torch already. Without torch.

A process that imports torch and all of ours works for three to four seconds before it is ready,
and sixteen of them do so at once. One that is forked from a process with everything in memory is
ready in a quarter of a second, and what was loaded is in memory once.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from murmurate.programs.keys.gather import child_environment

MESSAGE_BYTES = 1 << 16


class Forked:
    """One process, for whoever asked for it: as `subprocess.Popen` is, as far as `up` needs it."""

    def __init__(self, loader: Loader, pipes: Sequence[int]) -> None:
        self.stdin: IO[bytes] = os.fdopen(pipes[0], "wb")
        self.stdout: IO[bytes] = os.fdopen(pipes[1], "rb")
        self.stderr: IO[bytes] = os.fdopen(pipes[2], "rb")
        self.pid: int | None = None
        """None: it has not begun yet, for its loader is still loading."""
        self.code: int | None = None
        self._loader = loader
        self._signals: list[int] = []
        """What it is to get as soon as it has begun."""

    def poll(self) -> int | None:
        self._loader.hear(0.0)
        return self.code

    def wait(self, timeout_s: float | None = None) -> int:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self.code is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                assert timeout_s is not None
                raise subprocess.TimeoutExpired("murmurate", timeout_s)
            self._loader.hear(left)
        return self.code

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is not None:
            return
        if self.pid is None:
            self._signals.append(number)
            return
        with suppress(ProcessLookupError):  # it ended, and we have not been told yet
            os.kill(self.pid, number)

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                pipe.close()

    # -- what the loader says ----------------------------------------------------------------------

    def began(self, pid: int) -> None:
        self.pid = pid
        for number in self._signals:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self, code: int) -> None:
        self.code = code


class Loader:
    """The process that has loaded everything, from the first `fork` on.

    It ends when we close our end or die. Should it die itself, so do those that it started: nobody
    would learn any more how they end.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._forked: dict[int, Forked] = {}

    def fork(self, name: str, words: Sequence[str]) -> Forked:
        """`murmurate WORDS…` in a process of its own, which `ps` shows as `name`."""
        ours = self._begun()
        theirs, mine = zip(*(_pipe(reads) for reads in (True, False, False)), strict=True)
        number = len(self._forked)
        forked = self._forked[number] = Forked(self, mine)
        text = json.dumps({"number": number, "name": name, "words": list(words)})
        try:
            socket.send_fds(ours, [text.encode()], list(theirs))
        except OSError:
            self._lost()
        finally:
            for end in theirs:
                os.close(end)
        return forked

    def hear(self, timeout_s: float | None) -> None:
        """What it has to say by now, after waiting at most so long (None: ever) for some of it."""
        if self._socket is None:
            return
        while select.select([self._socket], [], [], timeout_s)[0]:
            timeout_s = 0.0
            try:
                message = self._socket.recv(MESSAGE_BYTES)
            except ConnectionResetError:
                message = b""
            if not message:
                self._lost()
                return
            told: dict[str, Any] = json.loads(message)
            forked = self._forked[told["number"]]
            if "pid" in told:
                forked.began(told["pid"])
            else:
                forked.ended(told["code"])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.process is not None:
            self.process.wait()

    def _begun(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "murmurate.programs.up.loader", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=child_environment(),
                    # Ctrl-C is ours to pass on. Not a session of its own: Linux shares processors
                    # out among sessions (autogroup), and so unevenly that a node stood still for
                    # half a second.
                    process_group=0,
                )
            self._socket = ours
        return self._socket

    def _lost(self) -> None:
        self.close()
        for forked in self._forked.values():
            if forked.code is None:
                if forked.pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(forked.pid, signal.SIGKILL)
                forked.ended(-signal.SIGKILL)


def _pipe(reads: bool) -> tuple[int, int]:
    """Their end, which reads or writes, and ours."""
    read, write = os.pipe()
    return (read, write) if reads else (write, read)
