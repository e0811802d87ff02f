"""`murmurate node --wait-for`: nobody has done its work before the others have come."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack

from tests.integration.programs import Program
from tests.integration.test_up import PATIENCE_S, wait_until

NODE = ("node", "--workload", "digits", "--samples", "8000")
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
WAITS = "waits until 2 members are here"


def begin(over: ExitStack, *words: str) -> Program:
    program = Program(*NODE, "--wait-for", "2", *words)
    over.callback(program.kill)
    return program


def what_it_said(program: Program) -> str:
    return "".join((*program.out, *program.errors))


def until_it_waits(program: Program) -> str:
    """The line in which it says so."""
    wait_until(lambda: WAITS in what_it_said(program))
    return next(line for line in what_it_said(program).splitlines() if WAITS in line)


def test_two_nodes_that_wait_for_each_other_train_together() -> None:
    with ExitStack() as over:
        first = begin(over, "--name", "a")
        address = ADDRESS.search(until_it_waits(first))
        assert address is not None
        second = begin(over, "--name", "b", "--peers", address[0])
        for each in (first, second):  # who trains alone has none
            assert each.wait(PATIENCE_S) == 0, what_it_said(each)
            staleness = re.search(r"staleness ([0-9.]+) on average", what_it_said(each))
            assert staleness is not None, what_it_said(each)
            assert float(staleness[1]) > 0


def test_who_waits_can_be_told_to_stop() -> None:
    with ExitStack() as over:
        alone = begin(over, "--name", "a")
        until_it_waits(alone)
        alone.process.send_signal(signal.SIGTERM)
        assert alone.wait(60) in (0, 143), what_it_said(alone)
        assert "Traceback" not in what_it_said(alone)
