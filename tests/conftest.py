"""How the tests share the machine: `make test` runs them in three pytest workers side by side.

Tests with real processes are one group: one worker runs them, one after the other, so that they
never disturb each other. Tests with real sockets inside one process, which mostly wait, are another
group with a worker of its own. The rest needs no quiet machine: it is computed when the two groups
leave a core idle, at the lowest priority, and by all workers when the groups are through; test by
test, but for files whose tests all look at the same manifests, which are rendered once. Without
workers (`pytest tests/unit/test_clock.py`) nothing here has an effect.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

WORKER = "PYTEST_XDIST_WORKER" in os.environ
LOWEST = 19
HERE = Path(__file__).parent
PROCESSES = (HERE / "integration", HERE / "k8s", HERE / "chaos")
"""Where tests start processes …"""
SOCKETS = {
    HERE / "integration" / f"test_{name}.py"
    for name in (
        *("batch_norm", "catching_up", "clean_end", "codec", "constraining", "coordinator"),
        *("generator", "grpc_transport", "hub", "late_join", "loss_seen", "member", "metrics"),
        *("mistakes", "moments", "names", "other_peoples_loops", "page", "restoring"),
        *("session", "shared"),
        *("shared_loops", "streams", "transport_conformance", "turns", "two_swarms"),
        *("two_way_links", "unequal_speeds", "whole_swarm"),
    )
}
"""… but for these, which have threads and connections to themselves only (one test of `session`
starts one child) …"""
RENDERED = {
    HERE / "k8s" / f"test_{name}.py"
    for name in ("chart", "docs", "manifests", "pod_security", "schemas")
}
"""… and for these, which read files and what kubectl and helm make of them."""

if WORKER:
    # A worker has less than the machine, whose cores torch counts when it is loaded.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def group_of(path: Path) -> str | None:
    """The name of the group whose worker runs the tests of a file; none: any worker does."""
    if path in SOCKETS:
        return "sockets"
    if path in RENDERED:
        return None
    return "processes" if any(folder in path.parents for folder in PROCESSES) else None


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a group to one worker as a whole, the largest first, and the rest test by test.

    xdist's own `--dist loadgroup` (3.8.0) changes a test's id, which pytest 9.2 no longer lets it.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        path = self.config.rootpath / file
        return group_of(path) or (file if path in RENDERED else nodeid)


@pytest.hookimpl(optionalhook=True)  # there may be no xdist: `pytest -p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Groups(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker that has come to the rest gives way from then on: no group comes to it any more."""
    if WORKER and group_of(item.path) is None:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
