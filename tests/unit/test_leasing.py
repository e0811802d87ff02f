"""What a member's two threads share: pushes, gifts, and what a broken stream leaves behind."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from tests.unit.partition_models import MODELS

from murmurate.core.figures.counters import Tally
from murmurate.core.partition import analyse, part_of, weights_of
from murmurate.core.partition.structure import Held
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.subnet_values import Outgoing, encode_held, structure_digest
from murmurate.errors import (
    ChecksumMismatch,
    LocalProtocolError,
    PeerExists,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.training.leasing import BAD_PUSHES_MAX, Leasing

torch.manual_seed(0)
MODEL = MODELS["mlp"][0]()
STRUCTURE = analyse(MODEL, MODELS["mlp"][1]())
HELD: Held = STRUCTURE.everything()
WELCOME = wire.WorkWelcome(run="r", instance="i", rule="once", steps=3)
FREE = wire.WorkWelcome(run="r", instance="i", rule="async", steps=0)
HUB = wire.WorkWelcome(run="r", instance="i", rule="async", steps=1, mode="hub")


def leasing(
    welcome: wire.WorkWelcome | None = WELCOME, lease: int = 5, mode: str = "ist"
) -> Leasing:
    it = Leasing(
        run="r",
        name="n",
        instance="x",
        structure=STRUCTURE,
        digest=structure_digest(STRUCTURE),
        width=1.0,
        memory_bytes=0,
        tally=Tally(),
        mode=mode,
    )
    if welcome is not None:
        it.welcomed(welcome)
        give(it, lease)
        assert it.next_gift() is not None
    return it


def values() -> dict[str, torch.Tensor]:
    return part_of(weights_of(MODEL), STRUCTURE, HELD)


def give(it: Leasing, lease: int, version: int = 0) -> None:
    out = Outgoing(STRUCTURE, values())
    said = wire.Give(
        plan=2,
        lease=lease,
        version=version,
        held=encode_held(HELD),
        value_bytes=out.value_bytes,
    )
    incoming = it.incoming(said)
    for offset, raw in out.pieces(PieceSize()):
        incoming.take(offset, raw)
    it.given(said, incoming.values)


def steps(it: Leasing, count: int) -> None:
    for _ in range(count):
        it.stepped(8, 0.5, time.monotonic())


def pushed(it: Leasing) -> wire.Return:
    """The training thread puts, the link takes."""
    assert it.wants_push()
    it.put(values(), 0.0)
    got = it.push()
    assert got is not None
    assert it.push() is None
    return got[0]


def test_nothing_can_be_trained_before_the_first_gift() -> None:
    it = leasing(None)
    assert it.nothing_to_train()
    it.welcomed(WELCOME)
    assert it.nothing_to_train()
    give(it, 5)
    assert it.next_gift() is not None
    assert not it.nothing_to_train()
    assert it.next_gift() is None


def test_a_push_after_j_steps_then_it_waits_for_the_next_gift() -> None:
    it = leasing()
    steps(it, 2)
    assert not it.wants_push()
    steps(it, 1)
    push = pushed(it)
    assert (push.plan, push.lease, push.version) == (2, 5, 1)
    assert (push.steps, push.samples, push.seconds) == (3, 24, 1.5)
    assert it.nothing_to_train()
    it.taken(wire.Taken(lease=5, version=1, staleness=4))
    assert it.tally.applied == 1
    assert it.tally.staleness.largest == 4
    assert it.nothing_to_train()
    give(it, 6)
    assert it.next_gift() is not None
    assert not it.nothing_to_train()
    assert not it.wants_push()


def test_without_a_number_of_steps_it_pushes_when_the_last_push_is_done() -> None:
    it = leasing(FREE)
    steps(it, 1)
    assert pushed(it).steps == 1
    steps(it, 1)
    assert not it.nothing_to_train()
    assert not it.wants_push()
    it.taken(wire.Taken(lease=5, version=1))
    it._pace.next_at = 100.0  # the pace
    assert not it.stepped(8, 0.5, 99.0)  # nothing to do after it
    assert it.stepped(8, 0.5, 100.0)
    push = pushed(it)
    assert (push.version, push.steps) == (2, 4)  # all of the lease
    it.taken(wire.Taken(lease=5, version=2))
    it._pace.next_at = 0.0
    assert not it.wants_push()  # nothing new
    assert it.settled()


def test_pushes_cost_a_small_part_of_the_time() -> None:
    it = leasing(FREE)
    steps(it, 1)
    it.put(values(), 0.5)
    it.push()
    it.taken(wire.Taken(lease=5, version=1))
    steps(it, 1)
    assert not it.wants_push()
    assert it.wants_push(all_of_it=True)


def test_while_the_coordinator_is_gone_training_goes_on() -> None:
    it = leasing()
    steps(it, 3)
    pushed(it)
    assert it.nothing_to_train()
    assert it.broke(PeerUnavailable("gone"))
    assert not it.nothing_to_train()
    steps(it, 4)
    assert not it.wants_push()
    hello = it.hello()
    assert (hello.lease, hello.lease_version) == (5, 0)


def back(it: Leasing, holds: bool, version: int) -> None:
    it.broke(PeerUnavailable("gone"))
    it.welcomed(
        wire.WorkWelcome(
            run="r",
            instance="j",
            rule=it.rule,
            steps=it.steps,
            lease_holds=holds,
            lease_version=version,
            mode=it.hello().mode,
        )
    )


def test_a_push_whose_answer_was_lost_is_not_made_again() -> None:
    it = leasing()
    steps(it, 3)
    pushed(it)
    back(it, True, 1)
    assert not it.wants_push()
    assert it.nothing_to_train()
    assert it.tally.applied == 1


def test_a_push_that_was_lost_is_made_again_with_all_that_was_done_since() -> None:
    it = leasing()
    steps(it, 3)
    pushed(it)
    it.broke(PeerUnavailable("gone"))
    steps(it, 4)
    back(it, True, 0)
    assert not it.nothing_to_train()
    push = pushed(it)
    assert (push.version, push.steps) == (1, 7)


def test_no_step_is_made_on_a_lease_that_is_over_where_the_hub_decides() -> None:
    """The hub goes away between «taken» and the weights that follow it."""
    it = leasing(HUB, mode="hub")
    steps(it, 1)
    pushed(it)
    it.taken(wire.Taken(lease=5, version=1))
    it.broke(PeerUnavailable("gone"))
    assert it.nothing_to_train()  # the lease ended with its push: another step would be lost
    back(it, False, 0)
    assert it.nothing_to_train()
    it.broke(PeerUnavailable("gone again, before there was another lease"))
    assert it.nothing_to_train()
    back(it, False, 0)
    give(it, 7)
    assert it.next_gift() is not None
    assert not it.nothing_to_train()
    assert it.steps_lost == 0


def test_one_step_is_made_without_the_hub_on_what_it_gave_last() -> None:
    it = leasing(HUB, mode="hub")
    it.broke(PeerUnavailable("gone"))
    assert not it.nothing_to_train()
    steps(it, 1)
    assert it.nothing_to_train()
    back(it, True, 0)
    assert pushed(it).steps == 1


def test_a_hub_that_no_longer_has_the_lease_gets_no_step_for_it() -> None:
    it = leasing(HUB, mode="hub")
    back(it, False, 0)
    it.broke(PeerUnavailable("gone again, before there was another lease"))
    assert it.nothing_to_train()


def test_a_coordinator_that_came_back_from_an_old_checkpoint_gets_everything() -> None:
    it = leasing(FREE)
    steps(it, 2)
    pushed(it)
    it.taken(wire.Taken(lease=5, version=1))
    back(it, True, 0)
    it._pace.next_at = 0.0
    push = pushed(it)
    assert (push.version, push.steps) == (1, 2)


def test_a_lease_that_does_not_hold_any_more_is_not_pushed() -> None:
    it = leasing()
    steps(it, 3)
    back(it, False, 0)
    assert not it.wants_push()
    assert it.nothing_to_train()
    assert it.hello().lease == 0
    give(it, 9)
    assert it.next_gift() is not None
    assert it.steps_lost == 3


def test_a_push_that_waits_to_be_sent_is_dropped_with_its_stream() -> None:
    it = leasing()
    steps(it, 3)
    it.put(values(), 0.0)
    back(it, True, 0)
    assert it.push() is None
    assert it.wants_push()


def test_a_gift_makes_void_what_was_not_sent() -> None:
    it = leasing()
    steps(it, 3)
    it.put(values(), 0.0)
    give(it, 6)
    assert it.push() is None


def test_refusals() -> None:
    it = leasing(FREE)
    renewed: list[int] = []
    it.renew = lambda: renewed.append(1)
    steps(it, 1)
    pushed(it)
    it.not_taken(wire.NotTaken(lease=5, version=1, reason="duplicate"))
    assert it.lease is not None
    assert it.lease.version == 1
    steps(it, 1)
    it._pace.next_at = 0.0
    pushed(it)
    it.not_taken(wire.NotTaken(lease=5, version=2, reason="future"))
    assert renewed
    it.not_taken(wire.NotTaken(lease=5, version=2, reason="over"))
    assert not it.wants_push()
    assert it.nothing_to_train()
    assert dict(it.tally.rejected) == {"duplicate": 1, "future": 1, "over": 1}


def test_many_pushes_that_cannot_be_used_are_an_error() -> None:
    it = leasing(FREE)
    for k in range(BAD_PUSHES_MAX):
        it.check()
        it.not_taken(wire.NotTaken(lease=5 + k, version=1, reason="not_finite", sentence="nan"))
        give(it, 6 + k)
        it.next_gift()
    with pytest.raises(LocalProtocolError, match="10 pushes in a row could not be used: nan"):
        it.check()


def test_a_refusal_of_a_lease_that_is_over_is_only_counted() -> None:
    it = leasing(FREE, lease=9)
    it.not_taken(wire.NotTaken(lease=5, version=1, reason="over"))
    assert it.lease is not None
    assert it.lease.valid


def test_what_trying_again_cannot_help_is_raised_in_the_training_thread() -> None:
    it = leasing()
    assert not it.broke(SchemaMismatch("another run"))
    with pytest.raises(SchemaMismatch, match="another run"):
        it.check()
    it = leasing()
    assert not it.broke(RemoteProtocolError("give.held", "what is that"))
    with pytest.raises(SchemaMismatch, match=r"the coordinator: give.held"):
        it.check()
    assert leasing().broke(ChecksumMismatch("task.checksum", "wrong"))
    assert leasing(None).broke(PeerExists("somebody has that name"))  # perhaps not for long
    assert not leasing().broke(PeerExists("somebody has that name"))


def test_a_coordinator_of_another_run_is_refused() -> None:
    it = leasing(None)
    with pytest.raises(SchemaMismatch, match="'s', this is 'r'"):
        it.welcomed(wire.WorkWelcome(run="s", instance="i", rule="once", steps=3))


def test_a_gift_that_is_no_subnet_of_this_model_is_refused() -> None:
    it = leasing(None)
    good = encode_held(HELD)
    for held, size, said in (
        (good + b"\0", 10, "give.held"),
        (np.zeros(len(good), np.uint8).tobytes(), 10, "give.held: no unit of"),
        (good, 10, "give.value_bytes: 10, expected"),
    ):
        with pytest.raises(RemoteProtocolError, match=said):
            it.incoming(wire.Give(plan=1, lease=1, version=0, held=held, value_bytes=size))


def test_a_rule_that_this_member_does_not_know() -> None:
    it = leasing(None)
    with pytest.raises(SchemaMismatch, match="rule is 'next', this member knows sync, once"):
        it.welcomed(wire.WorkWelcome(run="r", instance="i", rule="next", steps=3))
    assert not it.connected
