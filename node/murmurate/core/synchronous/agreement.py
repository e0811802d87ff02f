"""How members of a group agree who is in the next one.

All who are there put a claim where the first of them by name meets; that one draws up the plan as
soon as it has a claim of each. Nothing else has to be agreed on: a plan that does not come about
(one died meanwhile, or two took different members for the first) is given up, and all claim again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from murmurate.core.values.limits import NAME_BYTES_MAX, name_problem
from murmurate.errors import RemoteProtocolError

MEMBERS_MAX = 1024
NUMBER_MAX = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """«I am here, and so far have I got.»"""

    name: str
    number: int
    """Of this member's claims: higher than that of any before."""
    step: int
    """Steps in its weights; 0: those it was given when it came."""
    founder: bool = False
    """Of the weights all began with, where nobody has made a step."""
    speaks: bool = False
    """For its group, to other groups: then its weights are the group's."""
    first: bool = False
    """It is the one that should speak, where nobody does."""
    of: int = 0
    """The group whose weights it has, where there are several."""

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """Who is in a group, in order of rank, and who has to be given the weights."""

    key: str
    """Under which the members find each other; of this plan alone."""
    members: tuple[str, ...]
    source: str
    """Whose weights and optimizer state count: who speaks for the group, else who has made the most
    steps."""
    behind: tuple[str, ...]
    """Who takes them over."""
    speaker: str = ""
    """Who speaks for them to other groups, where there are some; its weights count, once it has
    begun."""

    def text(self) -> str:
        return json.dumps(asdict(self))


def draw_up(claims: Iterable[Claim], key: str) -> GroupPlan:
    """The plan that follows from these claims, whatever their order."""
    ordered = sorted(claims, key=lambda claim: claim.name)
    source = max(ordered, key=lambda claim: (claim.speaks, claim.step, claim.founder))
    level = (source.step, source.of)
    best = max(ordered, key=lambda claim: (claim.first, claim.step, claim.founder))
    return GroupPlan(
        key=key,
        members=tuple(claim.name for claim in ordered),
        source=source.name,
        behind=tuple(claim.name for claim in ordered if (claim.step, claim.of) != level),
        speaker=(source if source.speaks else best).name,
    )


def meets_at(present: Mapping[str, str]) -> str:
    """Of those who are there, the one at whose place all meet."""
    return min(present)


def read_claim(text: bytes) -> Claim:
    """RemoteProtocolError: no member writes this."""
    found = _object(text, "claim")
    return Claim(
        name=_name(found, "name"),
        number=_number(found, "number"),
        step=_number(found, "step"),
        founder=found.get("founder") is True,
        speaks=found.get("speaks") is True,
        first=found.get("first") is True,
        of=_number({"of": 0, **found}, "of"),
    )


def read_plan(text: bytes) -> GroupPlan:
    """RemoteProtocolError: no member writes this."""
    found = _object(text, "plan")
    members, behind = _names(found, "members"), _names(found, "behind")
    plan = GroupPlan(
        key=_name(found, "key"),
        members=members,
        source=_name(found, "source"),
        behind=behind,
        speaker=_name(found, "speaker" if found.get("speaker") else "source"),
    )
    if not {plan.source, plan.speaker, *behind} <= set(members):
        raise RemoteProtocolError("plan", "it names one who is not a member")
    return plan


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise RemoteProtocolError(what, "no JSON") from None
    if not isinstance(found, dict):
        raise RemoteProtocolError(what, "no object")
    return found


def _name(found: Mapping[str, Any], field: str) -> str:
    value = found.get(field)
    if not isinstance(value, str) or not value or name_problem(value, 2 * NAME_BYTES_MAX):
        raise RemoteProtocolError(field, "expected a name")
    return value


def _number(found: Mapping[str, Any], field: str) -> int:
    value = found.get(field)
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise RemoteProtocolError(field, f"expected a number from 0 to {NUMBER_MAX}")
    return value


def _names(found: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = found.get(field)
    if not isinstance(value, list) or len(value) > MEMBERS_MAX:
        raise RemoteProtocolError(field, f"expected a list of at most {MEMBERS_MAX} names")
    names = tuple(_name({field: each}, field) for each in value)
    if len(set(names)) != len(names):
        raise RemoteProtocolError(field, "one stands there twice")
    return names
