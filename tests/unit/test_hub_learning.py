"""What a hub says of rules that add up everybody's steps: before they begin, and when it is so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.partition.subnet import weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.subnet_values import Outgoing, structure_digest
from murmurate.programs.cli.main import main
from murmurate_coordinator import figures
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.effects import GiveLease
from murmurate_coordinator.solvers.table import HUB_SOLVERS, new_solver

MODEL = nn.Linear(3, 2)
STRUCTURE = whole_structure(MODEL)
ADDING = {"async", "ssp", "scaled", "dc", "async-msgd", "downpour", "k-of-n", "fedbuff"}


def centre(rule: str, members: int, **settings: object) -> Sessions:
    solver = new_solver(
        rule,
        STRUCTURE,
        weights_of(MODEL),
        np.random.default_rng(0),
        mode="hub",
        steps=1,
        founders=members,
        settings=HubSettings(**settings),  # type: ignore[arg-type]
    )
    made = Sessions(solver, run="r", instance="c", now=0.0)
    for k in range(members):
        hello = wire.WorkHello(
            run="r",
            name=f"m{k}",
            instance="one",
            structure=structure_digest(STRUCTURE),
            mode="hub",
        )
        made.hello(k + 1, hello, 0.0)
    return made


def push(it: Sessions, name: str, loss: float, value: float = 0.0) -> None:
    lease = it.solver.lease_of(name)
    assert lease is not None
    stream = it.members.seats[name].stream
    values = {n: torch.full_like(w, value) for n, w in it.solver.weights.items()}
    packed = Outgoing(STRUCTURE, values)
    head = wire.Return(
        plan=lease.plan,
        lease=lease.number,
        version=lease.version + 1,
        steps=lease.steps + 1,
        samples=lease.samples + 8,
        loss=loss,
        seconds=0.1,
        value_bytes=packed.value_bytes,
    )
    coming = it.announce(name, stream, head)
    for offset, raw in packed.pieces(PieceSize(100)):
        coming.into.take(offset, raw)
    it.push(name, stream, coming, 0.0)
    it.out.clear()


@pytest.mark.parametrize("rule", HUB_SOLVERS)
def test_several_members_are_cautioned_once_and_one_is_not(rule: str) -> None:
    it = centre(rule, 3)
    assert len(it.lines.warnings) == (rule in ADDING)
    for line in it.lines.warnings:
        assert line.startswith(f"rule '{rule}' ")
        assert "divide it by n, or take rule" in line
        assert "\n" not in line
    assert not centre(rule, 1).lines.warnings


def test_k_of_n_is_cautioned_by_how_many_it_takes() -> None:
    [line] = centre("k-of-n", 4, gradients=3).lines.warnings
    assert "n / K times" in line
    assert not centre("k-of-n", 4, gradients=4).lines.warnings


def test_a_loss_that_rises_is_said_with_what_to_do() -> None:
    it = centre("async", 2)
    it.lines.warnings.clear()
    for step in range(200):
        push(it, f"m{step % 2}", 2.3 + 0.001 * step if step < 8 or step > 20 else 9.0 + step)
    [line] = it.lines.warnings
    assert line.startswith("the loss rose from 2.3 to ")
    assert "lower the learning rate, or take rule sync, or k-of-n with K = n" in line
    row = figures.row(it, figures.Around())
    assert [each["reason"] for each in row["warnings"]] == ["loss_risen"]
    steady = centre("async", 2)
    steady.lines.warnings.clear()
    for step in range(80):
        push(steady, f"m{step % 2}", 2.3 - 0.01 * step)
    assert not steady.lines.warnings


def test_the_loss_shown_is_the_mean_of_what_a_member_told_lately() -> None:
    it = centre("async", 1)
    for loss in (*[9.0] * 3, *range(1, 21)):
        push(it, "m0", float(loss))
    assert it.members.tally("m0").loss == pytest.approx(10.5)


def test_numbers_that_are_none_for_ever_are_the_end() -> None:
    it = centre("async", 2)
    it.lines.warnings.clear()
    for _ in range(4):  # now and then one is no harm
        push(it, "m0", 1.0, math.nan)
        push(it, "m1", 1.0)
    found = [it.concerns.hopeless]
    for _ in range(5):
        for name in ("m0", "m1"):
            push(it, name, 1.0, math.nan)
            found.append(it.concerns.hopeless)
    assert found == [False] * 10 + [True]
    [line] = it.lines.warnings
    assert line.startswith("the loss is no number any more")


def test_a_virtual_run_that_diverges_ends_and_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    words = ["up", "--virtual", "--mode", "hub", "--rule", "async", "--nodes", "8", "--lr", "0.9"]
    assert main([*words, "--report", str(path)]) == 0
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("rule 'async' makes an update of every gradient") == 1
    assert "nobody trains any more" in text
    assert "; NC: " in text
    report = json.loads(path.read_text())
    assert report["nc"]
    assert {each["reason"] for each in report["nodes"][-1]["warnings"]} >= {"loss_not_finite"}


def test_what_the_solver_tells_at_the_end_has_the_last_pushes_in_it() -> None:
    """Of the members that there were it tells as it was before they left."""
    it = centre("easgd", 2)
    around = figures.Around(more=it.solver.more())
    for name in ("m0", "m1"):
        push(it, name, 1.0)
    for name in ("m0", "m1"):
        it.bye(name, it.members.seats[name].stream, 1.0)
    told = figures.told_by_solver(it, around)
    assert told["version"] == told["conservation"]["updates"] == 2
    assert told["conservation"]["gradients"] == told["elastic"]["exchanges"] == 2
    assert told["conservation"]["members"] == 2
    assert told["elastic"]["alpha"] == pytest.approx(0.45)
    assert not any(isinstance(each, GiveLease) for each in it.out)


def test_an_elastic_rule_says_when_its_members_move_the_centre_too_far() -> None:
    said = [line for line in centre("easgd", 4, alpha=0.5).lines.warnings if "alpha" in line]
    assert len(said) == 1
    assert "at most 0.25" in said[0]
    for settings in ({}, {"alpha": 0.25}):
        assert not any("alpha" in line for line in centre("ea-wild", 4, **settings).lines.warnings)
