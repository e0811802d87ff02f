"""Messages no honest peer sends: each must be refused, and change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.gossip.peer import Peer
from murmurate.core.intervals import SEQ_MAX
from murmurate.core.message import (
    Decided,
    Digest,
    Generation,
    Message,
    Push,
    Rumour,
    Snapshot,
    Stamp,
    Want,
)
from murmurate.errors import PromiseBroken, RemoteProtocolError

Attack = Callable[[Peer], Message]


def _payload(peer: Peer) -> torch.Tensor:
    return torch.ones_like(peer.replica.weights)


def _alien(peer: Peer) -> Stamp:
    return Stamp(Dot("mallory", 1, 1), peer.context())


def not_a_number(peer: Peer) -> Message:
    """NaN where weights are floating point; another dtype where they are not."""
    bad = _payload(peer).double() * float("nan")
    floating = peer.replica.weights.is_floating_point()
    return Push((_alien(peer),), bad.to(peer.replica.weights.dtype) if floating else bad)


def wrong_size(peer: Peer) -> Message:
    return Push((_alien(peer),), torch.cat([_payload(peer), _payload(peer)]))


def update_of_mine(peer: Peer) -> Message:
    return Push((Stamp(Dot(peer.name, peer.epoch, peer.seq + 1), peer.context()),), _payload(peer))


def context_of_mine(peer: Peer) -> Message:
    context = peer.context()
    context.add(Dot(peer.name, peer.epoch, peer.seq + 5))
    return Push((Stamp(Dot("mallory", 1, 1), context),), _payload(peer))


def claim_about_me(peer: Peer) -> Message:
    clock = peer.context()
    clock.add_range(Range(peer.name, peer.epoch, 1, SEQ_MAX))
    return Digest(1, clock, peer.context())


def in_its_own_context(peer: Peer) -> Message:
    dot = Dot("mallory", 1, 1)
    return Push((Stamp(dot, Clock([dot])),), _payload(peer))


def twice_in_a_sum(peer: Peer) -> Message:
    return Push((_alien(peer), _alien(peer)), _payload(peer))


def endless_want(peer: Peer) -> Message:
    return Want(tuple(Range("mallory", 1, i, i) for i in range(1, 5000)))


def backward_range(peer: Peer) -> Message:
    return Want((Range("mallory", 1, 9, 3),))


def small_snapshot(peer: Peer) -> Message:
    return Snapshot(_payload(peer)[:1], peer.context(), peer.baseline.history)


def odd_state(peer: Peer) -> Message:
    from murmurate.core.message import Ping

    return Ping(1, (Rumour("mallory", 1, 0, "immortal"),))


def never_voted_on(peer: Peer) -> Message:
    """A generation that has the receiver on its roster, of which it has never heard."""
    vow = peer.state.agreement.vow
    number = max(peer.baseline.number, vow.number if vow is not None else 0) + 1
    return Decided((Generation(number, (peer.name,), memories=(peer.state.memory,)),))


def another_decision(peer: Peer) -> Message:
    """A second value for a number that was decided."""
    if not peer.baseline.history:
        return never_voted_on(peer)
    return Decided((replace(peer.baseline.history[-1], evicted=("mallory",)),))


ATTACKS: tuple[Attack, ...] = (
    not_a_number,
    wrong_size,
    update_of_mine,
    context_of_mine,
    claim_about_me,
    in_its_own_context,
    twice_in_a_sum,
    endless_want,
    backward_range,
    small_snapshot,
    odd_state,
    never_voted_on,
    another_decision,
)


def strike(peer: Peer, rng: random.Random, now: float) -> None:
    """Send one such message; it must be refused by name, with clock and weights as they were."""
    attack = ATTACKS[rng.randrange(len(ATTACKS))]
    before = peer.context()
    try:
        peer.receive("mallory", attack(peer), now)
    except RemoteProtocolError:
        if peer.clock != before:
            raise PromiseBroken("P7", f"{attack.__name__} changed the clock") from None
        return
    raise PromiseBroken("P7", f"{peer.name} took a message it must refuse: {attack.__name__}")
