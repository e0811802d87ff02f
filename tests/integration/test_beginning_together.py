"""`murmurate node --wait-for`: nobody has done its work before the others have come."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import IO

NODE = [sys.executable, "-m", "murmurate", "node", "--workload", "digits", "--samples", "8000"]
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


def begin(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*NODE, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_until(stream: IO[str] | None, what: str) -> str:
    """The first line that has it."""
    assert stream is not None
    for line in stream:
        if what in line:
            return line
    raise AssertionError(f"no line with {what!r}")


def test_two_nodes_that_wait_for_each_other_train_together() -> None:
    first = begin("--wait-for", "2", "--name", "a")
    line = read_until(first.stdout, "waits until 2 members are here")
    address = ADDRESS.search(line)
    assert address is not None
    second = begin("--wait-for", "2", "--name", "b", "--peers", address[0])
    said = second.communicate(timeout=120)[0]
    assert first.wait(120) == second.returncode == 0, said
    assert first.stdout is not None
    for each in (first.stdout.read(), said):  # who trains alone has none
        staleness = re.search(r"staleness ([0-9.]+) on average", each)
        assert staleness is not None, each
        assert float(staleness[1]) > 0
    first.stdout.close()


def test_who_waits_can_be_told_to_stop() -> None:
    alone = begin("--wait-for", "2", "--name", "a")
    read_until(alone.stdout, "waits until 2 members are here")
    alone.send_signal(signal.SIGTERM)
    said = alone.communicate(timeout=60)[0]
    assert alone.returncode in (0, 143), said
    assert "Traceback" not in said
