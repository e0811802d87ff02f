"""`core/admission.py`: the rows of the bad-input table that a peer can judge by itself.

After every refusal the same gate must give the same answers as one that never saw the message.
"""

from __future__ import annotations

import math

import pytest
import torch

from murmurate.core.admission import (
    NORM_MAX,
    SEQ_JUMP_MAX,
    SEQ_PER_S_MAX,
    Gate,
    payload_problem,
)
from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.message import Push, Stamp
from murmurate.errors import RemoteProtocolError

ME, EPOCH, SEQ = "me", 3, 10
YEAR_S = 365 * 86_400.0
ELEMENTS = 4


def model() -> torch.Tensor:
    return torch.arange(ELEMENTS, dtype=torch.float32)


def clock(*spans: Range, generation: int = 0) -> Clock:
    out = Clock(generation=generation)
    for span in spans:
        out.add_range(span)
    return out


def push(*dots: Dot, payload: torch.Tensor | None = None, context: Clock | None = None) -> Push:
    stamps = tuple(Stamp(dot, context or Clock()) for dot in dots or (Dot("b", 1, 1),))
    return Push(stamps, torch.ones(ELEMENTS) if payload is None else payload)


# -- payloads ------------------------------------------------------------------------------------

BAD_PAYLOADS: dict[str, tuple[torch.Tensor, str]] = {
    "NaN": (torch.tensor([0.0, math.nan, 0.0, 0.0]), "norm is nan"),
    "Inf": (torch.tensor([0.0, 0.0, 0.0, math.inf]), "norm is inf"),
    "-Inf": (torch.tensor([-math.inf, 0.0, 0.0, 0.0]), "norm is inf"),
    "NaN beside Inf": (torch.tensor([math.inf, math.nan, 0.0, 0.0]), "norm is nan"),
    "1e30": (torch.full((ELEMENTS,), 1e30), "norm is"),
    "1e30 once": (torch.tensor([0.0, 0.0, 1e30, 0.0]), "norm is"),
    "the largest fp32": (torch.full((ELEMENTS,), torch.finfo(torch.float32).max), "norm is"),
    "norm a little over": (torch.full((ELEMENTS,), 0.51 * NORM_MAX), "norm is"),
    "one element more": (torch.zeros(ELEMENTS + 1), "5 elements, the model has 4"),
    "one element, to be broadcast": (torch.zeros(1), "1 elements"),
    "no element": (torch.zeros(0), "0 elements"),
    "float64": (torch.zeros(ELEMENTS, dtype=torch.float64), "torch.float64, the model has"),
    "bfloat16": (torch.zeros(ELEMENTS, dtype=torch.bfloat16), "torch.bfloat16"),
    "int8": (torch.zeros(ELEMENTS, dtype=torch.int8), "torch.int8"),
    "int64": (torch.zeros(ELEMENTS, dtype=torch.int64), "torch.int64"),
    "bool": (torch.zeros(ELEMENTS, dtype=torch.bool), "torch.bool"),
    "complex64": (torch.zeros(ELEMENTS, dtype=torch.complex64), "torch.complex64"),
}


@pytest.mark.parametrize("case", BAD_PAYLOADS)
def test_a_payload_that_cannot_be_added(case: str) -> None:
    payload, problem = BAD_PAYLOADS[case]
    weights = model()
    with pytest.raises(RemoteProtocolError, match=problem) as caught:
        Gate(ME, EPOCH).check_push(push(payload=payload), SEQ, weights)
    assert caught.value.field == "push.payload"
    assert torch.equal(weights, model())


@pytest.mark.parametrize(
    "payload",
    [
        torch.zeros(ELEMENTS),
        torch.full((ELEMENTS,), 1e-42),  # subnormal
        torch.full((ELEMENTS,), 0.49 * NORM_MAX),
        torch.tensor([-0.0, 1e14, -1e14, 3.0]),
    ],
    ids=["zero", "subnormal", "norm a little under", "mixed"],
)
def test_a_payload_that_can(payload: torch.Tensor) -> None:
    assert payload_problem(payload, model()) == ""
    Gate(ME, EPOCH).check_push(push(payload=payload), SEQ, model())


def test_a_large_model_of_ordinary_numbers_is_not_over_the_norm() -> None:
    assert payload_problem(torch.full((10**6,), 100.0), torch.zeros(10**6)) == ""


def test_fixed_point_is_taken_as_it_is() -> None:
    weights = torch.zeros(ELEMENTS, dtype=torch.int64)
    assert payload_problem(torch.full((ELEMENTS,), 2**40), weights) == ""
    assert "torch.float32" in payload_problem(torch.zeros(ELEMENTS), weights)


# -- ids and contexts ----------------------------------------------------------------------------

BAD_IDS: dict[str, tuple[Dot, str]] = {
    "my next": (Dot(ME, EPOCH, SEQ + 1), "is mine, but I never made it"),
    "mine, far ahead": (Dot(ME, EPOCH, 2**40), "is mine"),
    "mine, of a life to come": (Dot(ME, EPOCH + 1, 1), "is mine"),
    "number 0": (Dot("b", 1, 0), "numbers start at 1"),
    "number -1": (Dot("b", 1, -1), "numbers start at 1"),
    "epoch 0": (Dot("b", 0, 1), "numbers start at 1"),
    "epoch -1": (Dot("b", -1, 1), "numbers start at 1"),
}
UNWRITABLE_IDS: dict[str, Dot] = {
    "number 2^63": Dot("b", 1, 2**63),
    "number 2^64-1": Dot("b", 1, 2**64 - 1),
    "epoch 2^63": Dot("b", 2**63, 1),
    "no name": Dot("", 1, 1),
    "name of 129 bytes": Dot("b" * 129, 1, 1),
    "name with a newline": Dot("b\nc", 1, 1),
}


@pytest.mark.parametrize("case", BAD_IDS)
@pytest.mark.parametrize("place", [0, 1])
def test_an_id_that_cannot_be(case: str, place: int) -> None:
    """Alone, and at the end of a sum."""
    dot, problem = BAD_IDS[case]
    dots = [Dot("c", 1, 1), dot][1 - place :]
    with pytest.raises(RemoteProtocolError, match=problem) as caught:
        Gate(ME, EPOCH).check_push(push(*dots), SEQ, model())
    assert caught.value.field == "push.dot"


@pytest.mark.parametrize("case", UNWRITABLE_IDS)
def test_an_id_that_no_clock_can_carry(case: str) -> None:
    """Folded once, it would make this node's clock unreadable for everyone."""
    dot = UNWRITABLE_IDS[case]
    with pytest.raises(RemoteProtocolError):
        Clock.from_bytes(Clock([dot]).to_bytes())
    with pytest.raises(RemoteProtocolError) as caught:
        Gate(ME, EPOCH).check_push(push(dot), SEQ, model())
    assert caught.value.field == "push.dot"


@pytest.mark.parametrize(
    "dot",
    [Dot(ME, EPOCH, SEQ), Dot(ME, EPOCH - 1, 2**40), Dot("b", 1, 1), Dot("b", 2**40, 2**40)],
    ids=str,
)
def test_an_id_that_can(dot: Dot) -> None:
    """My own may come back by a relay; of an earlier life I do not know how far it got."""
    Gate(ME, EPOCH).check_push(push(dot), SEQ, model())


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        (clock(Range("b", 1, 1, 1)), "b/1/1 is in its own context"),
        (clock(Range(ME, EPOCH, 1, SEQ + 1)), "is my name used elsewhere"),
        (clock(Range(ME, EPOCH, 500, 500)), "is my name used elsewhere"),
        (clock(Range(ME, EPOCH + 1, 1, 1)), "my name"),
    ],
    ids=["its own id", "my next", "one of mine, far ahead", "mine, of a life to come"],
)
def test_a_context_that_cannot_be(context: Clock, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem) as caught:
        Gate(ME, EPOCH).check_push(push(context=context), SEQ, model())
    assert caught.value.field == "push.context"


def test_a_context_that_can() -> None:
    spans = [Range(ME, EPOCH, 1, SEQ), Range(ME, EPOCH - 1, 1, 99), Range("b", 1, 2, 9)]
    Gate(ME, EPOCH).check_push(push(context=clock(*spans)), SEQ, model())


def test_one_sum_one_generation() -> None:
    stamps = tuple(Stamp(Dot("b", 1, seq), Clock(generation=seq)) for seq in (1, 2))
    with pytest.raises(RemoteProtocolError, match="several generations") as caught:
        Gate(ME, EPOCH).check_push(Push(stamps, torch.ones(ELEMENTS)), SEQ, model())
    assert caught.value.field == "push.context"


def test_a_push_is_judged_by_itself() -> None:
    """All honest peers must refuse the same updates: what was heard before plays no part."""
    gate = Gate(ME, EPOCH)
    gate.check_clock("digest.clock", clock(Range("b", 1, 1, 5)), SEQ, 0.0)
    gate.check_push(push(Dot("b", 1, 10**9)), SEQ, model())


# -- clocks --------------------------------------------------------------------------------------


def check(gate: Gate, *spans: Range, now: float = 0.0, seq: int = SEQ) -> None:
    gate.check_clock("digest.clock", clock(*spans), seq, now)


def refused(gate: Gate, *spans: Range, now: float = 0.0, seq: int = SEQ) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        check(gate, *spans, now=now, seq=seq)
    assert caught.value.field == "digest.clock"
    return caught.value.problem


def test_an_entry_about_me_that_i_never_made() -> None:
    gate = Gate(ME, EPOCH)
    check(gate, Range(ME, EPOCH, 1, SEQ), Range(ME, EPOCH - 1, 1, 10**5))
    assert "I made only 10: is my name used elsewhere?" in refused(
        gate, Range(ME, EPOCH, 1, SEQ + 1)
    )
    assert "my name" in refused(gate, Range(ME, EPOCH + 1, 1, 1))
    check(gate, Range(ME, EPOCH, 1, SEQ + 1), seq=SEQ + 1)  # once I have made it, it is fine


def test_check_mine_names_what_was_sent() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Gate(ME, EPOCH).check_mine("snapshot.clock", clock(Range(ME, EPOCH, 1, 11)), SEQ)
    assert caught.value.field == "snapshot.clock"


def test_a_clock_of_its_own_is_never_apart() -> None:
    lifted = Clock([Dot("b", 1, 1)]).lifted(1, {("b", 1): (1, 2)})
    with pytest.raises(RemoteProtocolError, match="never apart") as caught:
        Gate(ME, EPOCH).check_clock("digest.clock", lifted, SEQ, 0.0)
    assert caught.value.field == "digest.clock"


@pytest.mark.parametrize(
    ("elapsed_s", "jump", "honest"),
    [
        (0.0, SEQ_JUMP_MAX, True),
        (0.0, SEQ_JUMP_MAX + 1, False),
        (1.0, SEQ_JUMP_MAX + 1, False),
        (SEQ_JUMP_MAX / SEQ_PER_S_MAX, SEQ_JUMP_MAX, True),
        (2 * SEQ_JUMP_MAX / SEQ_PER_S_MAX, 2 * SEQ_JUMP_MAX, True),
        (2 * SEQ_JUMP_MAX / SEQ_PER_S_MAX, 2 * SEQ_JUMP_MAX + 1, False),
        (YEAR_S, int(SEQ_PER_S_MAX * YEAR_S), True),
        (YEAR_S, int(SEQ_PER_S_MAX * YEAR_S) + 1, False),
        (YEAR_S, 2**61, False),
    ],
)
def test_a_jump_beyond_reason(elapsed_s: float, jump: int, honest: bool) -> None:
    gate = Gate(ME, EPOCH)
    check(gate, Range("b", 1, 1, 5), now=50.0)
    later = Range("b", 1, 1, 5 + jump)
    if honest:
        check(gate, later, now=50.0 + elapsed_s)
    else:
        problem = refused(gate, later, now=50.0 + elapsed_s)
        assert problem == f"b/1 jumps from 5 to {5 + jump} in {elapsed_s:.0f} s"


def test_an_honest_restart_after_a_year() -> None:
    """A new life starts at 1, whatever the one before had reached; and so may others' lives."""
    gate = Gate(ME, EPOCH)
    check(gate, Range("b", 1, 1, 10**9), Range("c", 1, 1, 7))
    after = (Range("b", 1, 1, 10**9), Range("b", 2, 1, 3), Range("c", 1, 1, 2 * 10**9))
    check(gate, *after, now=YEAR_S)


def test_a_newcomer_believes_what_it_sees_first() -> None:
    """It joins a swarm that has been running for a year."""
    check(Gate(ME, EPOCH), Range("b", 1, 1, 10**10), Range("c", 9, 1, 10**10))


def test_who_is_behind_is_not_suspicious() -> None:
    gate = Gate(ME, EPOCH)
    check(gate, Range("b", 1, 1, 10**6))
    check(gate, Range("b", 1, 1, 3))
    check(gate, Range("b", 1, 1, 10**6 + SEQ_JUMP_MAX))  # measured from the highest heard of


def test_time_runs_from_the_last_progress() -> None:
    gate = Gate(ME, EPOCH)
    check(gate, Range("b", 1, 1, 5), now=0.0)
    check(gate, Range("b", 1, 1, 5), now=YEAR_S)  # no progress: the same again
    check(gate, Range("b", 1, 1, 10**9), now=YEAR_S)
    assert "jumps" in refused(gate, Range("b", 1, 1, 2 * 10**9), now=YEAR_S + 1.0)


def test_a_refused_clock_leaves_no_trace() -> None:
    """Three entries are fine and one is not: none of them is remembered, nor when it came."""
    start = (Range("a", 1, 1, 10), Range("b", 1, 1, 10), Range("z", 1, 1, 10))
    gate = Gate(ME, EPOCH)
    check(gate, *start)
    refused(
        gate,
        Range("a", 1, 1, SEQ_JUMP_MAX),  # fine
        Range("b", 1, 1, 10**12),  # not
        Range("n", 1, 1, 50),  # fine, and new
        Range("z", 1, 1, SEQ_JUMP_MAX),  # fine
        now=100.0,
    )
    for origin in "az":
        assert "from 10 to" in refused(gate, Range(origin, 1, 1, SEQ_JUMP_MAX + 11), now=100.0)
    check(gate, Range("n", 1, 1, 10**12), now=100.0)  # still the first sight of it
    check(gate, *start, now=100.0)


def test_what_is_forgotten_is_new_again() -> None:
    gate = Gate(ME, EPOCH)
    check(gate, Range("b", 1, 1, 5), Range("c", 1, 1, 5))
    gate.forget([("b", 1), ("never", 1)])
    check(gate, Range("b", 1, 1, 10**9))
    assert "c/1 jumps" in refused(gate, Range("c", 1, 1, 10**9))
