"""The rules of the modes in which a group trains in step, or in one memory. Without torch."""

from __future__ import annotations

from collections.abc import Sequence

from murmurate.core.values.names import ordinal

ALLREDUCE = "allreduce"
HOGWILD = "hogwild"

HIERARCHICAL, GROUPS, GROUPS_EA_WILD = "hierarchical", "groups", "groups-ea-wild"
GROUPED = (GROUPS, GROUPS_EA_WILD)
ALLREDUCE_RULES = ("flat", HIERARCHICAL, *GROUPED)
"""`flat`: one all-reduce over all. `hierarchical` (003): reduced inside groups of G, all-reduced
across their first members, broadcast inside. Both give the same mean. `groups`,
`groups-ea-wild` (003, section 3.1): in step inside groups of G; across them gossip, or elastic
exchanges with a hub."""
HOGWILD_RULES = ("hogwild",)

RULES_IN_STEP = {ALLREDUCE: ALLREDUCE_RULES, HOGWILD: HOGWILD_RULES}
"""By mode; the first one is the default."""


def rules_in_step() -> list[str]:
    """Of all these modes."""
    return [rule for rules in RULES_IN_STEP.values() for rule in rules]


GROUP_SIZE = 4
"""Members of a group, unless it is said otherwise; 003 has 4, 8 and 16."""


def group_problem(members: int, size: int) -> str:
    """What is wrong with groups of `size` among so many; empty: nothing.

    Only where the number of members is known beforehand: whoever dies later leaves a smaller group,
    and the mean is the same."""
    if size < 1:
        return "expected 1 or more members in a group"
    if members % size:
        fits = [str(each) for each in range(1, members + 1) if members % each == 0]
        return f"{members} nodes cannot be put into groups of {size}; {', '.join(fits)} can"
    return ""


def groups_of(ranks: int, size: int) -> list[list[int]]:
    """Ranks in groups of `size`, in order; the last one may be smaller."""
    return [list(range(first, min(first + size, ranks))) for first in range(0, ranks, size)]


def group_of(name: str, size: int) -> int | None:
    """The group a member belongs to, by the number its name ends in; None: it ends in none."""
    number = ordinal(name)
    return None if number is None else number // size


def dealt(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Names in groups of `size`, in order."""
    return [tuple(names[rank] for rank in group) for group in groups_of(len(names), size)]
