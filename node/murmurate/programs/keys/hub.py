"""The keys of a hub: for `murmurate coordinator --mode hub`, and for `up`, which starts one."""

from __future__ import annotations

import math

from murmurate.core.values.member_half import PROTOCOLS
from murmurate.programs.keys.gather import Key
from murmurate.programs.keys.kinds import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Wrong,
    is_flag,
    is_part,
    number,
    one_of,
    whole,
)

PROTOCOL_HELP = (
    "request-reply (default): a push waits for its answer, the weights; pipelined: never"
)


def is_momentum(value: object) -> float:
    """From 0 on, below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise Wrong("expected a number from 0 on, below 1")
    return float(value)


def is_slack(value: object) -> float:
    """A whole number, or infinite."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if not good or not (value == math.inf or float(value).is_integer()):  # type: ignore[arg-type]
        raise Wrong("expected a whole number from 0 on, or inf")
    return float(value)  # type: ignore[arg-type]


HUB_KEYS = (
    Key("hub", "protocol", TEXT, one_of(PROTOCOLS), PROTOCOL_HELP),
    Key("hub", "gradients", WHOLE, whole(1), "k-of-n, fedbuff: K, pushes in an update"),
    Key("hub", "momentum", NUMBER, is_momentum, "async-msgd, dc: the hub's (default 0.9; dc 0)"),
    Key("hub", "nesterov", FLAG, is_flag, "async-msgd, dc: Nesterov's, not heavy-ball"),
    Key("hub", "dc_lambda", NUMBER, number(0), "dc: λ (default 0.04; adaptive 2)"),
    Key("hub", "dc_adaptive", FLAG, is_flag, "dc: λ over the root of the mean square gradient"),
    Key("hub", "slack", NUMBER, is_slack, "ssp: updates ahead of the slowest (default 3), or inf"),
    Key("hub", "power", NUMBER, number(0), "scaled: weight (1 + τ)^-power (default 1)"),
    Key("hub", "alpha", NUMBER, is_part, "easgd, ea-*: part that moves (default 0.9/members)"),
    Key("hub", "pull", WHOLE, whole(1), "downpour: steps between two pulls (default: of a push)"),
)
