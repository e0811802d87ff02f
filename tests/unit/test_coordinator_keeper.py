"""The coordinator's folder: torn, foreign and full."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

from murmurate.core.partition import analyse, weights_of
from murmurate.edge.disk.checkpoint_files import KEPT
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.errors import CheckpointError
from murmurate_coordinator.checkpoint import SavedSolver, restore, save
from murmurate_coordinator.checkpointer import CoordinatorKeeper, tied_names
from murmurate_coordinator.solvers.effects import GiveLease, MemberPush
from murmurate_coordinator.solvers.protocol import Solver
from murmurate_coordinator.solvers.table import SOLVERS, new_solver


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 3)
        self.again = self.second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.again(torch.relu(self.first(x)))
        return out


MODEL = Tied()
STRUCTURE = analyse(MODEL, (torch.randn(2, 3),))


def centre(rule: str = "async", pushes: int = 0) -> Solver:
    it = new_solver(rule, STRUCTURE, weights_of(MODEL), np.random.default_rng(0))
    give = it.join("a")[0]
    assert isinstance(give, GiveLease)
    for version in range(1, pushes + 1):
        it.push(MemberPush("a", give.plan, give.lease, version, 1, 1, give.values))
    return it


def keeper(path: Path, **changed: Any) -> CoordinatorKeeper:
    settings: dict[str, Any] = {
        "every_s": 1.0,
        "run": "r",
        "rule": "async",
        "structure": structure_digest(STRUCTURE).hex(),
        "tied": tied_names(MODEL),
    }
    return CoordinatorKeeper(str(path), **{**settings, **changed})


def put(path: Path, *pushes: int) -> None:
    it = keeper(path)
    for each in pushes:
        of = centre(pushes=each)
        assert it.put(save(of), of.weights)
    it.close()


def pushes_in(saved: SavedSolver | None) -> int:
    assert saved is not None
    found = restore(saved, STRUCTURE, np.random.default_rng(0), steps=10, founders=1)
    return found.totals.pushes


def test_three_are_kept_and_the_newest_is_taken(tmp_path: Path) -> None:
    put(tmp_path, 1, 2, 3, 4, 5)
    it = keeper(tmp_path)
    assert len(it.folder.numbers()) == KEPT
    assert pushes_in(it.restored) == 5
    it.close()


def test_a_torn_one_is_passed_over_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, 1, 2)
    newest = max(tmp_path.glob("checkpoint-*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        it = keeper(tmp_path)
    assert pushes_in(it.restored) == 1
    assert "it is passed over" in caplog.text
    it.close()
    for file in tmp_path.glob("checkpoint-*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="none of its checkpoints is whole"):
        keeper(tmp_path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"run": "other"}, "of run 'r', this coordinator has 'other'"),
        ({"rule": "sync"}, "of rule 'async', this coordinator has 'sync'"),
        ({"structure": "00"}, "of another model"),
    ],
)
def test_a_foreign_one_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    put(tmp_path, 1)
    with pytest.raises(CheckpointError, match=says):
        keeper(tmp_path, **changed)
    keeper(tmp_path).close()  # the folder is free again


@pytest.mark.parametrize("rule", SOLVERS)
def test_nothing_of_the_state_is_forgotten(rule: str) -> None:
    """Whoever gives a solver another attribute decides here whether a checkpoint must hold it."""
    held = {"weights", "plan", "totals", "members", "leases", "trained", "_rng", "_next"}
    held |= {"_waiting", "_changed", "_dealt", "_order", "_parts", "_home", "_pushed_in"}
    follows = {"structure", "steps", "_founders", "_coverage", "_covers", "_shared"}
    anew = {"_vacant", "_away", "_uneven"}  # others take what is vacant; who is away says hello
    assert vars(centre(rule)).keys() <= held | follows | anew
    if rule == "async":  # it has all of them
        assert vars(centre(rule)).keys() == held | follows | anew


def test_two_coordinators_cannot_share_a_folder(tmp_path: Path) -> None:
    it = keeper(tmp_path)
    with pytest.raises(CheckpointError, match="each needs its own folder"):
        keeper(tmp_path)
    it.close()


def test_the_model_loads_into_the_plain_one(tmp_path: Path) -> None:
    put(tmp_path, 1)
    file = tmp_path / "model.safetensors"
    assert load_file(file).keys() == {"first.weight", "first.bias", "second.weight", "second.bias"}
    other = Tied()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    load_model(other, file)  # knows about tied tensors
    x = torch.randn(5, 3)
    assert torch.equal(other(x), MODEL(x))


def test_a_full_disk_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    it = keeper(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    of = centre(pushes=1)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(it.folder, "put", full)
        assert not it.put(save(of), of.weights)
        assert not it.put(save(of), of.weights)
    assert it.failures == 2
    assert caplog.text.count("cannot be written (No space left on device)") == 1
    assert it.put(save(of), of.weights)
    it.close()
