"""What a hub's rules can be told: values with their limits, and which rule looks at which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from murmurate.core.values.member_half import (
    HUB_RULES,
    PIPELINED,
    PROTOCOLS,
    REQUEST_REPLY,
    can_pipeline,
)
from murmurate.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """Of one hub. A rule takes what concerns it: `USED_BY`."""

    lr: float = 0.1
    """What a gradient is multiplied by, where the rule decides centrally."""
    weight_decay: float = 0.0
    """What is added to such a gradient of the weights it is for, as torch's SGD does it."""
    protocol: str = REQUEST_REPLY
    gradients: int = 1
    """K: so many pushes make an update."""
    momentum: float | None = None
    """Of the hub's own momentum; None: 0.9, of `dc` none."""
    nesterov: bool = False
    dc_lambda: float | None = None
    """λ of delay compensation, or λ0 of the adaptive one; None: 0.04, or 2."""
    dc_adaptive: bool = False
    slack: float = 3
    """s: updates that a member may be ahead of the slowest; infinite: as many as it likes."""
    power: float = 1.0
    """A push of staleness τ weighs (1 + τ) to the power of minus this."""
    alpha: float | None = None
    """Of an elastic exchange: the part of the difference that moves; None: 0.9 / members."""
    pull: int | None = None
    """Local steps between two pulls of the weights; None: as many as between two pushes."""

    def __post_init__(self) -> None:
        for good, problem in (
            (0 < self.lr < math.inf, f"lr {self.lr:g}: must be a number above 0"),
            (
                0 <= self.weight_decay < math.inf,
                f"weight_decay {self.weight_decay:g}: must be a number from 0 on",
            ),
            (
                self.protocol in PROTOCOLS,
                f"protocol {self.protocol!r}: expected {' or '.join(PROTOCOLS)}",
            ),
            (self.gradients >= 1, f"gradients {self.gradients}: must be at least 1"),
            (
                self.momentum is None or 0 <= self.momentum < 1,
                f"momentum {self.momentum}: must be from 0 on, below 1",
            ),
            (
                self.dc_lambda is None or 0 <= self.dc_lambda < math.inf,
                f"dc_lambda {self.dc_lambda}: must be from 0 on",
            ),
            (self.slack >= 0, f"slack {self.slack:g}: must be from 0 on, or inf"),
            (0 <= self.power < math.inf, f"power {self.power:g}: must be from 0 on"),
            (
                self.alpha is None or 0 < self.alpha < 1,
                f"alpha {self.alpha}: must be above 0 and below 1",
            ),
            (self.pull is None or self.pull >= 1, f"pull {self.pull}: must be at least 1"),
        ):
            if not good:
                raise ConfigError(problem)


ELASTIC = frozenset({"easgd", "ea-wild", "ea-msgd"})
USED_BY: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "gradients": frozenset({"k-of-n", "fedbuff"}),
        "momentum": frozenset({"async-msgd", "dc"}),
        "nesterov": frozenset({"async-msgd", "dc"}),
        "dc_lambda": frozenset({"dc"}),
        "dc_adaptive": frozenset({"dc"}),
        "slack": frozenset({"ssp"}),
        "power": frozenset({"scaled"}),
        "alpha": ELASTIC,
        "pull": frozenset({"downpour"}),
    }
)
"""Settings that only some rules look at."""


def optimizer_problems(rule: str, said: Mapping[str, object]) -> dict[str, str]:
    """The same of what was said of the optimizer. Where gradients go up there is none at the
    members, and the hub's step is SGD's: an optimizer that is passed over would be a lie."""
    if not HUB_RULES[rule].central:
        return {}
    found: dict[str, str] = {}
    if said.get("optimizer", "sgd") != "sgd":
        own = ", ".join(name for name, half in HUB_RULES.items() if not half.central)
        found["optimizer"] = f"sgd with rule {rule}, whose steps the hub makes; any with {own}"
    able = sorted(USED_BY["momentum"])
    for name in ("momentum", "nesterov"):
        if said.get(name):
            hubs = f"--hub-{name}" + ("" if rule in able else f" with rule {' or '.join(able)}")
            found[name] = f"rule {rule} makes its steps at the hub: {hubs}"
    return found


def problems(rule: str, given: Mapping[str, object], members: int | None) -> dict[str, str]:
    """What is wrong with these settings of this rule, by name of the setting: what is accepted
    instead. `members`: so many are there at the start, as far as that is known."""
    found: dict[str, str] = {}
    for name in given:
        rules = USED_BY.get(name)
        if rules is not None and rule not in rules:
            found[name] = f"only with rule {' or '.join(sorted(rules))}"
    if given.get("protocol", REQUEST_REPLY) != REQUEST_REPLY and not can_pipeline(rule):
        both = ", ".join(n for n, h in HUB_RULES.items() if can_pipeline(n) and not h.pipelined)
        found["protocol"] = f"{REQUEST_REPLY} with rule {rule}; both with {both}"
    if given.get("protocol") == REQUEST_REPLY and HUB_RULES[rule].pipelined:
        found["protocol"] = f"rule {rule} is always {PIPELINED}"
    gradients = given.get("gradients")
    if members is not None and isinstance(gradients, int) and gradients > members:
        found.setdefault("gradients", f"at most {members}: so many members begin")
    return found
