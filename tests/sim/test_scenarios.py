"""Small versions of the long scenarios; `make sim` runs them whole."""

from __future__ import annotations

from murmurate.study.sim import churn, scale


def test_clocks_grow_with_members_not_with_history() -> None:
    result = churn.run(seed=1, changes=150)
    assert result.changes >= 140
    assert result.generations > 5
    assert result.entries_max <= churn.ENTRIES_MAX
    assert 0 < result.wire_bytes_max <= churn.WIRE_BYTES_MAX


def test_traffic_on_the_tree_depends_on_degree_not_on_the_number_of_peers() -> None:
    small, large = scale.run(32, "tree"), scale.run(128, "tree")
    assert large.sent_mean <= scale.RATIO_MAX * small.sent_mean
    assert large.applied == large.updates * 128


def test_traffic_on_a_mesh_grows_with_it() -> None:
    small, large = scale.run(16, "full"), scale.run(64, "full")
    assert large.sent_mean > 2.5 * small.sent_mean
