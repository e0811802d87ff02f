"""Papers 002 and 004 on the production hub: what their formulas say is what its solvers do.

The same laws are checked for a hub written for the test alone in test_004_conservation and
test_004_theory; here it is the objects that `murmurate coordinator --mode hub` runs.
"""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from tests.paper.production_hub import SolverSwarm

from murmurate.core.theory import exact_expected, renewals_shifted_exponential
from murmurate.core.values.hub_settings import HubSettings
from murmurate_coordinator.checkpoint import SavedSolver, restore, save
from murmurate_coordinator.solvers.hub.hub import HubSolver


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_section_2_staleness_is_conserved(n: int, k: int) -> None:
    """004, section 2, request-reply: sum of tau + residual = (n - 1) M, in integers, always."""
    for seed in range(3):
        rng = random.Random(seed)
        swarm = SolverSwarm(
            HubSettings(gradients=min(k, n)),
            lambda _, rng=rng: rng.paretovariate(1.1),  # type: ignore[misc]
            n=n,
            transfer_s=0.3,
        )
        swarm.run(300)
        swarm.solver.check()
        told = swarm.solver.more()["conservation"]
        updates = 300 // min(k, n)
        assert told["updates"] == swarm.solver.version == updates
        assert told["staleness"] == sum(swarm.staleness)
        assert sum(swarm.staleness) + told["residual"] == (n - 1) * updates
        assert told["presence"] == n * updates


@pytest.mark.parametrize("rule", ["async", "scaled", "async-msgd", "dc", "fedavg-async"])
def test_section_2_holds_while_members_come_die_and_the_hub_restarts(rule: str) -> None:
    """Presence stands for n M then; what a snapshot missed that died with its owner is residual."""
    rng = random.Random(1)
    swarm = SolverSwarm(HubSettings(), lambda _: rng.expovariate(1.0), n=4, rule=rule)
    swarm.run(100)
    swarm.take(swarm.solver.leave("m1"))
    swarm.run(150)
    saved = save(swarm.solver)
    about = json.loads(json.dumps(saved.about))
    again = restore(
        SavedSolver(dict(saved.tensors), about),
        swarm.solver.structure,
        np.random.default_rng(3),
        steps=1,
        founders=4,
        mode="hub",
        settings=HubSettings(),
    )
    assert isinstance(again, HubSolver)
    swarm.solver = again
    swarm.take(swarm.solver.join("late"))
    swarm.run(300)
    swarm.solver.check()
    told = swarm.solver.more()["conservation"]
    assert told["updates"] == 300
    assert sum(swarm.staleness) + told["residual"] == told["presence"] - told["updates"]


@pytest.mark.parametrize("n", range(10, 21, 5))
def test_fig_1_pipelined(n: int) -> None:
    """004, Fig. 1 (K = 10, T_c = 1, alpha = 1, lambda = 2/3) to 0.01 of the exact formula."""
    rng = np.random.default_rng(n)
    times = iter((1.0 + rng.exponential(1.5, 200_000)).tolist())
    settings = HubSettings(gradients=10, protocol="pipelined")
    swarm = SolverSwarm(settings, lambda _: next(times), n=n, transfer_s=1.0)
    swarm.run(40_000)
    expected = exact_expected(n, 10, 2.5, 1.0, renewals_shifted_exponential(1.0, 1.0, 2 / 3))
    assert np.mean(swarm.staleness[8000:]) == pytest.approx(expected, abs=0.01)


def test_ssp_with_no_slack_is_in_step_and_with_all_of_it_is_async() -> None:
    speeds = {"m0": 7.3, "m1": 1.0, "m2": 2.1}
    step = SolverSwarm(HubSettings(slack=0), speeds.__getitem__, n=3, rule="ssp")
    step.run(90)
    for turn in range(30):  # everybody once, before anybody again
        assert set(step.order[3 * turn : 3 * turn + 3]) == set(speeds)
    free = SolverSwarm(HubSettings(slack=math.inf), speeds.__getitem__, n=3, rule="ssp")
    plain = SolverSwarm(HubSettings(), speeds.__getitem__, n=3, rule="async")
    free.run(90)
    plain.run(90)
    assert (free.order, free.staleness) == (plain.order, plain.staleness)
    two = SolverSwarm(HubSettings(slack=2), speeds.__getitem__, n=3, rule="ssp")
    two.run(90)
    ahead = [two.order[:k].count("m1") - two.order[:k].count("m0") for k in range(91)]
    assert max(ahead) == 3  # it pushes, is 3 ahead, and waits
    two.take(two.solver.leave("m0"))  # nobody waits for the dead
    two.run(200)
