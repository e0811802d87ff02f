"""A swarm as one of its members describes it, as plain JSON: for scripts, `top` and the page."""

from __future__ import annotations

import math
from typing import Any

from murmurate.core.figures.progress import Progress
from murmurate.edge.net.description import Description
from murmurate.watch.report import by_class, empty_row, node_row, number, warned

Json = dict[str, Any]


def as_json(description: Description) -> Json:
    """Everything `status` shows, and more. Keys are only ever added; unknown numbers are null."""
    told = {progress.name: progress for progress in description.progress}
    parameters = sum(_product(tensor.shape) for tensor in description.tensors)
    live = {each.name for each in description.members if each.state in ("alive", "suspect")}
    return {
        "name": description.name,
        "address": description.address,
        "run": description.run,
        "rule": description.rule,
        "swarm": description.swarm,
        "synced": description.synced,
        "parameters": parameters,
        "updates": len(description.clock),
        "warnings": warned(node_row(each) for name, each in sorted(told.items()) if name in live),
        "hints": hints(description),
        "members": [
            {
                **member_row(each.name, told.get(each.name)),
                "state": each.state,
                "reason": each.reason,
                "address": each.address,
            }
            for each in sorted(description.members, key=lambda each: each.name)
        ],
    }


def hints(description: Description) -> list[str]:
    """What a script has to say for a column that is empty; samples and steps are counted for it."""
    train = [told for told in description.progress if told.samples]
    if not train or any(not math.isnan(told.loss) for told in train):
        return []
    return ["no losses: a script tells its own by swarm.log(loss=loss.item()), now and then"]


def member_row(name: str, told: Progress | None) -> Json:
    """A row of the report, and what is of this moment."""
    row = empty_row(name) if told is None else node_row(told)
    for key in (*by_class((), ()), "role"):  # known to the node itself only
        del row[key]
    now = told or Progress(name=name, epoch=0, version=0)
    return {
        **row,
        "at": now.at or None,
        "done": now.done,
        "staleness_now": number(now.staleness_now),
        "staleness_predicted": number(now.staleness_predicted),
        "delay_s": number(now.delay_s),
        "lag": now.lag,
        "neighbours": [each._asdict() for each in now.neighbours],
    }


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
