"""A hub that is killed: what it had accepted is there again, under every rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from tests.unit.test_solver_conformance import CASES, J, Members, kind, made, same, weights

from murmurate_coordinator.checkpoint import SavedSolver, restore, save
from murmurate_coordinator.journal import Journal, JournaledSolver
from murmurate_coordinator.members import Members as MemberSeats
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.protocol import LIFE, Solver

HUBS = [case for case in CASES if case.startswith("hub")]


def reborn(case: str, solver: Solver, saved: SavedSolver, folder: Path) -> Solver:
    """As a process that was started again: from the files alone."""
    journal = Journal(folder, solver.structure)
    return restore(
        SavedSolver(dict(saved.tensors), json.loads(json.dumps(saved.about))),
        solver.structure,
        np.random.default_rng(9),
        steps=J,
        founders=1,
        replay=lambda it: journal.replay(it, int(saved.about["journal"])),
        **kind(case),
    )


def killed(case: str, folder: Path) -> tuple[Members, SavedSolver]:
    """A hub some way after its checkpoint: members came, died, and pushed."""
    plain = made(case, founders=3, first_lease=LIFE + 1)
    journal = Journal(folder, plain.structure)
    members = Members(cast(Solver, JournaledSolver(plain, journal)))
    members.join("a", "b", "c")
    members.everybody_pushes(2)
    saved = save(members.solver)
    saved.about["journal"] = journal.next_file()
    members.everybody_pushes(2)
    members.leave("b")
    members.join("d")
    members.take(members.solver.again("a"))
    members.everybody_pushes(2)
    journal.close()  # a file that nobody writes any more, as after a kill
    return members, saved


@pytest.mark.parametrize("case", ["hub async request-reply", "hub sync pipelined"])
def test_what_members_did_after_the_checkpoint_is_told_again(case: str, tmp_path: Path) -> None:
    """Their counts of before come from the checkpoint, those of after from the journal."""
    members, saved = killed(case, tmp_path)
    kept = MemberSeats()
    found: list[tuple[MemberPush, int]] = []
    journal = Journal(tmp_path, members.solver.structure)
    again = restore(
        SavedSolver(dict(saved.tensors), json.loads(json.dumps(saved.about))),
        members.solver.structure,
        np.random.default_rng(9),
        steps=J,
        founders=1,
        replay=lambda it: found.extend(journal.replay(it, int(saved.about["journal"]))),
        **kind(case),
    )
    before = kept.tally("a")
    before.taken(2 * J, 16, 300)
    before.refused = 5
    centre = Sessions(again, run="r", instance="c", now=0.0)
    centre.remember(json.loads(json.dumps(kept.memory())), found)
    tallies = centre.members.tallies
    pushes = {name: sum(push.peer == name for push, _ in found) for name in "abcd"}
    assert pushes == {"a": 4, "b": 2, "c": 4, "d": 2}
    assert {name: tally.pushes for name, tally in tallies.items()} == pushes | {"a": 5}
    assert tallies["a"].steps == 6 * J
    assert tallies["a"].refused == 5
    assert centre.staleness.count == 13
    assert centre.staleness.largest == 300
    assert centre.staleness.total == 300 + sum(staleness for _, staleness in found)


@pytest.mark.parametrize("case", HUBS)
def test_nothing_that_was_accepted_is_lost(case: str, tmp_path: Path) -> None:
    members, saved = killed(case, tmp_path)
    old = members.solver
    new = reborn(case, old, saved, tmp_path)
    assert same(weights(old), weights(new))
    assert (old.totals, old.plan, old.members) == (new.totals, new.plan, new.members)
    assert list(old.leases) == list(new.leases)
    assert old.more() == new.more()
    members.solver = new  # they come back with their leases, and go on
    members.everybody_pushes(2)
    assert all(torch.isfinite(value).all() for value in new.weights.values())


def test_a_torn_end_is_dropped_and_what_is_before_it_is_not(tmp_path: Path) -> None:
    case = "hub async request-reply"
    members, saved = killed(case, tmp_path)
    [path] = tmp_path.glob("journal-*.log")
    whole = path.read_bytes()
    pushes = members.solver.totals.pushes
    for size in (len(whole) - 1, len(whole) - 200):
        path.write_bytes(whole[:size])
        found = reborn(case, members.solver, saved, tmp_path).totals.pushes
        assert pushes - 2 <= found < pushes
    path.write_bytes(whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    assert reborn(case, members.solver, saved, tmp_path).totals.pushes < pushes
    path.unlink()
    assert reborn(case, members.solver, saved, tmp_path).totals.pushes == 6
