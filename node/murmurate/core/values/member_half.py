"""A solver's other half, as values: what its members send up, what they get, and when.

A coordinator and its members both know the rules of a mode by name, and here is what each rule asks
of a member. A member looks up the rule it was welcomed with and does that, without knowing the rule
itself; a solver names the same line as its own half. Neither torch nor a solver is needed to read
this table, so the lists of rules in help and configuration are made from it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType


class Up(StrEnum):
    """What a push has in it. Each counts from what was given last, as the steps of a push do: so a
    push after a lost answer has everything in it."""

    WEIGHTS = "weights"
    """The tensors as they are now."""
    DIFFERENCE = "difference"
    """The tensors as they are now, less what was given."""
    GRADIENT = "gradient"
    """The sum of the gradients of all steps since; of a buffer its difference. The member's own
    optimizer does nothing then: the hub decides what a gradient does."""


class Down(StrEnum):
    """What a member does with the values it is given."""

    REPLACE = "replace"
    """Its tensors are these from now on."""
    ADD = "add"
    """They are added to its tensors; the first time they replace them."""


class PushPace(StrEnum):
    """When a member pushes."""

    AFTER_STEPS = "after steps"
    """After the number of steps that the coordinator's welcome names."""
    WHEN_IN = "when in"
    """When the last push is in, as seldom as makes it cost little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHalf:
    """What one rule asks of its members."""

    up: Up = Up.WEIGHTS
    down: Down = Down.REPLACE
    every: PushPace = PushPace.AFTER_STEPS
    waits: bool = True
    """Whether a member waits after a push until it is given something; else it trains on."""
    pipelined: bool = False
    """Nobody waits for an answer: a push has what was done since the one before it, several may be
    on their way, and newer values come under the same lease whenever there are some."""

    momentum: float = 0.0
    """Of each step, where the member's own optimizer has none."""

    @property
    def stays(self) -> bool:
        """Whether a member has one lease for as long as it stays, and what comes under it does not
        end what it does."""
        return self.pipelined or self.down is Down.ADD

    @property
    def central(self) -> bool:
        """Whether the rule decides what a step does, and not the member's own optimizer."""
        return self.up is Up.GRADIENT


TURNS = MemberHalf()
"""Some steps, a push of the weights, and then new weights."""
FREELY = MemberHalf(every=PushPace.WHEN_IN, waits=False)
"""Steps without end, and a push of the weights now and then."""

GRADIENTS = MemberHalf(up=Up.GRADIENT)
"""A gradient, and for it the weights of now."""
CHANGES = MemberHalf(up=Up.DIFFERENCE)
"""Some steps, a push of what they changed, and then the weights of now."""
CHANGES_FREELY = MemberHalf(up=Up.DIFFERENCE, waits=False, pipelined=True)
"""Some steps, a push of what they changed, and on; weights come now and then."""
ELASTIC_FREELY = MemberHalf(down=Down.ADD, waits=False)
"""Some steps, a push of the weights, and on; what comes for it is added when it comes."""
ELASTIC_MOMENTUM = MemberHalf(momentum=0.9)
"""As `TURNS`, of steps with momentum."""

IST_RULES: Mapping[str, MemberHalf] = MappingProxyType(
    {"sync": TURNS, "once": TURNS, "async": FREELY, "lease": TURNS, "fedavg": TURNS}
)
"""The rules of mode `ist`."""

HUB_RULES: Mapping[str, MemberHalf] = MappingProxyType(
    {
        "async": GRADIENTS,
        "sync": GRADIENTS,
        "k-of-n": GRADIENTS,
        "ssp": GRADIENTS,
        "scaled": GRADIENTS,
        "dc": GRADIENTS,
        "async-msgd": GRADIENTS,
        "fedavg": TURNS,
        "fedavg-async": TURNS,
        "fedbuff": CHANGES,
        "downpour": CHANGES_FREELY,
        "easgd": TURNS,
        "ea-wild": ELASTIC_FREELY,
        "ea-msgd": ELASTIC_MOMENTUM,
    }
)
"""The rules of mode `hub`, by the protocol request-reply."""

RULES_OF: Mapping[str, Mapping[str, MemberHalf]] = MappingProxyType(
    {"ist": IST_RULES, "hub": HUB_RULES}
)
"""By mode: those that have a coordinator."""

REQUEST_REPLY, PIPELINED = "request-reply", "pipelined"
PROTOCOLS = (REQUEST_REPLY, PIPELINED)
"""How members of a hub push: request-reply waits for the answer to each push, which has the new
weights (paper 002); pipelined never waits (paper 004). Their staleness differs: a name for each."""


WAITING = frozenset({"ssp", "dc"})
"""Gradients go up under them too, but they need the answer: one makes members wait by it, the other
keeps what it gave."""


def can_pipeline(rule: str) -> bool:
    """Whether a hub's rule can be pipelined: most to which gradients go up can be either, and some
    of the others are nothing else."""
    half = HUB_RULES[rule]
    return half.pipelined or (half.central and rule not in WAITING)


def pipelined(half: MemberHalf) -> MemberHalf:
    """The same half by the other protocol."""
    return replace(half, pipelined=True, waits=False)
