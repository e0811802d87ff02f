"""`core/message.py`: what each message refuses to be made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.message import (
    ALIVE,
    CANDIDATES_MAX,
    RANGES_MAX,
    RUMOURS_MAX,
    STAMPS_MAX,
    STATES,
    Ack,
    Decided,
    Digest,
    Generation,
    Lack,
    Ping,
    PingRequest,
    Prepare,
    Push,
    Rumour,
    Stamp,
    Want,
)
from murmurate.errors import RemoteProtocolError

EMPTY = Clock()
ONE = torch.zeros(1)
SPAN = Range("a", 1, 1, 2)
RUMOUR = Rumour("a", 1, 0, ALIVE)


def stamps(count: int) -> tuple[Stamp, ...]:
    return tuple(Stamp(Dot("a", 1, seq), EMPTY) for seq in range(1, count + 1))


def fold(*runs: int) -> Generation:
    return Generation(1, ("a",), ((("b", 1), runs),))


BAD: dict[str, tuple[str, Callable[[], object]]] = {
    # pushes
    "no stamps": ("push.stamps", lambda: Push((), ONE)),
    "too many stamps": ("push.stamps", lambda: Push(stamps(STAMPS_MAX + 1), ONE)),
    "one dot twice": ("push.stamps", lambda: Push((*stamps(3), *stamps(1)), ONE)),
    "payload without axis": ("push.payload", lambda: Push(stamps(1), torch.tensor(1.0))),
    "payload with two axes": ("push.payload", lambda: Push(stamps(1), torch.zeros(1, 1))),
    # ranges
    "want nothing": ("want.ranges", lambda: Want(())),
    "want too many": ("want.ranges", lambda: Want((SPAN,) * (RANGES_MAX + 1))),
    "want from 0": ("want.ranges", lambda: Want((Range("a", 1, 0, 2),))),
    "want from -3": ("want.ranges", lambda: Want((Range("a", 1, -3, 2),))),
    "want backwards": ("want.ranges", lambda: Want((SPAN, Range("a", 1, 3, 2)))),
    "lack nothing": ("lack.ranges", lambda: Lack(())),
    "lack too many": ("lack.ranges", lambda: Lack((SPAN,) * (RANGES_MAX + 1))),
    "lack from 0": ("lack.ranges", lambda: Lack((SPAN, Range("a", 1, 0, 0)))),
    "lack backwards": ("lack.ranges", lambda: Lack((Range("a", 1, 9, 2),))),
    # generations
    "generation -1": ("generation.number", lambda: Generation(-1, ("a",))),
    "nobody on the roster": ("generation.roster", lambda: Generation(1, ())),
    "roster unsorted": ("generation.roster", lambda: Generation(1, ("b", "a"))),
    "a memory too few": (
        "generation.memories",
        lambda: Generation(1, ("a", "b"), memories=(1,)),
    ),
    "a memory of later than now": (
        "digest.memory",
        lambda: Digest(3, Clock(), Clock(), memory=4),
    ),
    "one name twice": ("generation.roster", lambda: Generation(1, ("a", "a", "b"))),
    "half a run": ("generation.folds", lambda: fold(5)),
    "a run and a half": ("generation.folds", lambda: fold(1, 2, 4)),
    "a run backwards": ("generation.folds", lambda: fold(9, 1)),
    "a run from 0": ("generation.folds", lambda: fold(0, 3)),
    "runs descend": ("generation.folds", lambda: fold(7, 9, 1, 2)),
    "runs overlap": ("generation.folds", lambda: fold(1, 5, 4, 9)),
    "one epoch folded twice": (
        "generation.folds",
        lambda: Generation(1, ("a",), ((("b", 1), (1, 2)), (("b", 1), (1, 3)))),
    ),
    "too many to fold": (
        "prepare.candidates",
        lambda: Prepare(1, (1, "a"), (("b", 1),) * (CANDIDATES_MAX + 1)),
    ),
    # members
    "unknown state": ("rumour.state", lambda: Rumour("a", 1, 0, "zombie")),
    "state in capitals": ("rumour.state", lambda: Rumour("a", 1, 0, "ALIVE")),
    "no name": ("rumour.name", lambda: Rumour("", 1, 0, ALIVE)),
    "epoch -1": ("rumour.incarnation", lambda: Rumour("a", -1, 0, ALIVE)),
    "incarnation -1": ("rumour.incarnation", lambda: Rumour("a", 1, -1, ALIVE)),
    "ping and gossip": ("rumours", lambda: Ping(1, (RUMOUR,) * (RUMOURS_MAX + 1))),
    "asking and gossip": ("rumours", lambda: PingRequest(1, "b", (RUMOUR,) * (RUMOURS_MAX + 1))),
    "ack and gossip": ("rumours", lambda: Ack(1, "b", rumours=(RUMOUR,) * (RUMOURS_MAX + 1))),
}

GOOD: dict[str, Callable[[], object]] = {
    "one stamp": lambda: Push(stamps(1), ONE),
    "as many stamps as may be": lambda: Push(stamps(STAMPS_MAX), ONE),
    "a payload of nothing": lambda: Push(stamps(1), torch.zeros(0)),
    "want one": lambda: Want((Range("a", 1, 1, 1),)),
    "as many ranges as may be": lambda: Want((SPAN,) * RANGES_MAX),
    "lack an endless range": lambda: Lack((Range("a", 1, 1, 2**62),)),
    "founding": lambda: Generation(0, ("a",)),
    "folds": lambda: fold(1, 1, 3, 9),
    "as many to fold as may be": lambda: Prepare(1, (1, "a"), (("b", 1),) * CANDIDATES_MAX),
    "first of a life": lambda: Rumour("a", 0, 0, ALIVE),
    **{state: lambda state=state: Rumour("a", 1, 0, state) for state in STATES},  # type: ignore[misc]
    "as many rumours as may be": lambda: Ping(1, (RUMOUR,) * RUMOURS_MAX),
    "ask with as many": lambda: PingRequest(1, "b", (RUMOUR,) * RUMOURS_MAX),
    "ack with as many": lambda: Ack(1, "b", rumours=(RUMOUR,) * RUMOURS_MAX),
    "nothing decided": Decided,
}


@pytest.mark.parametrize("case", BAD)
def test_refused_by_itself(case: str) -> None:
    field, make = BAD[case]
    with pytest.raises(RemoteProtocolError) as caught:
        make()
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("case", GOOD)
def test_taken_at_the_edge(case: str) -> None:
    GOOD[case]()


def test_what_a_push_says_of_itself() -> None:
    push = Push(stamps(3), torch.zeros(7, dtype=torch.float64))
    assert push.dots == (Dot("a", 1, 1), Dot("a", 1, 2), Dot("a", 1, 3))
    assert push.nbytes == 56
    assert Push(stamps(1), torch.zeros(7, dtype=torch.bfloat16)).nbytes == 14


def test_messages_are_values() -> None:
    assert Ping(1, (RUMOUR,)) == Ping(1, (Rumour("a", 1, 0, ALIVE),))
    assert Want((SPAN,)) != Want((SPAN, SPAN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        RUMOUR.state = "dead"  # type: ignore[misc]
