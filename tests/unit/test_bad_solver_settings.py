"""Settings of solvers that cannot be: exit code 2 and one line that says what is allowed."""

from __future__ import annotations

import pytest

from murmurate.programs.cli.main import main

HUB = ("coordinator", "--mode", "hub", "--check-config")
UP = ("up", "--virtual", "--workload", "synthetic:2000", "--seconds", "1", "--nodes", "4")
CASES = [
    ((*HUB, "--rule", "k-of-n", "--hub-gradients", "5", "--founders", "4"), "at most 4: so many"),
    ((*HUB, "--rule", "k-of-n", "--hub-gradients", "0"), "from 1 on"),
    ((*HUB, "--rule", "dc", "--hub-dc-lambda", "-1"), "from 0 on"),
    ((*HUB, "--rule", "ssp", "--hub-slack", "-1"), "from 0 on"),
    ((*HUB, "--rule", "ssp", "--hub-slack", "nan"), "from 0 on"),
    ((*HUB, "--rule", "async-msgd", "--hub-momentum", "1"), "below 1"),
    ((*HUB, "--rule", "async-msgd", "--hub-momentum", "nan"), "below 1"),
    ((*HUB, "--rule", "scaled", "--hub-power", "-0.5"), "from 0 on"),
    ((*HUB, "--rule", "easgd", "--hub-alpha", "1.5"), "below 1"),
    ((*HUB, "--rule", "downpour", "--hub-pull", "0"), "from 1 on"),
    ((*HUB, "--rule", "shared"), "expected one of sync, once, async"),
    ((*HUB, "--rule", "lease"), "async, sync, k-of-n, ssp"),
    ((*HUB, "--rule", "async", "--hub-slack", "2"), "only with rule ssp"),
    ((*HUB, "--rule", "dc", "--hub-protocol", "pipelined"), "request-reply with rule dc"),
    ((*HUB, "--rule", "downpour", "--hub-protocol", "request-reply"), "always pipelined"),
    (("coordinator", "--mode", "ist", "--check-config", "--rule", "dc"), "sync, once, async"),
    (("coordinator", "--check-config", "--hub-power", "1"), "only with mode hub"),
    ((*UP, "--mode", "hub", "--rule", "k-of-n", "--hub-gradients", "5"), "at most 4: so many"),
    ((*UP, "--mode", "hub", "--rule", "sum"), "async, sync, k-of-n, ssp"),
    ((*UP, "--mode", "hub", "--rule", "async", "--momentum", "1"), "below 1"),
    ((*UP, "--mode", "hub", "--rule", "async", "--momentum", "0.9"), "--hub-momentum with rule"),
    ((*UP[:1], *UP[2:], "--mode", "hub", "--momentum", "0.9"), "--hub-momentum with rule"),
    ((*UP, "--mode", "hub", "--rule", "dc", "--momentum", "0.9"), "at the hub: --hub-momentum"),
    ((*UP, "--mode", "hub", "--rule", "dc", "--optimizer", "adam"), "sgd with rule dc"),
    ((*UP, "--mode", "hub", "--rule", "async", "--widths", "1,2"), "only with --mode ist"),
    ((*HUB, "--rule", "sync", "--optimizer", "adam"), "any with fedavg, fedavg-async"),
    ((*HUB, "--rule", "async-msgd", "--nesterov", "true"), "--hub-nesterov"),
    ((*UP, "--mode", "allreduce", "--rule", "async"), "flat or hierarchical or groups"),
    ((*UP, "--mode", "allreduce", "--rule", "hierarchical", "--group", "3"), "1, 2, 4 can"),
    ((*UP, "--mode", "allreduce", "--rule", "hierarchical", "--group", "0"), "from 1 on"),
    ((*UP, "--mode", "allreduce", "--rule", "flat", "--group", "2"), "only with mode allreduce"),
    ((*UP, "--mode", "allreduce", "--rule", "flat", "--regroup", "5"), "and rule groups"),
    ((*UP, "--mode", "allreduce", "--rule", "groups", "--regroup", "0"), "from 1 on"),
    ((*UP, "--mode", "allreduce", "--rule", "groups-ea-wild", "--group", "3"), "1, 2, 4 can"),
    (("node", "--mode", "allreduce", "--rule", "groups-ea-wild"), "where the hub is"),
    (("node", "--mode", "allreduce", "--coordinator", "h:1"), "or rule groups-ea-wild"),
    ((*UP, "--rule", "bound", "--strength", "-1"), "from 0 on"),
    ((*UP, "--rule", "scaled", "--strength", "nan"), "from 0 on"),
    ((*UP, "--slow", "node-1=gaussian(-1,2)"), "gaussian(MEAN,DEVIATION)"),
    ((*UP, "--schedule", "cubic"), "constant, linear, poly(POWER)"),
]


@pytest.mark.parametrize(("words", "says"), CASES)
def test_one_line_says_what_is_allowed(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    assert says in told
