"""A newcomer takes a snapshot of 100 MB while everybody trains on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.chaos.conftest import Figure, size
from tests.chaos.figures import quantile
from tests.chaos.lab import ROOT, START_S, Lab, Process

PARAMETERS = 25_000_000
NBYTES = 4 * PARAMETERS
TIMES = 3.0


def bare_s(repeats: int) -> list[float]:
    command = [sys.executable, "-m", "tests.chaos.bare", str(NBYTES), str(repeats)]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return [float(line) for line in out.stdout.split()]


def _join(here: Lab, name: str, address: str) -> Process:
    """A newcomer with its imports done and its model made, that now joins."""
    new = here.start(name, held=True, train=False, **_model())
    here.wait(lambda: new.last("ready"), "imports", START_S)
    here.rest(1.0)
    new.tell(f"peers {address}")
    return new


def _model() -> dict[str, Any]:
    return {"workload": f"synthetic:{PARAMETERS}", "slow_s": 0.3, "join_timeout_s": 30.0}


def test_a_newcomer_is_there_in_three_bare_transfers(
    lab: Callable[..., Lab], figure: Figure
) -> None:
    """The giver trains all the time; bare transfers take turns with the joins."""
    joins = int(size("JOINS", 3, 7))
    here = lab(240 + 40 * joins)
    giver = here.start("giver", **_model())
    here.wait(lambda: giver.last("joined") and len(giver.steps()) > 5, "the giver", START_S)
    address = giver.last("joined")["address"]  # type: ignore[index]
    join_s: list[float] = []
    bare: list[float] = []
    pauses_s: list[float] = []
    usual: list[float] = []
    for number in range(joins):
        bare += bare_s(3)
        here.rest(2.0)
        before = time.monotonic()
        usual += [took_s for _, took_s in giver.steps(before - 1.9, before)]
        new = _join(here, f"new{number}", address)
        here.wait(lambda new=new: new.last("joined"), "joining", 30)  # type: ignore[misc]
        here.rest(1.0)
        began, joined = new.last("joining"), new.last("joined")
        assert began is not None
        assert joined is not None
        join_s.append(joined["took_s"])
        during = giver.steps(began["at"], joined["at"] + 0.5)
        pauses_s.append(max(took_s for _, took_s in during))
        new.kill()
        here.rest(4.0)
    step_s, pause_s = quantile(usual, 0.5), max(pauses_s)
    ratio = quantile(join_s, 0.5) / quantile(bare, 0.5)
    figure(
        "late join, 100 MB",
        f"{joins} joins: synced {quantile(join_s, 0.5):.3f} s after it began to join (median;"
        f" {min(join_s):.3f} to {max(join_s):.3f}), {ratio:.1f} bare transfers of"
        f" {quantile(bare, 0.5):.3f} s; the giver's longest step {pause_s:.3f} s, usual"
        f" {step_s:.3f} s (median), {max(usual):.3f} s (max)",
        join_s=join_s,
        bare_s=bare,
        ratio=ratio,
        pause_s=pause_s,
        step_s=step_s,
        step_max_s=max(usual),
    )
    assert not here.broken()
    assert ratio <= TIMES
    assert pause_s - max(usual) <= step_s


def test_a_giver_that_dies_is_replaced(
    lab: Callable[..., Lab], figure: Figure, tmp_path: Path
) -> None:
    """Killed in the middle of its snapshot: the newcomer gets it from the other."""
    here = lab(400)
    givers = here.swarm(2, **_model())
    address = [g.last("joined")["address"] for g in givers]  # type: ignore[index]
    new = here.start("new", held=True, train=False, watch=True, **_model())
    here.wait(lambda: new.last("ready"), "imports", START_S)
    here.rest(1.0)
    new.tell(f"peers {' '.join(address)}")
    here.wait(lambda: new.last("piece"), "the first piece", 30)
    piece = new.last("piece")
    assert piece is not None
    giver = next(g for g in givers if g.name == piece["sender"])
    killed = giver.kill()
    here.wait(lambda: new.last("joined"), "joining", 60)
    adopted, joined = new.last("adopted"), new.last("joined")
    assert adopted is not None
    assert joined is not None
    late_s = joined["at"] - killed
    figure(
        "a giver dies in the middle of a snapshot",
        f"at {piece['at_bytes'] / 1e6:.0f} of {NBYTES / 1e6:.0f} MB; the newcomer has it from"
        f" {adopted['giver']} {late_s:.1f} s after the kill",
        late_s=late_s,
        at_bytes=piece["at_bytes"],
    )
    assert adopted["giver"] != giver.name
    (other,) = (g for g in givers if g is not giver)
    other.tell("stop")
    here.wait(lambda: here.same_set([other, new]), "the same set", 30)
    here.end([other, new])
    weights = [np.load(tmp_path / f"{n.name}.npy", allow_pickle=False) for n in (other, new)]
    assert np.allclose(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    assert not here.broken()
